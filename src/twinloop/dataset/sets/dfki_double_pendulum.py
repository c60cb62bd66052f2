"""The DFKI's torque-controlled double pendulum: identification runs of design C.1, and rollouts of controllers.

CSV: time s, pos_* rad (0 hangs; the second joint is relative to the first link), vel_* rad/s, tau_* N·m, each for
joints 1 and 2. ``tau_con`` is what was asked of the motors, ``tau_fric`` the part of it that compensates friction,
``tau_meas`` what the motors' currents say. Further columns (``pos_des1``, …) are ignored.
"""

from __future__ import annotations

from pathlib import Path

from twinloop.dataset.importers.numeric import read_columns, signal, stack, unit_map
from twinloop.dataset.importers.raw import RawEpisode
from twinloop.dataset.sets.files import recordings

JOINTS = ("shoulder", "elbow")
_SIGNALS = {  # name of ours: (their column, unit)
    "joint_velocity": ("vel_meas", "rad/s"),
    "joint_torque": ("tau_meas", "N·m"),
    "filtered_position": ("pos_filt", "rad"),
    "filtered_velocity": ("vel_filt", "rad/s"),
    "friction_compensation": ("tau_fric", "N·m"),
}


def read_identification(folder: Path) -> list[RawEpisode]:
    """The identification runs, in ``sys_id_C1``."""
    files = recordings(folder, "sys_id_C1", "*.csv")
    return [_episode(index, path, "identification") for index, path in enumerate(files)]


def read_rollouts(folder: Path) -> list[RawEpisode]:
    """The rollouts of all controllers, in ``real_rollouts/CONTROLLER``; the task is the controller's name."""
    files = recordings(folder, "real_rollouts", "*/*.csv")
    return [_episode(index, path, path.parent.name) for index, path in enumerate(files)]


def _episode(index: int, path: Path, task: str) -> RawEpisode:
    columns = read_columns(
        path, ["time", *_pair("tau_con"), *_pair("pos_meas"), *(c for v, _ in _SIGNALS.values() for c in _pair(v))]
    )
    time = columns["time"]
    return RawEpisode(
        index=index,
        time=time,
        action=stack(columns, _pair("tau_con")),
        state=stack(columns, _pair("pos_meas")),
        units=unit_map(dict.fromkeys(JOINTS, "rad"), source="the set's description"),
        task=task,
        origin=f"{path.parent.name}/{path.name}",
        robot_type="double_pendulum",
        command="torque",
        signals={
            name: signal(time, stack(columns, _pair(theirs)), JOINTS, unit) for name, (theirs, unit) in _SIGNALS.items()
        },
    )


def _pair(column: str) -> tuple[str, str]:
    return f"{column}1", f"{column}2"
