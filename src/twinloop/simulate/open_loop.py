"""Simulate worlds under known commands, recorded at the frames of a log, in few calls of the backend.

If all control steps are equal (no drive effects between physics steps, no pushes, no randomness, no parameters that
change per step), the controls of all physics steps are known in advance, and `BackendThreads` runs them in a few long
calls. The result equals `rollout` bit for bit; all other cases use `rollout`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import mujoco
import numpy as np
from mujoco.batch import Batch
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.core.profile import span
from twinloop.simulate.command import DROP_RATE, JITTER, ControlClock, command_map
from twinloop.simulate.disturbance import Pushes
from twinloop.simulate.drives import DriveStages
from twinloop.simulate.protocol import Backend, InitialState
from twinloop.simulate.rollout import rollout
from twinloop.simulate.threads import BackendThreads, make_batch
from twinloop.twin import Twin

Array = NDArray[np.float64]
_MOST_NUMBERS = 4_000_000  # in one call's records of all physics steps of all worlds: 32 MB


class ReplayedMotion(Protocol):
    """Result of a replay: positions, velocities and derived fields at every frame, ``(nworld, nframe, …)``.

    ``invalid_step`` ``(nworld,)`` is the first control step after which a world is invalid, -1 for never.
    """

    @property
    def qpos(self) -> Array:
        """Positions ``(nworld, nframe, nq)``."""
        ...

    @property
    def qvel(self) -> Array:
        """Velocities ``(nworld, nframe, nv)``."""
        ...

    @property
    def records(self) -> Mapping[str, Array]:
        """Derived fields by name, one physics step behind."""
        ...

    @property
    def invalid_step(self) -> NDArray[np.int64]:
        """First control step after which each world is invalid, ``(nworld,)``; -1 for never."""
        ...


@dataclass(frozen=True, kw_only=True)
class ReplayedFrames:
    """A `ReplayedMotion` in plain arrays."""

    qpos: Array
    qvel: Array
    records: Mapping[str, Array]
    invalid_step: NDArray[np.int64]


def open_loop(
    backend: Backend,
    twin: Twin,
    params: ParamTable,
    initial: InitialState,
    commands: Array,
    *,
    record: Sequence[str] = (),
) -> ReplayedMotion:
    """Run every world under commands ``(nworld, nstep, nu)``; ``record`` are derived fields, see `rollout`."""
    nstep = commands.shape[1]
    if not isinstance(backend, BackendThreads) or not _has_equal_steps(twin, params):
        return rollout(backend, twin, params, initial, commands, nstep, record=record)
    batch = make_batch(twin, params, initial, backend.nthread)
    names = ("qpos", "qvel", *record)
    live = {name: batch.bind(name) for name in names}
    if record:
        batch.forward(stage=mujoco.mjtStage.mjSTAGE_POS.value)
    series = {name: np.empty((len(commands), nstep + 1, *live[name].shape[1:])) for name in names}
    for name, values in series.items():
        values[:, 0] = live[name]
    with span("command path"):
        controls = compute_control_series(twin, params, initial, commands)
    with span("physics"):
        _run(batch, controls, twin.substeps, series)
    invalid = np.full(len(commands), -1, dtype=np.int64)
    lost = batch.warning[..., -1].any(axis=1) | ~np.isfinite(batch.state).all(axis=1)
    if lost.any():  # repeat these step by step to find the first invalid step
        worlds = np.flatnonzero(lost)
        again = rollout(
            backend, twin, params.take(worlds), initial.take(worlds), commands[worlds], nstep, record=record
        )
        invalid[worlds], series["qpos"][worlds], series["qvel"][worlds] = again.invalid_step, again.qpos, again.qvel
        for name in record:
            series[name][worlds] = again.records[name]
    qpos, qvel = series.pop("qpos"), series.pop("qvel")
    return ReplayedFrames(qpos=qpos, qvel=qvel, records=series, invalid_step=invalid)


def _has_equal_steps(twin: Twin, params: ParamTable) -> bool:
    """Return whether all control steps are equal: nothing random, changing per step, or between physics steps."""
    if params.steps or any(np.any(params.get(name, np.zeros(1)) > 0) for name in (JITTER, DROP_RATE)):
        return False
    if twin.spec.robot is not None and (twin.column(params, "actuator", "delay") < 0).any():
        return False  # `CommandPath` refuses it
    return (
        ControlClock(twin, params).steady and not Pushes(twin, params).active and not DriveStages(twin, params).active
    )


def _run(batch: Batch, controls: Array, substeps: int, series: Mapping[str, Array]) -> None:
    """Run all control steps, as many per call as fit the memory; record the last physics step of each."""
    nworld, total = controls.shape[:2]
    numbers = sum(values[:, 0].size for values in series.values())
    steps = max(1, _MOST_NUMBERS // (numbers * substeps)) * substeps
    for begin in range(0, total, steps):
        count = min(steps, total - begin)
        control = controls[:, begin : begin + count] if controls.shape[2] else None
        records = batch.rollout(count, control, record=tuple(series))
        frames = slice(begin // substeps + 1, (begin + count) // substeps + 1)
        for name, values in series.items():
            values[:, frames] = records[name].reshape(nworld, count, *values.shape[2:])[:, substeps - 1 :: substeps]


def compute_control_series(twin: Twin, params: ParamTable, initial: InitialState, commands: Array) -> Array:
    """Return the controls of every physics step, ``(nworld, nstep * substeps, nu)``, as `CommandPath` computes them.

    The newest command that has arrived is valid; an arriving one is weighted with its ramp.
    """
    issued = np.concatenate([initial.command[:, None], initial.earlier, commands], axis=1)
    first = -1 - initial.earlier.shape[1]  # number of the command in the first column
    now = np.arange(commands.shape[1] * twin.substeps, dtype=np.float64)
    if twin.spec.robot is None:
        delays = np.zeros((params.nworld, commands.shape[2]))
    else:
        if twin.robot.control != "torque":
            offset, scale = command_map(twin, params)
            issued = offset[:, None] + scale[:, None] * issued
        delays = twin.column(params, "actuator", "delay") / twin.dt
    controls = np.empty((params.nworld, len(now), commands.shape[2]))
    kinds, kind = np.unique(delays, axis=0, return_inverse=True)
    for number, row in enumerate(kinds):
        worlds = np.flatnonzero(kind.ravel() == number)
        for column, delay in enumerate(row):
            signal = issued[worlds, :, column]
            controls[worlds, :, column] = _delay_signal(signal, first, now, float(delay), twin.substeps)
    return controls


def _delay_signal(signal: Array, first: int, now: Array, delay: float, substeps: int) -> Array:
    """Return an actuator's signal ``delay`` physics steps late; ``signal`` ``(n, k)`` begins with command ``first``."""
    newest = np.floor((now + 1.0 - delay) / substeps).astype(np.int64) + 1
    standing, weights = newest - 3, []
    for shift in (2, 1, 0):  # rounding may put the newest by one to either side
        number = newest - shift
        weight = np.clip((now - (delay + number * float(substeps))) + 1.0, 0.0, 1.0)
        weight = np.where(number <= first, 1.0, weight)
        standing = np.where(weight == 1.0, number, standing)
        weights.append((number, np.where((weight > 0.0) & (weight < 1.0), weight, 0.0)))
    last = signal.shape[1] - 1
    arrived = signal[:, np.clip(standing - first, 0, last)]
    for number, weight in weights:
        at = np.flatnonzero(weight)
        coming = signal[:, np.clip(number[at] - first, 0, last)]
        arrived[:, at] = (1.0 - weight[at]) * arrived[:, at] + weight[at] * coming
    return arrived
