"""Camera frames to H.264 in MP4 and back, with PyAV alone.

Every second frame is a key frame and there are no B-frames, so that any frame decodes from at most one other: random
access is what training does. Each camera is encoded by its own thread with one encoder thread: PyAV releases the
interpreter lock, and the bytes do not depend on how many processors there are.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twinloop.core.documents import MOST_PIXELS, require_regular
from twinloop.core.errors import DatasetError, InputError
from twinloop.dataset.lerobot.statistics import pixel_histogram, sample_indices
from twinloop.dataset.spec import CameraSpec
from twinloop.dataset.storage.snapshot import writing_to

KEY_FRAME_EVERY = 2
# Measured on two busy cores, two 240×320 cameras of rendered-like frames (benchmarks/speed/writer.py), encoding alone,
# in steps/s and MB per 1000 steps: ultrafast 1300-1900 and 7.6, superfast 680-1070 and 7.6, veryfast 430-890 and 3.6,
# faster 410-750 and 3.0, all within 0.7 dB. Rendering needs the same cores, so speed counts more than size here.
# Formats that hold their own pictures, by the names of their demuxers in FFmpeg.
_FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi"
_OPTIONS = {"preset": "ultrafast", "crf": "23", "g": str(KEY_FRAME_EVERY), "bf": "0", "threads": "1"}

Frames = Mapping[str, NDArray[np.uint8]]


@dataclass(frozen=True, kw_only=True)
class FrameChunk:
    """Consecutive frames of one episode: those from ``start`` on, of ``length`` that it has in all."""

    frames: Frames
    start: int
    length: int


@dataclass(frozen=True, kw_only=True)
class EncodedEpisode:
    """One episode within an encoded file: its frames, and the pixel histogram ``(3, 256)`` of ``sampled`` of them."""

    frames: int
    sampled: int
    histogram: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class EncodedVideo:
    """One camera's file for one block, and the episodes in it, in order."""

    path: Path
    episodes: tuple[EncodedEpisode, ...]


def encode_block(
    episodes: Iterable[Frames], cameras: Sequence[CameraSpec], paths: Mapping[str, Path], *, fps: int
) -> dict[str, EncodedVideo]:
    """Encode the episodes of one block, one file per camera.

    Args:
        episodes: per episode, in order, a uint8 RGB array ``(T, height, width, 3)`` by camera name; consumed
            lazily, at most two episodes are held beside the one being encoded.
        cameras: the cameras to expect; each episode must have exactly these.
        paths: the file to write, by camera name; missing folders are made.
        fps: frames per second.

    Raises:
        InputError: an episode lacks a camera or has frames of another size or type.
        DatasetError: the disk is full, or a file cannot be written; names the file. It crosses process borders.
        Exception: whatever else an encoder raised, unchanged.
    """
    return encode_pieces(_whole(episodes), cameras, paths, fps=fps)


def _whole(episodes: Iterable[Frames]) -> Iterator[FrameChunk]:
    for frames in episodes:
        length = max((len(array) for array in frames.values()), default=0)
        yield FrameChunk(frames=frames, start=0, length=length)


def encode_pieces(
    pieces: Iterable[FrameChunk], cameras: Sequence[CameraSpec], paths: Mapping[str, Path], *, fps: int
) -> dict[str, EncodedVideo]:
    """Encode the episodes of one block that come in pieces, so that none need be held whole; see `encode_block`."""
    for path in paths.values():
        with writing_to(path):
            path.parent.mkdir(parents=True, exist_ok=True)
    workers = {camera.name: _CameraThread(camera, paths[camera.name], fps) for camera in cameras}
    number = -1
    try:
        for piece in pieces:
            number += piece.start == 0
            _check(piece.frames, cameras, number)
            for camera in cameras:
                workers[camera.name].put(_CameraChunk(piece.frames[camera.name], piece.start, piece.length))
    finally:
        for worker in workers.values():
            worker.stop()
    return {name: worker.result() for name, worker in workers.items()}


def _check(frames: Frames, cameras: Sequence[CameraSpec], number: int) -> None:
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
    """One camera's frames of a piece."""

    frames: NDArray[np.uint8]
    start: int
    length: int


