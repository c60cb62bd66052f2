"""Datasets of other programs, small and quickly written: LeRobot's files only, with what ours never have."""

from __future__ import annotations

import io
import json
import os
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from twinloop.dataset.edit.source import EditSource
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.statistics import image_stats, pixel_histogram, sample_indices
from twinloop.dataset.lerobot.tables import tasks_table
from twinloop.dataset.media.video_copy import restore_priority

NAMES = ["pan.pos", "lift.pos"]
SIZE = (48, 64)
KEY = "observation.images.top"


def image(episode: int, frame: int) -> np.ndarray:
    """A smooth moving image, a function of episode and frame alone."""
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    waves = [
        np.sin((x + 9 * frame) / 11 + episode),
        np.sin((y - 7 * frame) / 9),
        np.cos((x + y + 5 * frame) / 13 + episode),
    ]
    return (128 + 90 * np.stack(waves, axis=-1)).astype(np.uint8)


def video(
    path: Path, episodes: list[tuple[int, int]], *, codec: str = "libx264", gop: int = 2, force: bool = True
) -> None:
    """One file of several episodes ``(number, frames)``; ``force``: each begins with a key frame."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("SVT_LOG", "1")
    options = {"libx264": {"g": str(gop), "bf": "2", "sc_threshold": "0"}, "libsvtav1": {"g": str(gop), "preset": "12"}}
    with restore_priority(), av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream(codec, rate=30, options=options[codec])
        stream.height, stream.width = SIZE
        stream.pix_fmt, stream.codec_context.time_base = "yuv420p", Fraction(1, 30)
        count = 0
        for number, length in episodes:
            for t in range(length):
                frame = av.VideoFrame.from_ndarray(image(number, t), format="rgb24")
                frame.pts, frame.time_base = count, Fraction(1, 30)
                if force and t == 0:
                    frame.pict_type = av.video.frame.PictureType.I
                container.mux(stream.encode(frame))
                count += 1
        container.mux(stream.encode(None))


def foreign(
    root: Path,
    lengths: list[int],
    *,
    first: int = 0,
    scale: float = 1.0,
    codec: str | None = None,
    images: bool = False,
    gop: int = 2,
    force: bool = True,
    extra: dict[str, list] | None = None,
    odd: bool = True,
    tasks: tuple[str, ...] = ("fold the cloth", "open the drawer"),
) -> Path:
    """A dataset as another program writes it: one row group, no provenance, double precision, whole numbers below 0."""
    features: dict = {
        "action": {"dtype": "float32", "shape": [2], "names": NAMES},
        "observation.state": {"dtype": "float64", "shape": [2], "names": {"motors": NAMES}},
        "observation.grid": {"dtype": "float32", "shape": [2, 3], "names": None},
        "observation.count": {"dtype": "int64", "shape": [1], "names": None},
        "observation.note": {"dtype": "string", "shape": [1], "names": None},
    }
    if not odd:  # fields that the public validators do not check
        for name in ("observation.grid", "observation.note"):
            del features[name]
    if codec:
        features[KEY] = {
            "dtype": "video",
            "shape": [*SIZE, 3],
            "names": ["height", "width", "channels"],
            "info": {"video.fps": 30, "video.codec": "whatever", "video.pix_fmt": "yuv420p", "video.g": gop},
        }
        numbered = [(first + i, length) for i, length in enumerate(lengths)]
        target = root / layout.block_path(layout.VIDEO_PATH, 0, video_key=KEY)
        video(target, numbered, codec=codec, gop=gop, force=force)
    if images:
        named = ["height", "width", "channels"]
        features["observation.images.still"] = {"dtype": "image", "shape": [*SIZE, 3], "names": named}
    for name in ("timestamp", "frame_index", "episode_index", "index", "task_index"):
        features[name] = {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None}
    frames, rows, start = [], [], 0
    for index, length in enumerate(lengths):
        table = _frames(first + index, index, start, length, scale, images=images, tasks=len(tasks))
        frames.append(table.select([name for name in table.column_names if name in features]))
        row: dict = {
            "episode_index": index,
            "tasks": [tasks[(first + index) % len(tasks)]],
            "length": length,
            "data/chunk_index": 0,
            "data/file_index": 0,
            "dataset_from_index": start,
            "dataset_to_index": start + length,
            "operator": f"person {first + index}",
            **{name: values[index] for name, values in (extra or {}).items()},
        }
        if codec:
            row |= {f"videos/{KEY}/chunk_index": 0, f"videos/{KEY}/file_index": 0}
            row |= {f"videos/{KEY}/from_timestamp": start / 30, f"videos/{KEY}/to_timestamp": (start + length) / 30}
            chosen = sample_indices(length)
            shown = np.stack([image(first + index, int(t)) for t in chosen])
            stats = image_stats(pixel_histogram(shown), len(chosen))
            row |= {f"stats/{KEY}/{name}": value for name, value in stats.items()}
        rows.append(row)
        start += length
    table = pa.concat_tables(frames)
    for path, content in (
        (layout.block_path(layout.DATA_PATH, 0), table),
        (layout.block_path(layout.EPISODES_PATH, 0), pa.Table.from_pylist(rows)),
        (layout.TASKS, tasks_table(list(tasks))),
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(content, root / path)
    info = {
        "codebase_version": "v3.0",
        "robot_type": "two_joints",
        "total_episodes": len(lengths),
        "total_frames": start,
        "total_tasks": len(tasks),
        "chunks_size": 1000,
        "fps": 30,
        "splits": {"train": f"0:{len(lengths)}"},
        "data_path": layout.DATA_PATH,
        "video_path": layout.VIDEO_PATH if codec else None,
        "features": features,
        "maker": "another program",
    }
    (root / layout.INFO).write_text(json.dumps(info))
    numeric = {key: table[key] for key in ("action",)}
    stats = {key: {"min": _min(value), "max": _max(value)} for key, value in numeric.items()}
    (root / layout.STATS).write_text(json.dumps(stats))
    return root


def _frames(number: int, index: int, start: int, length: int, scale: float, *, images: bool, tasks: int) -> pa.Table:
    rng = np.random.default_rng(number)
    action = np.cumsum(rng.normal(size=(length, 2)), axis=0) * (0.1 * scale)  # rad: a walk within one turn
    frame = np.arange(length)
    columns = {
        "action": pa.FixedSizeListArray.from_arrays(pa.array(action.astype(np.float32).reshape(-1)), 2),
        "observation.state": pa.array((action + rng.normal(size=action.shape)).tolist(), pa.list_(pa.float64())),
        "observation.grid": pa.array(rng.normal(size=(length, 2, 3)).tolist(), pa.list_(pa.list_(pa.float32()))),
        "observation.count": pa.array(rng.integers(-9, 9, length), pa.int64()),
        "observation.note": pa.array([f"{number}/{t}" for t in frame], pa.string()),
        "timestamp": pa.array((frame / 30).astype(np.float32)),
        "frame_index": pa.array(frame),
        "episode_index": pa.array(np.full(length, index)),
        "index": pa.array(start + frame),
        "task_index": pa.array(np.full(length, number % tasks)),
    }
    if images:
        cells = [{"bytes": _png(image(number, t)), "path": f"frame-{t:06d}.png"} for t in frame]
        columns["observation.images.still"] = pa.array(cells)
    return pa.table(columns)


def _png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="png")
    return buffer.getvalue()


def _min(column: pa.ChunkedArray) -> list[float]:
    return np.array(column.to_pylist()).min(axis=0).tolist()


def _max(column: pa.ChunkedArray) -> list[float]:
    return np.array(column.to_pylist()).max(axis=0).tolist()


def stats_of(root: Path) -> dict:
    """The content of ``stats.json``."""
    return json.loads((root / layout.STATS).read_text())


def whole(root: Path) -> dict[str, np.ndarray]:
    """Every numeric feature over all frames, in order, by a plain way of reading."""
    source = EditSource(root)
    tables = pa.concat_tables([source.frames(index) for index in range(len(source))], promote_options="permissive")
    numeric = [k for k, entry in source.features.items() if entry["dtype"] in ("float32", "float64", "int64", "bool")]
    source.close()
    return {key: np.array(tables[key].to_pylist(), dtype=np.float64).reshape(len(tables), -1) for key in numeric}


__all__ = ["KEY", "SIZE", "foreign", "image", "stats_of", "video", "whole"]
