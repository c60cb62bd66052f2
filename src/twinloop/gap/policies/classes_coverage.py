"""Test whether real conditions and states are outside the range seen in training.

The tests are exact and assume no particular distribution. The number of real values outside the range of the training
values is beta-binomial (Wilks, 1941).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import betabinom

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError
from twinloop.core.records import Episode, freeze_fields
from twinloop.gap.policies.classes_result import ALPHA, ClassCheck
from twinloop.gap.policies.paired_trials import success_table
from twinloop.stats import difference_interval

Array = NDArray[np.float64]
_SHOWN = 6  # names in a message
_SIGMAS = 1.96  # a range has the middle 95 % of a normal distribution


@dataclass(frozen=True, kw_only=True)
class TrainingSupport:
    """Conditions and states that occurred in training, with which real episodes are compared.

    Attributes:
        names: Names of the d axes. An axis is one number per episode, such as a condition or the largest joint
            position.
        values: Values of the training episodes, shape ``(n, d)``; NaN if unknown. May have no rows if ``bounds`` are
            given.
        bounds: Declared ranges, shape ``(d, 2)``, of a randomization or an identified distribution. A real value
            outside them counts as outside without a statistical test.
        origin: Description of the source for messages.
    """

    names: tuple[str, ...]
    values: Array
    bounds: Array | None = None
    origin: str = "training"

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", np.reshape(self.values, (-1, len(self.names))))
        freeze_fields(self, "values", "bounds")

    @classmethod
    def of_distribution(cls, found: ParamDistribution, origin: str) -> TrainingSupport:
        """Create the ranges of an identified distribution: each parameter's mean ± 1.96 standard deviations.

        For parameters that are identified as a logarithm, mean and deviation are those of the logarithm.

        Args:
            found: Identified distribution.
            origin: Description of the source for messages.
        """
        sd = np.sqrt(np.maximum(np.diag(found.covariance), 0.0) * found.kappa) * _SIGMAS
        ends = np.stack([found.mean - sd, found.mean + sd], axis=-1)
        log = np.array([kind == "log" for kind in found.transforms])[:, None]
        bounds = np.where(log, np.exp(np.minimum(ends, np.log(np.finfo(float).max))), ends)
        return cls(names=found.names, values=np.empty((0, len(found.names))), bounds=bounds, origin=origin)


def visited_axes(episodes: Sequence[Episode]) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Return the names of the axes and their values for each episode, shape ``(nepisode, naxis)``; NaN if unknown.

    The axes are the smallest and largest position and the 99th percentile of the speed of every joint, in SI units if
    the episode's units are known, and the episode's conditions.
    """
    tables = []
    for episode in episodes:
        state = episode.units.to_si(episode.state) if episode.units.known else np.asarray(episode.state)
        speed = np.abs(np.gradient(state, episode.time, axis=0)) if len(episode) > 1 else np.zeros_like(state)
        row = dict(episode.conditions)
        for i, joint in enumerate(episode.joints):
            row |= {f"lowest {joint}": state[:, i].min(), f"highest {joint}": state[:, i].max()}
            row[f"fastest {joint}"] = np.quantile(speed[:, i], 0.99)  # the largest difference is often a glitch
        tables.append(row)
    names = tuple(dict.fromkeys(name for row in tables for name in row))
    return names, np.array([[row.get(name, np.nan) for name in names] for row in tables], dtype=np.float64)


def outside_p_value(outside: int, real: int, training: int) -> float:
    """Return the probability that at least ``outside`` of ``real`` values are outside the range of ``training`` values.

    Under the null hypothesis both samples have the same distribution. The range from the smallest to the largest of n
    values contains a fraction of the distribution that is Beta(n − 1, 2) distributed, for every distribution (Wilks,
    Annals of Mathematical Statistics 12, 1941). The number of values outside is then beta-binomial. Ties make the test
    conservative.

    Args:
        outside: Number of real values outside the range.
        real: Number of real values.
        training: Number of training values.
    """
    if not outside or training < 2:
        return 1.0
    return round(float(betabinom.sf(outside - 1, real, 2, training - 1)), 12)  # without rounding errors: 2 / 40 is 0.05


def check_axis_coverage(
    support: TrainingSupport,
    names: Sequence[str],
    real: ArrayLike,
    *,
    success: Sequence[bool] | None = None,
    remedy: Sequence[str] = (),
) -> list[ClassCheck]:
    """Check for every axis that training and reality share whether real values are outside the values of training.

    Args:
        support: The values that occurred in training.
        names: Names of the k real axes.
        real: Values of m real episodes or trials, shape ``(m, k)``; NaN if unknown.
        success: Success of each of the m rows. If given, the success rates inside and outside are reported.
        remedy: Shell commands that may help; copied into the result.

    Raises:
        InputError: If there is no common axis.
    """
    rows = np.asarray(real, dtype=np.float64).reshape(-1, len(names))
    common = [name for name in names if name in support.names]
    if not common:
        raise InputError(
            f"Training ({support.origin}) has {_format_names(support.names)}, reality has {_format_names(names)}. "
            "Give both "
            "the same names, such as a log's conditions and a twin's parameters, or a dataset of the same joints."
        )
    return [
        _check_axis(support, name, rows[:, list(names).index(name)], len(common), success, tuple(remedy))
        for name in common
    ]


