"""Simulate worlds under commands that are known in advance, faster than step by step.

If all control steps are equal (no drive effects between physics steps, no pushes, no residual, no randomness, no
parameters that change per step), the controls of all physics steps are known in advance, and `BackendThreads` runs them
in a few long calls. The result equals that of `rollout` bit for bit. All other cases use `rollout`.
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
from twinloop.simulate.command import DROP_RATE, JITTER, ControlClock, arrived_share, command_map, is_direct
from twinloop.simulate.disturbance import Pushes
from twinloop.simulate.drives import DriveStages
from twinloop.simulate.protocol import Backend, InitialState
from twinloop.simulate.residual import Residuals
from twinloop.simulate.rollout import rollout
from twinloop.simulate.threads import BackendThreads, make_batch
from twinloop.twin import Twin

Array = NDArray[np.float64]
_MOST_NUMBERS = 4_000_000  # in one call's records of all physics steps of all worlds: 32 MB


class ReplayedMotion(Protocol):
    """Protocol of a simulated motion: positions, velocities and recorded MjData fields at every frame."""

    @property
    def qpos(self) -> Array:
        """Positions, shape ``(nworld, nframe, nq)``."""
        ...

    @property
    def qvel(self) -> Array:
        """Velocities, shape ``(nworld, nframe, nv)``."""
        ...

    @property
    def records(self) -> Mapping[str, Array]:
        """Recorded MjData fields by name, one physics step older than the state, shape ``(nworld, nframe, …)``."""
        ...

    @property
    def invalid_step(self) -> NDArray[np.int64]:
        """First control step after which each world is invalid, shape ``(nworld,)``; -1 for a valid world."""
        ...


@dataclass(frozen=True, kw_only=True)
class ReplayedFrames:
    """Simulated motion stored in plain arrays; see `ReplayedMotion`.

    Attributes:
        qpos: positions, shape ``(nworld, nframe, nq)``.
        qvel: velocities, shape ``(nworld, nframe, nv)``.
        records: recorded MjData fields by name, shape ``(nworld, nframe, …)``.
        invalid_step: first control step after which each world is invalid, shape ``(nworld,)``; -1 for a valid
            world.
    """

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
    """Simulate every world under given commands, without a controller that reacts to the state.

    Args:
        backend: backend that runs the worlds.
        twin: the twin.
        params: parameters of all worlds.
        initial: initial states of all worlds.
        commands: commands, shape ``(nworld, nstep, nu)``.
        record: names of MjData fields to record; see `rollout`.
    """
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
    diverged = batch.warning[..., -1].any(axis=1) | ~np.isfinite(batch.state).all(axis=1)
    if diverged.any():  # repeat these step by step to find the first invalid step
        worlds = np.flatnonzero(diverged)
        repeated = rollout(
            backend, twin, params.take(worlds), initial.take(worlds), commands[worlds], nstep, record=record
        )
        invalid[worlds], series["qpos"][worlds], series["qvel"][worlds] = (
            repeated.invalid_step,
            repeated.qpos,
            repeated.qvel,
        )
        for name in record:
            series[name][worlds] = repeated.records[name]
    qpos, qvel = series.pop("qpos"), series.pop("qvel")
    return ReplayedFrames(qpos=qpos, qvel=qvel, records=series, invalid_step=invalid)


def _has_equal_steps(twin: Twin, params: ParamTable) -> bool:
    """Return whether all control steps are equal.

    They are not if a world has random effects, a changed control period, pushes, drive effects between physics steps,
    or parameters that change per step.
    """
    if params.steps or any(np.any(params.get(name, np.zeros(1)) > 0) for name in (JITTER, DROP_RATE)):
        return False
    if twin.spec.robot is not None and (twin.column(params, "actuator", "delay") < 0).any():
        return False  # `CommandPath` refuses it
    return ControlClock(twin, params).steady and not any(
        effect(twin, params).active for effect in (Pushes, Residuals, DriveStages)
    )


def _run(batch: Batch, controls: Array, substeps: int, series: Mapping[str, Array]) -> None:
    """Run all control steps, in several calls if the recorded values would otherwise need too much memory.

    The state after the last physics step of each control step is stored.

    Args:
        batch: the worlds in their initial states.
        controls: controls of all physics steps, shape ``(nworld, nstep · substeps, nu)``.
        substeps: physics steps per control step.
        series: arrays ``(nworld, nstep + 1, …)`` by MjData field, written in place.
    """
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
    """Return the controls of all physics steps, as `CommandPath` computes them step by step.

    The newest command that has arrived is in effect. While a command arrives, the control is a mean of the old and the
    new command, weighted by `arrived_share`.

    Args:
        twin: the twin.
        params: parameters of all worlds.
        initial: initial states, with the commands before the start.
        commands: commands, shape ``(nworld, nstep, nu)``.

    Returns:
        Controls, shape ``(nworld, nstep · substeps, nu)``.
    """
    issued = np.concatenate([initial.command[:, None], initial.earlier, commands], axis=1)
    first = -1 - initial.earlier.shape[1]  # number of the command in the first column
    now = np.arange(commands.shape[1] * twin.substeps, dtype=np.float64)
    if not is_direct(twin):
        offset, scale = command_map(twin, params)
        issued = offset[:, None] + scale[:, None] * issued
    if twin.spec.robot is None:
        delays = np.zeros((params.nworld, commands.shape[2]))
    else:
        delays = twin.column(params, "actuator", "delay") / twin.dt
    controls = np.empty((params.nworld, len(now), commands.shape[2]))
    kinds, kind = np.unique(delays, axis=0, return_inverse=True)
    for number, row in enumerate(kinds):
        worlds = np.flatnonzero(kind.ravel() == number)
        for column, delay in enumerate(row):
            signal = issued[worlds, :, column]
            controls[worlds, :, column] = _delay_signal(
                signal, first, now, float(delay), twin.substeps, gradual=twin.gradual_commands
            )
    return controls


def _delay_signal(signal: Array, first: int, now: Array, delay: float, substeps: int, *, gradual: bool) -> Array:
    """Return the delayed control signal of one actuator at each physics step.

    Args:
        signal: target of each command, shape ``(n, k)`` for n worlds and k commands.
        first: number of the command in the first column. Command 0 is issued at the start, so the number is negative if
            the signal begins earlier.
        now: numbers of the physics steps at which the signal is needed, 0 at the start.
        delay: delay, in physics steps.
        substeps: physics steps per control step.
        gradual: see `arrived_share`.
    """
    newest = np.floor((now + 1.0 - delay) / substeps).astype(np.int64) + 1
    arrived_number, weights = newest - 3, []
    for shift in (2, 1, 0):  # rounding may put the newest by one to either side
        number = newest - shift
        weight = arrived_share(np, now - (delay + number * float(substeps)), gradual=gradual)
        weight = np.where(number <= first, 1.0, weight)
        arrived_number = np.where(weight == 1.0, number, arrived_number)
        weights.append((number, np.where((weight > 0.0) & (weight < 1.0), weight, 0.0)))
    last = signal.shape[1] - 1
    output = signal[:, np.clip(arrived_number - first, 0, last)]
    for number, weight in weights:
        at = np.flatnonzero(weight)
        arriving = signal[:, np.clip(number[at] - first, 0, last)]
        output[:, at] = (1.0 - weight[at]) * output[:, at] + weight[at] * arriving
    return output
