"""Write any episodes of several folders to one new folder; all edits use this module."""

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
from twinloop.dataset.edit.agreement import (
    check_features,
    combine_episode_columns,
    combine_frame_schemas,
    combine_info,
    combine_units,
    find_left_out_features,
    keep_common_features,
)
from twinloop.dataset.edit.block import (
    BlockWriter,
    EditPlan,
    combine_side_table_schemas,
    copy_equal_documents,
    copy_invalid_worlds,
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
        pixels: settings for videos.
        same_units: the caller states that the joint columns of all folders have the same units.
        common: keep only the features that all folders have; otherwise different features are an error.
        leave_out: side tables that are not copied.
        twice: ``refuse`` an episode that is given twice, or keep the ``first``.
    """

    pixels: PixelEdits = field(default_factory=PixelEdits)
    same_units: bool = False
    common: bool = False
    leave_out: tuple[str, ...] = ()
    twice: str = "refuse"


@dataclass(frozen=True, kw_only=True)
class EditResult:
    """Result of an edit.

    ``videos`` has for each camera the numbers of episodes whose video was ``linked`` as a whole file, ``copied`` as
    packets, or ``encoded`` again. ``notes`` are remarks for the user, ``details`` further results of the operation.
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
    common: bool = False,
    link: bool = True,
) -> EditResult:
    """Write episodes of any folders into one new folder, in the given order.

    Ids, provenance, states, logs and side tables are copied; statistics are computed over all frames of the result.
    Images are not decoded: whole video files are linked, packets of single episodes are copied.

    Args:
        sources: folder and ``episode_index`` of each episode.
        output: a missing or empty folder.
        codec: codec of the result (h264, av1, hevc), needed if the folders' codecs differ; other videos are re-encoded,
            and their episodes get new ids with the originals as parents.
        same_units: the caller states that the joint columns have the same units in all folders.
        common: keep only the features that all folders have; the result names the others.
        link: share whole video files with the sources by hard links if possible; else they are copied.

    Raises:
        InputError: no episode, an episode that does not exist or is given twice, different features, or several codecs.
        UnitsError: the folders' units differ, or only some declare them.
        DatasetError: a source is damaged, the output exists or is inside a dataset, or the disk is full.
        DatasetLockedError: another writer has the output open.
    """
    opened: dict[Path, EditSource] = {}
    items = []
    for folder, index in sources:
        path = Path(folder)
        if path not in opened:
            opened[path] = EditSource(path)
        items.append(SourceEpisode(source=opened[path], index=int(index)))
    encoding = None if codec is None else Encoding(codec=codec)
    settings = EditSettings(pixels=PixelEdits(encoding=encoding, link=link), same_units=same_units, common=common)
    return write_items(items, output, settings, EditOperation(name="select"))


def write_items(
    items: Sequence[SourceEpisode], output: Path | str, settings: EditSettings, operation: EditOperation
) -> EditResult:
    """Write episodes to one new folder; raises the same errors as `write_selection`."""
    return write_parts({"": items}, output, settings, operation)[""]


def write_parts(
    parts: Mapping[str, Sequence[SourceEpisode]], output: Path | str, settings: EditSettings, operation: EditOperation
) -> dict[str, EditResult]:
    """Write the dataset ``output/NAME`` of each part (``output`` itself for an empty name); all appear or none."""
    path = Path(output).absolute()
    checked = {name: _check_items(items, settings, name) for name, items in parts.items()}
    with _create_folder(path, [item for items in checked.values() for item in items]) as stage:
        return {name: _write(stage / name, path / name, items, settings, operation) for name, items in checked.items()}


@contextmanager
def _create_folder(path: Path, items: Sequence[SourceEpisode]) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to ``path`` if the block succeeds.

    Raises:
        DatasetError: the output exists, or one of output and sources is inside the other.
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
    """Check the episodes and return those to write, without duplicates.

    Raises:
        InputError: there are none, one does not exist or occurs twice, or the folders' features differ.
        UnitsError: the folders' units differ, or only some declare them.
    """
    part = f" for {name}" if name else ""
    if not items:
        raise InputError(f"No episode is left{part}. An edit writes at least one: change the choice.")
    sources = list({id(item.source): item.source for item in items}.values())
    if settings.common:
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
        elif settings.twice == "refuse":
            raise InputError(
                f"{item.where[0].upper()}{item.where[1:]} is the same as {seen[key].where}: the result would have it "
                "twice. Leave one out, or add --twice first to keep the first of each."
            )
    return kept


