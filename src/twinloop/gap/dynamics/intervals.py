"""Compute intervals of metrics that are made of sums, by resampling episodes or blocks of time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from twinloop.gap.dynamics.errors import WindowErrors, ratio
from twinloop.stats import Interval, block_frames, bootstrap, integrated_time, time_blocks

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]
# Three clusters have 10 different resamples, four have 35: both are too few for a tail of 2.5 %, but with four the
# quantile of Student's t that widens the tails (see `stats.bootstrap`) is 3.2 and not 4.3 or 12.7.
FEWEST = 4
# The largest number of rows of sums, which bounds the memory: with more clusters an interval changes little.
_MOST_ROWS = 128
_AT_ONCE = 250  # resamples per batch, which bounds the memory


@dataclass(frozen=True, kw_only=True)
class Resampling:
    """Clusters of rows of sums that are resampled together because they are independent of each other.

    ``labels`` ``(nrow,)`` is the cluster of each row, from 0; ``unit`` names a cluster. If there are too few clusters,
    ``reason`` explains why there is no interval.
    """

    labels: NDArray[np.intp]
    unit: str
    reason: str = ""
    level: float = 0.95
    seed: int = 0

    def interval(self, statistic: Statistic) -> Interval:
        """Return the interval of a statistic.

        A statistic is a function from counts of rows in k resamples, ``(k, nrow)``, to values ``(k, …)``.
        """
        if self.reason:
            estimate = statistic(np.ones((1, len(self.labels))))[0]
            unknown = np.full(np.shape(estimate), np.nan)
            return Interval(estimate=estimate, low=unknown, high=unknown, level=self.level, method=self.reason)
        ncluster = int(self.labels.max()) + 1

        def some(clusters: NDArray[np.intp]) -> Array:
            counts = np.zeros((len(clusters), ncluster))
            np.add.at(counts, (np.arange(len(clusters))[:, None], clusters), 1.0)
            return _round_to_30_bits(statistic(counts[:, self.labels]))

        def drawn(clusters: NDArray[np.intp]) -> Array:
            parts = (clusters[begin : begin + _AT_ONCE] for begin in range(0, len(clusters), _AT_ONCE))
            return np.concatenate([some(part) for part in parts])

        found = bootstrap(drawn, ncluster, level=self.level, seed=self.seed)
        return replace(found, method=f"bca bootstrap over {ncluster} {self.unit}")


def _round_to_30_bits(values: Array) -> Array:
    """Round to 30 bits, so that a resample with every cluster once equals the sample, for any order of its sums.

    The bias correction of BCa counts such ties, which are frequent if there are few clusters.
    """
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.round(mantissa * 2.0**30) / 2.0**30, exponent)


def sum_weighted(weights: Array, sums: Array) -> Array:
    """Sum rows ``(nrow, …)``, each multiplied by its number of draws, ``(k, …)``."""
    return (weights @ sums.reshape(len(sums), -1)).reshape(len(weights), *sums.shape[1:])


def rmse_statistic(errors: WindowErrors, world: int) -> Statistic:
    """Return the statistic RMSE of one world over all horizons, ``(k, nchannel)`` for k resamples."""
    squared, count = errors.squared[world].sum(axis=1), errors.count.sum(axis=1)
    return lambda weights: np.sqrt(ratio(sum_weighted(weights, squared), sum_weighted(weights, count)))


def rmse_by_horizon_statistic(errors: WindowErrors, world: int) -> Statistic:
    """Return the statistic RMSE of one world by horizon bin, ``(k, nbin, nchannel)`` for k resamples."""
    return lambda weights: np.sqrt(
        ratio(sum_weighted(weights, errors.squared[world]), sum_weighted(weights, errors.count))
    )


def mae_statistic(errors: WindowErrors, world: int) -> Statistic:
    """Return the statistic MAE of one world over all horizons, ``(k, nchannel)`` for k resamples."""
    absolute, count = errors.absolute[world].sum(axis=1), errors.count.sum(axis=1)
    return lambda weights: ratio(sum_weighted(weights, absolute), sum_weighted(weights, count))


def average_scaled(values: Array, scales: Array) -> Array:
    """Return the mean of values ``(k, nchannel)`` divided by their scales, over channels with a scale, ``(k,)``."""
    return (values / scales)[:, np.isfinite(scales)].mean(axis=1)


def find_row(episode: int, nepisode: int) -> int:
    """Return the row of sums of an episode; with many episodes, neighbouring ones share a row."""
    return episode * min(nepisode, _MOST_ROWS) // nepisode


def explain_missing_interval(nepisode: int, needed: str = f"at least {FEWEST} are needed") -> str:
    """Return the reason why so few episodes have no interval."""
    return f"{'one episode' if nepisode == 1 else f'{nepisode} episodes'}, no interval: {needed}"


def resample_episodes(nepisode: int, *, level: float, seed: int) -> Resampling:
    """Resample episodes, with their neighbours if there are many; fewer than four give no interval."""
    reason = "" if nepisode >= FEWEST else explain_missing_interval(nepisode)
    nrow = min(nepisode, _MOST_ROWS)
    unit = "episodes" if nrow == nepisode else f"groups of neighbours among {nepisode} episodes"
    return Resampling(labels=np.arange(nrow), unit=unit, reason=reason, level=level, seed=seed)


def resample_time_blocks(
    errors: WindowErrors, owners: NDArray[np.intp], begins: Array, length: float, *, level: float, seed: int
) -> Resampling:
    """Resample blocks of time that are long compared with the correlation time of the errors.

    The correlation time is the longest of any channel's squared errors about their mean, window by window.

    Args:
        errors: one row per window, in order of time within each episode.
        owners: number of each window's episode.
        begins: beginning of each window in its episode, s.
        length: time from the beginning of a window to the next beginning, s.
        level: confidence level of the intervals.
        seed: seed of the bootstrap.
    """
    nwindow = len(owners)
    means = ratio(errors.squared.sum(axis=2), errors.count.sum(axis=1))
    series = np.moveaxis(np.sqrt(means), 0, 1).reshape(nwindow, -1)
    series = series[:, np.isfinite(series).all(axis=0)]
    series = series - series.mean(axis=0)
    tau = float(np.max(integrated_time([series[owners == owner] for owner in np.unique(owners)]), initial=1.0))
    frames = block_frames(nwindow, tau)
    labels = np.zeros(nwindow, dtype=np.intp)
    if frames is not None:
        labels = time_blocks(begins, 1, length, owners, frames * length)[:, 0]
    unit, reason = f"blocks of about {float(frames or 0) * length:.3g} s", ""
    if labels.max() + 1 < FEWEST:
        needed = f"give at least {FEWEST}, or longer ones in shorter windows"
        reason = explain_missing_interval(len(np.unique(owners)), needed)
    return Resampling(labels=labels, unit=unit, reason=reason, level=level, seed=seed)
