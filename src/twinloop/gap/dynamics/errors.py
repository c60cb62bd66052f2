"""Sum the errors of many parameter rows over windows of a log, in portions of episodes."""

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
BATCH = 8  # episodes of a portion: their windows fill a call of the backend, and a few MB
_MOST_NUMBERS = 4_000_000  # readings held at once: 32 MB
_SAME_RATE = 0.02  # as for episodes within one replay
_ROUNDING = 1e-6  # of a frame, when a frame's time is compared with an edge


@dataclass(frozen=True, kw_only=True)
class WindowErrors:
    """Squared and absolute errors of many parameter rows, summed by episode, horizon bin and channel.

    The first frame of a window is given and does not count. Bin k has the frames later than ``edges[k]`` and up to
    ``edges[k + 1]``; frames after the last edge are left out. A row that diverges in an episode has infinite errors
    there from the bin of the divergence on.

    Attributes:
        squared: ``(nworld, nepisode, nbin, nchannel)`` in the square of the channels' units.
        absolute: of the same shape, in the channels' units.
        count: ``(nepisode, nbin, nchannel)`` measured frames.
        edges: ``(nbin + 1,)`` s since the beginning of a window.
        channels: the channels of the last axis.
        episodes: numbers of the episodes, in the order of processing.
    """

    squared: Array
    absolute: Array
    count: Array
    edges: Array
    channels: tuple[MeasuredChannel, ...]
    episodes: tuple[int, ...]

    def rmse(self) -> Array:
        """Return the RMSE over all episodes and horizons, ``(nworld, nchannel)``; NaN without measured frames."""
        return np.sqrt(ratio(self.squared.sum(axis=(1, 2)), self.count.sum(axis=(0, 1))))

    def mae(self) -> Array:
        """Return the mean absolute error over all episodes and horizons, ``(nworld, nchannel)``."""
        return ratio(self.absolute.sum(axis=(1, 2)), self.count.sum(axis=(0, 1)))

    @property
    def diverged_mask(self) -> NDArray[np.bool_]:
        """Rows and episodes in which the replay diverged, ``(nworld, nepisode)``."""
        return np.asarray(np.isinf(self.absolute).any(axis=(2, 3)))

    def require_finite(self, twin: Twin, names: Sequence[str]) -> None:
        """Raise an error if a row diverged.

        Args:
            twin: the twin of the rows.
            names: a name for each row, such as ``nominal``.

        Raises:
            InputError: a row diverged; the message has the first such row, its episode, and the number of episodes.
        """
        if not self.diverged_mask.any():
            return
        world, row = np.argwhere(self.diverged_mask)[0]
        more = int(self.diverged_mask[world].sum()) - 1
        others = f" and {more} more" if more else ""
        raise InputError(
            f"The twin {twin.name} diverges in episode {self.episodes[row]}{others} with the {names[world]} "
            "parameters. More substeps in the twin's YAML, or less extreme parameters, keep it finite."
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
    """Replay every row of a table over every window, and sum its errors.

    Args:
        backend: the backend that runs the worlds.
        twin: the twin.
        episodes: read once, in portions.
        table: a row of the twin's parameters for each world.
        options: how the episodes are divided into windows and which channels are compared.
        edges: edges of the horizon bins in s, increasing; one bin by default.
        batch: episodes per portion. Results do not depend on it.

    Raises:
        LogError, InputError: see `stream_logs`.
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
    """Yield portions of windows with the readings of every row of a table, ``(nworld, nwindow, nframe, nchannel)``.

    Raises:
        LogError, InputError: see `stream_logs`.
    """
    for logs in stream_logs(twin, episodes, options, batch=batch):
        yield logs, replay(backend, logs, table)


def stream_logs(
    twin: Twin, episodes: Iterable[Episode], options: ReplayOptions | None = None, *, batch: int = BATCH
) -> Iterator[ReplayLogs]:
    """Yield windows of a few episodes at a time, all at the rate of the first episode.

    Raises:
        LogError: there is no episode, or one with other units, joints or rate than the first; see also
            `prepare_replay`.
        InputError: ``batch`` is below 1, or windows are longer than every episode.
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
    """Return the counted frames of a window, and the horizon bin of each."""
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
    """Sum the errors of one portion's readings ``(nworld, nwindow, nframe, nchannel)``.

    The error of a channel that was measured but not predicted (NaN) is NaN.

    Args:
        logs: the windows.
        readings: predictions by rows of parameters or by baselines.
        edges: edges of the horizon bins in s.
        mask: frames that count, ``(nwindow, nframe, nchannel)``; all by default.
        rows: the row of the sums to which each window is added; by default the row of its episode.
        nrow: number of rows, if ``rows`` are given.
    """
    frames, bins = _horizon_bins(logs, edges)
    present = ~np.isnan(logs.measured[:, frames])
    if mask is not None:
        present &= mask[:, frames]
    size = np.where(present, np.abs(readings[:, :, frames] - logs.measured[:, frames]), 0.0)
    owners = logs.clusters if rows is None else rows
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
    """Join the errors of portions into those of one log."""
    return replace(
        parts[0],
        squared=np.concatenate([part.squared for part in parts], axis=1),
        absolute=np.concatenate([part.absolute for part in parts], axis=1),
        count=np.concatenate([part.count for part in parts]),
        episodes=tuple(number for part in parts for number in part.episodes),
    )


def add_errors(first: WindowErrors, other: WindowErrors) -> WindowErrors:
    """Add the sums of two portions with the same rows."""
    return replace(
        first,
        squared=first.squared + other.squared,
        absolute=first.absolute + other.absolute,
        count=first.count + other.count,
    )


def ratio(sums: Array, counts: Array) -> Array:
    """Return sums divided by counts; NaN for a count of 0."""
    shape = np.broadcast_shapes(sums.shape, counts.shape)
    return np.divide(sums, counts, out=np.full(shape, np.nan), where=np.broadcast_to(counts, shape) > 0)


def _sum_by_bin(values: Array, owners: NDArray[np.intp], bins: NDArray[np.intp], shape: tuple[int, int]) -> Array:
    """Sum ``(nworld, nwindow, nframe, nchannel)`` by owner and bin, ``(nworld, *shape, nchannel)``."""
    by_bin = np.zeros((len(values), values.shape[1], shape[1], values.shape[3]))
    for number in np.unique(bins):
        by_bin[:, :, number] = values[:, :, bins == number].sum(axis=2)
    sums = np.zeros((len(values), *shape, values.shape[3]))
    np.add.at(sums.swapaxes(0, 1), owners, by_bin.swapaxes(0, 1))
    return sums


def _measure_portion(backend: Backend, logs: ReplayLogs, table: ParamTable, edges: Array) -> WindowErrors:
    """Return the errors of every row in one portion, with as many rows at once as memory allows."""
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
    """Raise an error if an episode cannot be compared with the first one."""
    if other.units != first.units:
        raise LogError(f"Episode {other.index} has other units or joints than episode {first.index}. Split the log.")
    rate = (len(other) - 1) / (other.time[-1] - other.time[0]) if len(other) > 1 else hz
    if abs(rate / hz - 1.0) > _SAME_RATE:
        raise LogError(
            f"Episode {other.index} runs at {rate:.2f} Hz, the log at {hz:.2f} Hz. Resample it or leave it out."
        )
