"""Free bodies as channels: poses, errors of poses, twists.

A pose's orientation is compared as the rotation vector that takes the measured one to the predicted one, in the body's
axes: its measured columns are zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import mujoco
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.core.records import Episode
from twinloop.simulate.measure import Channel, Measure, at_frames
from twinloop.simulate.open_loop import Motion
from twinloop.twin import Twin

Array = NDArray[np.float64]


class BodyPose:
    """Position of a free body in m, and the rotation vector from its measured to its predicted orientation in rad."""

    records: tuple[str, ...] = ()

    def __init__(self, twin: Twin, body: str) -> None:
        self._signal, self._qpos = f"pose/{body}", free_joint(twin.model, body)[0]
        names = [("x", "m"), ("y", "m"), ("z", "m"), ("rx", "rad"), ("ry", "rad"), ("rz", "rad")]
        self.channels = tuple(Channel(name=f"pose/{body}/{name}", unit=unit) for name, unit in names)

    def measured(self, episode: Episode) -> Array:
        """See `Measure`."""
        return at_frames(episode, self._signal)

    def compare(self, kept: Array) -> Array:
        """See `Measure`."""
        turned = np.where(np.isnan(kept[..., 3:6]), np.nan, 0.0)
        return np.concatenate([kept[..., :3], turned], axis=-1)

    def instead(self, kept: Array, other: Array) -> Array:
        """See `Measure`."""
        return _pose_columns(other, kept)

    def predicted(self, run: Motion, table: ParamTable, kept: Array) -> Array:  # noqa: ARG002  # the protocol's
        """See `Measure`."""
        return _pose_columns(run.qpos[..., self._qpos : self._qpos + 7], kept)


class BodyPoseError:
    """How far a free body is from where it was measured, in m, and by what angle it is turned, in rad.

    Measured, both are zero. What tumbles comes to rest here or there, and is better judged by how far off it is than by
    each of six columns.
    """

    records: tuple[str, ...] = ()

    def __init__(self, twin: Twin, body: str) -> None:
        self._pose = BodyPose(twin, body)
        self.channels = tuple(
            Channel(name=f"pose_error/{body}/{name}", unit=unit) for name, unit in (("distance", "m"), ("angle", "rad"))
        )

    def measured(self, episode: Episode) -> Array:
        """See `Measure`."""
        return self._pose.measured(episode)

    def compare(self, kept: Array) -> Array:
        """See `Measure`."""
        return np.where(np.isnan(kept[..., :1]), np.nan, np.zeros(2))

    def instead(self, kept: Array, other: Array) -> Array:
        """See `Measure`."""
        return _sizes(self._pose.instead(kept, other), kept)

    def predicted(self, run: Motion, table: ParamTable, kept: Array) -> Array:
        """See `Measure`."""
        return _sizes(self._pose.predicted(run, table, kept), kept)


class BodyTwist:
    """Linear velocity of a free body in the world's axes (m/s) and its angular velocity in its own (rad/s)."""

    records: tuple[str, ...] = ()

    def __init__(self, twin: Twin, body: str) -> None:
        self._signal, self._qvel = f"twist/{body}", free_joint(twin.model, body)[1]
        names = [(f"v{axis}", "m/s") for axis in "xyz"] + [(f"w{axis}", "rad/s") for axis in "xyz"]
        self.channels = tuple(Channel(name=f"twist/{body}/{name}", unit=unit) for name, unit in names)

    def measured(self, episode: Episode) -> Array:
        """See `Measure`."""
        return at_frames(episode, self._signal)

    def compare(self, kept: Array) -> Array:
        """See `Measure`."""
        return kept

    def instead(self, kept: Array, other: Array) -> Array:  # noqa: ARG002  # the protocol's
        """See `Measure`."""
        return other

    def predicted(self, run: Motion, table: ParamTable, kept: Array) -> Array:  # noqa: ARG002  # the protocol's
        """See `Measure`."""
        return run.qvel[..., self._qvel : self._qvel + 6]


BODIES: Mapping[str, Callable[[Twin, str], Measure]] = {
    "pose": BodyPose,
    "pose_error": BodyPoseError,
    "twist": BodyTwist,
}


def free_joint(model: mujoco.MjModel, body: str) -> tuple[int, int]:
    """Addresses in qpos and qvel of a body's free joint.

    Raises:
        UnknownNameError: no such body.
        InputError: it cannot move freely.
    """
    names = [model.body(i).name for i in range(model.nbody)]
    if body not in names:
        raise UnknownNameError("body", body, names[1:])
    joint = int(model.body_jntadr[model.body(body).id])
    if joint < 0 or model.jnt_type[joint] != int(mujoco.mjtJoint.mjJNT_FREE):
        raise InputError(f"The body {body} has no free joint, so a measured pose cannot place it.")
    return int(model.jnt_qposadr[joint]), int(model.jnt_dofadr[joint])


def _sizes(columns: Array, kept: Array) -> Array:
    """Distance from the kept position and angle, ``(…, 2)``, of positions and rotation vectors ``(…, 6)``."""
    away = columns - np.concatenate([kept[..., :3], np.zeros_like(kept[..., :3])], axis=-1)
    return np.stack([np.linalg.norm(away[..., :3], axis=-1), np.linalg.norm(away[..., 3:], axis=-1)], axis=-1)


def _pose_columns(pose: Array, kept: Array) -> Array:
    """Positions, and the rotation vectors from the kept poses to these, ``(…, 6)``; NaN where nothing was kept."""
    turned = np.full((*pose.shape[:-1], 3), np.nan)
    known = ~np.isnan(kept).any(axis=-1) & np.isfinite(pose).all(axis=-1)
    before = Rotation.from_quat(kept[known][:, 3:], scalar_first=True)
    after = Rotation.from_quat(pose[known][:, 3:], scalar_first=True)
    turned[known] = (before.inv() * after).as_rotvec()
    return np.concatenate([pose[..., :3], turned], axis=-1)
