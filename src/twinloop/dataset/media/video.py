"""Encode camera frames as H.264 in MP4, and decode frames of a video file, with PyAV only.

Every second frame is a key frame and there are no B-frames, so any frame needs at most one other frame to be decoded.
This suits training, which reads frames in random order. Each camera is encoded by its own thread with one encoder
thread. PyAV releases Python's global interpreter lock, and the bytes do not depend on the number of processors.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twinloop.core.documents import MAX_PIXELS, require_regular
from twinloop.core.errors import DatasetError, InputError
from twinloop.dataset.lerobot.statistics import pixel_histogram, sample_indices
from twinloop.dataset.spec import ENCODER, CameraSpec
from twinloop.dataset.storage.snapshot import wrap_write_errors

KEY_FRAME_EVERY = int(ENCODER["g"])
# Self-contained formats, by the names of their demuxers in FFmpeg.
_FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi"
_OPTIONS = {"threads": "1", **{name: str(ENCODER[name]) for name in ("preset", "crf", "g")}}
_OPTIONS |= {name: str(value) for name, value in ENCODER["extra_options"].items()}

Frames = Mapping[str, NDArray[np.uint8]]


@dataclass(frozen=True, kw_only=True)
class FrameChunk:
    """Consecutive frames of one episode from all cameras.

    Attributes:
        frames: Images ``(n, height, width, 3)`` by camera name.
        start: Number of the first frame in the episode.
        length: Number of frames of the whole episode.
    """

    frames: Frames
    start: int
    length: int


@dataclass(frozen=True, kw_only=True)
class EncodedEpisode:
    """One episode in an encoded video file, with sums for image statistics.

    Attributes:
        frames: Number of frames.
        sampled: Number of frames from which ``histogram`` was computed.
        histogram: Number of pixels by colour channel and 8-bit value, shape ``(3, 256)``.
    """

    frames: int
    sampled: int
    histogram: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class EncodedVideo:
    """Encoded video file of one camera and one block of episodes.

    Attributes:
        path: Path of the file.
        episodes: Its episodes, in order.
    """

    path: Path
    episodes: tuple[EncodedEpisode, ...]


def encode_block(
    episodes: Iterable[Frames], cameras: Sequence[CameraSpec], paths: Mapping[str, Path], *, fps: int
) -> dict[str, EncodedVideo]:
    """Encode the episodes of one block, with one video file per camera.

    Args:
        episodes: Per episode, in order, a uint8 RGB array ``(T, height, width, 3)`` by camera name. They are read
            lazily; at most two episodes are in memory in addition to the one being encoded.
        cameras: The expected cameras; each episode must have exactly these cameras.
        paths: The file to write, by camera name; missing folders are created.
        fps: Frames per second.

    Returns:
        The written video by camera name.

    Raises:
        InputError: If an episode lacks a camera or has frames of another size or type.
        DatasetError: If the disk is full or a file cannot be written. The error can be pickled.
        Exception: Any other error of an encoder, unchanged.
    """
    return encode_pieces(_whole_episodes(episodes), cameras, paths, fps=fps)


def _whole_episodes(episodes: Iterable[Frames]) -> Iterator[FrameChunk]:
    for frames in episodes:
        length = max((len(array) for array in frames.values()), default=0)
        yield FrameChunk(frames=frames, start=0, length=length)


def encode_pieces(
    pieces: Iterable[FrameChunk], cameras: Sequence[CameraSpec], paths: Mapping[str, Path], *, fps: int
) -> dict[str, EncodedVideo]:
    """Encode the episodes of one block like `encode_block`, but from chunks of frames.

    Whole episodes are then never in memory. A block is a number of episodes with one video file per camera.

    Args:
        pieces: Chunks of consecutive frames, in order: all chunks of the first episode, then those of the next one.
        cameras: The expected cameras; each chunk must have exactly these cameras.
        paths: The file to write, by camera name; missing folders are created.
        fps: Frames per second.

    Returns:
        The written video by camera name.

    Raises:
        InputError: If a chunk lacks a camera or has frames of another size or type.
        DatasetError: If the disk is full or a file cannot be written.
        Exception: Any other error of an encoder, unchanged.
    """
    for path in paths.values():
        with wrap_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
    workers = {camera.name: _CameraThread(camera, paths[camera.name], fps) for camera in cameras}
    number = -1
    try:
        for piece in pieces:
            number += piece.start == 0
            _check_frames(piece.frames, cameras, number)
            for camera in cameras:
                workers[camera.name].put(_CameraChunk(piece.frames[camera.name], piece.start, piece.length))
    finally:
        for worker in workers.values():
            worker.stop()
    return {name: worker.result() for name, worker in workers.items()}


def _check_frames(frames: Frames, cameras: Sequence[CameraSpec], number: int) -> None:
    names = [camera.name for camera in cameras]
    if sorted(frames) != sorted(names):
        raise InputError(
            f"Episode {number} of the block has the cameras {', '.join(sorted(frames)) or 'none'}; "
            f"the dataset has {', '.join(names)}."
        )
    for camera in cameras:
        array = frames[camera.name]
        wanted = (camera.height, camera.width, 3)
        if array.dtype != np.uint8 or array.ndim != 4 or array.shape[1:] != wanted or not len(array):
            raise InputError(
                f"Camera {camera.name} of episode {number} of the block has {array.dtype} frames of shape "
                f"{array.shape}; expected uint8 (T, {camera.height}, {camera.width}, 3)."
            )


class _CameraChunk(NamedTuple):
    """Consecutive frames of one episode from one camera; see `FrameChunk`."""

    frames: NDArray[np.uint8]
    start: int
    length: int


class _CameraThread:
    """Thread that encodes one camera's frames from a queue; its exception is raised in the thread that adds frames."""

    def __init__(self, camera: CameraSpec, path: Path, fps: int) -> None:
        self._camera, self._path, self._fps = camera, path, fps
        self._queue: queue.Queue[_CameraChunk | None] = queue.Queue(maxsize=1)
        self._episodes: list[EncodedEpisode] = []
        self._error: BaseException | None = None
        self._ended = False  # whether the end marker was taken from the queue
        self._thread = threading.Thread(target=self._run, name=f"encode-{camera.name}", daemon=True)
        self._thread.start()

    def put(self, part: _CameraChunk) -> None:
        """Add frames to the queue; raises an earlier exception of the encoder."""
        if self._error is not None:
            raise self._error
        self._queue.put(part)

    def stop(self) -> None:
        """Wait until all queued frames are encoded and the file is closed."""
        self._queue.put(None)
        self._thread.join()

    def result(self) -> EncodedVideo:
        """Return the written video after `stop`; raises the encoder's exception, if any."""
        if self._error is not None:
            raise self._error
        return EncodedVideo(path=self._path, episodes=tuple(self._episodes))

    def _run(self) -> None:
        try:
            with wrap_write_errors(self._path):
                self._encode()
        except BaseException as error:  # noqa: BLE001 - carried to the feeding thread, which raises it
            self._error = error
            self._drain()

    def _drain(self) -> None:
        """Take all remaining frames from the queue, so that the caller does not wait for an encoder that failed."""
        while self._next() is not None:
            pass

    def _next(self) -> _CameraChunk | None:
        """Return the next frames from the queue; None after `stop`."""
        part = None if self._ended else self._queue.get()
        self._ended = part is None
        return part

    def _encode(self) -> None:
        histogram = np.zeros((3, 256), dtype=np.int64)
        with _Encoder(self._path, self._camera, self._fps) as encoder:
            while (part := self._next()) is not None:
                encoder.add(part.frames, first=part.start == 0)
                end, chosen = part.start + len(part.frames), sample_indices(part.length)
                here = chosen[(chosen >= part.start) & (chosen < end)] - part.start
                histogram = histogram + pixel_histogram(part.frames[here])
                if end == part.length:
                    self._episodes.append(EncodedEpisode(frames=end, sampled=len(chosen), histogram=histogram))
                    histogram = np.zeros_like(histogram)


