"""Measure intervals of the real success rate from few real and many simulated trials: coverage and width."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.studies import Study, StudyTable, share
from twinloop.stats import PairedTrials, clopper_pearson, control_variate, post_stratified
from twinloop.stats.prediction_powered import Coefficient, log_e_prediction_powered, rectify

_PAGE = "evidence/compare_policies.md"
_RATIO = 50  # simulated-only trials per real one
# Real rate, simulated rate, correlation. The correlation is 0, medium or high; then rare and frequent success.
_CASES = ((0.6, 0.5, 0.0), (0.6, 0.5, 0.6), (0.6, 0.6, 0.9), (0.05, 0.1, 0.5), (0.97, 0.9, 0.4))
_FITTED: tuple[Coefficient, ...] = ("ppi", "ppi++", "cross-fitted")


def _coverage(repetitions: int, seed: int) -> StudyTable:
    rows, metrics = [], []
    for p, q, rho in _CASES:
        for n in (5, 10, 20, 50):
            random = np.random.default_rng([seed, n, int(1000 * p), int(100 * rho)])
            real, sim, more = _draw(p, q, rho, n, repetitions, random)
            counts, widths = _counts(real, sim, more, p)
            names = ("exact", *_FITTED)
            cells = [share(counts[name], repetitions) for name in names]
            bets = log_e_prediction_powered(rectify(real, sim, more), p, alpha=0.05).max(axis=-1)
            counts["betting"] = int((bets < np.log(20)).sum())
            width_cells = [f"{widths[name]:.3f}" for name in ("alone", "exact", "cross-fitted")]
            rows.append(
                (
                    f"{p:g}, {q:g}, {rho:g}",
                    str(n),
                    cells[0],
                    share(counts["betting"], repetitions),
                    *cells[1:],
                    *width_cells,
                )
            )
            metrics.append(
                {"case": [p, q, rho], "pairs": n, "repetitions": repetitions, "covered": counts, "width": widths}
            )
    return StudyTable(
        title="Coverage of 95 % intervals of the real success rate, and mean widths",
        head=(
            "real, simulated, correlation", "pairs", "post-stratified exact", "betting", "PPI", "PPI++", "cross-fitted",
            "width: real alone", "exact", "cross-fitted",
        ),
        rows=tuple(rows),
        note=f"{repetitions} repetitions, {_RATIO} simulated-only trials for each real one. Real alone: Clopper and "
        "Pearson. The asymptotic intervals (PPI, PPI++, cross-fitted) cover too little if successes or failures are "
        "few: if all trials have the same outcome, their width is zero.",
        metrics=tuple(metrics),
    )  # fmt: skip


def _draw(
    p: float, q: float, rho: float, n: int, repetitions: int, random: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Draw outcomes of ``n`` pairs of real and simulated trials, and of simulated-only trials.

    ``p`` and ``q`` are the real and the simulated success rate, ``rho`` is the correlation of the outcomes of a pair.
    """
    both = p * q + rho * np.sqrt(p * (1 - p) * q * (1 - q))
    real = random.random((repetitions, n)) < p
    chance = np.where(real, both / p, (q - both) / (1 - p))
    sim = random.random((repetitions, n)) < chance
    more = random.random((repetitions, _RATIO * n)) < q
    return real.astype(float), sim.astype(float), more.astype(float)


def _counts(
    real: NDArray[np.float64], sim: NDArray[np.float64], more: NDArray[np.float64], truth: float
) -> tuple[dict[str, int], dict[str, float]]:
    covered: dict[str, int] = dict.fromkeys(("exact", *_FITTED), 0)
    width: dict[str, float] = dict.fromkeys(("alone", "exact", *_FITTED), 0.0)
    for f, g, h in zip(real, sim, more, strict=True):
        trials = PairedTrials(real=f, sim=g, more=h)
        intervals = {name: control_variate(trials, coefficient=name).mean for name in _FITTED}
        intervals["exact"] = post_stratified(trials)
        for name, interval in intervals.items():
            covered[name] += bool(interval.covers(truth))
            width[name] += float(interval.high - interval.low) / len(real)
        alone = clopper_pearson(int(f.sum()), len(f))
        width["alone"] += float(alone.high - alone.low) / len(real)
    return covered, width


TABLES: tuple[Study, ...] = (Study(name="estimate-coverage", page=_PAGE, repetitions=200, run=_coverage),)
