"""Frames of an exported MCAP file, named as the dataset that it was made from names them."""

from __future__ import annotations

import base64
import functools
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.documents import parse_json
from twinloop.core.errors import DatasetError, MissingDependencyError
from twinloop.dataset.exporters.mcap_entries import CAMERA, DATASET
from twinloop.dataset.exporters.streams import PICTURES

UNIT_MAP, FEATURES, METADATA = "unit_map.json", "features.json", "twinloop"
_DECODERS = {"h264": "h264", "h265": "hevc", "av1": "libdav1d"}  # FFmpeg's own av1 asks for hardware


@dataclass(frozen=True, kw_only=True)
class _Span:
    """One episode's place in a file."""

    path: Path
    first: int
    end: int
    frames: int


class PlayedMcap:
    """The MCAP files that `export` wrote, open for comparing; see `Played`."""

    def __init__(self, path: Path) -> None:
        files = sorted(path.glob("*.mcap")) if path.is_dir() else [path]
        self._spans = [span for file in files for span in _spans(file)]
        if not self._spans:
            raise DatasetError(f"{path} holds no episode that twinloop exported as MCAP.")
        self._features = _features(files[0])

    @property
    def lengths(self) -> Sequence[int]:
        """Frames of each episode."""
        return [span.frames for span in self._spans]

    @property
    def cameras(self) -> Sequence[str]:
        """Feature keys of the pictures that are there."""
        keys = [key for key, entry in self._features.items() if entry["dtype"] in ("video", "image")]
        return [key for key in keys if self._messages(0, CAMERA + key.removeprefix(PICTURES))]

    def numbers(self, episode: int, frame: int) -> Mapping[str, NDArray[Any]]:
        """Every numeric feature of one frame."""
        found: dict[str, NDArray[Any]] = {}
        for key, entry in self._features.items():
            if rows := self._messages(episode, DATASET + key):
                values = [
                    np.nan if value is None else value for name, value in rows[frame].items() if name != "timestamp"
                ]
                found[key] = np.array(values, dtype=np.float64).astype(entry["dtype"])
        return found

    def picture(self, episode: int, camera: str, frame: int) -> NDArray[np.uint8]:
        """One picture."""
        return self._pictures(episode, camera)[frame]

    @functools.lru_cache(maxsize=64)  # noqa: B019 - the object lives as long as a comparison
    def _messages(self, episode: int, topic: str) -> list[dict[str, Any]]:
        span = self._spans[episode]
        with span.path.open("rb") as file:
            found = [message for _, _, message in _reader(file).iter_messages(topics=[topic])]
        return [
            parse_json(message.data, where=f"a message of {topic}")
            for message in found
            if span.first <= message.log_time < span.end
        ]

    @functools.lru_cache(maxsize=1)  # noqa: B019
    def _pictures(self, episode: int, camera: str) -> list[NDArray[np.uint8]]:
        rows = self._messages(episode, CAMERA + camera.removeprefix(PICTURES))
        data, form = [base64.b64decode(row["data"]) for row in rows], rows[0]["format"]
        if form not in _DECODERS:
            from PIL import Image

            return [np.asarray(Image.open(io.BytesIO(part)).convert("RGB")) for part in data]
        return decoded(data, _DECODERS[form])


def decoded(samples: Sequence[bytes], codec: str) -> list[NDArray[np.uint8]]:
    """The pictures of samples, by nothing but what stands in them.

    Raises:
        DatasetError: they cannot be decoded.
    """
    import av

    decoder: Any = av.CodecContext.create(codec, "r")
    try:
        frames = [frame for sample in samples for frame in decoder.decode(av.Packet(sample))]
        frames += decoder.decode(None)
    except av.error.FFmpegError as error:
        raise DatasetError(f"Pictures coded as {codec} cannot be decoded out of their samples ({error}).") from error
    return [frame.to_ndarray(format="rgb24") for frame in frames]


def play(path: Path) -> PlayedMcap:
    """Open exported files.

    Raises:
        DatasetError: there is none that twinloop wrote.
        MissingDependencyError: mcap is not installed.
    """
    return PlayedMcap(path)


def _reader(file: Any) -> Any:
    try:
        from mcap.reader import make_reader  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(
            "MCAP files are read by the package mcap, which is not installed.", remedy="pip install 'twinloop[mcap]'"
        ) from error
    return make_reader(file)


def _spans(path: Path) -> list[_Span]:
    with path.open("rb") as file:
        rows = [record.metadata for record in _reader(file).iter_metadata() if record.name == METADATA]
    rows.sort(key=lambda row: int(row["first_ns"]))
    starts = [int(row["first_ns"]) for row in rows]
    ends = [*starts[1:], 1 << 62]
    return [
        _Span(path=path, first=start, end=end, frames=int(row["frames"]))
        for row, start, end in zip(rows, starts, ends, strict=True)
    ]


def _features(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        for attachment in _reader(file).iter_attachments():
            if attachment.name == FEATURES:
                return parse_json(attachment.data, where=f"{path}: {FEATURES}")["features"]
    raise DatasetError(f"{path} was not exported by twinloop: it has no {FEATURES}.")
