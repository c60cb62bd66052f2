"""Check range, velocity, acceleration and jerk of joints, and the drive torque that the motion requires."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray
from scipy.signal import savgol_filter

from twinloop.core.errors import InputError, UnitsError
from twinloop.core.params import ParamTable
from twinloop.core.units import UnitMap
from twinloop.curate.check import Measurement
from twinloop.curate.judging import LIMIT, KnownLimitCheck, MetricLimit, UsualLimitCheck
from twinloop.curate.recording import RecordedEpisode
from twinloop.curate.registry import EpisodeTwins
from twinloop.dataset.logs.checks.series import prepare_series
from twinloop.rollout.replay import recorded_params
from twinloop.simulate.inverse_dynamics import InverseDynamics
from twinloop.twin import Twin

Array = NDArray[np.float64]

_SMOOTH_S = 0.17  # window of the cubic fit to positions: five frames at 30 Hz; arms move below 5 Hz
_TOO_SHORT = "The longest part of the recording without a gap is too short to estimate the motion."


@dataclass(frozen=True, kw_only=True)
class SmoothedKinematics:
    """Smoothed joint motion in the longest part of a recording without gaps: N frames of n joints.

    Attributes:
        joints: names of the joints.
        position: measured positions ``(N, n)``, in rad (m for a slide joint), or in the log's unit if ``units`` is
            None.
        velocity: smoothed velocities ``(N, n)``, in the position's unit per s.
        acceleration: smoothed accelerations ``(N, n)``, in the position's unit per s².
        jerk: smoothed third derivatives of the position ``(N, n)``, in the position's unit per s³.
        frame: index in the recording of the first of these frames.
        dt: time between frames, in s.
        units: map from the log's columns to rad or m; None if it is unknown.
    """

    joints: tuple[str, ...]
    position: Array
    velocity: Array
    acceleration: Array
    jerk: Array
    frame: int
    dt: float
    units: UnitMap | None

    @property
    def unit(self) -> str:
        """Unit of positions for messages: rad (m for a slide joint), or the log's unit if its conversion is unknown."""
        return "rad" if self.units is not None else "of the log's unit"


def compute_kinematics(recording: RecordedEpisode, twin: Twin | None) -> SmoothedKinematics:
    """Compute the smoothed joint motion of a recording, with a cubic Savitzky-Golay filter of 0.17 s.

    Args:
        recording: the episode.
        twin: twin whose joint ranges replace a missing calibration of the log; None if there is no twin.

    Raises:
        InputError: If the longest part without gaps is too short.
    """
    raw = recording.raw
    series = prepare_series(raw)
    window = 0 if series is None else max(5, round(_SMOOTH_S / series.dt) | 1)
    if series is None or len(series.time) < 2 * window or not raw.joints:
        raise InputError(_TOO_SHORT)
    units = _find_units(raw.units, twin)
    state = series.state if units is None else units.to_si(series.state)
    made = [savgol_filter(state, window, 3, deriv=order, delta=series.dt, axis=0) for order in range(4)]
    return SmoothedKinematics(
        joints=raw.joints,
        position=np.asarray(state),
        velocity=np.asarray(made[1]),
        acceleration=np.asarray(made[2]),
        jerk=np.asarray(made[3]),
        frame=int(np.argmin(np.abs(np.nan_to_num(raw.time, nan=np.inf) - series.time[0]))),
        dt=series.dt,
        units=units,
    )


def _find_units(units: UnitMap, twin: Twin | None) -> UnitMap | None:
    """Return the log's map to SI units; if a calibration is missing, derive it from the twin's joint ranges.

    None is returned if both are unknown.
    """
    if units.known:
        return units
    if twin is None or set(units.names) != set(twin.robot.joints):
        return None
    order = [twin.robot.joints.index(name) for name in units.names]
    try:
        whole = twin.unit_map([units.joints[units.names.index(name)].unit for name in twin.robot.joints])
    except InputError:
        return None
    return UnitMap(joints=tuple(whole.joints[i] for i in order), source=whole.source)


def find_robot_twin(recording: RecordedEpisode, twins: EpisodeTwins) -> Twin | None:
    """Return the recording's twin; None if there is no twin or it lacks a recorded joint."""
    try:
        twin = twins(recording)
        return twin if set(recording.raw.joints) <= set(twin.robot.joints) else None
    except InputError:
        return None


