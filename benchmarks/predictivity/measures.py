"""Real and simulated rollouts of the same controllers, measured alike."""

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
# Published real results without files here: successes, trials, mean score by version.
# dfki-ric-underactuated-lab.github.io/real_ai_gym_leaderboard/pendubot_real_system_leaderboard_{v1,v2}.html
PUBLISHED_REAL = {TVLQR: (8, 10, {"v1": 0.547, "v2": 0.175})}
ALONG = 1.0  # s from the beginning over which motions are compared: the swing-up, before rollouts end or balance


@dataclass(frozen=True, kw_only=True)
class Tried:
    """Trials of one controller in one world of reality or simulation.

    ``scores`` by version ``(n,)`` and ``success`` ``(n,)``; for results known from a table alone both are empty and
    ``table`` holds (successes, trials, scores). ``swingup_time`` is the median of the successes, NaN without one.
    """

    success: NDArray[np.bool_]
    scores: dict[str, Array]
    swingup_time: float
    table: tuple[int, int, dict[str, float]] | None = None

    @property
    def counts(self) -> tuple[int, int]:
        """Successes and trials."""
        return self.table[:2] if self.table else (int(self.success.sum()), len(self.success))

    @property
    def rate(self) -> Interval:
        """Success rate, Wilson's interval."""
        return wilson(*self.counts)

    def mean(self, version: Version) -> float:
        """Mean score."""
        return self.table[2][version] if self.table else float(self.scores[version].mean())

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        wins, trials = self.counts
        low, high = float(self.rate.low), float(self.rate.high)
        time = None if np.isnan(self.swingup_time) else self.swingup_time
        means = {version: self.mean(version) for version in ("v1", "v2")}
        return {"successes": wins, "trials": trials, "low": low, "high": high, "score": means, "swingup_time": time}


def real_trials(rollouts: Sequence[Episode]) -> Tried:
    """Recorded rollouts of one controller."""
    outcomes = [outcome_of(each) for each in rollouts]
    return _tried(
        np.array([bool(each.success) for each in outcomes]),
        {version: np.array([float(each.score[version]) for each in outcomes]) for version in ("v1", "v2")},
        np.array([float(each.swingup_time) for each in outcomes]),
    )


def published_trials(controller: str) -> Tried:
    """A controller whose real rollouts are known from the leaderboard's table alone."""
    return Tried(success=np.zeros(0, dtype=np.bool_), scores={}, swingup_time=np.nan, table=PUBLISHED_REAL[controller])


def simulated_trials(rollouts: Rollouts) -> Tried:
    """Simulated rollouts; one that the robot would have stopped is a failure."""
    seen = outcome(rollouts.time, rollouts.position, rollouts.velocity, rollouts.torque)
    alive = ~rollouts.stopped
    scores = {version: seen.score[version] * alive for version in ("v1", "v2")}
    return _tried(seen.success & alive, scores, seen.swingup_time)


def simulate(backend: Backend, twin: Twin, guess: Guess, policy: Policy, seed: int) -> Rollouts:
    """A controller in all worlds of a guess."""
    return run_policy(backend, twin, guess.table, policy, guess.wiring, zero=guess.zero, seed=seed)


def scores(tried: Sequence[Tried], version: Version | None) -> PolicyScoreMatrix:
    """Scores of several controllers; successes where there is no version."""
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
    """Root mean square difference of angles over the first second in rad, of mean simulated from each real motion.

    The interval is over real rollouts. Both begin with the controller's first call.
    """
    inside = rollouts.time <= ALONG
    simulated = np.median(rollouts.position[:, inside], axis=0)
    squares = [np.mean((simulated - _at(each, rollouts.time[inside])) ** 2) for each in real]
    return _root(bootstrap_mean(np.array(squares)))


def motion_spread(real: Sequence[Episode], hz: float) -> float:
    """The same between real rollouts and the median of the others, in rad: what no twin can beat but by chance."""
    time = np.arange(int(ALONG * hz) + 1) / hz
    motions = np.array([_at(each, time) for each in real])
    others = [np.median(np.delete(motions, i, axis=0), axis=0) for i in range(len(motions))]
    return float(np.sqrt(np.mean((motions - np.array(others)) ** 2)))


def _tried(success: NDArray[np.bool_], by_version: dict[str, Array], times: Array) -> Tried:
    median = float(np.median(times[success])) if success.any() else float("nan")
    return Tried(success=success, scores=by_version, swingup_time=median)


def _at(episode: Episode, time: Array) -> Array:
    positions = episode.units.to_si(episode.state)
    return np.stack([np.interp(time, episode.time, column) for column in positions.T], axis=-1)


def _root(interval: Interval) -> Interval:
    ends = [np.sqrt(np.maximum(value, 0.0)) for value in (interval.estimate, interval.low, interval.high)]
    return Interval(estimate=ends[0], low=ends[1], high=ends[2], level=interval.level, method=interval.method)
