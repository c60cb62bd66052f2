"""Measure the sim-to-real gap of a twin by replaying recorded commands and comparing simulated with recorded motion."""

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
_BINS = 20  # largest number of horizon bins


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
        twin: The twin; its nominal parameters are always measured.
        episodes: The episodes to measure on, held out from the fit of ``params``. They are read several times, a few at
            once: give a sequence, or an iterable that can be read again.
        backend: The backend that runs the replays.
        params: Identified parameters: SI values by name, or a distribution whose estimate is used.
        options: Division of the episodes into windows, and the compared channels; whole episodes and joint positions by
            default.
        training: Episodes on which the delay of the baseline ``delay`` is chosen. By default it is chosen on
            ``episodes`` themselves, which favours the baseline and is reported.
        repeats: Rule by which episodes that repeat one motion are found, for the noise floor; see `find_repeats`.
        level: Confidence level of the intervals, which are bootstrapped over episodes, or over blocks of time if there
            are fewer than four episodes.
        seed: Seed of the bootstrap.
        batch: Number of episodes replayed at once; results do not depend on it.

    Raises:
        LogError: If the episodes do not fit the twin.
        UnknownNameError, BoundsError: If the twin has no such parameter, or a value is outside its bounds.
        InputError: If the replay diverges with these parameters, or the episodes can be read only once.
    """
    if isinstance(episodes, Iterator) or isinstance(training, Iterator):
        raise InputError("Episodes are read several times. Give a list, or an iterable that can be read again.")
    chosen = options or ReplayOptions()
    chosen = replace(chosen, history=max(chosen.history, LONGEST_LAG))
    summary = summarize_log(stream_logs(twin, episodes, chosen, batch=batch))
    groups, rule_text = find_repeats(episodes, repeats)
    lags, learned = find_best_lags(stream_logs(twin, episodes if training is None else training, chosen, batch=batch))
    values = dict(params.estimate) if isinstance(params, ParamDistribution) else params
    log_pass = _LogPass(
        backend=backend,
        table=_build_table(twin, values),
        options=chosen,
        lags=lags,
        summary=summary,
        edges=_compute_horizon_edges(summary),
    )
    sums = log_pass.compute_sums(stream_logs(twin, episodes, chosen, batch=batch))
    pairs = _compare_repeats(twin, episodes, groups, chosen, log_pass.edges) if groups else None
    chosen_on = "the measured episodes themselves" if training is None else f"{learned} training episodes"
    meanings = {**sums.meanings}
    if "delay" in meanings:
        meanings["delay"] += f" (chosen on {chosen_on})"
    source = ", ".join(sorted({episode.source for episode in episodes}))
    return build_report(
        replace(sums, meanings=meanings), summary, pairs, rule_text=rule_text, source=source, level=level, seed=seed
    )


@dataclass(frozen=True, kw_only=True)
class _LogPass:
    """Computation of all error sums from which the metrics of a gap are computed, in one pass over the log.

    Attributes:
        backend: The backend that runs the replays.
        table: Nominal parameters and, if given, identified parameters as a second row.
        options: Division of the episodes into windows, and the compared channels.
        lags: Delay of each joint's command in frames, for the baselines.
        summary: Summary of the log.
        edges: Edges in s of the horizon bins, which are intervals of the time since the beginning of a window.
    """

    backend: Backend
    table: ParamTable
    options: ReplayOptions
    lags: Array
    summary: LogSummary
    edges: Array

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the rows of the parameter table: ``nominal`` and, if there is a second row, ``identified``."""
        return ("nominal", "identified")[: self.table.nworld]

    def compute_sums(self, portions: Iterable[ReplayLogs]) -> ErrorSums:
        """Replay every window with every row of the parameter table, and sum the errors.

        Errors are summed over all frames, by contact phase, and for the estimation of delays.

        Args:
            portions: Windows of a few episodes at a time.

        Raises:
            InputError: If there is no episode.
        """
        before, total = (0, 0), None
        for logs in portions:
            part = self._sum_portion(logs, *before)
            total = part if total is None else total + part
            before = before[0] + len(logs.episodes), before[1] + len(logs)
        if total is None:
            raise InputError("There is no episode to measure. Give a log with at least one.")
        return total

    def _sum_portion(self, logs: ReplayLogs, episodes: int, windows: int) -> ErrorSums:
        """Return the error sums of one portion of the log (some of its episodes).

        Args:
            logs: Windows of the portion.
            episodes: Number of episodes before the portion.
            windows: Number of windows before the portion.
        """
        rows = self._assign_rows(logs, episodes, windows)
        readings = replay(self.backend, logs, self.table)
        sum_errors(logs, readings, self.edges).require_finite(logs.twin, self.names)
        baselines = predict_baselines(logs, self.lags, moving=self.options.start == "measured")
        every = np.concatenate([readings, *(baseline.readings[None] for baseline in baselines)])
        whole = self.edges[[0, -1]]
        return ErrorSums(
            twins=self.names,
            meanings={baseline.name: baseline.meaning for baseline in baselines},
            errors=sum_errors(logs, every, self.edges, rows=rows, nrow=self.nrow),
            episode_errors=sum_errors(logs, every, whole),
            phases={
                name: sum_errors(logs, readings, whole, mask=mask, rows=rows, nrow=self.nrow)
                for name, mask in self._find_contact_phases(logs).items()
            },
            lags=tuple(
                LagSums.of(logs, each, rows=rows, nrow=self.nrow, centre=self.summary.mean, length=self.summary.length)
                for each in readings
            ),
            worst=tuple(select_worst_clips(find_worst_windows(logs, readings[-1], self.summary.scale))),
            owners=episodes + logs.episode_index if self._rows_are_windows else np.zeros(0, dtype=np.intp),
            begins=logs.start_times if self._rows_are_windows else np.zeros(0),
            lengths=logs.episode_lengths,
        )

    @property
    def _rows_are_windows(self) -> bool:
        return len(self.summary.episodes) < FEWEST

    @property
    def nrow(self) -> int:
        """Number of rows of the error sums; a row is the unit that the bootstrap resamples.

        With fewer than four episodes a row is a window, otherwise an episode or, in long logs, a group of episodes.
        """
        count = len(self.summary.episodes)
        return self.summary.windows if self._rows_are_windows else find_row(count - 1, count) + 1

    def _assign_rows(self, logs: ReplayLogs, episodes: int, windows: int) -> NDArray[np.intp]:
        """Return the row of the error sums (such as an episode) to which each window of a portion is added.

        Args:
            logs: Windows of the portion.
            episodes: Number of episodes before the portion.
            windows: Number of windows before the portion.
        """
        if self._rows_are_windows:
            return windows + np.arange(len(logs))
        count = len(self.summary.episodes)
        return np.array([find_row(episodes + int(own), count) for own in logs.episode_index], dtype=np.intp)

    def _find_contact_phases(self, logs: ReplayLogs) -> Mapping[str, NDArray[np.bool_]]:
        """Return masks of the frames without contact, at its onset, and in contact, by name of the phase.

        The names are ``free``, ``contact onset`` and ``contact``; every mask has the shape ``(nwindow, nframe,
        nchannel)``. The mapping is empty if contacts are not simulated or cannot be determined.
        """
        found = event_masks(logs) if self.options.contacts else {}
        if "contact" not in found:
            return {}
        onset = found["contact_onset"]
        touching = found["contact"] & ~onset
        return {"free": ~(onset | touching), "contact onset": onset, "contact": touching}


def _build_table(twin: Twin, values: Mapping[str, float] | None) -> ParamTable:
    """Return a table of the nominal parameters and, if ``values`` are given, a second row with the identified ones."""
    if values is None:
        return twin.table(1)
    both = {name: [twin.find_param(name).nominal, value] for name, value in values.items()}
    return twin.table(2, both)


def _compute_horizon_edges(summary: LogSummary) -> Array:
    """Return the edges in s of the horizon bins, which are intervals of the time since the beginning of a window.

    Each bin has the same number of frames, except for rounding.
    """
    frames = summary.frames - 1
    return np.unique(np.linspace(0, frames, min(_BINS, frames) + 1).round()) / summary.hz


def _compare_repeats(
    twin: Twin, episodes: Iterable[Episode], groups: Groups, options: ReplayOptions, edges: Array
) -> RepeatPairs:
    """Compare the episodes of each group, which repeat one motion, with each other.

    Episodes of a group are held in memory until the last of them is read.

    Args:
        twin: The twin.
        episodes: Episodes of the log; those outside all groups are ignored.
        groups: Numbers of the episodes that repeat one motion.
        options: Division of the episodes into windows, and the compared channels.
        edges: Edges of the horizon bins in s.
    """
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
