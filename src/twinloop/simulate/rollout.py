"""Worlds from their beginning to their end under a controller, recorded at every control step."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.records import ParamTable
from twinloop.simulate.protocol import STATE_SPEC, Backend, Controller, InitialState, Simulation, Trajectories
from twinloop.simulate.reference import BackendReference
from twinloop.simulate.threads import BackendThreads
from twinloop.twin import Twin

_BACKENDS = ("reference", "threads")


def open_backend(name: str = "threads", *, nthread: int = 0) -> Backend:
    """The backend of that name.

    Args:
        nthread: C threads of ``threads`` (0: every core).

    Raises:
        UnknownNameError: there is none of that name.
    """
    if name == "reference":
        return BackendReference()
    if name == "threads":
        return BackendThreads(nthread)
    raise UnknownNameError("backend", name, _BACKENDS)


def rollout(
    backend: Backend,
    twin: Twin,
    params: ParamTable,
    initial: InitialState,
    controller: NDArray[np.float64] | Controller,
    nstep: int,
    *,
    record: Sequence[str] = (),
) -> Trajectories:
    """Run every world for ``nstep`` control steps.

    Args:
        controller: commands ``(nworld, nstep, nu)``, or a callable asked at every step.
        record: derived MjData fields to keep, one physics step behind the state.

    Raises:
        InputError: the shapes do not fit each other.
    """
    _check_shapes(twin, params, initial, controller, nstep)
    simulation = backend.start(twin, params, initial, nstep, derived=record)
    states = np.empty((initial.nworld, nstep + 1, mujoco.mj_stateSize(twin.model, STATE_SPEC)))
    commands = np.empty((initial.nworld, nstep, twin.model.nu))
    records = {name: [np.array(simulation.derived(name))] for name in record}
    monitor = _Monitor(simulation)
    states[:, 0] = simulation.state
    for step in range(nstep):
        commands[:, step] = controller[:, step] if isinstance(controller, np.ndarray) else controller(simulation)
        simulation.advance(commands[:, step])
        states[:, step + 1] = simulation.state
        for name, kept in records.items():
            kept.append(np.array(simulation.derived(name)))
        monitor.look(simulation, states[:, step + 1])
    return Trajectories(
        model=twin.model,
        states=states,
        commands=commands,
        invalid_step=monitor.invalid_step,
        reason=tuple(monitor.reason),
        records={name: np.stack(kept, axis=1) for name, kept in records.items()},
    )


class _Monitor:
    """Notices worlds whose warning counters rise or whose state is no longer finite."""

    def __init__(self, simulation: Simulation) -> None:
        self._before = simulation.warnings()
        self.invalid_step = np.full(simulation.nworld, -1, dtype=np.int64)
        self.reason = [""] * simulation.nworld

    def look(self, simulation: Simulation, state: NDArray[np.float64]) -> None:
        risen = simulation.warnings() > self._before
        lost = ~np.isfinite(state).all(axis=1)
        for world in np.flatnonzero((risen.any(axis=1) | lost) & (self.invalid_step < 0)):
            self.invalid_step[world] = simulation.step_index - 1
            kinds = [mujoco.mjtWarning(int(kind)).name for kind in np.flatnonzero(risen[world])]
            self.reason[world] = ", ".join(kinds) or "state not finite"


def _check_shapes(
    twin: Twin,
    params: ParamTable,
    initial: InitialState,
    controller: NDArray[np.float64] | Controller,
    nstep: int,
) -> None:
    if params.nworld != initial.nworld:
        raise InputError(f"{params.nworld} worlds of parameters for {initial.nworld} initial states.")
    wanted = (initial.nworld, nstep, twin.model.nu)
    if isinstance(controller, np.ndarray) and controller.shape != wanted:
        raise InputError(f"Commands have shape {controller.shape}, expected {wanted} (worlds, steps, actuators).")
