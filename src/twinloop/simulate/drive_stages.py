"""Model the effects of drives that `drives.DriveStages` applies, one class each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.simulate.command import Array, AsArray
from twinloop.twin import Twin
from twinloop.twin.quantities import default_value
from twinloop.twin.quantities.actuators import NO_CURVE
from twinloop.twin.quantities.joints import find_motor_joint


@dataclass(kw_only=True)
class DriveState:
    """State between two physics steps; stages replace ``control``, ``back_emf`` and values of ``fields``.

    Stages never write into these arrays. ``back_emf`` is the motors' present kt²/R in N·m·s/rad, ``(nworld, nu)``, or
    ``(nu,)`` if all worlds have the preset's; 0 for a motor without known constants.
    """

    qpos: Array
    qvel: Array
    force: Array
    control: Array
    timestep: Array
    back_emf: Array
    fields: dict[str, Array]


@dataclass(frozen=True, kw_only=True)
class MotorConstants:
    """Constants of a robot's motors from their presets, ``(nu,)``; ``known`` is 1 for a motor with constants, else 0.

    For the others the constants are 1, and ``back_emf`` kt²/R is 0.
    """

    known: Array
    kt: Array
    resistance: Array
    voltage: Array

    @classmethod
    def of(cls, twin: Twin) -> MotorConstants:
        """Return the motor constants of a twin; empty without a robot."""
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
class ActuatorDofs:
    """Indices between a robot's actuators and their degrees of freedom.

    ``dof`` ``(nu,)`` is each actuator's, on the motor's side of a gear. ``actuator`` ``(nv,)`` is the inverse, with
    ``nu`` for a degree of freedom without actuator. ``gear`` ``(nu,)`` is MuJoCo's ratio of an actuator's speed to its
    joint's.
    """

    dof: Array
    actuator: Array
    gear: Array

    @classmethod
    def of(cls, twin: Twin, as_array: AsArray) -> ActuatorDofs:
        """Return the indices of a twin; without a robot it has no actuators."""
        model = twin.model
        dof = np.zeros(0, dtype=np.int64) if twin.spec.robot is None else np.asarray(twin.motor_qvel, dtype=np.int64)
        actuator = np.full(model.nv, len(dof), dtype=np.int64)
        actuator[dof] = np.arange(len(dof))
        gear = model.actuator_gear[: len(dof), 0]
        return cls(dof=as_array(dof), actuator=as_array(actuator), gear=as_array(gear))

    def motor_torque(self, moment: DriveState) -> Array:
        """Return the torques of the motors' currents, ``(nworld, nu)``: MuJoCo's actuator force without back-EMF."""
        return moment.force - moment.back_emf * self.map_to_motors(moment.qvel)

    def map_to_motors(self, per_dof: Array) -> Array:
        """Return the speeds of the actuators ``(nworld, nu)`` from those of the degrees of freedom ``(nworld, nv)``."""
        return self.gear * array_namespace(per_dof).take(per_dof, self.dof, axis=1)

    def map_to_dofs(self, per_actuator: Array) -> Array:
        """Return values ``(nworld, nu)`` per degree of freedom, ``(nworld, nv)``; 0 for one without an actuator."""
        xp = array_namespace(per_actuator)
        padded = xp.concat([per_actuator, 0.0 * per_actuator[:, :1]], axis=1)
        return xp.take(padded, self.actuator, axis=1)


COPPER = 0.00393  # 1/K, temperature coefficient of the resistance of annealed copper at 20 °C (IEC 60028)
BUS = "supply/bus/resistance"
_LEAST_VOLTAGE = 0.01  # of the open voltage
_STRENGTH = ("actuator_gainprm", "actuator_biasprm", "actuator_forcerange")


class SupplyVoltage:
    """Supply voltage that drops under load, windings that heat up, and motors other than the preset's.

    All scale gain and torque limit. Duty d and speed w of a motor are those of the step before: torque = kt/R · V · d,
    current I = (V d − kt w)/R. A bus of resistance r supplies all motors, each with d · I. For given duties the
    equation is linear in the drop,

        drop = r Σ (d² V0 − d kt w)/R / (1 + r Σ d²/R),

    which is solved directly, not iterated from step to step. Energy from braking is not stored: the drop is never
    negative, and at least a hundredth of the voltage remains. The winding's temperature rise T
    over the room follows dT/dt = (Rth I² R − T)/tau and R = R0 (1 + 0.00393 T); back-EMF damping kt²/R falls with it.
    """

    fields = (*_STRENGTH, "dof_damping")
    remembers = True

    def __init__(self, twin: Twin, wiring: ActuatorDofs) -> None:
        self._twin, self._wiring = twin, wiring
        self._temperature: Array = None  # both are of the step before; None before parameters are loaded
        self._voltage: Array = None

    @property
    def voltage_and_rise(self) -> tuple[Array, Array]:
        """Voltage in V and temperature rise in K after the last `apply`, ``(nworld, nu)`` each."""
        return self._voltage, self._temperature

    def load(self, params: ParamTable, as_array: AsArray) -> bool:
        """Load bus, motor and winding parameters; return whether any world differs from the preset."""
        zeros = np.zeros(params.nworld)
        bus = params.get(BUS, zeros)
        if self._twin.spec.robot is None:
            return False
        motors = MotorConstants.of(self._twin)

        def column(quantity: str, default: ArrayLike | None = None) -> NDArray[np.float64]:
            return self._twin.column(params, "actuator", quantity, default)

        thermal, rise = column("thermal_resistance"), column("temperature_rise")
        kt, cold = column("torque_constant", motors.kt), column("resistance", motors.resistance)
        other = bool(np.any(kt != motors.kt) or np.any(cold != motors.resistance))
        used = other or bool(np.any(bus > 0) or np.any(thermal > 0) or np.any(rise != 0))
        if used and not motors.known.any():
            raise InputError(
                f"{BUS}, actuator/*/thermal_resistance, torque_constant and resistance need the motors' constants, and "
                f"{self._twin.name} names no servo that has them. Add `robot: {{servo: NAME}}` to its YAML."
            )
        known = motors.known
        values = {
            "known": np.broadcast_to(known, thermal.shape),
            "bus": bus[:, None],
            "open": column("voltage", motors.voltage),
            "thermal": thermal * known,
            "time": column("thermal_time"),
            "rise": rise * known,
            "kt": np.where(known > 0.0, kt, motors.kt),
            "cold": np.where(known > 0.0, cold, motors.resistance),
        }
        values["strength"] = values["kt"] / motors.kt * (motors.resistance / values["cold"])
        self._values = {name: as_array(np.ascontiguousarray(value)) for name, value in values.items()}
        self._preset_back_emf = as_array(motors.back_emf)
        if self._temperature is None:
            self._temperature = self._values["rise"]
            self._voltage = self._values["open"]
        return used

    def begin(self, fresh: Array) -> None:
        """Reset temperature and voltage of the worlds where ``fresh`` is True."""
        xp = array_namespace(fresh)
        self._temperature = xp.where(fresh[:, None], self._values["rise"], self._temperature)
        self._voltage = xp.where(fresh[:, None], self._values["open"], self._voltage)

    def apply(self, moment: DriveState) -> None:
        """Scale gains, torque limits and damping by voltage, temperature and motor constants."""
        values, kt, cold = self._values, self._values["kt"], self._values["cold"]
        xp = array_namespace(moment.force)
        warm = cold * (1.0 + COPPER * self._temperature)
        speed = self._wiring.map_to_motors(moment.qvel)
        duty = moment.force * warm / (kt * self._voltage)
        current = (moment.force - kt * kt * speed / warm) / kt
        self._update_temperature(xp, current, warm, moment.timestep)
        warm = cold * (1.0 + COPPER * self._temperature)
        drawn = values["known"] * duty * (duty * values["open"] - kt * speed) / warm
        slope = values["known"] * duty * duty / warm
        drop = values["bus"] * _sum_actuators(drawn) / (1.0 + values["bus"] * _sum_actuators(slope))
        sagged = values["open"] - values["known"] * xp.clip(drop, 0.0, None)
        self._voltage = xp.maximum(sagged, _LEAST_VOLTAGE * values["open"])
        strength = values["strength"] * (self._voltage / values["open"] * (cold / warm))
        for name in _STRENGTH:
            moment.fields[name] = moment.fields[name] * strength[:, :, None]
        moment.back_emf = values["known"] * kt * kt / warm
        lost = (self._preset_back_emf - moment.back_emf) * self._wiring.gear * self._wiring.gear
        damping = moment.fields["dof_damping"] - self._wiring.map_to_dofs(lost)
        moment.fields["dof_damping"] = xp.clip(damping, 0.0, None)

    def _update_temperature(self, xp: Array, current: Array, warm: Array, timestep: Array) -> None:
        """Integrate the winding temperature exactly over one step of constant losses."""
        values = self._values
        final = values["thermal"] * current * current * warm
        decay = xp.exp(-timestep[:, None] / values["time"])
        moved = final + (self._temperature - final) * decay
        self._temperature = xp.where(values["thermal"] > 0.0, moved, self._temperature)


def _sum_actuators(values: Array) -> Array:
    """Return the sum over actuators, ``(nworld, 1)``, in their order: the same for any number of worlds."""
    total = values[:, :1]
    for column in range(1, values.shape[1]):
        total = total + values[:, column : column + 1]
    return total


class SpeedLimit:
    """Torque limit that falls linearly with speed to zero at the no-load speed; braking keeps the full torque."""

    fields = ("actuator_forcerange",)
    remembers = False

    def __init__(self, twin: Twin, wiring: ActuatorDofs) -> None:
        self._twin, self._wiring = twin, wiring

    def load(self, params: ParamTable, as_array: AsArray) -> bool:
        """Load the no-load speeds; return whether any actuator has one."""
        if self._twin.spec.robot is None:
            return False
        speed = self._twin.column(params, "actuator", "no_load_speed")
        self._slope = as_array(np.where(speed < NO_CURVE, 1.0 / speed, 0.0))
        return bool(np.any(speed < NO_CURVE))

    def begin(self, fresh: Array) -> None:
        """Do nothing: the limit has no memory."""

    def apply(self, moment: DriveState) -> None:
        """Reduce the torque limit in the direction of motion."""
        xp = array_namespace(moment.qvel)
        used = self._wiring.map_to_motors(moment.qvel) * self._slope
        left = xp.stack([xp.clip(1.0 + used, 0.0, 1.0), xp.clip(1.0 - used, 0.0, 1.0)], axis=-1)
        moment.fields["actuator_forcerange"] = moment.fields["actuator_forcerange"] * left


class DriveFriction:
    """Dry friction beyond Coulomb's: larger at rest (Stribeck), and growing with the actuator's torque.

    friction = frictionloss (1 + (stiction − 1) exp(−(w/ws)²)) + load_friction |torque| (Stribeck 1902; the terms of
    Rhoban/bam's models M2 and M3). The torque is that of the motor's current in the step before, without
    the back-EMF part: a motor at its no-load speed does not load its gear.
    """

    fields = ("dof_frictionloss",)
    remembers = True
    _QUANTITIES = ("stiction", "stribeck_velocity", "load_friction")

    def __init__(self, twin: Twin, wiring: ActuatorDofs) -> None:
        self._model, self._wiring, self._twin = twin.model, wiring, twin
        self._joints = sorted({name.split("/")[1] for name in twin.params if name.startswith("joint/")})

    def load(self, params: ParamTable, as_array: AsArray) -> bool:
        """Load the friction parameters; return whether any world has Stribeck or load-dependent friction."""
        values = {}
        for quantity in self._QUANTITIES:
            whole = np.full((params.nworld, self._model.nv), default_value("joint", quantity))
            for joint in self._joints:
                name = f"joint/{joint}/{quantity}"
                if name in params:
                    whole[:, self._model.jnt_dofadr[find_motor_joint(self._model, joint)]] = params[name]
            values[quantity] = whole
        used = bool(np.any(values["stiction"] != 1.0) or np.any(values["load_friction"] > 0.0))
        self._more = as_array(values["stiction"] - 1.0)
        self._speed = as_array(values["stribeck_velocity"])
        self._load = as_array(values["load_friction"])
        return used

    def begin(self, fresh: Array) -> None:
        """Do nothing: the torque of the step before comes with the state."""

    def apply(self, moment: DriveState) -> None:
        """Replace ``dof_frictionloss`` by the friction at the present speed and motor torque."""
        xp = array_namespace(moment.qvel)
        part = moment.qvel / self._speed
        friction = moment.fields["dof_frictionloss"] * (1.0 + self._more * xp.exp(-(part * part)))
        if self._twin.spec.robot is not None:
            friction = friction + self._load * xp.abs(
                self._wiring.map_to_dofs(self._wiring.motor_torque(moment) * self._wiring.gear)
            )
        moment.fields["dof_frictionloss"] = friction


class LinkFeedback:
    """A servo whose encoder is behind the gear: kp (control − motor) becomes kp (control − link)."""

    fields: tuple[str, ...] = ()
    remembers = False

    def __init__(self, twin: Twin, wiring: ActuatorDofs) -> None:
        self._twin, self._gear = twin, wiring.gear
        robot = twin.spec.robot
        self._used = bool(robot and robot.gears and robot.gears.feedback == "link" and robot.control == "position")

    def load(self, params: ParamTable, as_array: AsArray) -> bool:  # noqa: ARG002  # depends on the twin alone
        """Load the joint addresses; return whether the servos measure at the link."""
        if self._used:
            self._motor = as_array(np.asarray(self._twin.motor_qpos, dtype=np.int64))
            self._link = as_array(np.asarray(self._twin.joint_qpos, dtype=np.int64))
        return self._used

    def begin(self, fresh: Array) -> None:
        """Do nothing: the correction has no memory."""

    def apply(self, moment: DriveState) -> None:
        """Shift the control by the difference of motor and link position."""
        xp = array_namespace(moment.qpos)
        motor, link = xp.take(moment.qpos, self._motor, axis=1), xp.take(moment.qpos, self._link, axis=1)
        moment.control = moment.control + self._gear * (motor - link)
