"""Simulate worlds on a GPU with ``mujoco_warp``, or with the same code on the CPU for tests.

Results equal the reference backend within the accuracy of float32; the tests contain the tolerances. Only the
files ``warp*.py`` use ``mujoco_warp`` for simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from types import MappingProxyType

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.params import ParamTable
from twinloop.simulate.arrays import to_host
from twinloop.simulate.protocol import InitialState
from twinloop.simulate.warp_model import find_device, memory_used
from twinloop.simulate.warp_worlds import WarpWorlds, measure_bare_seconds
from twinloop.twin import Twin

_CONTACTS = 48  # per world, at least: six times the contacts of a grasp of the SO-101 (measured: 8)
_HEADROOM = 4  # times the contacts of the home pose


class BackendWarp:
    """Backend that simulates worlds with ``mujoco_warp`` on one device.

    Args:
        device: Warp's name of the device: ``cuda``, ``cuda:1`` or ``cpu``.
        deterministic: whether contacts, constraints and sums are computed in a fixed order, so that a GPU repeats a
            run bit for bit. It is on by default, because episodes must be reproducible; it makes a GPU slower (a
            factor of three on a humanoid by the makers' measurement). The CPU always computes in order.
        nconmax: size of the contact buffer per world; 0 for an estimate from the model. All worlds share the
            buffer. If it is full, it is unknown which world lost contacts, so every world becomes invalid.
        njmax: number of constraint rows in each world; 0 for an estimate.

    Attributes:
        versions: versions of the packages that determine the numbers, for the provenance of episodes.

    Raises:
        MissingDependencyError: If there is no such device.
    """

    name = "warp"
    versions = MappingProxyType({package: version(package) for package in ("mujoco-warp", "warp-lang", "torch")})

    def __init__(self, device: str = "cuda", *, deterministic: bool = True, nconmax: int = 0, njmax: int = 0) -> None:
        self.device = find_device(device)
        self.deterministic, self.nconmax, self.njmax = deterministic, nconmax, njmax

    def start(
        self,
        twin: Twin,
        params: ParamTable,
        initial: InitialState,
        nstep: int,  # noqa: ARG002  # not needed
        *,
        derived: Sequence[str] = (),
    ) -> SimulationWarp:
        """Start a simulation of all worlds in their initial states; arguments are those of `Backend.start`."""
        nconmax = self.nconmax or estimate_max_contacts(twin)
        worlds = WarpWorlds(
            twin,
            params,
            initial,
            derived=derived,
            device=self.device,
            deterministic=self.deterministic,
            buffers=(nconmax, self.njmax or estimate_max_rows(twin.model, nconmax)),
        )
        return SimulationWarp(worlds)

    def measure_bare_seconds(self, simulation: SimulationWarp, commands: NDArray[np.float64]) -> float:
        """Return the time in s of a rollout's physics steps alone, excluding control, transfers and recording.

        Args:
            simulation: the simulation, which continues from its current states.
            commands: commands, shape ``(nworld, nstep, nu)``.
        """
        return measure_bare_seconds(simulation.device, commands)

    def memory_used(self) -> int | None:
        """Return the memory of the CUDA device in use by all processes, in bytes; None on the CPU."""
        return memory_used(self.device)


class SimulationWarp:
    """Running simulation on a device, whose results are copied to NumPy arrays; see `Simulation`.

    Attributes:
        device: the same worlds with their arrays on the device.
    """

    def __init__(self, worlds: WarpWorlds) -> None:
        self.device = worlds
        self.nworld = worlds.nworld

    @property
    def step_index(self) -> int:
        """Number of control steps since the start of the simulation."""
        return self.device.step_index

    @property
    def state(self) -> NDArray[np.float64]:
        """Current full state of every world, shape ``(nworld, nstate)``, with the components of ``STATE_SPEC``.

        The numbers were computed in float32.
        """
        return to_host(self.device.state).astype(np.float64)

    @property
    def qpos(self) -> NDArray[np.float64]:
        """Current positions, shape ``(nworld, nq)``."""
        return to_host(self.device.qpos)

    @property
    def qvel(self) -> NDArray[np.float64]:
        """Current velocities, shape ``(nworld, nv)``."""
        return to_host(self.device.qvel)

    def read_derived(self, name: str) -> NDArray[np.float64]:
        """Return an MjData field requested at the start, shape ``(nworld, …)``.

        Its values are one physics step older than the state.
        """
        return to_host(self.device.read_derived(name))

    def jacobian(self, body: int, point: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the linear and angular Jacobians of points on a body, each of shape ``(nworld, 3, nv)``.

        Args:
            body: id of the body.
            point: points in world coordinates in m, shape ``(nworld, 3)``.
        """
        linear, angular = self.device.jacobian(body, point)
        return to_host(linear), to_host(angular)

    def advance(self, command: ArrayLike) -> None:
        """Copy the commands ``(nworld, nu)`` to the device and run one control step."""
        self.device.advance(self.device.arrays.asarray(np.asarray(command, dtype=np.float64)))

    def restart(self, worlds: ArrayLike, params: ParamTable, initial: InitialState) -> None:
        """Restart some worlds with new parameters and initial states.

        Args:
            worlds: indices of the k worlds, shape ``(k,)``.
            params: parameters, one row per restarted world.
            initial: initial states, one row per restarted world.
        """
        self.device.restart(worlds, params, initial)

    def warnings(self) -> NDArray[np.int64]:
        """Return how often each warning has occurred in each world, shape ``(nworld, nwarning)``."""
        return to_host(self.device.warnings())


def estimate_max_contacts(twin: Twin) -> int:
    """Estimate how many contacts one world needs in the contact buffer.

    The estimate is four times the number of contacts of the home pose, at least 48.
    """
    data = mujoco.MjData(twin.model)
    data.qpos[:], _ = twin.home()
    mujoco.mj_forward(twin.model, data)
    return max(_CONTACTS, _HEADROOM * data.ncon)


def estimate_max_rows(model: mujoco.MjModel, nconmax: int) -> int:
    """Return an upper bound of the constraint rows of one world.

    It counts ``nconmax`` contacts of the model's largest contact dimension, and all equality, friction and limit
    constraints.
    """
    kinds = {mujoco.mjtEq.mjEQ_CONNECT: 3, mujoco.mjtEq.mjEQ_WELD: 6}
    equalities = sum(kinds.get(mujoco.mjtEq(int(kind)), 1) for kind in model.eq_type)
    largest = int(max(model.geom_condim.max(initial=1), model.pair_dim.max(initial=1)))
    pyramidal = model.opt.cone == mujoco.mjtCone.mjCONE_PYRAMIDAL
    rows = 2 * (largest - 1) if pyramidal and largest > 1 else largest
    return equalities + model.nv + 2 * model.ntendon + 2 * model.njnt + rows * nconmax
