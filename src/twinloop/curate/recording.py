"""Read one episode of a dataset for the quality checks; each part of the episode is read once, when it is needed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.core.errors import LogError
from twinloop.core.records import Episode, Provenance, SimEpisode, Source
from twinloop.core.units import JointUnit, UnitMap
from twinloop.dataset.lerobot.parquet import column_to_floats
from twinloop.dataset.lerobot.reader import DatasetReader, flat_names
from twinloop.dataset.logs.importers.columns import EpisodeBuilder
from twinloop.dataset.logs.importers.protocol import LogOptions, RawEpisode
from twinloop.dataset.media.depth import is_depth
from twinloop.dataset.media.image_sources import open_images
from twinloop.dataset.signals import read_generated_signals, restore_episode
from twinloop.dataset.spec import STATE, TRUE_TIME


def read_raw(reader: DatasetReader, index: int, *, task: str, source: Source, written_by_twinloop: bool) -> RawEpisode:
    """Read an episode from LeRobot's standard files without checking its values.

    Args:
        reader: reader of the dataset.
        index: ``episode_index`` of the episode.
        task: task text of the episode.
        source: origin of the episode, for example ``real`` or ``sim``.
        written_by_twinloop: whether twinloop generated the episode; its sensor signals are then read too.

    Raises:
        LogError: If the dataset has no ``observation.state``.
        DatasetError: If a file is missing or damaged.
    """
    features = reader.info["features"]
    if STATE not in features:
        raise LogError(f"{reader.path} has no {STATE}, so its motion is unknown. It has {', '.join(features)}.")
    signals = read_generated_signals(reader, index) if written_by_twinloop else {}
    time = reader.array(index, TRUE_TIME).reshape(-1) if TRUE_TIME in features else None
    joints, paired = _find_joints(reader)
    if not paired:
        table = reader.frames_table(index, [STATE, "timestamp"])
        state = column_to_floats(table[STATE], where=f"{reader.path}: {STATE} of episode {index}").reshape(
            table.num_rows, -1
        )
        stamps = column_to_floats(table["timestamp"], where=f"{reader.path}: timestamp of episode {index}").reshape(-1)
        return RawEpisode(
            index=index, time=stamps if time is None else time, action=np.zeros_like(state), state=state,
            units=_make_unknown_units(joints), task=task, source=source, origin=str(reader.path), command="none",
            signals=signals,
        )  # fmt: skip
    builder = EpisodeBuilder(
        str(reader.path),
        LogOptions(joints=joints, units=_make_unknown_units(joints) if reader.units is None else None),
        action_names=_find_column_names(reader, "action"),
        state_names=_find_column_names(reader, STATE),
        fps=reader.fps,
        units=reader.units,
        robot_type=str(reader.info.get("robot_type") or ""),
    )
    made = builder.build(index, reader.frames_table(index, builder.columns), task=task, source=source)
    changes = made.__dict__ | {"signals": signals, "time": made.time if time is None else time}
    return RawEpisode(**changes)


def _find_column_names(reader: DatasetReader, feature: str) -> list[str]:
    """Return the names of a vector feature's columns; empty if the metadata have no names for all columns."""
    entry = reader.info["features"].get(feature, {})
    names = [name.removesuffix(".pos") for name in flat_names(entry.get("names"))]
    return names if len(names) == _vector_width(reader, feature) else []


def _vector_width(reader: DatasetReader, feature: str) -> int:
    return int(np.prod(reader.info["features"].get(feature, {}).get("shape", [0])))


def _find_joints(reader: DatasetReader) -> tuple[list[str], bool]:
    """Return the joint names, and whether the action has one command per joint.

    The action of a dataset need not be joint positions.
    """
    actions, states, width = (
        _find_column_names(reader, "action"),
        _find_column_names(reader, STATE),
        _vector_width(reader, STATE),
    )
    numbered = [f"joint_{column}" for column in range(width)]
    if actions and set(actions) <= set(states):
        return actions, True
    if not actions and not states and width == _vector_width(reader, "action"):
        return numbered, True
    return states or numbered, False


def _make_unknown_units(joints: Sequence[str]) -> UnitMap:
    rows = tuple(JointUnit(joint=joint, unit="unknown", scale=None, offset=None) for joint in joints)
    return UnitMap(joints=rows, source="nothing says")


Array = NDArray[np.float64]
Images = NDArray[np.uint8]
Made = TypeVar("Made")

_IMAGES, _SUCCESS, _CONTACTS = "observation.images.", "next.success", "annotations/contacts"
_HEAVY = ("raw", "states", "commands")


