"""MCAP for Foxglove: every stream of an episode at its own times, video packets copied, as JSON with schemas.

An output ``NAME.mcap`` holds all episodes, one second apart; any other is a folder with a file for each. The bytes
follow from the dataset alone.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import MissingDependencyError
from twinloop.core.files import atomic_open, dumps
from twinloop.dataset.exporters import mcap_messages as messages
from twinloop.dataset.exporters.asked import STREAM_SETTINGS, Asked, read_asked
from twinloop.dataset.exporters.mcap_entries import Entry, entries, nanoseconds
from twinloop.dataset.exporters.mcap_play import FEATURES, METADATA, UNIT_MAP, play
from twinloop.dataset.exporters.protocol import Exported, Exporter, ExportOptions, chosen_episodes, fresh_folder
from twinloop.dataset.exporters.streams import EpisodeStreams, open_reader, require_absent
from twinloop.dataset.exporters.truth import NOTHING, Truth

_APART_NS = 1_000_000_000  # between episodes of one file


def export_mcap(source: Path, output: Path, options: ExportOptions, *, truth: Truth = NOTHING) -> Exported:
    """Write episodes of a LeRobot v3.0 folder as MCAP; see `Exporter.export`.

    Args:
        truth: its ``bodies`` add frames and shapes for Foxglove's 3D panel, its ``events`` words to the log.

    Raises:
        MissingDependencyError: mcap is not installed.
        InputError: no such episode or camera, a setting that is not understood, or an output that exists.
        DatasetError: the source is damaged, or the disk is full; nothing is left at ``output``.
    """
    _import_writer()
    reader = open_reader(source)
    episodes = chosen_episodes(options, range(len(reader)), where=source)
    asked = read_asked(reader, options, truth, name="mcap")
    notes = dict.fromkeys(truth.notes)
    if output.suffix == ".mcap":
        require_absent(output)
        notes.update(dict.fromkeys(_write_file(output, asked, episodes)))
    else:
        episodes = tuple(sorted(episodes))  # as their files are
        with fresh_folder(output) as stage:
            for index in episodes:
                notes.update(dict.fromkeys(_write_file(stage / f"episode_{index:06d}.mcap", asked, [index])))
    frames = int(sum(reader.lengths[list(episodes)]))
    return Exported(output=output, episodes=episodes, frames=frames, notes=tuple(notes))


def _import_writer() -> Any:
    try:
        import mcap.writer as mcap_writer  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(
            "MCAP files are written by the package mcap, which is not installed.",
            remedy="pip install 'twinloop[mcap]'",
        ) from error
    return mcap_writer


def _write_file(path: Path, asked: Asked, episodes: Sequence[int]) -> list[str]:
    reader, notes, begin = asked.reader, [], 0
    with atomic_open(path) as file, _opened(file) as target:
        target.attach(UNIT_MAP, None if reader.units is None else reader.units.to_json())
        target.attach(FEATURES, {"fps": reader.fps, "features": reader.info["features"]})
        for index in episodes:
            streams = EpisodeStreams(reader, index)
            zero = begin - int(nanoseconds(_earliest(streams, asked.truth)))
            target.describe(streams, zero)
            found = entries(streams, asked.truth, asked.cameras, zero, notes, copied=asked.copied)
            for entry in heapq.merge(*found, key=lambda entry: entry.at):
                target.add(entry)
            begin = target.last + _APART_NS
    return notes


def _earliest(streams: EpisodeStreams, truth: Truth) -> NDArray[np.float64]:
    """Return the first time of an episode in s: a sensor or an event may begin before the frames."""
    signals = [channel.time[0] for channel in streams.signals() if len(channel.time)]
    events = [event.time for event in truth.events(streams.index)]
    return np.min([streams.time[0], *signals, *events])


@contextmanager
def _opened(file: Any) -> Iterator[_File]:
    writer = _import_writer().Writer(file)
    writer.start(profile="", library="twinloop")
    yield _File(writer)
    writer.finish()


class _File:
    """One MCAP file being written; topics and schemas are declared when the first message comes."""

    def __init__(self, writer: Any) -> None:
        self._writer, self.last = writer, 0
        self._schemas: dict[str, int] = {}
        self._topics: dict[str, int] = {}
        self._counts: dict[str, int] = defaultdict(int)

    def attach(self, name: str, value: Any) -> None:
        """A JSON document that travels in the file."""
        if value is not None:
            self._writer.add_attachment(0, 0, name, "application/json", dumps(value).encode())

    def describe(self, streams: EpisodeStreams, zero: int) -> None:
        """Where an episode comes from, and where in the file its own time 0 lies."""
        words = {
            "dataset": streams.reader.path.resolve().name,
            "episode_index": str(streams.index),
            "name": streams.name,
            "frames": str(streams.length),
            "fps": f"{streams.reader.fps:g}",
            "first_ns": str(int(nanoseconds(streams.time[0])) + zero),
            "zero_ns": str(zero),
            "robot_type": str(streams.reader.info.get("robot_type") or ""),
            "tasks": dumps(streams.tasks),
            "provenance": dumps(streams.provenance),
        }
        self._writer.add_metadata(METADATA, words)

    def add(self, entry: Entry) -> None:
        """Append a message."""
        if entry.topic not in self._topics:
            schema = self._schema(entry)
            self._topics[entry.topic] = self._writer.register_channel(entry.topic, "json", schema)
        count = self._counts[entry.topic]
        data = messages.encoded(entry.message)
        self._writer.add_message(self._topics[entry.topic], entry.at, data, entry.at, count)
        self._counts[entry.topic] += 1
        self.last = max(self.last, entry.at)

    def _schema(self, entry: Entry) -> int:
        if entry.schema not in self._schemas:
            data = dumps({"title": entry.schema, **entry.definition}).encode()
            self._schemas[entry.schema] = self._writer.register_schema(entry.schema, "jsonschema", data)
        return self._schemas[entry.schema]


EXPORTER = Exporter(
    name="mcap",
    meaning="MCAP for Foxglove: pictures, joints, readings, contacts and logs over time (.mcap or a folder)",
    lost="statistics and the exact simulator states",
    write=export_mcap,
    play=play,
    settings=STREAM_SETTINGS,
)
