"""Read the public sets of pendulums: Rhoban's servos (BAM), and the single and double pendulum of DFKI.

BAM: one JSON file per run. It has a header (mass kg, length m, kp in the firmware's unit, vin V, motor,
trajectory) and entries (timestamp s, position and goal_position rad with 0 hanging down, speed rad/s, load in
the firmware's unit, input_volts, temp °C, torque_enable).

Double pendulum: CSV files with time s, pos_* rad (0 hangs down; the second joint is relative to the first
link), vel_* rad/s, tau_* N·m, each for joints 1 and 2. ``tau_con`` is the commanded torque, ``tau_fric`` its
part that compensates friction, ``tau_meas`` the torque computed from the motors' currents. Further columns
(``pos_des1``, …) are ignored.

Simple pendulum: each run is a pair of CSV files of equal columns (time s, position rad with 0 hanging down,
velocity rad/s, torque N·m): ``data_measured*.csv`` and ``data_desired*.csv``. If a controller followed a
trajectory in the drive's internal position loop, the commanded torque is only its feed-forward part: the
condition `drive_loop` is then 1, and `joint_torque`, from the motor's current, is the total.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.documents import read_json
from twinloop.core.errors import LogError
from twinloop.core.records import LoggedSignal
from twinloop.dataset.logs.importers.protocol import RawEpisode
from twinloop.dataset.logs.importers.tables import make_signal, make_unit_map, read_columns, stack_columns
from twinloop.dataset.logs.sets.files import find_recordings

SERVO_JOINT = "pendulum"
_SERVO_CONDITIONS = {"kp": "firmware_kp", "mass": "mass", "length": "length", "vin": "voltage"}
_SERVO_SIGNALS = {  # field: (signal, unit)
    "speed": ("joint_velocity", "rad/s"),
    "torque_enable": ("enabled", "1"),
    "load": ("load", "1"),
    "input_volts": ("voltage", "V"),
    "temp": ("temperature", "°C"),
}
_MOST_SERVO_BYTES = 1 << 28


def read_xl330(folder: Path) -> list[RawEpisode]:
    """Read the runs of a pendulum on an XL330 servo in the subfolder ``xl330_raw``."""
    return _read_servo(folder, "xl330_raw")


def read_sts3250(folder: Path) -> list[RawEpisode]:
    """Read the runs of a pendulum on an STS3250 servo in the subfolder ``feetech_sts3250_raw``."""
    return _read_servo(folder, "feetech_sts3250_raw")


def _read_servo(folder: Path, subfolder: str) -> list[RawEpisode]:
    files = find_recordings(folder, subfolder, "*.json")
    return [_servo_episode(index, path) for index, path in enumerate(files)]


def _servo_episode(index: int, path: Path) -> RawEpisode:
    try:
        run = read_json(path, max_bytes=_MOST_SERVO_BYTES)
        entries: list[Mapping[str, Any]] = run["entries"]
        conditions = {ours: float(run[theirs]) for theirs, ours in _SERVO_CONDITIONS.items()}
        time, goal, position = (_servo_column(entries, name) for name in ("timestamp", "goal_position", "position"))
        signals = {
            ours: make_signal(time, _servo_column(entries, theirs), (_servo_label(ours),), unit)
            for theirs, (ours, unit) in _SERVO_SIGNALS.items()
        }
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise LogError(f"{path} is not a log of a BAM pendulum ({type(error).__name__}: {error}).") from error
    return RawEpisode(
        index=index,
        time=time,
        action=goal[:, None],
        state=position[:, None],
        units=make_unit_map({SERVO_JOINT: "rad"}, source="BAM's format"),
        task=str(run.get("trajectory", "")),
        origin=f"{path.parent.name}/{path.name}",
        robot_type=str(run.get("motor", "")),
        signals=signals,
        conditions=conditions,
    )


def _servo_label(name: str) -> str:
    return SERVO_JOINT if name.startswith("joint_") else name


def _servo_column(entries: list[Mapping[str, Any]], name: str) -> NDArray[np.float64]:
    """Return one field of all entries as an array; null becomes NaN."""
    return np.array([entry[name] for entry in entries], dtype=np.float64)


DOUBLE_JOINTS = ("shoulder", "elbow")
_DOUBLE_SIGNALS = {  # name of ours: (their column, unit)
    "joint_velocity": ("vel_meas", "rad/s"),
    "joint_torque": ("tau_meas", "N·m"),
    "filtered_position": ("pos_filt", "rad"),
    "filtered_velocity": ("vel_filt", "rad/s"),
    "friction_compensation": ("tau_fric", "N·m"),
}


def read_identification(folder: Path) -> list[RawEpisode]:
    """Read the identification runs of the double pendulum in the subfolder ``sys_id_C1``."""
    files = find_recordings(folder, "sys_id_C1", "*.csv")
    return [_double_episode(index, path, "identification") for index, path in enumerate(files)]


def read_rollouts(folder: Path) -> list[RawEpisode]:
    """Read the rollouts of the double pendulum in ``real_rollouts/CONTROLLER``; CONTROLLER becomes the task."""
    files = find_recordings(folder, "real_rollouts", "*/*.csv")
    return [_double_episode(index, path, path.parent.name) for index, path in enumerate(files)]


def _double_episode(index: int, path: Path, task: str) -> RawEpisode:
    columns = read_columns(
        path,
        ["time", *_pair("tau_con"), *_pair("pos_meas"), *(c for v, _ in _DOUBLE_SIGNALS.values() for c in _pair(v))],
    )
    time = columns["time"]
    return RawEpisode(
        index=index,
        time=time,
        action=stack_columns(columns, _pair("tau_con")),
        state=stack_columns(columns, _pair("pos_meas")),
        units=make_unit_map(dict.fromkeys(DOUBLE_JOINTS, "rad"), source="the set's description"),
        task=task,
        origin=f"{path.parent.name}/{path.name}",
        robot_type="double_pendulum",
        command="torque",
        signals={
            name: make_signal(time, stack_columns(columns, _pair(theirs)), DOUBLE_JOINTS, unit)
            for name, (theirs, unit) in _DOUBLE_SIGNALS.items()
        },
    )


def _pair(column: str) -> tuple[str, str]:
    return f"{column}1", f"{column}2"


SIMPLE_JOINT = "pendulum"
_SIMPLE_COLUMNS = ["time", "position", "velocity", "torque"]
_PREFIX = "control_method_"


def read_simple_pendulum(folder: Path) -> list[RawEpisode]:
    """Read all runs of the simple pendulum in ``control_method_*``.

    The task is the subfolder of a run without ``control_method_``, for example ``pd/system_identification`` for files
    in ``control_method_pd/system_identification``. The condition ``mass_variant`` is the mass in kg in the name of a
    file (``data_measured_1kg.csv``), if it has one.
    """
    files = find_recordings(folder, ".", f"{_PREFIX}*/**/data_measured*.csv")
    return [_simple_episode(index, path, folder) for index, path in enumerate(files)]


def _simple_episode(index: int, path: Path, folder: Path) -> RawEpisode:
    measured = read_columns(path, _SIMPLE_COLUMNS)
    wanted_file = path.with_name(path.name.replace("measured", "desired"))
    wanted = read_columns(wanted_file, _SIMPLE_COLUMNS) if wanted_file.is_file() else None
    time, name = measured["time"], path.relative_to(folder).as_posix()
    follows = wanted is not None and len(set(wanted["position"].tolist())) > 1
    signals = {
        "joint_velocity": make_signal(time, measured["velocity"], [SIMPLE_JOINT], "rad/s"),
        "joint_torque": make_signal(time, measured["torque"], [SIMPLE_JOINT], "N·m"),
    }
    command = measured["torque"] if wanted is None else wanted["torque"]
    # Row by row, at the time of the measurement: the plan's own times are those of a loop that kept its rate.
    issued = time if wanted is None or len(command) == len(time) else wanted["time"]
    return RawEpisode(
        index=index,
        time=time,
        action=command[:, None],
        action_time=None if issued is time else issued,
        state=measured["position"][:, None],
        units=make_unit_map({SIMPLE_JOINT: "rad"}, source="the set's description"),
        task=path.parent.relative_to(folder).as_posix().removeprefix(_PREFIX),
        origin=name,
        robot_type="simple_pendulum",
        command="torque",
        signals=signals | (_desired_signals(wanted, issued) if follows and wanted is not None else {}),
        conditions={"drive_loop": float(follows)} | _simple_mass(path),
    )


def _desired_signals(wanted: dict[str, NDArray[np.float64]], time: NDArray[np.float64]) -> dict[str, LoggedSignal]:
    return {
        "desired_position": make_signal(time, wanted["position"], [SIMPLE_JOINT], "rad"),
        "desired_velocity": make_signal(time, wanted["velocity"], [SIMPLE_JOINT], "rad/s"),
    }


def _simple_mass(path: Path) -> dict[str, float]:
    match = re.search(r"_(\d+(?:[._]\d+)?)kg$", path.stem)
    return {} if match is None else {"mass_variant": float(match[1].replace("_", "."))}
