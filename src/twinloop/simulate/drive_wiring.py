"""Which actuator drives which degree of freedom, and what a drive stage sees of a moment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace

from twinloop.simulate.clock import Array, AsArray
from twinloop.twin import Twin


@dataclass(kw_only=True)
class Moment:
    """Between two physics steps; stages replace ``control``, ``back_emf`` and values of ``fields``, never write there.

    ``back_emf``, ``(nworld, nu)`` or ``(nu,)`` where all worlds have the presets', is kt²/R of the motors now in
    N·m·s/rad, and 0 where no constants are known.
    """

    qpos: Array
    qvel: Array
    force: Array
    control: Array
    timestep: Array
    back_emf: Array
    fields: dict[str, Array]


@dataclass(frozen=True, kw_only=True)
class Motors:
    """Constants of a robot's motors as their presets have them, ``(nu,)``; ``known`` is 1 where there are any, else 0.

    Where there are none the others are 1, and ``back_emf`` kt²/R is 0.
    """

    known: Array
    kt: Array
    resistance: Array
    voltage: Array

    @classmethod
    def of(cls, twin: Twin) -> Motors:
        """The motors of a twin; none where it has no robot."""
        joints = twin.robot.joints if twin.spec.robot else []
        motors = [servo.motor if servo else None for servo in twin.servos or (None,) * len(joints)]
        return cls(
            known=np.array([motor is not None for motor in motors], dtype=np.float64),
            kt=np.array([motor.kt if motor else 1.0 for motor in motors]),
            resistance=np.array([motor.resistance if motor else 1.0 for motor in motors]),
            voltage=np.array([motor.voltage if motor else 1.0 for motor in motors]),
        )

    @property
    def back_emf(self) -> Array:
        """kt²/R in N·m·s/rad."""
        return self.known * self.kt * self.kt / self.resistance


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """Indices between a robot's actuators and the degrees of freedom that they turn.

    ``dof`` ``(nu,)`` is each actuator's, on the motor's side of a gear. ``actuator`` ``(nv,)`` is the reverse, with
    ``nu`` where there is none. ``gear`` ``(nu,)`` is MuJoCo's ratio of an actuator's speed to its joint's.
    """

    dof: Array
    actuator: Array
    gear: Array

    @classmethod
    def of(cls, twin: Twin, as_array: AsArray) -> Wiring:
        """The wiring of a twin; empty where it has no robot."""
        model = twin.model
        dof = np.zeros(0, dtype=np.int64) if twin.spec.robot is None else np.asarray(twin.motor_qvel, dtype=np.int64)
        actuator = np.full(model.nv, len(dof), dtype=np.int64)
        actuator[dof] = np.arange(len(dof))
        gear = model.actuator_gear[: len(dof), 0]
        return cls(dof=as_array(dof), actuator=as_array(actuator), gear=as_array(gear))

    def motor_torque(self, moment: Moment) -> Array:
        """What the motors' currents push with, ``(nworld, nu)``: MuJoCo's actuator force less the back-EMF's part."""
        return moment.force - moment.back_emf * self.at_motors(moment.qvel)

    def at_motors(self, per_dof: Array) -> Array:
        """Speeds of the actuators ``(nworld, nu)`` from those of the degrees of freedom ``(nworld, nv)``."""
        return self.gear * array_namespace(per_dof).take(per_dof, self.dof, axis=1)

    def at_dofs(self, per_actuator: Array) -> Array:
        """From ``(nworld, nu)`` to ``(nworld, nv)``, nothing where no actuator turns."""
        xp = array_namespace(per_actuator)
        padded = xp.concat([per_actuator, 0.0 * per_actuator[:, :1]], axis=1)
        return xp.take(padded, self.actuator, axis=1)
