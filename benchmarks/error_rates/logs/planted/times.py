"""Plant defects of time stamps and frames."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.error_rates.logs.planted.defect import (
    Log,
    Planted,
    change_from_row,
    choose_episode,
    choose_middle_row,
    defect,
    keep_rows,
    raw,
    replace_episode,
)
from twinloop.dataset.logs.importers.protocol import RawEpisode


@defect("clock set back", "time_backwards", also=("gap", "time_duplicate"))
def _back(log: Log, random: np.random.Generator) -> Planted | None:
    def change(record: RawEpisode, at: int) -> None:
        record.time[at:] -= random.uniform(0.2, 0.5) * np.ptp(record.time)

    return change_from_row(log, random, change)


@defect("times twice", "time_duplicate")
def _twice(log: Log, random: np.random.Generator) -> Planted | None:
    def change(record: RawEpisode, at: int) -> None:
        rows = np.arange(at, len(record.time) - 1, 9)
        record.time[rows] = record.time[rows - 1]

    return change_from_row(log, random, change)


@defect("gap", "gap")
def _gap(log: Log, random: np.random.Generator) -> Planted | None:
    row = choose_episode(log, random)
    if row is None:
        return None
    record, at = raw(log[row]), choose_middle_row(log[row], random)
    gone = np.zeros(len(record.time), dtype=np.bool_)
    gone[at + 1 : at + 1 + int(random.integers(6, 25))] = True
    return Planted(
        records=replace_episode(log, row, keep_rows(record, ~gone)),
        column="",
        episode=record.index,
        begin_s=float(record.time[at]),
    )


@defect("frames repeated", "repeated_frames", also=("rate_differs",))
def _repeat(log: Log, random: np.random.Generator) -> Planted | None:
    row = choose_episode(log, random)
    if row is None or not log[row].joints or log[row].action_time is not None:
        return None
    record = raw(log[row])
    speed = np.abs(np.diff(record.state, axis=0)).max(axis=1)
    rows = np.flatnonzero(speed > np.percentile(speed, 60)) + 1
    rows = rows[(rows > 2) & (rows < len(speed) - 2)][:: max(1, round(1 / 0.2))]
    if len(rows) < 8:
        return None
    record.state[rows] = record.state[rows - 1]
    record.action[rows] = record.action[rows - 1]
    return Planted(
        records=replace_episode(log, row, record), column="", episode=record.index, begin_s=float(record.time[rows[0]])
    )


@defect("milliseconds for seconds", "time_unit", also=("gap", "uneven", "rate_differs", "torque_sign"))
def _milliseconds(log: Log, _random: np.random.Generator) -> Planted | None:
    scaled = [replace(raw(record), time=1e3 * record.time) for record in log]
    median = float(np.median(np.diff(log[0].time)))
    if median < 0.6e-3:
        return None  # for a log of 2 kHz even milliseconds are a plausible period
    return Planted(records=scaled, column="", episode=log[0].index, begin_s=float(scaled[0].time[0]))