class RecordedEpisode:
    """One episode of a LeRobot v3.0 dataset, written by twinloop or by another program.

    Small values (names, task, rate, provenance) are read once. Arrays are kept in memory until `free_arrays`. `raw` has
    the stored values with all their defects, so that checks can find them. `episode` has the same data after
    validation.

    Args:
        reader: reader of the dataset.
        index: ``episode_index`` of the episode.
        batch: name of the dataset in messages and ids; by default the name of its folder.
        episode_id: id of the episode; by default from its provenance, else ``BATCH#INDEX``.
        success: success label, which takes precedence over the stored result of the task.
    """

    def __init__(
        self,
        reader: DatasetReader,
        index: int,
        *,
        batch: str = "",
        episode_id: str = "",
        success: bool | None = None,
    ) -> None:
        self.reader, self.index = reader, index
        self.batch = batch or reader.path.resolve().name
        self._id, self._label = episode_id, success
        self._facts: dict[str, object] = {}

    def __repr__(self) -> str:
        return f"RecordedEpisode({self.where})"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle only the path and the index; another process opens the dataset itself, because tables are large."""
        return _reopen_recording, (self.reader.path, self.index, self.batch, self._id, self._label)

    @property
    def where(self) -> str:
        """Description of the episode for messages, for example ``episode 3 of batch_1``."""
        return f"episode {self.index} of {self.batch}"

    @property
    def written_by_twinloop(self) -> bool:
        """Whether twinloop wrote this episode; it then has provenance."""
        return self.reader.written_by_twinloop and not self.reader.is_appended(self.index)

    @functools.cached_property
    def episode_id(self) -> str:
        """Given id of the episode, else its content hash, else ``BATCH#INDEX``."""
        if self._id:
            return self._id
        known = self.reader.episode_ids[self.index] if self.written_by_twinloop else ""
        return known or f"{self.batch}#{self.index}"

    @functools.cached_property
    def provenance(self) -> Provenance | None:
        """Provenance of the episode; None if another program wrote the episode."""
        return self.reader.provenance(self.index) if self.written_by_twinloop else None

    @property
    def source(self) -> Source:
        """Origin: ``real``, ``sim``, ``augmented`` or ``human-in-the-loop``; ``real`` if another program wrote it."""
        return "real" if self.provenance is None else self.provenance.source

    @property
    def robot_type(self) -> str:
        """Robot type in LeRobot's ``info.json``; "" if it is missing."""
        return str(self.reader.info.get("robot_type") or "")

    @functools.cached_property
    def task(self) -> str:
        """Task text of the episode; "" if it has none."""
        return str((self.reader.row(self.index).get("tasks") or [""])[0])

    @property
    def fps(self) -> float:
        """Nominal frames per second."""
        return self.reader.fps

    @property
    def frame_count(self) -> int:
        """Number of frames of the episode according to the dataset's episode table."""
        return int(self.reader.lengths[self.index])

    @property
    def group(self) -> tuple[str, str, str]:
        """Key of comparable episodes: batch, robot type and source."""
        return self.batch, self.robot_type, self.source

    @functools.cached_property
    def success(self) -> bool | None:
        """Success label, else the stored result of the task at the episode's end; None if both are missing."""
        if self._label is not None:
            return self._label
        if self.provenance is not None and self.provenance.success is not None:
            return self.provenance.success
        if self.provenance is None and _SUCCESS in self.reader.info["features"]:
            return bool(self.reader.array(self.index, _SUCCESS).reshape(-1)[-1] > 0)  # as the rule success/predicate
        return None

    @property
    def params(self) -> Mapping[str, float]:
        """Drawn parameter values in SI units, by parameter name; empty for a recorded episode."""
        return {} if self.provenance is None else self.provenance.params

    @functools.cached_property
    def cameras(self) -> tuple[str, ...]:
        """Names of the cameras that have a video of colour images, or images in the frame table."""
        features = self.reader.info["features"].items()
        stored = [key for key, entry in features if entry["dtype"] in ("video", "image") and not is_depth(entry)]
        found = [key for key in stored if key.startswith(_IMAGES)]
        return tuple(key.removeprefix(_IMAGES) for key in found)

    def read_images(self, camera: str, frames: Sequence[int] | None = None) -> Images:
        """Read images of a camera, as ``(n, height, width, 3)`` in 8-bit sRGB.

        Args:
            camera: name of the camera.
            frames: frames to read, in ascending order; by default all.

        Raises:
            UnknownNameError: If the camera does not exist.
            DatasetError: If the images are missing or damaged.
        """
        if camera in self.reader.cameras:
            return self.reader.images(self.index, camera, frames)
        rows = _open_image_readers(self.reader.path, camera)[f"episode {self.index}"]
        return rows(range(self.frame_count) if frames is None else frames)

    @functools.cached_property
    def raw(self) -> RawEpisode:
        """The episode as stored, without checks of its values. If the original log was kept, its numbers are used.

        Times are the true times if the dataset has them. Columns that no unit map describes have the unit ``unknown``.

        Raises:
            LogError: If the dataset has no ``observation.state``.
            DatasetError: If a file is missing or damaged.
        """
        if self.written_by_twinloop and self.reader.has_log(self.index):
            return RawEpisode.of(restore_episode(self.reader, self.index))
        return read_raw(
            self.reader, self.index, task=self.task, source=self.source, written_by_twinloop=self.written_by_twinloop
        )

    @property
    def episode(self) -> Episode:
        """The validated episode with its sensor signals.

        Raises:
            LogError: If a value is not finite, or time does not increase.
        """
        return self.raw.to_episode()

    @functools.cached_property
    def states(self) -> Array | None:
        """Simulator states ``(T + 1, nstate)`` for T frames; None if twinloop did not simulate the episode."""
        return self.reader.states(self.index) if self._is_simulated else None

    @functools.cached_property
    def commands(self) -> Array | None:
        """Simulator commands ``(T, nu)`` in SI units, for nu actuators; None if twinloop did not simulate it."""
        return self.reader.commands(self.index) if self._is_simulated else None

    @property
    def contacts(self) -> pa.Table | None:
        """Contacts of the episode: its rows of the side table ``annotations/contacts``; None if the table is missing.

        The columns are described in `dataset.annotations`.
        """
        if not self.written_by_twinloop or _CONTACTS not in self.reader.side_tables:
            return None
        return self.reader.side_rows(_CONTACTS, self.index)

    def load_sim_episode(self) -> SimEpisode | None:
        """Return states, commands and provenance for a replay; None if twinloop did not simulate the episode.

        Actions and observations of the returned record are empty.
        """
        states, commands = self.states, self.commands
        if states is None or commands is None or self.provenance is None:
            return None
        return SimEpisode(
            number=int(self.reader.numbers[self.index]),
            commands=commands,
            states=states,
            action=np.empty(0),
            observation=np.empty(0),
            next_success=np.empty(0, dtype=np.bool_),
            provenance=self.provenance,
        )

    def compute_once(self, name: str, make: Callable[[RecordedEpisode], Made]) -> Made:
        """Return a result that several checks share; it is computed at the first call and kept until `free_arrays`.

        Args:
            name: key of the result.
            make: function that computes the result from this recording.
        """
        if name not in self._facts:
            self._facts[name] = make(self)
        return self._facts[name]  # pyright: ignore[reportReturnType]

    def free_arrays(self) -> None:
        """Free arrays and the results of `compute_once`; they are read or computed again when they are needed."""
        self._facts.clear()
        for name in _HEAVY:
            self.__dict__.pop(name, None)

    @property
    def _is_simulated(self) -> bool:
        return self.written_by_twinloop and not self.reader.has_log(self.index) and self.source != "real"


