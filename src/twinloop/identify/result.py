"""Store the results of a fit, and format them as text and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from twinloop.core.distribution import ParamDistribution
from twinloop.core.plain import JsonRecord
from twinloop.identify.variants import ParameterProfile
from twinloop.stats import Interval


@dataclass(frozen=True, kw_only=True)
class Estimate(JsonRecord):
    """One parameter in SI: nominal and identified value, and its interval unless it is not determined (``reason``).

    ``side`` is "at most" or "at least" if the estimate is on a bound; the interval is then one-sided. ``df`` are the
    degrees of freedom of its quantile, approximately the number of clusters that decide it; None without clusters.
    """

    name: str
    unit: str
    nominal: float
    value: float
    low: float | None
    high: float | None
    reason: str = ""
    side: str = ""
    df: float | None = None
    json_also = ("determined",)

    @property
    def interval(self) -> str:
        """The limits as text, or the reason why there are none."""
        if self.low is None or self.high is None:
            return f"not determined: {self.reason}"
        if self.side:
            return f"{self.side} {self.high if self.side == 'at most' else self.low:.4g} (on its bound)"
        return f"[{self.low:.4g}, {self.high:.4g}]"

    @property
    def determined(self) -> bool:
        """Whether the data determine the parameter."""
        return not self.reason


@dataclass(frozen=True, kw_only=True)
class FitResiduals(JsonRecord):
    """Residuals of the fit on the training episodes, each ``(nchannel,)``.

    ``noise`` is their standard deviation from the median (1.4826 MAD) in the channel's unit: the sensor's noise as far
    as the twin is correct. ``rho`` is the correlation from one frame to the next. ``n_eff`` is the effective number of
    independent frames among all ``frames``. ``p_value`` is that of the Ljung-Box test for whiteness over all windows.
    """

    rho: NDArray[np.float64]
    n_eff: NDArray[np.float64]
    frames: int
    p_value: NDArray[np.float64]
    noise: NDArray[np.float64]
    json_names: ClassVar = {"rho": "lag1_autocorrelation", "p_value": "ljung_box_p", "noise": "noise_sd"}


@dataclass(frozen=True, kw_only=True)
class IntervalEvidence(JsonRecord):
    """Data and method behind the intervals.

    Attributes:
        clusters: the independent unit: ``episode``, ``time block``, or ``none``.
        count: number of clusters.
        length_s: length of the time blocks, s.
        correlated_s: time over which frames' influence on the slowest parameter is correlated, s.
        independent: number of such stretches in the log.
        parameters: number of free parameters in the fit's largest block.
        rank: rank of the clusters' scores; a sandwich of C clusters estimates the spread of at most C − 1 directions.
        method: ``sandwich``, ``score bootstrap``, ``refit bootstrap`` or ``none``.
        draws: number of bootstrap draws.
        level: confidence level of the intervals.
    """

    clusters: str
    count: int
    length_s: float
    correlated_s: float
    independent: float
    parameters: int
    rank: int
    method: str
    draws: int
    level: float

    def text(self) -> str:
        """Return sentences for the head of a table."""
        if self.clusters == "none":
            return (
                f"No intervals: a single episode whose residuals stay correlated for too long to compare its parts. "
                f"Record at least {2 * self.parameters} episodes for {self.parameters} parameters."
            )
        what = f"{self.count} episodes"
        if self.clusters == "time block":
            what = f"{self.count} blocks of {self.length_s:.2g} s (too few episodes for {self.parameters} parameters)"
        said = f"Intervals {self.level:.0%}, clustered by {what}; {_METHODS[self.method].format(draws=self.draws)}."
        if self.count <= self.parameters:
            said += (
                f" {self.count} clusters estimate the spread of only {self.count - 1} of {self.parameters} directions "
                "(the rank of their sandwich), so the bootstrap is preferred."
            )
        elif self.method == "score bootstrap":
            said += f" There are fewer than {2 * self.parameters} clusters, so the bootstrap is preferred."
        return said


_METHODS = {
    "sandwich": "bias-reduced sandwich (CR2) with Bell-McCaffrey degrees of freedom",
    "score bootstrap": "one-step bootstrap of {draws} draws",
    "refit bootstrap": "bootstrap of {draws} full refits",
}


@dataclass(frozen=True, kw_only=True)
class IdentifyResult(JsonRecord):
    """Result of an identification: distribution over parameters, intervals, errors and residuals.

    Errors are mean absolute errors per joint in the log's units, open loop from the first frame. ``holdout_error`` is
    None if nothing was held out; the result is then labelled so. ``condition`` and ``directions`` describe combinations
    that the data do not determine, see `identify.uncertainty`. ``optima`` are parameter values of optima with nearly
    the same loss, the reported one first. ``profiles`` are the requested ones.
    """

    distribution: ParamDistribution
    estimates: tuple[Estimate, ...]
    joints: tuple[str, ...]
    log_units: tuple[str, ...]
    training: tuple[int, ...]
    holdout: tuple[int, ...]
    training_error: NDArray[np.float64]
    nominal_training_error: NDArray[np.float64]
    holdout_error: Interval | None
    condition: tuple[float, ...]
    directions: tuple[str, ...]
    residuals: FitResiduals
    evidence: IntervalEvidence
    converged: bool
    worlds_replayed: int
    seconds: float
    notes: tuple[str, ...] = ()
    optima: tuple[Mapping[str, float], ...] = ()
    profiles: tuple[ParameterProfile, ...] = ()
    json_schema = 2  # version 2 adds evidence, correlation, noise, sides and degrees of freedom
    json_names: ClassVar = {"directions": "not_determined_directions"}
    json_also = ("determined", "correlation")

    @property
    def values(self) -> Mapping[str, float]:
        """Identified values by name, SI, as `Twin.table` takes them."""
        return self.distribution.estimate

    @property
    def correlation(self) -> NDArray[np.float64]:
        """Correlation of the determined parameters' errors, in the order of `determined`, ``(k, k)``."""
        rows = np.flatnonzero(self.distribution.determined)
        covariance = self.distribution.covariance[np.ix_(rows, rows)]
        sd = np.sqrt(np.diag(covariance))
        return covariance / np.outer(sd, sd)

    @property
    def determined(self) -> tuple[str, ...]:
        """Names of the parameters that the data determine."""
        known = zip(self.distribution.names, self.distribution.determined, strict=True)
        return tuple(name for name, told in known if told)

    def text(self) -> str:
        """Return the result as a table for a terminal."""
        held = f"held out {len(self.holdout)}" if self.holdout else "NOTHING HELD OUT: training error only"
        lines = [f"Identified on {len(self.training)} episodes, {held}.", self.evidence.text(), ""]
        lines.append(f"{'parameter':<36}{'unit':<12}{'nominal':>10}{'identified':>12}  interval")
        lines += [
            f"{row.name:<36}{row.unit:<12}{row.nominal:>10.4g}{row.value:>12.4g}  {row.interval}"
            for row in self.estimates
        ]
        lines += ["", *(profile.text() for profile in self.profiles)] if self.profiles else []
        condition = ", ".join(f"{value:.2g}" for value in self.condition)
        lines += ["", *self._error_lines(), "", *self._residual_lines(), "", *self._correlation_lines()]
        lines += [f"Condition of the scaled normal matrix: {condition}.", *self.notes]
        if self.directions:
            lines += ["", "Not determined by these data:", *(f"  {direction}" for direction in self.directions)]
        return "\n".join(lines)

    def _error_lines(self) -> list[str]:
        lines = [f"{'mean absolute error':<24}{'unit':<18}{'nominal':>10}{'training':>10}  held-out"]
        for i, joint in enumerate(self.joints):
            held = "none"
            if (interval := self.holdout_error) is not None:
                bounds = f"[{interval.low[i]:.3f}, {interval.high[i]:.3f}]"
                bounds = "(one episode, no interval)" if np.isnan(interval.low[i]) else bounds
                held = f"{interval.estimate[i]:.3f} {bounds}"
            before, after = self.nominal_training_error[i], self.training_error[i]
            lines.append(f"{joint:<24}{self.log_units[i]:<18}{before:>10.3f}{after:>10.3f}  {held}")
        return lines

    def _residual_lines(self) -> list[str]:
        left = self.residuals
        lines = [f"{'training residuals':<24}{'unit':<18}{'noise (sd)':>10}{'lag-1':>8}{'n_eff':>9}  Ljung-Box p"]
        for i, joint in enumerate(self.joints):
            effective = f"{left.n_eff[i]:.0f} of {left.frames}"
            p = "too short" if np.isnan(left.p_value[i]) else f"{left.p_value[i]:.2g}"
            figures = f"{left.noise[i]:>10.3g}{left.rho[i]:>8.3f}  {effective}"
            lines.append(f"{joint:<24}{self.log_units[i]:<18}{figures}  {p}")
        return lines

    def _correlation_lines(self) -> list[str]:
        """Return lines for the pairs of parameters with the strongest correlation."""
        table, names = self.correlation, self.determined
        pairs = [(i, j) for i in range(len(names)) for j in range(i) if abs(table[i, j]) > _CORRELATED]
        pairs = sorted(pairs, key=lambda pair: -abs(table[pair]))[:_PAIRS]
        return [f"Correlated {table[i, j]:+.2f}: {names[j]} and {names[i]}" for i, j in pairs]


# Printed pairs: those that share more than four fifths of their variance, at most six.
_CORRELATED, _PAIRS = 0.9, 6
