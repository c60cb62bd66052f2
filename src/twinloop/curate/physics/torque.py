"""What torque a recorded motion asks of the drives."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import UnitsError
from twinloop.curate.check import Measured
from twinloop.curate.judging import KnownLimitCheck
from twinloop.curate.physics.kinematics import kinematics_of, params_of, robot_twin
from twinloop.curate.recording import Recording
from twinloop.curate.registry import Twins
from twinloop.simulate.inverse_dynamics import InverseDynamics
from twinloop.twin import Twin

Array = NDArray[np.float64]


class Torque(KnownLimitCheck):
    """Motions that ask for more torque than the drives have, by the twin's inverse dynamics in free space.

    The figure is the torque over the drive's limit, at the frame where it is largest. What is carried or pushed asks
    for more yet, and is not counted.
    """

    reads = frozenset({"raw"})

    name = "physics/torque"
    meaning = "the motion asks for more torque than the drives have (inverse dynamics in the twin)"
    unit = "of the limit"
    limit, bad = 1.15, 1.5
    source = "the drive's force range; smoothing and friction err by some per cent"

    def __init__(self, twins: Twins) -> None:
        self._twins = twins

    def measure(self, recording: Recording) -> Sequence[Measured]:
        """See `MeasuringCheck`."""
        twin = self._twins(recording)
        if robot_twin(recording, self._twins) is None or set(twin.robot.joints) != set(recording.raw.joints):
            return [Measured(value=None, said=f"{twin.name} has other joints than the recording.")]
        if twin.robot.gears is not None:
            return [Measured(value=None, said=f"With the play of {twin.name}'s gears torque is no function of motion.")]
        moved = kinematics_of(recording, twin)
        if moved.units is None:
            raise UnitsError("Nothing says what its columns are in rad, so no torque follows from them.")
        order = [moved.joints.index(joint) for joint in twin.robot.joints]
        inverse = InverseDynamics(twin, params_of(recording, twin))
        asked = np.abs(inverse(moved.position[:, order], moved.velocity[:, order], moved.acceleration[:, order]))
        made = []
        for column, (joint, most) in enumerate(zip(twin.robot.joints, force_limits(twin, inverse.model), strict=True)):
            if not np.isfinite(most):
                continue
            at = int(np.argmax(asked[:, column]))
            said = f"{joint} needs {asked[at, column]:.3g} N·m (or N) at frame {moved.frame + at}, its drive has "
            frame = moved.frame + at
            made.append(
                Measured(
                    value=float(asked[at, column] / most), channel=joint, said=f"{said}{most:.3g}.", first_frame=frame,
                    last_frame=frame,
                )
            )  # fmt: skip
        return made or [Measured(value=None, said=f"No drive of {twin.name} has a force limit.")]


def force_limits(twin: Twin, model: mujoco.MjModel) -> Array:
    """The most force of each robot joint's drive in N·m or N, infinite where nothing limits it, ``(n,)``."""
    limits = np.full(len(twin.robot.joints), np.inf)
    for place, name in enumerate(twin.robot.actuator_names):
        actuator = model.actuator(name)
        if actuator.forcelimited[0]:
            limits[place] = np.abs(actuator.forcerange).max() * abs(actuator.gear[0])
        elif twin.robot.control == "torque" and actuator.ctrllimited[0]:
            limits[place] = np.abs(actuator.ctrlrange).max() * abs(actuator.gear[0])
    return limits
