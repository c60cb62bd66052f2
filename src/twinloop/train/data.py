"""Read the episodes of all sources as arrays in common units, and compute the policy's normalization statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from twinloop.core.assignment import Assignment
from twinloop.core.contract import ACTION, STATE, Contract
from twinloop.core.errors import DatasetError, InputError, UnknownNameError
from twinloop.core.progress import track
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.parquet import column_to_floats, read_table
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.policies.settings import Settings
from twinloop.policies.statistics import LAST_COMMAND, ColumnStatistics, Statistics, relative_actions
from twinloop.train.common_features import find_common_features
from twinloop.train.sources import ListedEpisode, TrainingSource

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
_SUCCESS = "next.success"


@dataclass(frozen=True, kw_only=True)
class TrainingFrames:
    """All frames of all training and held-out episodes, concatenated: N frames of E episodes.

    Attributes:
        columns: ``action`` ``(N, k)`` for k joints and, if the policy uses them, ``observation.state`` ``(N, k)`` and
            ``observation.environment_state`` ``(N, m)`` with m values such as object positions; float32, in the units
            of ``contract``.
        first: index of each episode's first frame, ``(E,)``.
        last: index of each episode's last frame, ``(E,)``, inclusive.
        source_of: index of each episode's source in ``sources``, ``(E,)``.
        episodes: the episodes.
        sources: the sources.
        contract: units, inputs and rate that all sources share.
        notes: notes for the user about the choice of inputs and units.
        assignment: twin and task of the data; None if it is unknown, or if there are several.
        twin_and_task: files of this twin and task, by their path in a folder.
    """

    columns: Mapping[str, Floats]
    first: Ints
    last: Ints
    source_of: Ints
    episodes: tuple[ListedEpisode, ...]
    sources: tuple[TrainingSource, ...]
    contract: Contract
    notes: tuple[str, ...] = ()
    assignment: Assignment | None = None
    twin_and_task: Mapping[str, Path] = field(default_factory=dict[str, Path])

    @property
    def frames(self) -> int:
        """Number of frames N."""
        return int(self.last[-1]) + 1

    def episode_of(self, frames: Ints) -> Ints:
        """Return the episode index of each frame index, in the same shape."""
        return np.searchsorted(self.last, frames, side="left")

    def frames_of(self, episodes: Sequence[int] | Ints) -> Ints:
        """Return the indices of all frames of the given episodes, episode by episode."""
        spans = [np.arange(self.first[e], self.last[e] + 1) for e in episodes]
        return np.concatenate(spans) if spans else np.empty(0, dtype=np.int64)

    def held_commands(self, frames: Ints) -> Floats:
        """Return the command of the step before each frame; at the first frame of an episode the joint readings."""
        action, first = self.columns[ACTION], self.first[self.episode_of(frames)]
        readings = self.columns.get(STATE, action)[frames]
        return np.where((frames == first)[:, None], readings, action[np.maximum(frames - 1, 0)])

    def describe_frame(self, frame: int) -> str:
        """Return a description of a frame for messages: episode, frame within the episode, source and file."""
        episode = int(self.episode_of(np.array([frame]))[0])
        listed, source = self.episodes[episode], self.sources[int(self.source_of[episode])]
        within = frame - int(self.first[episode])
        return f"episode {listed.index} frame {within} of source {source.name} ({data_file(listed)})"


def data_file(listed: ListedEpisode) -> Path:
    """Return the path of the Parquet file that contains an episode's frames."""
    reader = DatasetReader(listed.folder)
    row = reader.row(listed.index)
    where = {"chunk_index": row["data/chunk_index"], "file_index": row["data/file_index"]}
    return layout.resolve_inside(reader.path, reader.info["data_path"], where)


