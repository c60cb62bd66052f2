"""Specify a dataset (robot, frame rate, joints with units, cameras), and build its LeRobot metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twinloop.core.errors import InputError, UnitsError
from twinloop.core.units import UnitMap
from twinloop.dataset.lerobot import layout

STATE, TRUE_TIME = "observation.state", "observation.time"
RUNS = "runs"  # key in DatasetSpec.config of edited datasets: run configurations by the config_hash of the provenance
# Settings of the encoder of `media.video`, by LeRobot's names (lerobot 0.6.1, `configs/video.py`). Speed and size were
# measured on two busy cores, two 240×320 cameras of rendered-like frames (benchmarks/speed/writer.py), encoding alone,
# in steps/s and MB per 1000 steps: ultrafast 1300-1900 and 7.6, superfast 680-1070 and 7.6, veryfast 430-890 and 3.6,
# faster 410-750 and 3.0, all within 0.7 dB. Rendering needs the same cores, so speed counts more than size here.
ENCODER: Mapping[str, Any] = {
    "g": 2,
    "crf": 23,
    "preset": "ultrafast",
    "fast_decode": 0,
    "video_backend": "pyav",
    "extra_options": {"bf": 0},
}
INDEX_FEATURES = ("timestamp", "frame_index", "episode_index", "index", "task_index")


@dataclass(frozen=True, kw_only=True)
class CameraSpec:
    """One camera of a dataset.

    Attributes:
        name: Name as in ``observation.images.NAME``; without "/".
        height: Height of the images in px, even and at least 16.
        width: Width of the images in px, even and at least 16.
    """

    name: str
    height: int
    width: int

    def __post_init__(self) -> None:
        if "/" in self.name or not self.name:
            raise InputError(f"The camera name {self.name!r} cannot be used: LeRobot allows no '/' in feature names.")
        if self.height % 2 or self.width % 2 or min(self.height, self.width) < 16:
            raise InputError(
                f"Camera {self.name} is {self.width}×{self.height}: yuv420p video needs even sides of at least 16."
            )

    @property
    def key(self) -> str:
        """Name of the camera's feature in LeRobot's files, ``observation.images.NAME``."""
        return f"observation.images.{self.name}"


@dataclass(frozen=True, kw_only=True)
class ReadingSpec:
    """One sensor whose readings at every frame are a dataset feature.

    Attributes:
        name: Name as in ``observation.NAME``; without "/".
        columns: Names of the columns.
        units: Unit of each column.
    """

    name: str
    columns: tuple[str, ...]
    units: tuple[str, ...]

    def __post_init__(self) -> None:
        if "/" in self.name or not self.name or self.key in (STATE, TRUE_TIME) or self.name.startswith("images."):
            raise InputError(
                f"The sensor name {self.name!r} cannot be used as a feature name: LeRobot allows no '/', and "
                "observation.state, observation.time and observation.images.* are reserved. Rename the sensor."
            )
        if not self.columns or len(self.columns) != len(self.units):
            raise InputError(
                f"The readings {self.name} have {len(self.columns)} columns and {len(self.units)} units. "
                "Give one unit for each column, and at least one."
            )

    @property
    def key(self) -> str:
        """Name of the sensor's feature in LeRobot's files, ``observation.NAME``."""
        return f"observation.{self.name}"


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """Properties that are the same for all episodes of a dataset.

    As in LeRobot, the columns of the action and the first columns of the observation are named ``JOINT.pos`` on
    disk.

    Attributes:
        name: Name of the dataset.
        robot_type: LeRobot's name of the robot.
        fps: Frames per second.
        joints: Joint names in column order.
        units: Units of the joint columns, for the conversion to SI.
        cameras: Cameras with a video per episode.
        extra_state: Names of further observation columns after the joints.
        config: JSON-compatible settings from which the dataset was generated.
        twin_hash: Hash of the twin.
        config_hash: Hash of the generation settings.
        block_size: Number of attempts per block (group of episodes with its own files). Attempts that fail give no
            episode.
        success: Whether frames have the column ``next.success``.
        unsteady: Whether the period of the control loop varies. Frames then have the column ``observation.time``,
            their true time in s, in addition to LeRobot's nominal timestamps.
        licence: Licence of the data.
        readings: Features of further sensors.
        ranges: Sentences on the ranges of the randomization for the dataset card, one per line.
        sources: Files of the user's own twin and task that are copied into the dataset, by their path in
            its folder ``twinloop``.
    """

    name: str
    robot_type: str
    fps: int
    joints: tuple[str, ...]
    units: UnitMap
    cameras: tuple[CameraSpec, ...] = ()
    extra_state: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    twin_hash: str = ""
    config_hash: str = ""
    block_size: int = 64
    success: bool = True
    unsteady: bool = False
    licence: str = ""
    readings: tuple[ReadingSpec, ...] = ()
    ranges: tuple[str, ...] = ()
    sources: Mapping[str, Path] = field(default_factory=dict[str, Path], compare=False)

    def __post_init__(self) -> None:
        if self.fps < 1:
            raise InputError(f"fps is {self.fps}; LeRobot needs a whole number of frames per second, at least 1.")
        if self.block_size < 1:
            raise InputError(f"block_size is {self.block_size}; a block covers at least one episode number.")
        if self.units.names != self.joints:
            raise UnitsError(
                f"The unit map covers {', '.join(self.units.names)}, the dataset's joints are "
                f"{', '.join(self.joints)}. Give one unit per joint, in column order."
            )

    @property
    def action_names(self) -> tuple[str, ...]:
        """Column names of ``action``."""
        return tuple(f"{joint}.pos" for joint in self.joints)

    @property
    def state_names(self) -> tuple[str, ...]:
        """Column names of ``observation.state``."""
        return self.action_names + self.extra_state

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``twinloop/dataset.json``, a JSON-compatible dictionary."""
        return {
            "schema": layout.SCHEMA,
            "name": self.name,
            "robot_type": self.robot_type,
            "fps": self.fps,
            "joints": list(self.joints),
            "extra_state": list(self.extra_state),
            "units": self.units.to_json(),
            "cameras": [{"name": c.name, "height": c.height, "width": c.width} for c in self.cameras],
            "config": dict(self.config),
            "twin_hash": self.twin_hash,
            "config_hash": self.config_hash,
            "block_size": self.block_size,
            "success": self.success,
            "unsteady": self.unsteady,
            "licence": self.licence,
            **({"readings": [vars(reading) for reading in self.readings]} if self.readings else {}),
            **({"ranges": list(self.ranges)} if self.ranges else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], *, where: str) -> DatasetSpec:
        """Read the dictionary that `to_json` returns, of any schema version up to the current one.

        Args:
            value: Parsed content of ``twinloop/dataset.json``.
            where: Path of the file, for error messages.

        Raises:
            DatasetError: If a key is missing or has a value of another type, or a newer version wrote the file.
        """
        layout.require_keys(value, ("name", "robot_type", "fps", "joints", "units"), where=where)
        with layout.wrap_parse_errors(where):
            fields = {key: item for key, item in value.items() if key != "schema"}
            fields["units"] = UnitMap.from_json(fields["units"])
            fields["cameras"] = tuple(CameraSpec(**camera) for camera in fields.get("cameras", ()))
            fields["readings"] = tuple(
                ReadingSpec(name=row["name"], columns=tuple(row["columns"]), units=tuple(row["units"]))
                for row in fields.get("readings", ())
            )
            for key in ("joints", "extra_state", "ranges"):
                fields[key] = tuple(fields.get(key, ()))
            return cls(**fields)


