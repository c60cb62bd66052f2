"""Replay windows of a log with many rows of parameters, and sum the errors of every row.

Episodes are processed a few at a time, so that a long log need not fit into memory. RMSE, intervals and attributions
are computed from the sums.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError, LogError
from twinloop.core.params import ParamTable
from twinloop.core.records import Episode
from twinloop.simulate import Backend
from twinloop.simulate.channels import MeasuredChannel
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayLogs, ReplayOptions, prepare_replay
from twinloop.twin import Twin

Array = NDArray[np.float64]
BATCH = 8  # episodes of a portion: enough windows for one call of the backend, in a few MB of memory
_MOST_NUMBERS = 4_000_000  # largest number of readings in memory at once: 32 MB
_SAME_RATE = 0.02  # relative difference of rates that is allowed, as within one replay
_ROUNDING = 1e-6  # of a frame, when a frame's time is compared with an edge


@dataclass(frozen=True, kw_only=True)
class WindowErrors:
    """Squared and absolute errors of many parameter rows, summed by episode, horizon bin and channel.

    A parameter row is one world. The horizon is the time since the beginning of a window. The first frame of a window
    is given and does not count. Bin k has the frames later than ``edges[k]`` and up to ``edges[k + 1]``; frames after
    the last edge are left out. If the replay of a row diverges in an episode, its errors are infinite there from the
    bin of the divergence on.

    Attributes:
        squared: Squared errors, shape ``(nworld, nepisode, nbin, nchannel)``, in the square of the channels' units.
        absolute: Absolute errors, same shape, in the channels' units.
        count: Number of measured frames, shape ``(nepisode, nbin, nchannel)``.
        edges: Edges of the horizon bins in s, shape ``(nbin + 1,)``.
        channels: Channels of the last axis.
        episodes: Numbers of the episodes, in the order of processing.
    """

    squared: Array
    absolute: Array
    count: Array
    edges: Array
    channels: tuple[MeasuredChannel, ...]
    episodes: tuple[int, ...]

    def rmse(self) -> Array:
        """Return the RMSE over all episodes and horizons, shape ``(nworld, nchannel)``; NaN if nothing was measured."""
        return np.sqrt(ratio(self.squared.sum(axis=(1, 2)), self.count.sum(axis=(0, 1))))

    def mae(self) -> Array:
        """Return the mean absolute error over all episodes and horizons, shape ``(nworld, nchannel)``."""
        return ratio(self.absolute.sum(axis=(1, 2)), self.count.sum(axis=(0, 1)))

    @property
    def diverged_mask(self) -> NDArray[np.bool_]:
        """Mask of parameter rows and episodes in which the replay diverged, shape ``(nworld, nepisode)``."""
        return np.asarray(np.isinf(self.absolute).any(axis=(2, 3)))

    def require_finite(self, twin: Twin, names: Sequence[str]) -> None:
        """Raise an error if the replay of any parameter row diverged.

        Args:
            twin: The twin of the rows.
            names: A name for each row, such as ``nominal``.

        Raises:
            InputError: If a row diverged; the message has the first such row, its episode, and the number of episodes.
        """
        if not self.diverged_mask.any():
            return
        world, row = np.argwhere(self.diverged_mask)[0]
        more = int(self.diverged_mask[world].sum()) - 1
        others = f" and {more} more" if more else ""
        raise InputError(
            f"The twin {twin.name} diverges in episode {self.episodes[row]}{others} with the {names[world]} "
            "parameters. Increase the substeps in the twin's YAML, or give less extreme parameters."
        )


def window_errors(
    backend: Backend,
    twin: Twin,
    episodes: Iterable[Episode],
    table: ParamTable,
    *,
    options: ReplayOptions | None = None,
    edges: ArrayLike = (0.0, np.inf),
    batch: int = BATCH,
) -> WindowErrors:
    """Replay every row of a parameter table over every window of a log, and sum its errors.

    Args:
        backend: The backend that runs the worlds.
        twin: The twin.
        episodes: Episodes of the log; read once, a few at a time.
        table: A row of the twin's parameters for each world.
        options: Division of the episodes into windows, and the compared channels.
        edges: Edges of the horizon bins in s, increasing; one bin by default.
        batch: Number of episodes replayed at once. Results do not depend on it.

    Raises:
        LogError, InputError: See `stream_logs`.
    """
    bounds = _check_edges(edges)
    return join_errors(
        [_measure_portion(backend, logs, table, bounds) for logs in stream_logs(twin, episodes, options, batch=batch)]
    )


def stream_windows(
    backend: Backend,
    twin: Twin,
    episodes: Iterable[Episode],
    table: ParamTable,
    *,
    options: ReplayOptions | None = None,
    batch: int = BATCH,
) -> Iterator[tuple[ReplayLogs, Array]]:
    """Replay every row of a parameter table over a log, and yield the windows of a few episodes with their readings.

    Args:
        backend: The backend that runs the worlds.
        twin: The twin.
        episodes: Episodes of the log; read once, a few at a time.
        table: A row of the twin's parameters for each world.
        options: Division of the episodes into windows, and the compared channels.
        batch: Number of episodes replayed at once. Results do not depend on it.

    Yields:
        Windows, and the readings that each row predicts, shape ``(nworld, nwindow, nframe, nchannel)``.

    Raises:
        LogError, InputError: See `stream_logs`.
    """
    for logs in stream_logs(twin, episodes, options, batch=batch):
        yield logs, replay(backend, logs, table)


def stream_logs(
    twin: Twin, episodes: Iterable[Episode], options: ReplayOptions | None = None, *, batch: int = BATCH
) -> Iterator[ReplayLogs]:
    """Yield the windows of a few episodes at a time, all at the control rate of the first episode.

    Args:
        twin: The twin.
        episodes: Episodes of the log, read once.
        options: Division of the episodes into windows, and the compared channels; whole episodes by default.
        batch: Number of episodes per portion.

    Raises:
        LogError: If there is no episode, or if an episode has other units, joints or rate than the first; see also
            `prepare_replay`.
        InputError: If ``batch`` is below 1, or windows are longer than every episode.
    """
    if batch < 1:
        raise InputError(f"Portions of {batch} episodes are empty. Give a batch of at least one episode.")
    source = iter(episodes)
    first = next(source, None)
    if first is None:
        raise LogError("There is no episode to replay. Give a log with at least one.")
    chosen = options or ReplayOptions()
    whole = replace(chosen, window=None)
    paced, longest = prepare_replay(twin, [first], whole).twin, 0.0
    source = itertools.chain([first], source)
    while portion := list(itertools.islice(source, batch)):
        for episode in portion:
            _require_same_format(first, episode, paced.control_hz)
        length = max(float(episode.time[-1] - episode.time[0]) for episode in portion)
        longest = max(longest, length)
        short = chosen.window is not None and 0 < length < chosen.window  # others may be long enough
        yield prepare_replay(paced, portion, whole if short else chosen)
    if chosen.window is not None and longest * (1 + _SAME_RATE) < chosen.window:
        raise InputError(
            f"Windows of {chosen.window:g} s do not fit: the longest episode lasts {longest:.4g} s. Give a shorter "
            "window, or none to replay whole episodes."
        )


def _horizon_bins(logs: ReplayLogs, edges: Array) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the frame numbers of a window that are inside a horizon bin, and the number of each frame's bin.

    A horizon bin is an interval of the time since the beginning of a window: later than ``edges[k]``, up to ``edges[k +
    1]``. The first frame of a window is in no bin.

    Args:
        logs: Windows of the log.
        edges: Edges of the horizon bins in s, increasing, shape ``(nbin + 1,)``.
    """
    time = (np.arange(1, logs.commands.shape[1]) - _ROUNDING) / logs.twin.control_hz
    bins = np.searchsorted(edges, time, side="right") - 1
    inside = (bins >= 0) & (bins < len(edges) - 1)
    return 1 + np.flatnonzero(inside), bins[inside]


