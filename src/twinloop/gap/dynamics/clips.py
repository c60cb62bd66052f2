"""Find the clips with the largest errors, which a person should inspect first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.plain import JsonRecord
from twinloop.simulate.replay_logs import ReplayLogs

Array = NDArray[np.float64]
_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class ErrorClip(JsonRecord):
    """One window of one episode: ``length`` s from ``begin`` s on, with the RMSE of its worst channel in ``unit``.

    ``relative`` is the error divided by the channel's scale, for comparison between channels.
    """

    episode: int
    begin: float
    length: float
    channel: str
    error: float
    unit: str
    relative: float


def find_worst_windows(logs: ReplayLogs, readings: Array, scale: Array) -> list[ErrorClip]:
    """Return the worst window of each episode; ``readings`` ``(nwindow, nframe, nchannel)`` are of one world."""
    error = readings[:, 1:] - logs.measured[:, 1:]
    count = np.maximum(np.sum(~np.isnan(error), axis=1), 1)
    size = np.sqrt(np.nansum(error**2, axis=1) / count)
    relative = np.nan_to_num(size / scale)
    clips, owners = [], np.array(logs.numbers)
    for episode in dict.fromkeys(logs.numbers):
        rows = np.flatnonzero(owners == episode)
        window = int(rows[np.argmax(relative[rows].max(axis=1))])
        column = int(np.argmax(relative[window]))
        clips.append(
            ErrorClip(
                episode=episode,
                begin=float(logs.begins[window]),
                length=float((logs.ends[window] - 1) / logs.twin.control_hz),
                channel=logs.channels[column].name,
                error=float(size[window, column]),
                unit=logs.channels[column].unit,
                relative=float(relative[window, column]),
            )
        )
    return clips


def select_worst_clips(clips: Iterable[ErrorClip]) -> list[ErrorClip]:
    """Return the three worst clips, each from a different episode, the worst first."""
    return sorted(clips, key=lambda clip: -clip.relative)[:_SHOWN]
