"""Measure tests and intervals of distances between two samples whose rows are correlated within an episode."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from benchmarks.studies import Study, StudyTable, share
from twinloop.core.seeds import generator
from twinloop.stats import classifier_test, energy_distance, kid, mmd, wasserstein
from twinloop.stats.two_sample import Array

PAGE = "evidence/gap.md"
_ROWS, _COLUMNS, _DRAWS = 10, 4, 199
_FEW_RESAMPLES = 20  # resamples if only the p-value is needed
_SIGMA = 2.0
_COUNTS = (6, 20)
# Share of variance that the rows of an episode have in common: none, half, nearly all (frames of a video).
_SHARED_VARIANCES = (0.0, 0.5, 0.9)
_PLANTED_DIFFERENCES = (("mean of one column + 0.5 sd", 0.5, 1.0), ("mean of one column + 1 sd", 1.0, 1.0),
            ("spread of one column × 1.5", 0.0, 1.5), ("spread of one column × 2.5", 0.0, 2.5))  # fmt: skip


def _sample(
    rng: np.random.Generator,
    count: int,
    shared_variance: float,
    *,
    shift: float = 0.0,
    spread: float = 1.0,
    columns: int = _COLUMNS,
) -> tuple[Array, NDArray[np.intp]]:
    """Draw Gaussian rows of unit variance for ``count`` episodes, and the episode number of each row.

    The rows of an episode have the share ``shared_variance`` of their variance in common. Column 0 is multiplied by
    ``spread``, then ``shift`` is added.
    """
    level = np.sqrt(shared_variance) * rng.standard_normal((count, 1, columns))
    rows = level + np.sqrt(1 - shared_variance) * rng.standard_normal((count, _ROWS, columns))
    rows[..., 0] = spread * rows[..., 0] + shift
    return rows.reshape(-1, columns), np.repeat(np.arange(count), _ROWS)


def _p_values(
    seed: int, run: int, count: int, shared_variance: float, *, shift: float = 0.0, spread: float = 1.0
) -> list[float]:
    """Return the p-value of every test with the episode as the unit, and last of an MMD test that permutes frames."""
    rng = generator(seed, f"study/distances/{count}/{shared_variance}/{shift}/{spread}", run)
    (x, cx), (y, cy) = (
        _sample(rng, count, shared_variance),
        _sample(rng, count, shared_variance, shift=shift, spread=spread),
    )
    keys = {"real_clusters": cx, "sim_clusters": cy, "draws": _DRAWS, "resamples": _FEW_RESAMPLES, "seed": seed + run}
    found = [
        mmd(x, y, **keys).p_value,
        kid(x, y, subsets=0, **keys).p_value,
        energy_distance(x, y, **keys).p_value,
        float(wasserstein(x, y, **keys).p_adjusted.min()),
        classifier_test(x, y, **keys).p_value,
    ]
    frames = mmd(
        x,
        y,
        real_clusters=np.arange(len(x)),
        sim_clusters=np.arange(len(y)),
        draws=_DRAWS,
        resamples=_FEW_RESAMPLES,
        seed=run,
    )
    return [*found, frames.p_value]


_TESTS = ("MMD", "KID", "energy distance", "W₁, any column", "classifier", "MMD, frames permuted (wrong)")


def _rates(
    repetitions: int, seed: int, count: int, shared_variance: float, **planted: float
) -> tuple[list[str], list[int]]:
    p = np.array([_p_values(seed, run, count, shared_variance, **planted) for run in range(repetitions)])
    alarms = np.sum(p <= 0.05 + 1e-9, axis=0).tolist()
    return [share(number, repetitions) for number in alarms], alarms


def _false_alarms(repetitions: int, seed: int) -> StudyTable:
    rows, metrics = [], []
    for shared_variance in _SHARED_VARIANCES:
        for count in _COUNTS:
            cells, alarms = _rates(repetitions, seed, count, shared_variance)
            rows.append((f"{shared_variance:.0%}", f"{count} + {count}", *cells))
            metrics.append(
                {"alike": shared_variance, "episodes": count, "alarms": dict(zip(_TESTS, alarms, strict=True))}
            )
    return StudyTable(
        title=f"False alarms at 5 %: both samples from one source, {_ROWS} rows of {_COLUMNS} columns per episode, "
        f"{_DRAWS} permutations, {repetitions} pairs of samples",
        head=("variance shared within an episode", "episodes", *_TESTS),
        rows=tuple(rows),
        note="The last column permutes frames instead of episodes. Frames of an episode are correlated, so this test "
        "detects a difference between any two sets of episodes.",
        metrics=tuple(metrics),
    )


def _power(repetitions: int, seed: int) -> StudyTable:
    rows, metrics = [], []
    for name, shift, spread in _PLANTED_DIFFERENCES:
        for count in _COUNTS:
            cells, detections = _rates(repetitions, seed, count, 0.5, shift=shift, spread=spread)
            rows.append((name, f"{count} + {count}", *cells[:-1]))
            metrics.append(
                {"planted": name, "episodes": count, "seen": dict(zip(_TESTS[:-1], detections, strict=False))}
            )
    return StudyTable(
        title="Planted differences that are detected at 5 %: rows of an episode share half of their variance, "
        f"{_ROWS} rows of {_COLUMNS} columns per episode, {repetitions} pairs of samples",
        head=("planted", "episodes", *_TESTS[:-1]),
        rows=tuple(rows),
        metrics=tuple(metrics),
    )


def _mmd_truth(shift: float) -> float:
    """Return the exact MMD² of N(0, I) and N(δ e₁, I), with δ = ``shift``; both kernel means are Gaussian integrals."""
    return float(
        2 * (_SIGMA**2 / (_SIGMA**2 + 2)) ** (_COLUMNS / 2) * (1 - np.exp(-(shift**2) / (2 * (_SIGMA**2 + 2))))
    )


def _energy_truth(shift: float) -> float:
    """Return the exact energy distance of N(0, 1) and N(δ, 1): twice E|Z| with Z ~ N(δ, 2), less 4 / √π."""
    mean = 2 / np.sqrt(np.pi) * np.exp(-(shift**2) / 4) + shift * erf(shift / 2)
    return float(2 * mean - 4 / np.sqrt(np.pi))


def _intervals_cover(seed: int, run: int, count: int, shift: float) -> list[bool]:
    """Return whether intervals cover the truth: MMD², energy distance, W₁ of shifted and other column, AUC of ½."""
    rng = generator(seed, f"study/intervals/{count}/{shift}", run)
    (x, cx), (y, cy) = _sample(rng, count, 0.5), _sample(rng, count, 0.5, shift=shift)
    keys = {"real_clusters": cx, "sim_clusters": cy, "resamples": 400, "seed": seed + run}
    columns = wasserstein(x, y, draws=_DRAWS, **keys).distance.covers([shift] + [0.0] * (_COLUMNS - 1))
    covered = [
        mmd(x, y, bandwidth=_SIGMA, draws=0, **keys).distance.covers(_mmd_truth(shift)),
        energy_distance(x[:, :1], y[:, :1], draws=0, **keys).distance.covers(_energy_truth(shift)),
        columns[0],
        columns[1],
    ]
    if shift == 0:
        covered.append(classifier_test(x, y, draws=0, **keys).auc.covers(0.5))
    return [bool(one) for one in covered]


def _coverage(repetitions: int, seed: int) -> StudyTable:
    rows, metrics = [], []
    for shift in (0.0, 0.6, 1.5):
        for count in (6, 20, 60):
            table = np.array([_intervals_cover(seed, run, count, shift) for run in range(repetitions)])
            covered_counts = table.sum(axis=0).tolist()
            cells = [share(number, repetitions) for number in covered_counts] + ["–"] * (5 - len(covered_counts))
            rows.append((f"{shift:g} sd", f"{count} + {count}", *cells))
            metrics.append({"shift": shift, "episodes": count, "held": covered_counts})
    return StudyTable(
        title=f"Coverage of 95 % intervals: one column of {_COLUMNS} is shifted, rows of an episode share half of "
        f"their variance, {_ROWS} rows per episode, {repetitions} pairs of samples",
        head=("shift", "episodes", "MMD²", "energy distance", "W₁, shifted column", "W₁, another column", "AUC of ½"),
        rows=tuple(rows),
        note="If the difference is almost zero, resamples of a U-statistic vary more than the statistic itself. The "
        "intervals of MMD² and energy distance are then wider than necessary.",
        metrics=tuple(metrics),
    )


def _study(name: str, repetitions: int, run: Callable[[int, int], StudyTable]) -> Study:
    return Study(name=name, page=PAGE, repetitions=repetitions, run=run)


TABLES = (
    _study("distances_false_alarms", 300, _false_alarms),
    _study("distances_power", 100, _power),
    _study("distances_coverage", 150, _coverage),
)
