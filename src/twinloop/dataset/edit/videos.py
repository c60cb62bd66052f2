"""Write the videos of an edited dataset: link whole files, copy packets, and re-encode only frames that need it."""

from __future__ import annotations

import collections
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np

from twinloop.core.errors import DatasetError, InputError
from twinloop.core.pool import count_cores
from twinloop.dataset.edit.rows import SourceEpisode
from twinloop.dataset.lerobot import layout
from twinloop.dataset.media.video_copy import (
    CODECS,
    PIXELS,
    CodecParameters,
    Encoding,
    PacketFile,
    PacketReader,
    transcode,
)
from twinloop.dataset.storage.snapshot import link_or_copy

_MOST_BYTES = 200_000_000  # of a file, as LeRobot's video_files_size_in_mb


@dataclass(frozen=True, kw_only=True)
class VideoLocation:
    """Location of an episode's images: number of the video file, and start time in this file in s."""

    file: int
    start_s: float


@dataclass(kw_only=True)
class CameraFiles:
    """Written video files of one camera.

    Attributes:
        key: Feature key of the camera.
        locations: Location of each episode's images, in the order of the episodes.
        coding: Codec parameters of the written files.
        linked: Number of episodes whose whole file was linked or copied.
        copied: Number of episodes whose packets were copied.
        encoded: Positions of the re-encoded episodes in the edited dataset.
        forced: Number of episodes that were re-encoded because their packets could not be copied.
        encoding: Settings for re-encoding.
    """

    key: str
    locations: list[VideoLocation] = field(default_factory=list)
    coding: CodecParameters | None = None
    linked: int = 0
    copied: int = 0
    encoded: list[int] = field(default_factory=list)  # positions of the re-encoded episodes
    forced: int = 0  # number of those whose packets could not be copied
    encoding: Encoding | None = None  # settings for re-encoding


@dataclass(frozen=True, kw_only=True)
class PixelEdits:
    """Settings for the videos of an edit.

    Attributes:
        encoding: Codec settings for frames that must be encoded. If None, the codec of the sources is used.
        reencode_all: Whether to re-encode all frames.
        link: Whether to hard-link whole files instead of copying them, if the file system supports it.
    """

    encoding: Encoding | None = None
    reencode_all: bool = False
    link: bool = True


def write_camera(
    stage: Path, key: str, items: Sequence[SourceEpisode], pixels: PixelEdits, fps: Fraction
) -> CameraFiles:
    """Write the video files of one camera to the temporary folder ``stage``.

    Args:
        key: Feature key of the camera.
        items: All episodes of the edited dataset, in order.
        pixels: Settings for videos.
        fps: Frame rate in Hz.

    Raises:
        InputError: If the sources have several codecs and no codec was selected. The message lists them.
        DatasetError: If a source file is damaged or has too few frames.
    """
    work = _CameraWriter(stage, key, items, pixels, fps)
    try:
        work.write()
    finally:
        work.close()
    return work.result


def read_codings(key: str, items: Sequence[SourceEpisode]) -> dict[Path, CodecParameters]:
    """Return the codec parameters of each video file that the episodes use, for the video feature ``key``."""
    found: dict[Path, CodecParameters] = {}
    for item in items:
        path = item.source.video_path(key, int(item.source.video_files(key)[item.index]))
        if path not in found:
            reader = PacketReader(path)
            found[path] = reader.coding
            reader.close()
    return found


