"""Compute variants of a fit near its solution: bootstrap refits to resampled clusters, and profile likelihoods.

A cluster is an episode or a block of time. Each variant is optimized by Newton steps on Huber's loss; the replays of
all variants run in one batch.

For a profile, one parameter is fixed at several values and the other parameters are optimized. The test statistic is
twice the rise of the loss, divided by the product of two numbers: the second derivative of the loss along the
parameter, and the parameter's variance by the sandwich (robust) covariance. It is compared with the square of a
Student's t quantile. For a quadratic loss that gives the interval from the sandwich covariance (Pace, Salvan & Sartori,
"Adjusting composite likelihood ratio statistics", Statistica Sinica 21, 2011); otherwise the limits follow the shape of
the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.plain import JsonRecord
from twinloop.identify.assembly import FitSpace
from twinloop.identify.problem import FitProblem, Linearization, huber_loss, linearize
from twinloop.identify.solver import FitCheckpoint, SolverState
from twinloop.identify.uncertainty import Uncertainty
from twinloop.identify.uncertainty_scores import FrameClusters, frame_scores
from twinloop.stats import cluster_weights

Array = NDArray[np.float64]
_MOST_NUMBERS = 20_000_000  # residuals replayed at once: 160 MB


@dataclass(frozen=True, kw_only=True)
class VariantSolutions:
    """Parameters of k variants of a fit (other frame weights, or one fixed parameter) after some Newton steps.

    Attributes:
        points: Parameters in solver coordinates (ln or SI), ``(k, p)``.
        local: Corrections of m coordinates of each window's initial state, ``(k, nwindow, m)``.
        steps: Number of Newton steps.
    """

    points: Array
    local: Array
    steps: int


@dataclass(frozen=True, kw_only=True)
class VariantChange:
    """Changes of the data or of one parameter that define k variants of a fit.

    Attributes:
        weights: How often each frame counts in each variant, ``(k, nwindow, nframe)``; None for once.
        column: Index of the parameter that every variant fixes; None if all parameters are free.
        values: Value of the fixed parameter in each variant, ``(k,)``: natural logarithm of a parameter with a log
            transform, otherwise SI value.
    """

    weights: Array | None = None
    column: int | None = None
    values: Array | None = None

    def __len__(self) -> int:
        some = self.weights if self.weights is not None else self.values
        return 0 if some is None else len(some)


def run_newton(
    problem: FitProblem,
    here: Linearization,
    variation: VariantChange,
    *,
    steps: int,
    start: VariantSolutions | None = None,
    watch: Callable[[VariantSolutions], None] | None = None,
) -> VariantSolutions:
    """Minimize the loss of every variant of a fit by Newton steps.

    A variant is the fit with other frame weights, or with one fixed parameter. The first step needs no replay, because
    all variants start at the solution of the fit, whose linearization is given.

    Args:
        problem: Least-squares problem of the fit.
        here: Linearization at its solution.
        variation: The changes that define the variants.
        steps: Total number of Newton steps.
        start: State of an earlier, interrupted call.
        watch: Called after every step with the state.
    """
    now = start
    while now is None or now.steps < steps:
        linearizations = iter([here] * len(variation)) if now is None else _linearize_variants(problem, now)
        moved = [_newton_step(problem, linearization, variation, i) for i, linearization in enumerate(linearizations)]
        points, local = (np.array(part) for part in zip(*moved, strict=True))
        now = VariantSolutions(points=points, local=local, steps=1 if now is None else now.steps + 1)
        if watch is not None:
            watch(now)
    return now


def variant_losses(problem: FitProblem, variants: VariantSolutions, variation: VariantChange) -> Array:
    """Return the loss of k variants of a fit including priors, ``(k,)``.

    If the variants do not weight frames, this is the loss that the fit minimizes.

    Args:
        problem: Least-squares problem of the fit.
        variants: Parameters of the variants.
        variation: The changes that define the variants: other frame weights, or one fixed parameter.
    """
    most = max(1, _MOST_NUMBERS // max(problem.measured.size, 1))
    parts = [slice(begin, begin + most) for begin in range(0, len(variants.points), most)]
    residual = np.concatenate([problem.residual(variants.points[part], variants.local[part]) for part in parts])
    loss = np.where(np.isnan(residual), 0.0, huber_loss(residual)) * problem.frame_weight
    if variation.weights is not None:
        loss = loss * variation.weights[..., None]
    prior = 0.5 * problem.prior_weight * np.sum(((variants.points - problem.centre) / problem.sd) ** 2, axis=1)
    if len(problem.local_sd):
        prior = prior + 0.5 * problem.local_weight * np.sum((variants.local / problem.local_sd) ** 2, axis=(1, 2))
    return loss.sum(axis=(1, 2, 3)) + prior


def _linearize_variants(problem: FitProblem, now: VariantSolutions) -> Iterator[Linearization]:
    """Yield the linearization of every variant (the fit with other frame weights or one fixed parameter).

    Args:
        problem: Least-squares problem of the fit.
        now: Current parameters of the variants.
    """
    for point, local in zip(now.points, now.local, strict=True):
        yield linearize(problem, point, local)


def _newton_step(problem: FitProblem, here: Linearization, variation: VariantChange, i: int) -> tuple[Array, Array]:
    """Return parameters and initial-state corrections of one variant of the fit after a Newton step within the bounds.

    The step is at most one prior standard deviation long. A fixed parameter moves to its value.

    Args:
        problem: Least-squares problem of the fit.
        here: Linearization at the variant's current point.
        variation: The changes that define the variants (other frame weights, or one fixed parameter).
        i: Index of the variant.
    """
    point, local = here.point.copy(), here.local
    for number, block in enumerate(problem.blocks):
        score = frame_scores(problem, here, number, None if variation.weights is None else variation.weights[i])
        matrix, slope = score.curvature + score.penalty, score.gradient + score.penalty_gradient
        low, high = (edge[block.columns] - here.point[block.columns] for edge in (problem.low, problem.high))
        move, loose = np.zeros(len(block.columns)), np.ones(len(block.columns), dtype=bool)
        if variation.column is not None and variation.values is not None and variation.column in block.columns:
            at = int(np.flatnonzero(block.columns == variation.column)[0])
            move[at], loose[at] = variation.values[i] - here.point[variation.column], False
        free = np.linalg.solve(
            matrix[np.ix_(loose, loose)], -slope[loose] - matrix[np.ix_(loose, ~loose)] @ move[~loose]
        )
        longest = np.max(np.abs(free) / problem.sd[block.columns][loose], initial=1.0)
        move[loose] = np.clip(free / longest, low[loose], high[loose])
        point[block.columns] += move
        local = local + score.first_state_step + score.first_state_slope @ move
    return point, local


_REFIT_STEPS = 3  # Newton steps of a refit: it begins at the solution (our choice)


def refit_bootstrap(
    problem: FitProblem,
    here: Linearization,
    clusters: FrameClusters,
    *,
    draws: int,
    seed: int = 0,
    steps: int = _REFIT_STEPS,
) -> Array:
    """Refit the parameters to resampled clusters of frames, and return the estimates ``(draws, p)``.

    Each refit takes ``steps`` Newton steps. The last step is undone if it raises the loss. The derivatives are computed
    again in every step; the one-step bootstrap, in contrast, uses only those at the solution.

    Args:
        problem: Least-squares problem of the fit.
        here: Linearization at its solution.
        clusters: The clusters to resample.
        draws: Number of refits.
        seed: Seed of the draws.
        steps: Newton steps of each refit. Every step but the first needs as many replays as a step of the fit.
    """
    weights = cluster_weights(clusters.count, draws, seed=seed)[:, clusters.labels]
    variation = VariantChange(weights=weights)
    states: list[VariantSolutions] = []
    run_newton(problem, here, variation, steps=steps, watch=states.append)
    loss = np.array([variant_losses(problem, variants, variation) for variants in states[-2:]])
    best = np.argmin(loss, axis=0)
    return np.where(best[:, None] == len(loss) - 1, states[-1].points, states[-2:][0].points)


_VALUES, _SPAN = 17, 2.0  # eight values on each side, up to twice the interval (our choice)
_PROFILE_STEPS = 5  # Newton steps of the others at each value: they begin where the fit ended (our choice)
_UNKNOWN_SPAN = 2.0  # prior standard deviations, for a parameter without an interval


@dataclass(frozen=True, kw_only=True)
class ParameterProfile(JsonRecord):
    """Profile likelihood of one parameter: rise of the loss if it is fixed and the other parameters are optimized.

    Attributes:
        name: Name of the parameter.
        unit: Its SI unit.
        values: Values at which it is fixed, SI, ``(k,)``.
        rise: Rise of the loss at each value in units of t² (squared t statistic), ``(k,)``.
        others: Values of the other parameters by name, SI, ``(k,)`` each.
        limit: Rise at the limits of the interval: the squared t quantile for ``level``.
        low: Lower limit of the interval, SI; None if the rise does not reach ``limit`` on that side.
        high: Upper limit of the interval, SI; None if the rise does not reach ``limit`` on that side.
        level: Confidence level of the interval.
    """

    name: str
    unit: str
    values: Array
    rise: Array
    others: Mapping[str, Array]
    limit: float
    low: float | None
    high: float | None
    level: float

    def text(self) -> str:
        """Return the interval as a sentence."""
        low = f"{self.low:.4g}" if self.low is not None else f"open below {self.values[0]:.4g}"
        high = f"{self.high:.4g}" if self.high is not None else f"open above {self.values[-1]:.4g}"
        return f"Profile of {self.name}: [{low}, {high}] {self.unit} at {self.level:.0%}"


def profile_likelihood(
    problem: FitProblem,
    here: Linearization,
    space: FitSpace,
    uncertainty: Uncertainty,
    name: str,
    *,
    checkpoint: FitCheckpoint | None = None,
) -> ParameterProfile:
    """Compute the profile likelihood of one parameter at 17 values or a few more.

    The values reach, on both sides of the estimate, to twice the distance of the farther limit of its interval, but not
    beyond the parameter's bounds. All values are optimized in one batch.

    Args:
        problem: Least-squares problem of the fit.
        here: Linearization at the solution of the fit.
        space: Free parameters of the fit.
        uncertainty: Uncertainty of the solution.
        name: Name of the parameter.
        checkpoint: Stores the progress, and resumes from it.

    Raises:
        UnknownNameError: If the parameter is not free in this fit.
        InputError: If there are no clusters of frames, from which the allowed rise of the loss is computed.
    """
    if name not in space.names:
        raise UnknownNameError("free parameter", name, space.names)
    if uncertainty.clusters is None:
        raise InputError(f"The profile of {name} needs more data: one episode gives no interval. Add episodes.")
    column = space.names.index(name)
    grid = _profile_grid(problem, here, uncertainty, column)
    variation = VariantChange(column=column, values=grid)
    store, stage = checkpoint or FitCheckpoint(None, {}), f"profile {name}"
    start = None
    if saved := store.load_descents(stage):
        points, local = (np.array([getattr(one, key) for one in saved]) for key in ("point", "local"))
        start = VariantSolutions(points=points, local=local, steps=saved[0].iteration)
    ends = run_newton(
        problem,
        here,
        variation,
        steps=_PROFILE_STEPS,
        start=start,
        watch=lambda now: store.save_descents(stage, _solver_states(now)),
    )
    loss = variant_losses(problem, ends, variation)
    information = uncertainty.curvature[column] * uncertainty.covariance[column, column]
    rise = 2.0 * (loss - loss.min()) / information
    limit = float(stdtrit(uncertainty.df[column], (1 + uncertainty.level) / 2) ** 2)
    low, high = _crossings(grid, np.sqrt(rise), np.sqrt(limit))
    si = space.values(ends.points)
    log = space.free[column].is_logarithmic
    return ParameterProfile(
        name=name,
        unit=space.free[column].param.unit,
        values=np.asarray(si.pop(name), dtype=np.float64),
        rise=rise,
        others=si,
        limit=limit,
        low=low if low is None or not log else float(np.exp(low)),
        high=high if high is None or not log else float(np.exp(high)),
        level=uncertainty.level,
    )


def _profile_grid(problem: FitProblem, here: Linearization, found: Uncertainty, column: int) -> Array:
    point, sd = here.point[column], problem.sd[column]
    reach = np.nanmax([found.high[column] - point, point - found.low[column], 0.0])
    reach = _SPAN * reach if reach > 0 else _UNKNOWN_SPAN * sd
    grid = np.linspace(max(point - reach, problem.low[column]), min(point + reach, problem.high[column]), _VALUES)
    return np.unique(np.append(grid, point))


def _crossings(grid: Array, height: Array, limit: float) -> tuple[float | None, float | None]:
    """Return where a curve first exceeds ``limit`` below and above its minimum, by linear interpolation.

    Args:
        grid: Ascending arguments, ``(k,)``.
        height: Values of the curve, ``(k,)``.
        limit: The level to cross.

    Returns:
        The lower and the upper crossing; None if the curve does not reach the limit on that side.
    """
    lowest = int(np.argmin(height))

    def find_crossing(pairs: Iterable[tuple[int, int]]) -> float | None:
        i, j = next(((i, j) for i, j in pairs if height[j] >= limit), (0, 0))
        if i == j:
            return None
        return float(grid[i] + (grid[j] - grid[i]) * (limit - height[i]) / (height[j] - height[i]))

    return find_crossing((i, i - 1) for i in range(lowest, 0, -1)), find_crossing(pairwise(range(lowest, len(grid))))


def _solver_states(now: VariantSolutions) -> list[SolverState]:
    nothing = np.zeros(0)
    rows = zip(now.points, now.local, strict=True)
    return [SolverState(point=point, local=local, damping=nothing, iteration=now.steps) for point, local in rows]
