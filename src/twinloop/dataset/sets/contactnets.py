"""ContactNets' tosses of a cube: one legacy torch file per toss.

A tensor ``(1, T, 19)``: position, quaternion wxyz, linear velocity in the world's axes, angular velocity in the body's,
and six zeros where a controller would be. Positions and linear velocities are divided by half the cube's side.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from twinloop.core.errors import LogError
from twinloop.core.units import UnitMap
from twinloop.dataset.importers.numeric import signal
from twinloop.dataset.importers.raw import RawEpisode
from twinloop.dataset.importers.torch_legacy import read_tensor
from twinloop.dataset.sets.files import number, recordings

BODY = "cube"
HALF_WIDTH_M = 0.0524  # the length by which upstream divides (experiment.json: g = 9.81 / 0.0524 = 187.2)
RATE_HZ = 148.0  # experiment.json: dt = 1/148 s
_WIDTH = 19
_POSE = ("x", "y", "z", "qw", "qx", "qy", "qz")
_TWIST = ("vx", "vy", "vz", "wx", "wy", "wz")


def read(folder: Path) -> list[RawEpisode]:
    """All tosses, in ``tosses_processed``, numbered as their files are."""
    return [_episode(path) for path in recordings(folder, "tosses_processed", "*.pt")]


def _episode(path: Path) -> RawEpisode:
    values = np.asarray(read_tensor(path), dtype=np.float64)
    if values.shape != (1, *values.shape[1:2], _WIDTH):
        raise LogError(f"{path} holds a tensor of shape {values.shape}; a toss is (1, frames, {_WIDTH}).")
    rows = values[0] * np.repeat([HALF_WIDTH_M, 1.0, HALF_WIDTH_M, 1.0], [3, 4, 3, 9])
    time = np.arange(len(rows)) / RATE_HZ
    nothing = np.empty((len(rows), 0))
    return RawEpisode(
        index=number(path),
        time=time,
        action=nothing,
        state=nothing,
        units=UnitMap(joints=(), source="a body without joints"),
        task="toss",
        origin=f"{path.parent.name}/{path.name}",
        robot_type="cube_toss",
        command="none",
        signals={
            f"pose/{BODY}": signal(time, rows[:, :7], _POSE, ""),
            f"twist/{BODY}": signal(time, rows[:, 7:13], _TWIST, ""),
        },
    )
