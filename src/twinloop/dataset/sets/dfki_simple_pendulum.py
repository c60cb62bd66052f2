"""The DFKI's torque-limited pendulum under several controllers.

Each run is a pair of CSV files of equal columns (time s, position rad with 0 hanging, velocity rad/s, torque N·m):
``data_measured*.csv`` and ``data_desired*.csv``, what was wanted. Where a controller followed a trajectory in the
drive's own position loop, the wanted torque is only its feed-forward part: `drive_loop` among the conditions is 1
there, and `joint_torque`, which the motor's current tells, is the whole.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twinloop.core.records import Signal
from twinloop.dataset.importers.numeric import read_columns, signal, unit_map
from twinloop.dataset.importers.raw import RawEpisode
from twinloop.dataset.sets.files import recordings

JOINT = "pendulum"
_COLUMNS = ["time", "position", "velocity", "torque"]
_PREFIX = "control_method_"


def read(folder: Path) -> list[RawEpisode]:
    """All runs, in ``control_method_*``; the task is the controller's folder, such as ``pd/system_identification``.

    ``mass_variant`` among the conditions is the mass in kg that the name of a file says (``data_measured_1kg.csv``),
    where it does.
    """
    files = recordings(folder, ".", f"{_PREFIX}*/**/data_measured*.csv")
    return [_episode(index, path, folder) for index, path in enumerate(files)]


def _episode(index: int, path: Path, folder: Path) -> RawEpisode:
    measured = read_columns(path, _COLUMNS)
    wanted_file = path.with_name(path.name.replace("measured", "desired"))
    wanted = read_columns(wanted_file, _COLUMNS) if wanted_file.is_file() else None
    time, name = measured["time"], path.relative_to(folder).as_posix()
    follows = wanted is not None and len(set(wanted["position"].tolist())) > 1
    signals = {
        "joint_velocity": signal(time, measured["velocity"], [JOINT], "rad/s"),
        "joint_torque": signal(time, measured["torque"], [JOINT], "N·m"),
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
        units=unit_map({JOINT: "rad"}, source="the set's description"),
        task=path.parent.relative_to(folder).as_posix().removeprefix(_PREFIX),
        origin=name,
        robot_type="simple_pendulum",
        command="torque",
        signals=signals | (_wanted_signals(wanted, issued) if follows and wanted is not None else {}),
        conditions={"drive_loop": float(follows)} | _mass(path),
    )


def _wanted_signals(wanted: dict[str, NDArray[np.float64]], time: NDArray[np.float64]) -> dict[str, Signal]:
    return {
        "desired_position": signal(time, wanted["position"], [JOINT], "rad"),
        "desired_velocity": signal(time, wanted["velocity"], [JOINT], "rad/s"),
    }


def _mass(path: Path) -> dict[str, float]:
    said = re.search(r"_(\d+(?:[._]\d+)?)kg$", path.stem)
    return {} if said is None else {"mass_variant": float(said[1].replace("_", "."))}
