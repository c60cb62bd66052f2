"""Read episodes of all sources as arrays in one unit map, and take the statistics that a policy normalizes by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from twinloop.core.console import track
from twinloop.core.contract import ACTION, STATE, Contract
from twinloop.core.errors import DatasetError, InputError, UnknownNameError
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.parquet import numbers, read_table
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.policies.settings import Settings
from twinloop.policies.statistics import LAST_COMMAND, ColumnStatistics, Statistics, relative_actions
from twinloop.train.agreement import agree
from twinloop.train.sources import ListedEpisode, TrainingSource

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
_SUCCESS = "next.success"


@dataclass(frozen=True, kw_only=True)
class TrainingFrames:
    """Every frame of every episode, one after the other.

    ``columns`` holds ``action`` ``(N, k)`` and what the policy is to see of ``observation.state`` ``(N, k)`` and
    ``observation.environment_state`` ``(N, m)``, float32, in the units of ``contract``. ``first`` and ``last``
    ``(E,)`` are the frames between which episode e lies, both included; ``source_of`` ``(E,)`` says whose it is.
    """

    columns: Mapping[str, Floats]
    first: Ints
    last: Ints
    source_of: Ints
    episodes: tuple[ListedEpisode, ...]
    sources: tuple[TrainingSource, ...]
    contract: Contract
    notes: tuple[str, ...] = ()

    @property
    def frames(self) -> int:
        """How many there are."""
        return int(self.last[-1]) + 1

    def episode_of(self, frames: Ints) -> Ints:
        """The episode of each frame."""
        return np.searchsorted(self.last, frames, side="left")

    def frames_of(self, episodes: Sequence[int] | Ints) -> Ints:
        """All frames of some episodes, episode by episode."""
        spans = [np.arange(self.first[e], self.last[e] + 1) for e in episodes]
        return np.concatenate(spans) if spans else np.empty(0, dtype=np.int64)

    def named(self, frame: int) -> str:
        """Which frame it is, for people: episode, source and file."""
        episode = int(self.episode_of(np.array([frame]))[0])
        listed, source = self.episodes[episode], self.sources[int(self.source_of[episode])]
        within = frame - int(self.first[episode])
        return f"episode {listed.index} frame {within} of source {source.name} ({data_file(listed)})"


def data_file(listed: ListedEpisode) -> Path:
    """The file that an episode's frames lie in."""
    reader = DatasetReader(listed.folder)
    row = reader.row(listed.index)
    where = {"chunk_index": row["data/chunk_index"], "file_index": row["data/file_index"]}
    return layout.inside(reader.path, reader.info["data_path"], where)


def load(
    sources: Sequence[TrainingSource],
    *,
    inputs: Sequence[str] | None = None,
    task: str = "",
    keep_failures: bool = False,
) -> TrainingFrames:
    """Read the frames of all sources into memory; pictures stay where they lie.

    Args:
        sources: see `sources.open_sources`.
        inputs: ``state``, ``environment``, names of cameras; see `config.TrainConfig`.
        task: name of the task, for the contract.
        keep_failures: keep episodes whose last frame says that they failed.

    Raises:
        UnitsError: the sources' units are not the same and cannot be made so; the message is the question.
        InputError: robots, rates, columns or inputs do not agree.
        DatasetError: a folder is damaged, or holds a number that is not finite; names episode and frame.
    """
    readers = {folder: DatasetReader(folder) for folder in dict.fromkeys(e.folder for s in sources for e in s.episodes)}
    agreed = agree(sources, readers, inputs=inputs, task=task)
    files = {folder: _FolderFrames(reader, agreed.keys) for folder, reader in readers.items()}
    parts: dict[str, list[Floats]] = {key: [] for key in agreed.keys}
    source_of, episodes = list[int](), list[ListedEpisode]()
    wanted = [(number, listed) for number, source in enumerate(sources) for listed in source.episodes]
    for number, listed in track(wanted, label="reading episodes"):
        arrays, succeeded = files[listed.folder].episode(listed)
        if listed.success is None and succeeded is False and not keep_failures:
            continue
        for key, values in arrays.items():
            parts[key].append(agreed.converted(key, values, listed.folder))
        source_of.append(number)
        episodes.append(listed)
    _require_each(sources, source_of)
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
    )


def _require_each(sources: Sequence[TrainingSource], source_of: Sequence[int]) -> None:
    for number, source in enumerate(sources):
        if number not in source_of:
            raise InputError(
                f"All episodes of {source.name} failed, by next.success of their last frames. Take failures too with "
                "--keep-failures, or give other data."
            )


