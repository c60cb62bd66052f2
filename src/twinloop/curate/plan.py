"""Plan the next data: the parameters that move clips toward a hole, their boxes, and how many episodes.

Simulated clips of the phase that lies nearest to the hole (the first clips of their episodes, the second ones, …) say
what parameters do to clips. A regression from clips to each drawn parameter, judged on left-out episodes, says which of
them can be told from a clip at all; those are read off the hole's real clips, also beyond the ranges that were drawn,
up to physical bounds. A map the other way, from these parameters to clips, then says where clips would go; how far that
is from the hole, beside the map's own error on left-out episodes, says whether the parameters reach it. Where nothing
can be told from a clip, or clips would come no nearer, that is the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.plain import JsonRecord
from twinloop.core.seeds import generator
from twinloop.curate.coverage import ClipRows

Array = NDArray[np.float64]
_FOLDS = 5
# Least share of a parameter's variance that clips must explain in episodes left out for the parameter to count as
# determined (docs/evidence/scenarios.md: how often one without influence does). Most parameters of a gap (our choice).
LEAST_TOLD, _MOST = 0.25, 4
_RIDGE = 0.1  # per episode and whitened component: what keeps regressions of a few hundred episodes from fitting noise
FEWEST = 64  # episodes; of 149 innocent parameters one is told in 9 % of holes with 40, in 1.4 % with 64
_NINETY = 1.645  # standard deviations within which 90 % of normal errors lie
_WIDE = 0.8  # a box that holds so much of a range says nothing of that parameter
# A hole is reached where clips would come as near as the map comes to 19 of 20 left-out episodes: what lies beyond the
# drawn ranges is mapped worse than what lies within, so that its median would ask for too much (our choice).
_WITHIN = 0.95
_NEARER = 0.9  # of the distance that is left now: short of that nothing has moved
Answer = Literal["reaches", "toward", "none"]


@dataclass(frozen=True, kw_only=True)
class HoleResponse:
    """What is known of the way to one hole.

    ``answer``: the parameters reach it, move clips toward it, or none does (``reason`` says why). ``columns`` are the
    parameters; ``low`` and ``high`` the box in places (0 to 1 within the drawn range); ``told`` the share of each
    parameter's variance that clips tell in left-out episodes. Distances in the space of clips, medians over the hole:
    ``now`` from where the map sends the drawn episodes, the nearest of them, ``left`` from where it sends the box;
    ``error`` is the map's own on left-out episodes.
    """

    answer: Answer = "none"
    reason: str = ""
    columns: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    told: tuple[float, ...] = ()
    now: float = float("nan")
    left: float = float("nan")
    error: float = float("nan")


def steer(
    params: Array, sim: ClipRows, hole: Array, *, reach: Array, movable: NDArray[np.bool_], seed: int = 0
) -> HoleResponse:
    """The parameters that take clips to a hole.

    Args:
        params: places ``(nepisode, nparam)`` of the simulated episodes, see `curate.parameters`.
        sim: simulated clips.
        hole: the real clips of the hole ``(m, d)``, in the same space.
        reach: the lowest and highest place that may be asked for ``(nparam, 2)``.
        movable: parameters that may be asked for ``(nparam,)``.
        seed: of the folds.
    """
    rows = _phase(sim, hole)
    clips, u = sim.rows[rows], params[sim.episode[rows]]
    free = np.flatnonzero(movable & np.isfinite(u).all(axis=0) & (np.ptp(u, axis=0) > 0))
    if not len(free):
        return HoleResponse(reason="no parameter was drawn per episode that a box can be asked of")
    if len(rows) < FEWEST:
        return HoleResponse(reason=f"{len(rows)} simulated episodes are too few to tell, {FEWEST} are needed")
    folds = generator(seed, "curate/steering").integers(0, _FOLDS, len(rows))
    residual = u[:, free] - _left_out(clips, u[:, free], folds)
    told = 1.0 - residual.var(axis=0) / u[:, free].var(axis=0)
    order = [k for k in np.argsort(-told, kind="stable")[:_MOST] if told[k] >= LEAST_TOLD]
    if not order:
        best = int(np.argmax(told))
        return HoleResponse(
            reason=f"none of {len(free)} drawn parameters can be told from a clip of that phase (the best, number "
            f"{free[best]}, by {max(told[best], 0.0):.0%} of its variance in left-out episodes)",
        )
    wanted = _linear(clips, u[:, free])(hole)[:, order]
    columns = free[order]
    low, high = _box(wanted, np.sqrt((residual[:, order] ** 2).mean(axis=0)), reach[columns])
    return _judged(clips, u, hole, columns, np.clip(wanted, low, high), (low, high), told[order], folds)


def _judged(
    clips: Array,
    u: Array,
    hole: Array,
    columns: NDArray[np.intp],
    wanted: Array,
    box: tuple[Array, Array],
    told: Array,
    folds: NDArray[np.int64],
) -> HoleResponse:
    """The answer, once the map from parameters to clips has been asked."""
    terms = _terms(u[:, columns])
    errors = np.linalg.norm(clips - _left_out(terms, clips, folds), axis=1)
    error, most = float(np.median(errors)), float(np.quantile(errors, _WITHIN))
    there = _linear(terms, clips)
    left = float(np.median(np.linalg.norm(hole - there(_terms(wanted)), axis=1)))
    now = float(np.median(np.linalg.norm(hole[:, None] - there(terms), axis=2).min(axis=1)))
    inside = np.minimum(box[1], 1.0) - np.maximum(box[0], 0.0)
    kept = [k for k in range(len(columns)) if inside[k] < _WIDE]
    figures: dict[str, Any] = {"now": now, "left": left, "error": error}
    if left > most and left > _NEARER * now:
        return HoleResponse(
            reason=f"the parameters that clips tell of bring them no nearer (distance {left:.3g} after {now:.3g} now, "
            f"the map's own error is {error:.3g}, in one of twenty episodes more than {most:.3g})",
            **figures,
        )
    if not kept:
        return HoleResponse(
            reason="the ranges that were drawn reach it already: more episodes of them will do",
            **figures,
        )
    return HoleResponse(
        answer="reaches" if left <= most else "toward",
        columns=tuple(int(columns[k]) for k in kept),
        low=tuple(float(box[0][k]) for k in kept),
        high=tuple(float(box[1][k]) for k in kept),
        told=tuple(float(told[k]) for k in kept),
        **figures,
    )


def _phase(sim: ClipRows, hole: Array) -> NDArray[np.intp]:
    """The simulated clips of the phase whose clips lie nearest to the hole: one of each episode that lasts so long."""
    order = np.lexsort((sim.first, sim.episode))
    starts = np.flatnonzero(np.diff(sim.episode[order], prepend=-1))
    phase = np.empty(len(sim), dtype=np.intp)
    phase[order] = np.arange(len(sim)) - np.repeat(starts, np.diff(np.append(starts, len(sim))))
    distance = np.linalg.norm(sim.rows - np.median(hole, axis=0), axis=1)
    counts = np.bincount(phase)
    common = np.flatnonzero(counts >= min(FEWEST, counts.max()))
    best = min(common, key=lambda k: float(np.median(distance[phase == k])))
    return np.flatnonzero(phase == best)


def _box(wanted: Array, spread: Array, reach: Array) -> tuple[Array, Array]:
    """Where the hole's clips point, most of them, and on by what holds 90 % of the readings' errors."""
    low, high = np.quantile(wanted, [0.05, 0.95], axis=0)
    return np.clip(low - _NINETY * spread, *reach.T), np.clip(high + _NINETY * spread, *reach.T)


class _linear:  # noqa: N801 - a function with its coefficients
    """Ridge regression of columns on features, with a free level."""

    def __init__(self, features: Array, values: Array) -> None:
        self.centre, self.level = features.mean(axis=0), values.mean(axis=0)
        x = features - self.centre
        scale = x.var(axis=0).mean() or 1.0
        gram = x.T @ x + _RIDGE * scale * np.eye(x.shape[1])
        self.weights = np.linalg.solve(gram, x.T @ (values - self.level))

    def __call__(self, features: Array) -> Array:
        return self.level + (features - self.centre) @ self.weights


def _left_out(features: Array, values: Array, folds: NDArray[np.int64]) -> Array:
    """Predictions for episodes that the regression did not see."""
    found = np.empty_like(values)
    for fold in np.unique(folds):
        out = folds == fold
        found[out] = _linear(features[~out], values[~out])(features[out])
    return found


def _terms(u: Array) -> Array:
    """Places, their squares and products, from the middle of the range ``(n, k + k (k + 1) / 2)``."""
    x = u - 0.5
    k = x.shape[1]
    return np.column_stack([x, *(x[:, i] * x[:, j] for i in range(k) for j in range(i, k))])


Kind = Literal["clips", "parameters", "failures"]


@dataclass(frozen=True, kw_only=True)
class FillTarget(JsonRecord):
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


def apart(targets: Sequence[FillTarget], *, most: int) -> list[FillTarget]:
    """The heaviest targets that have a box, without those whose box lies in that of a heavier one."""
    kept: list[FillTarget] = []
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
