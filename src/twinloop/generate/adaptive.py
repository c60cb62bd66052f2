"""Adaptive ranges over a run: which blocks run under which ranges, and what their outcomes make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.generate.config import GenerateConfig
from twinloop.randomize import AdaptiveDraw, Plan, run_rounds
from twinloop.randomize.adaptive import Counts, Ranges, Round

Rounds = Mapping[int, Ranges]
_PREFIX = "adaptive:"


def rounds_left(
    config: GenerateConfig, plan: Plan, outcomes: Sequence[Mapping[str, int]], first: int
) -> tuple[range, Rounds]:
    """The next blocks that can be simulated without knowing more, from block ``first``, and the ranges they need.

    Args:
        outcomes: counts of every committed block.
    """
    last, draw = -(-config.episodes // config.block_size), plan.adaptive
    if draw is None:
        return range(first, last), {}
    blocks = draw.every // config.block_size
    number = first // blocks
    _, ranges = run_rounds(draw, _by_round(draw, outcomes, blocks)[:number])
    return range(first, min((number + 1) * blocks, last)), {number: ranges}


def boundary_counts(plan: Plan, numbers: Sequence[int], success: NDArray[np.bool_]) -> dict[str, int]:
    """Attempts and successes at every boundary that a batch evaluated, as counts of its block."""
    draw = plan.adaptive
    if draw is None:
        return {}
    boundary = draw.boundary(plan.run_seed, np.asarray(numbers, dtype=np.int64))
    counts: dict[str, int] = {}
    for index in np.unique(boundary[boundary >= 0]):
        chosen = boundary == index
        counts[f"{_PREFIX}{index}:attempted"] = int(chosen.sum())
        counts[f"{_PREFIX}{index}:success"] = int(success[chosen].sum())
    return counts


def history(config: GenerateConfig, plan: Plan, outcomes: Sequence[Mapping[str, int]]) -> dict[str, Any] | None:
    """Every complete round, and the ranges after the last; None without adaptive ranges."""
    draw = plan.adaptive
    if draw is None:
        return None
    rounds, ranges = _rounds(config, draw, outcomes)
    return {
        "schema": 1,
        "names": list(draw.names),
        "units": [plan.twin.params[name].unit for name in draw.names],
        "limits": {name: list(pair) for name, pair in zip(draw.names, draw.limits, strict=True)},
        "thresholds": list(draw.thresholds),
        "every": draw.every,
        "rounds": [item.to_json(draw) for item in rounds],
        "ranges": {name: list(pair) for name, pair in zip(draw.names, ranges, strict=True)},
    }


def known_rounds(record: Mapping[str, Any]) -> Rounds:
    """The ranges of every round of a `history`, and those after the last."""
    rows = [*(item["ranges"] for item in record["rounds"]), record["ranges"]]
    return {number: tuple((row[name][0], row[name][1]) for name in record["names"]) for number, row in enumerate(rows)}


def known_plan(config: GenerateConfig, plan: Plan, outcomes: Sequence[Mapping[str, int]]) -> Plan:
    """The plan with the ranges of every round that was begun."""
    draw = plan.adaptive
    if draw is None:
        return plan
    rounds, ranges = _rounds(config, draw, outcomes)
    return plan.knowing({**{item.number: item.ranges for item in rounds}, len(rounds): ranges})


def _rounds(
    config: GenerateConfig, draw: AdaptiveDraw, outcomes: Sequence[Mapping[str, int]]
) -> tuple[list[Round], Ranges]:
    complete = min(len(outcomes) * config.block_size, config.episodes) // draw.every
    return run_rounds(draw, _by_round(draw, outcomes, draw.every // config.block_size)[:complete])


def _by_round(draw: AdaptiveDraw, outcomes: Sequence[Mapping[str, int]], blocks: int) -> list[Counts]:
    """Counts at each boundary, summed over the blocks of each round; the last round may be incomplete."""
    result: list[Counts] = []
    for start in range(0, len(outcomes), blocks):
        part = outcomes[start : start + blocks]
        sums = [
            tuple(sum(block.get(f"{_PREFIX}{i}:{kind}", 0) for block in part) for kind in ("attempted", "success"))
            for i in range(2 * draw.size)
        ]
        result.append(tuple((attempted, success) for attempted, success in sums))
    return result