def sum_errors(
    logs: ReplayLogs,
    readings: Array,
    edges: Array,
    *,
    mask: NDArray[np.bool_] | None = None,
    rows: NDArray[np.intp] | None = None,
    nrow: int = 0,
) -> WindowErrors:
    """Sum the errors of predicted readings by episode, horizon bin and channel.

    The error of a channel that was measured but not predicted (NaN) is NaN.

    Args:
        logs: Windows of one portion of a log.
        readings: Predictions by rows of parameters or by baselines, shape ``(nworld, nwindow, nframe, nchannel)``.
        edges: Edges of the horizon bins in s, shape ``(nbin + 1,)``.
        mask: Frames that count, shape ``(nwindow, nframe, nchannel)``; all by default.
        rows: Row of the sums to which each window is added, shape ``(nwindow,)``; by default the row of its episode.
        nrow: Number of rows of the sums, if ``rows`` are given.
    """
    frames, bins = _horizon_bins(logs, edges)
    present = ~np.isnan(logs.measured[:, frames])
    if mask is not None:
        present &= mask[:, frames]
    size = np.where(present, np.abs(readings[:, :, frames] - logs.measured[:, frames]), 0.0)
    owners = logs.episode_index if rows is None else rows
    shape = (len(logs.episodes) if rows is None else nrow, len(edges) - 1)
    return WindowErrors(
        squared=_sum_by_bin(size**2, owners, bins, shape),
        absolute=_sum_by_bin(size, owners, bins, shape),
        count=_sum_by_bin(present[None].astype(np.float64), owners, bins, shape)[0],
        edges=edges,
        channels=logs.channels,
        episodes=logs.episodes if rows is None else tuple(range(nrow)),
    )


