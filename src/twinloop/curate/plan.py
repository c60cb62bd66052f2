"""Plan the next data: parameters that move simulated clips toward a coverage hole, their ranges, and episode counts.

The simulated clips of the phase nearest to the hole (the first clips of their episodes, or the second ones, …) show how
parameters change clips. A regression from clips to each drawn parameter, tested on left-out episodes, selects the
parameters that a clip determines. Their values are estimated from the hole's real clips, also beyond the drawn ranges,
up to physical bounds. A second regression, from these parameters to clips, predicts the resulting clips. Their distance
from the hole, compared with this regression's error on left-out episodes, decides whether the parameters reach the
hole. If no parameter is determined by a clip, or the clips would come no nearer, the plan reports this.
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
# Share of a parameter's variance that clips must explain in held-out episodes; docs/evidence/scenarios.md has the
# error rate for parameters without influence. Then the largest number of parameters per hole (our choice).
LEAST_TOLD, _MOST = 0.25, 4
_RIDGE = 0.1  # per episode and whitened component: prevents overfitting with a few hundred episodes
FEWEST = 64  # episodes; one of 149 parameters without influence is selected in 9 % of holes with 40, 1.4 % with 64
_NINETY = 1.645  # standard deviations that contain 90 % of normal errors
_WIDE = 0.8  # a box that covers this share of a range does not constrain the parameter
# A hole is reached if clips would come as near as the prediction for 19 of 20 left-out episodes. Predictions beyond the
# drawn ranges are less accurate than within them, so the median error would be too strict (our choice).
_WITHIN = 0.95
_NEARER = 0.9  # share of the present distance; a smaller reduction does not count
Answer = Literal["reaches", "toward", "none"]


@dataclass(frozen=True, kw_only=True)
class HoleResponse:
    """Effect of the parameters on the distance to one hole.

    ``answer``: the parameters reach the hole, move clips toward it, or none does (``reason`` explains why). ``columns``
    are the parameters; ``low`` and ``high`` their box in normalized values (0 to 1 within the drawn range); ``told``
    the share of each parameter's variance that clips explain in left-out episodes. Distances are in the space of clips,
    as medians over the hole: ``now`` from the predicted clips of the drawn episodes, the nearest of them, ``left`` from
    those of the box; ``error`` is the prediction error on left-out episodes.
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


def find_hole_response(
    params: Array, sim: ClipRows, hole: Array, *, reach: Array, movable: NDArray[np.bool_], seed: int = 0
) -> HoleResponse:
    """Find the parameters that move clips to a hole.

    Args:
        params: normalized parameter values ``(nepisode, nparam)`` of the simulated episodes, see `curate.parameters`.
        sim: simulated clips.
        hole: the real clips of the hole ``(m, d)``, in the same space.
        reach: the lowest and highest allowed normalized value ``(nparam, 2)``.
        movable: parameters that may be changed ``(nparam,)``.
        seed: seed of the folds.
    """
    rows = _select_phase(sim, hole)
    clips, u = sim.rows[rows], params[sim.episode[rows]]
    free = np.flatnonzero(movable & np.isfinite(u).all(axis=0) & (np.ptp(u, axis=0) > 0))
    if not len(free):
        return HoleResponse(reason="no parameter that may be changed was drawn per episode")
    if len(rows) < FEWEST:
        return HoleResponse(reason=f"{len(rows)} simulated episodes are too few, {FEWEST} are needed")
    folds = generator(seed, "curate/steering").integers(0, _FOLDS, len(rows))
    residual = u[:, free] - _predict_left_out(clips, u[:, free], folds)
    told = 1.0 - residual.var(axis=0) / u[:, free].var(axis=0)
    order = [k for k in np.argsort(-told, kind="stable")[:_MOST] if told[k] >= LEAST_TOLD]
    if not order:
        best = int(np.argmax(told))
        return HoleResponse(
            reason=f"none of {len(free)} drawn parameters can be predicted from a clip of that phase (the best, number "
            f"{free[best]}, with {max(told[best], 0.0):.0%} of its variance in left-out episodes)",
        )
    wanted = _linear(clips, u[:, free])(hole)[:, order]
    columns = free[order]
    low, high = _compute_box(wanted, np.sqrt((residual[:, order] ** 2).mean(axis=0)), reach[columns])
    return _evaluate_response(clips, u, hole, columns, np.clip(wanted, low, high), (low, high), told[order], folds)


