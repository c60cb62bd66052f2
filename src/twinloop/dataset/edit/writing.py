"""Write episodes from one or several folders to a new dataset folder; every edit operation uses this module."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from twinloop.core.errors import DatasetError, InputError
from twinloop.core.files import dumps
from twinloop.dataset.edit.block import (
    BlockWriter,
    EditPlan,
    combine_side_table_schemas,
    copy_equal_documents,
    copy_invalid_worlds,
)
from twinloop.dataset.edit.compatibility import (
    check_features,
    combine_episode_columns,
    combine_frame_schemas,
    combine_info,
    combine_units,
    find_left_out_features,
    keep_common_features,
)
from twinloop.dataset.edit.documents import (
    EDIT,
    EditMetadata,
    EditOperation,
    merge_specs,
    update_video_features,
    write_documents,
)
from twinloop.dataset.edit.rows import (
    ID,
    PARENTS,
    TRANSFORMS,
    SourceEpisode,
    is_recomputed,
    make_transform_entry,
    numeric_features,
)
from twinloop.dataset.edit.source import EditSource
from twinloop.dataset.edit.statistics import FrameTotals, PixelCounts
from twinloop.dataset.edit.videos import CameraFiles, PixelEdits, write_camera
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.progress import CameraSum, WriteProgress
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.media.video_copy import Encoding
from twinloop.dataset.storage.snapshot import create_snapshot, recover, wrap_write_errors
from twinloop.dataset.storage.targets import FolderTarget

_OURS = (layout.SPEC, layout.UNIT_MAP, layout.PROGRESS, layout.RESULT, layout.COVERAGE, layout.ADAPTIVE, EDIT)
_META = (layout.INFO, layout.STATS, layout.TASKS)
REENCODE = "reencode"
_NO_PIXELS = np.zeros((3, 256), dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class EditSettings:
    """Settings of an edit.

    Attributes:
        pixels: Settings for videos.
        same_units: Whether the caller guarantees that the joint columns of all folders have the same units.
        common_features_only: Whether to keep only the features that all folders have. If false, different features are
            an error.
        leave_out: Names of side tables that are not copied.
        duplicates: ``refuse`` raises an error if an episode is given twice; ``first`` keeps its first occurrence.
    """

    pixels: PixelEdits = field(default_factory=PixelEdits)
    same_units: bool = False
    common_features_only: bool = False
    leave_out: tuple[str, ...] = ()
    duplicates: str = "refuse"


@dataclass(frozen=True, kw_only=True)
class EditResult:
    """Result of an edit.

    Attributes:
        output: Folder of the new dataset.
        episodes: Number of episodes.
        frames: Number of frames of all episodes.
        tasks: Task texts.
        videos: For each camera, the numbers of episodes whose video was ``linked`` as a whole file, ``copied`` as
            packets, or ``encoded`` again.
        notes: Remarks for the user.
        details: Further results of the operation.
    """

    output: Path
    episodes: int
    frames: int
    tasks: tuple[str, ...]
    videos: Mapping[str, Mapping[str, int]]
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return {
            "output": str(self.output),
            "episodes": self.episodes,
            "frames": self.frames,
            "tasks": list(self.tasks),
            "videos": {key: dict(row) for key, row in self.videos.items()},
            "notes": list(self.notes),
            **self.details,
        }


def write_selection(
    sources: Sequence[tuple[Path | str, int]],
    output: Path | str,
    *,
    codec: str | None = None,
    same_units: bool = False,
    common_features_only: bool = False,
    link: bool = True,
) -> EditResult:
    """Write episodes from any folders into one new folder, in the given order.

    Ids, provenance, states, logs and side tables are copied; statistics are computed over all frames of the result.
    Images are not decoded if possible: whole video files are linked, and packets of single episodes are copied.

    Args:
        sources: Folder and ``episode_index`` of each episode.
        output: A missing or empty folder.
        codec: Video codec of the result (``h264``, ``av1`` or ``hevc``), needed if the codecs of the folders differ.
            Videos with another codec are re-encoded; their episodes get new ids with the original episodes as parents.
        same_units: Whether the caller guarantees that the joint columns have the same units in all folders.
        common_features_only: Whether to keep only the features that all folders have; the result lists the excluded
            features.
        link: Whether to share whole video files with the sources by hard links if possible, instead of copying them.

    Raises:
        InputError: If there is no episode, if an episode does not exist or is given twice, if features differ, or if
            there are several codecs and ``codec`` is None.
        UnitsError: If the units of the folders differ, or only some folders declare them.
        DatasetError: If a source is damaged, if the output exists or is inside a dataset, or if the disk is full.
        DatasetLockedError: If another process writes to the output.
    """
    opened: dict[Path, EditSource] = {}
    items = []
    for folder, index in sources:
        path = Path(folder)
        if path not in opened:
            opened[path] = EditSource(path)
        items.append(SourceEpisode(source=opened[path], index=int(index)))
    encoding = None if codec is None else Encoding(codec=codec)
    settings = EditSettings(
        pixels=PixelEdits(encoding=encoding, link=link),
        same_units=same_units,
        common_features_only=common_features_only,
    )
    return write_items(items, output, settings, EditOperation(name="select"))


def write_items(
    items: Sequence[SourceEpisode], output: Path | str, settings: EditSettings, operation: EditOperation
) -> EditResult:
    """Write episodes to one new folder; raises the same errors as `write_selection`.

    Args:
        items: Episodes with their changes, in the order of the result.
        output: A missing or empty folder.
        settings: Settings for videos, side tables, differing features and units, and duplicates.
        operation: Name and parameters of the edit, for the edit history.
    """
    return write_parts({"": items}, output, settings, operation)[""]


def write_parts(
    parts: Mapping[str, Sequence[SourceEpisode]], output: Path | str, settings: EditSettings, operation: EditOperation
) -> dict[str, EditResult]:
    """Write each part as its own dataset ``output/NAME``. If an error occurs, no folder is created.

    Raises the same errors as `write_selection`.

    Args:
        parts: Episodes of each part, by name. An empty name writes to ``output`` itself.
        output: A missing or empty folder.
        settings: Settings for videos, side tables, differing features and units, and duplicates.
        operation: Name and parameters of the edit, for the edit history.
    """
    path = Path(output).absolute()
    checked = {name: _check_items(items, settings, name) for name, items in parts.items()}
    with _create_folder(path, [item for items in checked.values() for item in items]) as stage:
        return {name: _write(stage / name, path / name, items, settings, operation) for name, items in checked.items()}


@contextmanager
def _create_folder(path: Path, items: Sequence[SourceEpisode]) -> Iterator[Path]:
    """Context manager: yield a temporary folder, which is renamed to ``path`` if the ``with`` block succeeds.

    Also closes the sources of ``items`` at the end.

    Raises:
        DatasetError: If the output exists and is not empty, is a source folder, or contains a source folder.
    """
    for source in {item.source.path.resolve() for item in items}:
        if path.resolve() == source:
            raise DatasetError(f"{path} is the folder to edit, and edits are never in place. Choose another output.")
        if source.is_relative_to(path.resolve()):
            raise DatasetError(f"{path} holds the source {source}. Choose an output that does not.")
    target = FolderTarget(path)
    try:
        with wrap_write_errors(path):
            recover(path)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise DatasetError(f"{path} exists and is not empty. Edits write new folders: choose another output.")
        with create_snapshot(path) as stage:
            yield stage
    finally:
        target.release()
        for source in {id(item.source): item.source for item in items}.values():
            source.close()


def _check_items(items: Sequence[SourceEpisode], settings: EditSettings, name: str) -> list[SourceEpisode]:
    """Check the episodes and return the episodes to write, excluding duplicates.

    Args:
        name: Name of the part, for error messages; empty if there is only one.

    Raises:
        InputError: If there is no episode, if an episode does not exist, has no frames or occurs twice, or if the
            features of the folders differ.
        UnitsError: If the units of the folders differ, or only some folders declare them.
    """
    part = f" for {name}" if name else ""
    if not items:
        raise InputError(f"No episode is left{part}. An edit writes at least one: select other episodes.")
    sources = list({id(item.source): item.source for item in items}.values())
    if settings.common_features_only:
        keep_common_features(sources)
    check_features(sources)
    combine_units(sources, same_units=settings.same_units)
    seen: dict[tuple[str, str], SourceEpisode] = {}
    kept = []
    for item in items:
        item.source.reader.row(item.index)  # names the folder and how many it has
        if item.length < 1:
            raise InputError(f"{item.where[0].upper()}{item.where[1:]} has no frames. Leave it out.")
        what = item.source.ids[item.index] or f"{item.source.path.resolve()}#{item.index}"
        key = (what, dumps([dict(one) for one in item.transforms]))
        if key not in seen:
            seen[key] = item
            kept.append(item)
        elif settings.duplicates == "refuse":
            raise InputError(
                f"{item.where[0].upper()}{item.where[1:]} is the same as {seen[key].where}: the result would have it "
                "twice. Leave one out, or add --twice first to keep the first of each."
            )
    return kept


def _write(
    stage: Path, output: Path, items: Sequence[SourceEpisode], settings: EditSettings, operation: EditOperation
) -> EditResult:
    """Write one dataset to the temporary folder ``stage``; ``output`` is its later path."""
    work = _EditRun(stage, output, items, settings, operation)
    return work.write()


class _EditRun:
    """Writer of one edited dataset: its videos, data, side files and metadata."""

    def __init__(
        self,
        stage: Path,
        output: Path,
        items: Sequence[SourceEpisode],
        settings: EditSettings,
        operation: EditOperation,
    ) -> None:
        self.stage, self.output, self.items = stage, output, list(items)
        self.settings, self.operation = settings, operation
        self.sources = list({id(item.source): item.source for item in items}.values())
        self.units, self.notes = combine_units(self.sources, same_units=settings.same_units)
        self.left_out = find_left_out_features(self.sources)
        self.notes += [
            f"the feature {key} is left out, because it is only in {', '.join(folders)}"
            for key, folders in self.left_out.items()
        ]
        self.features = self.sources[0].features
        self.fps = Fraction(self.sources[0].reader.fps).limit_denominator(1001)

    def write(self) -> EditResult:
        cameras = self._write_videos()
        frames, widths = combine_frame_schemas(self.sources), numeric_features(self.features)
        carried, notes = combine_episode_columns(
            self.sources, lambda name: is_recomputed(name, [*widths, *self.left_out])
        )
        self.notes += notes
        tables = combine_side_table_schemas(self.sources, self.settings.leave_out)
        places = {key: files.locations for key, files in cameras.items()}
        plan = EditPlan(
            frames=frames,
            copied_columns=self._add_child_columns(carried),
            tables=tables,
            video_locations=places,
            fps=float(self.fps),
        )
        pixels = PixelCounts(
            self.stage, self.items, cameras, self.sources[0].feature_keys("image"), carried.names, self.fps
        )
        totals = FrameTotals(widths=widths)
        blocks = BlockWriter(self.stage, plan, totals, pixels)
        try:
            for item in self.items:
                blocks.add(item)
            blocks.finish()
        except BaseException:
            blocks.close_after_failure()
            raise
        totals.images = pixels.pooled
        self._copy_side_files()
        self._write_metadata(cameras, blocks, totals, tables)
        self._verify(blocks)
        return EditResult(
            output=self.output,
            episodes=blocks.episodes,
            frames=blocks.frames,
            tasks=tuple(blocks.tasks),
            videos={
                key: {"linked": f.linked, "copied": f.copied, "encoded": len(f.encoded)} for key, f in cameras.items()
            },
            notes=tuple(self.notes),
            details={"features_left_out": self.left_out} if self.settings.common_features_only else {},
        )

    def _write_videos(self) -> dict[str, CameraFiles]:
        """Write the videos of all cameras; add the re-encoding to the ``transforms`` of each re-encoded episode."""
        cameras: dict[str, CameraFiles] = {}
        for key in self.sources[0].feature_keys("video"):
            files = cameras[key] = write_camera(self.stage, key, self.items, self.settings.pixels, self.fps)
            if files.forced:
                self.notes.append(
                    f"{files.forced} episodes of {key} were re-encoded: their packets depend on those of "
                    "the episodes around them, because they begin without a key frame"
                )
        reencoded: dict[int, list[str]] = {}
        for key, files in cameras.items():
            for at in files.encoded:
                reencoded.setdefault(at, []).append(key)
        for at, keys in reencoded.items():
            how = cameras[keys[0]].encoding
            done = make_transform_entry(REENCODE, {"features": keys, **({} if how is None else how.to_json())})
            self.items[at] = replace(self.items[at], transforms=(*self.items[at].transforms, done))
        return cameras

    def _add_child_columns(self, columns: pa.Schema) -> pa.Schema:
        """Return the schema of the copied columns, to which columns for changed episodes are added if there are any.

        A changed episode is a child of its original: the added columns are its new id, its parents and the transforms.
        """
        if any(item.transforms for item in self.items):
            for name in (ID, PARENTS, TRANSFORMS):
                if name not in columns.names:
                    columns = columns.append(pa.field(name, pa.string()))
        return columns

    def _copy_side_files(self) -> None:
        counts = collections.Counter(id(item.source) for item in self.items)
        whole = [counts[id(source)] == len(source) for source in self.sources]
        self.notes += copy_invalid_worlds(self.stage, self.sources, whole)
        names = sorted({name for source in self.sources for name in _find_folder_documents(source.path)})
        for name in copy_equal_documents(self.stage, self.sources, names):
            self.notes.append(f"{name} is left out, because its content differs between the folders")

    def _write_metadata(
        self,
        cameras: Mapping[str, CameraFiles],
        blocks: BlockWriter,
        totals: FrameTotals,
        tables: Mapping[str, pa.Schema],
    ) -> None:
        codings = {key: files.coding for key, files in cameras.items() if files.coding is not None}
        reencoded = [key for key, files in cameras.items() if files.encoded]
        counted = {
            key.removeprefix("observation.images."): pooled.pixels or CameraSum(sampled=0, histogram=_NO_PIXELS)
            for key, pooled in totals.images.items()
        }
        kept = [[item.index for item in self.items if item.source is source] for source in self.sources]
        progress = WriteProgress(
            blocks=tuple(blocks.entries),
            tasks=tuple(blocks.tasks),
            moments=totals.moments,
            cameras=counted,
            quantiles_at=blocks.frames,
            tables={name: [f"{one.name}: {one.type}" for one in schema] for name, schema in tables.items()},
        )
        write_documents(
            self.stage,
            EditMetadata(
                name=self.output.name,
                sources=self.sources,
                operation=self.operation,
                info=combine_info(self.sources),
                features=update_video_features(self.features, codings, reencoded=reencoded),
                tasks=list(blocks.tasks),
                episodes=blocks.episodes,
                frames=blocks.frames,
                stats=totals.stats(blocks.paths, self.features),
                spec=merge_specs(self.sources, kept, name=self.output.name, units=self.units, codings=codings),
                units=self.units,
                progress=progress,
                notes=self.notes,
            ),
        )

    def _verify(self, blocks: BlockWriter) -> None:
        """Read the written folder and check its numbers of episodes and frames.

        Raises:
            DatasetError: If the numbers differ from those that were written.
        """
        reader = DatasetReader(self.stage)
        if len(reader) != blocks.episodes or int(reader.lengths.sum()) != blocks.frames:
            raise DatasetError(
                f"{self.output} has {len(reader)} episodes of {int(reader.lengths.sum())} frames after writing; "
                f"{blocks.episodes} of {blocks.frames} were given. Write it again."
            )


def _find_folder_documents(root: Path) -> list[str]:
    """Return the relative paths of a dataset folder's metadata files that an edit copies instead of writing them."""
    found = [*root.glob("meta/*"), *root.glob("twinloop/*.json")]
    names = [path.relative_to(root).as_posix() for path in found if path.is_file()]
    return [name for name in names if name not in (*_OURS, *_META)]
