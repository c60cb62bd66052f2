"""Means of errors over test episodes, as every case without windows reports them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from twinloop.loop.real.case import Score
from twinloop.stats import Interval, bootstrap_mean


def mean_over_episodes(errors: ArrayLike, weights: ArrayLike | None = None, *, level: float = 0.95) -> Interval:
    """Mean of errors ``(nepisode, …)``, with a bootstrap interval over episodes where there are two or more."""
    values = np.asarray(errors, dtype=np.float64)
    if len(values) > 1:
        return bootstrap_mean(values, weights=weights, level=level)
    unknown = np.full(values.shape[1:], np.nan)
    return Interval(estimate=values[0], low=unknown, high=unknown, level=level, method="one episode, no interval")


def mean_score(name: str, unit: str, errors: ArrayLike, *, target: float | None, source: str) -> Score:
    """The mean of errors ``(nepisode,)`` as a figure; ``target`` and ``source`` as in `Score`."""
    spread = mean_over_episodes(np.asarray(errors)[:, None])
    value, low, high = (float(column[0]) for column in (spread.estimate, spread.low, spread.high))
    return Score(name=name, unit=unit, value=value, low=low, high=high, target=target, source=source)