def _evaluate_response(
    clips: Array,
    u: Array,
    hole: Array,
    columns: NDArray[np.intp],
    wanted: Array,
    box: tuple[Array, Array],
    told: Array,
    folds: NDArray[np.int64],
) -> HoleResponse:
    """Return the answer for the chosen parameters, from the regression of clips on parameters."""
    terms = _compute_quadratic_terms(u[:, columns])
    errors = np.linalg.norm(clips - _predict_left_out(terms, clips, folds), axis=1)
    error, most = float(np.median(errors)), float(np.quantile(errors, _WITHIN))
    there = _linear(terms, clips)
    left = float(np.median(np.linalg.norm(hole - there(_compute_quadratic_terms(wanted)), axis=1)))
    now = float(np.median(np.linalg.norm(hole[:, None] - there(terms), axis=2).min(axis=1)))
    inside = np.minimum(box[1], 1.0) - np.maximum(box[0], 0.0)
    kept = [k for k in range(len(columns)) if inside[k] < _WIDE]
    figures: dict[str, Any] = {"now": now, "left": left, "error": error}
    if left > most and left > _NEARER * now:
        return HoleResponse(
            reason=f"the predictable parameters bring clips no nearer (distance {left:.3g} after {now:.3g} now, "
            f"prediction error {error:.3g}, in one of twenty episodes above {most:.3g})",
            **figures,
        )
    if not kept:
        return HoleResponse(
            reason="the drawn ranges reach it already: generate more episodes from them",
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


def _select_phase(sim: ClipRows, hole: Array) -> NDArray[np.intp]:
    """Return the simulated clips of the phase nearest to the hole: one per episode that is long enough."""
    order = np.lexsort((sim.first, sim.episode))
    starts = np.flatnonzero(np.diff(sim.episode[order], prepend=-1))
    phase = np.empty(len(sim), dtype=np.intp)
    phase[order] = np.arange(len(sim)) - np.repeat(starts, np.diff(np.append(starts, len(sim))))
    distance = np.linalg.norm(sim.rows - np.median(hole, axis=0), axis=1)
    counts = np.bincount(phase)
    common = np.flatnonzero(counts >= min(FEWEST, counts.max()))
    best = min(common, key=lambda k: float(np.median(distance[phase == k])))
    return np.flatnonzero(phase == best)


def _compute_box(wanted: Array, spread: Array, reach: Array) -> tuple[Array, Array]:
    """Return the box around the central 90 % of the estimates, extended by the range of 90 % of their errors."""
    low, high = np.quantile(wanted, [0.05, 0.95], axis=0)
    return np.clip(low - _NINETY * spread, *reach.T), np.clip(high + _NINETY * spread, *reach.T)


class _linear:  # noqa: N801 - a function with its coefficients
    """Ridge regression of columns on features, with an unpenalized intercept."""

    def __init__(self, features: Array, values: Array) -> None:
        self.centre, self.level = features.mean(axis=0), values.mean(axis=0)
        x = features - self.centre
        scale = x.var(axis=0).mean() or 1.0
        gram = x.T @ x + _RIDGE * scale * np.eye(x.shape[1])
        self.weights = np.linalg.solve(gram, x.T @ (values - self.level))

    def __call__(self, features: Array) -> Array:
        return self.level + (features - self.centre) @ self.weights


def _predict_left_out(features: Array, values: Array, folds: NDArray[np.int64]) -> Array:
    """Return predictions for episodes that the regression was not fitted on."""
    found = np.empty_like(values)
    for fold in np.unique(folds):
        out = folds == fold
        found[out] = _linear(features[~out], values[~out])(features[out])
    return found


def _compute_quadratic_terms(u: Array) -> Array:
    """Return the terms of a quadratic regression, ``(n, k + k (k + 1) / 2)``: centred values, squares, products."""
    x = u - 0.5
    k = x.shape[1]
    return np.column_stack([x, *(x[:, i] * x[:, j] for i in range(k) for j in range(i, k))])


Kind = Literal["clips", "parameters", "failures"]


@dataclass(frozen=True, kw_only=True)
class FillTarget(JsonRecord):
    """One target for new episodes.

    ``kind``: a hole in the space of clips, a hole in the parameter space, or a region with real data where simulation
    fails. ``box`` holds a range in SI units per parameter; it is empty if no drawn parameter leads there, and ``why``
    gives the reason. ``mass`` is the share of real data in the target, ``episodes`` its number of real episodes,
    ``failure`` the failure rate of its ``judged`` episodes (NaN if there are none), ``weight`` the weight for the
    allocation of episodes.
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


def allocate_episodes(episodes: int, weights: Sequence[float]) -> list[int]:
    """Allocate episodes in proportion to weights, by the largest remainder, with at least one each.

    Raises:
        InputError: fewer episodes than weights, or weights that are not positive.
    """
    if not weights or min(weights) <= 0:
        raise InputError(f"Weights {list(weights)} cannot allocate episodes: each must be above 0.")
    if episodes < len(weights):
        raise InputError(
            f"{episodes} episodes are fewer than the {len(weights)} holes. Ask for more, or for fewer --holes."
        )
    quota = np.asarray(weights, dtype=np.float64) / sum(weights) * (episodes - len(weights))
    counts = np.floor(quota).astype(np.int64)
    order = np.argsort(-(quota - counts), kind="stable")
    counts[order[: episodes - len(weights) - int(counts.sum())]] += 1
    return (counts + 1).tolist()


def complete_boxes(
    boxes: Sequence[Mapping[str, tuple[float, float]]], ranges: Mapping[str, tuple[float, float]]
) -> list[dict[str, tuple[float, float]]]:
    """Return boxes with the same parameters; a missing parameter gets its whole drawn range."""
    names = list(dict.fromkeys(name for box in boxes for name in box))
    return [{name: box.get(name, ranges[name]) for name in names} for box in boxes]


def select_separate_targets(targets: Sequence[FillTarget], *, most: int) -> list[FillTarget]:
    """Return up to ``most`` targets with a box, the heaviest first, without boxes inside that of a heavier target."""
    kept: list[FillTarget] = []
    for target in sorted(targets, key=lambda target: -target.weight):
        if not target.box or any(_is_inside(target.box, other.box) for other in kept):
            continue
        kept.append(target)
        if len(kept) == most:
            break
    return kept


def _is_inside(box: Mapping[str, tuple[float, float]], other: Mapping[str, tuple[float, float]]) -> bool:
    """Return whether a box is inside another one in every parameter."""
    return set(box) >= set(other) and all(
        other[name][0] <= box[name][0] and box[name][1] <= other[name][1] for name in other
    )


def round_range(low: float, high: float, bounds: tuple[float, float]) -> tuple[float, float]:
    """Round a range outwards to three digits of its width, within bounds."""
    width = high - low
    digits = int(np.clip(2 - np.floor(np.log10(width)), 0, 15)) if width > 0 else 15
    scale = 10.0**digits
    ends: NDArray[np.float64] = np.array([np.floor(low * scale) / scale, np.ceil(high * scale) / scale])
    first, last = np.clip(np.round(ends, digits), *bounds)
    return float(first), float(last)
