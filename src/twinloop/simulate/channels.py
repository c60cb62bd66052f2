"""Compute the channels that a log measures and a replay predicts: positions, velocities, body poses, sensors.

An orientation is compared as the rotation vector from the measured to the predicted one, in the body's axes; its
measured columns are zero.

Each kind of channel gives measured columns, and the same columns predicted from a rollout, so that they subtract.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import mujoco
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from twinloop.core.errors import InputError, LogError, UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.core.records import Episode
from twinloop.core.units import UnitMap
from twinloop.simulate.open_loop import ReplayedMotion
from twinloop.twin import Twin

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class MeasuredChannel:
    """One column that is measured and predicted, such as ``position/elbow`` or ``pose/cube/rx``."""

    name: str
    unit: str


class ChannelKind(Protocol):
    """Protocol of one kind of compared channels. ``records`` are the derived fields that a rollout records for it."""

    channels: tuple[MeasuredChannel, ...]
    records: tuple[str, ...]

    def extract_data(self, episode: Episode) -> Array:
        """Return the data of an episode that this kind needs, ``(T, r)`` at its frames; NaN without a measurement."""
        ...

    def compute_measured(self, kept: Array) -> Array:
        """Return the measured columns ``(…, k)`` from the data of `measured`."""
        ...

    def substitute_data(self, kept: Array, other: Array) -> Array:
        """Return the predicted columns ``(…, nframe, k)`` with ``other`` in place of the measured data."""
        ...

    def predict_columns(self, run: ReplayedMotion, table: ParamTable, kept: Array) -> Array:
        """Return the predictions ``(nworld, nframe, k)``; ``kept`` is the measured data ``(nworld, nframe, r)``."""
        ...


def hold_first_frame(kept: Array) -> Array:
    """Return the first frame of ``(…, nframe, k)``, repeated over all frames; NaN for a missing measurement."""
    return np.where(np.isnan(kept), np.nan, kept[..., :1, :])


def interpolate_at_frames(episode: Episode, name: str) -> Array:
    """Return a signal at the times of an episode's frames, linearly interpolated; NaN outside the signal's times.

    Raises:
        LogError: the episode has no such signal; the message names those that it has.
    """
    if name not in episode.signals:
        has = ", ".join(episode.signals) or "none besides joint positions"
        raise LogError(f"Episode {episode.index} of {episode.origin or 'the log'} has no signal {name}. It has: {has}.")
    signal = episode.signals[name]
    if np.array_equal(signal.time, episode.time):
        return np.array(signal.values)
    columns = [np.interp(episode.time, signal.time, column, left=np.nan, right=np.nan) for column in signal.values.T]
    return np.stack(columns, axis=-1)


class BodyPose:
    """Position of a free body in m, and the rotation vector from its measured to its predicted orientation in rad."""

    records: tuple[str, ...] = ()

    def __init__(self, twin: Twin, body: str) -> None:
        self._signal, self._qpos = f"pose/{body}", free_joint(twin.model, body)[0]
        names = [("x", "m"), ("y", "m"), ("z", "m"), ("rx", "rad"), ("ry", "rad"), ("rz", "rad")]
        self.channels = tuple(MeasuredChannel(name=f"pose/{body}/{name}", unit=unit) for name, unit in names)

    def extract_data(self, episode: Episode) -> Array:
        """Return the measured pose ``(T, 7)``: position in m, quaternion wxyz."""
        return interpolate_at_frames(episode, self._signal)

    def compute_measured(self, kept: Array) -> Array:
        """Return the measured position and a zero rotation vector, ``(…, 6)``."""
        turned = np.where(np.isnan(kept[..., 3:6]), np.nan, 0.0)
        return np.concatenate([kept[..., :3], turned], axis=-1)

    def substitute_data(self, kept: Array, other: Array) -> Array:
        """Return the position of ``other``, and the rotation vector from ``kept`` to it, ``(…, 6)``."""
        return _pose_columns(other, kept)

    def predict_columns(self, run: ReplayedMotion, table: ParamTable, kept: Array) -> Array:  # noqa: ARG002  # the protocol's
        """Return the simulated position, and the rotation vector from the measured pose to it, ``(…, 6)``."""
        return _pose_columns(run.qpos[..., self._qpos : self._qpos + 7], kept)


class BodyPoseError:
    """Distance of a free body from its measured position, in m, and the angle from its measured orientation, in rad.

    The measured values are zero. The distance is a better measure than six pose columns for a tumbling body, whose
    final pose is unpredictable.
    """

    records: tuple[str, ...] = ()

    def __init__(self, twin: Twin, body: str) -> None:
        self._pose = BodyPose(twin, body)
        self.channels = tuple(
            MeasuredChannel(name=f"pose_error/{body}/{name}", unit=unit)
            for name, unit in (("distance", "m"), ("angle", "rad"))
        )

    def extract_data(self, episode: Episode) -> Array:
        """Return the measured pose ``(T, 7)``: position in m, quaternion wxyz."""
        return self._pose.extract_data(episode)

    def compute_measured(self, kept: Array) -> Array:
        """Return zeros ``(…, 2)``; NaN without a measurement."""
        return np.where(np.isnan(kept[..., :1]), np.nan, np.zeros(2))

    def substitute_data(self, kept: Array, other: Array) -> Array:
        """Return the distance and angle from ``kept`` to ``other``, ``(…, 2)``."""
        return _compute_pose_errors(self._pose.substitute_data(kept, other), kept)

    def predict_columns(self, run: ReplayedMotion, table: ParamTable, kept: Array) -> Array:
        """Return the distance and angle from the measured to the simulated pose, ``(…, 2)``."""
        return _compute_pose_errors(self._pose.predict_columns(run, table, kept), kept)


class BodyTwist:
    """Linear velocity of a free body in the world's axes (m/s) and its angular velocity in its own (rad/s)."""

    records: tuple[str, ...] = ()

    def __init__(self, twin: Twin, body: str) -> None:
        self._signal, self._qvel = f"twist/{body}", free_joint(twin.model, body)[1]
        names = [(f"v{axis}", "m/s") for axis in "xyz"] + [(f"w{axis}", "rad/s") for axis in "xyz"]
        self.channels = tuple(MeasuredChannel(name=f"twist/{body}/{name}", unit=unit) for name, unit in names)

    def extract_data(self, episode: Episode) -> Array:
        """Return the measured velocities ``(T, 6)``: linear, then angular."""
        return interpolate_at_frames(episode, self._signal)

    def compute_measured(self, kept: Array) -> Array:
        """Return the data unchanged."""
        return kept

    def substitute_data(self, kept: Array, other: Array) -> Array:  # noqa: ARG002  # the protocol's
        """Return ``other`` unchanged."""
        return other

    def predict_columns(self, run: ReplayedMotion, table: ParamTable, kept: Array) -> Array:  # noqa: ARG002  # the protocol's
        """Return the simulated velocities ``(…, 6)``."""
        return run.qvel[..., self._qvel : self._qvel + 6]