class _FolderFrames:
    """The frames of one folder; a data file is read once, though it holds many episodes."""

    def __init__(self, reader: DatasetReader, keys: Sequence[str]) -> None:
        self._reader, self._keys = reader, tuple(keys)
        self._success = _SUCCESS in reader.info["features"]
        self._places = _places(reader)
        self._open: tuple[Path, pa.Table, NDArray[np.int64]] | None = None

    def episode(self, listed: ListedEpisode) -> tuple[dict[str, NDArray[np.float64]], bool | None]:
        """The features of an episode ``(T, n)``, and whether its last frame says that it succeeded."""
        chunk, file, length = self._places[listed.index]
        path = layout.inside(
            self._reader.path, self._reader.info["data_path"], {"chunk_index": chunk, "file_index": file}
        )
        table, of = self._file(path)
        start = int(np.searchsorted(of, listed.index, side="left"))
        stop = int(np.searchsorted(of, listed.index, side="right"))
        if stop - start != length or not length or (of[start:stop] != listed.index).any():
            raise DatasetError(
                f"{path} holds {stop - start} frames of episode {listed.index}, the episode table says {length}. "
                "Export the dataset again."
            )
        rows = table.slice(start, stop - start)
        arrays = {key: self._finite(rows, key, listed) for key in self._keys}
        if not self._success:
            return arrays, None
        return arrays, bool(numbers(rows[_SUCCESS], where=f"{path}: {_SUCCESS}").reshape(-1)[-1] > 0)

    def _file(self, path: Path) -> tuple[pa.Table, NDArray[np.int64]]:
        if self._open is None or self._open[0] != path:
            columns = ["episode_index", *self._keys, *([_SUCCESS] if self._success else [])]
            table = read_table(path, columns)
            of = table["episode_index"].to_numpy().astype(np.int64)
            if (np.diff(of) < 0).any():
                raise DatasetError(f"{path}: its episodes are not one after the other. Export the dataset again.")
            self._open = (path, table, of)
        return self._open[1:]

    def _finite(self, rows: pa.Table, key: str, listed: ListedEpisode) -> NDArray[np.float64]:
        where = f"{self._reader.path}: {key} of episode {listed.index}"
        values = numbers(rows[key], where=where).reshape(len(rows), -1)
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            frame, column = bad[0]
            names = self._reader.feature_names(key)
            name = names[column] if column < len(names) else f"column {column}"
            raise DatasetError(
                f"{where} is {values[frame, column]} in {name} at frame {frame} ({len(bad)} such values). Leave the "
                "episode out (`episodes:` beside `data:`), or mend it: `twinloop curate` names all that are broken."
            )
        return values


def _places(reader: DatasetReader) -> dict[int, tuple[int, int, int]]:
    """Chunk, file and number of frames of every episode; `DatasetReader.row` reads the drawn parameters too."""
    columns = ["episode_index", "data/chunk_index", "data/file_index", "length"]
    found: dict[int, tuple[int, int, int]] = {}
    for path in sorted((reader.path / "meta" / "episodes").glob("chunk-*/file-*.parquet")):
        table = read_table(path, columns)
        for index, *place in zip(*(table[name].to_pylist() for name in columns), strict=True):
            found[index] = (place[0], place[1], place[2])
    return found


POOLED = "pooled"
_TAILS = (0.01, 0.99)  # as `policies.statistics`
_MOST_CHUNKS = 20_000  # frames whose relative chunks are measured: quantiles of 1 % then rest on 200


def measure(
    data: TrainingFrames, episodes: Ints, share: ArrayLike, settings: Settings, *, whose: str = POOLED
) -> Statistics:
    """The statistics of what is trained on.

    Args:
        data: all frames.
        episodes: those that are trained on.
        share: of each source, see `mixture.shares`; each frame of a source counts alike.
        settings: of the policy, which say whether its actions are relative and whether it sees the last command.
        whose: ``pooled``, or the name of the source that alone counts.

    Raises:
        UnknownNameError: no such source.
    """
    names = [source.name for source in data.sources]
    if whose != POOLED and whose not in names:
        raise UnknownNameError("source", whose, [*names, POOLED], where="normalization")
    part = np.asarray(share, dtype=np.float64)
    part = part if whose == POOLED else (np.array(names) == whose).astype(np.float64)
    said = ", ".join(f"{name} {one:.3g}" for name, one in zip(names, part, strict=True) if one > 0)
    frames = data.frames_of(episodes[part[data.source_of[episodes]] > 0])
    weight = _weights(data, frames, part)
    columns = {
        key: weighted_statistics(values[frames], weight)
        for key, values in data.columns.items()
        if key != ACTION or settings.action_space == "absolute"
    }
    if settings.action_space == "delta_to_state":
        columns[ACTION] = _relative(data, frames, part, settings.chunk_size)
        if settings.last_command:
            columns[LAST_COMMAND] = weighted_statistics(data.columns[ACTION][frames], weight)
    return Statistics(columns=columns, source=f"frames of {said}")


def weighted_statistics(values: ArrayLike, weight: ArrayLike) -> ColumnStatistics:
    """Statistics of rows ``(n, k)`` that count by ``weight`` ``(n,)``.

    A quantile is the smallest value that at least so much of the weight does not exceed.
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


def _weights(data: TrainingFrames, frames: Ints, share: NDArray[np.float64]) -> NDArray[np.float64]:
    source = data.source_of[data.episode_of(frames)]
    counts = np.bincount(source, minlength=len(share))
    return (share / np.maximum(counts, 1))[source]


def _relative(data: TrainingFrames, frames: Ints, share: NDArray[np.float64], chunk: int) -> ColumnStatistics:
    """Of the commands of chunks relative to the newest readings; those beyond an episode's end do not count."""
    frames = frames[:: max(1, len(frames) // _MOST_CHUNKS)]
    ahead = frames[:, None] + np.arange(chunk)
    inside = ahead <= data.last[data.episode_of(frames)][:, None]
    actions = data.columns[ACTION][np.where(inside, ahead, frames[:, None])]
    relative = relative_actions(actions, data.columns[STATE][frames])
    weight = np.broadcast_to(_weights(data, frames, share)[:, None], inside.shape)
    return weighted_statistics(relative[inside], weight[inside])
