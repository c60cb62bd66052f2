"""Define the protocols and records that all simulation backends share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.params import ParamTable
from twinloop.core.records import freeze_array
from twinloop.simulate.arrays import Array, ArrayLibrary
from twinloop.twin import Twin

# State recorded at every control step: enough to continue from it bit for bit with the recorded commands (including
# the solver's warm start), without the inputs that are constant in every rollout.
STATE_SPEC = int(
    mujoco.mjtState.mjSTATE_TIME
    | mujoco.mjtState.mjSTATE_QPOS
    | mujoco.mjtState.mjSTATE_QVEL
    | mujoco.mjtState.mjSTATE_ACT
    | mujoco.mjtState.mjSTATE_WARMSTART
    | mujoco.mjtState.mjSTATE_MOCAP_POS
    | mujoco.mjtState.mjSTATE_MOCAP_QUAT
    | mujoco.mjtState.mjSTATE_PLASTIC
)

# Columns of `Simulation.warnings`: MuJoCo's warnings, then buffer overflows of other engines.
WARNINGS = (
    *(mujoco.mjtWarning(kind).name for kind in range(int(mujoco.mjtWarning.mjNWARNING))),
    "contact buffers of convex pairs overflowed",
    "contact buffers of height fields overflowed",
    "buffers of contact sensors overflowed",
)

# MuJoCo stops a step whose constraints do not fit into the model's memory, with this warning or with an error.
OUT_OF_MEMORY = int(mujoco.mjtWarning.mjWARN_CNSTRFULL)


def state_columns(model: mujoco.MjModel, part: int) -> NDArray[np.intp]:
    """Return the columns of a recorded state that hold one of its components (``mjtState`` bit)."""
    size = mujoco.mj_stateSize(model, STATE_SPEC)
    columns = np.zeros(mujoco.mj_stateSize(model, int(part)))
    mujoco.mj_extractState(model, np.arange(size, dtype=np.float64), STATE_SPEC, columns, int(part))
    return columns.astype(np.intp)


_POSES = {
    "qpos": mujoco.mjtState.mjSTATE_QPOS,
    "mocap_pos": mujoco.mjtState.mjSTATE_MOCAP_POS,
    "mocap_quat": mujoco.mjtState.mjSTATE_MOCAP_QUAT,
}


def state_poses(model: mujoco.MjModel, states: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Return the components of recorded states ``(…, nstate)`` that place bodies: qpos, mocap_pos and mocap_quat."""
    return {name: states[..., state_columns(model, int(part))] for name, part in _POSES.items()}


_ARRAYS = ("qpos", "qvel", "mocap_pos", "mocap_quat", "command", "earlier")
_NONE_EARLIER: NDArray[np.float64] = np.empty((0, 0, 0))


@dataclass(frozen=True, kw_only=True)
class InitialState:
    """Initial states of worlds: ``qpos`` ``(nworld, nq)``, ``qvel``, ``mocap_pos``, ``mocap_quat``, and ``command``.

    ``command`` ``(nworld, nu)`` is the command before the first one. It fills the delay's history, followed by
    ``earlier`` ``(nworld, k, nu)``, the commands of the last k control steps before the start, oldest first, for a
    world that starts in the middle of a recording. ``notes`` are numbers ``(nworld,)`` about the creation of the
    worlds, for the provenance. ``refused`` is the reason why a world could not be created with its parameters, one text
    per world, or empty. Read-only arrays.
    """

    qpos: NDArray[np.float64]
    qvel: NDArray[np.float64]
    mocap_pos: NDArray[np.float64]
    mocap_quat: NDArray[np.float64]
    command: NDArray[np.float64]
    earlier: NDArray[np.float64] = field(default_factory=_NONE_EARLIER.copy)
    notes: Mapping[str, NDArray[np.float64]] = field(default_factory=dict[str, NDArray[np.float64]])
    refused: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.earlier.size:
            nworld, nu = np.shape(self.command)
            object.__setattr__(self, "earlier", np.empty((nworld, 0, nu)))
        for name in _ARRAYS:
            object.__setattr__(self, name, freeze_array(getattr(self, name)))
        object.__setattr__(self, "notes", {name: freeze_array(values) for name, values in self.notes.items()})

    def take(self, worlds: ArrayLike) -> InitialState:
        """Return the initial states of some worlds, in the order given."""
        index = np.asarray(worlds)
        notes = {name: values[index] for name, values in self.notes.items()}
        refused = tuple(self.refused[world] for world in index) if self.refused else ()
        return InitialState(**{name: getattr(self, name)[index] for name in _ARRAYS}, notes=notes, refused=refused)

    @property
    def nworld(self) -> int:
        """Number of worlds."""
        return len(self.qpos)

    @classmethod
    def home(cls, twin: Twin, nworld: int) -> InitialState:
        """Return initial states with every world at the twin's keyframe ``home``, at rest."""
        qpos, ctrl = twin.home()
        model = twin.model
        bodies = np.flatnonzero(model.body_mocapid >= 0)
        bodies = bodies[np.argsort(model.body_mocapid[bodies])]
        return cls(
            qpos=np.tile(qpos, (nworld, 1)),
            qvel=np.zeros((nworld, model.nv)),
            mocap_pos=np.tile(model.body_pos[bodies], (nworld, 1, 1)),
            mocap_quat=np.tile(model.body_quat[bodies], (nworld, 1, 1)),
            command=np.tile(ctrl, (nworld, 1)),
        )


