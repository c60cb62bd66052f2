"""How much a time series of residuals resembles itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtrc

from twinloop.core.errors import InputError


def autocorrelation(series: ArrayLike, nlags: int = 1) -> NDArray[np.float64]:
    """Sample autocorrelation at lags 0 … ``nlags`` (biased form, Box & Jenkins), ``(nlags + 1,)``.

    A constant series resembles itself entirely: 1 at every lag.

    Raises:
        InputError: the series is not longer than the lags.
    """
    values = np.asarray(series, dtype=np.float64)
    if len(values) <= nlags:
        raise InputError(f"A series of {len(values)} has no autocorrelation at lag {nlags}.")
    centred = values - values.mean()
    power = centred @ centred
    if power == 0:
        return np.ones(nlags + 1)
    return np.array([centred[: len(centred) - lag] @ centred[lag:] / power for lag in range(nlags + 1)])


def effective_size(series: ArrayLike) -> float:
    """Independent samples that say as much about the mean as ``series``: n (1 − ρ) / (1 + ρ), ρ at lag 1 (AR(1))."""
    values = np.asarray(series, dtype=np.float64)
    rho = float(np.clip(autocorrelation(values, 1)[1], 0.0, 1.0))
    return max(1.0, len(values) * (1 - rho) / (1 + rho))


@dataclass(frozen=True, kw_only=True)
class LjungBox:
    """The portmanteau test for whiteness: a small ``p_value`` says that the residuals are correlated in time."""

    statistic: float
    lags: int
    p_value: float


def ljung_box(series: ArrayLike, *, lags: int = 10, fitted: int = 0) -> LjungBox:
    """Q = n (n + 2) Σ_k ρ_k² / (n − k), chi-square with ``lags − fitted`` degrees (Ljung & Box, Biometrika 65, 1978).

    Args:
        series: residuals of one clip, in order.
        lags: how many lags are pooled.
        fitted: parameters of a model that was fitted to this very series.
    """
    values = np.asarray(series, dtype=np.float64)
    if fitted >= lags:
        raise InputError(f"{fitted} fitted parameters leave no degree of freedom in {lags} lags; use more lags.")
    rho = autocorrelation(values, lags)[1:]
    n = len(values)
    statistic = float(n * (n + 2) * np.sum(rho**2 / (n - np.arange(1, lags + 1))))
    return LjungBox(statistic=statistic, lags=lags, p_value=float(chdtrc(lags - fitted, statistic)))