def load_frames(
    sources: Sequence[TrainingSource],
    *,
    inputs: Sequence[str] | None = None,
    task: str = "",
    keep_failures: bool = False,
) -> TrainingFrames:
    """Read the frames of all sources into memory, excluding images.

    Args:
        sources: see `sources.open_sources`.
        inputs: ``state``, ``environment``, names of cameras; None to choose, see `config.TrainConfig`.
        task: name of the task; it is stored in the contract (description of the policy's inputs and outputs).
        keep_failures: keep episodes whose last frame records a failure.

    Raises:
        UnitsError: If the sources' units differ and cannot be converted. The message gives the joint and what to add.
        InputError: If robots, rates, columns or inputs differ.
        DatasetError: If a folder is damaged or has a non-finite number. The message gives episode and frame.
    """
    readers = {folder: DatasetReader(folder) for folder in dict.fromkeys(e.folder for s in sources for e in s.episodes)}
    agreed = find_common_features(sources, readers, inputs=inputs, task=task)
    files = {folder: _FolderFrames(reader, agreed.keys) for folder, reader in readers.items()}
    parts: dict[str, list[Floats]] = {key: [] for key in agreed.keys}
    source_of, episodes = list[int](), list[ListedEpisode]()
    wanted = [(number, listed) for number, source in enumerate(sources) for listed in source.episodes]
    for number, listed in track(wanted, label="reading episodes"):
        arrays, succeeded = files[listed.folder].episode(listed)
        if listed.success is None and succeeded is False and not keep_failures:
            continue
        for key, values in arrays.items():
            parts[key].append(agreed.convert_columns(key, values, listed.folder))
        source_of.append(number)
        episodes.append(listed)
    _require_episodes(sources, source_of)
    lengths = np.array([len(values) for values in parts[ACTION]], dtype=np.int64)
    last = np.cumsum(lengths) - 1
    return TrainingFrames(
        columns={key: np.concatenate(values) for key, values in parts.items()},
        first=last + 1 - lengths,
        last=last,
        source_of=np.array(source_of, dtype=np.int64),
        episodes=tuple(episodes),
        sources=tuple(sources),
        contract=agreed.contract,
        notes=agreed.notes,
        assignment=agreed.assignment,
        twin_and_task=agreed.sources,
    )


def _require_episodes(sources: Sequence[TrainingSource], source_of: Sequence[int]) -> None:
    for number, source in enumerate(sources):
        if number not in source_of:
            raise InputError(
                f"All episodes of {source.name} failed (next.success of their last frames). Include failures with "
                "--keep-failures, or give other data."
            )


class _FolderFrames:
    """Reader of one dataset folder's frames; it keeps the last data file open, which may hold several episodes."""

    def __init__(self, reader: DatasetReader, keys: Sequence[str]) -> None:
        self._reader, self._keys = reader, tuple(keys)
        self._success = _SUCCESS in reader.info["features"]
        self._places = _find_locations(reader)
        self._open: tuple[Path, pa.Table, NDArray[np.int64]] | None = None

    def episode(self, listed: ListedEpisode) -> tuple[dict[str, NDArray[np.float64]], bool | None]:
        """Return an episode's features, each ``(T, n)`` for T frames, and the success stored in its last frame.

        The success is None if the folder does not store it.
        """
        chunk, file, length = self._places[listed.index]
        path = layout.resolve_inside(
            self._reader.path, self._reader.info["data_path"], {"chunk_index": chunk, "file_index": file}
        )
        table, of = self._read_file(path)
        start = int(np.searchsorted(of, listed.index, side="left"))
        stop = int(np.searchsorted(of, listed.index, side="right"))
        if stop - start != length or not length or (of[start:stop] != listed.index).any():
            raise DatasetError(
                f"{path} has {stop - start} frames of episode {listed.index}, but the episode table states {length}. "
                "Export the dataset again."
            )
        rows = table.slice(start, stop - start)
        arrays = {key: self._read_finite_column(rows, key, listed) for key in self._keys}
        if not self._success:
            return arrays, None
        return arrays, bool(column_to_floats(rows[_SUCCESS], where=f"{path}: {_SUCCESS}").reshape(-1)[-1] > 0)

    def _read_file(self, path: Path) -> tuple[pa.Table, NDArray[np.int64]]:
        if self._open is None or self._open[0] != path:
            columns = ["episode_index", *self._keys, *([_SUCCESS] if self._success else [])]
            table = read_table(path, columns)
            of = table["episode_index"].to_numpy().astype(np.int64)
            if (np.diff(of) < 0).any():
                raise DatasetError(f"{path}: its episodes are not in order. Export the dataset again.")
            self._open = (path, table, of)
        return self._open[1:]

    def _read_finite_column(self, rows: pa.Table, key: str, listed: ListedEpisode) -> NDArray[np.float64]:
        where = f"{self._reader.path}: {key} of episode {listed.index}"
        values = column_to_floats(rows[key], where=where).reshape(len(rows), -1)
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            frame, column = bad[0]
            names = self._reader.feature_names(key)
            name = names[column] if column < len(names) else f"column {column}"
            raise DatasetError(
                f"{where} is {values[frame, column]} in {name} at frame {frame} ({len(bad)} such values). Exclude the "
                "episode with `episodes:` in its source, or repair it. `twinloop curate` lists all damaged episodes."
            )
        return values


def _find_locations(reader: DatasetReader) -> dict[int, tuple[int, int, int]]:
    """Return chunk number, file number and length in frames of every episode, by episode index.

    `DatasetReader.row` is not used, because it would also read the drawn parameters.
    """
    columns = ["episode_index", "data/chunk_index", "data/file_index", "length"]
    found: dict[int, tuple[int, int, int]] = {}
    for path in sorted((reader.path / "meta" / "episodes").glob("chunk-*/file-*.parquet")):
        table = read_table(path, columns)
        for index, *place in zip(*(table[name].to_pylist() for name in columns), strict=True):
            found[index] = (place[0], place[1], place[2])
    return found


