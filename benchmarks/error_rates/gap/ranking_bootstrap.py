"""The bootstrap intervals of predictivity that publications print, for comparison with them.

They do not hold: noise of trials pulls correlations towards zero, a resample adds the same noise once more, and with
few policies many resamples have two of them only. How far off they are stands in docs/evidence/compare_policies.md;
`twinloop.stats.predictivity` has intervals that hold.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from twinloop.core.seeds import generator
from twinloop.stats.interval import Interval, check_level
from twinloop.stats.ranking import PolicyScoreMatrix

Array = NDArray[np.float64]
Figure = Callable[..., Array]


def resampled_pairs(
    *, real: PolicyScoreMatrix, sim: PolicyScoreMatrix, draws: int, policies: bool, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Means ``(draws, ..., P)`` of trials drawn again; with ``policies``, of policies drawn again first."""
    if policies:
        chosen = rng.integers(0, real.mean.shape[-1], size=(draws, *real.mean.shape))
        real, sim = (_rows(side, chosen) for side in (real, sim))
        return real.resample_means(rng, 1)[0], sim.resample_means(rng, 1)[0]
    return real.resample_means(rng, draws), sim.resample_means(rng, draws)


def bootstrap_figure(
    figure: Figure,
    *,
    real: PolicyScoreMatrix,
    sim: PolicyScoreMatrix,
    policies: bool = False,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> Interval:
    """Percentile interval of a figure of `twinloop.stats.ranking`.

    Args:
        figure: one of them.
        real: the real scores ``(..., P)``.
        sim: the simulated ones.
        policies: draw policies again too, then their trials (two levels).
        level: confidence level.
        draws: how many resamples; those in which the figure does not exist, because all scores are equal, are left out.
        seed: run seed of the resamples.
    """
    check_level(level)
    rng = generator(seed, "stats/ranking/bootstrap")
    r, s = resampled_pairs(real=real, sim=sim, draws=draws, policies=policies, rng=rng)
    values = np.asarray(figure(real=r, sim=s))
    tail = (1 - level) / 2
    low, high = np.nanquantile(values, [tail, 1 - tail], axis=0) if not np.isnan(values).all() else (np.nan, np.nan)
    over = "policies and trials" if policies else "trials"
    return Interval(
        estimate=figure(real=real.mean, sim=sim.mean),
        low=np.asarray(low),
        high=np.asarray(high),
        level=level,
        method=f"percentile bootstrap over {over}",
    )


def _rows(side: PolicyScoreMatrix, chosen: NDArray[np.intp]) -> PolicyScoreMatrix:
    wide = (np.broadcast_to(values, chosen.shape) for values in (side.mean, side.trials))
    mean, trials = (np.take_along_axis(values, chosen, axis=-1) for values in wide)
    return PolicyScoreMatrix(mean=mean, trials=trials)
