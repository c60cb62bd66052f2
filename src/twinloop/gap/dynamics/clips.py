"""Find the windows of a log with the largest errors of the twin, so that a person can inspect them first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.plain import JsonRecord
from twinloop.simulate.replay_logs import ReplayLogs

Array = NDArray[np.float64]
_NCLIPS = 3  # in the report


@dataclass(frozen=True, kw_only=True)
class ErrorClip(JsonRecord):
    """One window of one episode with the error of its worst channel.

    Attributes:
        episode: Number of the episode.
        begin: Start of the window in the episode, in s.
        length: Duration of the window in s.
        channel: Name of the channel with the largest relative error.
        error: RMSE of this channel in ``unit``.
        unit: Unit of the channel.
        relative: RMSE divided by the channel's scale, for comparison between channels.
    """

    episode: int
    begin: float
    length: float
    channel: str
    error: float
    unit: str
    relative: float


def find_worst_windows(logs: ReplayLogs, readings: Array, scale: Array) -> list[ErrorClip]:
    """Return the window with the largest relative error of each episode.

    Args:
        logs: Windows of some episodes.
        readings: Readings that one world predicts, shape ``(nwindow, nframe, nchannel)``.
        scale: Divisor of each channel's error, shape ``(nchannel,)``, see `LogSummary`. A channel with NaN is ignored.
    """
    error = readings[:, 1:] - logs.measured[:, 1:]
    count = np.maximum(np.sum(~np.isnan(error), axis=1), 1)
    size = np.sqrt(np.nansum(error**2, axis=1) / count)
    relative = np.nan_to_num(size / scale)
    clips, owners = [], np.array(logs.episode_numbers)
    for episode in dict.fromkeys(logs.episode_numbers):
        rows = np.flatnonzero(owners == episode)
        window = int(rows[np.argmax(relative[rows].max(axis=1))])
        column = int(np.argmax(relative[window]))
        clips.append(
            ErrorClip(
                episode=episode,
                begin=float(logs.start_times[window]),
                length=float((logs.ends[window] - 1) / logs.twin.control_hz),
                channel=logs.channels[column].name,
                error=float(size[window, column]),
                unit=logs.channels[column].unit,
                relative=float(relative[window, column]),
            )
        )
    return clips


def select_worst_clips(clips: Iterable[ErrorClip]) -> list[ErrorClip]:
    """Return the three clips with the largest relative errors, the worst first."""
    return sorted(clips, key=lambda clip: -clip.relative)[:_NCLIPS]
