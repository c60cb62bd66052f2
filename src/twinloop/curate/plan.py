"""Plan new simulated data for a coverage hole: which parameters to change, to which ranges, and how many episodes.

A hole is a region of real clips (short sections of episodes, as feature vectors) that no simulated clip covers. The
method has four steps:

1. Select the phase: the simulated clips at the position in the episode (first clip, second clip, …) that is nearest to
the hole. There is one such clip per episode, so that differences between the clips show the effect of the parameters.
2. A regression predicts each drawn parameter from the clips. The parameters that it predicts well for left-out episodes
are selected.
3. The same regression estimates the values of these parameters from the hole's real clips. The values may be beyond the
drawn ranges, up to the physical bounds.
4. A second regression, from these parameters to clips, predicts the resulting clips. The parameters reach the hole if
the clips' distance from it is within this regression's error on left-out episodes.

If no parameter is selected, or the clips would come no nearer, the plan reports this.
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
MIN_EXPLAINED_VARIANCE, _MOST = 0.25, 4
_RIDGE = 0.1  # per episode and whitened component: prevents overfitting with a few hundred episodes
FEWEST = 64  # episodes; one of 149 parameters without influence is selected in 9 % of holes with 40, 1.4 % with 64
_NINETY = 1.645  # standard deviations that contain 90 % of normal errors
_LEAST_COVERED = 0.8  # a new range that covers this share of the drawn range does not restrict the parameter
# A hole is reached if clips would come as near as the prediction for 19 of 20 left-out episodes. Predictions beyond the
# drawn ranges are less accurate than within them, so the median error would be too strict (our choice).
_WITHIN = 0.95
_LARGEST_REMAINING = 0.9  # of the present distance; a smaller reduction of the distance does not count
Answer = Literal["reaches", "toward", "none"]


@dataclass(frozen=True, kw_only=True)
class HoleResponse:
    """Predicted effect of changed parameters on the distance between simulated clips and one coverage hole.

    A hole is a group of real clips (short sections of episodes) that no simulated clip resembles. Distances are
    Euclidean distances of clips' feature vectors, as medians over the real clips of the hole.

    Attributes:
        answer: ``reaches`` if the parameters reach the hole, ``toward`` if they only reduce the distance, ``none``
            otherwise.
        reason: explanation of the answer ``none``.
        columns: indices of the parameters to change.
        low: lower end of each parameter's new range, normalized (0 to 1 is the drawn range).
        high: upper end of each parameter's new range, normalized.
        explained_variance: share of each parameter's variance that a regression on the clips' features explains in
            left-out episodes.
        distance_now: distance from the nearest clip that the regression predicts for the parameters drawn so far.
        distance_after: distance from the clips that the regression predicts for the new ranges.
        error: median prediction error of a clip on left-out episodes.
    """

    answer: Answer = "none"
    reason: str = ""
    columns: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    explained_variance: tuple[float, ...] = ()
    distance_now: float = float("nan")
    distance_after: float = float("nan")
    error: float = float("nan")


def find_hole_response(
    params: Array, sim: ClipRows, hole: Array, *, reach: Array, movable: NDArray[np.bool_], seed: int = 0
) -> HoleResponse:
    """Find the parameters whose change moves simulated clips toward a coverage hole, with their new ranges.

    A hole is a group of real clips (short sections of episodes) that no simulated clip resembles. The result also
    predicts how near the simulated clips come to it.

    Args:
        params: normalized parameter values ``(nepisode, nparam)`` of the simulated episodes, see `curate.parameters`.
        sim: simulated clips.
        hole: feature vectors of the hole's real clips ``(m, d)``, in the same space as ``sim``.
        reach: lowest and highest allowed normalized value of each parameter ``(nparam, 2)``.
        movable: whether each parameter may be changed ``(nparam,)``.
        seed: seed of the cross-validation folds.
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
    explained = 1.0 - residual.var(axis=0) / u[:, free].var(axis=0)
    order = [k for k in np.argsort(-explained, kind="stable")[:_MOST] if explained[k] >= MIN_EXPLAINED_VARIANCE]
    if not order:
        best = int(np.argmax(explained))
        return HoleResponse(
            reason=f"none of {len(free)} drawn parameters can be predicted from a clip of that phase (the best "
            f"is parameter number {free[best]}, with {max(explained[best], 0.0):.0%} of its variance in left-out "
            "episodes)",
        )
    estimates = _RidgeRegression(clips, u[:, free])(hole)[:, order]
    columns = free[order]
    low, high = _compute_box(estimates, np.sqrt((residual[:, order] ** 2).mean(axis=0)), reach[columns])
    return _evaluate_response(
        clips, u, hole, columns, np.clip(estimates, low, high), (low, high), explained[order], folds
    )