BODIES: Mapping[str, Callable[[Twin, str], ChannelKind]] = {
    "pose": BodyPose,
    "pose_error": BodyPoseError,
    "twist": BodyTwist,
}


def free_joint(model: mujoco.MjModel, body: str) -> tuple[int, int]:
    """Return the addresses in qpos and qvel of a body's free joint.

    Raises:
        UnknownNameError: no such body.
        InputError: the body has no free joint.
    """
    names = [model.body(i).name for i in range(model.nbody)]
    if body not in names:
        raise UnknownNameError("body", body, names[1:])
    joint = int(model.body_jntadr[model.body(body).id])
    if joint < 0 or model.jnt_type[joint] != int(mujoco.mjtJoint.mjJNT_FREE):
        raise InputError(f"The body {body} has no free joint, so a measured pose cannot place it.")
    return int(model.jnt_qposadr[joint]), int(model.jnt_dofadr[joint])


def _compute_pose_errors(columns: Array, kept: Array) -> Array:
    """Return distance from the kept position, and angle, ``(…, 2)``, of positions and rotation vectors ``(…, 6)``."""
    away = columns - np.concatenate([kept[..., :3], np.zeros_like(kept[..., :3])], axis=-1)
    return np.stack([np.linalg.norm(away[..., :3], axis=-1), np.linalg.norm(away[..., 3:], axis=-1)], axis=-1)


