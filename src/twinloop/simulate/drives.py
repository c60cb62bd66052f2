"""Apply effects of drives between physics steps: voltage drop, heat, torque-speed curve, stiction, gears, rotor thrust.

MuJoCo's actuator is the voltage equation of a servo with constant supply and constant resistance (see
``twin/servos.yaml``). Changes of these are applied here, before every physics step, from the state and from the forces
of the previous step: per-world model fields and controls change, the equation stays MuJoCo's.

The same code runs in every backend. It is elementwise over worlds and uses the names of the array API, so a world's
numbers depend on that world alone, on a host or on a device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import mujoco
import numpy as np
from array_api_compat import array_namespace
from numpy.typing import ArrayLike, NDArray

from twinloop.core.params import ParamTable
from twinloop.simulate.command import Array, AsArray
from twinloop.simulate.drive_stages import (
    ActuatorDofs,
    DriveFriction,
    DriveState,
    LinkFeedback,
    MotorConstants,
    SpeedLimit,
    SupplyVoltage,
)
from twinloop.simulate.protocol import InitialState
from twinloop.twin import Twin
from twinloop.twin.quantities.actuators import FAMILY, MEMBER, rotor_rows

_THRUST = ("thrust/constant", "thrust/linear", "thrust/quadratic")


class Rotors:
    """Conversion of throttles to thrusts; a start within a recording uses the rotor speeds from earlier throttles.

    Both lags are integrated exactly for a throttle that is constant over a physics step. Thrust is never negative.
    """

    fields: tuple[str, ...] = ()
    remembers = True

    def __init__(self, twin: Twin, before: InitialState | None) -> None:
        self._twin, self._before = twin, before
        mask = np.zeros(twin.model.nu, dtype=bool)
        mask[rotor_rows(twin.model)] = True
        self._mask = mask
        self._speed: Array = None  # rotor speed, as a throttle; None before parameters are loaded
        self._electric: Array = None

    def load(self, params: ParamTable, as_array: AsArray) -> bool:
        """Load thrust curve and lags; return whether the twin has rotors."""
        if f"{FAMILY}/{MEMBER}/{_THRUST[2]}" not in self._twin.params:
            return False
        columns = {name: self._column(params, name) for name in (*_THRUST, "lag", "second_lag")}
        self._values = {name: as_array(column[:, None]) for name, column in columns.items()}
        self._rotor = as_array(self._mask)
        if self._speed is None:
            electric, speed = self._compute_lag_states(columns, params.nworld)
            self._electric, self._speed = as_array(electric), as_array(speed)
        return True

    def _column(self, params: ParamTable, quantity: str) -> NDArray[np.float64]:
        name = f"{FAMILY}/{MEMBER}/{quantity}"
        nominal = self._twin.params[name].nominal if name in self._twin.params else 0.0
        return np.asarray(params.get(name, np.full(params.nworld, nominal)))

    def _compute_lag_states(self, values: dict[str, NDArray[np.float64]], nworld: int) -> tuple[NDArray, NDArray]:
        """Return the states of both lags after the throttles before the start; NaN if none are known."""
        unknown = np.full((nworld, self._twin.model.nu), np.nan)
        if self._before is None or not self._before.earlier.shape[1]:
            return unknown, unknown.copy()
        dt = 1.0 / self._twin.control_hz
        quick, slow = (_gain(np, values[name][:, None], dt) for name in ("second_lag", "lag"))
        electric = speed = np.asarray(self._before.command)
        for throttle in np.moveaxis(self._before.earlier, 1, 0):
            electric = electric + quick * (throttle - electric)
            speed = speed + slow * (electric - speed)
        return electric, speed

    def begin(self, fresh: Array) -> None:
        """Reset the rotors of restarted worlds: they start with the world's first command."""
        if self._before is not None:  # the first call: the initial state has a history
            self._before = None
            return
        xp = array_namespace(fresh)
        self._speed = xp.where(fresh[:, None], np.nan, self._speed)
        self._electric = xp.where(fresh[:, None], np.nan, self._electric)

    def apply(self, moment: DriveState) -> None:
        """Replace the throttles of rotors by their thrusts, after both lags."""
        xp, values = array_namespace(moment.control), self._values
        throttle = moment.control
        electric = xp.where(xp.isnan(self._electric), throttle, self._electric)
        speed = xp.where(xp.isnan(self._speed), throttle, self._speed)
        step = moment.timestep[:, None]
        self._electric = electric + _gain(xp, values["second_lag"], step) * (throttle - electric)
        self._speed = speed + _gain(xp, values["lag"], step) * (self._electric - speed)
        thrust = (values[_THRUST[2]] * self._speed + values[_THRUST[1]]) * self._speed + values[_THRUST[0]]
        moment.control = xp.where(self._rotor[None, :], xp.clip(thrust, 0.0, None), throttle)


def _gain(xp: Array, lag: Array, step: Array) -> Array:
    """Return the part of the remaining difference that a first-order lag covers in a step; 1 without lag."""
    slow = xp.where(lag > 0.0, lag, 1.0)
    return xp.where(lag > 0.0, 1.0 - xp.exp(-step / slow), 1.0)


class DriveStage(Protocol):
    """Protocol of one effect of drives. ``fields`` are the model fields that it may change.

    ``remembers`` means that it depends on earlier physics steps, beyond the state.
    """

    fields: Sequence[str]
    remembers: bool

    def load(self, params: ParamTable, as_array: AsArray) -> bool:
        """Load the parameters of all worlds; return whether any world has the effect."""
        ...

    def begin(self, fresh: Array) -> None:
        """Reset the memory of the worlds where ``fresh`` ``(nworld,)`` is True."""
        ...

    def apply(self, moment: DriveState) -> None:
        """Change control and fields of the state for the coming physics step."""
        ...


