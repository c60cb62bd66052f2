"""Export datasets to robomimic HDF5, and read frames of an exported file to compare them with the dataset.

Actions are scaled to [-1, 1] by the smallest and largest command of the exported episodes, because robomimic's policies
end in tanh. The scale and the unscaled values are stored as well (`robomimic_layout`). Episodes are written one after
the other, so memory use does not grow with their number.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import DatasetError, InputError, UnknownNameError, convert_os_error, make_disk_full_error
from twinloop.core.files import atomic_open, dumps
from twinloop.core.records import StoredSimulation
from twinloop.dataset import robomimic_layout as names
from twinloop.dataset.export.protocol import Exporter, ExportOptions, ExportResult, select_episodes
from twinloop.dataset.export.streams import (
    ACTION,
    IMAGES,
    NO_GROUND_TRUTH,
    REWARD,
    SUCCESS,
    EpisodeStreams,
    GroundTruth,
    TimeSeries,
    open_reader,
    require_absent,
    select_cameras,
)
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.spec import STATE


class RobomimicReader:
    """Reader of a robomimic file that twinloop exported; implements `ExportReader`.

    Raises:
        DatasetError: If twinloop did not export the file.
        MissingDependencyError: If h5py is not installed.
    """

    def __init__(self, path: Path) -> None:
        h5py = names.import_h5py(f"{path} is an HDF5 file. The package h5py, which reads it, is not installed.")
        try:
            self._file = h5py.File(path, "r")
            self._about = json.loads(self._file["data"].attrs[names.OURS])
        except (OSError, KeyError, ValueError) as error:
            raise DatasetError(f"{path} is not a robomimic file that twinloop wrote ({error}).") from error
        self._demos = [self._file[f"data/demo_{i}"] for i in range(len(self._file["data"]))]

    @property
    def lengths(self) -> Sequence[int]:
        """Number of frames of each episode (``demo_N`` in the file)."""
        return [int(demo.attrs["num_samples"]) for demo in self._demos]

    @property
    def cameras(self) -> Sequence[str]:
        """Feature keys of the exported cameras."""
        return [self._observation_features[key]["feature"] for key in self._demos[0]["obs"] if key.endswith("_image")]

    def read_numeric_features(self, episode: int, frame: int) -> Mapping[str, NDArray[Any]]:
        """Return the unscaled action and the numeric observations of one frame, by feature key."""
        demo = self._demos[episode]
        found = {"action": np.asarray(demo[names.OURS][names.ACTION][frame])}
        for key, known in self._observation_features.items():
            if key in demo["obs"] and not key.endswith("_image"):
                found[known["feature"]] = np.asarray(demo["obs"][key][frame]).astype(known["dtype"])
        return found

    def read_image(self, episode: int, camera: str, frame: int) -> NDArray[np.uint8]:
        """Return one image ``(height, width, 3)`` of a camera."""
        return np.asarray(self._demos[episode]["obs"][names.observation_key(camera)][frame])

    @property
    def _observation_features(self) -> dict[str, Any]:
        return self._about["observations"]


def open_export(path: Path) -> RobomimicReader:
    """Open an exported file for reading.

    Raises:
        DatasetError: If twinloop did not export the file.
        MissingDependencyError: If h5py is not installed.
    """
    return RobomimicReader(path)


_SETTINGS = {
    "cameras": "camera names separated by commas, all (default) or none",
    "compression": "of images: lzf (default, fast, readable only with h5py), gzip, or none",
    "valid": "share of the episodes in mask/valid, 0.1 by default; selected by their content",
    "actions": "scaled (to -1 … 1, default) or own (the dataset's units)",
}
_VALID = 0.1  # robomimic's split_train_val.py: its default ratio
_IMAGE_CODECS = {"lzf": "lzf", "gzip": "gzip", "none": None}
_NUMBERS = {"compression": "gzip", "compression_opts": 4, "shuffle": True}


@dataclass(frozen=True, kw_only=True)
class _Settings:
    cameras: list[str]
    compression: str | None
    valid: float
    scaled: bool


def export_robomimic(
    source: Path, output: Path, options: ExportOptions, *, truth: GroundTruth = NO_GROUND_TRUTH
) -> ExportResult:
    """Export episodes of a LeRobot v3.0 folder as one robomimic file; implements `Exporter.write`.

    Args:
        source: The dataset folder.
        output: A new file.
        options: Episodes and settings of the format.
        truth: Data that the dataset does not have. Its ``simulation`` returns the model of each episode; if it returns
            None, states are stored without a model.

    Raises:
        MissingDependencyError: If h5py is not installed.
        InputError: If an episode or camera does not exist, a setting is invalid, or the output exists.
        DatasetError: If the source is damaged, or the disk is full. Nothing is left at ``output`` then.
    """
    h5py = names.import_h5py("robomimic's files are HDF5. The package h5py, which writes them, is not installed.")
    reader = open_reader(source)
    episodes = select_episodes(options, range(len(reader)), where=source)
    settings = _parse_settings(reader, options)
    require_absent(output)
    low, high = _action_range(reader, episodes)
    notes = dict.fromkeys(truth.notes)
    with atomic_open(output) as file, _hdf5(h5py, output, file) as target:
        data = target.create_group("data")
        for number, index in enumerate(episodes):
            streams = EpisodeStreams(reader, index)
            demo = data.create_group(f"demo_{number}")
            demo_notes = _write_demo(h5py, demo, streams, settings, truth.simulation(index), (low, high))
            notes.update(dict.fromkeys(demo_notes))
        frames = int(sum(reader.lengths[list(episodes)]))
        data.attrs["total"] = frames
        data.attrs["env_args"] = dumps(_env_args(reader, episodes))
        data.attrs[names.OURS] = dumps(_describe_file(reader, settings, low, high))
        _write_masks(target, reader, episodes, settings.valid)
    return ExportResult(output=output, episodes=episodes, frames=frames, notes=tuple(notes))


@contextlib.contextmanager
def _hdf5(h5py: Any, output: Path, file: BinaryIO) -> Generator[Any]:
    """Context manager: open an HDF5 file for writing through the path of its file descriptor.

    If h5py got the Python file object instead, a failed write, for example on a full disk, would crash Python (h5py
    3.16).

    Args:
        h5py: The imported module.
        output: Path of the export, for error messages.
        file: Open temporary file, to which the HDF5 data are written.

    Raises:
        DatasetError: If the disk is full, or the operating system refuses the write.
    """
    try:
        with h5py.File(f"/proc/self/fd/{file.fileno()}", "w", locking=False) as target:
            yield target
    except RuntimeError as error:  # raised on closing; HDF5 states the reason only in the text
        raise (
            make_disk_full_error(output) if f"errno = {errno.ENOSPC}" in str(error) else convert_os_error(error, output)
        ) from error


def _parse_settings(reader: DatasetReader, options: ExportOptions) -> _Settings:
    values = options.settings
    compression, actions = values.get("compression", "lzf"), values.get("actions", "scaled")
    if compression not in _IMAGE_CODECS:
        raise UnknownNameError("compression", compression, _IMAGE_CODECS, where="the format robomimic")
    if actions not in ("scaled", "own"):
        raise UnknownNameError("kind of actions", actions, ("scaled", "own"), where="the format robomimic")
    try:
        valid = float(values.get("valid", _VALID))
    except ValueError:
        valid = -1.0
    if not 0.0 <= valid < 1.0:
        raise InputError(
            f"The setting valid is {values['valid']}. Give a share of the episodes from 0 to less than 1, such as 0.1."
        )
    return _Settings(
        cameras=select_cameras(reader, values.get("cameras")),
        compression=_IMAGE_CODECS[compression],
        valid=valid,
        scaled=actions == "scaled",
    )


def _action_range(reader: DatasetReader, episodes: Sequence[int]) -> tuple[names.Array, names.Array]:
    """Return the smallest and the largest action of each column over the episodes.

    If a column is constant, its value minus 1 and plus 1 are returned.

    Raises:
        InputError: If the dataset has no feature ``action``.
    """
    if ACTION not in reader.info["features"]:
        raise InputError(f"{reader.path} has no feature action, which a robomimic demonstration needs.")
    parts = [reader.array(index, ACTION).reshape(-1, _action_width(reader)) for index in episodes]
    low, high = (
        np.min([p.min(axis=0) for p in parts], axis=0),
        np.max([p.max(axis=0) for p in parts], axis=0),
    )
    still = high <= low
    return np.where(still, low - 1.0, low), np.where(still, high + 1.0, high)


def _action_width(reader: DatasetReader) -> int:
    return int(np.prod(reader.info["features"][ACTION]["shape"]))


def _write_demo(
    h5py: Any,
    demo: Any,
    streams: EpisodeStreams,
    settings: _Settings,
    simulation: StoredSimulation | None,
    limits: tuple[names.Array, names.Array],
) -> list[str]:
    """Write one episode to the HDF5 group ``demo``; return notes.

    Args:
        simulation: States and model of the episode, or None.
        limits: Smallest and largest action of each column, which are scaled to -1 and 1.
    """
    notes: list[str] = []
    action = streams.reader.array(streams.index, ACTION).reshape(streams.length, -1)
    demo.create_dataset("actions", data=names.to_unit(action, *limits) if settings.scaled else action, **_NUMBERS)
    demo.attrs["num_samples"] = streams.length
    demo.attrs[names.OURS] = dumps({"schema": names.SCHEMA, "name": streams.name, **_describe_demo(streams)})
    _write_outcome(demo, streams, notes)
    for group in ("obs", "next_obs"):
        demo.create_group(group)
    for channel in _read_observations(streams, notes):
        _write_observation(demo, channel)
    for camera in settings.cameras:
        _write_images(h5py, demo, streams, camera, settings.compression)
    _write_exact_values(demo, streams)
    _write_simulation(demo, streams, simulation, notes)
    return notes


def _describe_demo(streams: EpisodeStreams) -> dict[str, Any]:
    return {"tasks": list(streams.tasks), "provenance": streams.provenance}


def _write_outcome(demo: Any, streams: EpisodeStreams, notes: list[str]) -> None:
    """Write ``rewards`` and ``dones`` (1 in the last frame).

    Rewards are those of the dataset. If it has none, the reward is 1 in frames with success and 0 in other frames.
    """
    features = streams.reader.info["features"]
    key = next((key for key in (REWARD, SUCCESS) if key in features), None)
    if key is None:
        notes.append("the dataset has no outcomes: rewards are 0")
    rewards = np.zeros(streams.length) if key is None else streams.reader.array(streams.index, key).reshape(-1)
    demo.create_dataset("rewards", data=rewards.astype(np.float64), **_NUMBERS)
    demo.create_dataset("dones", data=(np.arange(streams.length) == streams.length - 1).astype(np.int64))


def _read_observations(streams: EpisodeStreams, notes: list[str]) -> Iterator[TimeSeries]:
    """Yield all numeric observations.

    If the units are known, also yield the joint positions under robosuite's name ``robot0_joint_pos``. If the units are
    unknown, a note is appended to ``notes``.
    """
    measured = [channel for channel in streams.joints_si() if channel.name == "measured"]
    if not measured:
        notes.append("joint units unknown: obs/state holds the dataset's numbers, and there is no robot0_joint_pos")
    for channel in measured:
        yield TimeSeries(**{**vars(channel), "name": names.JOINT_POSITIONS})
    for channel in streams.features():
        if channel.name.startswith("observation."):
            yield TimeSeries(**{**vars(channel), "name": names.observation_key(channel.name)})


def _write_observation(demo: Any, channel: TimeSeries) -> None:
    """Write a numeric observation to ``obs``, and shifted by one frame to ``next_obs``.

    The last value of ``next_obs`` repeats the last value of ``obs``.
    """
    after = np.concatenate([channel.values[1:], channel.values[-1:]])
    for group, values in (("obs", channel.values), ("next_obs", after)):
        stored = demo[group].create_dataset(channel.name, data=values, **_NUMBERS)
        stored.attrs["columns"], stored.attrs["units"] = dumps(channel.columns), dumps(channel.units)


def _write_images(h5py: Any, demo: Any, streams: EpisodeStreams, camera: str, compression: str | None) -> None:
    """Write images of T frames, shape ``(T, height, width, 3)`` of uint8, with one HDF5 chunk per image.

    ``next_obs`` is a virtual dataset that refers to the same images, so it needs no storage.

    Raises:
        InputError: If the episode has no images of this camera.
    """
    key, stored = names.observation_key(IMAGES + camera), None
    for frame, image in enumerate(streams.decode_images(camera)):
        if stored is None:
            shape = (streams.length, *image.shape)
            stored = demo["obs"].create_dataset(
                key, shape=shape, dtype=np.uint8, chunks=(1, *image.shape), compression=compression
            )
        stored[frame] = image
    if stored is None:
        raise InputError(f"Episode {streams.index} has no images from {camera}. Leave the episode or the camera out.")
    view = h5py.VirtualLayout(shape=stored.shape, dtype=np.uint8)
    source = h5py.VirtualSource(".", stored.name, shape=stored.shape)
    view[: streams.length - 1] = source[1:]
    view[streams.length - 1] = source[streams.length - 1]
    view.dcpl.set_obj_track_times(False)  # the same bytes at any time of day
    demo["next_obs"].create_virtual_dataset(key, view)


def _write_exact_values(demo: Any, streams: EpisodeStreams) -> None:
    """Write times, actions and states with the dataset's full precision to the group ``twinloop``."""
    ours = demo.create_group(names.OURS)
    ours.create_dataset(names.TIME, data=streams.time, **_NUMBERS)
    for name, key in ((names.ACTION, ACTION), (names.STATE, STATE)):
        if key in streams.reader.info["features"]:
            ours.create_dataset(name, data=streams.read_exact(key), **_NUMBERS)