class Simulation(Protocol):
    """Worlds in the middle of a rollout. Returned arrays are current copies or read-only views."""

    @property
    def nworld(self) -> int:
        """Number of worlds."""
        ...

    @property
    def step_index(self) -> int:
        """Number of control steps since the start."""
        ...

    @property
    def state(self) -> NDArray[np.float64]:
        """Present state of every world, ``(nworld, nstate)`` in the layout of ``STATE_SPEC``."""
        ...

    @property
    def qpos(self) -> NDArray[np.float64]:
        """Positions ``(nworld, nq)``."""
        ...

    @property
    def qvel(self) -> NDArray[np.float64]:
        """Velocities ``(nworld, nv)``."""
        ...

    def read_derived(self, name: str) -> NDArray[np.float64]:
        """Return a computed MjData field such as ``site_xpos``, ``(nworld, …)``, one physics step behind the state."""
        ...

    def jacobian(self, body: int, point: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return linear and angular Jacobians ``(nworld, 3, nv)`` of world points ``(nworld, 3)`` on a body."""
        ...

    def advance(self, command: ArrayLike) -> None:
        """Run one control step under commands ``(nworld, nu)`` in rad (or the actuator's unit)."""
        ...

    def restart(self, worlds: ArrayLike, params: ParamTable, initial: InitialState) -> None:
        """Restart some worlds, ``worlds`` ``(k,)``, with a row of ``params`` and ``initial`` each."""
        ...

    def warnings(self) -> NDArray[np.int64]:
        """Return the counters of the first ``nwarning`` of ``WARNINGS``, ``(nworld, nwarning)``."""
        ...


class Controller(Protocol):
    """Function that chooses the commands, called once per control step with the running batch."""

    def __call__(self, simulation: Simulation) -> NDArray[np.float64]:
        """Return the commands ``(nworld, nu)``, which are held until the next call."""
        ...


@runtime_checkable
class DeviceController(Protocol):
    """A controller that can also run on a simulation's device, without copies to the host."""

    def __call__(self, simulation: Simulation) -> Array:
        """Return the commands ``(nworld, nu)``, which are held until the next call."""
        ...

    def to_library(self, arrays: ArrayLibrary) -> Controller:
        """Return the same controller in its initial state, for simulations with arrays of this library."""
        ...


@dataclass(frozen=True, kw_only=True)
class Trajectories:
    """Record of a rollout.

    ``states`` ``(nworld, nstep + 1, nstate)``, ``commands`` ``(nworld, nstep, nu)`` as issued, ``invalid_step``
    ``(nworld,)`` the first control step after which a world is invalid (-1: never) with its ``reason``, ``records``
    derived fields by name, ``(nworld, nstep + 1, …)``.
    """

    model: mujoco.MjModel
    states: NDArray[np.float64]
    commands: NDArray[np.float64]
    invalid_step: NDArray[np.int64]
    reason: tuple[str, ...]
    records: Mapping[str, NDArray[np.float64]]

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Worlds that ran to the end without divergence, warning or overflow, ``(nworld,)``."""
        return self.invalid_step < 0

    def part(self, component: int) -> NDArray[np.float64]:
        """Return one state component (``mjtState`` bit) of all worlds and steps, ``(nworld, nstep + 1, …)``."""
        return self.states[..., state_columns(self.model, component)]

    @property
    def qpos(self) -> NDArray[np.float64]:
        """Positions ``(nworld, nstep + 1, nq)``."""
        return self.part(int(mujoco.mjtState.mjSTATE_QPOS))

    @property
    def qvel(self) -> NDArray[np.float64]:
        """Velocities ``(nworld, nstep + 1, nv)``."""
        return self.part(int(mujoco.mjtState.mjSTATE_QVEL))

    @property
    def time(self) -> NDArray[np.float64]:
        """True time since the start of each world, ``(nworld, nstep + 1)`` in s."""
        return self.part(int(mujoco.mjtState.mjSTATE_TIME))[..., 0]


class Backend(Protocol):
    """Implementation that runs worlds."""

    name: str

    def start(
        self, twin: Twin, params: ParamTable, initial: InitialState, nstep: int, *, derived: Sequence[str] = ()
    ) -> Simulation:
        """Return a simulation of worlds with these parameters, in their initial states.

        ``nstep`` is the intended number of control steps; a backend may use it for its buffers. ``derived`` names the
        computed MjData fields that will be read.
        """
        ...
