"""Widen or narrow parameter ranges with the measured performance of a policy: automatic domain randomization.

After OpenAI et al., "Solving Rubik's Cube with a Robot Hand" (arXiv 1910.07113, 2019), section 5: each parameter is
uniform between two boundaries. Some episodes are evaluated with one parameter exactly at one boundary. After enough of
these episodes the boundary moves outwards if they succeeded, and inwards if they failed.

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
"""(attempts, successes) at each boundary, lower and upper boundary of the first parameter first."""

SIDES = ("low", "high")


@dataclass(frozen=True, kw_only=True)
class AdaptiveDraw:
    """Independent uniform draws of parameters between adaptive boundaries; values in SI units.

    In some episodes one parameter is set exactly to one of its boundaries, to test the success of the policy there. The
    boundaries move between rounds of ``every`` episodes.

    Attributes:
        names: Names of the parameters.
        start: Initial boundaries of each parameter.
        limits: Outermost values of both boundaries of each parameter.
        anchors: Value of each parameter that is always within its range, for example the nominal value; neither
            boundary moves past it.
        step: Distance by which a boundary of each parameter moves at once.
        every: Number of episodes per round.
        boundary_probability: Probability that an episode tests a boundary.
        buffer: Number of tests of a boundary after which it is decided whether it moves.
        thresholds: Success rate below which the range is narrowed, and success rate from which it is widened.
        source: Place of the definition, for error messages.
        scope: ``episode``: the values change between episodes.
        rounds: Ranges of the rounds so far, by number of the round; round 0 has ``start``.
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
        """Check the names, and that ranges and limits are within the physical bounds.

        Raises:
            UnknownNameError: If the twin does not have a parameter.
            BoundsError: If a limit or an initial boundary is outside the physical bounds.
        """
        for name, limits, start in zip(self.names, self.limits, self.start, strict=True):
            twin.find_param(name).check((*limits, *start), where=self.source)

    @property
    def size(self) -> int:
        """Number of uniform random numbers per episode, one per parameter.

        The random choice of a boundary uses separate numbers.
        """
        return len(self.names)

    @property
    def axes(self) -> list[tuple[str, ...]]:
        """Names of the parameters that each uniform random number determines, one tuple of names per random number."""
        return [(name,) for name in self.names]

    @property
    def boundaries(self) -> tuple[str, ...]:
        """Names of the boundaries: for each parameter the low and the high one, as in ``joint/elbow/damping low``."""
        return tuple(f"{name} {side}" for name in self.names for side in SIDES)

    def with_rounds(self, rounds: Mapping[int, Ranges]) -> AdaptiveDraw:
        """Return a copy in which ``rounds``, the parameter ranges of the rounds so far, are replaced.

        Args:
            rounds: New ranges by number of the round (``every`` episodes each).
        """
        return replace(self, rounds=dict(rounds))

    def find_boundary(self, run_seed: int, episodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the boundary (end of a parameter range) to which each episode sets a parameter, ``(n,)``.

        It is an index into `boundaries`, or -1 if all parameters of the episode are drawn between their boundaries.
        """
        u = uniforms(run_seed, "adaptive/boundary", episodes, size=2)
        chosen = np.minimum((u[:, 1] * 2 * self.size).astype(np.int64), 2 * self.size - 1)
        return np.where(u[:, 0] < self.boundary_probability, chosen, -1)

    def values(
        self, u: NDArray[np.float64], run_seed: int, episodes: NDArray[np.int64]
    ) -> dict[str, NDArray[np.float64]]:
        """Compute the values of the parameters in n episodes.

        Args:
            u: Uniform random numbers, ``(n, size)``.
            run_seed: Seed of the run.
            episodes: Episode numbers, ``(n,)``.

        Returns:
            Values in SI units by name, ``(n,)`` each.

        Raises:
            InputError: If the ranges of an episode's round are not known yet.
        """
        low, high = self._episode_ranges(episodes)
        values = low + (high - low) * u
        chosen = self.find_boundary(run_seed, episodes)
        rows = np.flatnonzero(chosen >= 0)
        column, side = np.divmod(chosen[rows], 2)
        values[rows, column] = np.where(side == 1, high[rows, column], low[rows, column])
        return dict(zip(self.names, values.T, strict=True))

    def enclosing_ranges(self) -> Ranges:
        """Return the smallest range of each parameter that contains its ranges in all rounds so far."""
        known = np.array([self.start, *self.rounds.values()])
        return tuple(zip(known[..., 0].min(axis=0).tolist(), known[..., 1].max(axis=0).tolist(), strict=True))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary for files and hashes, including the ranges of the rounds so far."""
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
    """One completed round of adaptive ranges.

    Attributes:
        number: Number of the round from 0.
        ranges: Ranges during the round.
        counts: Attempts and successes at each boundary since its last decision, at the end of the round.
        decisions: Decision for each boundary: ``waiting`` for more episodes, ``widen``, ``narrow`` or ``keep``.
    """

    number: int
    ranges: Ranges
    counts: Counts
    decisions: tuple[str, ...]

    def to_json(self, draw: AdaptiveDraw) -> dict[str, Any]:
        """Return a JSON-compatible dictionary.

        Args:
            draw: The adaptive draw, which gives the names of parameters and boundaries and the length of a round.
        """
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
    """Compute how the parameter ranges move over the completed rounds, from the outcomes of their episodes.

    A round is a fixed number of episodes. A boundary is the lower or upper end of a parameter's range.

    Args:
        draw: The adaptive draw.
        outcomes: Attempts and successes at each boundary in round 0, 1, and so on.

    Returns:
        The completed rounds, and the ranges of the next round.
    """
    ranges, buffers, rounds = draw.start, [(0, 0)] * (2 * draw.size), []
    for number, counts in enumerate(outcomes):
        buffers = [(a + c, s + d) for (a, s), (c, d) in zip(buffers, counts, strict=True)]
        moved, decisions = _move_boundaries(draw, ranges, buffers)
        rounds.append(AdaptiveRound(number=number, ranges=ranges, counts=tuple(buffers), decisions=decisions))
        ranges = moved
        buffers = [pair if decision == "waiting" else (0, 0) for pair, decision in zip(buffers, decisions, strict=True)]
    return rounds, ranges


def count_at_boundaries(
    draw: AdaptiveDraw, run_seed: int, episodes: NDArray[np.int64], success: NDArray[np.bool_]
) -> Counts:
    """Return attempts and successes of n episodes at each boundary, which is an end of a parameter's range.

    Args:
        draw: The adaptive draw.
        run_seed: Seed of the run.
        episodes: Episode numbers, ``(n,)``.
        success: Whether each episode succeeded, ``(n,)``.
    """
    boundary = draw.find_boundary(run_seed, episodes)
    chosen = boundary[:, None] == np.arange(2 * draw.size)
    pairs = zip(chosen.sum(axis=0).tolist(), (chosen & success[:, None]).sum(axis=0).tolist(), strict=True)
    return tuple((attempted, succeeded) for attempted, succeeded in pairs)


def describe_rounds(draw: AdaptiveDraw, twin: Twin, rounds: Sequence[AdaptiveRound], ranges: Ranges) -> dict[str, Any]:
    """Return the history of adaptive ranges as a JSON-compatible dictionary.

    Args:
        draw: The adaptive draw.
        twin: The twin, which gives the units.
        rounds: The completed rounds.
        ranges: Ranges of the next round.
    """
    return {
        "schema": 1,
        "names": list(draw.names),
        "units": [twin.params[name].unit for name in draw.names],
        "limits": {name: list(pair) for name, pair in zip(draw.names, draw.limits, strict=True)},
        "thresholds": list(draw.thresholds),
        "every": draw.every,
        "rounds": [item.to_json(draw) for item in rounds],
        "ranges": {name: list(pair) for name, pair in zip(draw.names, ranges, strict=True)},
    }


def _move_boundaries(
    draw: AdaptiveDraw, ranges: Ranges, buffers: Sequence[tuple[int, int]]
) -> tuple[Ranges, tuple[str, ...]]:
    """Move every boundary with at least ``draw.buffer`` evaluations by one step, or keep it.

    A boundary moves outward if its success rate is at least ``draw.thresholds[1]``, and inward if the rate is below
    ``draw.thresholds[0]``. It moves by ``draw.step``, but not beyond ``draw.limits`` or past ``draw.anchors``.

    Args:
        draw: The adaptive draw.
        ranges: Current ranges.
        buffers: Attempts and successes at each boundary since its last decision.

    Returns:
        The new ranges, and the decision for each boundary: ``waiting``, ``widen``, ``narrow`` or ``keep``. A boundary
        that cannot move further has ``: at its limit`` after ``widen`` or ``narrow``.
    """
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
