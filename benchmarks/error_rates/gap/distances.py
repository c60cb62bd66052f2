"""Tests and intervals of distances between samples, where rows of an episode resemble each other."""

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
_FEW = 20  # resamples where only the p-value counts
_SIGMA = 2.0
_COUNTS = (6, 20)
# The share of variance that rows of an episode have in common: none, half, nearly all (frames of a video).
_ALIKE = (0.0, 0.5, 0.9)
_PLANTED = (("mean of one column + 0.5 sd", 0.5, 1.0), ("mean of one column + 1 sd", 1.0, 1.0),
            ("spread of one column × 1.5", 0.0, 1.5), ("spread of one column × 2.5", 0.0, 2.5))  # fmt: skip


def _sample(
    rng: np.random.Generator,
    count: int,
    alike: float,
    *,
    shift: float = 0.0,
    spread: float = 1.0,
    columns: int = _COLUMNS,
) -> tuple[Array, NDArray[np.intp]]:
    """Gaussian rows of unit variance of ``count`` episodes, and the episodes' numbers; column 0 has what is planted."""
    level = np.sqrt(alike) * rng.standard_normal((count, 1, columns))
    rows = level + np.sqrt(1 - alike) * rng.standard_normal((count, _ROWS, columns))
    rows[..., 0] = spread * rows[..., 0] + shift
    return rows.reshape(-1, columns), np.repeat(np.arange(count), _ROWS)


def _p_values(seed: int, run: int, count: int, alike: float, *, shift: float = 0.0, spread: float = 1.0) -> list[float]:
    """Of every test with the episode as the unit, and last of MMD that relabels frames."""
    rng = generator(seed, f"study/distances/{count}/{alike}/{shift}/{spread}", run)
    (x, cx), (y, cy) = _sample(rng, count, alike), _sample(rng, count, alike, shift=shift, spread=spread)
    keys = {"real_clusters": cx, "sim_clusters": cy, "draws": _DRAWS, "resamples": _FEW, "seed": seed + run}
    found = [
        mmd(x, y, **keys).p_value,
        kid(x, y, subsets=0, **keys).p_value,
        energy_distance(x, y, **keys).p_value,
        float(wasserstein(x, y, **keys).p_adjusted.min()),
        classifier_test(x, y, **keys).p_value,
    ]
    frames = mmd(
        x, y, real_clusters=np.arange(len(x)), sim_clusters=np.arange(len(y)), draws=_DRAWS, resamples=_FEW, seed=run
    )
    return [*found, frames.p_value]


_TESTS = ("MMD", "KID", "energy distance", "W₁, any column", "classifier", "MMD, frames permuted (wrong)")


def _rates(repetitions: int, seed: int, count: int, alike: float, **planted: float) -> tuple[list[str], list[int]]:
    p = np.array([_p_values(seed, run, count, alike, **planted) for run in range(repetitions)])
    alarms = np.sum(p <= 0.05 + 1e-9, axis=0).tolist()
    return [share(number, repetitions) for number in alarms], alarms


def _false_alarms(repetitions: int, seed: int) -> StudyTable:
    rows, figures = [], []
    for alike in _ALIKE:
        for count in _COUNTS:
            told, alarms = _rates(repetitions, seed, count, alike)
            rows.append((f"{alike:.0%}", f"{count} + {count}", *told))
            figures.append({"alike": alike, "episodes": count, "alarms": dict(zip(_TESTS, alarms, strict=True))})
    return StudyTable(
        title=f"False alarms at 5 %: both samples from one source, {_ROWS} rows of {_COLUMNS} columns per episode, "
        f"{_DRAWS} permutations, {repetitions} pairs of samples",
        head=("variance shared within an episode", "episodes", *_TESTS),
        rows=tuple(rows),
        note="The last column permutes frames instead of episodes. Frames of an episode are correlated, so this test "
        "detects a difference between any two sets of episodes.",
        figures=tuple(figures),
    )


