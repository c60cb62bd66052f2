"""Whether one of two things that saw the same clusters (episodes) is better: interval and p-value of the difference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.seeds import generator
from twinloop.stats.bootstrap import bootstrap_mean
from twinloop.stats.interval import Interval

_LEAST_CLUSTERS = 2


@dataclass(frozen=True, kw_only=True)
class PairedTest:
    """Mean of paired differences with its interval, and ``p_value`` of the hypothesis that it is not above zero."""

    mean: Interval
    p_value: float


def paired_test(
    differences: ArrayLike, *, level: float = 0.95, draws: int = 4999, seed: int = 0, stream: str = "paired"
) -> PairedTest:
    """Paired bootstrap over clusters: BCa interval, and the one-sided p-value of the studentized bootstrap.

    The test compares t = mean / standard error with the same of resamples of the centred differences, so that it holds
    its level to second order (Hall & Wilson, "Two guidelines for bootstrap hypothesis testing", Biometrics 47, 1991);
    p = (1 + number of t* ≥ t) / (1 + draws), and at least 2⁻ⁿ with n clusters: no test by the signs of n differences
    can claim more, and with few clusters resamples hardly differ. Where all differences are equal, and not above zero,
    p is 1.

    Args:
        differences: ``(nclusters,)``, positive where the second is better.
        level: confidence level of the interval.
        draws: how many resamples.
        seed: run seed of the resamples.
        stream: name of the resamples, so that several tests can have their own.

    Raises:
        InputError: fewer than two clusters.
    """
    values = np.asarray(differences, dtype=np.float64)
    if len(values) < _LEAST_CLUSTERS:
        raise InputError(f"{len(values)} episode cannot tell how episodes differ; compare at least {_LEAST_CLUSTERS}.")
    mean = bootstrap_mean(values, level=level, seed=seed)
    return PairedTest(mean=mean, p_value=max(_studentized(values, draws, seed, stream), 0.5 ** len(values)))


def _studentized(values: NDArray[np.float64], draws: int, seed: int, stream: str) -> float:
    n, error = len(values), values.std(ddof=1) / np.sqrt(len(values))
    if error <= 1e-12 * np.abs(values).max():
        return 1.0 if values.mean() <= 0 else 1.0 / (1 + draws)
    centred = values - values.mean()
    rows = generator(seed, f"stats/{stream}").integers(0, n, size=(draws, n))
    sampled = centred[rows]
    spread = sampled.std(axis=1, ddof=1) / np.sqrt(n)
    mean = sampled.mean(axis=1)
    flat = spread <= 1e-9 * error  # one cluster drawn n times: as extreme as can be, on the side of its sign
    extreme = np.where(mean > 0, np.inf, -np.inf)
    ratio = np.where(flat, extreme, mean / np.where(flat, 1.0, spread))
    return float((1 + np.sum(ratio >= values.mean() / error)) / (1 + draws))
