"""Draw from a posterior by simulation-based inference and check it, to compare it with the intervals of a fit.

Parameters are drawn from the fit's prior (normal in transformed coordinates, within the bounds). The log's windows are
replayed with them, with drawn first states and noise. A flow learns the distribution of parameters given summaries
(`sbi_summaries`). Draws come only from the part of the prior in a box around the fit. That does not change the
posterior if the box contains all of it (truncated proposals: Deistler, Gonçalves & Macke, NeurIPS 2022). The first box
is a few first-order standard errors wide; if draws accumulate at its sides, the next round's box is wider.
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
from twinloop.identify.assembly import FitSpace, fit_space, limit_physics_rate, narrow_bounds
from twinloop.identify.bands import draw_noise
from twinloop.identify.config import FitConfig
from twinloop.identify.result import IdentifyResult
from twinloop.identify.sbi_flow import require_sbi, train_posterior
from twinloop.identify.sbi_result import (
    LEVELS,
    PosteriorDraws,
    PosteriorMisfit,
    RankCheck,
    measure_novelty,
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
_AT_ONCE = 100  # worlds per batch, so that memory stays bounded
_FURTHEST = 4.0  # prior standard deviations
_FIRST = 6.0  # first-order standard errors, on both sides
_WIDER, _SIDE, _CROWD = 3.0, 0.05, 0.01  # factor for a box with more than _CROWD of the draws in a side of width _SIDE
_EDGE = 1e-9  # clipped part of the prior's mass, to keep coordinates finite
_MOST_LOST = 0.5
_RANK_DRAWS = 199  # per checked posterior


@dataclass(frozen=True, kw_only=True)
class SbiOptions:
    """Numbers of simulations and draws.

    Attributes:
        simulations: simulations per round.
        rounds: maximum number of rounds; the posterior is that of the last one.
        draws: draws from the posterior.
        checks: simulations with known parameters for the calibration test.
        replicas: simulations at posterior draws for the comparison with the data; fewer than 200 can never alarm.
        seed: seed of all random draws.
    """

    simulations: int = 2000
    rounds: int = 3
    draws: int = 2000
    checks: int = 300
    replicas: int = 400
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class PriorBox:
    """The prior within limits ``low`` and ``high`` ``(p,)``, with coordinates in which it is standard normal."""

    centre: Array
    sd: Array
    low: Array
    high: Array

    @classmethod
    def of(cls, space: FitSpace) -> PriorBox:
        """Return the whole prior of a fit, limited to four standard deviations."""
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
        """Return transformed parameters at standard normal coordinates ``(…, p)``."""
        mass = np.clip(ndtr(z), _EDGE, 1.0 - _EDGE)
        found = self.centre + self.sd * truncnorm.ppf(mass, *self._limits)
        return np.clip(found, self.low, self.high)

    def shrink_around(self, point: Array, reach: Array) -> PriorBox:
        """Return the part of this box within ``reach`` ``(p,)`` of a point in it."""
        return replace(self, low=np.maximum(self.low, point - reach), high=np.minimum(self.high, point + reach))

    def find_crowded_sides(self, points: Array, whole: PriorBox) -> NDArray[np.bool_]:
        """Return for which parameters points ``(n, p)`` accumulate at sides that ``whole`` does not share, ``(p,)``."""
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
        """Simulate logs at points ``(n, p)``; return scores, residual summaries, and whether readings are finite."""
        scores, left, fine = [], [], []
        for begin in range(0, len(points), _AT_ONCE):
            some = points[begin : begin + _AT_ONCE]
            local = rng.normal(size=(len(some), len(self.logs), self.logs.nlocal)) * self.logs.start.sd
            readings = replay(self.backend, self.logs, self.space.table(some), local)
            for world in readings:
                noisy = world + draw_noise(self.summaries.noise, rng, world.shape)
                fine.append(bool(np.isfinite(noisy[self.summaries.present]).all()))
                made = self.summaries(noisy if fine[-1] else np.zeros_like(noisy))
                scores.append(made[0])
                left.append(made[1])
        return np.array(scores), np.array(left), np.array(fine)


def sample_posterior(
    twin: Twin,
    episodes: Sequence[Episode],
    fit: IdentifyResult,
    *,
    backend: Backend,
    config: FitConfig | None = None,
    options: SbiOptions | None = None,
) -> PosteriorDraws:
    """Return the posterior of a fit's parameters, given the episodes that it was trained on.

    Args:
        twin: the identified twin.
        episodes: the log; episodes outside the fit's training part are ignored.
        fit: the fit's result: summaries are taken at its estimate, and its residual noise is simulated.
        backend: the backend that runs the simulations.
        config: configuration of the fit.
        options: numbers of simulations and draws.

    Raises:
        MissingDependencyError: sbi or torch is not installed.
        InputError: fewer than one round, or more than half of the simulations have no finite readings.
    """
    require_sbi()
    if options is not None and options.rounds < 1:
        raise InputError(f"A posterior needs at least one round; rounds is {options.rounds}.")
    config, options = config or FitConfig(), options or SbiOptions()
    chosen = prepare_replay(twin, episodes, config.replay).select_episodes(fit.training)
    logs = limit_physics_rate(chosen, config.physics_hz)
    space = narrow_bounds(fit_space(chosen, config)[0], config.bounds, config.start)[0]
    columns = [fit.distribution.names.index(name) for name in space.names]
    point = np.asarray(fit.distribution.mean[columns])
    summaries = build_summaries(backend, logs, space, point, config)
    simulator = _Simulator(backend=backend, logs=logs, space=space, summaries=summaries)
    seen, leaves = summaries(np.where(summaries.present, logs.measured, 0.0))
    rng = generator(options.seed, _STREAM)
    rounds, crowded = _run_rounds(simulator, point, seen, options, rng)
    learned = rounds[-1]
    ranks = _rank_check(simulator, learned, options, rng)
    misfit = _check_misfit(simulator, learned, np.concatenate([seen, leaves]), options, rng)
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
        crowded=tuple(name for name, is_so in zip(space.names, crowded, strict=True) if is_so),
        simulations=len(rounds) * options.simulations,
        lost=sum(each.lost for each in rounds),
    )


@dataclass(frozen=True, kw_only=True)
class _SbiRound:
    """One round: the prior's ``box``, the flow's ``draw`` function, and its ``samples`` given the data."""

    box: PriorBox
    draw: Callable[[Array, int, int], Array]
    samples: Array
    lost: int


def _run_rounds(
    simulator: _Simulator, point: Array, seen: Array, options: SbiOptions, rng: np.random.Generator
) -> tuple[list[_SbiRound], NDArray[np.bool_]]:
    """Widen the box until it contains the posterior; return the rounds, and the parameters for which it does not."""
    whole, rounds = PriorBox.of(simulator.space), []
    reach = _FIRST * np.sqrt(np.diag(simulator.summaries.covariance))
    while True:
        rounds.append(_run_round(simulator, whole.shrink_around(point, reach), seen, options, rng, len(rounds)))
        crowded = rounds[-1].box.crowded(rounds[-1].samples, whole)
        if not crowded.any() or len(rounds) >= options.rounds:
            return rounds, crowded
        reach = np.where(crowded, _WIDER * reach, reach)


def _run_round(
    simulator: _Simulator, box: PriorBox, seen: Array, options: SbiOptions, rng: np.random.Generator, number: int
) -> _SbiRound:
    z = rng.normal(size=(options.simulations, len(box.low)))
    scores, _, fine = simulator(box.to_parameters(z), rng)
    if np.mean(fine) < 1.0 - _MOST_LOST:
        raise InputError(
            f"Only {np.sum(fine)} of {len(fine)} simulations have finite readings. Narrow the fit's bounds to "
            "values that the twin can be simulated with, or cut shorter windows."
        )
    draw = train_posterior(z[fine], scores[fine], seed=options.seed + number)
    samples = box.to_parameters(draw(seen[None], options.draws, options.seed)[:, 0])
    return _SbiRound(box=box, draw=draw, samples=samples, lost=int(np.sum(~fine)))


def _rank_check(simulator: _Simulator, learned: _SbiRound, options: SbiOptions, rng: np.random.Generator) -> RankCheck:
    """Return the ranks of true parameters among posterior draws, over the prior of the last round."""
    z = rng.normal(size=(options.checks, len(learned.box.low)))
    scores, _, fine = simulator(learned.box.to_parameters(z), rng)
    drawn = learned.draw(scores[fine], _RANK_DRAWS, options.seed + 1)
    ranks = np.sum(drawn < z[fine], axis=0)
    p_values = holm([rank_uniformity(column, _RANK_DRAWS) for column in ranks.T])
    coverage = []
    for level in LEVELS:
        low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
        inside = np.sum((z[fine] >= low) & (z[fine] <= high), axis=0)
        coverage.append([clopper_pearson(int(count), int(fine.sum())) for count in inside])
    return RankCheck(ranks=ranks, draws=_RANK_DRAWS, p_values=p_values, coverage=tuple(map(_stack_intervals, coverage)))


def _stack_intervals(parts: Sequence[Interval]) -> Interval:
    estimate, low, high = (np.array([getattr(p, key) for p in parts]) for key in ("estimate", "low", "high"))
    return replace(parts[0], estimate=estimate, low=low, high=high)


def _check_misfit(
    simulator: _Simulator, learned: _SbiRound, observed: Array, options: SbiOptions, rng: np.random.Generator
) -> PosteriorMisfit:
    """Compare the data's summaries with those of simulations at posterior draws."""
    rows = rng.integers(len(learned.samples), size=options.replicas)
    scores, left, fine = simulator(learned.samples[rows], rng)
    far, p_value, each = measure_novelty(np.concatenate([scores, left], axis=-1)[fine], observed)
    names = [*(f"score of {name}" for name in simulator.space.names), *simulator.summaries.names]
    order = np.argsort(-np.abs(each))
    return PosteriorMisfit(distance=far, p_value=p_value, deviations=tuple((names[i], float(each[i])) for i in order))


def _distribution_from_draws(
    fit: IdentifyResult, space: FitSpace, samples: Array, columns: Sequence[int]
) -> ParamDistribution:
    """Return the fit's distribution with mean and covariance of the posterior draws."""
    found, count = fit.distribution, len(columns)
    mean, covariance, determined = found.mean.copy(), found.covariance.copy(), list(found.determined)
    mean[columns] = samples.mean(axis=0)
    covariance[np.ix_(columns, columns)] = np.cov(samples, rowvar=False).reshape(count, count)
    narrower = samples.std(axis=0) <= LEAST_GAIN * space.column("sd")
    for column, known in zip(columns, narrower, strict=True):
        determined[column] = bool(known)
    return replace(found, mean=mean, covariance=covariance, determined=tuple(determined), calibration=None)
