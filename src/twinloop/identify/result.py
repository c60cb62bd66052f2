"""Define the result of an identification, and its formats for the terminal and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from twinloop.core.console import fit_column
from twinloop.core.distribution import ParamDistribution
from twinloop.core.plain import JsonRecord
from twinloop.core.units import choose_display_unit, count_decimals
from twinloop.identify.variants import ParameterProfile
from twinloop.stats import Interval


@dataclass(frozen=True, kw_only=True)
class Estimate(JsonRecord):
    """Identified value of one parameter in SI units, with its confidence interval.

    Attributes:
        name: Name of the parameter.
        unit: Its SI unit.
        nominal: Nominal value in the twin.
        value: Identified value.
        low: Lower limit of the interval; None if the data do not determine the parameter.
        high: Upper limit of the interval; None if the data do not determine the parameter.
        reason: Why the data do not determine the parameter; "" if they do.
        side: "at most" or "at least" if the estimate is on a bound and the interval is one-sided.
        conditional: Whether the interval holds only if the twin's physics is right, because the residuals that
            determine the parameter are correlated in time.
        prior_low: Lower limit of the central 95 % of the prior; None for a value that is not fitted.
        prior_high: Upper limit of it.
        prior_source: Where the prior comes from: ``fit file``, ``quantity`` (declared) or ``default range``.
        df: Degrees of freedom of the interval's t quantile. It is about the number of independent clusters of frames
            (episodes or time blocks) that determine the value; None if there are no clusters.
    """

    name: str
    unit: str
    nominal: float
    value: float
    low: float | None
    high: float | None
    reason: str = ""
    side: str = ""
    conditional: bool = False
    prior_low: float | None = None
    prior_high: float | None = None
    prior_source: str = ""
    df: float | None = None
    json_also = ("determined",)

    @property
    def scale(self) -> tuple[float, str]:
        """Factor and unit with which the values are printed: ms instead of s for a delay of 0.03 s."""
        return choose_display_unit(self.unit, max(abs(self.value), abs(self.nominal)))

    @property
    def interval(self) -> str:
        """Interval as text in the unit of ``scale``, or the reason why the parameter is not determined."""
        if self.low is None or self.high is None:
            return f"not determined: {self.reason}"
        mark, (factor, _) = " †" * self.conditional, self.scale
        low, high = factor * self.low, factor * self.high
        if self.side:
            return f"{self.side} {high if self.side == 'at most' else low:.4g} (on its bound){mark}"
        return f"[{low:.4g}, {high:.4g}]{mark}"

    @property
    def prior(self) -> str:
        """Central 95 % of the prior as text in the unit of ``scale``, with an asterisk if the user gave the prior."""
        if self.prior_low is None or self.prior_high is None:
            return ""
        factor, _ = self.scale
        limits = f"[{factor * self.prior_low:.3g}, {factor * self.prior_high:.3g}]"
        return f"{limits}{'*' * (self.prior_source == 'fit file')}"

    @property
    def determined(self) -> bool:
        """Whether the data determine the parameter, so that it has a confidence interval; if not, see ``reason``."""
        return not self.reason


@dataclass(frozen=True, kw_only=True)
class FitResiduals(JsonRecord):
    """Statistics of the fit's residuals on the training episodes, each array of shape ``(nchannel,)``.

    Attributes:
        rho: Lag-1 autocorrelation, from one frame to the next.
        n_eff: Effective number of independent frames.
        frames: Largest number of measured frames of a channel.
        p_value: P-value of the Ljung-Box test that the residuals are uncorrelated, over all windows.
        noise: Standard deviation in the channel's unit, estimated as 1.4826 times the median absolute deviation. If the
            twin is correct, it is the sensor's noise.
    """

    rho: NDArray[np.float64]
    n_eff: NDArray[np.float64]
    frames: int
    p_value: NDArray[np.float64]
    noise: NDArray[np.float64]
    json_names: ClassVar = {"rho": "lag1_autocorrelation", "p_value": "ljung_box_p", "noise": "noise_sd"}


@dataclass(frozen=True, kw_only=True)
class IntervalEvidence(JsonRecord):
    """Data and method from which the confidence intervals of a fit are computed.

    Attributes:
        clusters: Kind of the independent clusters of frames: ``episode``, ``time block``, or ``none``.
        count: Number of clusters.
        length_s: Length of the time blocks, s; 0 for episodes.
        correlated_s: Integrated autocorrelation time of the frames' influence on a parameter, s; the longest of all
            parameters.
        independent: Duration of the log divided by ``correlated_s``.
        parameters: Number of free parameters in the fit's largest block.
        rank: Rank of the clusters' scores (gradients): number of directions in parameter space whose spread is
            estimated, at most ``count`` − 1 for each block of jointly solved parameters.
        method: ``sandwich``, ``score bootstrap``, ``refit bootstrap`` or ``none``.
        draws: Number of bootstrap draws.
        level: Confidence level of the intervals.
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
        """Return sentences on data and method of the intervals, for a terminal."""
        if self.clusters == "none":
            return (
                f"No intervals: a single episode whose residuals stay correlated for too long to compare its parts. "
                f"Record at least {2 * self.parameters} episodes for {self.parameters} parameters."
            )
        clusters = f"{self.count} episodes"
        if self.clusters == "time block":
            clusters = (
                f"{self.count} blocks of {self.length_s:.2g} s (too few episodes for {self.parameters} parameters)"
            )
        sentence = (
            f"Intervals {self.level:.0%}, clustered by {clusters}; {_METHODS[self.method].format(draws=self.draws)}."
        )
        if self.count <= self.parameters:
            sentence += (
                f" {self.count} clusters estimate the spread of only {self.count - 1} of {self.parameters} directions "
                "(the rank of their sandwich), so the bootstrap is preferred."
            )
        elif self.method == "score bootstrap":
            sentence += f" There are fewer than {2 * self.parameters} clusters, so the bootstrap is preferred."
        return sentence


