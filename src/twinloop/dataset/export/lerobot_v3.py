"""Export to LeRobot v3.0 from version 2 or 3: all columns, copied video packets, exact statistics and quantiles.

The result has LeRobot's files. Of twinloop's additional data, it has only the provenance columns of the episode table
and the unit map. To keep states, logs and side tables, edit the dataset (`dataset.edit`) or copy its folder.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from twinloop.core.errors import InputError
from twinloop.core.files import dumps
from twinloop.dataset.edit.rows import DataFile
from twinloop.dataset.export.cameras import MOST_BYTES, AnnotatedDepthCamera, Counts, ExportCamera, TableCamera
from twinloop.dataset.export.lerobot_language import FEATURES, Subtasks, add_language
from twinloop.dataset.export.lerobot_like import Model
from twinloop.dataset.export.lerobot_parts import (
    NumericFeatures,
    copy_side_files,
    renumber_episode,
    select_tasks,
    set_list_type,
)
from twinloop.dataset.export.protocol import (
    IMAGES,
    Exporter,
    ExportOptions,
    ExportResult,
    create_output_folder,
    includes_videos,
    select_episodes,
)
from twinloop.dataset.export.source import SourceV3, SourceV21, open_source
from twinloop.dataset.export.verification import FolderReader
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.parquet import write_groups
from twinloop.dataset.lerobot.statistics import Moments
from twinloop.dataset.lerobot.tables import tasks_table
from twinloop.dataset.storage.snapshot import replace_bytes

_MOST_DATA = 100_000_000  # bytes of a data file, LeRobot's data_files_size_in_mb
_ROWS = 1000  # episodes per file of the episode table; our choice


def write(
    path: Path, output: Path, options: ExportOptions, *, subtasks: Callable[[int], Subtasks] | None = None
) -> ExportResult:
    """Export a LeRobot folder of version 2 or 3 as v3.0; implements `Exporter.write`.

    Args:
        path: The dataset.
        output: Folder to write.
        options: Options of the export.
        subtasks: Function that returns the subtasks of an episode of the source, for the setting ``language``.

    Raises:
        InputError: If a setting is not possible for the dataset.
    """
    settings = options.settings
    source = open_source(path, images=includes_videos(options))
    episodes = select_episodes(options, source.episodes, where=path)
    named = _require_subtasks(settings["language"], subtasks, path) if "language" in settings else None
    depths = _open_depth(source, settings.get("depth", ""))
    added = {camera.key: camera.describe_feature({}) for camera in depths} | (FEATURES if named else {})
    model = Model.open(Path(settings["like"])) if "like" in settings else None
    info = {**source.info, "features": {**source.features, **added}}
    info = info if model is None else model.keep(info, where=path)
    source.info = {**info, "features": {key: entry for key, entry in info["features"].items() if key not in added}}
    with create_output_folder(output) as stage, tempfile.TemporaryDirectory(dir=stage, prefix=".export-") as scratch:
        codecs = {key: model.codec(key) if model else "" for key in source.video_keys}
        copied = [ExportCamera(source, key, episodes, Path(scratch), codec=codec) for key, codec in codecs.items()]
        cameras = [*copied, *(camera for camera in depths if camera.key in info["features"])]
        work = _FolderWriter(source, stage, cameras, features=info["features"], subtasks=named, model=model)
        work.write(episodes)
        notes = (source.missing_files, *(camera.note for camera in cameras))
    return ExportResult(
        output=output, episodes=episodes, frames=work.frames, notes=tuple(note for note in notes if note)
    )


def _open_depth(source: SourceV3 | SourceV21, names: str) -> list[AnnotatedDepthCamera]:
    """Return the cameras whose depth annotations become features, from their names with commas."""
    if names and not isinstance(source, SourceV3):
        raise InputError(
            f"{source.path} has no depth annotations, because it is LeRobot v2. Leave the setting depth out."
        )
    cameras = [AnnotatedDepthCamera(source, name) for name in names.split(",") if name and isinstance(source, SourceV3)]
    if taken := [camera.key for camera in cameras if camera.key in source.features]:
        raise InputError(f"{source.path} has {taken[0]} already. Leave its camera out of the setting depth.")
    return cameras


def _require_subtasks(value: str, subtasks: Callable[[int], Subtasks] | None, path: Path) -> Callable[[int], Subtasks]:
    if value != "subtasks":
        raise InputError(f"The setting language is {value!r}. Give subtasks.")
    if subtasks is None:
        raise InputError(f"{path} has no subtasks: twinloop did not generate it with a task that has phases.")
    return subtasks


@dataclass
class _FolderWriter:
    """Writer of a LeRobot v3.0 folder, one episode at a time.

    Attributes:
        source: The dataset.
        stage: Temporary folder of the export.
        cameras: Cameras with videos.
        frames: Number of frames written so far.
        rows: Rows of the episode table.
        moments: Count, extremes, mean and variance of each episode's numeric features.
        images: Pixel histogram of each camera, by feature key.
        files: Written data files.
        features: Features of the export.
        subtasks: Function that returns the subtasks of an episode; None for no language columns.
        model: Dataset whose features the export has.
    """

    source: SourceV3 | SourceV21
    stage: Path
    cameras: Sequence[ExportCamera | AnnotatedDepthCamera]
    features: Mapping[str, Any]
    subtasks: Callable[[int], Subtasks] | None = None
    model: Model | None = None
    frames: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    moments: list[Moments] = field(default_factory=list[Moments])
    images: dict[str, Counts] = field(default_factory=dict[str, Counts])
    files: list[Path] = field(default_factory=list[Path])
    _data: DataFile | None = None
    _schema: pa.Schema | None = None

    def write(self, episodes: Sequence[int]) -> None:
        tasks, kept = select_tasks(self.source, episodes)
        facts = dict(self.source.read_extra_columns())
        numeric = NumericFeatures.of(self.source.features)
        tables = [TableCamera(self.source, key) for key in self.source.image_keys]
        for number, episode in enumerate(episodes):
            table = renumber_episode(self.source, episode, number=number, start=self.frames, tasks=kept)
            values = numeric.matrix(table, where=f"Episode {episode} of {self.source.path}")
            if self.subtasks is not None:
                table = add_language(table, self.subtasks(episode))
            if self.model is not None:
                table = table.select([name for name in table.column_names if name in self.features])
            counts = {camera.key: camera.histogram(episode) for camera in self.cameras}
            counts |= {camera.key: camera.histogram(episode, table) for camera in tables}
            stats = numeric.episode_stats(values)
            stats |= {camera.key: camera.stats(counts[camera.key]) for camera in (*self.cameras, *tables)}
            texts = [tasks[index] for index in dict.fromkeys(table["task_index"].to_pylist())]
            self._add(number, table, {"tasks": texts}, stats, facts.get(episode, {}), episode)
            self.moments.append(Moments.of(values))
            for key, count in counts.items():
                before = self.images.get(key)
                self.images[key] = count if before is None else (before[0] + count[0], before[1] + count[1])
        self._finish(numeric, tasks, tables)

    def _add(
        self,
        number: int,
        table: pa.Table,
        task_columns: dict[str, Any],
        stats: dict[str, Any],
        facts: dict[str, Any],
        episode: int,
    ) -> None:
        """Write an episode's frames and images, and store its row of the episode table.

        Args:
            number: Index of the episode in the export.
            table: Renumbered frames.
            task_columns: The column ``tasks``.
            stats: Statistics by feature key.
            facts: Additional columns, such as provenance.
            episode: Index of the episode in the source.
        """
        place = layout.chunk_and_file(self._write_frames(table))
        videos: dict[str, Any] = {}
        for camera in self.cameras:
            at = camera.append(episode, self.stage, layout.VIDEO_PATH, chunk=layout.FILES_PER_CHUNK)
            videos |= {f"videos/{camera.key}/{key}": value for key, value in layout.chunk_and_file(at.file).items()}
            videos[f"videos/{camera.key}/from_timestamp"] = at.start_s
            videos[f"videos/{camera.key}/to_timestamp"] = at.stop_s
        self.rows.append(
            {
                "episode_index": number,
                **task_columns,
                "length": table.num_rows,
                **{f"data/{key}": value for key, value in place.items()},
                "dataset_from_index": self.frames,
                "dataset_to_index": self.frames + table.num_rows,
                **videos,
                **{f"stats/{key}/{name}": value for key, row in stats.items() for name, value in row.items()},
                **{f"meta/episodes/{key}": value for key, value in layout.chunk_and_file(number // _ROWS).items()},
                **facts,
            }
        )
        self.frames += table.num_rows

    def _write_frames(self, table: pa.Table) -> int:
        """Append an episode's frames to the open data file and return the number of the file.

        If the open file is full, a new one is started.
        """
        schema = self._schema = self._schema or set_list_type(table.schema, lists="List")
        if self._data is None or self._data.bytes > _MOST_DATA:
            if self._data is not None:
                self._data.close()
            path = self.stage / layout.block_path(layout.DATA_PATH, len(self.files))
            self._data = DataFile(path, schema)
            self.files.append(path)
        part = table.select(schema.names)
        # A cast of a slice with an empty child, as in LeRobot's language columns, fails (pyarrow 26).
        same = part.schema.equals(schema)
        self._data.add(part.replace_schema_metadata(schema.metadata) if same else part.cast(schema))
        return len(self.files) - 1

    def _finish(self, numeric: NumericFeatures, tasks: Sequence[str], tables: Sequence[TableCamera]) -> None:
        if self._data is not None:
            self._data.close()
        for camera in self.cameras:
            camera.finish()
        table = pa.Table.from_pylist(_fill_missing_keys(self.rows))
        for file in range(-(-len(table) // _ROWS)):
            part = table.slice(file * _ROWS, _ROWS)
            write_groups(self.stage / layout.block_path(layout.EPISODES_PATH, file), part, [part.num_rows])
        stats = numeric.dataset_stats(self.moments, self.files)
        stats |= {camera.key: camera.stats(self.images[camera.key]) for camera in (*self.cameras, *tables)}
        self._write_json(layout.STATS, stats)
        self._write_json(layout.INFO, self._info(tasks))
        buffer = io.BytesIO()
        pq.write_table(tasks_table(tasks), buffer)
        replace_bytes(self.stage / layout.TASKS, buffer.getvalue())
        copy_side_files(self.source, self.stage)

    def _info(self, tasks: Sequence[str]) -> dict[str, Any]:
        """Return the content of ``meta/info.json``; unknown keys of the source's ``meta/info.json`` are copied.

        Args:
            tasks: Texts of the tasks of the exported episodes.
        """
        source, gone = self.source, ("total_chunks", "total_videos")
        changed = {camera.key: camera.describe_feature(self.features[camera.key]) for camera in self.cameras}
        features = {**self.features, **changed}
        if self.model is not None:
            features = {key: self.model.describe_feature(key, feature) for key, feature in features.items()}
        return {
            **{key: value for key, value in source.info.items() if key not in gone},
            "codebase_version": "v3.0",
            "total_episodes": len(self.rows),
            "total_frames": self.frames,
            "total_tasks": len(tasks),
            "chunks_size": layout.FILES_PER_CHUNK,
            "data_files_size_in_mb": _MOST_DATA // 1_000_000,
            "video_files_size_in_mb": MOST_BYTES // 1_000_000,
            "splits": {"train": f"0:{len(self.rows)}"},
            "data_path": layout.DATA_PATH,
            "video_path": layout.VIDEO_PATH if self.cameras else None,
            "features": features,
        }

    def _write_json(self, name: str, value: Any) -> None:
        replace_bytes(self.stage / name, (dumps(value, indent=2) + "\n").encode())


def _fill_missing_keys(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with all keys in each row; missing values are None."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return [{key: row.get(key) for key in keys} for row in rows]


_SETTINGS = {
    "depth": "cameras, as in front,wrist, whose depth annotations become depth features (LeRobot from 0.6)",
    "language": "subtasks: language columns with the phases of the task of simulated episodes (LeRobot from 0.6)",
    "like": "folder of a LeRobot v3.0 dataset, whose features, robot type and codecs the export gets",
}
EXPORTER = Exporter(
    name="lerobot",
    description="LeRobot v3.0, from either version",
    unsupported="states, logs and side tables of twinloop/ (copy or edit the dataset to keep them)",
    write=write,
    open_reader=FolderReader,
    settings=IMAGES | _SETTINGS,
)
