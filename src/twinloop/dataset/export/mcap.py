"""Export datasets to MCAP, and read frames of an exported file to compare them with the dataset.

An output ``NAME.mcap`` contains all episodes, with one second between them; any other output is a folder with one file
per episode. The same dataset always gives the same bytes.
"""

from __future__ import annotations

import base64
import functools
import heapq
import io
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.documents import parse_json
from twinloop.core.errors import DatasetError, MissingDependencyError
from twinloop.core.files import atomic_open, dumps
from twinloop.dataset.export import mcap_messages as messages
from twinloop.dataset.export.mcap_entries import CAMERA, DATASET, McapMessage, list_message_streams, to_nanoseconds
from twinloop.dataset.export.protocol import (
    Exporter,
    ExportOptions,
    ExportResult,
    create_output_folder,
    select_episodes,
)
from twinloop.dataset.export.streams import (
    IMAGES,
    NO_GROUND_TRUTH,
    STREAM_SETTINGS,
    EpisodeStreams,
    ExportSelection,
    GroundTruth,
    open_reader,
    read_selection,
    require_absent,
)

UNIT_MAP, FEATURES, METADATA = "unit_map.json", "features.json", "twinloop"
_DECODERS = {"h264": "h264", "h265": "hevc", "av1": "libdav1d"}  # FFmpeg's own av1 asks for hardware


@dataclass(frozen=True, kw_only=True)
class _Span:
    """Time range of an episode in an MCAP file.

    Attributes:
        path: The MCAP file.
        first: Time of the first frame in ns.
        end: Time of the next episode's first frame in ns; a very large number for the last episode.
        frames: Number of frames.
    """

    path: Path
    first: int
    end: int
    frames: int


class McapReader:
    """Reader of MCAP files that twinloop exported; implements `ExportReader`.

    Args:
        path: One file, or a folder with one file per episode.

    Raises:
        DatasetError: If no file contains an episode that twinloop exported.
    """

    def __init__(self, path: Path) -> None:
        files = sorted(path.glob("*.mcap")) if path.is_dir() else [path]
        self._spans = [span for file in files for span in _read_spans(file)]
        if not self._spans:
            raise DatasetError(f"{path} contains no episode that twinloop exported as MCAP.")
        self._features = _read_features(files[0])

    @property
    def lengths(self) -> Sequence[int]:
        """Number of frames of each episode."""
        return [span.frames for span in self._spans]

    @property
    def cameras(self) -> Sequence[str]:
        """Feature keys of the exported cameras."""
        keys = [key for key, entry in self._features.items() if entry["dtype"] in ("video", "image")]
        return [key for key in keys if self._read_messages(0, CAMERA + key.removeprefix(IMAGES))]

    def read_numeric_features(self, episode: int, frame: int) -> Mapping[str, NDArray[Any]]:
        """Return all numeric features of one frame by feature key, as 1-D arrays."""
        found: dict[str, NDArray[Any]] = {}
        for key, entry in self._features.items():
            if rows := self._read_messages(episode, DATASET + key):
                values = [
                    np.nan if value is None else value for name, value in rows[frame].items() if name != "timestamp"
                ]
                found[key] = np.array(values, dtype=np.float64).astype(entry["dtype"])
        return found

    def read_image(self, episode: int, camera: str, frame: int) -> NDArray[np.uint8]:
        """Return one image ``(height, width, 3)`` of a camera."""
        return self._read_images(episode, camera)[frame]

    @functools.lru_cache(maxsize=64)  # noqa: B019 - the object lives as long as a comparison
    def _read_messages(self, episode: int, topic: str) -> list[dict[str, Any]]:
        span = self._spans[episode]
        with span.path.open("rb") as file:
            found = [message for _, _, message in _make_mcap_reader(file).iter_messages(topics=[topic])]
        return [
            parse_json(message.data, where=f"a message of {topic}")
            for message in found
            if span.first <= message.log_time < span.end
        ]

    @functools.lru_cache(maxsize=1)  # noqa: B019
    def _read_images(self, episode: int, camera: str) -> list[NDArray[np.uint8]]:
        rows = self._read_messages(episode, CAMERA + camera.removeprefix(IMAGES))
        data, form = [base64.b64decode(row["data"]) for row in rows], rows[0]["format"]
        if form not in _DECODERS:
            from PIL import Image

            return [np.asarray(Image.open(io.BytesIO(part)).convert("RGB")) for part in data]
        return decode_samples(data, _DECODERS[form])


