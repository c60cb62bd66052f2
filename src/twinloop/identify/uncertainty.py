"""Compute the uncertainty of a fit: covariance, intervals, and the parameters that the data do not determine.

The estimate minimizes a robust loss plus a weak prior. Its covariance is M (Σ_c s_c s_cᵀ + P Σ P) M. M is the inverse
curvature of the loss. s_c is the score (gradient) of cluster c; clusters of frames are independent of each other
(episodes, or blocks of time). P and Σ are curvature and covariance of the prior. The first term is the variation over
other data sets. The second term is the possible bias from the prior; it vanishes where the data are informative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from twinloop.identify.fisher import Determination, assess_determination
from twinloop.identify.problem import FitProblem, Linearization, ParameterBlock
from twinloop.identify.uncertainty_scores import FrameClusters, FrameScores, FrameTimes, choose_clusters, frame_scores
from twinloop.stats import bias_reduced_sandwich, score_bootstrap, stretched_percentile

Array = NDArray[np.float64]

_NEAR_BOUND = 1e-3  # prior standard deviations
DRAWS = 2000  # of the one-step bootstrap, which needs no replay; 50 draws are outside each limit of a 95 % interval


@dataclass(frozen=True, kw_only=True)
class BlockLimits:
    """Covariance and confidence limits of the p parameters of one block (jointly solved parameters).

    Values are in solver coordinates (ln or SI). Arrays have shape ``(p,)`` if not stated.

    Attributes:
        covariance: Covariance of the estimate, ``(p, p)``.
        low: Lower limit of the interval, as an offset from the estimate.
        high: Upper limit of the interval, as an offset from the estimate.
        sides: "at most" or "at least" for a parameter on its bound; "past" if the whole interval is beyond the bound,
            so that the data contradict the bound; else "".
        curvature: Second derivative of the loss along each parameter with the other parameters optimized.
        df: Degrees of freedom of the t quantiles.
        distance_to_optimum: Distance of the estimate from the optimum in standard errors.
        rank: Rank of the matrix of loss gradients, with one row per cluster (episode or block of time).
    """

    covariance: Array
    low: Array
    high: Array
    sides: tuple[str, ...]
    curvature: Array
    df: Array
    distance_to_optimum: Array
    rank: int


@dataclass(frozen=True, kw_only=True)
class _ConditionalErrors:
    """Uncertainty of k parameters of a block (jointly solved parameters), with the other parameters of the block fixed.

    Attributes:
        columns: Indices of the k parameters in the block.
        covariance: Covariance from data and prior, ``(k, k)``.
        prior_covariance: The part of the covariance that comes from the prior, ``(k, k)``.
        df: Degrees of freedom, ``(k,)``.
        considered: Change of the estimate per standard deviation of each of c quantities that the fit keeps fixed,
            ``(k, c)``.
        newton_steps: Remaining Newton steps to the optimum without effects that the fit lacks, and to those with each
            of h - 1 effects, ``(h, k)``.
        inverse: Inverse second derivative of the loss, ``(k, k)``.
        rank: Rank of the matrix of loss gradients, with one row per cluster (episode or block of time).
    """

    columns: NDArray[np.intp]
    covariance: Array
    prior_covariance: Array
    considered: Array
    df: Array
    newton_steps: Array
    inverse: Array
    rank: int

    @property
    def error(self) -> Array:
        """Standard errors of the k parameters if the other parameters are fixed, ``(k,)``."""
        return np.sqrt(np.diag(self.covariance))


def block_limits(
    problem: FitProblem,
    here: Linearization,
    block: ParameterBlock,
    score: FrameScores,
    clusters: FrameClusters,
    *,
    level: float,
    refits: Array | None = None,
    considered: Array | None = None,
    effects: Sequence[NDArray[np.bool_]] = (),
) -> BlockLimits:
    """Return covariance and interval limits of one block's parameters.

    Parameters on a bound are fixed when the limits of the other parameters are computed.

    Args:
        problem: Least-squares problem of the fit.
        here: Linearization at its solution.
        block: The block of parameters.
        score: Derivatives of the block's loss, frame by frame.
        clusters: The independent clusters of frames.
        level: Confidence level of the intervals, also of one-sided ones.
        refits: Estimates from resampled data, ``(draws, p)``; None uses the linearized fit.
        considered: Gradients of the loss per standard deviation of c quantities that the fit keeps fixed, ``(p, c)``.
        effects: Masks of parameters that are amounts of one effect, ``(p,)`` each, see `compute_uncertainty`.
    """
    pulls = np.zeros((len(block.columns), 0)) if considered is None else considered
    point, sd, p = here.point[block.columns], problem.sd[block.columns], len(block.columns)
    low, high = problem.low[block.columns] - point, problem.high[block.columns] - point
    lowest, highest = low > -_NEAR_BOUND * sd, high < _NEAR_BOUND * sd
    every = _estimate_errors(score, sd, clusters, np.arange(p), pulls, effects)
    inner = np.flatnonzero(~(lowest | highest))
    loose = every if len(inner) in (0, p) else _estimate_errors(score, sd, clusters, inner, pulls, effects)
    covariance = np.diag(np.diag(every.covariance))
    limits = {"low": np.zeros(p), "high": np.zeros(p), "curvature": 1 / np.diag(every.inverse), "df": every.df.copy(),
             "distance_to_optimum": np.zeros(p)}  # fmt: skip
    if len(inner):
        covariance[np.ix_(inner, inner)] = loose.covariance
        drawn = None if refits is None else refits[:, inner] - point[inner]
        low_reach, high_reach = _two_sided_limits(score, clusters, loose, level, drawn)
        # The interval reaches from the estimate to the optima without and with each effect, and beyond.
        limits["low"][inner] = low_reach + np.minimum(loose.newton_steps.min(axis=0), 0.0)
        limits["high"][inner] = high_reach + np.maximum(loose.newton_steps.max(axis=0), 0.0)
        limits["curvature"][inner], limits["df"][inner] = 1 / np.diag(loose.inverse), loose.df
        limits["distance_to_optimum"][inner] = np.abs(loose.newton_steps[0]) / loose.error
    reach = stdtrit(every.df, level) * every.error
    limits["high"][lowest] = (every.newton_steps.max(axis=0) + reach)[lowest]
    limits["low"][highest] = (every.newton_steps.min(axis=0) - reach)[highest]
    sides = [_bound_side(*flags) for flags in zip(lowest, highest, limits["low"], limits["high"], strict=True)]
    return BlockLimits(covariance=covariance, sides=tuple(sides), rank=loose.rank, **limits)


def _bound_side(lowest: bool, highest: bool, low: float, high: float) -> str:
    if lowest:
        return "at most" if high > 0 else "past"
    if highest:
        return "at least" if low < 0 else "past"
    return ""


def _estimate_errors(
    score: FrameScores,
    sd: Array,
    clusters: FrameClusters,
    columns: NDArray[np.intp],
    pulls: Array,
    effects: Sequence[NDArray[np.bool_]],
) -> _ConditionalErrors:
    """Compute the covariance of some parameters by the sandwich estimator CR2, and the Newton step to the optimum.

    CR2 (Bell & McCaffrey) corrects the bias of a sandwich with few clusters, see `bias_reduced_sandwich`. The Newton
    step is the change of the parameters that remains from the estimate to the minimum of the loss.

    Args:
        score: Derivatives of the block's loss, frame by frame.
        sd: Prior standard deviations of the block's parameters.
        clusters: The independent clusters of frames.
        columns: Indices of the parameters; the others are fixed.
        pulls: Gradients of the loss per standard deviation of c considered quantities, ``(p, c)``.
        effects: Masks of parameters that are amounts of one effect, ``(p,)`` each.
    """
    curvatures, gradients = score.sum_by_cluster(clusters.labels)
    curvatures, gradients = curvatures[:, columns][:, :, columns], gradients[:, columns]
    penalty, drawn = score.penalty[np.ix_(columns, columns)], score.penalty_gradient[columns]
    hessian = curvatures.sum(axis=0) + penalty
    inverse = np.linalg.inv(hessian)
    sandwich = bias_reduced_sandwich(curvatures, gradients, penalty)
    shrunk = inverse @ (penalty**2 * sd[columns] ** 2) @ inverse
    considered = -inverse @ pulls[columns]
    own = np.diag(sandwich.covariance)
    total = own + np.diag(shrunk)
    # The prior counts as known exactly: its part of the variance adds degrees of freedom.
    prior_factor = np.divide(total, own, out=np.full_like(total, 1e6), where=own > 0) ** 2
    return _ConditionalErrors(
        columns=columns,
        covariance=sandwich.covariance + shrunk + considered @ considered.T,
        prior_covariance=shrunk,
        considered=considered,
        df=sandwich.df * prior_factor,
        newton_steps=_newton_steps(hessian, gradients.sum(axis=0) + drawn, [mask[columns] for mask in effects]),
        inverse=inverse,
        rank=sandwich.rank,
    )


def _newton_steps(hessian: Array, gradient: Array, effects: Sequence[NDArray[np.bool_]]) -> Array:
    """Return the steps to the minimum of a quadratic loss without any effect and with each of them, ``(h, k)``.

    Amounts of an effect are 0 or positive.
    """
    count = len(gradient)
    amounts = np.any(effects, axis=0) if effects else np.zeros(count, dtype=np.bool_)
    steps = np.zeros((1 + len(effects), count))
    for step, chosen in zip(steps, [np.zeros(count, dtype=np.bool_), *effects], strict=True):
        moved = ~amounts | chosen
        while moved.any():
            step[:] = 0.0
            step[moved] = -np.linalg.solve(hessian[np.ix_(moved, moved)], gradient[moved])
            if not np.any(amounts & (step < 0)):
                break
            moved &= ~(amounts & (step < 0))
    return steps


def _two_sided_limits(
    score: FrameScores, clusters: FrameClusters, spread: _ConditionalErrors, level: float, refits: Array | None
) -> tuple[Array, Array]:
    """Return lower and upper limits of k intervals as offsets from the estimate, ``(k,)`` each.

    They come from t quantiles. If there are fewer than twice as many clusters as parameters, or ``refits`` are given,
    they come from a bootstrap.

    Args:
        score: Derivatives of a block's loss with respect to its parameters (those solved jointly), frame by frame.
        clusters: The independent clusters of frames.
        spread: Covariance, standard errors and degrees of freedom of k parameters of the block.
        level: Confidence level.
        refits: Offsets of refitted estimates, ``(draws, k)``; None uses the linearized fit.
    """
    added = ndtri((1 + level) / 2) ** 2 * np.sum(spread.considered**2, axis=1)
    if refits is None and not clusters.has_few_clusters:
        own = np.diag(spread.covariance) - np.sum(spread.considered**2, axis=1)
        reach = np.sqrt(stdtrit(spread.df, (1 + level) / 2) ** 2 * own + added)
        return -reach, reach
    draws = refits
    if draws is None:
        curvatures, gradients = score.sum_by_cluster(clusters.labels)
        columns = spread.columns
        draws = score_bootstrap(
            curvatures[:, columns][:, :, columns],
            gradients[:, columns],
            score.penalty[np.ix_(columns, columns)],
            score.penalty_gradient[columns],
            draws=DRAWS,
        )
    low, high = stretched_percentile(draws, clusters.count, spread.df, level=level)
    shrunk = stdtrit(spread.df, (1 + level) / 2) ** 2 * np.diag(spread.prior_covariance) + added
    return -np.sqrt(np.maximum(-low, 0.0) ** 2 + shrunk), np.sqrt(np.maximum(high, 0.0) ** 2 + shrunk)


Method = Literal["sandwich", "score bootstrap", "refit bootstrap", "none"]

# A parameter is not determined if its standard error exceeds this part of its prior deviation: the data then contain
# less information about it than the prior.
LEAST_GAIN = 0.7
_OPEN = "the data do not constrain it"
_ALONE = "one episode gives no interval"
_PAST = "ends on its bound"
_VAGUE = f"its standard error exceeds {LEAST_GAIN:g} of its prior deviation"
_WIDE = "its interval would be wider than its prior's"


@dataclass(frozen=True, kw_only=True)
class Uncertainty:
    """Uncertainty of the p parameters of a fit.

    Values are in solver coordinates (ln or SI). Arrays have shape ``(p,)`` if not stated. A block is a set of jointly
    solved parameters.

    Attributes:
        covariance: Covariance, ``(p, p)``; 0 between parameters of different blocks, for which it is not estimated.
            Undetermined parameters have their prior variance.
        low: Lower limits of the intervals; NaN for undetermined parameters.
        high: Upper limits of the intervals; NaN for undetermined parameters.
        level: Confidence level of the intervals.
        sides: "at most" or "at least" for a parameter on its bound, whose interval is one-sided; else "".
        reasons: Why a parameter is undetermined; "" if it is determined.
        directions: Combinations of parameters that the data do not determine, as text.
        condition: Condition number of JᵀJ of each block, with the columns of the Jacobian J scaled to unit length.
        curvature: Second derivative of the loss along each parameter with the other parameters optimized.
        df: Degrees of freedom of the t quantiles.
        distance_to_optimum: Distance of each estimate from the optimum in standard errors.
        rank: Rank of the matrix of loss gradients, with one row per cluster; summed over blocks.
        clusters: The independent clusters of frames (episodes or blocks of time); None for a single episode that is too
            short to be cut into blocks of time.
        method: Method of the intervals.
        draws: Number of bootstrap draws.
    """

    covariance: Array
    low: Array
    high: Array
    level: float
    sides: tuple[str, ...]
    reasons: tuple[str, ...]
    directions: tuple[str, ...]
    condition: tuple[float, ...]
    curvature: Array
    df: Array
    distance_to_optimum: Array
    rank: int
    clusters: FrameClusters | None
    method: Method
    draws: int

    def including(self, point: Array) -> Uncertainty:
        """Return the uncertainty with intervals that reach to a point, ``(p,)``."""
        return replace(self, low=np.minimum(self.low, point), high=np.maximum(self.high, point))


def _keep_first(found: Uncertainty, count: int) -> Uncertainty:
    """Return the uncertainty of the first ``count`` parameters."""
    kept = {each.name: getattr(found, each.name)[:count] for each in fields(found) if each.name in _PER_PARAMETER}
    return replace(found, covariance=found.covariance[:count, :count], **kept)


_PER_PARAMETER = ("low", "high", "sides", "reasons", "curvature", "df", "distance_to_optimum")


def compute_uncertainty(
    problem: FitProblem,
    here: Linearization,
    names: Sequence[str],
    *,
    times: FrameTimes | None = None,
    level: float = 0.95,
    refits: Array | None = None,
    considered: Array | None = None,
    nuisances: Mapping[str, Array] | None = None,
    effects: Mapping[str, Mapping[str, Array]] | None = None,
) -> Uncertainty:
    """Compute the covariance and the intervals of a fit, and the parameters and combinations that are undetermined.

    Args:
        problem: Least-squares problem of the fit.
        here: Linearization at its solution, with every parameter perturbed in a separate world.
        names: Names of the parameters.
        times: Times of the windows in their episodes, from which time blocks are formed. By default the windows are
            taken as successive parts of their episode, in the given order.
        level: Confidence level of the intervals.
        refits: Estimates from resampled clusters of `choose_fit_clusters`, ``(draws, p)``; by default the linearized
            fit is used.
        considered: Changes of the readings per standard deviation of c quantities that the fit keeps fixed, in the
            channels' units, ``(c, nwindow, nframe, nchannel)``, see `considered`.
        nuisances: The same by name for quantities on which the data have information, so that only the part of their
            uncertainty that the data leave open counts.
        effects: The same for effects that the twin may lack, by effect and name. Their amounts are 0 or positive. The
            intervals reach to the optimum with each of the effects.
    """
    effects = effects or {}
    extra = {**(nuisances or {}), **{name: change for own in effects.values() for name, change in own.items()}}
    if not extra:
        return _compute_uncertainty(problem, here, names, times, level, refits, considered, ())
    larger, extended = add_nuisances(problem, here, np.array(list(extra.values())))
    every = [*names, *extra]
    found = _compute_uncertainty(
        larger, extended, every, times, level,
        None if refits is None else np.pad(refits, ((0, 0), (0, len(extra)))), considered,
        [np.array([name in own for name in every]) for own in effects.values()],
    )  # fmt: skip
    directions = [text for text in found.directions if not any(name in text for name in extra)]
    return replace(_keep_first(found, len(names)), directions=tuple(directions))


def _compute_uncertainty(
    problem: FitProblem,
    here: Linearization,
    names: Sequence[str],
    times: FrameTimes | None,
    level: float,
    refits: Array | None,
    considered: Array | None,
    effects: Sequence[NDArray[np.bool_]],
) -> Uncertainty:
    scores = [frame_scores(problem, here, number) for number in range(len(problem.blocks))]
    clusters = choose_fit_clusters(problem, here, scores, times)
    covariance = np.diag(problem.sd**2)
    vectors = {key: np.full(len(names), np.nan) for key in ("low", "high", "curvature", "df", "distance_to_optimum")}
    sides, reasons, determinations, rank = [""] * len(names), [""] * len(names), [], 0
    for block, score in zip(problem.blocks, scores, strict=True):
        known = [names[int(column)] for column in block.columns]
        determinations.append(
            assess_determination(score.curvature, problem.sd[block.columns], known, least=problem.prior_weight)
        )
        if clusters is None:
            undetermined = determinations[-1].undetermined_mask
            _set_entries(reasons, block.columns, [_OPEN if is_open else _ALONE for is_open in undetermined])
            continue
        drawn = None if refits is None else refits[:, block.columns]
        pulls = None if considered is None else _considered_gradients(problem, here, block, score, considered)
        limits = block_limits(
            problem, here, block, score, clusters, level=level, refits=drawn, considered=pulls,
            effects=[mask[block.columns] for mask in effects],
        )  # fmt: skip
        for key, vector in vectors.items():
            vector[block.columns] = getattr(limits, key)
        rank += limits.rank
        block_reasons = _reasons_not_determined(limits, determinations[-1], problem.sd[block.columns], level)
        _set_entries(reasons, block.columns, block_reasons)
        _set_entries(
            sides,
            block.columns,
            ["" if reason else side for reason, side in zip(block_reasons, limits.sides, strict=True)],
        )
        keep = np.flatnonzero([not reason for reason in block_reasons])
        covariance[np.ix_(block.columns[keep], block.columns[keep])] = limits.covariance[np.ix_(keep, keep)]
    unknown = np.array([bool(reason) for reason in reasons])
    vectors["low"], vectors["high"] = (np.where(unknown, np.nan, here.point + vectors[k]) for k in ("low", "high"))
    method = _interval_method(clusters, refits)
    return Uncertainty(
        covariance=covariance,
        **vectors,
        level=level,
        sides=tuple(sides),
        reasons=tuple(reasons),
        directions=tuple(str(direction) for each in determinations for direction in each.directions),
        condition=tuple(each.condition for each in determinations),
        rank=rank,
        clusters=clusters,
        method=method,
        draws={"score bootstrap": DRAWS, "refit bootstrap": 0 if refits is None else len(refits)}.get(method, 0),
    )


def add_nuisances(problem: FitProblem, here: Linearization, responses: Array) -> tuple[FitProblem, Linearization]:
    """Add parameters with known linear responses to a problem with a single block, for its uncertainty only.

    Each has mean 0 and standard deviation 1. The estimate keeps them at 0; the Newton step to the optimum with them is
    then part of the limits.

    Args:
        problem: Least-squares problem of the fit.
        here: Linearization at its solution.
        responses: Change of the readings per standard deviation of each of q nuisances, in the channels' units,
            ``(q, nwindow, nframe, nchannel)``.
    """
    count, (block,) = len(responses), problem.blocks
    added = np.moveaxis(responses[..., block.channels] / problem.width[block.channels], 0, -1)

    def pad(values: Array, by: float) -> Array:
        return np.concatenate([values, np.full(count, by)])

    larger = replace(
        problem,
        blocks=(replace(block, columns=np.arange(len(problem.sd) + count)),),
        centre=pad(problem.centre, 0.0),
        sd=pad(problem.sd, 1.0),
        low=pad(problem.low, -np.inf),
        high=pad(problem.high, np.inf),
        logarithmic=np.concatenate([problem.logarithmic, np.zeros(count, dtype=np.bool_)]),
    )
    jacobian = np.concatenate([here.jacobians[0], added], axis=-1)
    return larger, replace(here, point=pad(here.point, 0.0), jacobians=(jacobian,))


def _considered_gradients(
    problem: FitProblem, here: Linearization, block: ParameterBlock, score: FrameScores, considered: Array
) -> Array:
    """Return the gradient of a block's loss per standard deviation of each considered quantity, ``(p, c)``."""
    change = considered[..., block.channels] / problem.width[block.channels]
    change = np.where(np.isnan(here.residual[..., block.channels]), 0.0, change)
    return np.einsum("efcp,efc,kefc->pk", score.slopes, score.loss_curvature, change, optimize=True)


