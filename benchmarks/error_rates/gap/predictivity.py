"""Measure coverage of the predictivity intervals, for the population of policies and for the tested policies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtrit
from scipy.stats import beta

from benchmarks.error_rates.gap.policies import TABLES as POLICY_TABLES
from benchmarks.error_rates.gap.ranking_bootstrap import resampled_pairs
from benchmarks.studies import Study, StudyTable
from twinloop.core.seeds import generator
from twinloop.stats import ranking
from twinloop.stats.ranking import (
    PolicyScoreMatrix,
    draw_differences,
    draw_population,
    draw_true_scores,
    population_metrics,
)

Array = NDArray[np.float64]
POLICIES, TRIALS, LEVEL, DRAWS = (3, 4, 6, 10), (10, 25, 60), 0.95, 600
_CHUNK = 50  # repetitions at once, so that all pairs of all draws fit in memory
_POPULATION_SIZE = 50_000  # policies from which the true metrics of a population are computed


@dataclass(frozen=True, kw_only=True)
class Planted:
    """True scores ``(repetitions, P)`` of P policies drawn from a population, and their scores from few trials."""

    true_real: Array
    true_sim: Array
    real: PolicyScoreMatrix
    sim: PolicyScoreMatrix


def true_scores(kind: str, correlation: float, shape: tuple[int, int], rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw true real and simulated scores ``shape`` = ``(repetitions, P)`` of P policies, with Gaussian dependence.

    ``kind`` is ``bell`` (normal around one half) or ``skewed`` (Beta(½, 3/2), with many scores near zero).
    ``correlation`` is that of the underlying normal variables.
    """
    first, other = rng.standard_normal((2, *shape))
    second = correlation * first + np.sqrt(1 - correlation**2) * other
    if kind == "bell":
        return np.clip(0.5 + 0.17 * first, 0, 1), np.clip(0.45 + 0.17 * second, 0, 1)
    quantiles = (beta.ppf(ndtr(z), 0.5, 1.5) for z in (first, second))
    real, sim = (np.asarray(q, dtype=np.float64) for q in quantiles)
    return real, sim


def draw_planted(
    kind: str, correlation: float, shape: tuple[int, int], trials: int, rng: np.random.Generator
) -> Planted:
    """Draw policies of a population with ``trials`` trials each in both domains."""
    true_real, true_sim = true_scores(kind, correlation, shape, rng)
    real, sim = (PolicyScoreMatrix.of_table(rng.binomial(trials, p) / trials, trials) for p in (true_real, true_sim))
    return Planted(true_real=true_real, true_sim=true_sim, real=real, sim=sim)


def count_covered(values: Array, truth: Array | float) -> int:
    """Count repetitions whose central interval of draws ``(repetitions, D)`` covers the truth, ignoring NaN draws."""
    low, high = np.nanquantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=-1)
    return int(np.sum((low <= truth + 1e-9) & (truth - 1e-9 <= high)))


def _population_correlation_study(repetitions: int, seed: int) -> StudyTable:
    """Measure coverage of the correlation in the population of policies, by three methods."""
    cases = [(kind, rho) for kind in ("bell", "skewed") for rho in (0.6, 0.9)]
    rng = generator(seed, "study/predictivity/such")
    truth = {case: _correlation(case, rng) for case in cases}
    rows, metrics = [], []
    for policies in POLICIES:
        for trials in TRIALS:
            cells, widths = [], []
            for case in cases:
                planted = draw_planted(*case, (repetitions, policies), trials, rng)
                found, width = _methods(planted, truth[case], rng)
                widths.append(width)
                cells += [_percent(found[name], repetitions) for name in ("model", "fisher", "bootstrap")]
                rates = {name: count / repetitions for name, count in found.items()}
                metrics.append({"policies": policies, "trials": trials, "case": list(case), "width": width, **rates})
            rows.append((str(policies), str(trials), *cells, f"{widths[cases.index(('bell', 0.9))]:.2f}"))
    return StudyTable(
        title=f"Coverage of 95 % intervals of the correlation of such policies, in % of {repetitions} repetitions",
        head=(
            "policies",
            "trials",
            *(f"{kind} {truth[kind, rho]:.2f}: {name}" for kind, rho in cases for name in ("ours", "Fisher z", "boot")),
            "bell 0.90: mean width of ours",
        ),
        rows=tuple(rows),
        note="Each three columns have the population and its true correlation in the header. Monte Carlo error at 95 "
        f"%: {100 * np.sqrt(0.95 * 0.05 / repetitions):.1f}. Boot: percentile bootstrap over policies and trials. "
        "Fisher's z has no interval for three policies.",
        metrics=tuple(metrics),
    )