class DriveStages:
    """The drive effects of a batch of worlds.

    Attributes:
        active: whether any world has any effect; if not, nothing needs to be called between physics steps.
        fields: model fields that `apply` returns.
    """

    def __init__(
        self,
        twin: Twin,
        params: ParamTable,
        *,
        as_array: AsArray = np.asarray,
        initial: InitialState | None = None,
    ) -> None:
        """Create drives at rest; ``initial`` has the commands before the start."""
        self._twin, self._params, self._as_array = twin, params, as_array
        self._wiring = ActuatorDofs.of(twin, as_array)
        self._back_emf = as_array(MotorConstants.of(twin).back_emf)
        self._stages: tuple[DriveStage, ...] = (
            SupplyVoltage(twin, self._wiring),
            SpeedLimit(twin, self._wiring),
            DriveFriction(twin, self._wiring),
            LinkFeedback(twin, self._wiring),
            Rotors(twin, initial),
        )
        self._used: dict[int, DriveStage] = {}
        self._names = {name for name, param in twin.params.items() if param.quantity.stage == "drive"}
        self._fresh = np.ones(params.nworld, dtype=bool)
        self.step = np.zeros(params.nworld, dtype=np.int64)
        self._load(params.at(self.step))

    @property
    def active(self) -> bool:
        """Return whether any world has any effect."""
        return bool(self._used)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the model fields that `apply` returns."""
        return tuple(self._base)

    @property
    def remembers(self) -> bool:
        """Return whether the effects depend on earlier physics steps, beyond the state."""
        return any(stage.remembers for stage in self._used.values())

    @property
    def supply(self) -> tuple[Array, Array] | None:
        """Motor voltage in V and winding temperature rise in K in the coming physics step, ``(nworld, nu)`` each.

        None if no world has voltage drop or heating.
        """
        return next((stage.voltage_and_rise for stage in self._used.values() if isinstance(stage, SupplyVoltage)), None)

    def _load(self, params: ParamTable) -> None:
        """Load the parameters in force. A stage once needed stays, because it must reset its fields to neutral."""
        for index, stage in enumerate(self._stages):
            if stage.load(params, self._as_array) or index in self._used:
                self._used[index] = stage
        names = {field for stage in self._used.values() for field in stage.fields}
        self._base = {name: self._as_array(values) for name, values in _field_arrays(self._twin, params, names).items()}

    def begin(self) -> None:
        """Begin a control step: load parameters that change per step. Call it before the physics steps."""
        if self._params.steps and (self._used or not self._names.isdisjoint(self._params.steps)):
            self._load(self._params.at(self.step))
        self.step = self.step + 1

    def apply(
        self, *, qpos: Array, qvel: Array, force: Array, control: Array, timestep: Array
    ) -> tuple[Array, Mapping[str, Array]]:
        """Return control ``(nworld, nu)`` and model fields ``(nworld, …)`` for the coming physics step.

        Args:
            qpos, qvel: the current state.
            force: MuJoCo's ``actuator_force`` ``(nworld, nu)`` of the previous physics step; ignored before the first.
            control: commands at the motors.
            timestep: length of the coming physics step in every world, ``(nworld,)`` in s.
        """
        if self._fresh.any():
            fresh = self._as_array(self._fresh)
            for stage in self._used.values():
                stage.begin(fresh)
            force = array_namespace(force).where(fresh[:, None], 0.0 * control, force)
            self._fresh = np.zeros_like(self._fresh)
        moment = DriveState(
            qpos=qpos,
            qvel=qvel,
            force=force,
            control=control,
            timestep=timestep,
            back_emf=self._back_emf,
            fields=dict(self._base),
        )
        for stage in self._used.values():
            stage.apply(moment)
        return moment.control, moment.fields

    def restart(self, worlds: ArrayLike, params: ParamTable) -> None:
        """Restart some worlds, with their rows of ``params``."""
        index = np.asarray(worlds)
        self._params = self._params.put(index, params)
        self._fresh[index] = True
        self.step = self.step.copy()
        self.step[index] = 0
        if self._used or self._names & (self._twin.find_changed_params(params) | set(params.steps)):
            self._load(self._params.at(self.step))


def apply_drives(
    drives: DriveStages, model: mujoco.MjModel, data: mujoco.MjData, control: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Apply the drives of a single world to its model; return the control ``(nu,)`` of the coming physics step."""
    changed, fields = drives.apply(
        qpos=data.qpos[None],
        qvel=data.qvel[None],
        force=data.actuator_force[None],
        control=control[None],
        timestep=np.array([model.opt.timestep]),
    )
    for name, values in fields.items():
        getattr(model, name)[...] = values[0]
    return changed[0]


def _field_arrays(twin: Twin, params: ParamTable, names: set[str]) -> dict[str, NDArray[np.float64]]:
    """Return these model fields of every world from the parameters alone, ``(nworld, …)``."""
    if not names:
        return {}
    written = twin.fields(params).arrays
    nominal = {name: np.asarray(getattr(twin.model, name), dtype=np.float64) for name in sorted(names)}
    return {
        name: np.asarray(written[name] if name in written else np.repeat(value[None], params.nworld, axis=0))
        for name, value in nominal.items()
    }
