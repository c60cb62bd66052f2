"""Open the images of a LeRobot dataset (v2.1 or v3.0, stored as video or in an image column) or of an image folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from twinloop.core.documents import read_json
from twinloop.core.errors import InputError
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.parquet import read_table
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.media.images import (
    EpisodeImages,
    Images,
    ImageSet,
    choose_camera,
    decode_image,
    open_image_folder,
    stack_images,
)
from twinloop.dataset.media.video import decode, open_video

_PREFIX = "observation.images."
_KINDS = ("video", "image")
_TOLERANCE = 0.25  # of a frame's period, as `DatasetReader.images`


def open_images(path: Path | str, camera: str | None = None) -> ImageSet:
    """Open the images of one camera of a LeRobot dataset, or of a folder with one subfolder or array per episode.

    Args:
        path: The folder.
        camera: NAME in ``observation.images.NAME``; None if there is only one camera.

    Raises:
        InputError: If the folder does not exist or has no images.
        UnknownNameError: If the dataset has no such camera.
        DatasetError: If the dataset is damaged.
    """
    path = Path(path)
    if not path.is_dir():
        raise InputError(f"{path} is not a folder. Give a LeRobot dataset, or a folder with images of each episode.")
    if not (path / layout.INFO).is_file():
        return open_image_folder(path)
    info = read_json(path / layout.INFO)
    features = {
        key.removeprefix(_PREFIX): entry
        for key, entry in info.get("features", {}).items()
        if key.startswith(_PREFIX) and entry.get("dtype") in _KINDS
    }
    name = choose_camera(camera, list(features), where=str(path))
    video = features[name]["dtype"] == "video"
    if str(info.get("codebase_version", "")).startswith("v2"):
        return _open_v21(path, info, name, video=video)
    reader = DatasetReader(path)
    rows = [
        EpisodeImages(name=f"episode {index}", frames=int(length), read=_image_reader(reader, index, name, video=video))
        for index, length in enumerate(reader.lengths)
        if length
    ]
    return ImageSet(name=str(path), camera=name, episodes=tuple(rows), described=len(reader))


def _image_reader(reader: DatasetReader, index: int, camera: str, *, video: bool) -> Callable[[Sequence[int]], Images]:
    if video:
        return lambda rows: reader.images(index, camera, rows)
    key = _PREFIX + camera
    where = f"{reader.path}: {key} of episode {index}"
    return lambda rows: decode_cells(reader.frames_table(index, [key])[key].take(list(rows)).to_pylist(), where=where)


def _open_v21(path: Path, info: dict[str, Any], camera: str, *, video: bool) -> ImageSet:
    """Open a LeRobot dataset of version 2.1; episodes that have no files are omitted.

    Args:
        path: Folder of the dataset.
        info: Content of its ``info.json``.
        camera: Name of the camera.
        video: True if the images are stored as video, False if in a table column.
    """
    key, rows = _PREFIX + camera, []
    for index in range(int(info["total_episodes"])):
        values = {"episode_chunk": index // info.get("chunks_size", 1000), "episode_index": index, "video_key": key}
        table = layout.resolve_inside(path, info["data_path"], values)
        if video:
            file = layout.resolve_inside(path, info["video_path"], values)
            frames = _count_frames(file) if file.is_file() else 0
            read = _video_reader(file, float(info["fps"]))
        else:
            frames = read_table(table, ["frame_index"]).num_rows if table.is_file() else 0
            read = _table_reader(table, key)
        if frames:
            rows.append(EpisodeImages(name=f"episode {index}", frames=frames, read=read))
    if not rows:
        raise InputError(f"{path} has no images of {camera}: none of the files that its metadata names exists.")
    return ImageSet(name=str(path), camera=camera, episodes=tuple(rows), described=int(info["total_episodes"]))


def _count_frames(file: Path) -> int:
    """Return the number of images in a video file; they are counted if the file's header does not give it."""
    with open_video(file) as container:
        stream = container.streams.video[0]
        return stream.frames or sum(packet.size > 0 for packet in container.demux(stream))


def _video_reader(file: Path, fps: float) -> Callable[[Sequence[int]], Images]:
    return lambda rows: decode(file, [row / fps for row in rows], tolerance_s=_TOLERANCE / fps)


def _table_reader(file: Path, key: str) -> Callable[[Sequence[int]], Images]:
    return lambda rows: decode_cells(read_table(file, [key])[key].take(list(rows)).to_pylist(), where=f"{file}: {key}")


def decode_cells(cells: Sequence[dict[str, Any]], *, where: str) -> Images:
    """Decode the images of a table column in LeRobot's format: each cell is a record with the encoded ``bytes``.

    Raises:
        InputError: If a cell has no encoded bytes.
    """
    if any(not isinstance(cell, dict) or not cell.get("bytes") for cell in cells):
        raise InputError(f"{where} has cells without encoded bytes. Give a dataset whose table contains its images.")
    return stack_images([decode_image(cell["bytes"], where=where) for cell in cells], where=where)