def _correlation(case: tuple[str, float], rng: np.random.Generator) -> float:
    real, sim = true_scores(*case, (1, _POPULATION_SIZE), rng)
    return float(ranking.pearson(real=real, sim=sim)[0])


def _methods(planted: Planted, truth: float, rng: np.random.Generator) -> tuple[dict[str, int], float]:
    """Count how often three methods cover the true correlation; also return the mean interval width of ours."""
    real, sim = planted.real, planted.sim
    policies = real.mean.shape[-1]
    population = draw_population(real=real, sim=sim, draws=DRAWS, rng=rng)
    r, s = resampled_pairs(real=real, sim=sim, draws=DRAWS, policies=True, rng=rng)
    resampled = np.moveaxis(ranking.pearson(real=r, sim=s), 0, -1)
    measured = ranking.pearson(real=real.mean, sim=sim.mean)
    fisher = -1
    if policies > 3:
        half = ndtri((1 + LEVEL) / 2) / np.sqrt(policies - 3)
        z = np.arctanh(np.clip(np.nan_to_num(measured), -0.9999, 0.9999))
        fisher = int(np.sum((np.tanh(z - half) <= truth) & (truth <= np.tanh(z + half))))
    usable = ~np.isnan(resampled).all(axis=-1)
    low, high = np.quantile(population.correlation, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=-1)
    counts = {
        "model": count_covered(population.correlation, truth),
        "fisher": fisher,
        "bootstrap": count_covered(resampled[usable], truth),
    }
    return counts, float(np.mean(high - low))


def _policy_metrics_study(repetitions: int, seed: int) -> StudyTable:
    """Measure coverage of metrics of the tested policies, compared with the published bootstrap over trials."""
    rng = generator(seed, "study/predictivity/these")
    names = ("pearson", "kendall", "mmrv")
    rows, metrics = [], []
    for policies in POLICIES:
        for trials in TRIALS:
            found = dict.fromkeys([f"{name} {how}" for name in names for how in ("ours", "boot")] + ["gap"], 0)
            for begin in range(0, repetitions, _CHUNK):
                count = min(_CHUNK, repetitions - begin)
                planted = draw_planted("bell", 0.9, (count, policies), trials, rng)
                for name, number in _count_policy_coverage(planted, names, rng).items():
                    found[name] += number
            rows.append((str(policies), str(trials), *(_percent(number, repetitions) for number in found.values())))
            rates = {name: number / repetitions for name, number in found.items()}
            metrics.append({"policies": policies, "trials": trials, **rates})
    return StudyTable(
        title=f"Coverage of 95 % intervals of metrics of these policies, in % of {repetitions} repetitions",
        head=(
            "policies",
            "trials",
            *(f"{name}: {how}" for name in ("Pearson", "Kendall", "MMRV") for how in ("ours", "boot")),
            "mean gap: ours",
        ),
        rows=tuple(rows),
        note="Normally distributed population with correlation 0.9. Boot: percentile bootstrap over real and "
        "simulated trials.",
        metrics=tuple(metrics),
    )


