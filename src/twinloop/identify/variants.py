"""Compute variants of a fit near its solution: bootstrap refits to resampled clusters, and profile likelihoods.

Each variant takes separate Newton steps on Huber's loss; the replays of all variants run in one batch.

For a profile, twice the rise of the loss, divided by the ratio of sandwich variance to inverse curvature, is compared
with Student's t². For a quadratic loss that gives the interval of the sandwich (Pace, Salvan & Sartori, "Adjusting
composite likelihood ratio statistics", Statistica Sinica 21, 2011); otherwise the limits follow the shape of the loss.
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
from twinloop.identify.problem import FitProblem, Linearization, huber_loss, linearization_from_probe, probe
from twinloop.identify.solver import FitCheckpoint, SolverState
from twinloop.identify.uncertainty import Uncertainty
from twinloop.identify.uncertainty_scores import FrameClusters, frame_scores
from twinloop.stats import cluster_weights

Array = NDArray[np.float64]
_MOST_NUMBERS = 20_000_000  # residuals replayed at once: 160 MB


@dataclass(frozen=True, kw_only=True)
class VariantSolutions:
    """Variants after ``steps`` Newton steps: ``points`` ``(k, p)``, first states ``local`` ``(k, nwindow, m)``."""

    points: Array
    local: Array
    steps: int


@dataclass(frozen=True, kw_only=True)
class VariantChange:
    """The changes that define each of k variants.

    ``weights`` ``(k, nwindow, nframe)`` are multiplicities of frames; None for 1. ``column`` is a parameter that
    variant i fixes at ``values[i]``, ``values`` ``(k,)``; None if all are free.
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
    """Minimize the loss of every variant by Newton steps; the first step needs no replay.

    Args:
        problem: the fit.
        here: linearization at its solution.
        variation: the changes of the variants.
        steps: total number of Newton steps.
        start: state of an earlier, unfinished call.
        watch: called after every step.
    """
    now = start
    while now is None or now.steps < steps:
        looks = iter([here] * len(variation)) if now is None else _linearize_variants(problem, now)
        moved = [_newton_step(problem, look, variation, i) for i, look in enumerate(looks)]
        points, local = (np.array(part) for part in zip(*moved, strict=True))
        now = VariantSolutions(points=points, local=local, steps=1 if now is None else now.steps + 1)
        if watch is not None:
            watch(now)
    return now