POOLED = "pooled"
_TAILS = (0.01, 0.99)  # as `policies.statistics`
_MOST_CHUNKS = 20_000  # frames whose relative chunks are measured: 200 frames beyond each 1 % quantile


def measure_statistics(
    data: TrainingFrames, episodes: Ints, share: ArrayLike, settings: Settings, *, whose: str = POOLED
) -> Statistics:
    """Return the normalization statistics of the training data.

    Args:
        data: all frames.
        episodes: indices of the training episodes.
        share: share of each source in a batch, see `mixture.compute_shares`; all frames of a source have the same
            weight.
        settings: policy settings, which define whether actions are relative and whether the last command is an input.
        whose: ``pooled``, or the name of the only source to use.

    Raises:
        UnknownNameError: If the source does not exist.
    """
    names = [source.name for source in data.sources]
    if whose != POOLED and whose not in names:
        raise UnknownNameError("source", whose, [*names, POOLED], where="normalization")
    part = np.asarray(share, dtype=np.float64)
    part = part if whose == POOLED else (np.array(names) == whose).astype(np.float64)
    shares = ", ".join(f"{name} {one:.3g}" for name, one in zip(names, part, strict=True) if one > 0)
    frames = data.frames_of(episodes[part[data.source_of[episodes]] > 0])
    weight = _frame_weights(data, frames, part)
    columns = {
        key: weighted_statistics(values[frames], weight)
        for key, values in data.columns.items()
        if key != ACTION or settings.action_space == "absolute"
    }
    if settings.action_space != "absolute":
        columns[ACTION] = _relative_statistics(data, frames, part, settings)
        if settings.last_command:
            columns[LAST_COMMAND] = weighted_statistics(data.columns[ACTION][frames], weight)
    return Statistics(columns=columns, source=f"frames of {shares}")


def weighted_statistics(values: ArrayLike, weight: ArrayLike) -> ColumnStatistics:
    """Return mean, standard deviation, range and quantiles of n rows ``(n, k)`` with weights ``(n,)``, per column.

    A quantile is the smallest value whose cumulative weight reaches the quantile's level.
    """
    rows, weights = np.asarray(values, dtype=np.float64), np.asarray(weight, dtype=np.float64)
    weights = weights / weights.sum()
    mean = np.average(rows, axis=0, weights=weights)
    std = np.sqrt(np.average((rows - mean) ** 2, axis=0, weights=weights))
    order = np.argsort(rows, axis=0, kind="stable")
    below = np.cumsum(weights[order], axis=0)
    sorted_ = np.take_along_axis(rows, order, axis=0)
    low, high = (_quantile(sorted_, below, tail) for tail in _TAILS)
    return ColumnStatistics(mean=mean, std=std, min=sorted_[0], max=sorted_[-1], q01=low, q99=high)


def _quantile(sorted_: NDArray[np.float64], below: NDArray[np.float64], tail: float) -> NDArray[np.float64]:
    place = np.minimum((below < tail).sum(axis=0), len(sorted_) - 1)
    return np.take_along_axis(sorted_, place[None], axis=0)[0]


def _frame_weights(data: TrainingFrames, frames: Ints, share: NDArray[np.float64]) -> NDArray[np.float64]:
    source = data.source_of[data.episode_of(frames)]
    counts = np.bincount(source, minlength=len(share))
    return (share / np.maximum(counts, 1))[source]


def _relative_statistics(
    data: TrainingFrames, frames: Ints, share: NDArray[np.float64], settings: Settings
) -> ColumnStatistics:
    """Return statistics of the next commands minus the values they are relative to, within the episode.

    Args:
        data: all frames.
        frames: indices of the frames to measure; many frames are thinned evenly.
        share: share of each source in a batch; all frames of a source have the same weight.
        settings: policy settings: number of commands, and what they are relative to.
    """
    chunk = settings.chunk_size
    frames = frames[:: max(1, len(frames) // _MOST_CHUNKS)]
    ahead = frames[:, None] + np.arange(chunk)
    inside = ahead <= data.last[data.episode_of(frames)][:, None]
    actions = data.columns[ACTION][np.where(inside, ahead, frames[:, None])]
    base = data.columns[STATE][frames] if settings.action_space == "delta_to_state" else data.held_commands(frames)
    relative = relative_actions(actions, base)
    weight = np.broadcast_to(_frame_weights(data, frames, share)[:, None], inside.shape)
    return weighted_statistics(relative[inside], weight[inside])
