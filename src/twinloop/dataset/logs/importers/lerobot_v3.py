"""Import LeRobot v3.0 folders. For twinloop's own datasets, unit map and unrounded log values are read, too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from twinloop.core.documents import read_json
from twinloop.core.errors import LogError
from twinloop.core.units import UnitMap
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.logs.importers.columns import EpisodeBuilder
from twinloop.dataset.logs.importers.protocol import Importer, LogOptions, RawEpisode
from twinloop.dataset.signals import read_generated_signals, restore_episode


def recognizes(path: Path) -> bool:
    """Return whether a folder declares itself as a LeRobot dataset of version 3."""
    info = path / layout.INFO
    return info.is_file() and str(read_json(info).get("codebase_version", "")).startswith("v3")


def read(path: Path, options: LogOptions) -> list[RawEpisode]:
    """Return all episodes, in order.

    If every episode has a stored log and ``options`` selects no joints, the unrounded values of the log are
    returned. Otherwise the values come from LeRobot's files.

    Raises:
        LogError: If there is no episode, or an episode is invalid.
        UnitsError: If neither the folder nor the caller gives the units.
        DatasetError: If a file is damaged, or a path leads out of the folder.
    """
    reader = DatasetReader(path)
    if not len(reader):
        raise LogError(f"{path} has no episodes.")
    if options.joints is None and all(reader.has_log(index) for index in range(len(reader))):
        given = options.units if isinstance(options.units, UnitMap) else None
        return [
            _replace_metadata(RawEpisode.of(restore_episode(reader, index, units=given)), options)
            for index in range(len(reader))
        ]
    builder = EpisodeBuilder(
        str(path),
        options,
        action_names=reader.feature_names(options.action_key),
        state_names=reader.feature_names(options.state_key),
        fps=reader.fps,
        units=reader.units,
        robot_type=str(reader.info.get("robot_type") or ""),
        present=reader.info["features"],
    )
    return [_build_episode(reader, builder, index) for index in range(len(reader))]


def _replace_metadata(episode: RawEpisode, options: LogOptions) -> RawEpisode:
    """Return the episode with the caller's task, robot type and origin, as far as they are given."""
    return replace(
        episode,
        task=options.task or episode.task,
        robot_type=options.robot_type or episode.robot_type,
        origin=options.origin or episode.origin,
    )


def _build_episode(reader: DatasetReader, builder: EpisodeBuilder, index: int) -> RawEpisode:
    task = (reader.row(index).get("tasks") or [""])[0]
    ours = reader.written_by_twinloop and not reader.is_appended(index)
    source = reader.provenance(index).source if ours else "real"
    episode = builder.build(index, reader.frames_table(index, builder.columns), task=task, source=source)
    return replace(episode, signals=read_generated_signals(reader, index)) if ours else episode


IMPORTER = Importer(name="lerobot-v3.0", recognizes=recognizes, read=read)