def _pose_columns(pose: Array, kept: Array) -> Array:
    """Return positions, and rotation vectors from the kept poses to these, ``(…, 6)``; NaN without a kept pose."""
    turned = np.full((*pose.shape[:-1], 3), np.nan)
    known = ~np.isnan(kept).any(axis=-1) & np.isfinite(pose).all(axis=-1)
    before = Rotation.from_quat(kept[known][:, 3:], scalar_first=True)
    after = Rotation.from_quat(pose[known][:, 3:], scalar_first=True)
    turned[known] = (before.inv() * after).as_rotvec()
    return np.concatenate([pose[..., :3], turned], axis=-1)


_KINDS = (
    "position",
    "velocity",
    "pose/BODY",
    "pose_error/BODY",
    "twist/BODY",
    "place/SITE",
    "acceleration/SITE",
    "angular_velocity/SITE",
)
_SENSORS = {
    "acceleration": (mujoco.mjtSensor.mjSENS_ACCELEROMETER, "m/s²"),
    "angular_velocity": (mujoco.mjtSensor.mjSENS_GYRO, "rad/s"),
}


def make_channel_kinds(
    twin: Twin, kinds: Sequence[str], units: UnitMap | None, columns: Sequence[int]
) -> tuple[ChannelKind, ...]:
    """Return the compared channels, in order.

    Args:
        twin: the twin.
        kinds: ``position``, ``velocity``, ``pose/BODY``, ``pose_error/BODY``, ``twist/BODY``, ``place/SITE``,
            ``acceleration/SITE``, ``angular_velocity/SITE``.
        units: units of the log's joints, in the twin's order; None without joints.
        columns: the log's column of each of the twin's joints.

    Raises:
        UnknownNameError: an unknown kind.
        InputError: the twin lacks the joints, the free body or the sensor.
    """
    return tuple(_make_channel_kind(twin, kind, units, columns) for kind in kinds)


def _make_channel_kind(twin: Twin, kind: str, units: UnitMap | None, columns: Sequence[int]) -> ChannelKind:
    family, _, name = kind.partition("/")
    if kind in ("position", "velocity"):
        if units is None:
            raise InputError(f"The twin {twin.name} has no joints, so no {kind} of joints can be compared.")
        return (JointPosition if kind == "position" else JointVelocity)(twin, units, columns)
    if family in BODIES and name:
        return BODIES[family](twin, name)
    if family == "place" and name:
        return SitePosition(twin, name)
    if family in _SENSORS and name:
        return SiteSensor(twin, family, name)
    raise UnknownNameError("kind of measurement", kind, _KINDS)


class JointPosition:
    """Readings of the joints' encoders, in the log's units."""

    records: tuple[str, ...] = ()

    def __init__(self, twin: Twin, units: UnitMap, columns: Sequence[int]) -> None:
        self._twin, self._units, self._columns = twin, units, list(columns)
        self.channels = tuple(MeasuredChannel(name=f"position/{unit.joint}", unit=unit.unit) for unit in units.joints)

    def extract_data(self, episode: Episode) -> Array:
        """Return the measured joint positions ``(T, n)``, in the log's units."""
        return episode.state[:, self._columns]

    def compute_measured(self, kept: Array) -> Array:
        """Return the data unchanged."""
        return kept

    def substitute_data(self, kept: Array, other: Array) -> Array:  # noqa: ARG002  # the protocol's
        """Return ``other`` unchanged."""
        return other

    def predict_columns(self, run: ReplayedMotion, table: ParamTable, kept: Array) -> Array:  # noqa: ARG002  # the protocol's
        """Return the encoder readings of the simulated positions, in the log's units."""
        offset = self._twin.column(table, "sensor", "offset")[:, None]
        scale = self._twin.column(table, "sensor", "scale")[:, None]
        return self._units.from_si((run.qpos[..., self._twin.encoder_qpos] - offset) / scale)