def _evaluate_response(
    clips: Array,
    u: Array,
    hole: Array,
    columns: NDArray[np.intp],
    estimates: Array,
    box: tuple[Array, Array],
    explained: Array,
    folds: NDArray[np.int64],
) -> HoleResponse:
    """Predict clips for new parameter values, and describe how near they come to the hole.

    A hole is a group of real clips that no simulated clip resembles.

    Args:
        clips: feature vectors of the simulated clips, one per episode ``(n, d)``.
        u: normalized parameter values of these episodes ``(n, nparam)``.
        hole: feature vectors of the hole's real clips ``(m, d)``.
        columns: indices of the k selected parameters.
        estimates: values of the selected parameters for each clip of the hole ``(m, k)``.
        box: lower and upper ends of the new ranges, ``(k,)`` each.
        explained: explained variance of each selected parameter ``(k,)``.
        folds: cross-validation fold of each clip ``(n,)``.
    """
    terms = _compute_quadratic_terms(u[:, columns])
    errors = np.linalg.norm(clips - _predict_left_out(terms, clips, folds), axis=1)
    error, most = float(np.median(errors)), float(np.quantile(errors, _WITHIN))
    predict_clips = _RidgeRegression(terms, clips)
    left = float(np.median(np.linalg.norm(hole - predict_clips(_compute_quadratic_terms(estimates)), axis=1)))
    now = float(np.median(np.linalg.norm(hole[:, None] - predict_clips(terms), axis=2).min(axis=1)))
    inside = np.minimum(box[1], 1.0) - np.maximum(box[0], 0.0)
    restricting = [k for k in range(len(columns)) if inside[k] < _LEAST_COVERED]
    distances: dict[str, Any] = {"distance_now": now, "distance_after": left, "error": error}
    if left > most and left > _LARGEST_REMAINING * now:
        return HoleResponse(
            reason=f"the parameters that clips determine would bring clips no nearer (distance {left:.3g} instead of "
            f"{now:.3g} now; the prediction error is {error:.3g}, and above {most:.3g} in one of twenty episodes)",
            **distances,
        )
    if not restricting:
        return HoleResponse(
            reason="the drawn ranges already reach the hole: generate more episodes from them",
            **distances,
        )
    return HoleResponse(
        answer="reaches" if left <= most else "toward",
        columns=tuple(int(columns[k]) for k in restricting),
        low=tuple(float(box[0][k]) for k in restricting),
        high=tuple(float(box[1][k]) for k in restricting),
        explained_variance=tuple(float(explained[k]) for k in restricting),
        **distances,
    )


def _select_phase(sim: ClipRows, hole: Array) -> NDArray[np.intp]:
    """Return the indices of the simulated clips of the phase nearest to the hole, one per sufficiently long episode.

    A phase is the position of a clip in its episode: first, second, and so on. An episode is sufficiently long if it
    has a clip of this phase. Phases with fewer than 64 clips are ignored; if all have fewer, only the most frequent
    phases are compared.

    Args:
        sim: simulated clips.
        hole: feature vectors of the real clips that no simulated clip resembles ``(m, d)``.
    """
    order = np.lexsort((sim.first, sim.episode))
    starts = np.flatnonzero(np.diff(sim.episode[order], prepend=-1))
    phase = np.empty(len(sim), dtype=np.intp)
    phase[order] = np.arange(len(sim)) - np.repeat(starts, np.diff(np.append(starts, len(sim))))
    distance = np.linalg.norm(sim.rows - np.median(hole, axis=0), axis=1)
    counts = np.bincount(phase)
    common = np.flatnonzero(counts >= min(FEWEST, counts.max()))
    best = min(common, key=lambda k: float(np.median(distance[phase == k])))
    return np.flatnonzero(phase == best)


def _compute_box(estimates: Array, spread: Array, reach: Array) -> tuple[Array, Array]:
    """Return the new ranges: the 5 % to 95 % quantiles of the estimates, widened by 1.645 ``spread`` on both sides.

    An interval of ±1.645 standard deviations contains 90 % of normal errors.

    Args:
        estimates: estimated parameter values ``(m, k)`` for m clips and k parameters.
        spread: root mean square error of the estimates ``(k,)``.
        reach: lowest and highest allowed value ``(k, 2)``.
    """
    low, high = np.quantile(estimates, [0.05, 0.95], axis=0)
    return np.clip(low - _NINETY * spread, *reach.T), np.clip(high + _NINETY * spread, *reach.T)


