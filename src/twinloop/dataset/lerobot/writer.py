"""Write a LeRobotDataset v3.0 in blocks of episodes; each block becomes visible to readers as a whole.

The files depend on the specification and the episodes only, never on the clock. Therefore a run that was killed and
resumed gives the same bytes as an uninterrupted run. Committed data files are never changed: a commit adds new files
and replaces the metadata, in a copy of the folder that replaces the folder atomically (`snapshot`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from twinloop.core.errors import DatasetError, InputError
from twinloop.core.files import dumps
from twinloop.core.profile import span
from twinloop.core.records import Episode, SimEpisode
from twinloop.dataset.invalid_worlds import InvalidAttempt, invalid_worlds_table
from twinloop.dataset.lerobot import layout, metadata
from twinloop.dataset.lerobot.parquet import write_groups
from twinloop.dataset.lerobot.progress import BlockEntry, CameraSum, WriteProgress, check_episode
from twinloop.dataset.lerobot.statistics import Moments, merge_moments
from twinloop.dataset.lerobot.tables import (
    IndexedEpisode,
    content_hash,
    data_table,
    episodes_table,
    frame_matrix,
    logs_table,
    states_table,
)
from twinloop.dataset.media.video import EncodedVideo, Frames, encode_block
from twinloop.dataset.side_tables import SideTable, write_side_tables
from twinloop.dataset.spec import DatasetSpec
from twinloop.dataset.storage.snapshot import link_or_copy, replace_bytes
from twinloop.dataset.storage.targets import DatasetTarget, open_target


class DatasetWriter:
    """Writer of one dataset; open it with `DatasetWriter.open`, close it with ``with`` or `close`.

    An attempt is a simulated or recorded trial that becomes an episode if the caller keeps it. Episodes are committed
    in blocks, in order. Block ``k`` covers the attempts with the numbers ``k·B`` to ``(k+1)·B − 1``, where ``B =
    spec.block_size``. It stores those attempts that became episodes, possibly none.
    """

    def __init__(self, target: DatasetTarget, spec: DatasetSpec, progress: WriteProgress) -> None:
        self.path, self.spec = target.path, spec
        self._progress, self._target = progress, target

    @classmethod
    def open(cls, path: Path | str, spec: DatasetSpec, *, resume: bool = False) -> DatasetWriter:
        """Start a dataset in an absent or empty folder, or continue a dataset with the same specification.

        Args:
            path: A folder, or an address in an object store (``s3://bucket/prefix``). For an address, ``self.path`` is
                a local folder with the committed frames and metadata.
            spec: Specification of the dataset.
            resume: True to continue a dataset that already exists.

        Raises:
            DatasetLockedError: If another writer has the folder open.
            DatasetError: If the folder is not empty and ``resume`` is false, its dataset has another specification, or
                the folder cannot be written.
        """
        target = open_target(path)
        try:
            return cls(target, spec, target.begin(spec, resume=resume))
        except BaseException:
            target.release()
            raise

    @property
    def committed_blocks(self) -> frozenset[int]:
        """Numbers of the committed blocks."""
        return frozenset(entry.block for entry in self._progress.blocks)

    @property
    def next_block(self) -> int:
        """Number of the block that must be committed next."""
        return len(self._progress.blocks)

    @property
    def episodes(self) -> int:
        """Number of episodes stored so far."""
        return self._progress.episodes

    @property
    def frames(self) -> int:
        """Number of frames stored so far."""
        return self._progress.frames

    @property
    def outcomes(self) -> list[Mapping[str, int]]:
        """Counts of outcomes of each committed block, in order, as given to `commit_block`."""
        return [entry.outcome for entry in self._progress.blocks]

    @property
    def total_outcome(self) -> dict[str, int]:
        """Counts of outcomes, summed over the committed blocks."""
        total: dict[str, int] = {}
        for entry in self._progress.blocks:
            for name, count in entry.outcome.items():
                total[name] = total.get(name, 0) + count
        return total

    def attempt_numbers(self, block: int) -> range:
        """Return the numbers of the attempts that a block covers."""
        return range(block * self.spec.block_size, (block + 1) * self.spec.block_size)

    def skip_blocks(self, until: int, *, outcome: Mapping[str, int] | None = None) -> None:
        """Leave the blocks before block ``until`` empty; this is stored on disk with the next commit only.

        Args:
            until: Number of the first block that is not skipped.
            outcome: Counts of outcomes to store for each skipped block.
        """
        entries = [
            BlockEntry(block=block, episodes=0, frames=0, outcome=dict(outcome or {}))
            for block in range(self.next_block, until)
        ]
        self._progress = replace(self._progress, blocks=(*self._progress.blocks, *entries))

    def commit_block(
        self,
        block: int,
        episodes: Sequence[SimEpisode],
        *,
        frames: Iterable[Frames] | None = None,
        videos: Mapping[str, EncodedVideo] | None = None,
        logs: Sequence[Episode] | None = None,
        outcome: Mapping[str, int] | None = None,
        invalid: Sequence[InvalidAttempt] = (),
        tables: Mapping[str, SideTable] | None = None,
        documents: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Commit one block; it is then on disk and visible to readers. After an exception the dataset is unchanged.

        Args:
            block: Number of the block; must be `next_block`.
            episodes: Episodes to store, in the order of their numbers.
            frames: Per episode, images ``(T, height, width, 3)`` by camera name; they are encoded here.
            videos: Instead of ``frames``, files that `encode_block` has already encoded, possibly in another process.
                They are linked or copied into the dataset and not removed.
            logs: For recorded episodes, the log of each episode; stored unrounded in addition to the frames.
            outcome: Counts of outcomes of the block's attempts (``{"attempted": 64, "success": 61}``).
            invalid: Attempts of the block whose world diverged, stored in ``twinloop/invalid``.
            tables: Side tables of the episodes by name, see `side_tables`. Every block with episodes must have the same
                tables.
            documents: JSON content by path in the dataset; each replaces an earlier file with that path.

        Raises:
            DatasetError: If the block is out of order, episodes do not fit the specification, the side tables differ
                from those of earlier blocks, or the disk is full.
            InputError: If images do not have the shape of the cameras, or side tables belong to other episodes.
        """
        self._check_block(block, episodes)
        progress = self._progress.with_tasks([episode.provenance.task for episode in episodes])
        if episodes and progress.params is None:
            progress = replace(progress, params=tuple(episodes[0].provenance.params))
        with self._snapshot() as stage:
            entry = BlockEntry(
                block=block,
                episodes=len(episodes),
                frames=sum(len(episode.action) for episode in episodes),
                outcome=dict(outcome or {}),
            )
            progress = replace(progress, blocks=(*progress.blocks, entry))
            if episodes:
                encoded = self._store_videos(stage, block, episodes, frames, videos)
                with span("encode parquet"):
                    progress = self._store_episodes(stage, block, episodes, progress, encoded, logs)
                    progress = replace(progress, tables=self._store_tables(stage, block, episodes, tables or {}))
            if invalid:
                path = stage / layout.block_path(layout.INVALID_PATH, block)
                write_groups(path, invalid_worlds_table(invalid), [1] * len(invalid), compression="none")
            _write_documents(stage, documents)
            due = metadata.quantiles_due(progress)
            progress = replace(progress, quantiles_at=progress.frames if due else progress.quantiles_at)
            with span("statistics"):
                metadata.write_metadata(stage, self.spec, progress, quantiles=due)
        self._progress = progress

    def finish(
        self, result: Mapping[str, Any] | None = None, *, documents: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """Finish the dataset: compute the quantiles over all frames, and store the run's result.

        The arguments must not depend on the clock, so that equal inputs of a run give equal bytes.

        Args:
            result: Metrics of the run, written to ``twinloop/result.json``; None writes no file.
            documents: Further JSON content by path in the dataset.
        """
        progress = replace(self._progress, quantiles_at=self._progress.frames)
        with self._snapshot(final=True) as stage:
            with span("statistics"):
                metadata.write_metadata(stage, self.spec, progress, quantiles=True)
            if result is not None:
                replace_bytes(stage / layout.RESULT, (dumps(dict(result), indent=2) + "\n").encode())
            _write_documents(stage, documents)
        self._progress = progress

    def close(self) -> None:
        """Release the folder so that other writers can open it."""
        self._target.release()

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @contextlib.contextmanager
    def _snapshot(self, *, final: bool = False) -> Iterator[Path]:
        """Yield a folder for the files of the next commit, and commit it when the ``with`` block ends.

        After an exception, nothing is committed and the stored progress is loaded again.

        Args:
            final: True for the last commit.
        """
        if not self._target.held:
            raise DatasetError(f"The writer of {self._target.name} is closed. Open it again with resume=True.")
        try:
            with self._target.snapshot(final=final) as stage:
                yield stage
        except BaseException:
            self._progress = WriteProgress.load(self.path) if self.path.exists() else WriteProgress()
            raise

    def _check_block(self, block: int, episodes: Sequence[SimEpisode]) -> None:
        if block != self.next_block:
            raise DatasetError(
                f"Block {block} cannot be committed to {self.path}: blocks are committed in order, and block "
                f"{self.next_block} is next."
            )
        numbers = [episode.number for episode in episodes]
        allowed = self.attempt_numbers(block)
        if numbers != sorted(set(numbers)) or (numbers and (numbers[0] not in allowed or numbers[-1] not in allowed)):
            raise DatasetError(
                f"Block {block} covers the episode numbers {allowed.start} to {allowed.stop - 1}, each once and in "
                f"order; it was given {numbers}."
            )
        for episode in episodes:
            check_episode(self.spec, episode)

    def _store_videos(
        self,
        stage: Path,
        block: int,
        episodes: Sequence[SimEpisode],
        frames: Iterable[Frames] | None,
        videos: Mapping[str, EncodedVideo] | None,
    ) -> dict[str, EncodedVideo]:
        cameras = self.spec.cameras
        if not cameras:
            return {}
        paths = {c.name: stage / layout.block_path(layout.VIDEO_PATH, block, video_key=c.key) for c in cameras}
        if videos is None:
            if frames is None:
                names = ", ".join(camera.name for camera in cameras)
                raise InputError(
                    f"The dataset has the cameras {names}; block {block} has no images. Give frames or videos."
                )
            videos = encode_block(frames, cameras, paths, fps=self.spec.fps)
        else:
            for name, path in paths.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(videos[name].path, path)  # not moved: a commit that fails removes its files
        wanted = [len(episode.action) for episode in episodes]
        for name, video in videos.items():
            found = [item.frames for item in video.episodes]
            if found != wanted:
                raise DatasetError(f"Camera {name} of block {block} has {found} frames; the episodes have {wanted}.")
        return dict(videos)

    def _store_episodes(
        self,
        stage: Path,
        block: int,
        episodes: Sequence[SimEpisode],
        progress: WriteProgress,
        videos: Mapping[str, EncodedVideo],
        logs: Sequence[Episode] | None,
    ) -> WriteProgress:
        placed = self._index_episodes(episodes, progress)
        matrices = [frame_matrix(self.spec, item) for item in placed]
        lengths = [item.length for item in placed]
        ones = [1] * len(placed)
        table = episodes_table(self.spec, block, placed, matrices, videos=videos, params=progress.params or ())
        write_groups(
            stage / layout.block_path(layout.DATA_PATH, block), data_table(self.spec, np.vstack(matrices)), lengths
        )
        write_groups(stage / layout.block_path(layout.EPISODES_PATH, block), table, [len(placed)])
        if logs is None:
            path = stage / layout.block_path(layout.STATES_PATH, block)
            write_groups(path, states_table(placed), ones, compression="none")
        else:
            path = stage / layout.block_path(layout.LOGS_PATH, block)
            write_groups(path, logs_table(placed, logs), ones, compression="none")
        lines = [dumps({"episode_index": p.episode_index, **p.provenance.to_json()}) for p in placed]
        replace_bytes(stage / layout.block_path(layout.PROVENANCE_PATH, block), ("\n".join(lines) + "\n").encode())
        moments = Moments.of(np.vstack(matrices))
        return replace(
            progress,
            moments=moments if progress.moments is None else merge_moments([progress.moments, moments]),
            cameras={name: _add_camera(progress.cameras.get(name), video) for name, video in videos.items()},
        )

    def _store_tables(
        self, stage: Path, block: int, episodes: Sequence[SimEpisode], tables: Mapping[str, SideTable]
    ) -> dict[str, list[str]]:
        before = self._progress
        indices = {episode.number: before.episodes + i for i, episode in enumerate(episodes)}
        known = before.tables if before.episodes else None
        return write_side_tables(stage, block, tables, episodes=indices, known=known)

    def _index_episodes(self, episodes: Sequence[SimEpisode], progress: WriteProgress) -> list[IndexedEpisode]:
        placed, index, start = [], self._progress.episodes, self._progress.frames
        for episode in episodes:
            record = replace(episode.provenance, content_hash=content_hash(episode))
            task = progress.tasks.index(record.task)
            placed.append(
                IndexedEpisode(
                    episode=episode, provenance=record, episode_index=index, from_index=start, task_index=task
                )
            )
            index, start = index + 1, start + len(episode.action)
        return placed


def _write_documents(stage: Path, documents: Mapping[str, Mapping[str, Any]] | None) -> None:
    for name, value in (documents or {}).items():
        replace_bytes(stage / name, (dumps(dict(value)) + "\n").encode())


def _add_camera(total: CameraSum | None, video: EncodedVideo) -> CameraSum:
    histogram = np.zeros((3, 256), dtype=np.int64) if total is None else total.histogram
    sampled = 0 if total is None else total.sampled
    for item in video.episodes:
        histogram, sampled = histogram + item.histogram, sampled + item.sampled
    return CameraSum(sampled=sampled, histogram=histogram)