def join_errors(parts: Sequence[WindowErrors]) -> WindowErrors:
    """Join the errors of portions with different episodes into the errors of the whole log."""
    return replace(
        parts[0],
        squared=np.concatenate([part.squared for part in parts], axis=1),
        absolute=np.concatenate([part.absolute for part in parts], axis=1),
        count=np.concatenate([part.count for part in parts]),
        episodes=tuple(number for part in parts for number in part.episodes),
    )


def add_errors(first: WindowErrors, other: WindowErrors) -> WindowErrors:
    """Add the error sums of two portions of a log (some of its episodes each) that have the same rows.

    A row is the unit of resampling: an episode, a group of episodes or a window.
    """
    return replace(
        first,
        squared=first.squared + other.squared,
        absolute=first.absolute + other.absolute,
        count=first.count + other.count,
    )


def ratio(sums: Array, counts: Array) -> Array:
    """Return sums divided by counts, elementwise; NaN if a count is 0."""
    shape = np.broadcast_shapes(sums.shape, counts.shape)
    return np.divide(sums, counts, out=np.full(shape, np.nan), where=np.broadcast_to(counts, shape) > 0)


def _sum_by_bin(values: Array, owners: NDArray[np.intp], bins: NDArray[np.intp], shape: tuple[int, int]) -> Array:
    """Sum values over the frames of each row and horizon bin, shape ``(nworld, nrow, nbin, nchannel)``.

    A row is an episode, a group of episodes or a window. A horizon bin is an interval of the time since the beginning
    of a window.

    Args:
        values: Values of the frames, shape ``(nworld, nwindow, nframe, nchannel)``.
        owners: Row of each window, shape ``(nwindow,)``.
        bins: Horizon bin of each frame, shape ``(nframe,)``.
        shape: Number of rows and number of bins.
    """
    by_bin = np.zeros((len(values), values.shape[1], shape[1], values.shape[3]))
    for number in np.unique(bins):
        by_bin[:, :, number] = values[:, :, bins == number].sum(axis=2)
    sums = np.zeros((len(values), *shape, values.shape[3]))
    np.add.at(sums.swapaxes(0, 1), owners, by_bin.swapaxes(0, 1))
    return sums


def _measure_portion(backend: Backend, logs: ReplayLogs, table: ParamTable, edges: Array) -> WindowErrors:
    """Return the errors of all parameter rows in one portion; the rows are replayed in groups that fit into memory.

    Args:
        backend: The backend that runs the replays.
        logs: Windows of the portion, which is a part of the log's episodes.
        table: Parameters, one row per world.
        edges: Edges of the horizon bins (intervals of the time since the beginning of a window) in s, shape ``(nbin +
            1,)``.
    """
    most = max(1, _MOST_NUMBERS // logs.measured.size)
    rows = (np.arange(begin, min(begin + most, table.nworld)) for begin in range(0, table.nworld, most))
    parts = [sum_errors(logs, replay(backend, logs, table.take(some)), edges) for some in rows]
    return replace(
        parts[0],
        squared=np.concatenate([part.squared for part in parts]),
        absolute=np.concatenate([part.absolute for part in parts]),
    )


def _check_edges(edges: ArrayLike) -> Array:
    bounds = np.asarray(edges, dtype=np.float64)
    if bounds.ndim != 1 or len(bounds) < 2 or bounds[0] < 0 or not (np.diff(bounds) > 0).all():
        raise InputError(
            f"Horizon edges {np.array2string(bounds, separator=', ', max_line_width=200)} do not increase from 0 or "
            "later. Give seconds since a window's beginning, such as 0, 0.1, 0.2."
        )
    return bounds


def _require_same_format(first: Episode, other: Episode, hz: float) -> None:
    """Raise a `LogError` if an episode has other units, joints or rate (``hz``) than the first episode."""
    if other.units != first.units:
        raise LogError(
            f"Episode {other.index} has other units or joints than episode {first.index}. "
            "Split the log into logs with equal units and joints."
        )
    rate = (len(other) - 1) / (other.time[-1] - other.time[0]) if len(other) > 1 else hz
    if abs(rate / hz - 1.0) > _SAME_RATE:
        raise LogError(
            f"Episode {other.index} has {rate:.2f} Hz, but the log has {hz:.2f} Hz. "
            "Resample the episode or leave it out."
        )
