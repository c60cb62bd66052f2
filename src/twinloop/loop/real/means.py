"""The mean of an error over test episodes, as every case without windows reports it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from twinloop.stats import Interval, bootstrap_mean


def mean_over_episodes(errors: ArrayLike, weights: ArrayLike | None = None, *, level: float = 0.95) -> Interval:
    """Mean of errors ``(nepisode, …)``, with a bootstrap interval over episodes where there are two or more."""
    values = np.asarray(errors, dtype=np.float64)
    if len(values) > 1:
        return bootstrap_mean(values, weights=weights, level=level)
    unknown = np.full(values.shape[1:], np.nan)
    return Interval(estimate=values[0], low=unknown, high=unknown, level=level, method="one episode, no interval")
