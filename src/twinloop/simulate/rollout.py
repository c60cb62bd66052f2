"""Run worlds under a controller from start to end, record them, and detect divergence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.core.profile import span
from twinloop.core.registry import Registry
from twinloop.simulate.arrays import HOST, Array, ArrayLibrary, to_host
from twinloop.simulate.protocol import (
    WARNINGS,
    Backend,
    Controller,
    DeviceController,
    InitialState,
    Simulation,
    Trajectories,
)
from twinloop.twin import Twin

BACKENDS: Registry[Callable[..., Backend]] = Registry(
    "backend",
    {
        "reference": "twinloop.simulate.reference:BackendReference",
        "threads": "twinloop.simulate.threads:BackendThreads",
        "warp": "twinloop.simulate.warp:BackendWarp [gpu]",
    },
    group="twinloop.backends",
    shown=lambda: ("reference", "threads", "warp", "warp:cpu", "warp:cuda:1"),
)


class DivergenceMonitor:
    """Detect worlds whose warning counters rise or whose state is not finite.

    The check runs on the simulation's own arrays, also on a device, and copies nothing to the host until a result is
    read.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._before: Array = simulation.warnings()
        xp = array_namespace(self._before)
        self._step = xp.zeros_like(self._before[:, 0]) - 1
        self._kinds = self._before < 0

    @property
    def invalid_step(self) -> NDArray[np.int64]:
        """Control step after which each world became invalid (-1: never), ``(nworld,)``."""
        return to_host(self._step).copy()

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Worlds without divergence so far, ``(nworld,)``."""
        return self.invalid_step < 0

    @property
    def reason(self) -> list[str]:
        """Reason per world, empty for a valid world."""
        kinds, reasons = to_host(self._kinds), [""] * len(self.invalid_step)
        for world in np.flatnonzero(self.invalid_step >= 0):
            names = [WARNINGS[kind] for kind in np.flatnonzero(kinds[world])]
            reasons[world] = ", ".join(names) or "state not finite"
        return reasons

    def check_worlds(self, simulation: Simulation, state: Array) -> None:
        """Check every world after a control step by its counters and its ``state`` ``(nworld, nstate)``."""
        xp = array_namespace(state)
        risen = simulation.warnings() > self._before
        lost = ~xp.all(xp.isfinite(state), axis=1)
        fresh = (xp.any(risen, axis=1) | lost) & (self._step < 0)
        self._step = xp.where(fresh, simulation.step_index - 1, self._step)
        self._kinds = xp.where(fresh[:, None], risen, self._kinds)

    def restart(self, simulation: Simulation, worlds: ArrayLike) -> None:
        """Mark worlds as valid again after the simulation restarted them."""
        index = ArrayLibrary.of(self._before).asarray(worlds)
        self._before[index] = simulation.warnings()[index]
        self._step[index] = -1
        self._kinds[index] = False


def open_backend(name: str = "threads", *, nthread: int = 0) -> Backend:
    """Return the backend of that name.

    Args:
        name: ``threads``, ``reference``, or ``warp``, the first CUDA device; ``warp:DEVICE`` is another of Warp's,
            such as ``warp:cpu``. A backend of an installed package takes ``:DEVICE`` and threads if its class has
            parameters ``device`` and ``nthread``.
        nthread: C threads of ``threads`` (0: every core).

    Raises:
        UnknownNameError: there is no backend of that name.
        MissingDependencyError: it lacks a package or a CUDA device.
    """
    kind, colon, device = name.partition(":")
    made = BACKENDS[kind]
    takes = signature(made).parameters
    if colon and "device" not in takes:
        BACKENDS.find(name)
    given = {"device": device, "nthread": nthread}
    return made(**{key: value for key, value in given.items() if value and key in takes})


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
        controller: commands ``(nworld, nstep, nu)``, or a callable that is called at every step.
        record: derived MjData fields to keep, one physics step behind the state.

    Raises:
        InputError: the shapes do not fit each other.
    """
    _check_shapes(twin, params, initial, controller, nstep)
    simulation = backend.start(twin, params, initial, nstep, derived=record)
    seen, act = _place_on_device(simulation, controller)
    monitor, commands = DivergenceMonitor(seen), _RecordedSeries(seen.qpos, nstep, (twin.model.nu,))
    states = _RecordedSeries.begin(seen.state, nstep)
    records = {name: _RecordedSeries.begin(seen.read_derived(name), nstep) for name in record}
    for step in range(nstep):
        with span("expert"):
            command = act(step)
        commands.put(command)
        seen.advance(command)
        monitor.check_worlds(seen, states.put(seen.state))
        for name, series in records.items():
            series.put(seen.read_derived(name))
    return Trajectories(
        model=twin.model,
        states=states.copy_to_host(),
        commands=commands.copy_to_host(),
        invalid_step=monitor.invalid_step,
        reason=tuple(monitor.reason),
        records={name: series.copy_to_host() for name, series in records.items()},
    )


def _place_on_device(
    simulation: Simulation, controller: NDArray[np.float64] | Controller
) -> tuple[Simulation, Callable[[int], Array]]:
    """Return the simulation on its device and a function that returns a step's command there.

    A controller with ``on(arrays)`` runs on the device; any other gets the simulation's arrays on the host.
    """
    seen = getattr(simulation, "device", simulation)
    arrays = getattr(seen, "arrays", HOST)
    if isinstance(controller, np.ndarray):
        return seen, lambda step: arrays.asarray(controller[:, step])
    if isinstance(controller, DeviceController) and not arrays.on_host:
        at_home = controller.to_library(arrays)
        return seen, lambda _: at_home(seen)
    return seen, lambda _: arrays.asarray(controller(simulation))


class _RecordedSeries:
    """One quantity over time, stored on its own device and copied to the host once, at the end."""

    def __init__(self, like: Array, length: int, shape: tuple[int, ...]) -> None:
        """Allocate ``length`` values of a shape, with the type and on the device of ``like``."""
        arrays = ArrayLibrary.of(like)
        self._rows = arrays.xp.empty((like.shape[0], length, *shape), dtype=like.dtype, device=arrays.device)
        self._count = 0

    @classmethod
    def begin(cls, first: Array, nstep: int) -> _RecordedSeries:
        """Return a series with its first value, and room for one after each of ``nstep`` steps."""
        series = cls(first, nstep + 1, tuple(first.shape[1:]))
        series.put(first)
        return series

    def put(self, values: Array) -> Array:
        """Store the next value and return it."""
        self._rows[:, self._count] = values
        self._count += 1
        return values

    def copy_to_host(self) -> NDArray[np.float64]:
        return to_host(self._rows).astype(np.float64, copy=False)


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
