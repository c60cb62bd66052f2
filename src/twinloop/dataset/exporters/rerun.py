"""Rerun recordings: pictures beside plots, the scene with its contacts, and where the episode comes from.

An output ``NAME.rrd`` holds one episode; any other is a folder with a file for each. Numbers are on the timelines
``time`` (the episode's own, s) and ``frame``; what was sampled between frames is on ``time`` alone. Videos are cut out
packet by packet. Rerun stamps its chunks, so the bytes of two exports differ where their content does not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.core.files import atomic_open
from twinloop.dataset.exporters.asked import STREAM_SETTINGS, Asked, read_asked
from twinloop.dataset.exporters.protocol import Exported, Exporter, ExportOptions, chosen_episodes, fresh_folder
from twinloop.dataset.exporters.rerun_blueprint import blueprint
from twinloop.dataset.exporters.rerun_entities import log_episode
from twinloop.dataset.exporters.rerun_play import APPLICATION, play
from twinloop.dataset.exporters.streams import EpisodeStreams, open_reader, require_absent
from twinloop.dataset.exporters.truth import NOTHING, Truth


def export_rerun(source: Path, output: Path, options: ExportOptions, *, truth: Truth = NOTHING) -> Exported:
    """Write episodes of a LeRobot v3.0 folder as Rerun recordings; see `Exporter.export`.

    Args:
        truth: its ``bodies`` make the scene, its ``events`` words of the log.

    Raises:
        MissingDependencyError: rerun-sdk is not installed.
        InputError: no such episode or camera, several episodes for one file, a setting that is not understood, or an
            output that exists.
        DatasetError: the source is damaged, or the disk is full; nothing is left at ``output``.
    """
    rerun = _import_rerun()
    reader = open_reader(source)
    episodes = chosen_episodes(options, range(len(reader)), where=source)
    asked = read_asked(reader, options, truth, name="rerun")
    notes = dict.fromkeys(truth.notes)
    if output.suffix == ".rrd":
        _require_one(output, episodes)
        require_absent(output)
        notes.update(dict.fromkeys(_write_whole(rerun, output, asked, episodes[0])))
    else:
        episodes = tuple(sorted(episodes))  # as their files are
        with fresh_folder(output) as stage:
            for index in episodes:
                notes.update(dict.fromkeys(_write(rerun, stage / f"episode_{index:06d}.rrd", asked, index)))
    frames = int(sum(reader.lengths[list(episodes)]))
    return Exported(output=output, episodes=episodes, frames=frames, notes=tuple(notes))


def _import_rerun() -> Any:
    try:
        import rerun  # pyright: ignore[reportMissingImports]
        import rerun.chunk  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(
            "Rerun recordings are written by the package rerun-sdk (0.41 or newer), which is not installed.",
            remedy="pip install 'twinloop[rerun]'",
        ) from error
    return rerun


def _require_one(output: Path, episodes: Sequence[int]) -> None:
    if len(episodes) > 1:
        raise InputError(
            f"{output} is one recording, and {len(episodes)} episodes were asked for. Give --episodes {episodes[0]}, "
            f"or a folder: --output {output.with_suffix('')}."
        )


def _write_whole(rerun: Any, output: Path, asked: Asked, index: int) -> list[str]:
    """One file that appears whole or not at all; Rerun opens files by itself."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "episode.rrd"
        notes = _write(rerun, path, asked, index)
        with atomic_open(output) as file, path.open("rb") as made:
            while part := made.read(1 << 20):
                file.write(part)
    return notes


def _write(rerun: Any, path: Path, asked: Asked, index: int) -> list[str]:
    streams = EpisodeStreams(asked.reader, index)
    recording = rerun.RecordingStream(APPLICATION, recording_id=streams.name)
    recording.save(str(path), default_blueprint=blueprint(streams, asked.cameras))
    recording.send_recording_name(f"{asked.reader.path.resolve().name} {index}")
    notes = log_episode(recording, streams, asked.truth, asked.cameras, copied=asked.copied)
    recording.flush()
    recording.disconnect()
    return notes


EXPORTER = Exporter(
    name="rerun",
    meaning="Rerun recordings with a layout of pictures, plots and scene (.rrd or a folder)",
    lost="statistics and the exact simulator states",
    write=export_rerun,
    play=play,
    settings=STREAM_SETTINGS,
)
