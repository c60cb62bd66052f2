"""How fast and how far joints move, from what was recorded alone: range, velocity, acceleration, jerk."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.curate.check import Measured
from twinloop.curate.judging import LIMIT, UsualLimitCheck
from twinloop.curate.limits import Limit
from twinloop.curate.physics.kinematics import Kinematics, kinematics_of, robot_twin
from twinloop.curate.recording import Recording
from twinloop.curate.registry import Twins
from twinloop.twin import Twin

Array = NDArray[np.float64]


class JointCheck(UsualLimitCheck):
    """A check of moving joints, with the twin's limits where there is a twin, else what is usual."""

    reads = frozenset({"raw"})

    def __init__(self, twins: Twins) -> None:
        self._twins = twins

    def twin(self, recording: Recording) -> Twin | None:
        """The twin with the robot of the recording, or None."""
        return robot_twin(recording, self._twins)


class _Peak(JointCheck):
    """The highest figure of a column over time."""

    spread = 0.15
    floor = 0.0
    quantity: str

    def values(self, moved: Kinematics) -> Array:
        """The quantity ``(N, n)``."""
        raise NotImplementedError

    def limits(self, _recording: Recording, _twin: Twin, _joint: str) -> Limit | None:
        """What the twin says."""
        return None

    def measure(self, recording: Recording) -> Sequence[Measured]:
        """See `MeasuringCheck`."""
        twin = self.twin(recording)
        moved = kinematics_of(recording, twin)
        size, made = np.abs(self.values(moved)), []
        for column, joint in enumerate(moved.joints):
            at = int(np.argmax(size[:, column]))
            limit = None if twin is None or moved.units is None else self.limits(recording, twin, joint)
            said = f"{joint} has {self.quantity} of up to {size[at, column]:.4g}, in {moved.unit} and s, at frame "
            frame = moved.frame + at
            facts = {} if limit is None else {LIMIT: limit}
            made.append(
                Measured(
                    value=float(size[at, column]), channel=joint, said=f"{said}{frame}.", first_frame=frame,
                    last_frame=frame, facts=facts,
                )
            )  # fmt: skip
        return made


class Velocity(_Peak):
    """Joints that are faster than their servo without load, or than usual where no data sheet tells."""

    name = "physics/velocity"
    meaning = "a joint is faster than its servo can turn, or than it is in the other episodes"
    quantity = "a velocity"
    unit = "1/s"

    def values(self, moved: Kinematics) -> Array:
        """See `_Peak`."""
        return moved.velocity

    def limits(self, _recording: Recording, twin: Twin, joint: str) -> Limit | None:
        """The no-load speed of the joint's servo."""
        servo = twin.servos[twin.robot.joints.index(joint)] if twin.servos else None
        if servo is None or servo.no_load_speed is None:
            return None
        speed = servo.no_load_speed.value
        return Limit(value=1.1 * speed, bad=1.3 * speed, source=f"1.1 times the no-load speed of {servo.name}")


class Acceleration(_Peak):
    """Joints that accelerate more than in the other episodes."""

    name = "physics/acceleration"
    meaning = "a joint accelerates far more than in the other episodes"
    quantity = "an acceleration"
    unit = "1/s²"

    def values(self, moved: Kinematics) -> Array:
        """See `_Peak`."""
        return moved.acceleration


class Jerk(_Peak):
    """Joints whose acceleration changes faster than in the other episodes."""

    name = "physics/jerk"
    meaning = "a joint's acceleration changes far faster than in the other episodes"
    quantity = "a jerk"
    unit = "1/s³"

    def values(self, moved: Kinematics) -> Array:
        """See `_Peak`."""
        return moved.jerk


class JointRange(JointCheck):
    """Joints beyond their range: of the twin, with a margin for calibrations by hand; else beyond what is usual."""

    name = "physics/joint_range"
    meaning = "a joint is beyond its range"
    unit = "of the range"
    floor, spread = 1.0, 0.1

    def measure(self, recording: Recording) -> Sequence[Measured]:
        """See `MeasuringCheck`."""
        twin = self.twin(recording)
        moved = kinematics_of(recording, twin)
        if twin is None or moved.units is None:
            reach = np.ptp(moved.position, axis=0)
            rows = zip(moved.joints, reach.tolist(), strict=True)
            return [
                Measured(value=size, channel=joint, said=f"{joint} moves over {size:.4g} {moved.unit}.")
                for joint, size in rows
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
                Measured(
                    value=value, channel=joint, said=f"{said}{high:.4g}.", first_frame=frame, last_frame=frame,
                    facts={LIMIT: limit},
                )
            )  # fmt: skip
        return made or [Measured(value=None, said=f"No joint of {twin.name} has a range.")]


_RANGE_SIM = Limit(value=0.03, bad=0.08, source="the twin's range; a soft stop gives way by a hundredth")
_RANGE_REAL = Limit(value=0.1, bad=0.25, source="the twin's range; calibrations by hand are off by up to a tenth")