def build_features(spec: DatasetSpec) -> dict[str, Any]:
    """Return the ``features`` entry of LeRobot's ``meta/info.json``: type, shape and column names of each feature."""
    table: dict[str, Any] = {
        "action": {"dtype": "float32", "shape": [len(spec.action_names)], "names": list(spec.action_names)},
        "observation.state": {"dtype": "float32", "shape": [len(spec.state_names)], "names": list(spec.state_names)},
    }
    for reading in spec.readings:
        table[reading.key] = {"dtype": "float32", "shape": [len(reading.columns)], "names": list(reading.columns)}
    if spec.unsteady:
        table[TRUE_TIME] = {"dtype": "float32", "shape": [1], "names": None}
    for camera in spec.cameras:
        table[camera.key] = _video_feature(camera, spec.fps)
    if spec.success:
        table["next.success"] = {"dtype": "bool", "shape": [1], "names": None}
    for name in INDEX_FEATURES:
        table[name] = {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None}
    return table


def _video_feature(camera: CameraSpec, fps: int) -> dict[str, Any]:
    return {
        "dtype": "video",
        "shape": [camera.height, camera.width, 3],
        "names": ["height", "width", "channels"],
        "info": {
            "video.height": camera.height,
            "video.width": camera.width,
            "video.codec": "h264",  # the stream's codec; the encoder's name breaks LeRobot's own tools
            "video.pix_fmt": "yuv420p",
            "is_depth_map": False,
            "video.fps": fps,
            "video.channels": 3,
            "has_audio": False,
            **{f"video.{name}": value for name, value in ENCODER.items()},
        },
    }


def build_info(spec: DatasetSpec, *, episodes: int, frames: int, tasks: int) -> dict[str, Any]:
    """Return the content of LeRobot's ``meta/info.json``, from the numbers of episodes, frames and tasks."""
    return {
        "codebase_version": "v3.0",
        "robot_type": spec.robot_type,
        "total_episodes": episodes,
        "total_frames": frames,
        "total_tasks": tasks,
        "chunks_size": layout.FILES_PER_CHUNK,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": spec.fps,
        "splits": {"train": f"0:{episodes}"},
        "data_path": layout.DATA_PATH,
        "video_path": layout.VIDEO_PATH if spec.cameras else None,
        "features": build_features(spec),
    }


def build_modality(spec: DatasetSpec) -> dict[str, Any]:
    """Return the content of ``meta/modality.json`` for GR00T: columns of each joint, and short camera names."""
    rows = {name: {"start": i, "end": i + 1} for i, name in enumerate(spec.state_names)}
    return {
        "state": {name.removesuffix(".pos"): span for name, span in rows.items()},
        "action": {joint: {"start": i, "end": i + 1} for i, joint in enumerate(spec.joints)},
        "video": {camera.name: {"original_key": camera.key} for camera in spec.cameras},
        "annotation": {"human.task_description": {"original_key": "task_index"}},
    }
