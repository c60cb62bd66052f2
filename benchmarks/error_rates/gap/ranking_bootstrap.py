"""Compute the bootstrap intervals of predictivity metrics that publications use, for comparison.

Their coverage is too low: trial noise biases correlations towards zero, each resample adds the same noise again, and
with few policies many resamples contain only two of them. Their coverage is measured in
docs/evidence/compare_policies.md; `twinloop.stats.predictivity` has intervals with correct coverage.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from twinloop.core.seeds import generator
from twinloop.stats.interval import Interval, check_level
from twinloop.stats.ranking import PolicyScoreMatrix

Array = NDArray[np.float64]
Metric = Callable[..., Array]


def resampled_pairs(
    *, real: PolicyScoreMatrix, sim: PolicyScoreMatrix, draws: int, policies: bool, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Return means ``(draws, ..., P)`` of resampled trials of P policies.

    If ``policies`` is true, policies are resampled before their trials.
    """
    if policies:
        chosen = rng.integers(0, real.mean.shape[-1], size=(draws, *real.mean.shape))
        real, sim = (_rows(side, chosen) for side in (real, sim))
        return real.resample_means(rng, 1)[0], sim.resample_means(rng, 1)[0]
    return real.resample_means(rng, draws), sim.resample_means(rng, draws)


def bootstrap_metric(
    metric: Metric,
    *,
    real: PolicyScoreMatrix,
    sim: PolicyScoreMatrix,
    policies: bool = False,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> Interval:
    """Compute the percentile bootstrap interval of a metric of `twinloop.stats.ranking`.

    Args:
        metric: Function of that module, called with ``real`` and ``sim`` scores.
        real: Real scores ``(..., P)`` of P policies.
        sim: Simulated scores ``(..., P)``.
        policies: Resample policies, then their trials (two levels).
        level: Confidence level.
        draws: Number of resamples. A resample is ignored if the metric is undefined because all scores are equal.
        seed: Run seed of the resamples.
    """
    check_level(level)
    rng = generator(seed, "stats/ranking/bootstrap")
    r, s = resampled_pairs(real=real, sim=sim, draws=draws, policies=policies, rng=rng)
    values = np.asarray(metric(real=r, sim=s))
    tail = (1 - level) / 2
    low, high = np.nanquantile(values, [tail, 1 - tail], axis=0) if not np.isnan(values).all() else (np.nan, np.nan)
    over = "policies and trials" if policies else "trials"
    return Interval(
        estimate=metric(real=real.mean, sim=sim.mean),
        low=np.asarray(low),
        high=np.asarray(high),
        level=level,
        method=f"percentile bootstrap over {over}",
    )


def _rows(side: PolicyScoreMatrix, chosen: NDArray[np.intp]) -> PolicyScoreMatrix:
    wide = (np.broadcast_to(values, chosen.shape) for values in (side.mean, side.trials))
    mean, trials = (np.take_along_axis(values, chosen, axis=-1) for values in wide)
    return PolicyScoreMatrix(mean=mean, trials=trials)