def _count_policy_coverage(planted: Planted, names: tuple[str, ...], rng: np.random.Generator) -> dict[str, int]:
    real, sim = planted.real, planted.sim
    population = draw_population(real=real, sim=sim, draws=DRAWS, rng=rng)
    r, s = draw_true_scores(population, real=real, sim=sim, rng=rng)
    resampled = resampled_pairs(real=real, sim=sim, draws=DRAWS, policies=False, rng=rng)
    boot_r, boot_s = (np.moveaxis(side, 0, 1) for side in resampled)
    found = {}
    for name in names:
        metric: Callable[..., Array] = getattr(ranking, name)
        truth = metric(real=planted.true_real, sim=planted.true_sim)
        found[f"{name} ours"] = count_covered(metric(real=r, sim=s), truth)
        values = metric(real=boot_r, sim=boot_s)
        found[f"{name} boot"] = count_covered(
            np.where(np.isnan(values).all(axis=-1, keepdims=True), 0.0, values), truth
        )
    gaps = np.abs(draw_differences(real=real, sim=sim, draws=DRAWS, rng=rng)).mean(axis=-1)
    return found | {"gap": count_covered(gaps, ranking.absolute_gap(real=planted.true_real, sim=planted.true_sim))}


def _population_metrics_study(repetitions: int, seed: int) -> StudyTable:
    """Measure coverage of the other metrics in the population of policies."""
    rng = generator(seed, "study/predictivity/others")
    rows: list[tuple[str, ...]] = []
    metrics: list[dict[str, Any]] = []
    for kind in ("bell", "skewed"):
        for policies in POLICIES:
            truth = _expected(kind, policies, rng)
            for trials in TRIALS:
                planted = draw_planted(kind, 0.9, (repetitions, policies), trials, rng)
                found = _count_population_coverage(planted, truth, rng)
                rates = {name: number / repetitions for name, number in found.items()}
                rows.append((kind, str(policies), str(trials), *(_percent(n, repetitions) for n in found.values())))
                metrics.append({"kind": kind, "policies": policies, "trials": trials, **rates})
    return StudyTable(
        title=f"Coverage of 95 % intervals of further metrics of such policies, in % of {repetitions} repetitions",
        head=("population", "policies", "trials", "Kendall", "MMRV", "best agrees", "regret", "bias"),
        rows=tuple(rows),
        note="Populations with Gaussian dependence 0.9.",
        metrics=tuple(metrics),
    )


def _expected(kind: str, policies: int, rng: np.random.Generator) -> dict[str, float]:
    real, sim = true_scores(kind, 0.9, (_POPULATION_SIZE // policies**2, policies), rng)
    names = ("kendall", "mmrv", "best_agrees", "regret", "bias")
    return {name: float(np.mean(getattr(ranking, name)(real=real, sim=sim))) for name in names}


def _count_population_coverage(planted: Planted, truth: dict[str, float], rng: np.random.Generator) -> dict[str, int]:
    population = draw_population(real=planted.real, sim=planted.sim, draws=DRAWS, rng=rng)
    population_draws = population_metrics(population, planted.real.mean.shape[-1])
    differences = planted.sim.mean - planted.real.mean
    found = {
        name: count_covered(population_draws[name], truth[name])
        for name in ("kendall", "mmrv", "best_agrees", "regret")
    }
    return found | {"bias": _count_bias_coverage(differences, truth["bias"])}


def _count_bias_coverage(differences: Array, truth: float) -> int:
    n = differences.shape[-1]
    half = stdtrit(n - 1, (1 + LEVEL) / 2) * differences.std(axis=-1, ddof=1) / np.sqrt(n)
    return int(np.sum(np.abs(differences.mean(axis=-1) - truth) <= half))


def _percent(count: int, total: int) -> str:
    return "–" if count < 0 else f"{100 * count / total:.0f}"


PAGE = "evidence/compare_policies.md"
TABLES: tuple[Study, ...] = (
    Study(name="predictivity_such", page=PAGE, repetitions=400, run=_population_correlation_study),
    Study(name="predictivity_others", page=PAGE, repetitions=400, run=_population_metrics_study),
    Study(name="predictivity_these", page=PAGE, repetitions=400, run=_policy_metrics_study),
    *POLICY_TABLES,
)