def _write_simulation(
    demo: Any, streams: EpisodeStreams, simulation: StoredSimulation | None, notes: list[str]
) -> None:
    """Write the states of the T frames for robomimic, the state after the last frame separately, and the model.

    Args:
        demo: HDF5 group of the episode, ``data/demo_N``.
        streams: The episode.
        simulation: Model and, if the dataset has none, states of the episode. If it is None, no model is written, and
            ``states`` is empty, shape ``(T, 0)``, if the dataset has none.
        notes: List to which notes on missing data are added.
    """
    states = streams.states if streams.simulated else None if simulation is None else simulation.states
    if states is None:
        # robomimic requires the dataset ``states``, with dummy values if there is no simulator
        demo.create_dataset("states", data=np.zeros((streams.length, 0)))
        notes.append("no simulator's states: states is empty, and there is no model_file")
        return
    demo.create_dataset("states", data=states[: streams.length], **_NUMBERS)
    ours = demo[names.OURS]
    if len(states) > streams.length:
        ours.create_dataset(names.LAST_STATE, data=states[streams.length])
    if streams.simulated:
        ours.create_dataset(names.COMMANDS, data=streams.reader.commands(streams.index), **_NUMBERS)
    if simulation is None:
        notes.append("states without a model: model_file is left out")
        return
    demo.attrs["model_file"] = simulation.model
    ours.attrs["spec"], ours.attrs["notes"] = simulation.spec, dumps(simulation.notes)
    if simulation.controls is not None:
        ours.create_dataset(names.CONTROLS, data=simulation.controls, **_NUMBERS)
    notes.extend(simulation.notes)
    for name, content in simulation.assets.items():
        ours.require_group(names.ASSETS).create_dataset(name, data=np.frombuffer(content, dtype=np.uint8))


