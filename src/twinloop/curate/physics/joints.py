"""Check speed, range, acceleration and jerk of joints, and the drive torque that the motion needs."""

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
_TOO_SHORT = "The longest stretch without a gap is too short to estimate its motion."


@dataclass(frozen=True, kw_only=True)
class SmoothedKinematics:
    """Smoothed motion of the longest stretch without gaps: arrays ``(N, n)``, in ``unit`` and seconds.

    ``frame`` is the first frame of the stretch. ``units`` maps the log's columns to rad or m, None if unknown.
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
        """Unit of positions: rad (m for a slide joint), or the log's unit if its conversion is unknown."""
        return "rad" if self.units is not None else "of the log's unit"


def compute_kinematics(recording: RecordedEpisode, twin: Twin | None) -> SmoothedKinematics:
    """Compute the smoothed joint motion of a recording.

    Raises:
        InputError: the longest stretch without gaps is too short.
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
    """Return the log's map to SI units; if a calibration is missing, use the twin's joint ranges."""
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
    """Return the recording's twin if there is one and it has all recorded joints, else None."""
    try:
        twin = twins(recording)
        return twin if set(recording.raw.joints) <= set(twin.robot.joints) else None
    except InputError:
        return None


def find_drawn_params(recording: RecordedEpisode, twin: Twin) -> ParamTable | None:
    """Return the drawn parameters of a simulated episode, or None if another twin made it."""
    record = recording.provenance
    return recorded_params(twin, record) if record is not None and record.twin_hash == twin.hash else None


class JointCheck(UsualLimitCheck):
    """A check of joint motion, with the twin's limits if there is a twin, else with the usual values."""

    reads = frozenset({"raw"})

    def __init__(self, twins: EpisodeTwins) -> None:
        self._twins = twins

    def find_twin(self, recording: RecordedEpisode) -> Twin | None:
        """Return the twin with the recording's joints, or None."""
        return find_robot_twin(recording, self._twins)


class _ColumnPeak(JointCheck):
    """Maximum over time of one array of `SmoothedKinematics`; the check's name selects the array."""

    spread = 0.15
    floor = 0.0
    quantity: str

    def find_limit(self, _twin: Twin, _joint: str) -> MetricLimit | None:
        """Return the limit from the twin, or None."""
        return None

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the largest absolute value of each joint, with the twin's limit in the facts if there is one."""
        twin = self.find_twin(recording)
        moved = compute_kinematics(recording, twin)
        size, made = np.abs(getattr(moved, self.name.removeprefix("physics/"))), []
        for column, joint in enumerate(moved.joints):
            at = int(np.argmax(size[:, column]))
            frame, value = moved.frame + at, float(size[at, column])
            limit = None if twin is None or moved.units is None else self.find_limit(twin, joint)
            said = f"{joint} has {self.quantity} of up to {value:.4g}, in {moved.unit} and s, at frame {frame}."
            facts = {} if limit is None else {LIMIT: limit}
            made.append(
                Measurement(value=value, channel=joint, said=said, first_frame=frame, last_frame=frame, facts=facts)
            )
        return made


class JointVelocityCheck(_ColumnPeak):
    """Joints faster than their servo's no-load speed, or than usual if there is no data sheet."""

    name = "physics/velocity"
    meaning = "a joint is faster than its servo can turn, or than in the other episodes"
    quantity = "a velocity"
    unit = "1/s"

    def find_limit(self, twin: Twin, joint: str) -> MetricLimit | None:
        """Return the limit from the no-load speed of the joint's servo."""
        servo = twin.servos[twin.robot.joints.index(joint)] if twin.servos else None
        if servo is None or servo.no_load_speed is None:
            return None
        speed = servo.no_load_speed.value
        return MetricLimit(value=1.1 * speed, bad=1.3 * speed, source=f"1.1 times the no-load speed of {servo.name}")


class JointAccelerationCheck(_ColumnPeak):
    """Joints that accelerate more than in the other episodes."""

    name = "physics/acceleration"
    meaning = "a joint accelerates far more than in the other episodes"
    quantity = "an acceleration"
    unit = "1/s²"


class JointJerkCheck(_ColumnPeak):
    """Joints with more jerk than in the other episodes."""

    name = "physics/jerk"
    meaning = "a joint's acceleration changes far faster than in the other episodes"
    quantity = "a jerk"
    unit = "1/s³"