def find_drawn_params(recording: RecordedEpisode, twin: Twin) -> ParamTable | None:
    """Return the drawn parameters of a simulated episode; None if it was recorded or made with another twin."""
    record = recording.provenance
    return recorded_params(twin, record) if record is not None and record.twin_hash == twin.hash else None


class JointCheck(UsualLimitCheck):
    """Base class of checks of joint motion, with limits from the twin or, if there is none, from comparable episodes.

    Args:
        twins: function that returns the twin of an episode.
    """

    reads = frozenset({"raw"})

    def __init__(self, twins: EpisodeTwins) -> None:
        self._twins = twins

    def find_twin(self, recording: RecordedEpisode) -> Twin | None:
        """Return the recording's twin; None if there is no twin or it lacks a recorded joint."""
        return find_robot_twin(recording, self._twins)


class _ColumnPeak(JointCheck):
    """Base class of checks of each joint's largest velocity, acceleration or jerk in an episode.

    The name of the check selects the array of `SmoothedKinematics`: ``physics/jerk`` checks ``jerk``.

    Attributes:
        quantity: name of the checked quantity for messages, with article: "an acceleration".
    """

    spread = 0.15
    floor = 0.0
    quantity: str

    def find_limit(self, _twin: Twin, _joint: str) -> MetricLimit | None:
        """Return the limit of a joint from the twin; None to judge the joint by comparable episodes."""
        return None

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the largest absolute value of the checked quantity (for example acceleration) for each joint.

        If the twin gives a limit, it is in the measurement's ``facts``.
        """
        twin = self.find_twin(recording)
        kinematics = compute_kinematics(recording, twin)
        size, made = np.abs(getattr(kinematics, self.name.removeprefix("physics/"))), []
        for column, joint in enumerate(kinematics.joints):
            at = int(np.argmax(size[:, column]))
            frame, value = kinematics.frame + at, float(size[at, column])
            limit = None if twin is None or kinematics.units is None else self.find_limit(twin, joint)
            said = f"{joint} has {self.quantity} of up to {value:.4g}, in {kinematics.unit} and s, at frame {frame}."
            facts = {} if limit is None else {LIMIT: limit}
            made.append(
                Measurement(value=value, channel=joint, text=said, first_frame=frame, last_frame=frame, facts=facts)
            )
        return made


class JointVelocityCheck(_ColumnPeak):
    """Check for joints that are faster than their servo's no-load speed, or than usual if the speed is unknown."""

    name = "physics/velocity"
    meaning = "a joint is faster than its servo can turn, or than in the other episodes"
    quantity = "a velocity"
    unit = "1/s"

    def find_limit(self, twin: Twin, joint: str) -> MetricLimit | None:
        """Return the limit from the no-load speed of the joint's servo; None if the speed is unknown."""
        servo = twin.servos[twin.robot.joints.index(joint)] if twin.servos else None
        if servo is None or servo.no_load_speed is None:
            return None
        speed = servo.no_load_speed.value
        return MetricLimit(value=1.1 * speed, bad=1.3 * speed, source=f"1.1 times the no-load speed of {servo.name}")


class JointAccelerationCheck(_ColumnPeak):
    """Check for joints that accelerate more than in comparable episodes."""

    name = "physics/acceleration"
    meaning = "a joint accelerates far more than in the other episodes"
    quantity = "an acceleration"
    unit = "1/s²"


class JointJerkCheck(_ColumnPeak):
    """Check for joints with more jerk than in comparable episodes."""

    name = "physics/jerk"
    meaning = "a joint's acceleration changes far faster than in the other episodes"
    quantity = "a jerk"
    unit = "1/s³"


