"""Compute the channels in which a replay is compared with its log: positions, velocities, body poses, sensor signals.

Each kind of channel computes the measured columns from the log and the same columns from the simulated motion,
so that their difference is the residual. An orientation is compared as the rotation vector from the measured to
the predicted orientation, in the body's axes; its measured columns are therefore zero.
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
    """One column that is measured and predicted, such as ``position/elbow`` or ``pose/cube/rx``.

    Attributes:
        name: name of the channel.
        unit: unit of measured and predicted values.
    """

    name: str
    unit: str


class ChannelKind(Protocol):
    """Protocol of one kind of compared channels, such as joint positions or the pose of a body.

    Each kind first extracts its raw data from the log, r numbers per frame (`extract_data`). Its k channels are then
    computed from these data. In the methods, ``data`` are the raw data, measured in the log.

    Attributes:
        channels: the k channels, in the order of the columns.
        records: MjData fields that a rollout must record for the prediction.
    """

    channels: tuple[MeasuredChannel, ...]
    records: tuple[str, ...]

    def extract_data(self, episode: Episode) -> Array:
        """Return the columns of an episode that this kind needs, shape ``(T, r)`` for T frames; NaN if not measured."""
        ...

    def compute_measured(self, data: Array) -> Array:
        """Return the measured channels ``(…, k)``.

        Args:
            data: measured raw data as returned by `extract_data`, r columns, ``(…, r)``.
        """
        ...

    def substitute_data(self, data: Array, prediction: Array) -> Array:
        """Return the channels of a prediction that comes from a baseline or another recording, not from a simulation.

        The prediction is in the form of the raw data. For example, the baseline in which nothing moves predicts that
        the raw data of the first frame stay constant.

        Args:
            data: measured raw data as returned by `extract_data`, r columns, ``(…, nframe, r)``. Some kinds need them,
                because their channels are relative to the measurement, such as the rotation from a measured pose.
            prediction: prediction of the raw data, same shape.

        Returns:
            Channels, shape ``(…, nframe, k)``.
        """
        ...

    def predict_columns(self, run: ReplayedMotion, table: ParamTable, data: Array) -> Array:
        """Return the predicted channels of simulated worlds, shape ``(nworld, nframe, k)``.

        Args:
            run: simulated motion.
            table: parameters of the worlds.
            data: measured raw data as returned by `extract_data`, r columns, ``(nworld, nframe, r)``. Some kinds need
                them, because their channels are relative to the measurement, such as the rotation from a measured pose.
        """
        ...


def hold_first_frame(data: Array) -> Array:
    """Return data ``(…, nframe, r)`` in which every frame equals the first one; values missing in ``data`` stay NaN."""
    return np.where(np.isnan(data), np.nan, data[..., :1, :])


def interpolate_at_frames(episode: Episode, name: str) -> Array:
    """Interpolate a logged signal linearly at the times of an episode's frames; NaN outside the signal's time range.

    Args:
        episode: the episode.
        name: name of the signal.

    Returns:
        Values, shape ``(T, k)`` for T frames and k columns of the signal.

    Raises:
        LogError: If the episode has no signal of this name.
    """
    if name not in episode.signals:
        existing = ", ".join(episode.signals) or "none besides joint positions"
        raise LogError(
            f"Episode {episode.index} of {episode.origin or 'the log'} has no signal {name}. Its "
            f"signals are: {existing}."
        )
    signal = episode.signals[name]
    if np.array_equal(signal.time, episode.time):
        return np.array(signal.values)
    columns = [np.interp(episode.time, signal.time, column, left=np.nan, right=np.nan) for column in signal.values.T]
    return np.stack(columns, axis=-1)


class BodyPose:
    """Channels of a free body's pose.

    They are the position in m, and the rotation vector from the measured to the predicted orientation in rad, in the
    body's axes.

    Attributes:
        records: MjData fields that a rollout must record for the prediction; none.
    """

    records: tuple[str, ...] = ()

    def __init__(self, twin: Twin, body: str) -> None:
        self._signal, self._qpos = f"pose/{body}", free_joint(twin.model, body)[0]
        names = [("x", "m"), ("y", "m"), ("z", "m"), ("rx", "rad"), ("ry", "rad"), ("rz", "rad")]
        self.channels = tuple(MeasuredChannel(name=f"pose/{body}/{name}", unit=unit) for name, unit in names)

    def extract_data(self, episode: Episode) -> Array:
        """Return the measured pose, shape ``(T, 7)`` for T frames: position in m, quaternion wxyz."""
        return interpolate_at_frames(episode, self._signal)

    def compute_measured(self, data: Array) -> Array:
        """Return the measured position in the world in m and a rotation vector of zeros, shape ``(…, 6)``.

        The rotation vector is zero because rotations are relative to the measured orientation. It is NaN if the
        orientation was not measured.

        Args:
            data: measured poses, position in m and quaternion wxyz, shape ``(…, 7)``.
        """
        rotation = np.where(np.isnan(data[..., 3:6]), np.nan, 0.0)
        return np.concatenate([data[..., :3], rotation], axis=-1)

    def substitute_data(self, data: Array, prediction: Array) -> Array:
        """Return the channels of a predicted pose instead of a simulated one, shape ``(…, 6)``.

        They are the predicted position in m and the rotation vector in rad from the measured to the predicted
        orientation.

        Args:
            data: measured poses, position in m and quaternion wxyz, shape ``(…, 7)``.
            prediction: predicted poses, for example those of a baseline, same shape.
        """
        return _pose_columns(prediction, data)

    def predict_columns(self, run: ReplayedMotion, table: ParamTable, data: Array) -> Array:  # noqa: ARG002  # the protocol's
        """Return the simulated position and the rotation vector from measured to simulated pose, shape ``(…, 6)``.

        The position is in m in the world frame, the rotation vector in rad in the body's axes.

        Args:
            run: simulated motion.
            table: not used.
            data: measured poses, position in m and quaternion wxyz, shape ``(…, 7)``.
        """
        return _pose_columns(run.qpos[..., self._qpos : self._qpos + 7], data)


class BodyPoseError:
    """Channels of a free body's pose error: distance in m and angle in rad between measured and predicted pose.

    The channels are errors already, so their measured values are zero. Two error channels are a better measure than six
    pose channels for a tumbling body, whose final pose is unpredictable.

    Attributes:
        records: MjData fields that a rollout must record for the prediction; none.
    """

    records: tuple[str, ...] = ()

    def __init__(self, twin: Twin, body: str) -> None:
        self._pose = BodyPose(twin, body)
        self.channels = tuple(
            MeasuredChannel(name=f"pose_error/{body}/{name}", unit=unit)
            for name, unit in (("distance", "m"), ("angle", "rad"))
        )

    def extract_data(self, episode: Episode) -> Array:
        """Return the measured pose of the body in the world, ``(T, 7)`` for T frames.

        It is the position in m and the quaternion wxyz.
        """
        return self._pose.extract_data(episode)

    def compute_measured(self, data: Array) -> Array:
        """Return zeros for distance and angle, shape ``(…, 2)``; NaN where the pose was not measured.

        The channels are errors of a prediction, which are zero for the measured pose itself.
        """
        return np.where(np.isnan(data[..., :1]), np.nan, np.zeros(2))

    def substitute_data(self, data: Array, prediction: Array) -> Array:
        """Return distance in m and angle in rad between measured poses and predicted (not simulated) ones, ``(…, 2)``.

        Args:
            data: measured poses, shape ``(…, 7)``.
            prediction: predicted poses, for example those of a baseline, same shape.
        """
        return _compute_pose_errors(self._pose.substitute_data(data, prediction), data)

    def predict_columns(self, run: ReplayedMotion, table: ParamTable, data: Array) -> Array:
        """Return the distance in m and the angle in rad from the measured to the simulated pose, shape ``(…, 2)``.

        Args:
            run: simulated motion.
            table: parameters of the worlds.
            data: measured poses, position in m and quaternion wxyz, shape ``(…, 7)``.
        """
        return _compute_pose_errors(self._pose.predict_columns(run, table, data), data)


class _DirectChannel:
    """Base class for channels whose predicted values are compared with the measured ones as they are.

    Attributes:
        records: MjData fields that a rollout must record for the prediction; none by default.
    """

    records: tuple[str, ...] = ()

    def compute_measured(self, data: Array) -> Array:
        """Return the measured values unchanged."""
        return data

    def substitute_data(self, data: Array, prediction: Array) -> Array:  # noqa: ARG002  # the protocol's
        """Return the values unchanged that a baseline or another recording predicts."""
        return prediction


class BodyTwist(_DirectChannel):
    """Channels of a free body's velocity: linear in the world's axes (m/s) and angular in the body's axes (rad/s)."""

    def __init__(self, twin: Twin, body: str) -> None:
        self._signal, self._qvel = f"twist/{body}", free_joint(twin.model, body)[1]
        names = [(f"v{axis}", "m/s") for axis in "xyz"] + [(f"w{axis}", "rad/s") for axis in "xyz"]
        self.channels = tuple(MeasuredChannel(name=f"twist/{body}/{name}", unit=unit) for name, unit in names)

    def extract_data(self, episode: Episode) -> Array:
        """Return the measured velocities, shape ``(T, 6)`` for T frames.

        They are the linear velocity in world axes (m/s), then the angular velocity in the body's axes (rad/s).
        """
        return interpolate_at_frames(episode, self._signal)

    def predict_columns(self, run: ReplayedMotion, table: ParamTable, data: Array) -> Array:  # noqa: ARG002  # the protocol's
        """Return the simulated velocities, shape ``(…, 6)``.

        They are the linear velocity in world axes (m/s), then the angular velocity in the body's axes (rad/s).
        """
        return run.qvel[..., self._qvel : self._qvel + 6]


