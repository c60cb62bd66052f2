"""How often the intervals of predictivity hold: for policies like these, and for these policies."""

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
_PORTION = 50  # repetitions at once, so that all pairs of all draws fit in memory
_MANY = 50_000  # policies from which a population's own figures are taken


@dataclass(frozen=True, kw_only=True)
class Planted:
    """True scores ``(repetitions, P)`` of policies drawn from a population, and what few trials show of them."""

    true_real: Array
    true_sim: Array
    real: PolicyScoreMatrix
    sim: PolicyScoreMatrix


def true_scores(kind: str, correlation: float, shape: tuple[int, int], rng: np.random.Generator) -> tuple[Array, Array]:
    """True scores with Gaussian dependence: ``bell``, normal about a half; ``skewed``, Beta(½, 3/2), many near zero."""
    first, other = rng.standard_normal((2, *shape))
    second = correlation * first + np.sqrt(1 - correlation**2) * other
    if kind == "bell":
        return np.clip(0.5 + 0.17 * first, 0, 1), np.clip(0.45 + 0.17 * second, 0, 1)
    quantiles = (beta.ppf(ndtr(z), 0.5, 1.5) for z in (first, second))
    real, sim = (np.asarray(q, dtype=np.float64) for q in quantiles)
    return real, sim


def plant(kind: str, correlation: float, shape: tuple[int, int], trials: int, rng: np.random.Generator) -> Planted:
    """Policies of a population with that many trials each, in both domains."""
    true_real, true_sim = true_scores(kind, correlation, shape, rng)
    real, sim = (PolicyScoreMatrix.of_table(rng.binomial(trials, p) / trials, trials) for p in (true_real, true_sim))
    return Planted(true_real=true_real, true_sim=true_sim, real=real, sim=sim)


def held(values: Array, truth: Array | float) -> int:
    """In how many repetitions the middle of draws ``(repetitions, D)`` has the truth; NaN draws are left out."""
    low, high = np.nanquantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=-1)
    return int(np.sum((low <= truth + 1e-9) & (truth - 1e-9 <= high)))


def _such(repetitions: int, seed: int) -> StudyTable:
    """Coverage of the correlation of such policies, by three methods."""
    cases = [(kind, rho) for kind in ("bell", "skewed") for rho in (0.6, 0.9)]
    rng = generator(seed, "study/predictivity/such")
    truth = {case: _correlation(case, rng) for case in cases}
    rows, figures = [], []
    for policies in POLICIES:
        for trials in TRIALS:
            cells, widths = [], []
            for case in cases:
                planted = plant(*case, (repetitions, policies), trials, rng)
                found, width = _methods(planted, truth[case], rng)
                widths.append(width)
                cells += [_percent(found[name], repetitions) for name in ("model", "fisher", "bootstrap")]
                rates = {name: count / repetitions for name, count in found.items()}
                figures.append({"policies": policies, "trials": trials, "case": list(case), "width": width, **rates})
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
        figures=tuple(figures),
    )


def _correlation(case: tuple[str, float], rng: np.random.Generator) -> float:
    real, sim = true_scores(*case, (1, _MANY), rng)
    return float(ranking.pearson(real=real, sim=sim)[0])


def _methods(planted: Planted, truth: float, rng: np.random.Generator) -> tuple[dict[str, int], float]:
    """How often three methods hold the true correlation, and the mean width of ours."""
    real, sim = planted.real, planted.sim
    policies = real.mean.shape[-1]
    population = draw_population(real=real, sim=sim, draws=DRAWS, rng=rng)
    r, s = resampled_pairs(real=real, sim=sim, draws=DRAWS, policies=True, rng=rng)
    again = np.moveaxis(ranking.pearson(real=r, sim=s), 0, -1)
    seen = ranking.pearson(real=real.mean, sim=sim.mean)
    fisher = -1
    if policies > 3:
        half = ndtri((1 + LEVEL) / 2) / np.sqrt(policies - 3)
        z = np.arctanh(np.clip(np.nan_to_num(seen), -0.9999, 0.9999))
        fisher = int(np.sum((np.tanh(z - half) <= truth) & (truth <= np.tanh(z + half))))
    usable = ~np.isnan(again).all(axis=-1)
    low, high = np.quantile(population.correlation, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=-1)
    counts = {"model": held(population.correlation, truth), "fisher": fisher, "bootstrap": held(again[usable], truth)}
    return counts, float(np.mean(high - low))


