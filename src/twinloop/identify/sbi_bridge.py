"""Draw from a posterior by simulation-based inference and check it, to compare it with the intervals of a fit.

Parameters are drawn from the fit's prior (normal in solver coordinates, within the bounds). The log's windows are
replayed with them, with noise and with random errors of the windows' initial states. A normalizing flow learns the
distribution of parameters given summaries of the readings (`sbi_summaries`).

The prior is truncated to a box around the fit (one range per parameter). If the box contains the whole posterior, the
truncation does not change the posterior (truncated proposals: Deistler, Gonçalves & Macke, NeurIPS 2022). The half
width of the first box is 6 standard errors of the linearized fit. If more than 1 % of the posterior draws are near a
limit of the box, the box of the next round is wider.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import truncnorm

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError
from twinloop.core.records import Episode
from twinloop.core.seeds import generator
from twinloop.identify.assembly import FitSpace, fit_space, narrow_bounds
from twinloop.identify.bands import draw_noise
from twinloop.identify.config import FitConfig
from twinloop.identify.physics_rate import limit_physics_rate
from twinloop.identify.result import IdentifyResult
from twinloop.identify.sbi_flow import require_sbi, train_posterior
from twinloop.identify.sbi_result import (
    LEVELS,
    PosteriorDraws,
    PosteriorMisfit,
    RankCheck,
    compute_mahalanobis_test,
    rank_uniformity,
)
from twinloop.identify.sbi_summaries import SummaryStatistics, build_summaries
from twinloop.identify.uncertainty import LEAST_GAIN
from twinloop.simulate import Backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayLogs, prepare_replay
from twinloop.stats import Interval, clopper_pearson, holm
from twinloop.twin import Twin

Array = NDArray[np.float64]

_STREAM = "identify/sbi"
_AT_ONCE = 100  # worlds per batch; limits the memory
_FURTHEST = 4.0  # half width of the largest box, in prior standard deviations
_FIRST = 6.0  # half width of the first box, in first-order standard errors
# A box becomes _WIDER times wider if more than the fraction _CROWD of the draws is within the fraction _SIDE of a side.
_WIDER, _SIDE, _CROWD = 3.0, 0.05, 0.01
_EDGE = 1e-9  # clipped part of the prior's mass, to keep coordinates finite
_MOST_LOST = 0.5
_RANK_DRAWS = 199  # posterior draws per simulation of the rank test


@dataclass(frozen=True, kw_only=True)
class SbiOptions:
    """Options of simulation-based inference.

    Attributes:
        simulations: Simulations per round.
        rounds: Maximum number of rounds; the posterior is that of the last round.
        draws: Draws from the posterior.
        checks: Simulations with known parameters for the calibration test.
        replicas: Simulations at posterior draws for the comparison with the data; with fewer than 200 the comparison
            cannot reach significance.
        seed: Seed of all random draws.
    """

    simulations: int = 2000
    rounds: int = 3
    draws: int = 2000
    checks: int = 300
    replicas: int = 400
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class PriorBox:
    """Normal prior of p parameters, truncated to a box in solver coordinates (ln or SI).

    Attributes:
        centre: Prior means, ``(p,)``.
        sd: Prior standard deviations, ``(p,)``.
        low: Lower limits of the box, ``(p,)``.
        high: Upper limits of the box, ``(p,)``.
    """

    centre: Array
    sd: Array
    low: Array
    high: Array

    @classmethod
    def of(cls, space: FitSpace) -> PriorBox:
        """Return the prior of a fit within its bounds, truncated to four standard deviations."""
        centre, sd = space.column("centre"), space.column("sd")
        low, high = space.column("low"), space.column("high")
        return cls(
            centre=centre, sd=sd,
            low=np.maximum(low, np.minimum(centre, high) - _FURTHEST * sd),
            high=np.minimum(high, np.maximum(centre, low) + _FURTHEST * sd),
        )  # fmt: skip

    @property
    def _limits(self) -> tuple[Array, Array]:
        return (self.low - self.centre) / self.sd, (self.high - self.centre) / self.sd

    def to_parameters(self, z: Array) -> Array:
        """Map standard normal coordinates ``z`` ``(…, p)`` to parameters, such that these have the truncated prior."""
        mass = np.clip(ndtr(z), _EDGE, 1.0 - _EDGE)
        points = self.centre + self.sd * truncnorm.ppf(mass, *self._limits)
        return np.clip(points, self.low, self.high)

    def shrink_around(self, point: Array, reach: Array) -> PriorBox:
        """Return the part of this box within ``reach`` ``(p,)`` of the point ``(p,)``, which is in the box."""
        return replace(self, low=np.maximum(self.low, point - reach), high=np.minimum(self.high, point + reach))

    def find_crowded_sides(self, points: Array, whole: PriorBox) -> NDArray[np.bool_]:
        """Find the parameters for which posterior draws accumulate at a side of this box.

        They do if more than 1 % of the draws are within 5 % of the box width from the side. Sides that are also sides
        of ``whole`` are ignored.

        Args:
            points: Draws from the posterior, ``(n, p)``.
            whole: Box of the complete prior.

        Returns:
            A mask of these parameters, ``(p,)``.
        """
        side = _SIDE * (self.high - self.low)
        below = np.mean(points < self.low + side, axis=0) * (self.low > whole.low)
        above = np.mean(points > self.high - side, axis=0) * (self.high < whole.high)
        return np.maximum(below, above) > _CROWD


@dataclass(frozen=True, kw_only=True)
class _Simulator:
    backend: Backend
    logs: ReplayLogs
    space: FitSpace
    summaries: SummaryStatistics

    def __call__(self, points: Array, rng: np.random.Generator) -> tuple[Array, Array, NDArray[np.bool_]]:
        """Simulate the windows of the log with noise at n points.

        Args:
            points: Parameters in solver coordinates (ln or SI), ``(n, p)``.
            rng: Random generator.

        Returns:
            Scores ``(n, p)`` and residual summaries ``(n, nsummary)`` of each simulation, see `sbi_summaries`, and a
            mask ``(n,)`` of the simulations with finite readings.
        """
        scores, residual_summaries, finite = [], [], []
        for begin in range(0, len(points), _AT_ONCE):
            batch = points[begin : begin + _AT_ONCE]
            local = rng.normal(size=(len(batch), len(self.logs), self.logs.nlocal)) * self.logs.start.sd
            readings = replay(self.backend, self.logs, self.space.table(batch), local)
            for world in readings:
                noisy = world + draw_noise(self.summaries.noise, rng, world.shape)
                finite.append(bool(np.isfinite(noisy[self.summaries.present]).all()))
                summaries = self.summaries(noisy if finite[-1] else np.zeros_like(noisy))
                scores.append(summaries[0])
                residual_summaries.append(summaries[1])
        return np.array(scores), np.array(residual_summaries), np.array(finite)


def sample_posterior(
    twin: Twin,
    episodes: Sequence[Episode],
    fit: IdentifyResult,
    *,
    backend: Backend,
    config: FitConfig | None = None,
    options: SbiOptions | None = None,
) -> PosteriorDraws:
    """Draw from the posterior of a fit's parameters, given the episodes that it was trained on.

    Args:
        twin: The identified twin.
        episodes: The episodes of the log; only the fit's training episodes are used.
        fit: Result of the fit: summaries are computed at its estimate, and its residual noise is simulated.
        backend: The backend that runs the simulations.
        config: Configuration of the fit.
        options: Numbers of simulations and draws.

    Raises:
        MissingDependencyError: If sbi or torch is not installed.
        InputError: If ``options.rounds`` is less than 1, or more than half of the simulations have no finite readings.
    """
    require_sbi()
    if options is not None and options.rounds < 1:
        raise InputError(f"A posterior needs at least one round; rounds is {options.rounds}.")
    config, options = config or FitConfig(), options or SbiOptions()
    chosen = prepare_replay(twin, episodes, config.replay).select_episodes(fit.training)
    logs = limit_physics_rate(chosen, config.replay_hz)
    space = narrow_bounds(fit_space(chosen, config)[0], config.bounds, config.start)[0]
    columns = [fit.distribution.names.index(name) for name in space.names]
    point = np.asarray(fit.distribution.mean[columns])
    summaries = build_summaries(backend, logs, space, point, config)
    simulator = _Simulator(backend=backend, logs=logs, space=space, summaries=summaries)
    scores, residual_summaries = summaries(np.where(summaries.present, logs.measured, 0.0))
    rng = generator(options.seed, _STREAM)
    rounds, crowded = _run_rounds(simulator, point, scores, options, rng)
    learned = rounds[-1]
    ranks = _rank_check(simulator, learned, options, rng)
    misfit = _check_misfit(simulator, learned, np.concatenate([scores, residual_summaries]), options, rng)
    samples, tail = learned.samples, (1.0 - config.level) / 2
    limits = space.values(np.quantile(samples, [tail, 0.5, 1.0 - tail], axis=0))
    low, median, high = np.stack([limits[name] for name in space.names], axis=-1)
    return PosteriorDraws(
        names=space.names,
        samples=samples,
        distribution=_distribution_from_draws(fit, space, samples, columns),
        low=low,
        median=median,
        high=high,
        level=config.level,
        ranks=ranks,
        misfit=misfit,
        cut_off=tuple(name for name, is_so in zip(space.names, crowded, strict=True) if is_so),
        simulations=len(rounds) * options.simulations,
        failed_simulations=sum(each.failed_simulations for each in rounds),
    )


@dataclass(frozen=True, kw_only=True)
class _SbiRound:
    """Result of one round of simulation-based inference.

    Attributes:
        box: The truncated prior of the round.
        draw: Function that draws from the trained posterior, see `sbi_flow.train_posterior`.
        samples: Draws from the posterior given the data, in solver coordinates (ln or SI), ``(n, p)``.
        failed_simulations: Number of simulations with infinite or NaN readings.
    """

    box: PriorBox
    draw: Callable[[Array, int, int], Array]
    samples: Array
    failed_simulations: int


def _run_rounds(
    simulator: _Simulator, point: Array, data_scores: Array, options: SbiOptions, rng: np.random.Generator
) -> tuple[list[_SbiRound], NDArray[np.bool_]]:
    """Run rounds of simulation and training until the box contains the posterior or the rounds are used up.

    The box (one range per parameter) truncates the prior; it is wider in each round.

    Args:
        simulator: Simulator of the log.
        point: Centre of the box, the fit's estimate in solver coordinates (ln or SI), ``(p,)``.
        data_scores: Scores of the measured readings (one statistic per parameter, see `sbi_summaries`), ``(p,)``.
        options: Numbers of simulations and rounds.
        rng: Random generator.

    Returns:
        The rounds, and a mask ``(p,)`` of the parameters for which the last box does not contain the posterior.
    """
    whole, rounds = PriorBox.of(simulator.space), []
    reach = _FIRST * np.sqrt(np.diag(simulator.summaries.covariance))
    while True:
        rounds.append(_run_round(simulator, whole.shrink_around(point, reach), data_scores, options, rng, len(rounds)))
        crowded = rounds[-1].box.find_crowded_sides(rounds[-1].samples, whole)
        if not crowded.any() or len(rounds) >= options.rounds:
            return rounds, crowded
        reach = np.where(crowded, _WIDER * reach, reach)


def _run_round(
    simulator: _Simulator, box: PriorBox, seen: Array, options: SbiOptions, rng: np.random.Generator, number: int
) -> _SbiRound:
    z = rng.normal(size=(options.simulations, len(box.low)))
    scores, _, finite = simulator(box.to_parameters(z), rng)
    if np.mean(finite) < 1.0 - _MOST_LOST:
        raise InputError(
            f"Only {np.sum(finite)} of {len(finite)} simulations have finite readings. Narrow the fit's bounds to "
            "values that the twin can be simulated with, or cut shorter windows."
        )
    draw = train_posterior(z[finite], scores[finite], seed=options.seed + number)
    samples = box.to_parameters(draw(seen[None], options.draws, options.seed)[:, 0])
    return _SbiRound(box=box, draw=draw, samples=samples, failed_simulations=int(np.sum(~finite)))


def _rank_check(simulator: _Simulator, learned: _SbiRound, options: SbiOptions, rng: np.random.Generator) -> RankCheck:
    """Test the calibration of the posterior by the ranks of true parameters among posterior draws.

    The true parameters are drawn from the truncated prior of the last round.
    """
    z = rng.normal(size=(options.checks, len(learned.box.low)))
    scores, _, finite = simulator(learned.box.to_parameters(z), rng)
    drawn = learned.draw(scores[finite], _RANK_DRAWS, options.seed + 1)
    ranks = np.sum(drawn < z[finite], axis=0)
    p_values = holm([rank_uniformity(column, _RANK_DRAWS) for column in ranks.T])
    coverage = []
    for level in LEVELS:
        low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
        inside = np.sum((z[finite] >= low) & (z[finite] <= high), axis=0)
        coverage.append([clopper_pearson(int(count), int(finite.sum())) for count in inside])
    return RankCheck(ranks=ranks, draws=_RANK_DRAWS, p_values=p_values, coverage=tuple(map(_stack_intervals, coverage)))


def _stack_intervals(parts: Sequence[Interval]) -> Interval:
    estimate, low, high = (np.array([getattr(p, key) for p in parts]) for key in ("estimate", "low", "high"))
    return replace(parts[0], estimate=estimate, low=low, high=high)


def _check_misfit(
    simulator: _Simulator, learned: _SbiRound, observed: Array, options: SbiOptions, rng: np.random.Generator
) -> PosteriorMisfit:
    """Test whether the twin can produce the data: compare their summaries with those of simulations.

    The measure is the Mahalanobis distance of the data's summaries from those of simulations at posterior draws.

    Args:
        simulator: Simulator of the log's windows.
        learned: Last round, with the posterior draws.
        observed: Summaries of the data, scores first, ``(k,)``.
        options: Options; ``replicas`` is the number of simulations.
        rng: Random generator.
    """
    rows = rng.integers(len(learned.samples), size=options.replicas)
    scores, residual_summaries, finite = simulator(learned.samples[rows], rng)
    distance, p_value, deviations = compute_mahalanobis_test(
        np.concatenate([scores, residual_summaries], axis=-1)[finite], observed
    )
    names = [*(f"score of {name}" for name in simulator.space.names), *simulator.summaries.names]
    order = np.argsort(-np.abs(deviations))
    return PosteriorMisfit(
        distance=distance, p_value=p_value, deviations=tuple((names[i], float(deviations[i])) for i in order)
    )


def _distribution_from_draws(
    fit: IdentifyResult, space: FitSpace, samples: Array, columns: Sequence[int]
) -> ParamDistribution:
    """Return the fit's parameter distribution with mean and covariance replaced by those of the posterior draws.

    Args:
        fit: Result of the fit.
        space: The free parameters.
        samples: Posterior draws in solver coordinates (ln or SI), ``(n, p)``.
        columns: Indices of the free parameters in the fit's distribution.
    """
    distribution, count = fit.distribution, len(columns)
    mean, covariance, determined = (
        distribution.mean.copy(),
        distribution.covariance.copy(),
        list(distribution.determined),
    )
    mean[columns] = samples.mean(axis=0)
    covariance[np.ix_(columns, columns)] = np.cov(samples, rowvar=False).reshape(count, count)
    narrower = samples.std(axis=0) <= LEAST_GAIN * space.column("sd")
    for column, is_determined in zip(columns, narrower, strict=True):
        determined[column] = bool(is_determined)
    return replace(distribution, mean=mean, covariance=covariance, determined=tuple(determined), calibration=None)