def _power(repetitions: int, seed: int) -> StudyTable:
    rows, figures = [], []
    for name, shift, spread in _PLANTED:
        for count in _COUNTS:
            told, seen = _rates(repetitions, seed, count, 0.5, shift=shift, spread=spread)
            rows.append((name, f"{count} + {count}", *told[:-1]))
            figures.append({"planted": name, "episodes": count, "seen": dict(zip(_TESTS[:-1], seen, strict=False))})
    return StudyTable(
        title="Planted differences that are detected at 5 %: rows of an episode share half of their variance, "
        f"{_ROWS} rows of {_COLUMNS} columns per episode, {repetitions} pairs of samples",
        head=("planted", "episodes", *_TESTS[:-1]),
        rows=tuple(rows),
        figures=tuple(figures),
    )


def _mmd_truth(shift: float) -> float:
    """MMD² of N(0, I) and N(δ e₁, I): both kernels' means are Gaussian integrals."""
    return float(
        2 * (_SIGMA**2 / (_SIGMA**2 + 2)) ** (_COLUMNS / 2) * (1 - np.exp(-(shift**2) / (2 * (_SIGMA**2 + 2))))
    )


def _energy_truth(shift: float) -> float:
    """Energy distance of N(0, 1) and N(δ, 1): twice E|Z|, Z ~ N(δ, 2), less 4 / √π."""
    mean = 2 / np.sqrt(np.pi) * np.exp(-(shift**2) / 4) + shift * erf(shift / 2)
    return float(2 * mean - 4 / np.sqrt(np.pi))


def _covered(seed: int, run: int, count: int, shift: float) -> list[bool]:
    """Whether intervals hold the truth: MMD², energy distance, W₁ of the shifted column, W₁ of another, AUC of ½."""
    rng = generator(seed, f"study/intervals/{count}/{shift}", run)
    (x, cx), (y, cy) = _sample(rng, count, 0.5), _sample(rng, count, 0.5, shift=shift)
    keys = {"real_clusters": cx, "sim_clusters": cy, "resamples": 400, "seed": seed + run}
    columns = wasserstein(x, y, draws=_DRAWS, **keys).distance.covers([shift] + [0.0] * (_COLUMNS - 1))
    known = [
        mmd(x, y, bandwidth=_SIGMA, draws=0, **keys).distance.covers(_mmd_truth(shift)),
        energy_distance(x[:, :1], y[:, :1], draws=0, **keys).distance.covers(_energy_truth(shift)),
        columns[0],
        columns[1],
    ]
    if shift == 0:
        known.append(classifier_test(x, y, draws=0, **keys).auc.covers(0.5))
    return [bool(one) for one in known]


def _coverage(repetitions: int, seed: int) -> StudyTable:
    rows, figures = [], []
    for shift in (0.0, 0.6, 1.5):
        for count in (6, 20, 60):
            table = np.array([_covered(seed, run, count, shift) for run in range(repetitions)])
            held = table.sum(axis=0).tolist()
            told = [share(number, repetitions) for number in held] + ["–"] * (5 - len(held))
            rows.append((f"{shift:g} sd", f"{count} + {count}", *told))
            figures.append({"shift": shift, "episodes": count, "held": held})
    return StudyTable(
        title=f"Coverage of 95 % intervals: one column of {_COLUMNS} is shifted, rows of an episode share half of "
        f"their variance, {_ROWS} rows per episode, {repetitions} pairs of samples",
        head=("shift", "episodes", "MMD²", "energy distance", "W₁, shifted column", "W₁, another column", "AUC of ½"),
        rows=tuple(rows),
        note="If the difference is almost zero, resamples of a U-statistic vary more than the statistic itself. The "
        "intervals of MMD² and energy distance are then wider than necessary.",
        figures=tuple(figures),
    )


def _study(name: str, repetitions: int, run: Callable[[int, int], StudyTable]) -> Study:
    return Study(name=name, page=PAGE, repetitions=repetitions, run=run)


TABLES = (
    _study("distances_false_alarms", 300, _false_alarms),
    _study("distances_power", 100, _power),
    _study("distances_coverage", 150, _coverage),
)
