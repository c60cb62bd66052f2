"""Plant defects of the clocks of commands and measurements."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.error_rates.logs.planted.defect import (
    Log,
    Planted,
    change_joint_everywhere,
    choose_episode,
    defect,
    raw,
    replace_episode,
)
from twinloop.dataset.logs.importers.protocol import RawEpisode

_FEWEST_JOINTS, _FEWEST_EPISODES = 4, 5  # smallest numbers in which a single one can be identified
_LONG_S = 7.5  # an episode shorter than this is too short to detect a change of its lag


def _shift_inplace(record: RawEpisode, seconds: NDArray[np.float64] | float, columns: list[int] | None = None) -> None:
    """Delay the measurements of some joints (all if ``columns`` is None), in place.

    Args:
        record: Episode that is changed.
        seconds: Delay in s: one number, or one per frame.
        columns: Columns of the delayed joints.
    """
    for column in range(record.state.shape[1]) if columns is None else columns:
        record.state[:, column] = np.interp(record.time - seconds, record.time, record.state[:, column])


def _is_commanded(log: Log) -> bool:
    return bool(log[0].joints) and log[0].command == "position" and log[0].action_time is None


def _delay_all_joints(log: Log, seconds: float) -> Planted | None:
    """Delay every measurement of the log by ``seconds``; return None if the log has no position commands."""
    if not _is_commanded(log):
        return None
    made = [raw(record) for record in log]
    for row, record in enumerate(made):
        _shift_inplace(record, seconds)
        late = {
            name: replace(signal, time=signal.time + seconds) if name.startswith("joint_") else signal
            for name, signal in record.signals.items()
        }
        made[row] = replace(record, signals=late)
    return Planted(records=made, column="*", episode=log[0].index, begin_s=math.nan)


def _delay_one_episode(
    log: Log, random: np.random.Generator, shift: Callable[[RawEpisode], tuple[NDArray[np.float64] | float, float]]
) -> Planted | None:
    """Delay the measurements of one random episode.

    ``shift`` maps the episode to the delay in s (one number, or one per frame) and the time in s at which the defect
    begins; NaN if the episode cannot have the defect.
    """
    row = choose_episode(log, random)
    if row is None or not _is_commanded(log):
        return None
    record = raw(log[row])
    seconds, begin = shift(record)
    if math.isnan(begin):
        return None
    _shift_inplace(record, seconds)
    return Planted(records=replace_episode(log, row, record), column="", episode=record.index, begin_s=begin)


@defect("measurements half a second late", "late", also=("joint_lag", "episode_lag", "swapped", "clock_step", "frozen"))
def _late(log: Log, _random: np.random.Generator) -> Planted | None:
    return _delay_all_joints(log, 0.5)


@defect("measurements before their commands", "ahead", also=("episode_lag", "joint_lag", "frozen"))
def _ahead(log: Log, _random: np.random.Generator) -> Planted | None:
    return _delay_all_joints(log, -0.35)


@defect("one joint late by 0.3 s", "joint_lag", also=("late",))
def _joint_late(log: Log, random: np.random.Generator) -> Planted | None:
    if not _is_commanded(log) or len(log[0].joints) < _FEWEST_JOINTS:
        return None
    return change_joint_everywhere(log, random, lambda record, joint: _shift_inplace(record, 0.3, [joint]))


@defect("one episode late by 0.3 s", "episode_lag", also=("late",))
def _episode_late(log: Log, random: np.random.Generator) -> Planted | None:
    if len(log) < _FEWEST_EPISODES or len({str(record.conditions) for record in log}) > 1:
        return None
    return _delay_one_episode(log, random, lambda record: (0.3, float(record.time[0])))


@defect("clocks that drift by 2 %", "clock_drift", also=("late", "clock_step", "episode_lag"))
def _drift(log: Log, random: np.random.Generator) -> Planted | None:
    def shift(record: RawEpisode) -> tuple[NDArray[np.float64], float]:
        begin = float(record.time[0])
        return 0.02 * (record.time - begin), begin if np.ptp(record.time) >= _LONG_S else math.nan

    return _delay_one_episode(log, random, shift)


@defect("clocks differ by 0.3 s after some time", "clock_step", also=("clock_drift", "spike", "wraps", "episode_lag"))
def _step(log: Log, random: np.random.Generator) -> Planted | None:
    def shift(record: RawEpisode) -> tuple[NDArray[np.float64], float]:
        at = int(random.integers(round(0.4 * len(record.time)), round(0.6 * len(record.time))))
        begin = float(record.time[at]) if np.ptp(record.time) >= _LONG_S else math.nan
        return np.where(np.arange(len(record.time)) < at, 0.0, 0.3), begin

    return _delay_one_episode(log, random, shift)
