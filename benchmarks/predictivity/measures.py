"""Compute the same measures for real and simulated rollouts of a controller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.predictivity.closed_loop import Policy, Rollouts, run_policy
from benchmarks.predictivity.policies import TVLQR
from benchmarks.predictivity.score import Version, outcome, outcome_of
from benchmarks.predictivity.twins import Guess
from twinloop.core.records import Episode
from twinloop.simulate import Backend
from twinloop.stats import Interval, bootstrap_mean, wilson
from twinloop.stats.ranking import PolicyScoreMatrix
from twinloop.twin import Twin

Array = NDArray[np.float64]
# Published real results whose recordings are not available: successes, trials, mean score by version.
# dfki-ric-underactuated-lab.github.io/real_ai_gym_leaderboard/pendubot_real_system_leaderboard_{v1,v2}.html
PUBLISHED_REAL = {TVLQR: (8, 10, {"v1": 0.547, "v2": 0.175})}
ALONG = 1.0  # s: motions are compared during the swing-up, before rollouts end or balance


@dataclass(frozen=True, kw_only=True)
class ControllerTrials:
    """Trials of one controller, real or simulated in one twin.

    Attributes:
        success: Outcome of each trial, ``(n,)``; empty if only a published table is available.
        scores: Scores ``(n,)`` by version of the leaderboard.
        swingup_time: Median swing-up time of the successful trials, s; NaN if there is none.
        table: Published successes, trials and mean scores; None if the trials themselves are available.
    """

    success: NDArray[np.bool_]
    scores: dict[str, Array]
    swingup_time: float
    table: tuple[int, int, dict[str, float]] | None = None

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of successes and trials."""
        return self.table[:2] if self.table else (int(self.success.sum()), len(self.success))

    @property
    def rate(self) -> Interval:
        """Success rate with Wilson's interval."""
        return wilson(*self.counts)

    def mean(self, version: Version) -> float:
        """Return the mean score."""
        return self.table[2][version] if self.table else float(self.scores[version].mean())

    def to_json(self) -> dict[str, Any]:
        """Return success rate, mean scores and swing-up time as plain JSON types."""
        wins, trials = self.counts
        low, high = float(self.rate.low), float(self.rate.high)
        time = None if np.isnan(self.swingup_time) else self.swingup_time
        means = {version: self.mean(version) for version in ("v1", "v2")}
        return {"successes": wins, "trials": trials, "low": low, "high": high, "score": means, "swingup_time": time}


def real_trials(rollouts: Sequence[Episode]) -> ControllerTrials:
    """Score the recorded rollouts of one controller."""
    outcomes = [outcome_of(each) for each in rollouts]
    return _summarize_trials(
        np.array([bool(each.success) for each in outcomes]),
        {version: np.array([float(each.score[version]) for each in outcomes]) for version in ("v1", "v2")},
        np.array([float(each.swingup_time) for each in outcomes]),
    )


def published_trials(controller: str) -> ControllerTrials:
    """Return the published results of a controller whose recordings are not available."""
    return ControllerTrials(
        success=np.zeros(0, dtype=np.bool_), scores={}, swingup_time=np.nan, table=PUBLISHED_REAL[controller]
    )


def simulated_trials(rollouts: Rollouts) -> ControllerTrials:
    """Score simulated rollouts; a rollout with an emergency stop is a failure."""
    seen = outcome(rollouts.time, rollouts.position, rollouts.velocity, rollouts.torque)
    alive = ~rollouts.stopped
    scores = {version: seen.score[version] * alive for version in ("v1", "v2")}
    return _summarize_trials(seen.success & alive, scores, seen.swingup_time)


def simulate(backend: Backend, twin: Twin, guess: Guess, policy: Policy, seed: int) -> Rollouts:
    """Run a controller in all worlds of a twin."""
    return run_policy(backend, twin, guess.table, policy, guess.wiring, zero=guess.zero, seed=seed)


def scores(tried: Sequence[ControllerTrials], version: Version | None) -> PolicyScoreMatrix:
    """Collect the scores of several controllers; if ``version`` is None, the scores are successes (0 or 1)."""
    parts = []
    for each in tried:
        if each.table:
            wins, trials, means = each.table
            parts.append(PolicyScoreMatrix.of_table([wins / trials if version is None else means[version]], [trials]))
        else:
            sample = each.success if version is None else each.scores[version]
            parts.append(PolicyScoreMatrix.of_trials([np.clip(sample.astype(np.float64), 0.0, 1.0)]))
    return PolicyScoreMatrix(
        mean=np.concatenate([part.mean for part in parts]), trials=np.concatenate([part.trials for part in parts])
    )


def motion_error(rollouts: Rollouts, real: Sequence[Episode]) -> Interval:
    """Return the RMS difference in rad between the median simulated motion and each real one, over the first second.

    The interval is over real rollouts. Both motions start with the controller's first call.
    """
    inside = rollouts.time <= ALONG
    simulated = np.median(rollouts.position[:, inside], axis=0)
    squares = [np.mean((simulated - _at(each, rollouts.time[inside])) ** 2) for each in real]
    return _root(bootstrap_mean(np.array(squares)))


def motion_spread(real: Sequence[Episode], hz: float) -> float:
    """Return the RMS difference in rad of each real rollout from the median of the other ones: the noise floor."""
    time = np.arange(int(ALONG * hz) + 1) / hz
    motions = np.array([_at(each, time) for each in real])
    others = [np.median(np.delete(motions, i, axis=0), axis=0) for i in range(len(motions))]
    return float(np.sqrt(np.mean((motions - np.array(others)) ** 2)))


def _summarize_trials(success: NDArray[np.bool_], by_version: dict[str, Array], times: Array) -> ControllerTrials:
    median = float(np.median(times[success])) if success.any() else float("nan")
    return ControllerTrials(success=success, scores=by_version, swingup_time=median)


def _at(episode: Episode, time: Array) -> Array:
    positions = episode.units.to_si(episode.state)
    return np.stack([np.interp(time, episode.time, column) for column in positions.T], axis=-1)


def _root(interval: Interval) -> Interval:
    ends = [np.sqrt(np.maximum(value, 0.0)) for value in (interval.estimate, interval.low, interval.high)]
    return Interval(estimate=ends[0], low=ends[1], high=ends[2], level=interval.level, method=interval.method)
