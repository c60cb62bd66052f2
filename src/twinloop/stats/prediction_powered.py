"""The real mean score from few real and many simulated trials, valid for any number of them.

Each real trial i takes a share of the trials that were simulated only, and is rectified by them:
Z_i = F_i − β_i (G_i − mean of its share). With β_i chosen from the trials before, Z_i has the real mean whatever the
simulator is worth, and lies between −|β_i| and 1 + |β_i|. So its mean is bet on as in `betting`, and the interval holds
for any number of trials, any scores in [0, 1] and any correlation; where simulation tells nothing, β_i stays near zero.
The rectified mean is that of `control_variates`; predictable coefficients are those of Waudby-Smith & Ramdas,
"Confidence sequences for sampling without replacement / by betting" (2020, 2024), and of active and sequential
prediction-powered inference (Zrnic & Candès, arXiv 2403.03208, 2024).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.stats.betting import bounded_mean, check_bounded, log_e_adaptive
from twinloop.stats.control_variates import PairedTrials
from twinloop.stats.interval import Interval

Array = NDArray[np.float64]
_DOUBT = 1.0  # squares of simulated scores, without covariance, that β has as if seen: it starts at 0 and grows slowly


@dataclass(frozen=True, kw_only=True)
class Rectified:
    """Values ``(…, n)`` with the real mean, the coefficients ``(…, n)`` they were made with, and their bounds."""

    values: Array
    beta: Array

    @property
    def low(self) -> Array:
        """The least that each value could have been."""
        return -np.abs(self.beta)

    @property
    def high(self) -> Array:
        """The most that each value could have been."""
        return 1 + np.abs(self.beta)


def rectified(
    real: ArrayLike, sim: ArrayLike, more: ArrayLike, *, known: tuple[ArrayLike, ArrayLike] | None = None
) -> Rectified:
    """Real scores, rectified by simulation with coefficients from the trials before each.

    Args:
        real: ``(…, n)`` scores.
        sim: ``(…, n)`` of the same starts.
        more: ``(…, k)`` simulated only; each real trial takes k // n of them, in their order.
        known: paired real and simulated scores ``(m,)`` of other policies, from which β may start.

    Raises:
        InputError: fewer simulated trials besides than real ones, or scores outside [0, 1].
    """
    f, g, h = (check_bounded(values, 0.0, 1.0) for values in (real, sim, more))
    n, k = f.shape[-1], h.shape[-1]
    if k < n:
        raise InputError(
            f"{k} trials simulated besides are fewer than the {n} real ones, each of which takes at least one. "
            f"Simulate at least {n} starts more; ten times as many serve well."
        )
    share = k // n
    mean = h[..., : share * n].reshape(*h.shape[:-1], n, share).mean(axis=-1)
    beta = _coefficients(f, g, known) * share / (share + 1)
    return Rectified(values=f - beta * (g - mean), beta=beta)


def log_e_prediction_powered(values: Rectified, mean: ArrayLike, *, alpha: float) -> Array:
    """Logarithm of the wealth against a real mean of ``mean`` after each trial, ``(…, n)``."""
    return log_e_adaptive(values.values, mean, alpha=alpha, low=values.low, high=values.high)


def prediction_powered(
    trials: PairedTrials, *, level: float = 0.95, known: tuple[ArrayLike, ArrayLike] | None = None
) -> Interval:
    """Finite-sample valid interval of the real mean score.

    Raises:
        InputError: fewer simulated trials besides than real ones.
    """
    made = rectified(trials.real, trials.sim, trials.more, known=known)
    found = bounded_mean(made.values, level=level, low=made.low, high=made.high, within=(0.0, 1.0))
    return Interval(
        estimate=found.estimate,
        low=found.low,
        high=found.high,
        level=level,
        method="prediction-powered betting, finite-sample valid",
    )


def _coefficients(f: Array, g: Array, known: tuple[ArrayLike, ArrayLike] | None) -> Array:
    """β before each trial: covariance over variance of those before it and of other policies', drawn towards 0."""
    both, spread = 0.0, _DOUBT
    if known is not None and np.size(known[0]) > 1:
        first, second = (np.asarray(values, dtype=np.float64) for values in known)
        both = float(np.sum((first - first.mean()) * (second - second.mean())))
        spread += float(np.sum((second - second.mean()) ** 2))
    count = np.arange(f.shape[-1])
    sums = [np.cumsum(x, axis=-1) - x for x in (f, g, f * g, g * g)]
    many = np.maximum(count, 1)
    covariance = sums[2] - sums[0] * sums[1] / many
    variance = sums[3] - sums[1] ** 2 / many
    return np.clip((both + covariance) / (spread + np.maximum(variance, 0.0)), -1.0, 1.0)
