"""Compute bootstrap intervals of metrics such as RMSE and skill by resampling episodes or blocks of time.

A metric is computed from the sums of the squared or absolute errors in each row. A row is an episode, a group of
episodes, or a window.
"""

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
    """Division of the rows of error sums into clusters, for the bootstrap.

    A row is an episode, a group of episodes or a window. The bootstrap resamples all rows of a cluster together.
    Different clusters are independent of each other.

    Attributes:
        labels: Cluster of each row, from 0, shape ``(nrow,)``.
        unit: Name of the clusters for reports, for example ``episodes``.
        reason: Reason why there is no interval, if there are too few clusters; else "".
        level: Confidence level.
        seed: Seed of the bootstrap.
    """

    labels: NDArray[np.intp]
    unit: str
    reason: str = ""
    level: float = 0.95
    seed: int = 0

    def interval(self, statistic: Statistic) -> Interval:
        """Return the estimate of a statistic with its BCa bootstrap interval.

        The limits are NaN if there are too few clusters (independent sets of rows, such as episodes).

        Args:
            statistic: Function that computes the statistic for k resamples at once. Its argument is the number of times
                that each row occurs in each resample, shape ``(k, nrow)``. Its result has the shape ``(k, …)``.
        """
        if self.reason:
            estimate = statistic(np.ones((1, len(self.labels))))[0]
            unknown = np.full(np.shape(estimate), np.nan)
            return Interval(estimate=estimate, low=unknown, high=unknown, level=self.level, method=self.reason)
        ncluster = int(self.labels.max()) + 1

        def compute_batch(clusters: NDArray[np.intp]) -> Array:
            counts = np.zeros((len(clusters), ncluster))
            np.add.at(counts, (np.arange(len(clusters))[:, None], clusters), 1.0)
            return _round_to_30_bits(statistic(counts[:, self.labels]))

        def compute(clusters: NDArray[np.intp]) -> Array:
            parts = (clusters[begin : begin + _AT_ONCE] for begin in range(0, len(clusters), _AT_ONCE))
            return np.concatenate([compute_batch(part) for part in parts])

        found = bootstrap(compute, ncluster, level=self.level, seed=self.seed)
        return replace(found, method=f"bca bootstrap over {ncluster} {self.unit}")


def _round_to_30_bits(values: Array) -> Array:
    """Round values to 30 bits of mantissa, so that the order of a sum does not change them.

    A resample that contains every cluster once then equals the sample. The bias correction of BCa counts such ties,
    which are frequent if there are few clusters.
    """
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.round(mantissa * 2.0**30) / 2.0**30, exponent)


def sum_weighted(weights: Array, sums: Array) -> Array:
    """Return the sums over rows for k resamples, shape ``(k, …)``.

    Args:
        weights: Number of times that each row occurs in each resample, shape ``(k, nrow)``.
        sums: Values of the rows, shape ``(nrow, …)``.
    """
    return (weights @ sums.reshape(len(sums), -1)).reshape(len(weights), *sums.shape[1:])


def rmse_statistic(errors: WindowErrors, world: int) -> Statistic:
    """Return a function that computes the RMSE of one world over all horizons, shape ``(k, nchannel)``.

    The function gets the number of times that each row (such as an episode) occurs in k resamples, shape ``(k, nrow)``.
    ``world`` is the index of a set of parameter values or of a baseline.
    """
    squared, count = errors.squared[world].sum(axis=1), errors.count.sum(axis=1)
    return lambda weights: np.sqrt(ratio(sum_weighted(weights, squared), sum_weighted(weights, count)))


def rmse_by_horizon_statistic(errors: WindowErrors, world: int) -> Statistic:
    """Return a function that computes the RMSE of one world by horizon bin, shape ``(k, nbin, nchannel)``.

    A horizon bin is an interval of the time since the beginning of a window. The function gets the number of times that
    each row (such as an episode) occurs in k resamples, shape ``(k, nrow)``. ``world`` is the index of a set of
    parameter values or of a baseline.
    """
    return lambda weights: np.sqrt(
        ratio(sum_weighted(weights, errors.squared[world]), sum_weighted(weights, errors.count))
    )


def mae_statistic(errors: WindowErrors, world: int) -> Statistic:
    """Return a function that computes the mean absolute error of one world over all horizons, shape ``(k, nchannel)``.

    The function gets the number of times that each row (such as an episode) occurs in k resamples, shape ``(k, nrow)``.
    ``world`` is the index of a set of parameter values or of a baseline.
    """
    absolute, count = errors.absolute[world].sum(axis=1), errors.count.sum(axis=1)
    return lambda weights: ratio(sum_weighted(weights, absolute), sum_weighted(weights, count))


def average_scaled(values: Array, scales: Array) -> Array:
    """Return the mean over channels of values ``(k, nchannel)`` divided by the channels' scales, shape ``(k,)``.

    Channels whose scale is NaN are ignored.
    """
    return (values / scales)[:, np.isfinite(scales)].mean(axis=1)


def find_row(episode: int, nepisode: int) -> int:
    """Return the row, in an array of sums by episode, to which an episode's errors are added.

    If there are more than 128 episodes, neighbouring episodes share a row, which limits the memory.

    Args:
        episode: Position of the episode in the log, from 0.
        nepisode: Number of episodes.
    """
    return episode * min(nepisode, _MOST_ROWS) // nepisode


def explain_missing_interval(nepisode: int, needed: str = f"at least {FEWEST} are needed") -> str:
    """Return a text with the reason why there is no interval: too few episodes.

    Args:
        nepisode: Number of episodes.
        needed: End of the text: the number that would be sufficient, or the next step.
    """
    return f"{'one episode' if nepisode == 1 else f'{nepisode} episodes'}, no interval: {needed}"


def resample_episodes(nepisode: int, *, level: float, seed: int) -> Resampling:
    """Return the clusters for a bootstrap over episodes, or over groups of neighbouring episodes if more than 128.

    With fewer than four episodes, the limits of all intervals are NaN.
    """
    reason = "" if nepisode >= FEWEST else explain_missing_interval(nepisode)
    nrow = min(nepisode, _MOST_ROWS)
    unit = "episodes" if nrow == nepisode else f"groups of neighbours among {nepisode} episodes"
    return Resampling(labels=np.arange(nrow), unit=unit, reason=reason, level=level, seed=seed)


def resample_time_blocks(
    errors: WindowErrors, owners: NDArray[np.intp], begins: Array, length: float, *, level: float, seed: int
) -> Resampling:
    """Return a resampling of blocks of time that are long compared with the correlation time of the errors.

    The correlation time is the integrated autocorrelation time of the windows' RMS errors, computed for each channel.
    The longest one is used.

    Args:
        errors: Errors with one row per window, in order of time within each episode.
        owners: Number of each window's episode, shape ``(nwindow,)``.
        begins: Beginning of each window in its episode in s, shape ``(nwindow,)``.
        length: Time from the beginning of a window to the beginning of the next one, in s.
        level: Confidence level of the intervals.
        seed: Seed of the bootstrap.
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