_METHODS = {
    "sandwich": "bias-reduced sandwich (CR2) with Bell-McCaffrey degrees of freedom",
    "score bootstrap": "one-step bootstrap of {draws} draws",
    "refit bootstrap": "bootstrap of {draws} full refits",
}


@dataclass(frozen=True, kw_only=True)
class IdentifyResult(JsonRecord):
    """Result of an identification: distribution over parameters, intervals, errors and residuals.

    Errors are mean absolute errors per joint in the log's units, of replays that are open loop from the first frame.

    Attributes:
        distribution: Joint distribution of the parameters.
        estimates: Identified value and interval of each parameter.
        joints: Names of the compared channels; position channels have the name of their joint.
        log_units: Unit of each of these channels.
        training: Numbers of the training episodes.
        holdout: Numbers of the held-out episodes.
        training_error: Error of the identified twin on the training episodes.
        nominal_training_error: Error of the nominal twin on the training episodes.
        nominal_holdout_error: Error of the nominal twin on the held-out episodes; None if no episode was held out.
        holdout_error: Error of the identified twin on them; None if no episode was held out.
        condition: Condition number of the scaled normal matrix of each block of jointly fitted parameters; a large
            value means correlated parameters.
        directions: Combinations of parameters that the data do not determine, as text.
        residuals: Statistics of the training residuals.
        evidence: Data and method of the intervals.
        converged: Whether the optimization converged.
        worlds_replayed: Number of simulated worlds.
        seconds: Duration of the identification, s.
        notes: Notes that qualify the result.
        optima: Parameter values (SI) of optima with nearly the same loss, the reported optimum first.
        profiles: The requested profile likelihoods.
    """

    distribution: ParamDistribution
    estimates: tuple[Estimate, ...]
    joints: tuple[str, ...]
    log_units: tuple[str, ...]
    training: tuple[int, ...]
    holdout: tuple[int, ...]
    training_error: NDArray[np.float64]
    nominal_training_error: NDArray[np.float64]
    nominal_holdout_error: NDArray[np.float64] | None
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
        """Identified values by parameter name, SI; a valid argument of `Twin.table`."""
        return self.distribution.estimate

    @property
    def correlation(self) -> NDArray[np.float64]:
        """Correlation of the estimates of the k determined parameters, in the order of `determined`, ``(k, k)``."""
        rows = np.flatnonzero(self.distribution.determined)
        covariance = self.distribution.covariance[np.ix_(rows, rows)]
        sd = np.sqrt(np.diag(covariance))
        return covariance / np.outer(sd, sd)

    @property
    def determined(self) -> tuple[str, ...]:
        """Names of the parameters that the data determine."""
        known = zip(self.distribution.names, self.distribution.determined, strict=True)
        return tuple(name for name, determined in known if determined)

    def text(self) -> str:
        """Return the result as a table for a terminal."""
        held = f"held out {len(self.holdout)}" if self.holdout else "NOTHING HELD OUT: training error only"
        lines = [f"Identified on {len(self.training)} episodes, {held}.", self.evidence.text(), ""]
        wide = fit_column(36, [row.name for row in self.estimates])
        lines.append(f"{'parameter':<{wide}}{'unit':<12}{'nominal':>10}  {'prior':<20}{'identified':>10}  interval")
        for row in self.estimates:
            factor, unit = row.scale
            nominal, value = factor * row.nominal, factor * row.value
            lines.append(f"{row.name:<{wide}}{unit:<12}{nominal:>10.4g}  {row.prior:<20}{value:>10.4g}  {row.interval}")
        if any(row.prior_source == "fit file" for row in self.estimates):
            lines.append("* prior from the fit file")
        lines += ["", *(profile.text() for profile in self.profiles)] if self.profiles else []
        condition = ", ".join(f"{value:.2g}" for value in self.condition)
        lines += ["", *self._error_lines(), "", *self._residual_lines(), "", *self._correlation_lines()]
        lines += [f"Condition of the scaled normal matrix: {condition}.", *self.notes]
        if self.directions:
            lines += ["", "Not determined by these data:", *(f"  {direction}" for direction in self.directions)]
        return "\n".join(lines)

    def _error_lines(self) -> list[str]:
        """Return a table of the errors of nominal and identified twin on training and held-out episodes."""
        wide = fit_column(24, self.joints)
        lines = [
            f"{'mean absolute error':<{wide}}{'':<18}{'training episodes':^24}  held-out episodes",
            f"{'':<{wide}}{'unit':<18}{'nominal':>12}{'identified':>12}  {'nominal':>12}  identified",
        ]
        for i, joint in enumerate(self.joints):
            factor, unit = choose_display_unit(self.log_units[i], float(self.training_error[i]))
            before, after = (
                _format_error(factor * each[i]) for each in (self.nominal_training_error, self.training_error)
            )
            held = self._held_out_columns(i, factor)
            lines.append(f"{joint:<{wide}}{unit:<18}{before:>12}{after:>12}  {held}")
        return lines

    def _held_out_columns(self, channel: int, factor: float) -> str:
        """Return the errors of nominal and identified twin on the held-out episodes, multiplied by ``factor``."""
        if self.holdout_error is None or self.nominal_holdout_error is None:
            return f"{'none':>12}"
        error, low, high = (
            factor * float(each[channel])
            for each in (self.holdout_error.estimate, self.holdout_error.low, self.holdout_error.high)
        )
        digits = count_decimals(error)
        bounds = "(one episode, no interval)" if np.isnan(low) else f"[{low:.{digits}f}, {high:.{digits}f}]"
        before = _format_error(factor * self.nominal_holdout_error[channel])
        return f"{before:>12}  {error:.{digits}f} {bounds}"

    def _residual_lines(self) -> list[str]:
        left = self.residuals
        wide = fit_column(24, self.joints)
        lines = [f"{'training residuals':<{wide}}{'unit':<18}{'noise (sd)':>10}{'lag-1':>8}{'n_eff':>9}  Ljung-Box p"]
        for i, joint in enumerate(self.joints):
            effective = f"{left.n_eff[i]:.0f} of {left.frames}"
            p = "too short" if np.isnan(left.p_value[i]) else f"{left.p_value[i]:.2g}"
            columns = f"{left.noise[i]:>10.3g}{left.rho[i]:>8.3f}  {effective}"
            lines.append(f"{joint:<{wide}}{self.log_units[i]:<18}{columns}  {p}")
        return lines

    def _correlation_lines(self) -> list[str]:
        """Return lines for the pairs of parameters with the strongest correlation."""
        table, names = self.correlation, self.determined
        pairs = [(i, j) for i in range(len(names)) for j in range(i) if abs(table[i, j]) > _CORRELATED]
        pairs = sorted(pairs, key=lambda pair: -abs(table[pair]))[:_PAIRS]
        return [f"Correlated {table[i, j]:+.2f}: {names[j]} and {names[i]}" for i, j in pairs]


def _format_error(value: float) -> str:
    return f"{value:.{count_decimals(value)}f}"


# Printed pairs: those that share more than four fifths of their variance, at most six.
_CORRELATED, _PAIRS = 0.9, 6
