"""How much a time series of residuals resembles itself."""

from __future__ import annotations

from collections.abc import Sequence
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


def pooled_autocorrelation(clips: Sequence[ArrayLike], lag: int = 1) -> float:
    """Correlation of what lies ``lag`` frames apart, over clips of one series of mean zero: not centred clip by clip.

    What is constant in a clip, such as the error of its first state, counts as correlated. Series of zeros have 1.

    Raises:
        InputError: no clip is longer than the lag.
    """
    rows = [np.asarray(clip, dtype=np.float64) for clip in clips]
    pairs = [(row[:-lag], row[lag:]) for row in rows if len(row) > lag]
    if not pairs:
        raise InputError(f"Clips of {max(map(len, rows), default=0)} frames have no autocorrelation at lag {lag}.")
    first, later = (np.concatenate(side) for side in zip(*pairs, strict=True))
    power = np.sqrt((first @ first) * (later @ later))
    return float(first @ later / power) if power > 0 else 1.0


def effective_size(n: float, rho: float) -> float:
    """Independent samples that tell a mean as well as ``n`` of lag-1 correlation ρ: n (1 − ρ) / (1 + ρ) (AR(1))."""
    within = min(max(rho, 0.0), 1.0)
    return max(1.0, n * (1 - within) / (1 + within))


@dataclass(frozen=True, kw_only=True)
class LjungBox:
    """The portmanteau test for whiteness: a small ``p_value`` says that the residuals are correlated in time."""

    statistic: float
    lags: int
    p_value: float


def ljung_box(clips: Sequence[ArrayLike], *, lags: int = 10, fitted: int = 0) -> LjungBox:
    """Q = n (n + 2) Σ_k ρ_k² / (n − k), chi-square with ``lags − fitted`` degrees (Ljung & Box, Biometrika 65, 1978).

    Args:
        clips: residuals of one clip or of several independent ones, whose statistics and degrees of freedom add up.
        lags: how many lags are pooled.
        fitted: parameters of a model that was fitted to this very series.
    """
    if fitted >= lags * len(clips):
        raise InputError(f"{fitted} fitted parameters leave no degree of freedom in {lags} lags; use more lags.")
    statistic = 0.0
    for clip in clips:
        n, rho = len(np.asarray(clip)), autocorrelation(clip, lags)[1:]
        statistic += float(n * (n + 2) * np.sum(rho**2 / (n - np.arange(1, lags + 1))))
    return LjungBox(statistic=statistic, lags=lags, p_value=float(chdtrc(lags * len(clips) - fitted, statistic)))
