"""Checks of failure classes on a twin's errors: a gap too wide, another environment, drift since calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from twinloop.core.errors import InputError
from twinloop.core.headline import Headline
from twinloop.gap.classes_result import ALPHA, Check, Kind
from twinloop.stats import (
    Interval,
    bootstrap,
    group_test,
)

Array = NDArray[np.float64]

_FEW = 2  # episodes on either side of a change, or in each environment


@dataclass(frozen=True, kw_only=True)
class Errors:
    """A twin's error in each episode over that of holding the first frame, ``(nepisode, nchannel)``, in order of time.

    The relation takes out that some episodes move more than others.
    """

    channels: tuple[str, ...]
    values: Array
    numbers: tuple[int, ...]


def gap_too_wide(
    figures: Sequence[Headline], limits: Mapping[str, float], *, episodes: int, remedy: Sequence[str] = ()
) -> list[Check]:
    """A check of each figure for which there is a limit, as if the figure were normal with its interval's width.

    Args:
        figures: of a measured gap, with intervals.
        limits: by the first word of a figure's name (``skill`` of ``skill/elbow_flex``).
        episodes: behind the intervals.
        remedy: commands.
    """
    found = []
    for figure in figures:
        limit = limits.get(figure.name.partition("/")[0], limits.get(figure.name))
        if limit is None:
            continue
        worst, best = (figure.low, figure.high) if figure.better == "higher" else (figure.high, figure.low)
        short = (lambda value, at=limit: value < at) if figure.better == "higher" else (lambda v, at=limit: v > at)
        words = (
            f"{figure.name} is {figure.estimate:.3g} ({figure.low:.3g} to {figure.high:.3g}), "
            f"{'at least' if figure.better == 'higher' else 'at most'} {limit:g} is wanted"
        )
        needed = ""
        if math.isnan(worst) or math.isnan(best):
            needed = f"it has no interval ({figure.method or 'one episode'}); give more episodes"
        elif short(figure.estimate) and not short(best):
            half = abs(best - figure.estimate) / max(abs(figure.estimate - limit), 1e-12)
            needed = f"about {math.ceil(episodes * half**2 - 1e-6)} episodes like these {episodes} would decide it"
        found.append(
            Check(
                kind="gap_too_wide",
                subject=figure.name,
                fired=bool(short(figure.estimate)),
                evidence=words,
                figure=_interval(figure),
                p_value=_beyond(figure, limit, best),
                needed=needed,
                remedy=tuple(remedy),
            )
        )
    return found


def _beyond(figure: Headline, limit: float, best: float) -> float:
    """One-sided p-value that the figure is no worse than its limit; 1 without an interval."""
    width = abs(best - figure.estimate)
    if not math.isfinite(width):
        return 1.0
    off = (limit - figure.estimate) * (1.0 if figure.better == "higher" else -1.0)
    return float(ndtr(-off / max(width / ndtri((1 + figure.level) / 2), np.finfo(float).tiny)))


def _interval(figure: Headline) -> Interval:
    ends = (np.array(value) for value in (figure.estimate, figure.low, figure.high))
    estimate, low, high = ends
    return Interval(estimate=estimate, low=low, high=high, level=figure.level, method=figure.method)


def drift_since(errors: Errors, first: int, *, seed: int = 0, remedy: Sequence[str] = ()) -> list[Check]:
    """Whether errors after a calibration are larger than those before, by permutation of episodes.

    Args:
        errors: of the twin that was calibrated.
        first: position of the first episode after the calibration.
        seed: of permutations.
        remedy: commands.

    Raises:
        InputError: fewer than two episodes on either side; says how many there are.
    """
    count = len(errors.values)
    if not _FEW <= first <= count - _FEW:
        raise InputError(
            f"{first} episodes lie before the calibration and {count - first} after it; a comparison needs at least "
            f"{_FEW} of each."
        )
    after = np.arange(count) >= first
    test = group_test(errors.values, after.astype(int), np.arange(count), draws=_draws(len(errors.channels)), seed=seed)
    return [
        _grown(
            "drift",
            name,
            errors.values[~after, i],
            errors.values[after, i],
            float(test.p_change[i]),
            seed,
            tuple(remedy),
        )
        for i, name in enumerate(errors.channels)
    ]


def other_environment(
    here: Errors, there: Errors, *, name: str = "there", seed: int = 0, remedy: Sequence[str] = ()
) -> list[Check]:
    """Whether the twin's error is larger in the log of another environment, by permutation of episodes.

    Raises:
        InputError: unlike channels, or fewer than two episodes on either side.
    """
    if here.channels != there.channels:
        raise InputError(
            f"The logs have unlike channels: {', '.join(here.channels)} and {', '.join(there.channels)}. Compare the "
            "same."
        )
    sizes = len(here.values), len(there.values)
    if min(sizes) < _FEW:
        raise InputError(f"{sizes[0]} and {sizes[1]} episodes: give at least {_FEW} of each environment.")
    both = np.concatenate([here.values, there.values])
    group = np.repeat([0, 1], sizes)
    test = group_test(both, group, np.arange(len(both)), draws=_draws(len(here.channels)), seed=seed)
    return [
        _grown(
            "other_environment",
            f"{channel} in {name}",
            here.values[:, i],
            there.values[:, i],
            float(test.p_change[i]),
            seed,
            tuple(remedy),
        )
        for i, channel in enumerate(here.channels)
    ]


def _draws(tests: int) -> int:
    """Permutations that leave Holm over so many tests room below ``ALPHA``."""
    return max(4999, math.ceil(20 * tests / ALPHA))


def _grown(
    kind: Kind, subject: str, before: Array, after: Array, p_value: float, seed: int, remedy: tuple[str, ...]
) -> Check:
    ratio = _ratio(before, after, seed)
    estimate, low, high = (float(part) for part in (ratio.estimate, ratio.low, ratio.high))
    than = "what it was before" if kind == "drift" else "that here"
    orders = math.comb(len(before) + len(after), len(before))
    few = f"{len(before)} and {len(after)} episodes have only {orders} orders, at least {round(1 / ALPHA)} are needed"
    return Check(
        kind=kind,
        subject=subject,
        fired=estimate > 1.0,
        evidence=f"the twin's error of {subject} is {estimate:.2f} times ({low:.2f} to {high:.2f}) {than}, "
        f"{len(after)} episodes against {len(before)}",
        figure=ratio,
        p_value=p_value,
        needed=few if orders * ALPHA < 1 else "",
        remedy=remedy,
    )


def _ratio(before: Array, after: Array, seed: int) -> Interval:
    """Mean of the second over mean of the first, both resampled; clusters are episodes of either side."""
    values, side = np.concatenate([before, after]), np.repeat([0, 1], [len(before), len(after)])

    def figure(rows: NDArray[np.intp]) -> Array:
        drawn, late = values[rows], side[rows] == 1
        sums = [
            np.where(chosen, drawn, 0.0).sum(axis=1) / np.maximum(chosen.sum(axis=1), 1) for chosen in (~late, late)
        ]
        return sums[1] / np.maximum(sums[0], np.finfo(float).tiny)

    return bootstrap(figure, len(values), method="percentile", seed=seed)


def errors_of(channels: Sequence[str], twin: ArrayLike, hold: ArrayLike, numbers: Sequence[int]) -> Errors:
    """Relative errors of mean absolute errors of a twin and of holding still, ``(nepisode, nchannel)`` each.

    What does not move in most episodes is left out; in an episode in which a channel moves less than a hundredth of
    what it usually does, that much is put in place of its motion.
    """
    errors, still = np.asarray(twin, dtype=np.float64), np.asarray(hold, dtype=np.float64)
    usual = np.median(still, axis=0)
    moves = np.flatnonzero(usual > 0).tolist()
    return Errors(
        channels=tuple(channels[i] for i in moves),
        values=(errors / np.maximum(still, 0.01 * usual + np.finfo(float).tiny))[:, moves],
        numbers=tuple(numbers),
    )
