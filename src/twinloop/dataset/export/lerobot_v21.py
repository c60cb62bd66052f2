"""Export to LeRobot v2.1: per episode one Parquet file and one video per camera; metadata in JSON Lines files.

All frame data of LeRobot v3.0 are kept. Data that v2.1 does not support, such as the provenance of each episode and the
unit map, are stored in ``twinloop/``; an export to v3.0 restores them.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from twinloop.core.files import dumps
from twinloop.dataset.export.cameras import ExportCamera, TableCamera
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
from twinloop.dataset.export.source import EPISODE_FACTS, SourceV3, SourceV21, open_source
from twinloop.dataset.export.verification import FolderReader
from twinloop.dataset.lerobot import layout
from twinloop.dataset.storage.snapshot import replace_bytes

DATA_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
VIDEO_PATH = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
EPISODES, EPISODES_STATS, TASKS = "meta/episodes.jsonl", "meta/episodes_stats.jsonl", "meta/tasks.jsonl"
CHUNK = 1000  # episodes per chunk folder, LeRobot's DEFAULT_CHUNK_SIZE


def write(path: Path, output: Path, options: ExportOptions) -> ExportResult:
    """Export a LeRobot folder of version 2 or 3 as v2.1; implements `Exporter.write`."""
    source = open_source(path, images=includes_videos(options))
    episodes = select_episodes(options, source.episodes, where=path)
    with create_output_folder(output) as stage:
        exported = write_v21(source, episodes, stage)
    return ExportResult(output=output, episodes=episodes, frames=exported.frames, notes=exported.notes)


def write_v21(source: SourceV3 | SourceV21, episodes: Sequence[int], stage: Path) -> ExportResult:
    """Write the given episodes as LeRobot v2.1 to the temporary folder ``stage``."""
    with tempfile.TemporaryDirectory(dir=stage, prefix=".export-") as scratch:
        cameras = [ExportCamera(source, key, episodes, Path(scratch)) for key in source.video_keys]
        tables = [TableCamera(source, key) for key in source.image_keys]
        tasks, kept = select_tasks(source, episodes)
        numeric = NumericFeatures.of(source.features)
        rows, stats, start = [], [], 0
        for number, episode in enumerate(episodes):
            table = renumber_episode(source, episode, number=number, start=start, tasks=kept)
            _write_table(stage / episode_path(DATA_PATH, number), table)
            images = {camera.key: camera.histogram(episode) for camera in cameras}
            images |= {camera.key: camera.histogram(episode, table) for camera in tables}
            for camera in cameras:
                camera.write(episode, stage / episode_path(VIDEO_PATH, number, camera.key))
            texts = [tasks[index] for index in dict.fromkeys(table["task_index"].to_pylist())]
            rows.append({"episode_index": number, "tasks": texts, "length": table.num_rows})
            row = numeric.episode_stats(numeric.matrix(table, where=f"Episode {episode} of {source.path}"))
            row |= {camera.key: camera.stats(images[camera.key]) for camera in (*cameras, *tables)}
            stats.append({"episode_index": number, "stats": row})
            start += table.num_rows
    _write_lines(stage / EPISODES, rows)
    _write_lines(stage / EPISODES_STATS, stats)
    _write_lines(stage / TASKS, [{"task_index": index, "task": text} for index, text in enumerate(tasks)])
    info = build_v21_info(source, cameras, episodes=len(episodes), frames=start, tasks=len(tasks))
    replace_bytes(stage / layout.INFO, (dumps(info, indent=4) + "\n").encode())
    copy_side_files(source, stage)
    facts = dict(source.read_extra_columns())
    if any(facts.get(episode) for episode in episodes):
        _write_lines(stage / EPISODE_FACTS, [{"episode_index": n, **facts[e]} for n, e in enumerate(episodes)])
    notes = (source.missing_files, *(camera.note for camera in cameras))
    return ExportResult(
        output=stage, episodes=tuple(episodes), frames=start, notes=tuple(note for note in notes if note)
    )


def episode_path(template: str, episode: int, key: str = "") -> str:
    """Return the relative path of an episode's data or video file.

    Args:
        template: Path template of LeRobot v2.1, such as `DATA_PATH` or `VIDEO_PATH`.
        episode: Index of the episode in the export.
        key: Feature key of the camera; needed for videos only.
    """
    return template.format(episode_chunk=episode // CHUNK, episode_index=episode, video_key=key)


def build_v21_info(
    source: SourceV3 | SourceV21, cameras: Sequence[ExportCamera], *, episodes: int, frames: int, tasks: int
) -> dict[str, Any]:
    """Return the content of ``meta/info.json``; unknown keys of the source's file are copied.

    Args:
        source: The dataset.
        cameras: Cameras with videos.
        episodes: Number of exported episodes.
        frames: Number of exported frames.
        tasks: Number of exported tasks.
    """
    changed = {camera.key: camera.describe_feature(source.features[camera.key]) for camera in cameras}
    gone = ("data_files_size_in_mb", "video_files_size_in_mb")
    return {
        **{key: value for key, value in source.info.items() if key not in gone},
        "codebase_version": "v2.1",
        "total_episodes": episodes,
        "total_frames": frames,
        "total_tasks": tasks,
        "total_videos": episodes * len(cameras),
        "total_chunks": -(-episodes // CHUNK),
        "chunks_size": CHUNK,
        "splits": {"train": f"0:{episodes}"},
        "data_path": DATA_PATH,
        "video_path": VIDEO_PATH if cameras else None,
        "features": {key: changed.get(key, feature) for key, feature in source.features.items()},
    }


def _write_table(path: Path, table: pa.Table) -> None:
    buffer = io.BytesIO()
    pq.write_table(table.cast(set_list_type(table.schema, lists="Sequence")), buffer)
    replace_bytes(path, buffer.getvalue())


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    replace_bytes(path, "".join(dumps(dict(row)) + "\n" for row in rows).encode())


EXPORTER = Exporter(
    name="lerobot-v2",
    description="LeRobot v2.1: one Parquet file and one video per episode",
    unsupported="states, logs and side tables of twinloop/; quantiles over the whole dataset (it has none)",
    write=write,
    open_reader=FolderReader,
    settings=IMAGES,
)
