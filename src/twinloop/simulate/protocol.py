"""Define the protocols and data classes that all simulation backends share."""

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
    """Return the columns of a recorded state that contain one of its components.

    Args:
        model: compiled model.
        part: the component, a bit of MuJoCo's ``mjtState`` such as ``mjSTATE_QPOS``.
    """
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
    """Return qpos, mocap_pos and mocap_quat of recorded states ``(…, nstate)``, which determine all body poses."""
    return {name: states[..., state_columns(model, int(part))] for name, part in _POSES.items()}


_ARRAYS = ("qpos", "qvel", "mocap_pos", "mocap_quat", "command", "earlier", "act", "plastic")
_NONE_EARLIER: NDArray[np.float64] = np.empty((0, 0, 0))
_EMPTY: NDArray[np.float64] = np.empty((0, 0))


@dataclass(frozen=True, kw_only=True)
class InitialState:
    """Initial states of worlds; all arrays are read-only.

    Attributes:
        qpos: positions, shape ``(nworld, nq)``.
        qvel: velocities, shape ``(nworld, nv)``.
        mocap_pos: positions of mocap bodies, shape ``(nworld, nmocap, 3)``.
        mocap_quat: quaternions wxyz of mocap bodies, shape ``(nworld, nmocap, 4)``.
        command: command that the motors hold before the first command, shape ``(nworld, nu)``.
        earlier: commands of the last k control steps before the start, oldest first, shape ``(nworld, k, nu)``.
            They follow ``command`` and are needed for delays if a world starts in the middle of a recording.
        act: activations of actuators with a memory, shape ``(nworld, na)``; with the shape ``(nworld, 0)`` they are
            those of actuators that have held ``command`` for long (see `activation`).
        plastic: MuJoCo's ``plastic`` state, which are plastic strains and the frames of twisted rods; with the shape
            ``(nworld, 0)`` it is that of an undeformed body.
        notes: numbers ``(nworld,)`` by name about how each world was created, for the provenance.
        refused: for each world the reason why it could not be created with its parameters, ``""`` for a created world.
            The whole tuple is ``()`` if all worlds were created.
    """

    qpos: NDArray[np.float64]
    qvel: NDArray[np.float64]
    mocap_pos: NDArray[np.float64]
    mocap_quat: NDArray[np.float64]
    command: NDArray[np.float64]
    earlier: NDArray[np.float64] = field(default_factory=_NONE_EARLIER.copy)
    act: NDArray[np.float64] = field(default_factory=_EMPTY.copy)
    plastic: NDArray[np.float64] = field(default_factory=_EMPTY.copy)
    notes: Mapping[str, NDArray[np.float64]] = field(default_factory=dict[str, NDArray[np.float64]])
    refused: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.earlier.size:
            nworld, nu = np.shape(self.command)
            object.__setattr__(self, "earlier", np.empty((nworld, 0, nu)))
        for name in ("act", "plastic"):
            if not getattr(self, name).size:
                object.__setattr__(self, name, np.empty((len(self.qpos), 0)))
        for name in _ARRAYS:
            object.__setattr__(self, name, freeze_array(getattr(self, name)))
        object.__setattr__(self, "notes", {name: freeze_array(values) for name, values in self.notes.items()})

    def take(self, worlds: ArrayLike) -> InitialState:
        """Return the initial states of some worlds, in the order of the given indices."""
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
        """Return initial states in which every world is at rest at the twin's keyframe ``home``."""
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
    """Running simulation of many worlds, one control step at a time.

    Returned arrays are copies of the current values or read-only views.
    """

    @property
    def nworld(self) -> int:
        """Number of worlds."""
        ...

    @property
    def step_index(self) -> int:
        """Number of control steps since the start of the simulation."""
        ...

    @property
    def state(self) -> NDArray[np.float64]:
        """Current full state of every world, shape ``(nworld, nstate)``, with the components of ``STATE_SPEC``."""
        ...

    @property
    def qpos(self) -> NDArray[np.float64]:
        """Current positions, shape ``(nworld, nq)``."""
        ...

    @property
    def qvel(self) -> NDArray[np.float64]:
        """Current velocities, shape ``(nworld, nv)``."""
        ...

    def read_derived(self, name: str) -> NDArray[np.float64]:
        """Return a computed MjData field, shape ``(nworld, …)``, one physics step older than the state.

        Args:
            name: name of the field, such as ``site_xpos``; it must have been requested at the start.
        """
        ...

    def jacobian(self, body: int, point: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the linear and angular Jacobians of points on a body, each of shape ``(nworld, 3, nv)``.

        Args:
            body: id of the body.
            point: points in world coordinates in m, shape ``(nworld, 3)``.
        """
        ...

    def advance(self, command: ArrayLike) -> None:
        """Run one control step under commands ``(nworld, nu)``, in rad or the actuator's unit."""
        ...

    def restart(self, worlds: ArrayLike, params: ParamTable, initial: InitialState) -> None:
        """Restart some worlds with new parameters and initial states.

        Args:
            worlds: indices of the k worlds, shape ``(k,)``.
            params: parameters, one row per restarted world.
            initial: initial states, one row per restarted world.
        """
        ...

    def warnings(self) -> NDArray[np.int64]:
        """Return how often each warning has occurred in each world, shape ``(nworld, nwarning)``.

        Columns are the first ``nwarning`` names in ``WARNINGS``: MuJoCo's warnings, and for some backends buffer
        overflows.
        """
        ...


class Controller(Protocol):
    """Function that chooses the commands from the simulation; it is called once per control step.

    Its argument is the running simulation, from which it reads the current states.
    """

    def __call__(self, simulation: Simulation) -> NDArray[np.float64]:
        """Return the commands of all worlds, shape ``(nworld, nu)``, which are held until the next call.

        Commands are in rad or the actuator's unit, as for `Simulation.advance`.
        """
        ...


@runtime_checkable
class DeviceController(Protocol):
    """Controller that can also run on the GPU of a simulation, without copies to the main memory."""

    def __call__(self, simulation: Simulation) -> Array:
        """Return the commands of all worlds, shape ``(nworld, nu)``, which are held until the next call."""
        ...

    def to_library(self, arrays: ArrayLibrary) -> Controller:
        """Return this controller in its initial state, for simulations whose arrays belong to the given library."""
        ...


@dataclass(frozen=True, kw_only=True)
class Trajectories:
    """Result of a rollout: states and commands of all worlds.

    Attributes:
        model: the twin's model, which defines the layout of the states.
        states: states before the first and after each control step, shape ``(nworld, nstep + 1, nstate)``.
        commands: commands as issued, before delay and loss, shape ``(nworld, nstep, nu)``.
        invalid_step: first control step after which a world is invalid, shape ``(nworld,)``; -1 for a valid world.
        reason: reason for each invalid world; empty for a valid world.
        records: recorded MjData fields by name, shape ``(nworld, nstep + 1, …)``.
    """

    model: mujoco.MjModel
    states: NDArray[np.float64]
    commands: NDArray[np.float64]
    invalid_step: NDArray[np.int64]
    reason: tuple[str, ...]
    records: Mapping[str, NDArray[np.float64]]

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Whether each world ran to the end without divergence, warning or overflow, shape ``(nworld,)``."""
        return self.invalid_step < 0

    def state_component(self, component: int) -> NDArray[np.float64]:
        """Return one component of the states, shape ``(nworld, nstep + 1, …)``.

        ``component`` is a bit of MuJoCo's ``mjtState``, such as ``mjSTATE_QPOS``.
        """
        return self.states[..., state_columns(self.model, component)]

    @property
    def qpos(self) -> NDArray[np.float64]:
        """Positions, shape ``(nworld, nstep + 1, nq)``."""
        return self.state_component(int(mujoco.mjtState.mjSTATE_QPOS))

    @property
    def qvel(self) -> NDArray[np.float64]:
        """Velocities, shape ``(nworld, nstep + 1, nv)``."""
        return self.state_component(int(mujoco.mjtState.mjSTATE_QVEL))

    @property
    def time(self) -> NDArray[np.float64]:
        """True time since the start of each world in s, shape ``(nworld, nstep + 1)``."""
        return self.state_component(int(mujoco.mjtState.mjSTATE_TIME))[..., 0]


class Backend(Protocol):
    """Implementation that simulates worlds, such as MuJoCo on CPU threads or on a GPU."""

    name: str

    def start(
        self, twin: Twin, params: ParamTable, initial: InitialState, nstep: int, *, derived: Sequence[str] = ()
    ) -> Simulation:
        """Start a simulation of worlds in their initial states.

        Args:
            twin: the twin.
            params: parameters, one row per world.
            initial: initial states of all worlds.
            nstep: intended number of control steps; a backend may use it to size its buffers.
            derived: names of the computed MjData fields that will be read with `Simulation.read_derived`.
        """
        ...