def _these(repetitions: int, seed: int) -> StudyTable:
    """Coverage of figures of these policies, beside the bootstrap over trials that publications use."""
    rng = generator(seed, "study/predictivity/these")
    names = ("pearson", "kendall", "mmrv")
    rows, figures = [], []
    for policies in POLICIES:
        for trials in TRIALS:
            found = dict.fromkeys([f"{name} {how}" for name in names for how in ("ours", "boot")] + ["gap"], 0)
            for begin in range(0, repetitions, _PORTION):
                count = min(_PORTION, repetitions - begin)
                planted = plant("bell", 0.9, (count, policies), trials, rng)
                for name, number in _of_these(planted, names, rng).items():
                    found[name] += number
            rows.append((str(policies), str(trials), *(_percent(number, repetitions) for number in found.values())))
            rates = {name: number / repetitions for name, number in found.items()}
            figures.append({"policies": policies, "trials": trials, **rates})
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
        figures=tuple(figures),
    )


def _of_these(planted: Planted, names: tuple[str, ...], rng: np.random.Generator) -> dict[str, int]:
    real, sim = planted.real, planted.sim
    population = draw_population(real=real, sim=sim, draws=DRAWS, rng=rng)
    r, s = draw_true_scores(population, real=real, sim=sim, rng=rng)
    again = resampled_pairs(real=real, sim=sim, draws=DRAWS, policies=False, rng=rng)
    boot_r, boot_s = (np.moveaxis(side, 0, 1) for side in again)
    found = {}
    for name in names:
        figure: Callable[..., Array] = getattr(ranking, name)
        truth = figure(real=planted.true_real, sim=planted.true_sim)
        found[f"{name} ours"] = held(figure(real=r, sim=s), truth)
        values = figure(real=boot_r, sim=boot_s)
        found[f"{name} boot"] = held(np.where(np.isnan(values).all(axis=-1, keepdims=True), 0.0, values), truth)
    gaps = np.abs(draw_differences(real=real, sim=sim, draws=DRAWS, rng=rng)).mean(axis=-1)
    return found | {"gap": held(gaps, ranking.absolute_gap(real=planted.true_real, sim=planted.true_sim))}


def _others(repetitions: int, seed: int) -> StudyTable:
    """Coverage of the further figures of such policies."""
    rng = generator(seed, "study/predictivity/others")
    rows: list[tuple[str, ...]] = []
    figures: list[dict[str, Any]] = []
    for kind in ("bell", "skewed"):
        for policies in POLICIES:
            truth = _expected(kind, policies, rng)
            for trials in TRIALS:
                planted = plant(kind, 0.9, (repetitions, policies), trials, rng)
                found = _further(planted, truth, rng)
                rates = {name: number / repetitions for name, number in found.items()}
                rows.append((kind, str(policies), str(trials), *(_percent(n, repetitions) for n in found.values())))
                figures.append({"kind": kind, "policies": policies, "trials": trials, **rates})
    return StudyTable(
        title=f"Coverage of 95 % intervals of further metrics of such policies, in % of {repetitions} repetitions",
        head=("population", "policies", "trials", "Kendall", "MMRV", "best agrees", "regret", "bias"),
        rows=tuple(rows),
        note="Populations with Gaussian dependence 0.9.",
        figures=tuple(figures),
    )


def _expected(kind: str, policies: int, rng: np.random.Generator) -> dict[str, float]:
    real, sim = true_scores(kind, 0.9, (_MANY // policies**2, policies), rng)
    names = ("kendall", "mmrv", "best_agrees", "regret", "bias")
    return {name: float(np.mean(getattr(ranking, name)(real=real, sim=sim))) for name in names}


def _further(planted: Planted, truth: dict[str, float], rng: np.random.Generator) -> dict[str, int]:
    population = draw_population(real=planted.real, sim=planted.sim, draws=DRAWS, rng=rng)
    such = population_metrics(population, planted.real.mean.shape[-1])
    differences = planted.sim.mean - planted.real.mean
    found = {name: held(such[name], truth[name]) for name in ("kendall", "mmrv", "best_agrees", "regret")}
    return found | {"bias": _student(differences, truth["bias"])}


def _student(differences: Array, truth: float) -> int:
    n = differences.shape[-1]
    half = stdtrit(n - 1, (1 + LEVEL) / 2) * differences.std(axis=-1, ddof=1) / np.sqrt(n)
    return int(np.sum(np.abs(differences.mean(axis=-1) - truth) <= half))


def _percent(count: int, total: int) -> str:
    return "–" if count < 0 else f"{100 * count / total:.0f}"


PAGE = "evidence/compare_policies.md"
TABLES: tuple[Study, ...] = (
    Study(name="predictivity_such", page=PAGE, repetitions=400, run=_such),
    Study(name="predictivity_others", page=PAGE, repetitions=400, run=_others),
    Study(name="predictivity_these", page=PAGE, repetitions=400, run=_these),
    *POLICY_TABLES,
)
