"""Wasserstein-1 distance of every column: how far the one sample's values must be moved to make the other's.

W₁ = ∫ |F − G|, in the column's own unit. F and G are means of the episodes' own distribution functions, so that an
episode counts once however long it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from twinloop.stats.bootstrap import stretched_percentile
from twinloop.stats.interval import Interval, check_level
from twinloop.stats.two_sample import Array, TwoSample, column_names, require_episodes, two_samples
from twinloop.stats.two_sample_labels import observed_labels, relabellings, resampled

_GRID = 512  # places at which distribution functions are read where there are more values: to 1/512 of the rows


@dataclass(frozen=True, kw_only=True)
class ColumnDistances:
    """W₁ of columns ``(d,)`` with intervals and p-values.

    ``floor`` ``(d,)`` is the mean under relabelling: W₁ is never negative, and this is what chance alone makes of it.
    ``p_value`` is of each column alone, ``p_adjusted`` of all together (see `Relabellings.adjusted`); both are NaN, as
    the floor, where no test was asked for. ``shift`` ``(d,)`` is mean(sim) − mean(real), ``spread`` the ratio of
    standard deviations, sim / real (NaN where the real column is constant).
    """

    columns: tuple[str, ...]
    distance: Interval
    floor: Array
    p_value: Array
    p_adjusted: Array
    shift: Array
    spread: Array

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        rows = {name: getattr(self, name).tolist() for name in ("floor", "p_value", "p_adjusted", "shift", "spread")}
        return {"columns": list(self.columns), "distance": self.distance.to_json(), **rows}


def wasserstein(
    real: ArrayLike,
    sim: ArrayLike,
    *,
    real_clusters: ArrayLike,
    sim_clusters: ArrayLike,
    columns: Sequence[str] | None = None,
    paired: bool = False,
    level: float = 0.95,
    draws: int = 1999,
    resamples: int = 1000,
    seed: int = 0,
) -> ColumnDistances:
    """W₁ of each column of ``(n, d)`` and ``(m, d)``, with episodes as the unit.

    Intervals are percentiles of a bootstrap over episodes, less its bias; they reach down to 0 where the permutation
    test does not tell the samples apart, because there no resample can reach it.

    Args:
        real: ``(n, d)``.
        sim: ``(m, d)``.
        real_clusters: number of each real row's episode.
        sim_clusters: of each simulated row's.
        columns: their names; numbers without it.
        paired: equal numbers name the same trial, see `two_samples`.
        level: of the intervals; tests are at 1 − ``level``.
        draws: relabellings of episodes; 0 for no test.
        resamples: of the bootstrap.
        seed: of both.

    Raises:
        InputError: rows that cannot be compared, names that do not fit, too few episodes for the test.
    """
    check_level(level)
    samples = two_samples(real, sim, real_clusters=real_clusters, sim_clusters=sim_clusters, paired=paired)
    names = column_names(columns, samples.rows.shape[1])
    if draws:
        require_episodes(samples, level)
    few = samples.bundled(seed=seed)
    weights = observed_labels(few)
    boot = resampled(few, resamples, seed=seed)
    labels = relabellings(few, draws, seed=seed) if draws else None
    ncolumn = len(names)
    found, drawn = np.empty(ncolumn), np.empty((len(boot[0]), ncolumn))
    relabelled = np.empty((0 if labels is None else len(labels.real), ncolumn))
    for column in range(ncolumn):
        grid, functions = distribution_functions(few, column)
        found[column] = _moved(grid, functions, *weights)[0]
        drawn[:, column] = _moved(grid, functions, *boot)
        if labels is not None:
            relabelled[:, column] = _moved(grid, functions, labels.real, ~labels.real)
    unknown = np.full(ncolumn, np.nan)
    p_value = unknown if labels is None else labels.p_value(found, relabelled)
    means, spreads = _moments(few)
    return ColumnDistances(
        columns=names,
        distance=_interval(few, found, drawn, p_value, level),
        floor=unknown if labels is None else relabelled.mean(axis=0),
        p_value=p_value,
        p_adjusted=unknown if labels is None else labels.adjusted(found, relabelled),
        shift=means[1] - means[0],
        spread=np.divide(spreads[1], spreads[0], out=np.full(ncolumn, np.nan), where=spreads[0] > 0),
    )


def distribution_functions(samples: TwoSample, column: int) -> tuple[Array, Array]:
    """Places ``(T,)`` and each episode's share of rows up to there ``(C, T)``."""
    values = samples.rows[:, column]
    grid = np.unique(values)
    if len(grid) > _GRID:
        grid = np.unique(np.quantile(values, np.linspace(0, 1, _GRID)))
    place = np.searchsorted(grid, values, side="left")
    counts = np.bincount(samples.episode * len(grid) + place, minlength=samples.nepisode * len(grid))
    shares = np.cumsum(counts.reshape(samples.nepisode, len(grid)), axis=1) / samples.sizes[:, None]
    return grid, shares


def _moved(grid: Array, functions: Array, real: ArrayLike, sim: ArrayLike) -> Array:
    """W₁ ``(k,)`` of weighted episodes ``(k, C)``."""
    left, right = np.asarray(real, dtype=np.float64), np.asarray(sim, dtype=np.float64)
    weight = left / left.sum(axis=1, keepdims=True) - right / right.sum(axis=1, keepdims=True)
    return np.abs(weight @ functions[:, :-1]) @ np.diff(grid)


def _interval(samples: TwoSample, found: Array, drawn: Array, p_value: Array, level: float) -> Interval:
    fewer = min(samples.nreal, samples.nsim)
    low, high = stretched_percentile(drawn, fewer, fewer - 1, level=level)
    bias = np.maximum(drawn.mean(axis=0) - found, 0.0)
    reaches = np.isnan(p_value) | (p_value > 1 - level)
    return Interval(
        estimate=found,
        low=np.where(reaches, 0.0, np.clip(low - bias, 0.0, found)),
        high=np.maximum(high - bias, found),
        level=level,
        method="percentile bootstrap over episodes less its bias; 0 where the permutation test does not exclude it",
    )


def _moments(samples: TwoSample) -> tuple[Array, Array]:
    """Mean and standard deviation of each side's columns ``(2, d)``, episodes counting equally."""
    weight = 1.0 / samples.sizes[samples.episode]
    split = samples.real_rows
    sides = [(samples.rows[:split], weight[:split]), (samples.rows[split:], weight[split:])]
    means = np.stack([np.average(rows, axis=0, weights=w) for rows, w in sides])
    spreads = [np.average((rows - mean) ** 2, axis=0, weights=w) for (rows, w), mean in zip(sides, means, strict=True)]
    return means, np.sqrt(spreads)