def choose_fit_clusters(
    problem: FitProblem,
    here: Linearization,
    scores: Sequence[FrameScores] | None = None,
    times: FrameTimes | None = None,
) -> FrameClusters | None:
    """Choose the independent clusters of frames for the intervals of a fit, see `choose_clusters`.

    Args:
        problem: Least-squares problem of the fit.
        here: Linearization at its solution.
        scores: Derivatives of each block's loss; by default they are computed.
        times: Times of the windows in their episodes, from which time blocks are formed. By default the windows are
            taken as successive parts of their episode, in the given order.
    """
    scores = scores or [frame_scores(problem, here, number) for number in range(len(problem.blocks))]
    influences = [s.frame_gradients @ np.linalg.inv(s.curvature + s.penalty) for s in scores]
    present = np.any(~np.isnan(problem.measured), axis=-1, keepdims=True)[..., 0]
    nwindow, nframe = problem.measured.shape[:2]
    times = times or FrameTimes(start_times=nframe * np.arange(nwindow, dtype=np.float64), dt=1.0)
    return choose_clusters(influences, present, problem.clusters, times)


def _interval_method(clusters: FrameClusters | None, refits: Array | None) -> Method:
    if clusters is None:
        return "none"
    if refits is not None:
        return "refit bootstrap"
    return "score bootstrap" if clusters.has_few_clusters else "sandwich"


def _reasons_not_determined(limits: BlockLimits, determination: Determination, sd: Array, level: float) -> list[str]:
    """Return why each parameter of a block is undetermined, "" for determined parameters.

    Args:
        limits: Limits of the block's parameters.
        determination: Determined and undetermined directions of the block.
        sd: Prior standard deviations, ``(p,)``.
        level: Confidence level of the limits.
    """
    reasons = []
    wide = limits.high - limits.low > 2 * ndtri((1 + level) / 2) * sd
    for side, is_open, variance, spread, is_wide in zip(
        limits.sides, determination.undetermined_mask, np.diag(limits.covariance), sd, wide, strict=True
    ):
        vague = bool(np.sqrt(variance) > LEAST_GAIN * spread)
        if side == "past" and not (is_open and vague):
            reasons.append(_PAST)
        elif vague:
            reasons.append(_OPEN if is_open else _VAGUE)
        else:
            reasons.append(_WIDE if is_wide and not side else "")
    return reasons


def _set_entries(where: list[str], columns: NDArray[np.intp], values: Sequence[str]) -> None:
    for column, value in zip(columns, values, strict=True):
        where[int(column)] = value
