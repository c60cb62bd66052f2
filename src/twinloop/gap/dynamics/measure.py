"""Measure the gap of a twin against recorded episodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.core.records import Episode
from twinloop.gap.dynamics.baselines import LONGEST_LAG, find_best_lags, predict_baselines
from twinloop.gap.dynamics.clips import find_worst_windows, select_worst_clips
from twinloop.gap.dynamics.delay import LagSums
from twinloop.gap.dynamics.errors import BATCH, stream_logs, sum_errors
from twinloop.gap.dynamics.events import event_masks
from twinloop.gap.dynamics.intervals import FEWEST, find_row
from twinloop.gap.dynamics.metrics import ErrorSums, LogSummary, build_report, summarize_log
from twinloop.gap.dynamics.noise_floor import Groups, RepeatPairs, find_repeats, join_pairs, sum_pairs
from twinloop.gap.dynamics.report import GapReport
from twinloop.simulate import Backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayLogs, ReplayOptions
from twinloop.twin import Twin

Array = NDArray[np.float64]
Params = Mapping[str, float] | ParamDistribution
_BINS = 20  # of the curve over the horizon, at most


def measure_gap(
    twin: Twin,
    episodes: Iterable[Episode],
    *,
    backend: Backend,
    params: Params | None = None,
    options: ReplayOptions | None = None,
    training: Iterable[Episode] | None = None,
    repeats: str = "auto",
    level: float = 0.95,
    seed: int = 0,
    batch: int = BATCH,
) -> GapReport:
    """Measure the difference between recorded motion and the twin's replay of the recorded commands.

    Args:
        twin: the twin; its nominal parameters are always measured.
        episodes: the episodes to measure on, held out from the fit of ``params``. They are read several times, a few at
            once: give a sequence, or an iterable that can be read again.
        backend: the backend that runs the replays.
        params: identified parameters: SI values by name, or a distribution whose estimate is used.
        options: how the episodes are divided into windows and which channels are compared; whole episodes and joint
            positions by default.
        training: episodes on which the baseline's delay is chosen; by default it is chosen on ``episodes`` themselves,
            which favours the baseline and is reported.
        repeats: which episodes repeat one motion, see `find_repeats`.
        level: confidence level of the intervals, which are bootstrapped over episodes, or over blocks of time if there
            are fewer than four episodes.
        seed: seed of the bootstrap.
        batch: episodes replayed at once; results do not depend on it.

    Raises:
        LogError: the episodes do not fit the twin.
        UnknownNameError, BoundsError: the twin has no such parameter, or a value is outside its bounds.
        InputError: the replay diverges with these parameters, or the episodes can be read only once.
    """
    if isinstance(episodes, Iterator) or isinstance(training, Iterator):
        raise InputError("Episodes are read several times. Give a list, or an iterable that can be read again.")
    chosen = options or ReplayOptions()
    chosen = replace(chosen, history=max(chosen.history, LONGEST_LAG))
    seen = summarize_log(stream_logs(twin, episodes, chosen, batch=batch))
    groups, how = find_repeats(episodes, repeats)
    lags, learned = find_best_lags(stream_logs(twin, episodes if training is None else training, chosen, batch=batch))
    values = dict(params.estimate) if isinstance(params, ParamDistribution) else params
    walk = _LogPass(
        backend=backend,
        table=_build_table(twin, values),
        options=chosen,
        lags=lags,
        seen=seen,
        edges=_compute_horizon_edges(seen),
    )
    sums = walk.compute_sums(stream_logs(twin, episodes, chosen, batch=batch))
    pairs = _compare_repeats(twin, episodes, groups, chosen, walk.edges) if groups else None
    said = "the measured episodes themselves" if training is None else f"{learned} training episodes"
    meanings = {**sums.meanings}
    if "delay" in meanings:
        meanings["delay"] += f" (chosen on {said})"
    source = ", ".join(sorted({episode.source for episode in episodes}))
    return build_report(replace(sums, meanings=meanings), seen, pairs, how=how, source=source, level=level, seed=seed)


@dataclass(frozen=True, kw_only=True)
class _LogPass:
    """One pass over the log with everything that is summed on it."""

    backend: Backend
    table: ParamTable
    options: ReplayOptions
    lags: Array
    seen: LogSummary
    edges: Array

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the table's rows."""
        return ("nominal", "identified")[: self.table.nworld]

    def compute_sums(self, portions: Iterable[ReplayLogs]) -> ErrorSums:
        """Replay every window with every row, and sum errors, phases and lags; keep the worst clips."""
        begun, total = (0, 0), None
        for logs in portions:
            part = self._sum_portion(logs, *begun)
            total = part if total is None else total + part
            begun = begun[0] + len(logs.episodes), begun[1] + len(logs)
        if total is None:
            raise InputError("There is no episode to measure. Give a log with at least one.")
        return total

    def _sum_portion(self, logs: ReplayLogs, episodes: int, windows: int) -> ErrorSums:
        """Return the sums of a portion that follows the given number of episodes and windows."""
        rows = self._assign_rows(logs, episodes, windows)
        readings = replay(self.backend, logs, self.table)
        sum_errors(logs, readings, self.edges).require_finite(logs.twin, self.names)
        guesses = predict_baselines(logs, self.lags, moving=self.options.start == "measured")
        every = np.concatenate([readings, *(guess.readings[None] for guess in guesses)])
        whole = self.edges[[0, -1]]
        return ErrorSums(
            twins=self.names,
            meanings={guess.name: guess.meaning for guess in guesses},
            errors=sum_errors(logs, every, self.edges, rows=rows, nrow=self.nrow),
            each=sum_errors(logs, every, whole),
            phases={
                name: sum_errors(logs, readings, whole, mask=mask, rows=rows, nrow=self.nrow)
                for name, mask in self._find_contact_phases(logs).items()
            },
            lags=tuple(
                LagSums.of(logs, each, rows=rows, nrow=self.nrow, centre=self.seen.mean, length=self.seen.length)
                for each in readings
            ),
            worst=tuple(select_worst_clips(find_worst_windows(logs, readings[-1], self.seen.scale))),
            owners=episodes + logs.clusters if self._rows_are_windows else np.zeros(0, dtype=np.intp),
            begins=logs.begins if self._rows_are_windows else np.zeros(0),
            lengths=logs.episode_lengths,
        )

    @property
    def _rows_are_windows(self) -> bool:
        return len(self.seen.episodes) < FEWEST

    @property
    def nrow(self) -> int:
        """Number of rows of sums."""
        count = len(self.seen.episodes)
        return self.seen.windows if self._rows_are_windows else find_row(count - 1, count) + 1

    def _assign_rows(self, logs: ReplayLogs, episodes: int, windows: int) -> NDArray[np.intp]:
        """Return the row of sums to which each window is added."""
        if self._rows_are_windows:
            return windows + np.arange(len(logs))
        count = len(self.seen.episodes)
        return np.array([find_row(episodes + int(own), count) for own in logs.clusters], dtype=np.intp)

    def _find_contact_phases(self, logs: ReplayLogs) -> Mapping[str, NDArray[np.bool_]]:
        """Return the frames before, at and after contact, if contacts are simulated and can be determined."""
        found = event_masks(logs) if self.options.contacts else {}
        if "contact" not in found:
            return {}
        onset = found["contact_onset"]
        touching = found["contact"] & ~onset
        return {"free": ~(onset | touching), "contact onset": onset, "contact": touching}