def decode_samples(samples: Sequence[bytes], codec: str) -> list[NDArray[np.uint8]]:
    """Decode the images of one episode from its video samples (encoded frames), as RGB arrays ``(height, width, 3)``.

    Args:
        samples: Encoded frames, in decoding order.
        codec: FFmpeg's name of the decoder.

    Raises:
        DatasetError: If the samples cannot be decoded without other data.
    """
    import av

    decoder: Any = av.CodecContext.create(codec, "r")
    try:
        frames = [frame for sample in samples for frame in decoder.decode(av.Packet(sample))]
        frames += decoder.decode(None)
    except av.error.FFmpegError as error:
        raise DatasetError(f"The images in {codec} cannot be decoded from their samples ({error}).") from error
    return [frame.to_ndarray(format="rgb24") for frame in frames]


def open_export(path: Path) -> McapReader:
    """Open an exported MCAP file, or a folder of such files, for reading.

    Raises:
        DatasetError: If twinloop exported none of the files.
        MissingDependencyError: If the package mcap is not installed.
    """
    return McapReader(path)


def _make_mcap_reader(file: Any) -> Any:
    try:
        from mcap.reader import make_reader  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(
            "MCAP files are read by the package mcap, which is not installed.", remedy="pip install 'twinloop[mcap]'"
        ) from error
    return make_reader(file)


def _read_spans(path: Path) -> list[_Span]:
    with path.open("rb") as file:
        rows = [record.metadata for record in _make_mcap_reader(file).iter_metadata() if record.name == METADATA]
    rows.sort(key=lambda row: int(row["first_ns"]))
    starts = [int(row["first_ns"]) for row in rows]
    ends = [*starts[1:], 1 << 62]
    return [
        _Span(path=path, first=start, end=end, frames=int(row["frames"]))
        for row, start, end in zip(rows, starts, ends, strict=True)
    ]


