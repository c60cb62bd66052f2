"""Worlds from their beginning to their end under a controller, recorded at every control step."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.profile import span
from twinloop.core.records import ParamTable
from twinloop.simulate.monitor import Monitor
from twinloop.simulate.protocol import STATE_SPEC, Backend, Controller, InitialState, Trajectories
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
    monitor = Monitor(simulation)
    states[:, 0] = simulation.state
    for step in range(nstep):
        with span("expert"):
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
