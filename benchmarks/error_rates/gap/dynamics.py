"""Measure coverage of the intervals of skill and gap ratio, and how often a correct twin is reported as wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.studies import Study, StudyTable, share
from twinloop.core.seeds import generator
from twinloop.gap.dynamics.errors import WindowErrors
from twinloop.gap.dynamics.intervals import resample_episodes
from twinloop.gap.dynamics.metrics import skill_statistic
from twinloop.gap.dynamics.noise_floor import RepeatPairs, noise_floor
from twinloop.simulate.channels import MeasuredChannel

Array = NDArray[np.float64]
_FRAMES = 100  # frames of an episode; its errors are an AR(1) series with correlation _RHO
_RHO = 0.95
_LEVEL_SPREAD = 0.3  # standard deviation of the logarithm of an episode's error level: a factor of 1.35
_EPISODES = (4, 6, 10, 20, 40)
_RATIOS = (1.0, 1.2, 1.5)
_BASELINE = 2.0  # RMSE of the baseline, if that of a correct twin is 1
_CHANNELS = (MeasuredChannel(name="position/joint", unit="rad"),)


@dataclass(frozen=True, kw_only=True)
class _Tally:
    """Numbers of repetitions whose interval covers the truth, and whose interval is above 1 (skill: above truth)."""

    covered: int
    above: int


def _deviations(rng: np.random.Generator, count: int) -> Array:
    """Draw deviations of repeated runs from their expected motion, ``(count, frames)``.

    They are AR(1) series whose size differs between episodes.
    """
    white = rng.standard_normal((count, _FRAMES))
    series = np.empty_like(white)
    series[:, 0] = white[:, 0]
    for frame in range(1, _FRAMES):
        series[:, frame] = _RHO * series[:, frame - 1] + np.sqrt(1 - _RHO**2) * white[:, frame]
    level = np.exp(_LEVEL_SPREAD * rng.standard_normal((count, 1)) - _LEVEL_SPREAD**2)  # its square has mean 1
    return level * series


def _errors(rows: Array) -> WindowErrors:
    """Sum errors ``(nworld, nepisode, frames)`` of one channel per episode."""
    return WindowErrors(
        squared=np.sum(rows**2, axis=2)[..., None, None],
        absolute=np.sum(np.abs(rows), axis=2)[..., None, None],
        count=np.full((rows.shape[1], 1, 1), float(rows.shape[2])),
        edges=np.array([0.0, 1.0]),
        channels=_CHANNELS,
        episodes=tuple(range(rows.shape[1])),
    )


def _pairs(runs: Array, group: NDArray[np.intp]) -> RepeatPairs:
    """Return all pairs of runs within the same group."""
    first, second = np.triu_indices(len(runs), k=1)
    same = group[first] == group[second]
    first, second = first[same], second[same]
    return RepeatPairs(
        episodes=tuple(range(len(runs))),
        group=group,
        first=first,
        second=second,
        squared=0.5 * np.sum((runs[first] - runs[second]) ** 2, axis=1)[:, None, None],
        count=np.full((len(first), 1, 1), float(_FRAMES)),
    )


def _twin_error(ratio: float) -> Array:
    """Return a twin's error ``(frames,)`` for which its gap ratio is ``ratio``, if runs deviate by 1."""
    return np.sqrt(2 * (ratio**2 - 1)) * np.sin(2 * np.pi * np.arange(_FRAMES) / _FRAMES)


def ratio_tally(count: int, group: NDArray[np.intp], ratio: float, repetitions: int, seed: int) -> _Tally:
    """Count gap-ratio intervals that cover the true ``ratio`` or exceed 1.

    ``count`` is the number of repeated runs, ``group`` ``(count,)`` the index of each run's motion.
    """
    covered = above = 0
    for repetition in range(repetitions):
        runs = _deviations(generator(seed, f"study/ratio/{repetition}"), count)
        pairs = _pairs(runs, group)
        errors = _errors((runs - _twin_error(ratio))[None])
        floor = noise_floor(pairs, errors, ["twin"], np.ones(1), rule_text="study", level=0.95, seed=repetition)
        found = floor.overall["twin"]
        covered += bool(found.covers(ratio))
        above += bool(found.low > 1.0)
    return _Tally(covered=covered, above=above)


def skill_tally(count: int, repetitions: int, seed: int) -> _Tally:
    """Count skill intervals that cover the truth or exceed it, for ``count`` episodes; the true skill is 1 − 1 / 2."""
    covered = above = 0
    for repetition in range(repetitions):
        rng = generator(seed, f"study/skill/{repetition}")
        errors = _errors(np.stack([_deviations(rng, count), _BASELINE * _deviations(rng, count)]))
        found = resample_episodes(count, level=0.95, seed=repetition).interval(skill_statistic(errors, 0, [1]))
        covered += bool(found.covers(1 - 1 / _BASELINE)[0])
        above += bool(found.low[0] > 1 - 1 / _BASELINE)
    return _Tally(covered=covered, above=above)


def _ratio_study(repetitions: int, seed: int) -> StudyTable:
    arrangements = [(f"{n} of one motion", n, np.zeros(n, dtype=np.intp)) for n in _EPISODES]
    arrangements += [(f"2 of each of {n} motions", 2 * n, np.repeat(np.arange(n), 2)) for n in (8, 20)]
    rows, metrics = [], []
    for name, count, group in arrangements:
        cells = []
        for ratio in _RATIOS:
            tally = ratio_tally(count, group, ratio, repetitions, seed)
            cells += [share(tally.covered, repetitions), share(tally.above, repetitions)]
            metrics.append({"repeats": name, "ratio": ratio, "covered": tally.covered, "above": tally.above})
        rows.append((name, *cells))
    return StudyTable(
        title="Coverage of 95 % intervals of the gap ratio, and share of intervals above 1",
        head=("repeats", *(word for ratio in _RATIOS for word in (f"ratio {ratio:g}: covered", "above 1"))),
        rows=tuple(rows),
        note="If the ratio is 1, the twin is right, and an interval above 1 is a false alarm (nominal 2.5 %). Runs "
        "deviate by AR(1) series with correlation 0.95, in some episodes by 1.35 times as much as in others.",
        metrics=tuple(metrics),
    )


def _skill_study(repetitions: int, seed: int) -> StudyTable:
    rows, metrics = [], []
    for count in _EPISODES:
        tally = skill_tally(count, repetitions, seed)
        rows.append((str(count), share(tally.covered, repetitions), share(tally.above, repetitions)))
        metrics.append({"episodes": count, "covered": tally.covered, "above": tally.above})
    return StudyTable(
        title="Coverage of 95 % intervals of the skill; the true skill is 0.5",
        head=("episodes", "covered", "too high"),
        rows=tuple(rows),
        note="Errors of the twin and of the baseline are drawn independently, so pairing does not narrow the "
        "intervals.",
        metrics=tuple(metrics),
    )


TABLES = (
    Study(name="gap_ratio", page="evidence/gap.md", repetitions=120, run=_ratio_study),
    Study(name="skill", page="evidence/gap.md", repetitions=400, run=_skill_study),
)