def _read_features(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        for attachment in _make_mcap_reader(file).iter_attachments():
            if attachment.name == FEATURES:
                return parse_json(attachment.data, where=f"{path}: {FEATURES}")["features"]
    raise DatasetError(f"{path} was not exported by twinloop: it has no {FEATURES}.")


_APART_NS = 1_000_000_000  # between episodes of one file


def export_mcap(
    source: Path, output: Path, options: ExportOptions, *, truth: GroundTruth = NO_GROUND_TRUTH
) -> ExportResult:
    """Export episodes of a LeRobot v3.0 folder as MCAP; implements `Exporter.write`.

    Args:
        source: The dataset folder.
        output: A new ``.mcap`` file, or a missing or empty folder.
        options: Episodes and settings of the format.
        truth: Data that the dataset does not have. Its ``bodies`` add coordinate frames and shapes for Foxglove's 3D
            panel, its ``events`` are added to the log.

    Raises:
        MissingDependencyError: If the package mcap is not installed.
        InputError: If an episode or camera does not exist, a setting is invalid, or the output exists.
        DatasetError: If the source is damaged, or the disk is full. Nothing is left at ``output`` then.
    """
    _import_writer()
    reader = open_reader(source)
    episodes = select_episodes(options, range(len(reader)), where=source)
    selection = read_selection(reader, options, truth, name="mcap")
    notes = dict.fromkeys(truth.notes)
    if output.suffix == ".mcap":
        require_absent(output)
        notes.update(dict.fromkeys(_write_file(output, selection, episodes)))
    else:
        episodes = tuple(sorted(episodes))  # as their files are
        with create_output_folder(output) as stage:
            for index in episodes:
                notes.update(dict.fromkeys(_write_file(stage / f"episode_{index:06d}.mcap", selection, [index])))
    frames = int(sum(reader.lengths[list(episodes)]))
    return ExportResult(output=output, episodes=episodes, frames=frames, notes=tuple(notes))


def _import_writer() -> Any:
    try:
        import mcap.writer as mcap_writer  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(
            "MCAP files are written by the package mcap, which is not installed.",
            remedy="pip install 'twinloop[mcap]'",
        ) from error
    return mcap_writer


def _write_file(path: Path, selection: ExportSelection, episodes: Sequence[int]) -> list[str]:
    reader, notes, begin = selection.reader, [], 0
    with atomic_open(path) as file, _open_writer(file) as target:
        target.attach(UNIT_MAP, None if reader.units is None else reader.units.to_json())
        target.attach(FEATURES, {"fps": reader.fps, "features": reader.info["features"]})
        for index in episodes:
            streams = EpisodeStreams(reader, index)
            zero = begin - int(to_nanoseconds(_earliest_time(streams, selection.truth)))
            target.describe(streams, zero)
            found = list_message_streams(
                streams, selection.truth, selection.cameras, zero, notes, copy_packets=selection.copy_packets
            )
            for entry in heapq.merge(*found, key=lambda entry: entry.time_ns):
                target.add(entry)
            begin = target.last + _APART_NS
    return notes


def _earliest_time(streams: EpisodeStreams, truth: GroundTruth) -> NDArray[np.float64]:
    """Return the earliest time of an episode in s; signals or events may start before the first frame."""
    signals = [channel.time[0] for channel in streams.signals() if len(channel.time)]
    events = [event.time for event in truth.events(streams.index)]
    return np.min([streams.time[0], *signals, *events])


@contextmanager
def _open_writer(file: Any) -> Iterator[_McapFile]:
    writer = _import_writer().Writer(file)
    writer.start(profile="", library="twinloop")
    yield _McapFile(writer)
    writer.finish()


class _McapFile:
    """Writer of one MCAP file; topics and schemas are registered with their first message.

    ``last`` is the time of the latest message so far, in ns.
    """

    def __init__(self, writer: Any) -> None:
        self._writer, self.last = writer, 0
        self._schemas: dict[str, int] = {}
        self._topics: dict[str, int] = {}
        self._counts: dict[str, int] = defaultdict(int)

    def attach(self, name: str, value: Any) -> None:
        """Attach ``value`` as a JSON document to the file; None is skipped."""
        if value is not None:
            self._writer.add_attachment(0, 0, name, "application/json", dumps(value).encode())

    def describe(self, streams: EpisodeStreams, zero: int) -> None:
        """Write the metadata record of an episode: its origin and its times.

        Args:
            streams: The episode.
            zero: Time of the file at which the episode's time is 0, in ns.
        """
        words = {
            "dataset": streams.reader.path.resolve().name,
            "episode_index": str(streams.index),
            "name": streams.name,
            "frames": str(streams.length),
            "fps": f"{streams.reader.fps:g}",
            "first_ns": str(int(to_nanoseconds(streams.time[0])) + zero),
            "zero_ns": str(zero),
            "robot_type": str(streams.reader.info.get("robot_type") or ""),
            "tasks": dumps(streams.tasks),
            "provenance": dumps(streams.provenance),
        }
        self._writer.add_metadata(METADATA, words)

    def add(self, entry: McapMessage) -> None:
        """Append a message."""
        if entry.topic not in self._topics:
            schema = self._schema(entry)
            self._topics[entry.topic] = self._writer.register_channel(entry.topic, "json", schema)
        count = self._counts[entry.topic]
        data = messages.encode_message(entry.message)
        self._writer.add_message(self._topics[entry.topic], entry.time_ns, data, entry.time_ns, count)
        self._counts[entry.topic] += 1
        self.last = max(self.last, entry.time_ns)

    def _schema(self, entry: McapMessage) -> int:
        if entry.schema not in self._schemas:
            data = dumps({"title": entry.schema, **entry.definition}).encode()
            self._schemas[entry.schema] = self._writer.register_schema(entry.schema, "jsonschema", data)
        return self._schemas[entry.schema]


EXPORTER = Exporter(
    name="mcap",
    description="MCAP for Foxglove: images, joints, readings, contacts and logs over time (.mcap or a folder)",
    unsupported="statistics and the exact simulator states",
    write=export_mcap,
    open_reader=open_export,
    settings=STREAM_SETTINGS,
)
