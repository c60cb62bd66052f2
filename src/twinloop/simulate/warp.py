"""Worlds on a GPU through ``mujoco_warp``, or on the CPU where the same code is tested.

Equal to the reference within float32: see the tolerances in the tests. The files ``warp*.py`` are the one door to
``mujoco_warp`` for simulation.
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
from twinloop.simulate.warp_worlds import WarpWorlds, bare_seconds
from twinloop.twin import Twin

_CONTACTS = 48  # per world, at least: six times what a grasp of the SO-101 needs (measured: 8)
_HEADROOM = 4  # times the contacts of the home pose


class BackendWarp:
    """The backend ``mujoco_warp`` on one device.

    Args:
        device: Warp's name of it, ``cuda``, ``cuda:1`` or ``cpu``.
        deterministic: contacts, constraints and sums in a fixed order, so that a GPU repeats a run bit for bit. On by
            default, because episodes must be reproducible; it makes a GPU slower (a factor of three on a humanoid by
            the makers' measurement). The CPU computes in order anyway.
        nconmax: size of the contact buffer, per world. All worlds share the buffer; when it is full, it is unknown
            whose contacts were lost, so every world becomes invalid.
        njmax: number of constraint rows in each world.

    Attributes:
        versions: of the packages that determine the numbers besides twinloop, for the provenance of episodes.

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
        nstep: int,  # noqa: ARG002  # any number
        *,
        derived: Sequence[str] = (),
    ) -> SimulationWarp:
        """Worlds at their beginning."""
        nconmax = self.nconmax or contact_room(twin)
        worlds = WarpWorlds(
            twin,
            params,
            initial,
            derived=derived,
            device=self.device,
            deterministic=self.deterministic,
            buffers=(nconmax, self.njmax or row_room(twin.model, nconmax)),
        )
        return SimulationWarp(worlds)

    def bare_seconds(self, simulation: SimulationWarp, commands: NDArray[np.float64]) -> float:
        """Seconds that ``mujoco_warp`` alone takes for the same steps, see `warp_bare.bare_seconds`."""
        return bare_seconds(simulation.device, commands)

    def memory_used(self) -> int | None:
        """Bytes taken of a CUDA device's memory, by everybody; None on the CPU."""
        return memory_used(self.device)


class SimulationWarp:
    """See `simulate.protocol.Simulation`: the face that worlds on a device show to the host.

    Attributes:
        device: the same worlds with all their arrays there.
    """

    def __init__(self, worlds: WarpWorlds) -> None:
        self.device = worlds
        self.nworld = worlds.nworld

    @property
    def step_index(self) -> int:
        """See the protocol."""
        return self.device.step_index

    @property
    def state(self) -> NDArray[np.float64]:
        """See the protocol."""
        return to_host(self.device.state).astype(np.float64)

    @property
    def qpos(self) -> NDArray[np.float64]:
        """See the protocol."""
        return to_host(self.device.qpos)

    @property
    def qvel(self) -> NDArray[np.float64]:
        """See the protocol."""
        return to_host(self.device.qvel)

    def derived(self, name: str) -> NDArray[np.float64]:
        """See the protocol."""
        return to_host(self.device.derived(name))

    def jacobian(self, body: int, point: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """See the protocol."""
        linear, angular = self.device.jacobian(body, point)
        return to_host(linear), to_host(angular)

    def advance(self, command: ArrayLike) -> None:
        """See the protocol."""
        self.device.advance(self.device.arrays.asarray(np.asarray(command, dtype=np.float64)))

    def restart(self, worlds: ArrayLike, params: ParamTable, initial: InitialState) -> None:
        """See the protocol."""
        self.device.restart(worlds, params, initial)

    def warnings(self) -> NDArray[np.int64]:
        """See the protocol."""
        return to_host(self.device.warnings())


def contact_room(twin: Twin) -> int:
    """How many contacts a world of a twin is given room for."""
    data = mujoco.MjData(twin.model)
    data.qpos[:], _ = twin.home()
    mujoco.mj_forward(twin.model, data)
    return max(_CONTACTS, _HEADROOM * data.ncon)


def row_room(model: mujoco.MjModel, nconmax: int) -> int:
    """Constraint rows when so many contacts all have the model's largest dimension and everything else acts as well."""
    kinds = {mujoco.mjtEq.mjEQ_CONNECT: 3, mujoco.mjtEq.mjEQ_WELD: 6}
    equalities = sum(kinds.get(mujoco.mjtEq(int(kind)), 1) for kind in model.eq_type)
    largest = int(max(model.geom_condim.max(initial=1), model.pair_dim.max(initial=1)))
    pyramidal = model.opt.cone == mujoco.mjtCone.mjCONE_PYRAMIDAL
    rows = 2 * (largest - 1) if pyramidal and largest > 1 else largest
    return equalities + model.nv + 2 * model.ntendon + 2 * model.njnt + rows * nconmax