class _Encoder:
    """Encoder of one MP4 file, used as a context manager."""

    def __init__(self, path: Path, camera: CameraSpec, fps: int) -> None:
        import av

        self._av = av
        self._time_base = Fraction(1, fps)
        self._container = av.open(str(path), "w", format="mp4", options={"movflags": "faststart"})
        self._stream: Any = self._container.add_stream("libx264", rate=fps, options=dict(_OPTIONS))
        self._stream.width, self._stream.height = camera.width, camera.height
        self._stream.pix_fmt = "yuv420p"
        self._stream.codec_context.time_base = self._time_base
        self._stream.codec_context.thread_count = 1
        self._count = 0

    def __enter__(self) -> _Encoder:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._container.mux(self._stream.encode(None))
        finally:
            self._container.close()

    def add(self, frames: NDArray[np.uint8], *, first: bool) -> None:
        """Append frames to the file.

        Args:
            frames: Images, shape ``(n, height, width, 3)``.
            first: True if they start an episode; the first frame then becomes a key frame.
        """
        for i, pixels in enumerate(frames):
            frame = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            frame.pts, frame.time_base = self._count, self._time_base
            if first and i == 0:
                frame.pict_type = self._av.video.frame.PictureType.I
            self._container.mux(self._stream.encode(frame))
            self._count += 1


def decode(path: Path, times_s: Sequence[float], *, tolerance_s: float = 1e-3) -> NDArray[np.uint8]:
    """Decode the frames of a video file at the given times.

    Args:
        path: The video file.
        times_s: Times in seconds, in ascending order.
        tolerance_s: Largest difference between a frame's time and the requested time in seconds.

    Returns:
        Images, shape ``(n, height, width, 3)``, 8-bit sRGB.

    Raises:
        DatasetError: If the file cannot be read, or has no frame at a given time.
        InputError: If the times are not in ascending order.
    """
    if not times_s:
        return np.empty((0, 0, 0, 3), dtype=np.uint8)
    return decode_frames(path, times_s, lambda frame: frame.to_ndarray(format="rgb24"), tolerance_s=tolerance_s)


