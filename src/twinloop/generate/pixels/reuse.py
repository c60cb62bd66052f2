"""Reuse existing images: copy videos of a dataset without encoding, and cache the frames of a slow renderer."""

from __future__ import annotations

import hashlib
import io
import shutil
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.core.errors import DatasetError
from twinloop.core.files import sha256_json, write_bytes
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.lerobot.statistics import pixel_histogram, sample_indices
from twinloop.dataset.media.video import EncodedEpisode, EncodedVideo, open_video
from twinloop.dataset.spec import CameraSpec
from twinloop.generate.readings import SAMPLES
from twinloop.render import ChannelArrays, Fields, Renderer, SceneStates


class CachingRenderer(Renderer):
    """Renderer that stores every frame in a folder, and reads existing frames from there.

    The file name of a frame is a hash of its inputs: state, randomized fields of the MuJoCo model, channels (color,
    depth, …), cameras, size and ``context``. Frames are stored without loss, bit for bit.

    Args:
        inner: the renderer that computes missing frames.
        model: MuJoCo model of the scene.
        folder: folder of the frames.
        context: values that identify the model, the renderer and its settings.
    """

    def __init__(self, inner: Renderer, model: mujoco.MjModel, folder: Path, context: Mapping[str, Any]) -> None:
        self._inner, self._model, self._folder = inner, model, folder
        self.name, self.cameras, self.channels = inner.name, inner.cameras, inner.channels
        self.height, self.width = inner.height, inner.width
        self._context = sha256_json([dict(context), list(inner.cameras), inner.height, inner.width])

    def observe(
        self, states: SceneStates, fields: Fields | None = None, *, channels: Sequence[str] = ("rgb",)
    ) -> ChannelArrays:
        """Render images frame by frame, or read cached frames; see `Renderer.observe`."""
        frames = [self._frame(states, fields or {}, i, channels) for i in range(len(states))]
        return {
            camera: {name: np.concatenate([frame[camera, name] for frame in frames]) for name in channels}
            for camera in self.cameras
        }

    def _frame(
        self, states: SceneStates, fields: Fields, row: int, channels: Sequence[str]
    ) -> dict[tuple[str, str], NDArray]:
        state = states.take([row])
        own = {name: value[row] if self._is_per_frame(name, value) else value for name, value in fields.items()}
        path = self._folder / f"{self._key(state, own, channels)}.npz"
        if path.is_file():
            with np.load(path) as stored:
                return {(camera, name): stored[f"{camera}:{name}"] for camera in self.cameras for name in channels}
        seen = self._inner.observe(state, own, channels=channels)
        made = {(camera, name): seen[camera][name] for camera in self.cameras for name in channels}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **{f"{camera}:{name}": array for (camera, name), array in made.items()})  # pyright: ignore[reportArgumentType]
        write_bytes(path, buffer.getvalue())
        return made

    def _is_per_frame(self, name: str, value: NDArray) -> bool:
        return np.ndim(value) > np.ndim(getattr(self._model, name))

    def _key(self, state: SceneStates, fields: Fields, channels: Sequence[str]) -> str:
        digest = hashlib.sha256(f"{self._context} {','.join(channels)}".encode())
        arrays = {"qpos": state.qpos, "mocap_pos": state.mocap_pos, "mocap_quat": state.mocap_quat, **fields}
        for name, array in sorted(arrays.items()):
            if array is not None:
                plain = np.ascontiguousarray(array)
                digest.update(f"{name} {plain.dtype.str} {plain.shape}".encode() + plain.tobytes())
        return digest.hexdigest()

    def close(self) -> None:
        """Close the inner renderer."""
        self._inner.close()


def copy_videos(
    reader: DatasetReader, indices: Sequence[int], cameras: Sequence[CameraSpec], folder: Path
) -> dict[str, EncodedVideo]:
    """Write one video file per camera with the stored frames of some episodes, in order, without encoding them again.

    If the episodes are exactly those of one file, the file is copied; otherwise their encoded frames are copied. Image
    statistics are computed from the stored frames.

    Args:
        reader: reader of the dataset.
        indices: indices of the episodes.
        cameras: cameras to copy.
        folder: folder of the new files.

    Raises:
        DatasetError: If a file is missing or damaged, or the episodes are encoded differently and do not fit into one
            file.
    """
    return {camera.name: _copy_video(reader, indices, camera, folder / f"{camera.name}.mp4") for camera in cameras}