def _build_table(twin: Twin, values: Mapping[str, float] | None) -> ParamTable:
    """Return the nominal parameters and, if given, the identified ones."""
    if values is None:
        return twin.table(1)
    both = {name: [twin.find_param(name).nominal, value] for name, value in values.items()}
    return twin.table(2, both)


def _compute_horizon_edges(seen: LogSummary) -> Array:
    """Return the edges of the horizon bins at whole frames, with equal numbers of frames except for rounding."""
    frames = seen.frames - 1
    return np.unique(np.linspace(0, frames, min(_BINS, frames) + 1).round()) / seen.hz


def _compare_repeats(
    twin: Twin, episodes: Iterable[Episode], groups: Groups, options: ReplayOptions, edges: Array
) -> RepeatPairs:
    """Compare repeats with each other; the episodes of a group are held in memory until the last of them is read."""
    home = {number: row for row, group in enumerate(groups) for number in group}
    waiting: dict[int, list[Episode]] = {}
    found = []
    for episode in episodes:
        if episode.index not in home:
            continue
        row = home[episode.index]
        members = waiting.setdefault(row, [])
        members.append(episode)
        if len(members) == len(groups[row]):
            logs = next(stream_logs(twin, waiting.pop(row), options, batch=len(members)))
            found.append((groups[row], sum_pairs(logs, groups[row], edges)))
    return join_pairs(found)
