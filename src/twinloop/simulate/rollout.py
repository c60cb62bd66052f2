"""Simulate worlds under a controller from start to end, record them, and detect divergence."""

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
    listed_names=lambda: ("reference", "threads", "warp", "warp:cpu", "warp:cuda:1"),
)


class DivergenceMonitor:
    """Detector of invalid worlds: those with a new warning of the simulator or a state that is not finite.

    The check runs on the arrays of the simulation, also on a GPU, and copies nothing to the main memory until a
    result is read.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._before: Array = simulation.warnings()
        xp = array_namespace(self._before)
        self._step = xp.zeros_like(self._before[:, 0]) - 1
        self._kinds = self._before < 0

    @property
    def invalid_step(self) -> NDArray[np.int64]:
        """Control step after which each world became invalid, shape ``(nworld,)``; -1 for a valid world."""
        return to_host(self._step).copy()

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Whether each world is valid so far, shape ``(nworld,)``."""
        return self.invalid_step < 0

    @property
    def reason(self) -> list[str]:
        """Reason for each invalid world: its warnings, or that its state is not finite; empty for a valid world."""
        kinds, reasons = to_host(self._kinds), [""] * len(self.invalid_step)
        for world in np.flatnonzero(self.invalid_step >= 0):
            names = [WARNINGS[kind] for kind in np.flatnonzero(kinds[world])]
            reasons[world] = ", ".join(names) or "state not finite"
        return reasons

    def check_worlds(self, simulation: Simulation, state: Array) -> None:
        """Check every world after a control step for new warnings and for values that are not finite.

        ``state`` is the state of all worlds, shape ``(nworld, nstate)``.
        """
        xp = array_namespace(state)
        has_warning = simulation.warnings() > self._before
        not_finite = ~xp.all(xp.isfinite(state), axis=1)
        fresh = (xp.any(has_warning, axis=1) | not_finite) & (self._step < 0)
        self._step = xp.where(fresh, simulation.step_index - 1, self._step)
        self._kinds = xp.where(fresh[:, None], has_warning, self._kinds)

    def restart(self, simulation: Simulation, worlds: ArrayLike) -> None:
        """Mark the worlds with the indices ``worlds`` as valid again, after the simulation has restarted them."""
        index = ArrayLibrary.of(self._before).asarray(worlds)
        self._before[index] = simulation.warnings()[index]
        self._step[index] = -1
        self._kinds[index] = False


def open_backend(name: str = "threads", *, nthread: int = 0) -> Backend:
    """Create the backend of the given name.

    Args:
        name: ``threads``, ``reference``, or ``warp`` for the first CUDA device. ``warp:DEVICE`` is another device
            of Warp, such as ``warp:cpu``. A backend of an installed package takes ``:DEVICE`` and ``nthread`` if
            its class has the parameters ``device`` and ``nthread``.
        nthread: number of C threads of the backend ``threads``; 0 for every core.

    Raises:
        UnknownNameError: If there is no backend of that name.
        MissingDependencyError: If the backend needs a package or a CUDA device that is missing.
    """
    kind, colon, device = name.partition(":")
    factory = BACKENDS[kind]
    accepted = signature(factory).parameters
    if colon and "device" not in accepted:
        BACKENDS.find(name)
    options = {"device": device, "nthread": nthread}
    return factory(**{key: value for key, value in options.items() if value and key in accepted})


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
    """Simulate every world for ``nstep`` control steps and return its trajectories.

    Args:
        backend: backend that runs the worlds.
        twin: the twin.
        params: parameters, one row per world.
        initial: initial states of all worlds.
        controller: commands of shape ``(nworld, nstep, nu)``, or a function that is called at every control step.
        nstep: number of control steps.
        record: names of computed MjData fields to record. They are one physics step older than the state, because
            ``mj_step`` computes them before it integrates the state.

    Raises:
        InputError: If the shapes do not fit each other.
    """
    _check_shapes(twin, params, initial, controller, nstep)
    simulation = backend.start(twin, params, initial, nstep, derived=record)
    on_device, get_command = _place_on_device(simulation, controller)
    monitor, commands = DivergenceMonitor(on_device), _RecordedSeries(on_device.qpos, nstep, (twin.model.nu,))
    states = _RecordedSeries.begin(on_device.state, nstep)
    records = {name: _RecordedSeries.begin(on_device.read_derived(name), nstep) for name in record}
    for step in range(nstep):
        with span("expert"):
            command = get_command(step)
        commands.put(command)
        on_device.advance(command)
        monitor.check_worlds(on_device, states.put(on_device.state))
        for name, series in records.items():
            series.put(on_device.read_derived(name))
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
    """Return the simulation on its device, and a function from a step number to the step's commands on that device.

    A `DeviceController` runs on the device. Any other controller gets the simulation's arrays in main memory.
    """
    on_device = getattr(simulation, "device", simulation)
    arrays = getattr(on_device, "arrays", HOST)
    if isinstance(controller, np.ndarray):
        return on_device, lambda step: arrays.asarray(controller[:, step])
    if isinstance(controller, DeviceController) and not arrays.on_host:
        device_controller = controller.to_library(arrays)
        return on_device, lambda _: device_controller(on_device)
    return on_device, lambda _: arrays.asarray(controller(simulation))


class _RecordedSeries:
    """Recorded values of one quantity over time, stored on the device and copied to main memory once, at the end."""

    def __init__(self, like: Array, length: int, shape: tuple[int, ...]) -> None:
        """Allocate ``length`` values of the given shape.

        The data type, the device and the number of worlds are those of ``like``.
        """
        arrays = ArrayLibrary.of(like)
        self._rows = arrays.xp.empty((like.shape[0], length, *shape), dtype=like.dtype, device=arrays.device)
        self._count = 0

    @classmethod
    def begin(cls, first: Array, nstep: int) -> _RecordedSeries:
        """Create a series with its first value and with room for one value after each of ``nstep`` steps."""
        series = cls(first, nstep + 1, tuple(first.shape[1:]))
        series.put(first)
        return series

    def put(self, values: Array) -> Array:
        """Store the next value, shape ``(nworld, …)``, and return it."""
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
        raise InputError(
            f"The parameters are for {params.nworld} worlds, but there are {initial.nworld} initial states. "
            "Give one per world."
        )
    expected = (initial.nworld, nstep, twin.model.nu)
    if isinstance(controller, np.ndarray) and controller.shape != expected:
        raise InputError(f"Commands have shape {controller.shape}, expected {expected} (worlds, steps, actuators).")