def variant_losses(problem: FitProblem, variants: VariantSolutions, variation: VariantChange) -> Array:
    """Return each variant's own loss, priors included, ``(k,)``; without weights it is the fit's loss."""
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
    """Yield the linearization of every variant; as many are replayed at once as fit into memory."""
    probes = [probe(problem, point, local) for point, local in zip(now.points, now.local, strict=True)]
    each = len(probes[0].points)
    most = max(1, _MOST_NUMBERS // max(problem.measured.size * each, 1))
    for begin in range(0, len(probes), most):
        some = probes[begin : begin + most]
        points, local = (np.concatenate([getattr(one, name) for one in some]) for name in ("points", "local"))
        for one, residual in zip(some, np.split(problem.residual(points, local), len(some)), strict=True):
            yield linearization_from_probe(problem, one, residual)


def _newton_step(problem: FitProblem, here: Linearization, variation: VariantChange, i: int) -> tuple[Array, Array]:
    """Return a Newton step within the bounds, at most one prior deviation; a fixed parameter moves to its value."""
    point, local = here.point.copy(), here.local
    for number, block in enumerate(problem.blocks):
        score = frame_scores(problem, here, number, None if variation.weights is None else variation.weights[i])
        matrix, slope = score.curvature + score.penalty, score.gradient + score.drawn
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
        local = local + score.settle + score.follow @ move
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
    """Return estimates from resampled clusters, ``(draws, p)``.

    A refit takes a few Newton steps and keeps the last one only if it lowers the loss. Unlike the one-step bootstrap it
    computes slopes and curvature again in every step.

    Args:
        problem: the fit.
        here: linearization at its solution.
        clusters: the clusters to resample.
        draws: number of refits; each needs as many replays as a step of the fit, ``steps - 1`` times.
        seed: seed of the draws.
        steps: Newton steps of each refit.
    """
    weights = cluster_weights(clusters.count, draws, seed=seed)[:, clusters.labels]
    variation = VariantChange(weights=weights)
    kept: list[VariantSolutions] = []
    run_newton(problem, here, variation, steps=steps, watch=kept.append)
    loss = np.array([variant_losses(problem, variants, variation) for variants in kept[-2:]])
    best = np.argmin(loss, axis=0)
    return np.where(best[:, None] == len(loss) - 1, kept[-1].points, kept[-2:][0].points)


_VALUES, _SPAN = 17, 2.0  # eight values on each side, up to twice the interval (our choice)
_PROFILE_STEPS = 5  # Newton steps of the others at each value: they begin where the fit ended (our choice)
_UNKNOWN_SPAN = 2.0  # prior standard deviations, for a parameter without an interval


@dataclass(frozen=True, kw_only=True)
class ParameterProfile(JsonRecord):
    """Rise of the fit's loss as a function of one fixed parameter.

    ``values`` ``(k,)`` are in SI. ``rise`` ``(k,)`` is in units of t²: the interval contains the values with a rise
    below ``limit``. ``others`` are the values of the other parameters there. ``low`` or ``high`` is None if the curve
    does not reach the limit on that side: within the curve's range the data set no limit.
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
    found: Uncertainty,
    name: str,
    *,
    checkpoint: FitCheckpoint | None = None,
) -> ParameterProfile:
    """Return the profile of one parameter at 17 values, up to twice its interval on both sides and within its bounds.

    All values are optimized in one batch.

    Args:
        problem: the fit.
        here: linearization at its solution.
        space: its parameters.
        found: their uncertainty.
        name: name of the parameter.
        checkpoint: stores the progress, and resumes from it.

    Raises:
        UnknownNameError: the parameter is not free in this fit.
        InputError: there are no clusters to derive the allowed rise of the loss from.
    """
    if name not in space.names:
        raise UnknownNameError("free parameter", name, space.names)
    if found.clusters is None:
        raise InputError(f"The profile of {name} needs more data: one episode gives no interval. Add episodes.")
    column = space.names.index(name)
    grid = _profile_grid(problem, here, found, column)
    variation = VariantChange(column=column, values=grid)
    kept, stage = checkpoint or FitCheckpoint(None, {}), f"profile {name}"
    start = None
    if begun := kept.load_descents(stage):
        points, local = (np.array([getattr(one, key) for one in begun]) for key in ("point", "local"))
        start = VariantSolutions(points=points, local=local, steps=begun[0].iteration)
    ends = run_newton(
        problem,
        here,
        variation,
        steps=_PROFILE_STEPS,
        start=start,
        watch=lambda now: kept.save_descents(stage, _solver_states(now)),
    )
    loss = variant_losses(problem, ends, variation)
    information = found.curvature[column] * found.covariance[column, column]
    rise = 2.0 * (loss - loss.min()) / information
    limit = float(stdtrit(found.df[column], (1 + found.level) / 2) ** 2)
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
        level=found.level,
    )


def _profile_grid(problem: FitProblem, here: Linearization, found: Uncertainty, column: int) -> Array:
    point, sd = here.point[column], problem.sd[column]
    reach = np.nanmax([found.high[column] - point, point - found.low[column], 0.0])
    reach = _SPAN * reach if reach > 0 else _UNKNOWN_SPAN * sd
    grid = np.linspace(max(point - reach, problem.low[column]), min(point + reach, problem.high[column]), _VALUES)
    return np.unique(np.append(grid, point))


def _crossings(grid: Array, height: Array, limit: float) -> tuple[float | None, float | None]:
    """Return where the curve first exceeds the limit on both sides of its minimum, by linear interpolation."""
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
