"""Effects of drives between physics steps: voltage drop, heat, torque-speed curve, stiction, gears, and rotor thrust.

MuJoCo's actuator is the voltage equation of a servo with constant supply and constant resistance (see
``twin/servos.yaml``). Changes of these are applied here, before every physics step, from the state and from the forces
of the previous step: per-world fields of the model and the controls change, the equation is still MuJoCo's.

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
    """Convert throttles to thrusts; a rotor that starts in the middle of a recording turns by the earlier throttles.

    Both lags are integrated exactly for a throttle that is constant over a physics step. Thrust is never negative.
    """

    fields: tuple[str, ...] = ()
    remembers = True

    def __init__(self, twin: Twin, before: InitialState | None) -> None:
        self._twin, self._before = twin, before
        mask = np.zeros(twin.model.nu, dtype=bool)
        mask[rotor_rows(twin.model)] = True
        self._mask = mask
        self._speed: Array = None  # what the rotors turn at, as a throttle; none before parameters are loaded
        self._electric: Array = None

    def load(self, params: ParamTable, as_array: AsArray) -> bool:
        """See `drives.DriveStage`."""
        if f"{FAMILY}/{MEMBER}/{_THRUST[2]}" not in self._twin.params:
            return False
        columns = {name: self._column(params, name) for name in (*_THRUST, "lag", "second_lag")}
        self._values = {name: as_array(column[:, None]) for name, column in columns.items()}
        self._rotor = as_array(self._mask)
        if self._speed is None:
            electric, speed = self._recalled(columns, params.nworld)
            self._electric, self._speed = as_array(electric), as_array(speed)
        return True

    def _column(self, params: ParamTable, quantity: str) -> NDArray[np.float64]:
        name = f"{FAMILY}/{MEMBER}/{quantity}"
        nominal = self._twin.params[name].nominal if name in self._twin.params else 0.0
        return np.asarray(params.get(name, np.full(params.nworld, nominal)))

    def _recalled(self, values: dict[str, NDArray[np.float64]], nworld: int) -> tuple[NDArray, NDArray]:
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
        """See `drives.DriveStage`; a world that is reset during a run starts with its first command."""
        if self._before is not None:  # the first beginning, which has a history
            self._before = None
            return
        xp = array_namespace(fresh)
        self._speed = xp.where(fresh[:, None], np.nan, self._speed)
        self._electric = xp.where(fresh[:, None], np.nan, self._electric)

    def apply(self, moment: DriveState) -> None:
        """See `drives.DriveStage`."""
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
    """Part of the way that a first-order lag goes in a step; all of it without lag."""
    slow = xp.where(lag > 0.0, lag, 1.0)
    return xp.where(lag > 0.0, 1.0 - xp.exp(-step / slow), 1.0)


class DriveStage(Protocol):
    """One effect of drives. ``fields`` are the model fields that it may change.

    ``remembers`` means that it depends on earlier physics steps, beyond the state.
    """

    fields: Sequence[str]
    remembers: bool

    def load(self, params: ParamTable, as_array: AsArray) -> bool:
        """Load the parameters of all worlds; return whether any world has the effect."""
        ...

    def begin(self, fresh: Array) -> None:
        """Forget what the worlds where ``fresh`` ``(nworld,)`` did before."""
        ...

    def apply(self, moment: DriveState) -> None:
        """Change the moment's control and fields for the coming physics step."""
        ...


class DriveStages:
    """The stages of a batch of worlds.

    Attributes:
        active: whether some world has some effect; where none has, nothing needs to be called between physics steps.
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
        """See the class."""
        return bool(self._used)

    @property
    def fields(self) -> tuple[str, ...]:
        """See the class."""
        return tuple(self._base)

    @property
    def remembers(self) -> bool:
        """Whether what comes depends on the physics steps before, beyond the state."""
        return any(stage.remembers for stage in self._used.values())

    @property
    def supply(self) -> tuple[Array, Array] | None:
        """Volts at the motors and kelvin of their windings over the room in the coming physics step, ``(nworld, nu)``.

        None where neither sags or warms in any world.
        """
        return next((stage.now for stage in self._used.values() if isinstance(stage, SupplyVoltage)), None)

    def _load(self, params: ParamTable) -> None:
        """Parameters now in force. A stage that was needed once stays: its fields must be written back to neutral."""
        for index, stage in enumerate(self._stages):
            if stage.load(params, self._as_array) or index in self._used:
                self._used[index] = stage
        names = {field for stage in self._used.values() for field in stage.fields}
        self._base = {name: self._as_array(values) for name, values in _field_arrays(self._twin, params, names).items()}

    def begin(self) -> None:
        """To be called before the physics steps of every control step."""
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
        if self._used or self._names & (self._twin.moved(params) | set(params.steps)):
            self._load(self._params.at(self.step))


def drive_world(
    drives: DriveStages, model: mujoco.MjModel, data: mujoco.MjData, control: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Let the drives of a single world act on its model; returns the control ``(nu,)`` of the coming physics step."""
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
    """These model fields in every world as the parameters alone make them, ``(nworld, …)``."""
    if not names:
        return {}
    written = twin.fields(params).arrays
    nominal = {name: np.asarray(getattr(twin.model, name), dtype=np.float64) for name in sorted(names)}
    return {
        name: np.asarray(written[name] if name in written else np.repeat(value[None], params.nworld, axis=0))
        for name, value in nominal.items()
    }