def _env_args(reader: DatasetReader, episodes: Sequence[int]) -> dict[str, Any]:
    """Return robomimic's description of the environment, from the first of the exported episodes.

    Its ``env_name`` is the name of the twin, or else the first task. A rollout in robomimic needs an environment with
    this name.
    """
    first = EpisodeStreams(reader, episodes[0])
    source = first.provenance.get("source", "real")
    return {
        "env_name": first.provenance.get("twin") or (first.tasks or ("unnamed",))[0],
        "env_version": first.provenance.get("versions", {}).get("mujoco", ""),
        "type": names.GYM if source == "sim" else names.REAL,
        "env_kwargs": {
            "control_freq": reader.fps,
            "robots": str(reader.info.get("robot_type") or ""),
            "task": (first.tasks or ("",))[0],
        },
    }


def _describe_file(reader: DatasetReader, settings: _Settings, low: names.Array, high: names.Array) -> dict[str, Any]:
    units = reader.units
    kind = EpisodeStreams(reader, 0).provenance.get("extra", {}).get("command", "position")
    return {
        "schema": names.SCHEMA,
        "fps": reader.fps,
        "robot_type": str(reader.info.get("robot_type") or ""),
        "units": None if units is None else units.to_json(),
        "action_columns": reader.feature_names(ACTION),
        "state_columns": reader.feature_names(STATE) if STATE in reader.info["features"] else [],
        "action_scale": {"low": low.tolist(), "high": high.tolist()} if settings.scaled else None,
        "command": kind,
        "observations": {
            names.observation_key(key): {"feature": key, "dtype": entry["dtype"]}
            for key, entry in reader.info["features"].items()
            if key.startswith("observation.")
        },
    }


def _write_masks(target: Any, reader: DatasetReader, episodes: Sequence[int], valid: float) -> None:
    """Write robomimic's filter keys ``train`` and ``valid``: the episodes of the training and validation sets.

    The split depends on the names of the episodes only. ``valid`` is the share of episodes in the validation set.
    """
    keys = [hashlib.sha256(EpisodeStreams(reader, index).name.encode()).digest() for index in episodes]
    count = min(max(round(valid * len(keys)), 1 if valid else 0), len(keys) - 1)
    held = set(np.argsort(np.array(keys, dtype="S32"), kind="stable")[:count].tolist())
    sides = {"train": [i for i in range(len(keys)) if i not in held], "valid": sorted(held)}
    for name, members in sides.items():
        if members:
            rows = np.array([f"demo_{i}".encode() for i in members])
            target.require_group("mask").create_dataset(name, data=rows)


EXPORTER = Exporter(
    name="robomimic",
    description="robomimic HDF5 with the simulator's states and models (.hdf5)",
    unsupported="statistics, side tables and video: images are stored decoded",
    write=export_robomimic,
    open_reader=open_export,
    settings=_SETTINGS,
)