class JointRangeCheck(JointCheck):
    """Joints beyond the twin's range, with a margin for manual calibration; without a twin, beyond the usual range."""

    name = "physics/joint_range"
    meaning = "a joint is beyond its range"
    unit = "of the range"
    floor, spread = 1.0, 0.1

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return how far each joint is beyond its range, over the range; without a twin, how far it moves."""
        twin = self.find_twin(recording)
        moved = compute_kinematics(recording, twin)
        if twin is None or moved.units is None:
            reach = np.ptp(moved.position, axis=0).tolist()
            return [
                Measurement(value=size, channel=joint, said=f"{joint} moves over {size:.4g} {moved.unit}.")
                for joint, size in zip(moved.joints, reach, strict=True)
            ]
        made = []
        for column, joint in enumerate(moved.joints):
            low, high = twin.joint_ranges[twin.robot.joints.index(joint)]
            if not twin.model.joint(joint).limited[0]:
                continue
            beyond = np.maximum(low - moved.position[:, column], moved.position[:, column] - high)
            at = int(np.argmax(beyond))
            value = max(float(beyond[at]), 0.0) / float(high - low)
            said = f"{joint} is at {moved.position[at, column]:.4g} at frame {moved.frame + at}, range {low:.4g} to "
            limit = _RANGE_SIM if recording.source == "sim" else _RANGE_REAL
            frame = moved.frame + at
            made.append(
                Measurement(
                    value=value, channel=joint, said=f"{said}{high:.4g}.", first_frame=frame, last_frame=frame,
                    facts={LIMIT: limit},
                )
            )  # fmt: skip
        return made or [Measurement(value=None, said=f"No joint of {twin.name} has a range.")]


_RANGE_SIM = MetricLimit(value=0.03, bad=0.08, source="the twin's range; a soft stop yields by about 1 %")
_RANGE_REAL = MetricLimit(value=0.1, bad=0.25, source="the twin's range; manual calibrations are off by up to 10 %")


class TorqueCheck(KnownLimitCheck):
    """Motions that need more torque than the drives have, by the twin's inverse dynamics in free space.

    The value is the torque divided by the drive's limit, at the frame of its maximum. Loads and contact forces would
    need more torque; they are not included.
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
        """Return each joint's largest torque from inverse dynamics, divided by its drive's limit."""
        twin = self._twins(recording)
        if find_robot_twin(recording, self._twins) is None or set(twin.robot.joints) != set(recording.raw.joints):
            return [Measurement(value=None, said=f"{twin.name} and the recording have different joints.")]
        if twin.robot.gears is not None:
            return [
                Measurement(
                    value=None, said=f"{twin.name} has gear play, so the torque does not follow from the motion."
                )
            ]
        moved = compute_kinematics(recording, twin)
        if moved.units is None:
            raise UnitsError("The conversion of its columns to rad is unknown, so torque cannot be computed.")
        order = [moved.joints.index(joint) for joint in twin.robot.joints]
        inverse = InverseDynamics(twin, find_drawn_params(recording, twin))
        asked = np.abs(inverse(moved.position[:, order], moved.velocity[:, order], moved.acceleration[:, order]))
        made = []
        for column, (joint, most) in enumerate(
            zip(twin.robot.joints, compute_force_limits(twin, inverse.model), strict=True)
        ):
            if not np.isfinite(most):
                continue
            at = int(np.argmax(asked[:, column]))
            said = f"{joint} needs {asked[at, column]:.3g} N·m (or N) at frame {moved.frame + at}, its drive has "
            frame = moved.frame + at
            made.append(
                Measurement(
                    value=float(asked[at, column] / most), channel=joint, said=f"{said}{most:.3g}.", first_frame=frame,
                    last_frame=frame,
                )
            )  # fmt: skip
        return made or [Measurement(value=None, said=f"No drive of {twin.name} has a force limit.")]


def compute_force_limits(twin: Twin, model: mujoco.MjModel) -> Array:
    """Return the force limit of each robot joint's drive in N·m or N, ``(n,)``; infinite without a limit."""
    limits = np.full(len(twin.robot.joints), np.inf)
    for place, name in enumerate(twin.robot.actuator_names):
        actuator = model.actuator(name)
        if actuator.forcelimited[0]:
            limits[place] = np.abs(actuator.forcerange).max() * abs(actuator.gear[0])
        elif twin.robot.control == "torque" and actuator.ctrllimited[0]:
            limits[place] = np.abs(actuator.ctrlrange).max() * abs(actuator.gear[0])
    return limits