class _RidgeRegression:
    """Ridge regression of columns on features, with an unpenalized intercept; a call predicts values."""

    def __init__(self, features: Array, values: Array) -> None:
        self.centre, self.level = features.mean(axis=0), values.mean(axis=0)
        x = features - self.centre
        scale = x.var(axis=0).mean() or 1.0
        gram = x.T @ x + _RIDGE * scale * np.eye(x.shape[1])
        self.weights = np.linalg.solve(gram, x.T @ (values - self.level))

    def __call__(self, features: Array) -> Array:
        return self.level + (features - self.centre) @ self.weights


def _predict_left_out(features: Array, values: Array, folds: NDArray[np.int64]) -> Array:
    """Predict the values of each fold with a regression that was fitted to the other folds (cross-validation)."""
    predicted = np.empty_like(values)
    for fold in np.unique(folds):
        out = folds == fold
        predicted[out] = _RidgeRegression(features[~out], values[~out])(features[out])
    return predicted


def _compute_quadratic_terms(u: Array) -> Array:
    """Return the terms of a quadratic regression: centred values, squares and products, ``(n, k + k (k + 1) / 2)``.

    Args:
        u: normalized values of k parameters in n episodes ``(n, k)``.
    """
    x = u - 0.5
    k = x.shape[1]
    return np.column_stack([x, *(x[:, i] * x[:, j] for i in range(k) for j in range(i, k))])


Kind = Literal["clips", "parameters", "failures"]


@dataclass(frozen=True, kw_only=True)
class FillTarget(JsonRecord):
    """One target for new simulated episodes.

    Attributes:
        kind: ``clips`` for a region of real clips without simulated clips, ``parameters`` for parameter ranges of real
            episodes with too few simulated episodes, ``failures`` for a region with real data in which simulated
            episodes fail.
        name: name of the target for the user.
        box: range of each parameter to draw from, in SI units; empty if no drawn parameter leads to the target.
        why: reason for an empty box.
        mass: share of the real data in the target.
        episodes: number of real episodes in the target.
        failure: failure rate of the judged episodes; NaN if there are none.
        weight: relative number of episodes to allocate to this target.
        judged: number of episodes with a known outcome: simulated episodes for ``failures``, else real episodes.
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
    """Allocate episodes in proportion to weights by the largest-remainder method, at least one per weight.

    Returns:
        The number of episodes for each weight, in the same order.

    Raises:
        InputError: If there are fewer episodes than weights, or a weight is not positive.
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
    """Add the missing parameters to each box, with their whole drawn range, so that all boxes have the same parameters.

    Args:
        boxes: ranges by parameter name, in SI units.
        ranges: drawn range of every parameter, in SI units.
    """
    names = list(dict.fromkeys(name for box in boxes for name in box))
    return [{name: box.get(name, ranges[name]) for name in names} for box in boxes]


def select_separate_targets(targets: Sequence[FillTarget], *, most: int) -> list[FillTarget]:
    """Return up to ``most`` targets (gaps in the simulated data to fill), the one with the largest weight first.

    A target is excluded if it has no box (parameter ranges to draw from), or if its box is inside that of a target with
    a larger weight.
    """
    selected: list[FillTarget] = []
    for target in sorted(targets, key=lambda target: -target.weight):
        if not target.box or any(_is_inside(target.box, other.box) for other in selected):
            continue
        selected.append(target)
        if len(selected) == most:
            break
    return selected


def _is_inside(box: Mapping[str, tuple[float, float]], other: Mapping[str, tuple[float, float]]) -> bool:
    """Return whether a box is inside another box in every parameter of the other box."""
    return set(box) >= set(other) and all(
        other[name][0] <= box[name][0] and box[name][1] <= other[name][1] for name in other
    )


def round_range(low: float, high: float, bounds: tuple[float, float]) -> tuple[float, float]:
    """Round a range outwards to three significant digits of its width, without exceeding the bounds."""
    width = high - low
    digits = int(np.clip(2 - np.floor(np.log10(width)), 0, 15)) if width > 0 else 15
    scale = 10.0**digits
    ends: NDArray[np.float64] = np.array([np.floor(low * scale) / scale, np.ceil(high * scale) / scale])
    first, last = np.clip(np.round(ends, digits), *bounds)
    return float(first), float(last)
