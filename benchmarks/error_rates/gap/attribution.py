"""Test error attribution on known truths: coverage of the shares' intervals and rate of wrong claims.

The twin of the study is linear, so that the true shares are known in closed form: the error of an episode
is Φ (θ* − θ) + noise. The slopes Φ are correlated in time and between parameters, and their size varies by episode.
Two of four parameters are wrong. Parameters are fitted to 30 episodes by least squares, with a covariance clustered by
episode, and the error of other episodes is attributed. The code under test is the one that attributes real errors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.studies import Study, StudyTable, share
from twinloop.core.seeds import generator
from twinloop.gap.attribution.attribute import SquaredErrorShares
from twinloop.gap.attribution.design import DrawDesign, design
from twinloop.stats import bias_reduced_sandwich, sobol_indices, sobol_rows, sobol_terms

Array = NDArray[np.float64]
PAGE = "evidence/gap.md"
_PLANTED = np.array([1.0, 0.6, 0.0, 0.0])
_NAMES = ("first", "second", "third", "fourth")
_NOISE = 1.0  # standard deviation of readings; that of the slopes is 1
_FRAMES, _TRAINING, _DRAWS, _RESAMPLES = 60, 30, 12, 400
_UNEVEN = 0.4  # standard deviation of the logarithm of an episode's size
_COUNTS, _CORRELATIONS = (6, 10, 20), (0.0, 0.9)
_BASES = (32, 128)


@dataclass(frozen=True, kw_only=True)
class _Episodes:
    """Sums over frames for each of n episodes: ΦᵀΦ ``(n, 4, 4)``, Φᵀ noise ``(n, 4)``, noise² ``(n,)``."""

    gram: Array
    cross: Array
    noise: Array

    def errors(self, values: Array) -> Array:
        """Return squared errors ``(nworld, n)`` at parameter values ``(nworld, 4)``."""
        off = _PLANTED - values
        quadratic = np.einsum("wi,nij,wj->wn", off, self.gram, off)
        return quadratic + 2 * np.einsum("wi,ni->wn", off, self.cross) + self.noise


def _correlated_series(rng: np.random.Generator, shape: tuple[int, ...], correlated: float) -> Array:
    """Draw unit-variance series with lag-1 correlation 0.9 along axis 1.

    If there is an axis 2, its first series has correlation ``correlated`` with each of the other series.
    """
    white = rng.standard_normal(shape)
    values = np.empty(shape)
    values[:, 0] = white[:, 0]
    for frame in range(1, shape[1]):
        values[:, frame] = 0.9 * values[:, frame - 1] + np.sqrt(1 - 0.81) * white[:, frame]
    if len(shape) < 3:  # noise
        return values
    common = values[:, :, :1]
    return np.concatenate([common, correlated * common + np.sqrt(1 - correlated**2) * values[:, :, 1:]], axis=2)


def _episodes(rng: np.random.Generator, count: int, correlated: float) -> _Episodes:
    size = np.exp(_UNEVEN * rng.standard_normal((count, 1, 1)))
    slopes = size * _correlated_series(rng, (count, _FRAMES, len(_PLANTED)), correlated)
    noise = _NOISE * _correlated_series(rng, (count, _FRAMES), 0.0)
    return _Episodes(
        gram=np.einsum("nfi,nfj->nij", slopes, slopes),
        cross=np.einsum("nfi,nf->ni", slopes, noise),
        noise=np.sum(noise**2, axis=1),
    )


def _true_shares(correlated: float) -> Array:
    """Return the true shares of the four parameters and of the residual, ``(5,)``."""
    correlation = np.full((4, 4), correlated**2)
    correlation[0] = correlation[:, 0] = correlated
    np.fill_diagonal(correlation, 1.0)
    moment = correlation * np.exp(2 * _UNEVEN**2)
    own = _PLANTED * (moment @ _PLANTED)
    whole = own.sum() + _NOISE**2
    return np.append(own, _NOISE**2) / whole


def _fit_parameters(rng: np.random.Generator, correlated: float) -> tuple[Array, Array]:
    """Fit training episodes by least squares; return the estimate and its sandwich covariance (CR2)."""
    training = _episodes(rng, _TRAINING, correlated)
    step = np.linalg.solve(training.gram.sum(axis=0), training.cross.sum(axis=0))
    found = bias_reduced_sandwich(training.gram, training.cross - training.gram @ step)
    return _PLANTED + step, found.covariance


def _measure_shares(seed: int, run: int, count: int, correlated: float, *, draws: bool) -> SquaredErrorShares:
    rng = generator(seed, f"study/attribution/{count}/{correlated}", run)
    estimate, covariance = _fit_parameters(rng, correlated)
    measured = _episodes(rng, count, correlated)
    plan, drawing = design(4, exact=4, worlds=16, least_pairs=1), DrawDesign(ngroup=4, ndraw=_DRAWS)
    drawn = None
    if draws:
        one = np.eye(4, dtype=bool)
        each = np.concatenate([one, ~one, np.ones((1, 4), dtype=bool)])
        values = rng.multivariate_normal(estimate, covariance, size=_DRAWS)
        rows = np.concatenate([np.zeros((1, 4)), (values[:, None] * each).reshape(-1, 4)])
        drawn = drawing, measured.errors(rows)[..., None]
    return SquaredErrorShares(
        sums=measured.errors(plan.coalitions * estimate)[..., None],
        erring=np.array([True]),
        plan=plan,
        drawn=drawn,
        clusters=_TRAINING,
        level=0.95,
        resamples=_RESAMPLES,
        seed=seed + run,
    )


def shares_study(repetitions: int, seed: int) -> StudyTable:
    """Measure coverage of shares, wrong claims and power, with and without draws of the parameters."""
    rows, metrics = [], []
    for correlated in _CORRELATIONS:
        truth = _true_shares(correlated)
        for count in _COUNTS:
            for draws in (False, True) if count == _COUNTS[1] else (True,):
                counts = np.sum(
                    [_count_hits(seed, k, count, correlated, truth, draws=draws) for k in range(repetitions)], axis=0
                )
                cells = [share(int(c), repetitions * n) for c, n in zip(counts, (2, 2, 1, 1, 1), strict=True)]
                rows.append((f"{correlated:g}", str(count), "yes" if draws else "no", *cells))
                metrics.append(
                    {"alike": correlated, "episodes": count, "draws": draws}
                    | dict(zip(_METRICS, (counts / repetitions / (2, 2, 1, 1, 1)).tolist(), strict=True))
                )
    return StudyTable(
        title="Shares of a planted error: coverage of 95 % intervals, and claimed parameters",
        head=(
            "correlation",
            "episodes",
            "parameters drawn",
            "covers: at fault",
            "covers: not at fault",
            "covers: residual",
            "wrong claim",
            "largest found",
        ),
        rows=tuple(rows),
        note=f"{repetitions} logs each. *Correlation* is that of the first parameter's effect with the effects of the "
        "others. *Wrong claim*: a parameter that is not at fault is claimed (nominal at most 5 %). *Largest found*: "
        "the first claim is the parameter with the largest share, alone or together with parameters that the data "
        "cannot distinguish from it.",
        metrics=tuple(metrics),
    )


_METRICS = ("covers_at_fault", "covers_others", "covers_left", "blamed_wrongly", "largest_found")


def _count_hits(seed: int, run: int, count: int, correlated: float, truth: Array, *, draws: bool) -> Array:
    tally = _measure_shares(seed, run, count, correlated, draws=draws)
    interval = tally.shares("share").interval
    covers = interval.covers(truth[:4, None])[:, 0]
    causes = tally.causes(_NAMES)[0]
    claimed = [cause for cause in causes if cause.significant]
    wrong = any(set(cause.groups) <= {"third", "fourth"} for cause in claimed)
    left = bool(tally.remaining_shares().interval.covers(truth[4:, None])[0, 0])
    return np.array([covers[:2].sum(), covers[2:].sum(), left, wrong, bool(claimed) and "first" in claimed[0].groups])


def _ishigami(points: Array) -> Array:
    x = np.pi * (2 * points - 1)
    return np.sin(x[..., 0]) + 7 * np.sin(x[..., 1]) ** 2 + 0.1 * x[..., 2] ** 4 * np.sin(x[..., 0])


def _g_function(points: Array) -> Array:
    a = np.array([0.0, 1.0, 4.5, 9.0])
    return np.prod((np.abs(4 * points - 2) + a) / (1 + a), axis=-1)


def _ishigami_truth() -> tuple[Array, Array]:
    one, two, both = 0.5 * (1 + 0.1 * np.pi**4 / 5) ** 2, 49 / 8, 0.01 * np.pi**8 * (1 / 18 - 1 / 50)
    whole = one + two + both
    return np.array([one, two, 0.0]) / whole, np.array([one + both, two, both]) / whole


def _g_truth() -> tuple[Array, Array]:
    own = 1 / (3 * (1 + np.array([0.0, 1.0, 4.5, 9.0])) ** 2)
    whole = np.prod(1 + own) - 1
    return own / whole, own * np.prod(1 + own) / (1 + own) / whole


_CLOSED: tuple[tuple[str, int, Callable[[Array], Array], tuple[Array, Array]], ...] = (
    ("Ishigami", 3, _ishigami, _ishigami_truth()),
    ("Sobol' g", 4, _g_function, _g_truth()),
)


def sobol_study(repetitions: int, seed: int) -> StudyTable:
    """Measure coverage and error of Sobol' indices against closed forms."""
    rows, metrics = [], []
    for name, nfactor, function, truth in _CLOSED:
        for base in _BASES:
            covered, errors = np.zeros(2), np.zeros(2)
            for run in range(repetitions):
                values = function(sobol_rows(nfactor, base, seed=seed + run))
                found = sobol_indices(sobol_terms(values), draws=300, seed=seed + run)
                for order, (interval, exact) in enumerate(zip((found.first, found.total), truth, strict=True)):
                    covered[order] += interval.covers(exact).sum()
                    errors[order] += np.sum((interval.estimate - exact) ** 2)
            total = repetitions * nfactor
            rms = np.sqrt(errors / total)
            rows.append((name, str(base), *(share(int(c), total) for c in covered), *(f"{e:.3f}" for e in rms)))
            metrics.append({"function": name, "base": base, "covered": (covered / total).tolist(), "rms": rms.tolist()})
    return StudyTable(
        title="Sobol' indices against closed forms (nominal 95 %)",
        head=("function", "rows", "covers: first order", "covers: total", "error (RMS): first", "error (RMS): total"),
        rows=tuple(rows),
        note=f"{repetitions} designs each, with (number of factors + 2) worlds per row.",
        metrics=tuple(metrics),
    )


TABLES: tuple[Study, ...] = (
    Study(name="attribution", page=PAGE, repetitions=400, run=shares_study),
    Study(name="sobol", page=PAGE, repetitions=400, run=sobol_study),
)