BODIES: Mapping[str, Callable[[Twin, str], ChannelKind]] = {
    "pose": BodyPose,
    "pose_error": BodyPoseError,
    "twist": BodyTwist,
}


def free_joint(model: mujoco.MjModel, body: str) -> tuple[int, int]:
    """Return the indices of a body's free joint in qpos and in qvel.

    Raises:
        UnknownNameError: If the model has no body of this name.
        InputError: If the body has no free joint.
    """
    names = [model.body(i).name for i in range(model.nbody)]
    if body not in names:
        raise UnknownNameError("body", body, names[1:])
    joint = int(model.body_jntadr[model.body(body).id])
    if joint < 0 or model.jnt_type[joint] != int(mujoco.mjtJoint.mjJNT_FREE):
        raise InputError(f"The body {body} has no free joint, so its measured pose cannot be compared.")
    return int(model.jnt_qposadr[joint]), int(model.jnt_dofadr[joint])


def _compute_pose_errors(columns: Array, data: Array) -> Array:
    """Return the distance in m and the angle in rad between measured and predicted pose, shape ``(…, 2)``.

    Args:
        columns: predicted position in m, and rotation vector in rad from the measured to the predicted orientation,
            shape ``(…, 6)``.
        data: measured pose, shape ``(…, 7)``.
    """
    errors = columns - np.concatenate([data[..., :3], np.zeros_like(data[..., :3])], axis=-1)
    return np.stack([np.linalg.norm(errors[..., :3], axis=-1), np.linalg.norm(errors[..., 3:], axis=-1)], axis=-1)