def _write(
    stage: Path, output: Path, items: Sequence[SourceEpisode], settings: EditSettings, operation: EditOperation
) -> EditResult:
    """Write one dataset to the temporary folder ``stage``."""
    work = _EditRun(stage, output, items, settings, operation)
    return work.write()


class _EditRun:
    """Writer of one edited dataset."""

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
            f"the feature {key} is left out: only in {', '.join(folders)}" for key, folders in self.left_out.items()
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
        places = {key: files.places for key, files in cameras.items()}
        plan = EditPlan(
            frames=frames, carried=self._add_child_columns(carried), tables=tables, places=places, fps=float(self.fps)
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
            blocks.abandon()
            raise
        totals.pictures = pixels.pooled
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
            details={"features_left_out": self.left_out} if self.settings.common else {},
        )

    def _write_videos(self) -> dict[str, CameraFiles]:
        """Write the videos; add a transform to the episodes that were re-encoded."""
        cameras: dict[str, CameraFiles] = {}
        for key in self.sources[0].feature_keys("video"):
            files = cameras[key] = write_camera(self.stage, key, self.items, self.settings.pixels, self.fps)
            if files.forced:
                self.notes.append(
                    f"{files.forced} episodes of {key} were re-encoded: their packets depend on those of "
                    "the episodes around them, because they begin without a key frame"
                )
        anew: dict[int, list[str]] = {}
        for key, files in cameras.items():
            for at in files.encoded:
                anew.setdefault(at, []).append(key)
        for at, keys in anew.items():
            how = cameras[keys[0]].encoding
            done = make_transform_entry(REENCODE, {"features": keys, **({} if how is None else how.to_json())})
            self.items[at] = replace(self.items[at], transforms=(*self.items[at].transforms, done))
        return cameras

    def _add_child_columns(self, carried: pa.Schema) -> pa.Schema:
        """Return the copied columns, plus those for id, parents and transforms if any episode has changed."""
        if any(item.transforms for item in self.items):
            for name in (ID, PARENTS, TRANSFORMS):
                if name not in carried.names:
                    carried = carried.append(pa.field(name, pa.string()))
        return carried

    def _copy_side_files(self) -> None:
        counts = collections.Counter(id(item.source) for item in self.items)
        whole = [counts[id(source)] == len(source) for source in self.sources]
        self.notes += copy_invalid_worlds(self.stage, self.sources, whole)
        names = sorted({name for source in self.sources for name in _find_folder_documents(source.path)})
        for name in copy_equal_documents(self.stage, self.sources, names):
            self.notes.append(f"{name} is left out: the folders have it differently")

    def _write_metadata(
        self,
        cameras: Mapping[str, CameraFiles],
        blocks: BlockWriter,
        totals: FrameTotals,
        tables: Mapping[str, pa.Schema],
    ) -> None:
        codings = {key: files.coding for key, files in cameras.items() if files.coding is not None}
        anew = [key for key, files in cameras.items() if files.encoded]
        counted = {
            key.removeprefix("observation.images."): pooled.pixels or CameraSum(sampled=0, histogram=_NO_PIXELS)
            for key, pooled in totals.pictures.items()
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
                features=update_video_features(self.features, codings, anew=anew),
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
        """Read the written folder and check its numbers of episodes and frames."""
        reader = DatasetReader(self.stage)
        if len(reader) != blocks.episodes or int(reader.lengths.sum()) != blocks.frames:
            raise DatasetError(
                f"{self.output} has {len(reader)} episodes of {int(reader.lengths.sum())} frames after writing; "
                f"{blocks.episodes} of {blocks.frames} were given. Write it again."
            )


def _find_folder_documents(root: Path) -> list[str]:
    """Return the metadata files of a folder that an edit does not write itself."""
    found = [*root.glob("meta/*"), *root.glob("twinloop/*.json")]
    names = [path.relative_to(root).as_posix() for path in found if path.is_file()]
    return [name for name in names if name not in (*_OURS, *_META)]
