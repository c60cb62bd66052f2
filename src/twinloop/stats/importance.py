"""The rate of something rare from draws of where it happens: weights, their mean, and how far to trust it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from twinloop.core.errors import InputError
from twinloop.stats.interval import Interval, check_level

Array = NDArray[np.float64]
_HEAVY = 0.2  # share of the estimate that one draw may carry before the estimate is called fragile; our choice
_FEW = 30  # failures below which a normal interval of their mean weight is not trusted; our choice


@dataclass(frozen=True, kw_only=True)
class WeightedRate:
    """A rate from weighted draws.

    ``interval`` is that of the mean of weight × event, made on the logarithm (delta method), so that it stays positive.
    ``events`` counts the draws in which it happened, ``effective`` is Kish's effective number of them, ``largest`` the
    share of the estimate that its heaviest draw carries, ``plain`` how many plain draws would give as narrow an
    interval.
    """

    interval: Interval
    draws: int
    events: int
    effective: float
    largest: float
    plain: float

    @property
    def warning(self) -> str:
        """Why the interval is not to be trusted; empty where nothing speaks against it."""
        if self.events == 0:
            return f"It never happened in {self.draws} draws: the search did not reach it, and nothing is known."
        if self.largest > _HEAVY:
            return (
                f"One draw carries {self.largest:.0%} of the estimate: there is a region that the search has not "
                "found, and the rate may be several times higher. Search longer, or with more modes."
            )
        if self.events < _FEW:
            return f"It happened in {self.events} draws only; with fewer than {_FEW} the interval covers too rarely."
        return ""

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        return {
            "rate": float(self.interval.estimate),
            "low": float(self.interval.low),
            "high": float(self.interval.high),
            "level": self.interval.level,
            "draws": self.draws,
            "events": self.events,
            "effective_events": self.effective,
            "largest_share": self.largest,
            "plain_draws": self.plain,
            "warning": self.warning,
        }


def weighted_rate(events: ArrayLike, log_weights: ArrayLike, *, level: float = 0.95) -> WeightedRate:
    """The rate of an event under one distribution, from independent draws of another.

    Args:
        events: whether it happened in each draw, ``(n,)``.
        log_weights: logarithm of the density asked about over that drawn from, ``(n,)``.
        level: of the interval.

    Raises:
        InputError: fewer than two draws, or weights that are no numbers.
    """
    check_level(level)
    happened, logs = np.asarray(events, dtype=np.bool_), np.asarray(log_weights, dtype=np.float64)
    if len(happened) < 2 or happened.shape != logs.shape or np.isnan(logs).any():
        raise InputError(f"{happened.shape} events and {logs.shape} weights give no rate; give two draws or more.")
    values = np.where(happened, np.exp(logs), 0.0)
    n, rate = len(values), float(values.mean())
    if rate == 0.0:
        nothing = Interval(estimate=np.array(0.0), low=np.array(0.0), high=np.array(1.0), level=level, method="none")
        return WeightedRate(interval=nothing, draws=n, events=0, effective=0.0, largest=0.0, plain=0.0)
    error = float(values.std(ddof=1) / np.sqrt(n))
    reach = float(ndtri((1 + level) / 2)) * error / rate
    interval = Interval(
        estimate=np.array(rate),
        low=np.array(rate * np.exp(-reach)),
        high=np.array(min(1.0, rate * np.exp(reach))),
        level=level,
        method="importance sampling, normal on the logarithm",
    )
    return WeightedRate(
        interval=interval,
        draws=n,
        events=int(happened.sum()),
        effective=float(values.sum() ** 2 / (values**2).sum()),
        largest=float(values.max() / values.sum()),
        plain=rate * (1.0 - min(rate, 1.0)) / max(error**2, np.finfo(np.float64).tiny),
    )
