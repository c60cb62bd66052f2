"""What each fault does to the coefficients of the drives, tried in the twin.

The commands of successful episodes run through the twin as it is and through the twin with one fault; the same
observers look at both. The difference of their coefficients at each time is the fault's signature: with its size, with
what the readings' feedback makes of it, and with how one fault looks a little like another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.release.monitor.directions import MEMORY_S, Directions
from twinloop.release.monitor.hypotheses import Hypothesis, changed
from twinloop.release.monitor.observers import Observers, untouched
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.twin import Twin

Array = NDArray[np.float64]
_PERIODS = 2.0  # control periods of latency that its signature has: a fault, not a tremor (our choice)


def signatures(
    twin: Twin, params: ParamTable, positions: Array, commands: Array, *, nthread: int = 1
) -> tuple[tuple[Hypothesis, ...], Array]:
    """How each hypothesis moves the coefficients, ``(nwrong, T, n, nwrong)``: the mean over the episodes.

    Args:
        twin: the robot as it was identified, with one row of ``params``.
        positions: first readings ``(m, n)`` of episodes, rad or m.
        commands: what was sent in them, ``(m, T, nu)`` in the actuators' unit.
        nthread: C threads.
    """
    observers = Observers(twin, params, nthread=nthread)
    plain = _coefficients(observers, twin, params, positions, commands, nthread)
    moved = []
    for one in observers.wrong:
        planted = replace(one, change=one.change * _PERIODS) if one.name == "latency" else one
        other, row = changed(twin, params, planted)
        moved.append(_coefficients(observers, other, row, positions, commands, nthread) - plain)
    return observers.wrong, np.stack(moved)


def while_held(signature: Array, hypotheses: Sequence[Hypothesis], held: Array, control_hz: float) -> Array:
    """The same where the weight is in the jaws: what changes it weighs on the arm while it is held.

    Args:
        signature: ``(nwrong, T, …)`` as of `signatures`.
        hypotheses: theirs.
        held: share of successes ``(T,)`` in which something is held then.
        control_hz: looks per second; coefficients remember the looks before as `directions` does.
    """
    keep, share, lasting = math.exp(-1.0 / (MEMORY_S * control_hz)), 0.0, np.empty(signature.shape[1])
    for step in range(len(lasting)):
        share = keep * share + (1.0 - keep) * float(held[min(step, len(held) - 1)])
        lasting[step] = share
    weighted = signature.copy()
    for row, one in enumerate(hypotheses):
        if one.name == "load":
            weighted[row] *= lasting.reshape(-1, *[1] * (signature.ndim - 2))
    return weighted


def _coefficients(
    observers: Observers, twin: Twin, params: ParamTable, positions: Array, commands: Array, nthread: int
) -> Array:
    """Mean coefficients ``(T, n, nwrong)`` of episodes of a twin that nothing touches."""
    readings = _replayed(twin, params, positions, commands, nthread)
    directions = Directions((*positions.shape, len(observers.wrong)), twin.control_hz)
    observers.begin(readings[:, 0])
    means = [np.zeros((positions.shape[1], len(observers.wrong)))]
    for step in range(1, commands.shape[1]):
        residual, moved = observers.look(commands[:, step - 1], readings[:, step])
        means.append(directions.look(residual, moved).mean(axis=0))
    return np.stack(means)


def _replayed(twin: Twin, params: ParamTable, positions: Array, commands: Array, nthread: int) -> Array:
    """Readings ``(m, T, n)`` of a twin under those commands, without noise."""
    alone, table = untouched(twin), params.take(np.zeros(len(positions), dtype=int))
    offset, scale = (twin.column(table, "sensor", kind) for kind in ("offset", "scale"))
    initial = InitialState.home(alone, len(positions))
    qpos = initial.qpos.copy()
    qpos[:, alone.joint_qpos] = offset + scale * positions
    initial = replace(initial, qpos=alone.with_motors(qpos), command=positions)
    run = rollout(open_backend("threads", nthread=nthread), alone, table, initial, commands, commands.shape[1])
    return (run.qpos[:, :-1, alone.joint_qpos] - offset[:, None]) / scale[:, None]