def _format_names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown or "nothing"


def _check_axis(
    support: TrainingSupport,
    name: str,
    real: Array,
    tests: int,
    success: Sequence[bool] | None,
    remedy: tuple[str, ...],
) -> ClassCheck:
    column = support.names.index(name)
    visited = support.values[:, column]
    visited, known = visited[~np.isnan(visited)], ~np.isnan(real)
    low, high = (visited.min(), visited.max()) if len(visited) else (-math.inf, math.inf)
    bounds = None if support.bounds is None else support.bounds[column]
    declared = bounds is not None and bool(np.isfinite(bounds).all())
    if bounds is not None and declared:
        low, high = bounds
    outside = known & ((real < low) | (real > high))
    count, total = int(outside.sum()), int(known.sum())
    words = f"{count} of {total} real {name} are outside {low:.4g} to {high:.4g} of {support.origin}"
    if count:
        words += f" (as far as {real[outside][np.argmax(np.maximum(low - real[outside], real[outside] - high))]:.4g})"
    words += _format_outcomes(outside, known, success)
    made = ClassCheck(kind="never_covered", subject=name, fired=count > 0, evidence=words, remedy=remedy)
    if declared:
        return replace(made, p_value=0.0 if count else 1.0)
    p_value = outside_p_value(count, total, len(visited))
    return replace(made, p_value=p_value, needed=_format_needed_episodes(total, tests, len(visited)) if count else "")


def _format_needed_episodes(real: int, tests: int, training: int) -> str:
    """Return a message with the number of training episodes that a significant result needs; empty if there are enough.

    Args:
        real: Number of real episodes.
        tests: Number of tests that are made together.
        training: Number of training episodes.
    """
    if outside_p_value(real, real, training) <= ALPHA / tests:
        return ""
    wanted = next((n for n in range(2, 100_000) if outside_p_value(real, real, n) <= ALPHA / tests), 100_000)
    return f"{training} training episodes are too few for {real} real ones; use {wanted} or declared ranges"


def _format_outcomes(outside: NDArray[np.bool_], known: NDArray[np.bool_], success: Sequence[bool] | None) -> str:
    inside = known & ~outside
    if success is None or not outside.any() or not inside.any():
        return ""
    won = np.asarray(success, dtype=bool)
    table = success_table(won[inside], won[outside])
    gap = difference_interval(table)
    return (
        f"; of those outside {table.successes_b} of {table.trials_b} succeed, of those inside {table.successes_a} of "
        f"{table.trials_a} ({100 * float(gap.low):+.0f} to {100 * float(gap.high):+.0f} points)"
    )


def check_combination_coverage(
    support: TrainingSupport, names: Sequence[str], real: ArrayLike, *, remedy: Sequence[str] = ()
) -> ClassCheck | None:
    """Check whether real combinations of axis values are unusually far from the training episodes.

    The statistic is the distance to the nearest training episode, with each axis divided by its standard deviation. It
    is compared with the same distances of the training episodes: (1 + number at least as far) / (1 + n) is a valid
    p-value (conformal prediction: Vovk, Gammerman & Shafer, "Algorithmic Learning in a Random World", 2005). The
    smallest p-value of the m real rows is multiplied by m (Bonferroni).

    Args:
        support: The values that occurred in training.
        names: Names of the k real axes.
        real: Values of m real episodes or trials, shape ``(m, k)``; rows with NaN are ignored.
        remedy: Shell commands that may help; copied into the result.

    Returns:
        The check; None if there are fewer than two common axes or fewer than three training episodes.
    """
    common = [name for name in names if name in support.names]
    rows = np.asarray(real, dtype=np.float64).reshape(-1, len(names))[:, [list(names).index(n) for n in common]]
    seen = support.values[:, [support.names.index(name) for name in common]]
    rows, seen = rows[~np.isnan(rows).any(axis=1)], seen[~np.isnan(seen).any(axis=1)]
    if len(common) < 2 or len(seen) < 3 or not len(rows):
        return None
    spread = np.where(seen.std(axis=0) > 0, seen.std(axis=0), 1.0)
    points = seen / spread
    own = np.array(
        [np.partition(np.linalg.norm(points - row, axis=1), 1)[1] for row in points]
    )  # the nearest other one
    far = np.array([np.linalg.norm(points - row, axis=1).min() for row in rows / spread])
    each = (1.0 + np.sum(own[None] >= far[:, None], axis=1)) / (1.0 + len(own))
    worst = int(np.argmin(each))
    where = ", ".join(f"{name} {value:.4g}" for name, value in zip(common, rows[worst], strict=True))
    words = (
        f"the real combination {where} is {far[worst]:.2f} standard deviations from the nearest of {len(seen)} "
        f"training episodes; 95 % of those are within {np.quantile(own, 0.95):.2f} of another"
    )
    enough = f"{len(seen)} training episodes are too few for {len(rows)} real ones; use {math.ceil(len(rows) / ALPHA)}"
    return ClassCheck(
        kind="never_covered",
        subject=f"combination of {len(common)} axes",
        fired=True,
        evidence=words,
        p_value=min(1.0, float(len(each) * each[worst])),
        needed=enough if len(rows) / (1.0 + len(seen)) > ALPHA else "",
        remedy=tuple(remedy),
    )