def copy_samples(reader: DatasetReader, index: int) -> dict[str, pa.Table]:
    """Read all samples of an episode's inertial, force and servo sensors, to copy them into the rendered dataset.

    Returns:
        One table per sensor, by the name of the table.

    Raises:
        DatasetError: If a file is damaged.
    """
    names = [name for name in reader.side_tables if name.startswith(SAMPLES)]
    return {name: reader.side_rows(name, index).drop_columns(["episode_index"]) for name in names}


def _copy_video(reader: DatasetReader, indices: Sequence[int], camera: CameraSpec, path: Path) -> EncodedVideo:
    places = [_find_location(reader, index, camera) for index in indices]
    path.parent.mkdir(parents=True, exist_ok=True)
    if len({file for file, _, _ in places}) == 1 and _is_whole_file(reader, indices, camera):
        shutil.copyfile(places[0][0], path)
    else:
        _remux(places, path, fps=round(reader.fps))
    return EncodedVideo(path=path, episodes=tuple(_statistics(reader, index, camera) for index in indices))


def _find_location(reader: DatasetReader, index: int, camera: CameraSpec) -> tuple[Path, int, int]:
    """Return the video file of an episode, the index of its first frame in the file, and its number of frames."""
    row = reader.row(index)
    where = {key: row[f"videos/{camera.key}/{key}"] for key in ("chunk_index", "file_index")}
    path = layout.resolve_inside(reader.path, reader.info["video_path"], {**where, "video_key": camera.key})
    return path, round(row[f"videos/{camera.key}/from_timestamp"] * reader.fps), int(row["length"])


def _is_whole_file(reader: DatasetReader, indices: Sequence[int], camera: CameraSpec) -> bool:
    """Return whether a video file contains exactly these episodes, so that it can be copied as a whole."""
    first, last = indices[0], indices[-1]
    around = [index for index in (first - 1, last + 1) if 0 <= index < len(reader)]
    file = _find_location(reader, first, camera)[0]
    return list(indices) == list(range(first, last + 1)) and all(
        reader.is_appended(index) or _find_location(reader, index, camera)[0] != file for index in around
    )


def _statistics(reader: DatasetReader, index: int, camera: CameraSpec) -> EncodedEpisode:
    length = int(reader.lengths[index])
    chosen = sample_indices(length)
    histogram = pixel_histogram(reader.images(index, camera.name, [int(frame) for frame in chosen]))
    return EncodedEpisode(frames=length, sampled=len(chosen), histogram=histogram)


def _remux(places: Sequence[tuple[Path, int, int]], path: Path, *, fps: int) -> None:
    """Copy the encoded frames of episodes into one video file; every episode begins with a key frame.

    Args:
        places: file, first frame and number of frames of each episode.
        path: the new file.
        fps: frames per second.

    Raises:
        DatasetError: If the episodes are encoded differently, or frames are missing.
    """
    import av

    base, count, header = Fraction(1, fps), 0, None
    with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as output:
        stream: Any = None
        for file, start, length in places:
            with open_video(file) as source:
                template = source.streams.video[0]
                if stream is None:
                    stream, header = output.add_stream_from_template(template), template.codec_context.extradata
                    stream.time_base = base
                if template.codec_context.extradata != header:
                    raise DatasetError(
                        f"{file} has another encoding than {places[0][0]}, so their frames do not fit into one file. "
                        "Render this camera again too."
                    )
                for packet in _select_packets(source, template, start, length, fps):
                    packet.stream, packet.time_base = stream, base
                    packet.pts = packet.dts = count
                    packet.duration = 1
                    output.mux(packet)
                    count += 1
    expected = int(np.sum([length for _, _, length in places]))
    if count != expected:
        raise DatasetError(
            f"{path}: {count} frames were copied instead of {expected}, because a source file is damaged."
        )


def _select_packets(source: Any, stream: Any, start: int, length: int, fps: int) -> Iterator[Any]:
    """Yield the video packets of ``length`` frames, from frame ``start`` on.

    Args:
        source: open PyAV container.
        stream: its video stream.
        start: index of the first frame.
        length: number of frames.
        fps: frames per second.
    """
    source.seek(max(round(Fraction(start, fps) / stream.time_base), 0), stream=stream, backward=True)
    for packet in source.demux(stream):
        if packet.pts is None:
            return
        frame = round(packet.pts * stream.time_base * fps)
        if frame >= start + length:
            return
        if frame >= start:
            yield packet
