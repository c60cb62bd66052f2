"""Signals along the physics steps of an episode, and what a sensor takes of them on its own clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.rollout.substeps import PhysicsSteps
from twinloop.sensors.filters import low_pass
from twinloop.sensors.sampling import SampleClock

_SAME_MOMENT = 1e-9  # s; a clock's moments and the sums of physics steps differ by round-off


@dataclass(frozen=True, kw_only=True)
class Signal:
    """A signal along physics steps: at the moments ``(n + 1,)`` between them, as it arrives there and as it leaves.

    What follows from forces jumps where a command begins to act. Nobody can know at that moment what comes after it,
    so that a sample of it is of what came before.
    """

    arrives: NDArray[np.float64]
    leaves: NDArray[np.float64]

    @classmethod
    def of_state(cls, values: NDArray[np.float64]) -> Signal:
        """A part of the state ``(n + 1, k)``, which does not jump."""
        return cls(arrives=values, leaves=values)

    @classmethod
    def of_record(cls, rows: NDArray[np.float64], ends: NDArray[np.float64], rest: NDArray[np.float64]) -> Signal:
        """What is computed at the beginning of physics steps ``(nstep, substeps, k)`` and at the end of the last.

        ``ends`` is ``(nstep, k)``, and ``rest`` ``(k,)`` what was before the first.
        """
        width = rows.shape[2:]
        leaves = np.concatenate([rows.reshape(rows.shape[0] * rows.shape[1], *width), ends[-1:]])
        arrives = np.concatenate([rows[:, 1:], ends[:, None]], axis=1).reshape(len(leaves) - 1, *width)
        return cls(arrives=np.concatenate([rest[None], arrives]), leaves=leaves)

    def part(self, columns: slice | NDArray[np.intp]) -> Signal:
        """Some of its columns."""
        return Signal(arrives=self.arrives[:, columns], leaves=self.leaves[:, columns])


@dataclass(frozen=True, kw_only=True)
class Motion:
    """An episode at its physics steps, ``time`` ``(n + 1,)``."""

    time: NDArray[np.float64]
    qpos: Signal
    qvel: Signal
    records: Mapping[str, Signal]

    @classmethod
    def of_steps(cls, made: PhysicsSteps, *, rest: Mapping[str, NDArray[np.float64]]) -> Motion:
        """Of all control steps; ``rest`` is what each of their records was before the first."""
        return cls(
            time=_chained(made.time),
            qpos=Signal.of_state(_chained(made.qpos)),
            qvel=Signal.of_state(_chained(made.qvel)),
            records={name: Signal.of_record(rows, made.ends[name], rest[name]) for name, rows in made.records.items()},
        )

    def sampled(self, signal: Signal, clock: SampleClock, bandwidth: NDArray[np.float64]) -> NDArray[np.float64]:
        """A signal filtered and taken at a clock's moments, linear along each physics step."""
        smooth = low_pass(self.time[None], signal.leaves[None], bandwidth, ends=signal.arrives[None])[0]
        leaves = smooth if np.any(bandwidth > 0.0) else signal.leaves
        following = np.searchsorted(self.time, clock.taken - _SAME_MOMENT, side="left")
        last = np.maximum(following - 1, 0)
        span = np.where(following > 0, self.time[following] - self.time[last], 1.0)
        part = np.clip((clock.taken - self.time[last]) / span, 0.0, 1.0)[:, None]
        between = leaves[last] + part * (smooth[following] - leaves[last])
        return np.where(following[:, None] > 0, between, smooth[:1])


def _chained(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values ``(nstep, substeps + 1, …)`` of consecutive control steps as one row of physics steps."""
    body = rows[:, :-1].reshape(-1, *rows.shape[2:])
    return np.concatenate([body, rows[-1:, -1]])