class JointRangeCheck(JointCheck):
    """Check for joints beyond the twin's joint range, with a margin for manual calibration.

    If there is no twin, the range of motion is compared with that in comparable episodes.
    """

    name = "physics/joint_range"
    meaning = "a joint is beyond its range"
    unit = "of the range"
    floor, spread = 1.0, 0.1

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return how far each joint is beyond its range, divided by the range.

        If there is no twin, the value is the joint's range of motion, which is compared with other episodes.
        """
        twin = self.find_twin(recording)
        kinematics = compute_kinematics(recording, twin)
        if twin is None or kinematics.units is None:
            reach = np.ptp(kinematics.position, axis=0).tolist()
            return [
                Measurement(value=size, channel=joint, text=f"{joint} moves over {size:.4g} {kinematics.unit}.")
                for joint, size in zip(kinematics.joints, reach, strict=True)
            ]
        made = []
        for column, joint in enumerate(kinematics.joints):
            low, high = twin.joint_ranges[twin.robot.joints.index(joint)]
            if not twin.model.joint(joint).limited[0]:
                continue
            beyond = np.maximum(low - kinematics.position[:, column], kinematics.position[:, column] - high)
            at = int(np.argmax(beyond))
            value = max(float(beyond[at]), 0.0) / float(high - low)
            said = (
                f"{joint} is at {kinematics.position[at, column]:.4g} at frame {kinematics.frame + at}, its range is "
                f"{low:.4g} to "
            )
            limit = _RANGE_SIM if recording.source == "sim" else _RANGE_REAL
            frame = kinematics.frame + at
            made.append(
                Measurement(
                    value=value, channel=joint, text=f"{said}{high:.4g}.", first_frame=frame, last_frame=frame,
                    facts={LIMIT: limit},
                )
            )  # fmt: skip
        return made or [Measurement(value=None, text=f"No joint of {twin.name} has a range.")]


_RANGE_SIM = MetricLimit(value=0.03, bad=0.08, source="the twin's range; a soft stop yields by about 1 %")
_RANGE_REAL = MetricLimit(value=0.1, bad=0.25, source="the twin's range; manual calibrations are off by up to 10 %")


class TorqueCheck(KnownLimitCheck):
    """Check for motions that need more torque than the drives have, by the twin's inverse dynamics in free space.

    The value is the torque divided by the drive's limit, at the frame of the largest torque. Loads and contact forces
    would need more torque; they are not included.

    Args:
        twins: function that returns the twin of an episode.
    """

    reads = frozenset({"raw"})

    name = "physics/torque"
    meaning = "the motion needs more torque than the drives have (inverse dynamics in the twin)"
    unit = "of the limit"
    limit, bad = 1.15, 1.5
    source = "the drive's force range; smoothing and friction add errors of a few per cent"

    def __init__(self, twins: EpisodeTwins) -> None:
        self._twins = twins

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the largest torque of each joint from inverse dynamics, divided by its drive's force limit."""
        twin = self._twins(recording)
        if find_robot_twin(recording, self._twins) is None or set(twin.robot.joints) != set(recording.raw.joints):
            return [Measurement(value=None, text=f"{twin.name} and the recording have different joints.")]
        if twin.robot.gears is not None:
            return [
                Measurement(
                    value=None, text=f"{twin.name} has gear play, so the torque does not follow from the motion."
                )
            ]
        kinematics = compute_kinematics(recording, twin)
        if kinematics.units is None:
            raise UnitsError(
                "The conversion of the recording's columns to rad is unknown, so torque cannot be computed."
            )
        order = [kinematics.joints.index(joint) for joint in twin.robot.joints]
        inverse = InverseDynamics(twin, find_drawn_params(recording, twin))
        torque = np.abs(
            inverse(kinematics.position[:, order], kinematics.velocity[:, order], kinematics.acceleration[:, order])
        )
        made = []
        for column, (joint, most) in enumerate(
            zip(twin.robot.joints, compute_force_limits(twin, inverse.model), strict=True)
        ):
            if not np.isfinite(most):
                continue
            at = int(np.argmax(torque[:, column]))
            said = (
                f"{joint} needs {torque[at, column]:.3g} N·m (or N) at frame {kinematics.frame + at}, the limit of its "
                "drive is "
            )
            frame = kinematics.frame + at
            made.append(
                Measurement(
                    value=float(torque[at, column] / most), channel=joint, text=f"{said}{most:.3g}.", first_frame=frame,
                    last_frame=frame,
                )
            )  # fmt: skip
        return made or [Measurement(value=None, text=f"No drive of {twin.name} has a force limit.")]


def compute_force_limits(twin: Twin, model: mujoco.MjModel) -> Array:
    """Return the force limit of each robot joint's drive, ``(njoint,)`` in N·m or N; infinite if it has none."""
    limits = np.full(len(twin.robot.joints), np.inf)
    for place, name in enumerate(twin.robot.actuator_names):
        actuator = model.actuator(name)
        if actuator.forcelimited[0]:
            limits[place] = np.abs(actuator.forcerange).max() * abs(actuator.gear[0])
        elif twin.robot.control == "torque" and actuator.ctrllimited[0]:
            limits[place] = np.abs(actuator.ctrlrange).max() * abs(actuator.gear[0])
    return limits