class _CameraWriter:
    """Writer of one camera's video files; keeps the current output file and the last source file open."""

    def __init__(
        self, stage: Path, key: str, items: Sequence[SourceEpisode], pixels: PixelEdits, fps: Fraction
    ) -> None:
        self._stage, self._items, self._pixels, self._fps = stage, items, pixels, fps
        self._codings = read_codings(key, items)
        self.result = CameraFiles(key=key)
        self._encoding = self.result.encoding = self._choose_encoding(key)
        self._out: PacketFile | None = None
        self._reader: PacketReader | None = None
        self._number = 0
        self._scratch = tempfile.TemporaryDirectory(prefix="twinloop-edit-")
        self._pool = ThreadPoolExecutor(max_workers=count_cores())

    def write(self) -> None:
        made = self._encode_ahead()
        at = 0
        while at < len(self._items):
            if self._needs_encoding(at):
                self._add_encoded(at, next(made).result())
                self.result.encoded.append(at)
            elif count := self._count_whole_file(at):
                self._link(at, count)
                at += count
                continue
            else:
                self._copy_packets(at)
            at += 1
        self._finish()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._out is not None:
            self._out.close()
        if self._reader is not None:
            self._reader.close()
        self._scratch.cleanup()

    def _choose_encoding(self, key: str) -> Encoding:
        """Return the settings for re-encoding: those of the caller, else settings with the codec of the sources.

        Raises:
            InputError: If the sources have several codecs and the caller selected none.
        """
        if self._pixels.encoding is not None:
            return self._pixels.encoding
        kinds = {(coding.codec, coding.pix_fmt) for coding in self._codings.values()}
        if len(kinds) > 1:
            lines = [
                f"  {path}: {coding.codec} {coding.pix_fmt}" for path, coding in self._find_example_files().items()
            ]
            raise InputError(
                f"{key} has several codecs, but a dataset has one:\n" + "\n".join(lines) + "\nSelect one with "
                f"--codec, such as --codec {self._most_used_codec()}; the others are then re-encoded."
            )
        codec = next(iter(kinds))[0]
        return Encoding(codec=codec if codec in CODECS else "h264")

    def _find_example_files(self) -> dict[Path, CodecParameters]:
        seen: dict[tuple[str, str], Path] = {}
        for path, coding in self._codings.items():
            seen.setdefault((coding.codec, coding.pix_fmt), path)
        return {path: self._codings[path] for path in seen.values()}

    def _most_used_codec(self) -> str:
        counts = collections.Counter[str]()
        for i, item in enumerate(self._items):
            counts[self._codings[self._path(i)].codec] += item.length
        return next((codec for codec, _ in counts.most_common() if codec in CODECS), "h264")

    def _path(self, at: int) -> Path:
        item, key = self._items[at], self.result.key
        return item.source.video_path(key, int(item.source.video_files(key)[item.index]))

    def _start_time(self, at: int) -> float:
        item = self._items[at]
        return float(item.source.video_starts(self.result.key)[item.index])

    def _needs_encoding(self, at: int) -> bool:
        """Return whether the settings require that episode ``at`` is re-encoded.

        False does not mean that packets can be copied; see `_copy_packets`.
        """
        coding = self._codings[self._path(at)]
        wanted = self._pixels.encoding
        if wanted is None or self._pixels.reencode_all:
            return self._pixels.reencode_all
        several = len({one.pix_fmt for one in self._codings.values()}) > 1
        return coding.codec != wanted.codec or (several and coding.pix_fmt != PIXELS)

    def _encode_ahead(self) -> Iterator[Future[Path]]:
        """Yield the re-encoded file of each episode that needs encoding, in order.

        Later episodes are encoded in parallel.
        """
        ahead = collections.deque[Future[Path]]()
        for at in range(len(self._items)):
            if self._needs_encoding(at):
                ahead.append(self._pool.submit(self._encode, at))
                if len(ahead) > 2 * count_cores():
                    yield ahead.popleft()
        while ahead:
            yield ahead.popleft()

    def _encode(self, at: int) -> Path:
        target = Path(self._scratch.name) / f"{at}.mp4"
        transcode(self._path(at), self._start_time(at), self._items[at].length, target, self._encoding, self._fps)
        return target

    def _count_whole_file(self, at: int) -> int:
        """Return the number of episodes in a video file of a source if the file can be used as a whole, else 0.

        It can be used as a whole if the next episodes of the edited dataset are exactly those in the file, in the same
        order.

        Args:
            at: Position of the next episode in the edited dataset; the file is the one that contains this episode.
        """
        item, key = self._items[at], self.result.key
        files = item.source.video_files(key)
        members = np.flatnonzero(files == files[item.index])
        run = self._items[at : at + len(members)]
        same = all(one.source is item.source for one in run)
        return len(members) if same and [one.index for one in run] == members.tolist() else 0

    def _link(self, at: int, count: int) -> None:
        self._finish()
        path = self._path(at)
        reader = self._open_reader(path)
        for i in range(at, at + count):
            last = self._start_time(i) * float(self._fps) + self._items[i].length
            if reader.frames and round(last) > reader.frames:
                raise DatasetError(
                    f"{path} has {reader.frames} frames; {self._items[i].where} ends at frame {round(last)} there. "
                    "Restore the file, or leave the episode out."
                )
        target = self._target()
        target.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(path.resolve(), target, link=self._pixels.link)
        self.result.locations += [
            VideoLocation(file=self._number, start_s=self._start_time(i)) for i in range(at, at + count)
        ]
        self.result.coding, self.result.linked = reader.coding, self.result.linked + count
        self._number += 1

    def _copy_packets(self, at: int) -> None:
        reader = self._open_reader(self._path(at))
        cut = reader.cut(self._start_time(at), self._items[at].length, self._fps)
        if cut is None:
            self._add_encoded(at, self._encode(at))
            self.result.encoded.append(at)
            self.result.forced += 1
            return
        self._add(at, reader, self._start_time(at))
        self.result.copied += 1

    def _add_encoded(self, at: int, path: Path) -> None:
        reader = PacketReader(path)
        try:
            self._add(at, reader, 0.0)
        finally:
            reader.close()
            path.unlink()

    def _add(self, at: int, reader: PacketReader, start_s: float) -> None:
        cut = reader.cut(start_s, self._items[at].length, self._fps)
        if cut is None:
            raise DatasetError(
                f"{reader.path} was encoded without a key frame at its beginning. Please report this defect."
            )
        out = self._out
        if out is None or out.coding != cut.coding or out.bytes > _MOST_BYTES:
            self._finish()
            out = self._out = PacketFile(self._target(), reader, cut.coding, self._fps)
        self.result.locations.append(VideoLocation(file=self._number, start_s=float(out.add(cut) / self._fps)))

    def _finish(self) -> None:
        """Close the current output file and check its number of frames."""
        if self._out is None:
            return
        out, self._out = self._out, None
        out.close()
        reader = PacketReader(out.path)
        found, self.result.coding = reader.frames, reader.coding
        reader.close()
        if found != out.frames:
            raise DatasetError(f"{out.path} has {found} frames after writing; {out.frames} were given. Write it again.")
        self._number += 1

    def _target(self) -> Path:
        return self._stage / layout.block_path(layout.VIDEO_PATH, self._number, video_key=self.result.key)

    def _open_reader(self, path: Path) -> PacketReader:
        if self._reader is None or self._reader.path != path:
            if self._reader is not None:
                self._reader.close()
            self._reader = PacketReader(path)
        return self._reader