def decode_frames(
    path: Path, times_s: Sequence[float], convert: Callable[[Any], NDArray[Any]], *, tolerance_s: float
) -> NDArray[Any]:
    """Decode the frames of a video file at one or more times, and stack them as arrays.

    Args:
        path: The video file.
        times_s: Times in seconds, in ascending order.
        convert: Function that converts a frame of PyAV to an array.
        tolerance_s: Largest difference between a frame's time and the requested time in seconds.

    Raises:
        DatasetError: If the file cannot be read, or has no frame at a given time.
        InputError: If the times are not in ascending order.
    """
    if list(times_s) != sorted(times_s):
        raise InputError("Video frames are decoded in order: give ascending times.")
    found: list[NDArray[Any]] = []
    for time_s, pixels in decode_from(path, times_s[0]):
        while len(found) < len(times_s) and abs(times_s[len(found)] - time_s) <= tolerance_s:
            found.append(convert(pixels))
        if len(found) == len(times_s):
            return np.stack(found)
        if time_s > times_s[len(found)] + tolerance_s:
            break
    raise DatasetError(f"{path} has no frame at {times_s[len(found)]:.4f} s (tolerance {tolerance_s} s).")


def require_frames(path: Path, start_s: float, fps: float, frames: int) -> None:
    """Check that a video file has all frames of an episode, without decoding it.

    Args:
        path: The video file.
        start_s: Time in the file at which the episode starts, in seconds.
        fps: Frames per second.
        frames: Number of frames of the episode.

    Raises:
        DatasetError: If the file cannot be read, or a frame is missing or incomplete.
    """
    if not path.is_file():
        raise DatasetError(f"{path} is missing, although the dataset's metadata names it. Restore the file.")
    about = path.stat()
    times = _frame_times(path, about.st_size, about.st_mtime_ns)
    wanted = start_s + np.arange(frames) / fps
    after = np.searchsorted(times, wanted).clip(1, max(len(times) - 1, 1))
    near = np.minimum(abs(times[after - 1] - wanted), abs(times[after.clip(0, len(times) - 1)] - wanted))
    lacking = np.flatnonzero(near > 0.25 / fps)
    if len(lacking):
        raise DatasetError(
            f"{path} lacks {len(lacking)} of {frames} frames, the first at {wanted[lacking[0]]:.4f} s. It was cut off, "
            "or the episode table belongs to another file. Copy or export it again."
        )


@functools.lru_cache(maxsize=32)
def _frame_times(path: Path, _size: int, _changed_ns: int) -> NDArray[np.float64]:
    """Return the sorted times in seconds of all complete frames in a video file.

    Args:
        path: The video file.
        _size: Size of the file; a change invalidates the cached result.
        _changed_ns: Time of its last change; a change invalidates the cached result.
    """
    import av

    times = list[float]()
    try:
        with open_video(path) as container:
            stream = container.streams.video[0]
            base = stream.time_base or Fraction(1, 1)
            for packet in container.demux(stream):
                if packet.pts is not None and packet.size and not packet.is_corrupt:
                    times.append(float(packet.pts * base))
    except (av.error.FFmpegError, IndexError) as error:
        raise DatasetError(f"{path} cannot be read as a video ({error}). Write it again or restore it.") from error
    if not times:
        raise DatasetError(f"{path} has no readable frames. Write it again or restore it.")
    return np.sort(times)


def open_video(path: Path) -> Any:
    """Open a video file with PyAV, but refuse formats that refer to other files or addresses, such as playlists.

    Raises:
        DatasetError: If it is not a regular file, or its frames have more than `MAX_PIXELS` pixels.
        av.error.FFmpegError: If it is not a video in a self-contained format.
    """
    import av

    try:
        require_regular(path)
    except InputError as error:
        raise DatasetError(f"{path} cannot be read as a video: {error}") from error
    container = av.open(f"file:{path}", options={"format_whitelist": _FORMATS, "protocol_whitelist": "file"})
    for stream in container.streams.video:
        if stream.codec_context.width * stream.codec_context.height > MAX_PIXELS:
            container.close()
            raise DatasetError(f"{path} has images of more than {MAX_PIXELS:,} pixels, the maximum. Make them smaller.")
    return container


def decode_from(path: Path, start_s: float) -> Iterator[tuple[float, Any]]:
    """Yield the time in seconds and the PyAV frame of each image in a video file.

    Args:
        path: The video file.
        start_s: Time in seconds; the first image is the last key frame before it. HEVC with open groups, as LeRobot
            writes depth, cannot decode the images next to that key frame, so it begins a second earlier.
    """
    import av

    try:
        with open_video(path) as container:
            stream = container.streams.video[0]
            base = stream.time_base or Fraction(1, 1)
            lead_s = 1.0 if stream.codec_context.name == "hevc" else 0.0
            container.seek(max(int((start_s - lead_s + 1e-6) / base), 0), stream=stream, backward=True)
            for frame in container.decode(stream):
                yield float((frame.pts or 0) * base), frame
    except (av.error.FFmpegError, IndexError) as error:
        raise DatasetError(f"{path} cannot be read as a video ({error}). Write it again or restore it.") from error
