"""The next data: holes with the boxes of drawn parameters that lead there, and how many episodes each is to get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError

Kind = Literal["clips", "parameters", "failures"]


@dataclass(frozen=True, kw_only=True)
class Target:
    """One thing to fill.

    ``kind``: a hole in the space of clips, a hole in the parameter space, or a place where simulation fails though
    reality is there. ``box`` holds a range in SI by parameter; empty where no drawn parameter leads there, and ``why``
    then says so. ``mass`` is the share of reality in it, ``episodes`` how many real episodes, ``failure`` the failure
    rate of the ``judged`` episodes there (NaN where none is), ``weight`` what episodes are shared out by.
    """

    kind: Kind
    name: str
    box: Mapping[str, tuple[float, float]]
    why: str
    mass: float
    episodes: int
    failure: float
    weight: float
    judged: int = 0

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        return {**vars(self), "box": {name: list(pair) for name, pair in self.box.items()}}


def shared_out(episodes: int, weights: Sequence[float]) -> list[int]:
    """How many of so many episodes each weight gets: in proportion, by the largest remainder, and one at least.

    Raises:
        InputError: fewer episodes than weights, or weights that are not positive.
    """
    if not weights or min(weights) <= 0:
        raise InputError(f"Weights {list(weights)} cannot share out episodes: each must be above 0.")
    if episodes < len(weights):
        raise InputError(
            f"{episodes} episodes are fewer than the {len(weights)} holes. Ask for more, or for fewer --holes."
        )
    quota = np.asarray(weights, dtype=np.float64) / sum(weights) * (episodes - len(weights))
    counts = np.floor(quota).astype(np.int64)
    order = np.argsort(-(quota - counts), kind="stable")
    counts[order[: episodes - len(weights) - int(counts.sum())]] += 1
    return (counts + 1).tolist()


def same_names(
    boxes: Sequence[Mapping[str, tuple[float, float]]], ranges: Mapping[str, tuple[float, float]]
) -> list[dict[str, tuple[float, float]]]:
    """Boxes that all name the same parameters: where one says nothing, the whole range that was drawn."""
    names = list(dict.fromkeys(name for box in boxes for name in box))
    return [{name: box.get(name, ranges[name]) for name in names} for box in boxes]


def apart(targets: Sequence[Target], *, most: int) -> list[Target]:
    """The heaviest targets that have a box, without those whose box lies in that of a heavier one."""
    kept: list[Target] = []
    for target in sorted(targets, key=lambda target: -target.weight):
        if not target.box or any(_within(target.box, other.box) for other in kept):
            continue
        kept.append(target)
        if len(kept) == most:
            break
    return kept


def _within(box: Mapping[str, tuple[float, float]], other: Mapping[str, tuple[float, float]]) -> bool:
    """Whether a box lies inside another, parameter by parameter."""
    return set(box) >= set(other) and all(
        other[name][0] <= box[name][0] and box[name][1] <= other[name][1] for name in other
    )


def rounded(low: float, high: float, bounds: tuple[float, float]) -> tuple[float, float]:
    """A range to three digits of its width, outwards, and within bounds."""
    width = high - low
    digits = int(np.clip(2 - np.floor(np.log10(width)), 0, 15)) if width > 0 else 15
    scale = 10.0**digits
    ends: NDArray[np.float64] = np.array([np.floor(low * scale) / scale, np.ceil(high * scale) / scale])
    first, last = np.clip(np.round(ends, digits), *bounds)
    return float(first), float(last)