class JointVelocity:
    """Velocities of the joints in rad/s or m/s, as measured by their encoders."""

    records: tuple[str, ...] = ()

    def __init__(self, twin: Twin, units: UnitMap, columns: Sequence[int]) -> None:
        self._twin, self._columns = twin, list(columns)
        self.channels = tuple(MeasuredChannel(name=f"velocity/{unit.joint}", unit="rad/s") for unit in units.joints)

    def extract_data(self, episode: Episode) -> Array:
        """Return the measured signal ``joint_velocity``, ``(T, n)``."""
        return interpolate_at_frames(episode, "joint_velocity")[:, self._columns]

    def compute_measured(self, kept: Array) -> Array:
        """Return the data unchanged."""
        return kept

    def substitute_data(self, kept: Array, other: Array) -> Array:  # noqa: ARG002  # the protocol's
        """Return ``other`` unchanged."""
        return other

    def predict_columns(self, run: ReplayedMotion, table: ParamTable, kept: Array) -> Array:  # noqa: ARG002  # the protocol's
        """Return the simulated velocities divided by the encoders' scale."""
        scale = self._twin.column(table, "sensor", "scale")[:, None]
        return run.qvel[..., self._twin.encoder_qvel] / scale


def _find_site(twin: Twin, name: str) -> int:
    sites = [twin.model.site(i).name for i in range(twin.model.nsite)]
    if name not in sites:
        raise UnknownNameError("site", name, sites, where=f"twin {twin.name}")
    return sites.index(name)


class _SiteChannel:
    """A signal of three axes at a site of the model; one physics step behind, and not compared at the first frame."""

    def __init__(self, signal: str, unit: str) -> None:
        self._signal = signal
        self.channels = tuple(MeasuredChannel(name=f"{signal}/{axis}", unit=unit) for axis in "xyz")

    def extract_data(self, episode: Episode) -> Array:
        """Return the measured signal ``(T, 3)``."""
        return interpolate_at_frames(episode, self._signal)

    def compute_measured(self, kept: Array) -> Array:
        """Return the data with NaN at the first frame, where a derived field has no value."""
        silent = kept.copy()
        silent[..., 0, :] = np.nan
        return silent

    def substitute_data(self, kept: Array, other: Array) -> Array:  # noqa: ARG002  # the protocol's
        """Return ``other`` unchanged."""
        return other


class SitePosition(_SiteChannel):
    """Position of a site of the model, such as the tool, as measured by a tracker, in m in the world frame.

    It shows errors that encoders cannot: the zero of a joint, or play in its gear. One physics step behind, and not
    compared at the first frame.
    """

    records: tuple[str, ...] = ("site_xpos",)

    def __init__(self, twin: Twin, site: str) -> None:
        super().__init__(f"place/{site}", "m")
        self._row = _find_site(twin, site)

    def predict_columns(self, run: ReplayedMotion, table: ParamTable, kept: Array) -> Array:  # noqa: ARG002  # the protocol's
        """Return the simulated site position ``(…, 3)``."""
        return run.records["site_xpos"][..., self._row, :]


class SiteSensor(_SiteChannel):
    """An accelerometer or gyroscope at a site; one physics step behind, and not compared at the first frame."""

    records: tuple[str, ...] = ("sensordata",)

    def __init__(self, twin: Twin, family: str, site: str) -> None:
        kind, unit = _SENSORS[family]
        model = twin.model
        _find_site(twin, site)
        found = np.flatnonzero((model.sensor_type == int(kind)) & (model.sensor_objid == model.site(site).id))
        if not len(found):
            element = "accelerometer" if family == "acceleration" else "gyro"
            raise InputError(f"The twin {twin.name} has no {element} at the site {site}. Add one to the model.")
        super().__init__(f"{family}/{site}", unit)
        self._first = int(model.sensor_adr[found[0]])

    def predict_columns(self, run: ReplayedMotion, table: ParamTable, kept: Array) -> Array:  # noqa: ARG002  # the protocol's
        """Return the simulated sensor values ``(…, 3)``."""
        return run.records["sensordata"][..., self._first : self._first + 3]
