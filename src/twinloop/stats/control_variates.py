"""The real mean score from few real and many simulated trials: simulation as a control variate, for large samples.

With n starts tried in both worlds (real F, simulated G) and k more simulated ones (G′),
μ̂ = mean(F) − β (mean(G) − mean(G′)). Whatever β is, simulation cannot bias it: the same policy in the same simulator is
subtracted. β = 1 is prediction-powered inference (Angelopoulos et al., Science 382, 2023); the β of least variance,
Cov(F, G) / Var(G) · k / (n + k), is the classical control variate and PPI++ (Angelopoulos, Duchi & Zrnic,
arXiv 2311.01453, 2023). These intervals are asymptotic: for few trials, and where nearly all end alike, they cover less
than they say, and `prediction_powered` is the one to use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from twinloop.core.errors import InputError
from twinloop.stats.betting import check_bounded
from twinloop.stats.bootstrap import bootstrap
from twinloop.stats.interval import Interval, check_level

Array = NDArray[np.float64]
Coefficient = Literal["ppi", "ppi++", "cross-fitted"]
_LEAST = 3  # paired trials from which a covariance and its spread can be told


@dataclass(frozen=True, kw_only=True)
class PairedTrials:
    """Scores of starts tried in both worlds, ``real`` and ``sim`` ``(n,)``, and of ``more`` simulated ones ``(k,)``.

    Raises:
        InputError: scores outside [0, 1], pairs that do not match, or nothing simulated besides.
    """

    real: Array
    sim: Array
    more: Array

    def __post_init__(self) -> None:
        for name in ("real", "sim", "more"):
            object.__setattr__(self, name, check_bounded(getattr(self, name), 0.0, 1.0))
        if self.real.shape != self.sim.shape:
            raise InputError(
                f"{len(self.real)} real trials cannot be paired with {len(self.sim)} simulated ones. Simulate every "
                "real start once, under the same name of pair."
            )

    def take(self, rows: NDArray[np.intp]) -> PairedTrials:
        """The pairs of these numbers, with all other simulated trials."""
        return PairedTrials(real=self.real[rows], sim=self.sim[rows], more=self.more)


@dataclass(frozen=True, kw_only=True)
class ControlVariate:
    """The estimate of the real mean, with β and how it was found; asymptotic."""

    mean: Interval
    beta: float

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        return {"mean": self.mean.to_json(), "beta": self.beta}


def control_variate(
    trials: PairedTrials, *, coefficient: Coefficient = "cross-fitted", level: float = 0.95
) -> ControlVariate:
    """The real mean by a control variate, with an asymptotic interval.

    Args:
        trials: the scores.
        coefficient: ``ppi`` for β = 1, ``ppi++`` for the β of least variance, both with normal quantiles as published;
            ``cross-fitted`` takes each pair's β from all others, so that no pair chooses its own, and Student's t.
        level: confidence level.

    Raises:
        InputError: fewer than three pairs, of which no spread can be told.
    """
    check_level(level)
    n, k = len(trials.real), len(trials.more)
    if n < _LEAST:
        raise InputError(f"{n} paired trials tell no spread; at least {_LEAST} are needed, and 20 to rely on it.")
    beta = {"ppi": _one, "ppi++": _tuned, "cross-fitted": _left_out}[coefficient](trials)
    rectified = trials.real - beta * (trials.sim - trials.more.mean())
    error = np.sqrt(rectified.var(ddof=1) / n + beta.mean() ** 2 * trials.more.var(ddof=min(1, k - 1)) / k)
    tail = (1 + level) / 2
    reach = float(stdtrit(n - 1, tail) if coefficient == "cross-fitted" else ndtri(tail)) * float(error)
    estimate = float(rectified.mean())
    return ControlVariate(
        mean=Interval(
            estimate=np.array(estimate),
            low=np.array(estimate - reach),
            high=np.array(estimate + reach),
            level=level,
            method=f"{coefficient} control variate, asymptotic",
        ),
        beta=float(beta.mean()),
    )


def trials_saved(trials: PairedTrials, *, level: float = 0.95, draws: int = 2000, seed: int = 0) -> Interval:
    """How many further real trials the simulated ones are worth: n ρ²k/(n + k) / (1 − ρ²k/(n + k)).

    ρ² is corrected for its bias with few pairs, 1 − (1 − r²)(n − 1)/(n − 2) and at least 0, without which simulation
    that tells nothing would seem to help. The interval is a percentile bootstrap over pairs. Where either side has only
    one outcome the correlation cannot be told: nothing is saved as far as seen, and the ends are NaN.

    Raises:
        InputError: fewer than three pairs.
    """
    check_level(level)
    n, k = len(trials.real), len(trials.more)
    if n < _LEAST:
        raise InputError(f"{n} paired trials tell no correlation; at least {_LEAST} are needed.")
    if np.ptp(trials.real) == 0 or np.ptp(trials.sim) == 0:
        nan = np.array(np.nan)
        method = "none: all paired trials ended alike, so that no correlation can be told"
        return Interval(estimate=np.array(0.0), low=nan, high=nan, level=level, method=method)

    def saved(rows: NDArray[np.intp]) -> Array:
        f, g = (values[rows] - values[rows].mean(axis=1, keepdims=True) for values in (trials.real, trials.sim))
        product = np.sqrt(np.sum(f**2, axis=1) * np.sum(g**2, axis=1))
        r = np.divide(np.sum(f * g, axis=1), product, out=np.zeros(len(rows)), where=product > 1e-12)
        explained = np.clip(1 - (1 - r**2) * (n - 1) / (n - 2), 0.0, 1.0) * k / (n + k)
        return n * explained / (1 - explained)

    found = bootstrap(saved, n, level=level, draws=draws, method="percentile", seed=seed)
    return Interval(
        estimate=found.estimate,
        low=np.minimum(found.low, found.estimate),
        high=np.maximum(found.high, found.estimate),
        level=level,
        method="percentile bootstrap over pairs",
    )


def _one(trials: PairedTrials) -> Array:
    return np.ones(len(trials.real))


def _tuned(trials: PairedTrials) -> Array:
    n, k = len(trials.real), len(trials.more)
    spread = np.concatenate([trials.sim, trials.more]).var(ddof=1)
    both = float(np.sum((trials.real - trials.real.mean()) * (trials.sim - trials.sim.mean())) / (n - 1))
    return np.full(n, 0.0 if spread == 0 else both / spread * k / (n + k))


def _left_out(trials: PairedTrials) -> Array:
    """β of each pair from all others: sums without it, by what it contributes to them."""
    n, k = len(trials.real), len(trials.more)
    f, g = trials.real - trials.real.mean(), trials.sim - trials.sim.mean()
    grown = n / (n - 1)  # leaving one out of centred sums removes its product this many times
    both = np.sum(f * g) - grown * f * g
    every = np.concatenate([trials.sim, trials.more])
    spread = every.var() * (n - 2)
    return both / spread * k / (n + k) if spread > 0 else np.zeros(n)
