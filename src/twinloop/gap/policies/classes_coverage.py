"""Test whether real conditions and states are outside those of training, by exact distribution-free tests."""

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
    """Values visited in training: ``(n, d)`` of named axes, one row per training episode, NaN if unknown.

    ``bounds`` ``(d, 2)`` are declared ranges (of a randomization, of an identified distribution); with them every value
    outside counts without a test, and rows may be absent. ``origin`` describes the source.
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
        """Return the ranges of an identified distribution: 1.96 standard deviations to each side."""
        sd = np.sqrt(np.maximum(np.diag(found.covariance), 0.0) * found.kappa) * _SIGMAS
        ends = np.stack([found.mean - sd, found.mean + sd], axis=-1)
        log = np.array([kind == "log" for kind in found.transforms])[:, None]
        bounds = np.where(log, np.exp(np.minimum(ends, np.log(np.finfo(float).max))), ends)
        return cls(names=found.names, values=np.empty((0, len(found.names))), bounds=bounds, origin=origin)


def visited_axes(episodes: Sequence[Episode]) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Return the axes of each episode: extent and fastest speed of every joint in SI, and its conditions."""
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
    """Return the probability that at least ``outside`` of ``real`` values leave the range of ``training`` values.

    Both samples have the same distribution under the null hypothesis. The range from the smallest to the largest of n
    values contains a part of the distribution that is Beta(n − 1, 2), for every distribution (Wilks, Annals of
    Mathematical Statistics 12, 1941); the number outside is then beta-binomial. Ties make the test conservative.
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
    """Check every axis that training and reality have in common.

    Args:
        support: the values visited in training.
        names: names of the real axes.
        real: real episodes or trials, ``(m, k)``; NaN if unknown.
        success: success of each row, to report the success of those outside.
        remedy: shell commands that may help.

    Raises:
        InputError: there is no common axis.
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
    """Return a message with the number of training episodes that the test needs; "" if there are enough."""
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
    """Check whether a real combination of axes is farther from training than training episodes are from each other.

    The statistic is the distance to the nearest training episode, each axis in standard deviations, compared with the
    same distances of training episodes: (1 + number as far) / (1 + n) is a valid p-value for a draw of the same kind
    (conformal prediction: Vovk, Gammerman & Shafer, "Algorithmic Learning in a Random World", 2005). The smallest
    p-value of m rows is multiplied by m. None with fewer than two common axes or three training episodes.
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