class _CameraThread:
    """Encodes one camera's episodes behind a queue of one; its exception comes back to whoever feeds it."""

    def __init__(self, camera: CameraSpec, path: Path, fps: int) -> None:
        self._camera, self._path, self._fps = camera, path, fps
        self._queue: queue.Queue[_CameraChunk | None] = queue.Queue(maxsize=1)
        self._episodes: list[EncodedEpisode] = []
        self._error: BaseException | None = None
        self._ended = False  # whether the feeder's last word was taken
        self._thread = threading.Thread(target=self._run, name=f"encode-{camera.name}", daemon=True)
        self._thread.start()

    def put(self, part: _CameraChunk) -> None:
        """Hand some frames over; raises what the encoder raised."""
        if self._error is not None:
            raise self._error
        self._queue.put(part)

    def stop(self) -> None:
        """Encode what was handed over, close the file and wait."""
        self._queue.put(None)
        self._thread.join()

    def result(self) -> EncodedVideo:
        """What was written, once stopped; raises what the encoder raised."""
        if self._error is not None:
            raise self._error
        return EncodedVideo(path=self._path, episodes=tuple(self._episodes))

    def _run(self) -> None:
        try:
            with writing_to(self._path):
                self._encode()
        except BaseException as error:  # noqa: BLE001 - carried to the feeding thread, which raises it
            self._error = error
            self._drain()

    def _drain(self) -> None:
        """Take what is still handed over, so that the feeder never waits for a dead encoder."""
        while self._next() is not None:
            pass

    def _next(self) -> _CameraChunk | None:
        """The next frames, or None for good once the feeder has stopped."""
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
    """One MP4 file being written."""

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
        """Append frames; the first frame of an episode is a key frame."""
        for i, pixels in enumerate(frames):
            frame = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            frame.pts, frame.time_base = self._count, self._time_base
            if first and i == 0:
                frame.pict_type = self._av.video.frame.PictureType.I
            self._container.mux(self._stream.encode(frame))
            self._count += 1


def decode(path: Path, times_s: Sequence[float], *, tolerance_s: float = 1e-3) -> NDArray[np.uint8]:
    """Frames ``(n, height, width, 3)`` of a video file at ascending times in seconds.

    Raises:
        DatasetError: the file cannot be read, or has no frame within ``tolerance_s`` of a wanted time.
    """
    if list(times_s) != sorted(times_s):
        raise InputError("Video frames are decoded in order: give ascending times.")
    found: list[NDArray[np.uint8]] = []
    for time_s, pixels in frames_from(path, times_s[0] if times_s else 0.0):
        while len(found) < len(times_s) and abs(times_s[len(found)] - time_s) <= tolerance_s:
            found.append(pixels.to_ndarray(format="rgb24"))
        if len(found) == len(times_s):
            return np.stack(found) if found else np.empty((0, 0, 0, 3), dtype=np.uint8)
        if time_s > times_s[len(found)] + tolerance_s:
            break
    raise DatasetError(f"{path} has no frame at {times_s[len(found)]:.4f} s (tolerance {tolerance_s} s).")


def require_frames(path: Path, start_s: float, fps: float, frames: int) -> None:
    """Refuse a video that lacks frames of an episode, without decoding it.

    Args:
        path: of the file.
        start_s: time of the episode's first frame in it.
        fps: frames per second.
        frames: of the episode.

    Raises:
        DatasetError: the file cannot be read, or has no whole frame at the time of one of these; names it.
    """
    if not path.is_file():
        raise DatasetError(f"{path} is missing: the dataset's metadata names it. Restore the file.")
    about = path.stat()
    times = _frame_times(path, about.st_size, about.st_mtime_ns)
    wanted = start_s + np.arange(frames) / fps
    after = np.searchsorted(times, wanted).clip(1, max(len(times) - 1, 1))
    near = np.minimum(abs(times[after - 1] - wanted), abs(times[after.clip(0, len(times) - 1)] - wanted))
    lacking = np.flatnonzero(near > 0.25 / fps)
    if len(lacking):
        raise DatasetError(
            f"{path} lacks {len(lacking)} of {frames} frames, the first at {wanted[lacking[0]]:.4f} s. It was cut off, "
            "or the episode table is of another file. Copy or export it again."
        )


@functools.lru_cache(maxsize=32)
def _frame_times(path: Path, _size: int, _changed_ns: int) -> NDArray[np.float64]:
    """Return the times of a video's whole packets, sorted; one packet is one frame."""
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
        raise DatasetError(f"{path} has no frames that can be read. Write it again or restore it.")
    return np.sort(times)


def open_video(path: Path) -> Any:
    """Open a video file, and nothing that it names: a playlist called ``.mp4`` could name any file or address.

    Raises:
        DatasetError: it is no regular file, or its pictures have more than `MOST_PIXELS`.
        av.error.FFmpegError: it is no video in a format that holds its own pictures.
    """
    import av

    try:
        require_regular(path)
    except InputError as error:
        raise DatasetError(f"{path} cannot be read as a video: {error}") from error
    container = av.open(f"file:{path}", options={"format_whitelist": _FORMATS, "protocol_whitelist": "file"})
    for stream in container.streams.video:
        if stream.codec_context.width * stream.codec_context.height > MOST_PIXELS:
            container.close()
            raise DatasetError(f"{path} has pictures of more than {MOST_PIXELS:,} pixels. They are not read.")
    return container


def frames_from(path: Path, start_s: float) -> Iterator[tuple[float, Any]]:
    """Times and frames of a file from the key frame before ``start_s`` on."""
    import av

    try:
        with open_video(path) as container:
            stream = container.streams.video[0]
            base = stream.time_base or Fraction(1, 1)
            container.seek(max(int((start_s + 1e-6) / base), 0), stream=stream, backward=True)
            for frame in container.decode(stream):
                yield float((frame.pts or 0) * base), frame
    except (av.error.FFmpegError, IndexError) as error:
        raise DatasetError(f"{path} cannot be read as a video ({error}). Write it again or restore it.") from error
