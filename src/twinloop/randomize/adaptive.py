"""Widen or narrow ranges with the measured performance: automatic domain randomization.

After OpenAI et al., "Solving Rubik's Cube with a Robot Hand" (arXiv 1910.07113, 2019), section 5: each parameter is
uniform between two boundaries; some episodes are evaluated with one parameter exactly at one boundary; after enough of
them the boundary moves outwards if they succeeded and inwards if they failed.

Boundaries move only between rounds of a fixed number of episodes. An episode therefore depends only on the plan and the
earlier rounds, not on the process. The result of a round is a count of attempts and successes per boundary, from which
an interrupted run continues.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.seeds import uniforms
from twinloop.randomize.draws import Scope
from twinloop.twin import Twin

Ranges: TypeAlias = tuple[tuple[float, float], ...]
"""Lower and upper boundary of each parameter, in SI units."""
Counts: TypeAlias = tuple[tuple[int, int], ...]
"""(attempts, successes) at each boundary: lower and upper of the first parameter, of the second, and so on."""

SIDES = ("low", "high")


@dataclass(frozen=True, kw_only=True)
class AdaptiveDraw:
    """Independent uniform draws of ``names`` between adaptive boundaries.

    Per name, in SI units: ``start`` are the initial boundaries, ``limits`` their outer limits, ``anchors`` their inner
    limits, ``step`` is the change of a boundary in one move. ``rounds`` holds the ranges of the known rounds; those of
    round 0 are ``start``.
    """

    names: tuple[str, ...]
    start: Ranges
    limits: Ranges
    anchors: tuple[float, ...]
    step: tuple[float, ...]
    every: int
    boundary_probability: float
    buffer: int
    thresholds: tuple[float, float]
    source: str = ""
    scope: Scope = "episode"
    rounds: Mapping[int, Ranges] = field(default_factory=dict)

    def check(self, twin: Twin) -> None:
        """Raise an error for unknown names and for limits beyond the physical bounds.

        Raises:
            UnknownNameError, BoundsError: the message names the parameter.
        """
        for name, limits, start in zip(self.names, self.limits, self.start, strict=True):
            twin.find_param(name).check((*limits, *start), where=self.source)

    @property
    def size(self) -> int:
        """Number of independent uniforms per episode."""
        return len(self.names)

    @property
    def axes(self) -> list[tuple[str, ...]]:
        """Names of the parameters that each uniform determines."""
        return [(name,) for name in self.names]

    @property
    def boundaries(self) -> tuple[str, ...]:
        """Names of the boundaries, in the order of `Counts`."""
        return tuple(f"{name} {side}" for name in self.names for side in SIDES)

    def with_rounds(self, rounds: Mapping[int, Ranges]) -> AdaptiveDraw:
        """Return the draw with the ranges of these rounds."""
        return replace(self, rounds=dict(rounds))

    def find_boundary(self, run_seed: int, episodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index in `boundaries` that each episode evaluates, ``(n,)``; -1 for none."""
        u = uniforms(run_seed, "adaptive/boundary", episodes, size=2)
        chosen = np.minimum((u[:, 1] * 2 * self.size).astype(np.int64), 2 * self.size - 1)
        return np.where(u[:, 0] < self.boundary_probability, chosen, -1)

    def values(
        self, u: NDArray[np.float64], run_seed: int, episodes: NDArray[np.int64]
    ) -> dict[str, NDArray[np.float64]]:
        """Return values ``(n,)`` in SI units by name, from uniforms ``(n, size)``.

        Raises:
            InputError: the ranges of an episode's round are not known yet.
        """
        low, high = self._episode_ranges(episodes)
        values = low + (high - low) * u
        chosen = self.find_boundary(run_seed, episodes)
        rows = np.flatnonzero(chosen >= 0)
        column, side = np.divmod(chosen[rows], 2)
        values[rows, column] = np.where(side == 1, high[rows, column], low[rows, column])
        return dict(zip(self.names, values.T, strict=True))

    def enclosing_ranges(self) -> Ranges:
        """Return the smallest ranges that contain those of all known rounds."""
        known = np.array([self.start, *self.rounds.values()])
        return tuple(zip(known[..., 0].min(axis=0).tolist(), known[..., 1].max(axis=0).tolist(), strict=True))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary for files and hashes, with the known rounds."""
        return {
            "names": list(self.names),
            "op": "adaptive",
            "scope": self.scope,
            "start": [list(pair) for pair in self.start],
            "limits": [list(pair) for pair in self.limits],
            "anchors": list(self.anchors),
            "step": list(self.step),
            "every": self.every,
            "boundary_probability": self.boundary_probability,
            "buffer": self.buffer,
            "thresholds": list(self.thresholds),
            "source": self.source,
            "rounds": {str(number): [list(pair) for pair in ranges] for number, ranges in self.rounds.items()},
        }

    def _episode_ranges(self, episodes: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        rounds, place = np.unique(episodes // self.every, return_inverse=True)
        known = {0: self.start, **self.rounds}
        missing = [int(number) for number in rounds if int(number) not in known]
        if missing:
            raise InputError(
                f"The adaptive ranges of round {missing[0]} (episodes from {missing[0] * self.every}) follow from the "
                f"episodes before it, which have not been run. Run from the first episode on, or give the ranges."
            )
        table = np.array([known[int(number)] for number in rounds])[place]
        return table[..., 0], table[..., 1]


@dataclass(frozen=True, kw_only=True)
class AdaptiveRound:
    """One round: its ranges, the counts of the buffers at its end, and the decision for each boundary."""

    number: int
    ranges: Ranges
    counts: Counts
    decisions: tuple[str, ...]

    def to_json(self, draw: AdaptiveDraw) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        rows = zip(draw.boundaries, self.counts, self.decisions, strict=True)
        return {
            "round": self.number,
            "first_episode": self.number * draw.every,
            "ranges": {name: list(pair) for name, pair in zip(draw.names, self.ranges, strict=True)},
            "boundaries": [
                {
                    "boundary": name,
                    "attempted": attempted,
                    "success": success,
                    "performance": success / attempted if attempted else None,
                    "decision": decision,
                }
                for name, (attempted, success), decision in rows
            ],
        }


def run_rounds(draw: AdaptiveDraw, outcomes: Iterable[Counts]) -> tuple[list[AdaptiveRound], Ranges]:
    """Update the ranges by the outcomes of complete rounds.

    Args:
        outcomes: counts of round 0, 1, and so on.

    Returns:
        The rounds, and the ranges of the next one.
    """
    ranges, buffers, rounds = draw.start, [(0, 0)] * (2 * draw.size), []
    for number, counts in enumerate(outcomes):
        buffers = [(a + c, s + d) for (a, s), (c, d) in zip(buffers, counts, strict=True)]
        moved, decisions = _move_boundaries(draw, ranges, buffers)
        rounds.append(AdaptiveRound(number=number, ranges=ranges, counts=tuple(buffers), decisions=decisions))
        ranges = moved
        buffers = [pair if what == "waiting" else (0, 0) for pair, what in zip(buffers, decisions, strict=True)]
    return rounds, ranges


def _move_boundaries(
    draw: AdaptiveDraw, ranges: Ranges, buffers: Sequence[tuple[int, int]]
) -> tuple[Ranges, tuple[str, ...]]:
    """Move every boundary whose buffer is full by one step, or keep it; see the module."""
    result, decisions = [], []
    for i, (low, high) in enumerate(ranges):
        down, up = (_decide(draw, *buffers[2 * i + side]) for side in (0, 1))
        step, (lowest, highest), anchor = draw.step[i], draw.limits[i], draw.anchors[i]
        new_low = {"widen": max(low - step, lowest), "narrow": min(low + step, anchor)}.get(down, low)
        new_high = {"widen": min(high + step, highest), "narrow": max(high - step, anchor)}.get(up, high)
        result.append((new_low, new_high))
        decisions += [_format_decision(down, moved=new_low != low), _format_decision(up, moved=new_high != high)]
    return tuple(result), tuple(decisions)


def _decide(draw: AdaptiveDraw, attempted: int, success: int) -> str:
    if attempted < draw.buffer:
        return "waiting"
    performance = success / attempted
    if performance >= draw.thresholds[1]:
        return "widen"
    return "narrow" if performance < draw.thresholds[0] else "keep"


def _format_decision(decision: str, *, moved: bool) -> str:
    return decision if moved or decision in ("waiting", "keep") else f"{decision}: at its limit"
