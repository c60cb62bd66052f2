"""Model effects of motors and gears that MuJoCo lacks, one class per effect; `drives.DriveStages` applies them."""

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
    """State of all worlds between two physics steps, which the drive effects modify one after another.

    An effect assigns new arrays to ``control``, ``back_emf`` and entries of ``fields``; it never writes into an array.

    Attributes:
        qpos: positions, shape ``(nworld, nq)``.
        qvel: velocities, shape ``(nworld, nv)``.
        force: actuator forces of the previous physics step, shape ``(nworld, nu)``.
        control: controls of the coming physics step, shape ``(nworld, nu)``.
        timestep: length of the coming physics step in s, shape ``(nworld,)``.
        back_emf: damping kt²/R that the motors' back-EMF causes, in N·m·s/rad, with the torque constant kt and the
            present winding resistance R; 0 for a motor with unknown constants. The shape is ``(nworld, nu)``, or
            ``(nu,)`` if all worlds use the value of the twin's servo preset.
        fields: model fields by name, shape ``(nworld, …)``.
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
    """Electrical constants of a robot's motors from their servo presets, each array of shape ``(nu,)``.

    If the constants of a motor are unknown, ``kt``, ``resistance`` and ``voltage`` are 1, and `MotorConstants.back_emf`
    is 0.

    Attributes:
        known: 1 for a motor with known constants, else 0.
        kt: torque constant, in N·m/A.
        resistance: resistance of the winding, in ohm.
        voltage: supply voltage, in V.
    """

    known: Array
    kt: Array
    resistance: Array
    voltage: Array

    @classmethod
    def of(cls, twin: Twin) -> MotorConstants:
        """Return the motor constants of a twin; arrays are empty if the twin has no robot."""
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
        """Damping by back-EMF, kt²/R, in N·m·s/rad."""
        return self.known * self.kt * self.kt / self.resistance


@dataclass(frozen=True, kw_only=True)
class ActuatorDofs:
    """Index mapping between a robot's actuators and their degrees of freedom.

    Attributes:
        dof: degree of freedom of each actuator, on the motor's side of a gear, shape ``(nu,)``.
        actuator: actuator of each degree of freedom, or ``nu`` if it has no actuator, shape ``(nv,)``.
        gear: ratio of an actuator's speed to its joint's speed (MuJoCo's ``actuator_gear``), shape ``(nu,)``.
    """

    dof: Array
    actuator: Array
    gear: Array

    @classmethod
    def of(cls, twin: Twin, as_array: AsArray) -> ActuatorDofs:
        """Create the mapping between a twin's actuators and degrees of freedom; without a robot there are no actuators.

        ``as_array`` converts NumPy arrays to the array library of the simulation.
        """
        model = twin.model
        dof = np.zeros(0, dtype=np.int64) if twin.spec.robot is None else np.asarray(twin.motor_qvel, dtype=np.int64)
        actuator = np.full(model.nv, len(dof), dtype=np.int64)
        actuator[dof] = np.arange(len(dof))
        gear = model.actuator_gear[: len(dof), 0]
        return cls(dof=as_array(dof), actuator=as_array(actuator), gear=as_array(gear))

    def motor_torque(self, state: DriveState) -> Array:
        """Return the torques of the motor currents in N·m, shape ``(nworld, nu)``.

        A torque is MuJoCo's actuator force − ``back_emf`` · motor speed, because the actuator force does not include
        the back-EMF, which the model has as joint damping.
        """
        return state.force - state.back_emf * self.map_to_motors(state.qvel)

    def map_to_motors(self, per_dof: Array) -> Array:
        """Convert velocities of the degrees of freedom ``(nworld, nv)`` to actuator speeds ``(nworld, nu)``."""
        return self.gear * array_namespace(per_dof).take(per_dof, self.dof, axis=1)

    def map_to_dofs(self, per_actuator: Array) -> Array:
        """Convert values per actuator ``(nworld, nu)`` to values per degree of freedom ``(nworld, nv)``.

        A degree of freedom without an actuator gets 0.
        """
        xp = array_namespace(per_actuator)
        padded = xp.concat([per_actuator, 0.0 * per_actuator[:, :1]], axis=1)
        return xp.take(padded, self.actuator, axis=1)


COPPER = 0.00393  # 1/K, temperature coefficient of the resistance of annealed copper at 20 °C (IEC 60028)
BUS = "supply/bus/resistance"
_LEAST_VOLTAGE = 0.01  # of the open voltage
_STRENGTH = ("actuator_gainprm", "actuator_biasprm", "actuator_forcerange")


class SupplyVoltage:
    """Drive effect: actual motor voltage and winding resistance, which scale the actuators' gain and torque limit.

    It models three effects: a supply voltage that drops under load, windings that heat up, and motors whose constants
    differ from the servo's preset. The duty cycle d and the speed w of a motor are those of the previous physics step.
    Its torque is kt/R · V · d and its current is I = (V d − kt w)/R, for the torque constant kt, the resistance R and
    the voltage V.

    One bus of resistance r supplies all motors with the sum of d · I. The bus has the voltage V0 at zero current. With
    V = V0 − drop, this is a linear equation for the voltage drop at given duty cycles. Its solution is used directly:

        drop = r Σ (d² V0 − d kt w)/R / (1 + r Σ d²/R).

    Energy from braking is not stored, so the drop is never negative. At least a hundredth of the voltage remains.

    The temperature rise T of the winding over the room follows dT/dt = (Rth I² R − T)/tau with R = R0 (1 + 0.00393
    T). Here Rth is the thermal resistance, tau the thermal time constant and R0 the resistance at room temperature.
    The back-EMF damping kt²/R decreases as R grows.
    """

    fields = (*_STRENGTH, "dof_damping")
    has_memory = True

    def __init__(self, twin: Twin, wiring: ActuatorDofs) -> None:
        self._twin, self._wiring = twin, wiring
        self._temperature: Array = None  # both are of the step before; None before parameters are loaded
        self._voltage: Array = None

    @property
    def voltage_and_rise(self) -> tuple[Array, Array]:
        """Motor voltage in V, and winding temperature above that of the room in K, each of shape ``(nworld, nu)``.

        They are the values after the last `apply`.
        """
        return self._voltage, self._temperature

    def load(self, params: ParamTable, as_array: AsArray) -> bool:
        """Read the parameters of supply bus, motors and windings; return whether any world has this drive effect.

        A world has it if its bus resistance, thermal resistance or initial temperature rise is not 0, or if its motor
        constants differ from those of the servo preset.

        Raises:
            InputError: If a parameter needs motor constants that the twin's servo preset does not have.
        """
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
                f"{BUS}, actuator/*/thermal_resistance, torque_constant and resistance need the motors' constants, but "
                f"{self._twin.name} has no servo with such constants. Add `robot: {{servo: NAME}}` to its YAML."
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

    def reset(self, fresh: Array) -> None:
        """Reset temperature and voltage in the restarted worlds, for which ``fresh`` ``(nworld,)`` is True."""
        xp = array_namespace(fresh)
        self._temperature = xp.where(fresh[:, None], self._values["rise"], self._temperature)
        self._voltage = xp.where(fresh[:, None], self._values["open"], self._voltage)

    def apply(self, state: DriveState) -> None:
        """Scale gains, torque limits and damping according to voltage, temperature and motor constants."""
        values, kt, cold = self._values, self._values["kt"], self._values["cold"]
        xp = array_namespace(state.force)
        warm = cold * (1.0 + COPPER * self._temperature)
        speed = self._wiring.map_to_motors(state.qvel)
        duty = state.force * warm / (kt * self._voltage)
        current = (state.force - kt * kt * speed / warm) / kt
        self._update_temperature(xp, current, warm, state.timestep)
        warm = cold * (1.0 + COPPER * self._temperature)
        load_current = values["known"] * duty * (duty * values["open"] - kt * speed) / warm
        slope = values["known"] * duty * duty / warm
        drop = values["bus"] * _sum_actuators(load_current) / (1.0 + values["bus"] * _sum_actuators(slope))
        voltage = values["open"] - values["known"] * xp.clip(drop, 0.0, None)
        self._voltage = xp.maximum(voltage, _LEAST_VOLTAGE * values["open"])
        strength = values["strength"] * (self._voltage / values["open"] * (cold / warm))
        for name in _STRENGTH:
            state.fields[name] = state.fields[name] * strength[:, :, None]
        state.back_emf = values["known"] * kt * kt / warm
        lost_damping = (self._preset_back_emf - state.back_emf) * self._wiring.gear * self._wiring.gear
        damping = state.fields["dof_damping"] - self._wiring.map_to_dofs(lost_damping)
        state.fields["dof_damping"] = xp.clip(damping, 0.0, None)

    def _update_temperature(self, xp: Array, current: Array, warm: Array, timestep: Array) -> None:
        """Integrate the winding temperature over one physics step, with the exact solution for constant heating power.

        The temperature affects the winding resistance and thus the effect of the supply voltage.

        Args:
            xp: namespace of the array library (NumPy or torch).
            current: motor currents in A, shape ``(nworld, nu)``.
            warm: winding resistances at the present temperature in ohm, shape ``(nworld, nu)``.
            timestep: length of the step in s, shape ``(nworld,)``.
        """
        values = self._values
        final = values["thermal"] * current * current * warm
        decay = xp.exp(-timestep[:, None] / values["time"])
        relaxed = final + (self._temperature - final) * decay
        self._temperature = xp.where(values["thermal"] > 0.0, relaxed, self._temperature)


def _sum_actuators(values: Array) -> Array:
    """Return the sum over actuators, shape ``(nworld, 1)``.

    Actuators are added in a fixed order, so that the result of a world does not depend on the number of worlds.
    """
    total = values[:, :1]
    for column in range(1, values.shape[1]):
        total = total + values[:, column : column + 1]
    return total


class SpeedLimit:
    """Drive effect: torque limit that falls linearly with the speed and is zero at the no-load speed.

    The limit is ``actuator_forcerange`` in N·m, and the no-load speed of each actuator is in rad/s. When braking, the
    full torque is available.

    Args:
        twin: the twin.
        wiring: mapping between its actuators and degrees of freedom.
    """

    fields = ("actuator_forcerange",)
    has_memory = False

    def __init__(self, twin: Twin, wiring: ActuatorDofs) -> None:
        self._twin, self._wiring = twin, wiring

    def load(self, params: ParamTable, as_array: AsArray) -> bool:
        """Read the no-load speeds; return whether any actuator has one."""
        if self._twin.spec.robot is None:
            return False
        speed = self._twin.column(params, "actuator", "no_load_speed")
        self._slope = as_array(np.where(speed < NO_CURVE, 1.0 / speed, 0.0))
        return bool(np.any(speed < NO_CURVE))

    def reset(self, fresh: Array) -> None:
        """Do nothing for restarted worlds (``fresh``), because this effect has no memory."""

    def apply(self, state: DriveState) -> None:
        """Multiply the torque limit in the direction of motion by 1 − speed / no-load speed (at least 0), in place."""
        xp = array_namespace(state.qvel)
        speed_ratio = self._wiring.map_to_motors(state.qvel) * self._slope
        remaining = xp.stack([xp.clip(1.0 + speed_ratio, 0.0, 1.0), xp.clip(1.0 - speed_ratio, 0.0, 1.0)], axis=-1)
        state.fields["actuator_forcerange"] = state.fields["actuator_forcerange"] * remaining


class DriveFriction:
    """Drive effect: dry friction that is larger at rest (Stribeck effect) and grows with the actuator's torque.

    friction = frictionloss (1 + (stiction − 1) exp(−(w/ws)²)) + load_friction |torque|. Here frictionloss is the
    joint's dry friction in N·m, stiction its factor at rest, w the speed and ws the Stribeck velocity in rad/s
    (Stribeck 1902), and load_friction a share of the torque. These are the terms of the friction models M2 and M3 of
    the servo library Rhoban/bam. The torque is that of the motor's current in the previous step, after subtraction of
    back-EMF, because a motor at its no-load speed does not load its gear.
    """

    fields = ("dof_frictionloss",)
    has_memory = True
    _QUANTITIES = ("stiction", "stribeck_velocity", "load_friction")

    def __init__(self, twin: Twin, wiring: ActuatorDofs) -> None:
        self._model, self._wiring, self._twin = twin.model, wiring, twin
        self._joints = sorted({name.split("/")[1] for name in twin.params if name.startswith("joint/")})

    def load(self, params: ParamTable, as_array: AsArray) -> bool:
        """Read the friction parameters; return whether any world has Stribeck or load-dependent friction."""
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

    def reset(self, fresh: Array) -> None:
        """Do nothing for restarted worlds (``fresh``), because the previous step's torque is part of `DriveState`."""

    def apply(self, state: DriveState) -> None:
        """Set ``dof_frictionloss`` to the friction at the present speed and motor torque."""
        xp = array_namespace(state.qvel)
        ratio = state.qvel / self._speed
        friction = state.fields["dof_frictionloss"] * (1.0 + self._more * xp.exp(-(ratio * ratio)))
        if self._twin.spec.robot is not None:
            friction = friction + self._load * xp.abs(
                self._wiring.map_to_dofs(self._wiring.motor_torque(state) * self._wiring.gear)
            )
        state.fields["dof_frictionloss"] = friction


class LinkFeedback:
    """Drive effect: a servo whose encoder is after the gear, so that it controls the link and not the motor.

    The position gain kp acts on (control − link position) instead of (control − motor position).
    """

    fields: tuple[str, ...] = ()
    has_memory = False

    def __init__(self, twin: Twin, wiring: ActuatorDofs) -> None:
        self._twin, self._gear = twin, wiring.gear
        robot = twin.spec.robot
        self._used = bool(robot and robot.gears and robot.gears.feedback == "link" and robot.control == "position")

    def load(self, params: ParamTable, as_array: AsArray) -> bool:  # noqa: ARG002  # depends on the twin alone
        """Look up the indices of the motor and link positions in qpos; return whether the servos measure at the link.

        ``as_array`` converts NumPy arrays to the array library of the simulation.
        """
        if self._used:
            self._motor = as_array(np.asarray(self._twin.motor_qpos, dtype=np.int64))
            self._link = as_array(np.asarray(self._twin.joint_qpos, dtype=np.int64))
        return self._used

    def reset(self, fresh: Array) -> None:
        """Do nothing for restarted worlds (``fresh``), because this effect has no memory."""

    def apply(self, state: DriveState) -> None:
        """Add the difference between motor and link position to the control, in place.

        MuJoCo's actuator measures the motor position. With the changed control it controls the link position, as a
        servo does whose encoder is on the link side of the gear.
        """
        xp = array_namespace(state.qpos)
        motor, link = xp.take(state.qpos, self._motor, axis=1), xp.take(state.qpos, self._link, axis=1)
        state.control = state.control + self._gear * (motor - link)
