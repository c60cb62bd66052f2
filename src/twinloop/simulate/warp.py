"""Simulate worlds on a GPU with ``mujoco_warp``, or on the CPU, where the same code is tested.

Equal to the reference within float32: see the tolerances in the tests. Only the files ``warp*.py`` use ``mujoco_warp``
for simulation.
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
    """The backend ``mujoco_warp`` on one device.

    Args:
        device: Warp's name of the device: ``cuda``, ``cuda:1`` or ``cpu``.
        deterministic: contacts, constraints and sums in a fixed order, so that a GPU repeats a run bit for bit. On by
            default, because episodes must be reproducible; it makes a GPU slower (a factor of three on a humanoid by
            the makers' measurement). The CPU always computes in order.
        nconmax: size of the contact buffer, per world. All worlds share the buffer; if it is full, it is unknown which
            world lost contacts, so every world becomes invalid.
        njmax: number of constraint rows in each world.

    Attributes:
        versions: versions of the packages that determine the numbers, for the provenance of episodes.

    Raises:
        MissingDependencyError: there is no such device.
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
        """Return a simulation with all worlds in their initial states."""
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
        """Return the seconds that ``mujoco_warp`` alone takes for the same steps."""
        return measure_bare_seconds(simulation.device, commands)

    def memory_used(self) -> int | None:
        """Return the memory of a CUDA device that all processes use, in bytes; None on the CPU."""
        return memory_used(self.device)


class SimulationWarp:
    """`Simulation` of worlds on a device, with results copied to the host.

    Attributes:
        device: the same worlds with their arrays on the device.
    """

    def __init__(self, worlds: WarpWorlds) -> None:
        self.device = worlds
        self.nworld = worlds.nworld

    @property
    def step_index(self) -> int:
        """Number of control steps since the start."""
        return self.device.step_index

    @property
    def state(self) -> NDArray[np.float64]:
        """Present state of every world, ``(nworld, nstate)``, computed in float32."""
        return to_host(self.device.state).astype(np.float64)

    @property
    def qpos(self) -> NDArray[np.float64]:
        """Positions ``(nworld, nq)``."""
        return to_host(self.device.qpos)

    @property
    def qvel(self) -> NDArray[np.float64]:
        """Velocities ``(nworld, nv)``."""
        return to_host(self.device.qvel)

    def read_derived(self, name: str) -> NDArray[np.float64]:
        """Return a field requested at the start, ``(nworld, …)``, one physics step behind the state."""
        return to_host(self.device.read_derived(name))

    def jacobian(self, body: int, point: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return linear and angular Jacobians ``(nworld, 3, nv)`` of world points ``(nworld, 3)`` on a body."""
        linear, angular = self.device.jacobian(body, point)
        return to_host(linear), to_host(angular)

    def advance(self, command: ArrayLike) -> None:
        """Copy the commands ``(nworld, nu)`` to the device and run one control step."""
        self.device.advance(self.device.arrays.asarray(np.asarray(command, dtype=np.float64)))

    def restart(self, worlds: ArrayLike, params: ParamTable, initial: InitialState) -> None:
        """Restart some worlds with their new parameters and initial states."""
        self.device.restart(worlds, params, initial)

    def warnings(self) -> NDArray[np.int64]:
        """Return the warning counters, ``(nworld, nwarning)``."""
        return to_host(self.device.warnings())


def estimate_max_contacts(twin: Twin) -> int:
    """Return the contact buffer's size per world of a twin."""
    data = mujoco.MjData(twin.model)
    data.qpos[:], _ = twin.home()
    mujoco.mj_forward(twin.model, data)
    return max(_CONTACTS, _HEADROOM * data.ncon)


def estimate_max_rows(model: mujoco.MjModel, nconmax: int) -> int:
    """Return the constraint rows of ``nconmax`` contacts of the model's largest dimension, and of all else acting."""
    kinds = {mujoco.mjtEq.mjEQ_CONNECT: 3, mujoco.mjtEq.mjEQ_WELD: 6}
    equalities = sum(kinds.get(mujoco.mjtEq(int(kind)), 1) for kind in model.eq_type)
    largest = int(max(model.geom_condim.max(initial=1), model.pair_dim.max(initial=1)))
    pyramidal = model.opt.cone == mujoco.mjtCone.mjCONE_PYRAMIDAL
    rows = 2 * (largest - 1) if pyramidal and largest > 1 else largest
    return equalities + model.nv + 2 * model.ntendon + 2 * model.njnt + rows * nconmax
