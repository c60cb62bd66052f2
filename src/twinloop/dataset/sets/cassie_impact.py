"""Landings of the biped Cassie: 50 ms around touchdown, estimated states and measured motor torques.

``data/x_NN.npy`` ``(T, 45)``: the pelvis' quaternion wxyz and position, 16 joint positions; its angular and linear
velocity, both in the world's axes (the angular one turns the quaternion at 0.14 rad/s error there, 0.41 in the body's),
and 16 joint velocities; ``u_NN.npy`` ``(T, 10)`` motor torques at the joints, ``t_NN.npy`` ``(T,)`` times. The ankle
springs have no encoder: their positions come from inverse kinematics and their velocities are 0 in the files.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import LogError
from twinloop.dataset.importers.numeric import bounded, signal, unit_map
from twinloop.dataset.importers.raw import RawEpisode
from twinloop.dataset.sets.files import number, recordings

BODY = "pelvis"
_BOTH = ("hip_roll", "hip_yaw", "hip_pitch", "knee", "knee_joint", "ankle_joint")
_SIDES = ("left", "right")
JOINTS = (
    *(f"{name}_{side}" for name in _BOTH for side in _SIDES),
    *(f"{name}_{side}" for side in _SIDES for name in ("ankle_spring_joint", "toe")),
)
MOTORS = tuple(f"{name}_{side}" for name in (*_BOTH[:4], "toe") for side in _SIDES)
_POSE = ("x", "y", "z", "qw", "qx", "qy", "qz")
_TWIST = ("vx", "vy", "vz", "wx", "wy", "wz")
_LEGEND = "post_processed_trajectories_legend.md"
_MOST_BYTES = 1 << 28


def read(folder: Path) -> list[RawEpisode]:
    """All landings, in ``data``, numbered as their files are; ``pelvis_offset`` (m) from the legend."""
    offsets = _offsets(folder / _LEGEND)
    return [_episode(path, offsets) for path in recordings(folder, "data", "x_*.npy")]


def _episode(path: Path, offsets: dict[int, float]) -> RawEpisode:
    index = number(path)
    x = _load(path, 2)
    u = _load(path.with_name(path.name.replace("x_", "u_", 1)), 2)
    time = _load(path.with_name(path.name.replace("x_", "t_", 1)), 1)
    n = len(JOINTS)
    if x.shape != (len(time), 13 + 2 * n) or u.shape != (len(time), len(MOTORS)):
        raise LogError(f"{path}: states {x.shape}, torques {u.shape} and times {time.shape} are not of one landing.")
    position, joints, spin, velocity, rates = np.split(x, [7, 7 + n, 10 + n, 13 + n], axis=1)
    state = joints
    body_spin = _into_body(position[:, :4], spin)
    return RawEpisode(
        index=index,
        time=time,
        action=np.zeros_like(state),
        state=state,
        units=unit_map(dict.fromkeys(JOINTS, "rad"), source="the set's description"),
        task="jump landing",
        origin=f"{path.parent.name}/{path.name}",
        robot_type="cassie",
        command="none",
        signals={
            "joint_velocity": signal(time, rates, JOINTS, "rad/s"),
            "joint_torque": signal(time, u, MOTORS, "N·m"),
            f"pose/{BODY}": signal(time, np.roll(position, 3, axis=1), _POSE, ""),
            f"twist/{BODY}": signal(time, np.concatenate([velocity, body_spin], axis=1), _TWIST, ""),
        },
        conditions={"pelvis_offset": offsets[index]} if index in offsets else {},
    )


def _into_body(wxyz: NDArray[np.float64], vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Vectors ``(T, 3)`` in the axes of a body with these orientations; whatever is wrong with those stays wrong."""
    with np.errstate(over="ignore", invalid="ignore"):
        axis = -wxyz[:, 1:]
        across = 2 * np.cross(axis, vectors)
        return vectors + wxyz[:, :1] * across + np.cross(axis, across)


def _load(path: Path, rank: int) -> NDArray[np.float64]:
    try:
        values = np.asarray(np.load(bounded(path, _MOST_BYTES), allow_pickle=False), dtype=np.float64)
    except Exception as error:  # a damaged header raises anything
        raise LogError(f"{path} is not an array of numbers ({error}).") from error
    if values.ndim != rank:
        raise LogError(f"{path} holds an array of shape {values.shape}, expected {rank} axes.")
    return values


def _offsets(path: Path) -> dict[int, float]:
    """The table's offsets of the pelvis' height in m, by number."""
    if not path.is_file():
        return {}
    rows = re.findall(r"^\|\s*(\d+)\s*\|.*\|\s*(-?[\d.]+)\s*\|\s*$", path.read_text(), re.MULTILINE)
    return {int(row): float(offset) for row, offset in rows}
