"""Apply, between physics steps, effects of motors, gears and rotors that MuJoCo's actuators do not model.

MuJoCo's actuator is the voltage equation of a servo with constant supply and constant resistance (see
``twin/servos.yaml``). Before every physics step, this module changes model fields and controls of each world for
voltage drop, heat, torque-speed curve, stiction, gears and rotor thrust. The changes depend on the state and on the
forces of the previous step; MuJoCo's equation itself does not change.

The same code runs in every backend. It is elementwise over worlds and uses the names of the array API, so that the
numbers of a world depend on that world alone, in main memory or on a device.
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
    """Drive effect: rotors of a drone, which convert throttle to thrust.

    Rotor speed follows the throttle through two first-order lags in series, an electric and a mechanical one. Both are
    integrated exactly for a throttle that is constant over a physics step. Thrust is never negative. If a world starts
    in the middle of a recording, the rotor speeds at the start are computed from the earlier throttles.
    """

    fields: tuple[str, ...] = ()
    has_memory = True

    def __init__(self, twin: Twin, before: InitialState | None) -> None:
        self._twin, self._before = twin, before
        mask = np.zeros(twin.model.nu, dtype=bool)
        mask[rotor_rows(twin.model)] = True
        self._mask = mask
        self._speed: Array = None  # rotor speed, as a throttle; None before parameters are loaded
        self._electric: Array = None

    def load(self, params: ParamTable, as_array: AsArray) -> bool:
        """Read thrust curves and lags; return whether the twin has rotors."""
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
        """Compute the states of both lags at the start, from the throttles before it.

        Args:
            values: rotor parameters by quantity, each of shape ``(nworld,)``.
            nworld: number of worlds.

        Returns:
            State of the electric lag, and rotor speed (state of the mechanical lag), both as a throttle of shape
            ``(nworld, nu)``; NaN if no throttles are known.
        """
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

    def reset(self, fresh: Array) -> None:
        """Reset the rotors of the worlds where ``fresh`` is True.

        A reset rotor starts at the speed of the world's first command.
        """
        if self._before is not None:  # the first call: the initial state has a history
            self._before = None
            return
        xp = array_namespace(fresh)
        self._speed = xp.where(fresh[:, None], np.nan, self._speed)
        self._electric = xp.where(fresh[:, None], np.nan, self._electric)

    def apply(self, state: DriveState) -> None:
        """Replace the throttles of rotors by their thrusts, after the electric and the mechanical lag, in place."""
        xp, values = array_namespace(state.control), self._values
        throttle = state.control
        electric = xp.where(xp.isnan(self._electric), throttle, self._electric)
        speed = xp.where(xp.isnan(self._speed), throttle, self._speed)
        step = state.timestep[:, None]
        self._electric = electric + _gain(xp, values["second_lag"], step) * (throttle - electric)
        self._speed = speed + _gain(xp, values["lag"], step) * (self._electric - speed)
        thrust = (values[_THRUST[2]] * self._speed + values[_THRUST[1]]) * self._speed + values[_THRUST[0]]
        state.control = xp.where(self._rotor[None, :], xp.clip(thrust, 0.0, None), throttle)


def _gain(xp: Array, lag: Array, step: Array) -> Array:
    """Return the fraction of a step response that a first-order lag reaches within a time; 1 if the lag is 0.

    Args:
        xp: module of the array library, as `array_namespace` returns it.
        lag: time constant, in s.
        step: time, in s.
    """
    slow = xp.where(lag > 0.0, lag, 1.0)
    return xp.where(lag > 0.0, 1.0 - xp.exp(-step / slow), 1.0)


class DriveStage(Protocol):
    """Protocol of one drive effect, which changes controls and model fields before each physics step.

    Attributes:
        fields: names of the model fields that the effect may change.
        has_memory: whether the effect depends on earlier physics steps in ways that MuJoCo's state does not contain.
    """

    fields: Sequence[str]
    has_memory: bool

    def load(self, params: ParamTable, as_array: AsArray) -> bool:
        """Read the parameters of all worlds; return whether any world has the effect.

        ``as_array`` converts NumPy arrays to the array library of the simulation.
        """
        ...

    def reset(self, fresh: Array) -> None:
        """Reset the memory of the worlds where ``fresh`` ``(nworld,)`` is True."""
        ...

    def apply(self, state: DriveState) -> None:
        """Change the control and the model fields in ``state`` for the coming physics step."""
        ...


class DriveStages:
    """All drive effects of a batch of worlds, which change controls and model fields before each physics step.

    Call `begin_step` at the start of each control step, and `apply` before each physics step.

    Attributes:
        step: number of the next control step in each world, shape ``(nworld,)``.
    """

    def __init__(
        self,
        twin: Twin,
        params: ParamTable,
        *,
        as_array: AsArray = np.asarray,
        initial: InitialState | None = None,
    ) -> None:
        """Create the drive effects of all worlds in their initial state.

        Args:
            twin: the twin.
            params: parameters of all worlds.
            as_array: function that converts NumPy arrays to the array library of the simulation.
            initial: initial states of the worlds. A drone's rotor speeds at the start are computed from the earlier
                commands in it, if there are any. None if no commands before the start are known.
        """
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
        """Return whether any world has any drive effect; if not, `apply` need not be called between physics steps."""
        return bool(self._used)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the model fields that `apply` returns."""
        return tuple(self._base)

    @property
    def has_memory(self) -> bool:
        """Return whether any effect depends on earlier physics steps in ways that MuJoCo's state does not contain."""
        return any(stage.has_memory for stage in self._used.values())

    @property
    def supply(self) -> tuple[Array, Array] | None:
        """Motor voltage in V and winding temperature rise in K in the coming physics step, each ``(nworld, nu)``.

        None if no world has voltage drop or heating.
        """
        return next((stage.voltage_and_rise for stage in self._used.values() if isinstance(stage, SupplyVoltage)), None)

    def _load(self, params: ParamTable) -> None:
        """Read the parameters of the current control step.

        An effect that was needed once stays active, because it must reset its model fields to their neutral values.
        """
        for index, stage in enumerate(self._stages):
            if stage.load(params, self._as_array) or index in self._used:
                self._used[index] = stage
        names = {field for stage in self._used.values() for field in stage.fields}
        self._base = {name: self._as_array(values) for name, values in _field_arrays(self._twin, params, names).items()}

    def begin_step(self) -> None:
        """Begin a control step: read the parameters that change per step. Call it before the physics steps."""
        if self._params.steps and (self._used or not self._names.isdisjoint(self._params.steps)):
            self._load(self._params.at(self.step))
        self.step = self.step + 1

    def apply(
        self, *, qpos: Array, qvel: Array, force: Array, control: Array, timestep: Array
    ) -> tuple[Array, Mapping[str, Array]]:
        """Return the controls ``(nworld, nu)`` and the model fields ``(nworld, …)`` for the coming physics step.

        Args:
            qpos: current positions, shape ``(nworld, nq)``.
            qvel: current velocities, shape ``(nworld, nv)``.
            force: MuJoCo's ``actuator_force`` of the previous physics step, shape ``(nworld, nu)``; ignored before the
                first step.
            control: controls at the motors, shape ``(nworld, nu)``.
            timestep: length of the coming physics step in every world in s, shape ``(nworld,)``.
        """
        if self._fresh.any():
            fresh = self._as_array(self._fresh)
            for stage in self._used.values():
                stage.reset(fresh)
            force = array_namespace(force).where(fresh[:, None], 0.0 * control, force)
            self._fresh = np.zeros_like(self._fresh)
        state = DriveState(
            qpos=qpos,
            qvel=qvel,
            force=force,
            control=control,
            timestep=timestep,
            back_emf=self._back_emf,
            fields=dict(self._base),
        )
        for stage in self._used.values():
            stage.apply(state)
        return state.control, state.fields

    def restart(self, worlds: ArrayLike, params: ParamTable) -> None:
        """Restart the drives of some worlds.

        Args:
            worlds: indices of the worlds.
            params: their new parameters, one row per restarted world.
        """
        index = np.asarray(worlds)
        self._params = self._params.replace_worlds(index, params)
        self._fresh[index] = True
        self.step = self.step.copy()
        self.step[index] = 0
        if self._used or self._names & (self._twin.find_changed_params(params) | set(params.steps)):
            self._load(self._params.at(self.step))


def apply_drives(
    drives: DriveStages, model: mujoco.MjModel, data: mujoco.MjData, control: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Apply the drives of a single world to its model in place.

    Args:
        drives: drives of one world.
        model: model of that world.
        data: data of that world.
        control: controls before the drive effects, shape ``(nu,)``.

    Returns:
        Controls of the coming physics step, shape ``(nu,)``.
    """
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
    """Return the named model fields of every world as its parameters set them, shape ``(nworld, …)`` each.

    Drive effects, which change these fields before each physics step, are not included.
    """
    if not names:
        return {}
    written = twin.fields(params).arrays
    nominal = {name: np.asarray(getattr(twin.model, name), dtype=np.float64) for name in sorted(names)}
    return {
        name: np.asarray(written[name] if name in written else np.repeat(value[None], params.nworld, axis=0))
        for name, value in nominal.items()
    }
