"""What drives do between physics steps: sag, heat, torque-speed curve, friction at rest, the far side of a gear.

MuJoCo's actuator is the voltage law of a servo with constant supply and constant resistance (see ``twin/servos.yaml``).
What is not constant is applied here, before every physics step, from the state and from the forces of the step before:
per-world fields of the model and the controls change, the law stays MuJoCo's.

The same code runs in every backend. It is elementwise over worlds and written for any array library with the names of
the array API, so that a world's numbers depend on that world alone, on a host or on a device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import mujoco
import numpy as np
from array_api_compat import array_namespace
from numpy.typing import ArrayLike, NDArray

from twinloop.core.params import ParamTable
from twinloop.simulate.clock import Array, AsArray
from twinloop.simulate.drive_stages import Friction, LinkFeedback, SpeedLimit, Supply
from twinloop.simulate.drive_wiring import Moment, Motors, Wiring
from twinloop.simulate.protocol import InitialState
from twinloop.simulate.rotors import Rotors
from twinloop.twin import Twin


class Stage(Protocol):
    """One effect. ``fields`` are the model fields that it may change.

    ``remembers`` says that it depends on the physics steps before, beyond the state.
    """

    fields: Sequence[str]
    remembers: bool

    def load(self, params: ParamTable, as_array: AsArray) -> bool:
        """Take over the parameters of all worlds; says whether any world has the effect."""
        ...

    def begin(self, fresh: Array) -> None:
        """Forget what the worlds where ``fresh`` ``(nworld,)`` did before."""
        ...

    def apply(self, moment: Moment) -> None:
        """Change the moment's control and fields for the coming physics step."""
        ...


class Drives:
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
        """Drives at rest; ``initial`` tells what they had been told before the beginning."""
        self._twin, self._params, self._as_array = twin, params, as_array
        self._wiring = Wiring.of(twin, as_array)
        self._back_emf = as_array(Motors.of(twin).back_emf)
        self._stages: tuple[Stage, ...] = (
            Supply(twin, self._wiring),
            SpeedLimit(twin, self._wiring),
            Friction(twin, self._wiring),
            LinkFeedback(twin, self._wiring),
            Rotors(twin, initial),
        )
        self._used: dict[int, Stage] = {}
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
        return next((stage.now for stage in self._used.values() if isinstance(stage, Supply)), None)

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
        """Control ``(nworld, nu)`` and model fields ``(nworld, …)`` for the coming physics step.

        Args:
            qpos, qvel: the state now.
            force: MuJoCo's ``actuator_force`` ``(nworld, nu)`` of the physics step before; of no meaning before the
                first.
            control: what the motors are told.
            timestep: length of the coming physics step in every world, ``(nworld,)`` in s.
        """
        if self._fresh.any():
            fresh = self._as_array(self._fresh)
            for stage in self._used.values():
                stage.begin(fresh)
            force = array_namespace(force).where(fresh[:, None], 0.0 * control, force)
            self._fresh = np.zeros_like(self._fresh)
        moment = Moment(
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
        """Begin some worlds anew, with their rows of ``params``."""
        index = np.asarray(worlds)
        self._params = self._params.put(index, params)
        self._fresh[index] = True
        self.step = self.step.copy()
        self.step[index] = 0
        if self._used or self._names & (self._twin.moved(params) | set(params.steps)):
            self._load(self._params.at(self.step))


def drive_world(
    drives: Drives, model: mujoco.MjModel, data: mujoco.MjData, control: NDArray[np.float64]
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