def open_recordings(
    folder: Path | str | DatasetReader,
    indices: Sequence[int] | None = None,
    *,
    batch: str = "",
    episode_ids: Sequence[str] | None = None,
    successes: Mapping[str, bool] | None = None,
) -> list[RecordedEpisode]:
    """Open the episodes of a dataset; frames are read later, when they are needed.

    Args:
        folder: a dataset in the format LeRobot v3.0, or its reader.
        indices: the episodes to open; by default all.
        batch: name of the dataset in messages and ids; by default the name of its folder.
        episode_ids: ids of these episodes in a workspace, in the same order; by default from their provenance.
        successes: success labels by episode id.

    Raises:
        InputError: If an episode does not exist.
        DatasetError: If the folder is not a v3.0 dataset, or its metadata are inconsistent.
    """
    reader = folder if isinstance(folder, DatasetReader) else DatasetReader(folder)
    chosen = range(len(reader)) if indices is None else indices
    made = []
    for place, index in enumerate(chosen):
        reader.row(index)  # raises an error if the episode does not exist
        name = "" if episode_ids is None else episode_ids[place]
        recording = RecordedEpisode(reader, index, batch=batch, episode_id=name)
        label = (successes or {}).get(recording.episode_id)
        if label is not None:
            recording = RecordedEpisode(reader, index, batch=batch, episode_id=recording.episode_id, success=label)
        made.append(recording)
    return made


@functools.lru_cache(maxsize=4)
def _open_reader(path: Path) -> DatasetReader:
    return DatasetReader(path)


def _reopen_recording(path: Path, index: int, batch: str, episode_id: str, label: bool | None) -> RecordedEpisode:
    return RecordedEpisode(_open_reader(path), index, batch=batch, episode_id=episode_id, success=label)


@functools.lru_cache(maxsize=16)
def _open_image_readers(path: Path, camera: str) -> Mapping[str, Callable[[Sequence[int]], Images]]:
    return {row.name: row.read for row in open_images(path, camera).episodes}