def _pose_columns(pose: Array, data: Array) -> Array:
    """Return predicted positions, and rotation vectors from measured to predicted orientations, shape ``(…, 6)``.

    The rotation vector is NaN if the measured pose is missing.

    Args:
        pose: predicted poses, shape ``(…, 7)``.
        data: measured poses, shape ``(…, 7)``.
    """
    rotation = np.full((*pose.shape[:-1], 3), np.nan)
    is_known = ~np.isnan(data).any(axis=-1) & np.isfinite(pose).all(axis=-1)
    measured = Rotation.from_quat(data[is_known][:, 3:], scalar_first=True)
    predicted = Rotation.from_quat(pose[is_known][:, 3:], scalar_first=True)
    rotation[is_known] = (measured.inv() * predicted).as_rotvec()
    return np.concatenate([pose[..., :3], rotation], axis=-1)


_KINDS = (
    "position",
    "velocity",
    "joint/JOINT",
    "pose/BODY",
    "pose_error/BODY",
    "twist/BODY",
    "place/SITE",
    "view/CAMERA/SITE",
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
    """Create the kinds of channels in which a replay is compared with its log, in the given order.

    Args:
        twin: the twin.
        kinds: joint channels ``position`` (in the log's units) and ``velocity`` (rad/s or m/s) of the robot's joints;
            ``joint/JOINT`` (rad or m) of another hinge or slide, such as a drawer or a scale's spring; ``pose/BODY`` (m
            and rad), ``pose_error/BODY`` (distance in m and angle in rad between measured and predicted pose) and
            ``twist/BODY`` (m/s and rad/s) of a free body; ``place/SITE`` (position, m), ``view/CAMERA/SITE`` (place in
            a camera's image), ``acceleration/SITE`` (m/s²) and ``angular_velocity/SITE`` (rad/s) of sensors at a site.
        units: units of the log's joints, in the twin's order; None if the twin has no robot joints.
        columns: for each joint of the twin, the index of its column in the log.

    Raises:
        UnknownNameError: If a kind is unknown.
        InputError: If the twin has no such joints, free body or sensor, or a camera follows a body.
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
    if family == "joint" and name:
        return SceneJoint(twin, name)
    if family == "place" and name:
        return SitePosition(twin, name)
    if family == "view" and "/" in name:
        return SiteView(twin, *name.split("/", 1))
    if family in _SENSORS and name:
        return SiteSensor(twin, family, name)
    raise UnknownNameError("kind of measurement", kind, _KINDS)


class JointPosition(_DirectChannel):
    """Channels of joint positions: encoder readings, in the log's units."""

    def __init__(self, twin: Twin, units: UnitMap, columns: Sequence[int]) -> None:
        self._twin, self._units, self._columns = twin, units, list(columns)
        self.channels = tuple(MeasuredChannel(name=f"position/{unit.joint}", unit=unit.unit) for unit in units.joints)

    def extract_data(self, episode: Episode) -> Array:
        """Return the measured joint positions in the log's units, shape ``(T, n)`` for T frames of n joints."""
        return episode.state[:, self._columns]

    def predict_columns(self, run: ReplayedMotion, table: ParamTable, data: Array) -> Array:  # noqa: ARG002  # the protocol's
        """Return the encoder readings of the simulated positions, in the log's units.

        Args:
            run: simulated motion.
            table: parameters of the worlds, with the encoders' offsets and scales.
            data: not used, because positions are not relative to the measurement.

        Returns:
            Readings, shape ``(nworld, nframe, n)`` for n joints.
        """
        offset = self._twin.column(table, "sensor", "offset")[:, None]
        scale = self._twin.column(table, "sensor", "scale")[:, None]
        return self._units.from_si((run.qpos[..., self._twin.encoder_qpos] - offset) / scale)


class JointVelocity(_DirectChannel):
    """Channels of joint velocities in rad/s or m/s, as measured by the encoders."""

    def __init__(self, twin: Twin, units: UnitMap, columns: Sequence[int]) -> None:
        self._twin, self._columns = twin, list(columns)
        self.channels = tuple(MeasuredChannel(name=f"velocity/{unit.joint}", unit="rad/s") for unit in units.joints)

    def extract_data(self, episode: Episode) -> Array:
        """Return the measured signal ``joint_velocity``, shape ``(T, n)`` for T frames of n joints."""
        return interpolate_at_frames(episode, "joint_velocity")[:, self._columns]

    def predict_columns(self, run: ReplayedMotion, table: ParamTable, data: Array) -> Array:  # noqa: ARG002  # the protocol's
        """Return the simulated velocities divided by the encoders' scale, as the encoders would measure them.

        Args:
            run: simulated motion.
            table: parameters of the worlds, with the encoders' scales.
            data: not used, because velocities are not relative to the measurement.

        Returns:
            Velocities in rad/s or m/s, shape ``(nworld, nframe, n)`` for n joints.
        """
        scale = self._twin.column(table, "sensor", "scale")[:, None]
        return run.qvel[..., self._twin.encoder_qvel] / scale


class SceneJoint(_DirectChannel):
    """Channel of the position of a hinge or slide that no motor drives, such as a drawer or the spring of a scale."""

    def __init__(self, twin: Twin, joint: str) -> None:
        model, units = twin.model, {int(mujoco.mjtJoint.mjJNT_HINGE): "rad", int(mujoco.mjtJoint.mjJNT_SLIDE): "m"}
        known = {model.joint(i).name: i for i in range(model.njnt) if int(model.jnt_type[i]) in units}
        if joint not in known:
            raise UnknownNameError("hinge or slide", joint, known, where=f"twin {twin.name}")
        self._signal, self._row = f"joint/{joint}", int(model.jnt_qposadr[known[joint]])
        self.channels = (MeasuredChannel(name=self._signal, unit=units[int(model.jnt_type[known[joint]])]),)

    def extract_data(self, episode: Episode) -> Array:
        """Return the measured position in rad or m, shape ``(T, 1)``."""
        return interpolate_at_frames(episode, self._signal)

    def predict_columns(self, run: ReplayedMotion, table: ParamTable, data: Array) -> Array:  # noqa: ARG002  # the protocol's
        """Return the simulated position in rad or m, shape ``(…, 1)``."""
        return run.qpos[..., self._row : self._row + 1]


def _find_site(twin: Twin, name: str) -> int:
    sites = [twin.model.site(i).name for i in range(twin.model.nsite)]
    if name not in sites:
        raise UnknownNameError("site", name, sites, where=f"twin {twin.name}")
    return sites.index(name)


class _SiteChannel(_DirectChannel):
    """Base class for channels of a signal measured at a site (named point) of the model.

    The simulated signal has no value at the first frame, because MuJoCo computes it during a physics step. Therefore
    this frame is not compared.
    """

    def __init__(self, signal: str, unit: str, axes: str = "xyz") -> None:
        self._signal = signal
        self.channels = tuple(MeasuredChannel(name=f"{signal}/{axis}", unit=unit) for axis in axes)

    def extract_data(self, episode: Episode) -> Array:
        """Return the measured signal of the site, shape ``(T, k)`` for T frames and k channels.

        It is a position in the world in m or in an image, or in the site's axes an acceleration in m/s² or angular
        velocity in rad/s.
        """
        return interpolate_at_frames(episode, self._signal)

    def compute_measured(self, data: Array) -> Array:
        """Return the measured signal of the site with NaN at the first frame, for which the simulation has no value."""
        values = data.copy()
        values[..., 0, :] = np.nan
        return values


# Hand-eye calibration with a printed board gives the frame of a tracker to 1 to 3 mm. Standard deviation of the common
# offset of everything that it tracks, in m per axis; our choice, the limit of the offset in virtual cells.
TRACKER_OFFSET_M = 0.002


class SitePosition(_SiteChannel):
    """Channels of a site's position (such as the tool's) in the world frame in m, as an external tracker measures it.

    They reveal errors that encoders cannot measure, such as a wrong zero of a joint or play in its gear. MuJoCo
    computes the position before it integrates the state, so it is one physics step older than the state. The first
    frame has no simulated position and is not compared.

    Attributes:
        records: MjData fields that a rollout must record for the prediction.
    """

    records: tuple[str, ...] = ("site_xpos",)

    def __init__(self, twin: Twin, site: str) -> None:
        super().__init__(f"place/{site}", "m")
        self._row = _find_site(twin, site)

    def predict_columns(self, run: ReplayedMotion, table: ParamTable, data: Array) -> Array:  # noqa: ARG002  # the protocol's
        """Return the simulated position of the site, shape ``(…, 3)``."""
        return run.records["site_xpos"][..., self._row, :]


_MOST_HEIGHTS = 4.0  # a detected site is within the image: half its width, eight times its height at most; our choice


class SiteView(_SiteChannel):
    """Channels of a site's place in the image of a camera, such as the centre of a marker that was detected there.

    u is to the right and v is down, both from the image centre and in image heights: (column - width / 2) / height and
    (row - height / 2) / height. The camera is a pinhole with square pixels. A lens must be undistorted before. A site
    that is behind the simulated camera has no place, which counts as a failed simulation.

    Attributes:
        records: MjData fields that a rollout must record for the prediction.
    """

    records: tuple[str, ...] = ("site_xpos", "xpos", "xmat")

    def __init__(self, twin: Twin, camera: str, site: str) -> None:
        model = twin.model
        names = [model.camera(i).name for i in range(model.ncam)]
        if camera not in names:
            raise UnknownNameError("camera", camera, names, where=f"twin {twin.name}")
        super().__init__(f"view/{camera}/{site}", "1", "uv")
        self._twin, self._site, self._row = twin, _find_site(twin, site), names.index(camera)
        if model.cam_mode[self._row] != mujoco.mjtCamLight.mjCAMLIGHT_FIXED:
            raise InputError(f"The camera {camera} follows a body, so its pose is not that of its quantities. Fix it.")

    def extract_data(self, episode: Episode) -> Array:
        """Return the measured place of the site in the image, shape ``(T, 2)`` for T frames.

        Raises:
            LogError: If the episode has no such signal, or a place is outside any image, as pixels are.
        """
        values = super().extract_data(episode)
        largest = float(np.nanmax(np.abs(values), initial=0.0))
        if largest > _MOST_HEIGHTS:
            raise LogError(
                f"{self._signal} of episode {episode.index} reaches {largest:g} image heights from the image centre. "
                "Give (column - width / 2) / height and (row - height / 2) / height instead of pixels."
            )
        return values

    def predict_columns(self, run: ReplayedMotion, table: ParamTable, data: Array) -> Array:  # noqa: ARG002  # the protocol's
        """Return the simulated place of the site in the image, shape ``(nworld, nframe, 2)``.

        Args:
            run: simulated motion with the recorded positions and orientations.
            table: parameters of the worlds, with pose and field of view of the camera.
            data: not used.
        """
        model, row, fields = self._twin.model, self._row, self._twin.fields(table, visual=True).arrays
        position, quaternion, fovy = (
            fields[name][:, row] if name in fields else np.repeat(getattr(model, name)[None, row], table.nworld, axis=0)
            for name in ("cam_pos", "cam_quat", "cam_fovy")
        )
        axes = Rotation.from_quat(quaternion, scalar_first=True).as_matrix()
        body = int(model.cam_bodyid[row])
        point = run.records["site_xpos"][..., self._site, :] - run.records["xpos"][..., body, :]
        frame = run.records["xmat"][..., body, :].reshape(*point.shape[:-1], 3, 3)
        seen = np.einsum("wtji,wtj->wti", frame, point) - position[:, None]
        seen = np.einsum("wji,wtj->wti", axes, seen)
        depth = np.where(seen[..., 2] < 0.0, -seen[..., 2], np.nan)  # the camera looks along -z
        focal = 0.5 / np.tan(np.radians(fovy) / 2.0)[:, None]
        return np.stack([focal * seen[..., 0] / depth, -focal * seen[..., 1] / depth], axis=-1)


class SiteSensor(_SiteChannel):
    """Channels of an accelerometer or gyroscope at a site of the model.

    MuJoCo computes the signal before it integrates the state, so it is one physics step older than the state. The first
    frame has no simulated signal and is not compared.

    Attributes:
        records: MjData fields that a rollout must record for the prediction.
    """

    records: tuple[str, ...] = ("sensordata",)

    def __init__(self, twin: Twin, family: str, site: str) -> None:
        kind, unit = _SENSORS[family]
        model = twin.model
        _find_site(twin, site)
        sensors = np.flatnonzero((model.sensor_type == int(kind)) & (model.sensor_objid == model.site(site).id))
        if not len(sensors):
            element = "accelerometer" if family == "acceleration" else "gyro"
            raise InputError(f"The twin {twin.name} has no {element} at the site {site}. Add one to the model.")
        super().__init__(f"{family}/{site}", unit)
        self._first = int(model.sensor_adr[sensors[0]])

    def predict_columns(self, run: ReplayedMotion, table: ParamTable, data: Array) -> Array:  # noqa: ARG002  # the protocol's
        """Return the simulated values of the accelerometer (m/s²) or gyroscope (rad/s), shape ``(…, 3)``.

        They are along the x, y and z axes of the site.

        Args:
            run: simulated motion with the recorded ``sensordata``.
            table: not used.
            data: not used.
        """
        return run.records["sensordata"][..., self._first : self._first + 3]
