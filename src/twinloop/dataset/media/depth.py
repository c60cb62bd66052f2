"""Encode and decode depth as video, in LeRobot's format since 0.6: lossless HEVC of 12-bit codes.

A code q is from 0 to 4095. With m the smallest and M the largest depth and s a shift, all in m, the depth d in m is
``exp(log(m + s) + q / 4095 · log((M + s) / (m + s))) − s``, or ``m + q / 4095 · (M − m)`` if the coding is linear. The
values of m, M and s are in the feature's ``info`` (lerobot 0.6.1, ``datasets/depth_utils.py`` and
``configs/video.py``). A depth outside m to M gets the nearest code. LeRobot has no code for an unknown depth; like
LeRobot, which stores it as 0 mm, this module gives it the code 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import DatasetError
from twinloop.dataset.lerobot.statistics import level_stats
from twinloop.dataset.media.video import KEY_FRAME_EVERY, decode_frames

CODES = 4096
SUFFIX = "_depth"  # of the name of a depth feature, after the camera's name, as in LeRobot
PIXELS = "gray12le"  # pixel format of the codes
# One thread and closed groups without B-frames: the bytes do not depend on the machine, and any frame can be decoded
# after the key frame before it. Lossless, as in LeRobot.
_X265 = "lossless=1:bframes=0:open-gop=0:pools=none:frame-threads=1:log-level=error"
_MM = 1000.0


@dataclass(frozen=True, kw_only=True)
class DepthCoding:
    """Relation between depths and the codes in a video; the defaults are those of LeRobot.

    Attributes:
        low: Depth of code 0 in m.
        high: Depth of code 4095 in m.
        shift: Shift in m that is added before the logarithm.
        logarithmic: Whether codes are evenly spaced in the logarithm of depth plus shift; otherwise in depth.
    """

    low: float = 0.01
    high: float = 10.0
    shift: float = 3.5
    logarithmic: bool = True

    @classmethod
    def of(cls, feature: Mapping[str, Any], *, where: str) -> DepthCoding:
        """Read the coding of a depth feature in ``info.json``; missing values are LeRobot's defaults.

        Raises:
            DatasetError: If a value is not possible.
        """
        info, own = feature.get("info") or {}, cls()
        given = {"low": "depth_min", "high": "depth_max", "shift": "shift", "logarithmic": "use_log"}
        values = {name: info.get(f"video.{key}", getattr(own, name)) for name, key in given.items()}
        numbers = [values[name] for name in ("low", "high", "shift")]
        valid = all(isinstance(value, int | float) and np.isfinite(value) for value in numbers)
        if not valid or numbers[1] <= numbers[0] or (values["logarithmic"] and numbers[0] + numbers[2] <= 0):
            raise DatasetError(f"{where}: the depth range {numbers} of a depth feature is not possible. Correct it.")
        return cls(**values)

    def describe(self) -> dict[str, Any]:
        """Return the entries of the coding in a feature's ``info``."""
        return {
            "video.depth_min": self.low,
            "video.depth_max": self.high,
            "video.shift": self.shift,
            "video.use_log": self.logarithmic,
        }

    def encode(self, depth: ArrayLike) -> NDArray[np.uint16]:
        """Return the codes of depths in m, of the same shape; 0 for a depth that is not finite and positive."""
        metres = np.asarray(depth, dtype=np.float64)
        known = np.isfinite(metres) & (metres > 0)
        within = np.clip(np.where(known, metres, self.low), self.low, self.high)
        low, high = self._scale(np.array([self.low, self.high]))
        return np.rint((self._scale(within) - low) / (high - low) * (CODES - 1)).astype(np.uint16)

    def decode(self, codes: ArrayLike) -> NDArray[np.float32]:
        """Return the depths in m of codes, of the same shape."""
        low, high = self._scale(np.array([self.low, self.high]))
        value = low + np.asarray(codes, dtype=np.float64) / (CODES - 1) * (high - low)
        metres = np.exp(value) - self.shift if self.logarithmic else value
        return np.clip(metres, self.low, self.high).astype(np.float32)

    def _scale(self, depth: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.log(depth + self.shift) if self.logarithmic else depth


def is_depth(feature: Mapping[str, Any]) -> bool:
    """Return whether a feature of ``info.json`` is depth, by LeRobot's present or former mark."""
    info = feature.get("info") or feature.get("video_info") or {}
    return bool(info.get("is_depth_map") or info.get("video.is_depth_map"))


def depth_feature(height: int, width: int, fps: float, coding: DepthCoding) -> dict[str, Any]:
    """Return the entry of a depth feature in ``info.json``; its statistics are in mm.

    Args:
        height: Height of the images in px.
        width: Width of the images in px.
        fps: Frames per second.
        coding: Coding of the depths.
    """
    stream = {"codec": "hevc", "pix_fmt": PIXELS, "fps": fps, "channels": 1}
    encoder = {"g": KEY_FRAME_EVERY, "crf": None, "preset": None, "fast_decode": 0, "video_backend": "pyav"}
    size = {"height": height, "width": width}
    return {
        "dtype": "video",
        "shape": [height, width, 1],
        "names": ["height", "width", "channels"],
        "info": {
            "is_depth_map": True,
            "depth_unit": "mm",
            **{f"video.{name}": value for name, value in (size | stream | encoder).items()},
            "video.extra_options": {"x265-params": "lossless=1"},
            **coding.describe(),
            "has_audio": False,
        },
    }


def depth_stats(counts: NDArray[np.int64], frames: int, coding: DepthCoding) -> dict[str, list[Any]]:
    """Return LeRobot's statistics of a depth feature in mm, as nested lists of shape ``(1, 1, 1)``.

    Args:
        counts: Number of pixels by code, shape ``(4096,)``.
        frames: Number of sampled frames; stored as ``count``.
        coding: Coding of the depths.
    """
    row = level_stats(counts, coding.decode(np.arange(CODES)).astype(np.float64) * _MM)
    return {**{name: [[[value]]] for name, value in row.items()}, "count": [frames]}


def count_codes(codes: NDArray[np.uint16]) -> NDArray[np.int64]:
    """Count the pixels by code, shape ``(4096,)``."""
    return np.bincount(codes.reshape(-1), minlength=CODES).astype(np.int64)


class DepthEncoder:
    """Encoder of one MP4 file of depth codes, used as a context manager.

    Attributes:
        frames: Number of frames so far.

    Args:
        path: File to write.
        height: Height of the images in px.
        width: Width of the images in px.
        fps: Frames per second.
    """

    def __init__(self, path: Path, *, height: int, width: int, fps: Fraction) -> None:
        import av

        path.parent.mkdir(parents=True, exist_ok=True)
        self.frames, self._av, self._time_base = 0, av, 1 / fps
        self._container = av.open(str(path), "w", format="mp4", options={"movflags": "faststart"})
        options = {"g": str(KEY_FRAME_EVERY), "x265-params": _X265}
        self._stream: Any = self._container.add_stream("libx265", rate=fps, options=options)
        self._stream.width, self._stream.height, self._stream.pix_fmt = width, height, PIXELS
        self._stream.codec_context.time_base = self._time_base
        self._stream.codec_context.thread_count = 1

    def __enter__(self) -> DepthEncoder:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(complete=kind is None)

    def add(self, codes: NDArray[np.uint16]) -> None:
        """Append the images of one episode, ``(n, height, width)``; the first becomes a key frame."""
        types = self._av.video.frame.PictureType
        for number, image in enumerate(codes):
            frame = self._av.VideoFrame(image.shape[1], image.shape[0], PIXELS)
            plane = frame.planes[0]
            rows = np.zeros((image.shape[0], plane.line_size // 2), dtype="<u2")
            rows[:, : image.shape[1]] = image
            plane.update(rows.tobytes())
            frame.pts, frame.time_base = self.frames, self._time_base
            frame.pict_type = types.I if number == 0 else types.NONE
            self._container.mux(self._stream.encode(frame))
            self.frames += 1

    def close(self, *, complete: bool = True) -> None:
        """Close the file; a second call does nothing."""
        if complete:
            self._container.mux(self._stream.encode(None))
        self._container.close()


def decode_codes(path: Path, times_s: Sequence[float], *, tolerance_s: float = 1e-3) -> NDArray[np.uint16]:
    """Decode the 12-bit codes of a depth video at the given times, shape ``(n, height, width)``.

    Args:
        path: The video file.
        times_s: Times in seconds, in ascending order.
        tolerance_s: Largest difference between a frame's time and the requested time in seconds.

    Raises:
        DatasetError: If the file cannot be read, is not a video of 12-bit codes, or has no frame at a given time.
        InputError: If the times are not in ascending order.
    """
    return decode_frames(path, times_s, lambda frame: _read_codes(frame, path), tolerance_s=tolerance_s)


def reencode_codes(source: Path, start_s: float, length: int, target: Path, fps: Fraction) -> None:
    """Copy the codes of one episode into a new file without loss, so that every frame can be decoded separately.

    Args:
        source: Video file that contains the episode.
        start_s: Time in ``source`` at which the episode starts, in seconds.
        length: Number of frames of the episode.
        target: File to write.
        fps: Frames per second.

    Raises:
        DatasetError: If the source lacks a frame.
    """
    times = [start_s + float(frame / fps) for frame in range(length)]
    codes = decode_codes(source, times, tolerance_s=0.25 / float(fps))
    with DepthEncoder(target, height=codes.shape[1], width=codes.shape[2], fps=fps) as encoder:
        encoder.add(codes)


def _read_codes(frame: Any, path: Path) -> NDArray[np.uint16]:
    if frame.format.components[0].bits != 12:
        raise DatasetError(f"{path} has the pixel format {frame.format.name}; depth has 12 bits. Write it again.")
    plane = frame.planes[0]
    rows = np.frombuffer(plane, dtype="<u2").reshape(frame.height, plane.line_size // 2)
    return rows[:, : frame.width].astype(np.uint16)
