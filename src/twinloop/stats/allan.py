"""Compute Allan deviations of sensor noise, and fit noise coefficients (white noise, bias instability, random walk).

The Allan deviation at an averaging time describes the differences between averages over neighbouring intervals of that
duration. Formulas: D. W. Allan, Proc. IEEE 54 (1966); IEEE Std 952-1997, annex C; W. Riley, NIST Special Publication
1065 (2008), sections 5.2.4 and 5.4.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtri

from twinloop.core.errors import InputError
from twinloop.stats.interval import Interval, check_level

_FEWEST = 9  # smallest number of samples of a record
_PER_DECADE = 10  # averaging times per factor of ten
_FLICKER = 2.0 * math.log(2.0) / math.pi  # Allan variance of flicker noise over its coefficient squared


@dataclass(frozen=True, kw_only=True)
class AllanCurve:
    """Overlapping Allan deviation of one record, by averaging time.

    Attributes:
        time: Averaging times in s, shape ``(ntime,)``.
        deviation: Allan deviation at each averaging time in the unit of the record, with its interval.
        freedom: Equivalent degrees of freedom of each Allan variance (square of the deviation), shape ``(ntime,)``.
            They determine the chi-square interval: more degrees give a narrower interval.
    """

    time: NDArray[np.float64]
    deviation: Interval
    freedom: NDArray[np.float64]

    @property
    def slope(self) -> NDArray[np.float64]:
        """Exponent e of the deviation σ ∝ τᵉ at each averaging time τ, shape ``(ntime,)``.

        It is −1/2 for white noise, 0 for flicker noise, and 1/2 for a random walk.
        """
        return np.gradient(np.log(self.deviation.estimate), np.log(self.time))


@dataclass(frozen=True, kw_only=True)
class AllanNoise:
    """Noise coefficients of a record after IEEE 952, with intervals.

    They describe the Allan variance σ² at the averaging time τ::

        σ²(τ) = white² / τ + (2 ln 2 / π) · instability² + walk² · τ / 3

    The factor 2 ln 2 / π is the Allan variance of flicker noise with coefficient 1 (IEEE 952).

    Attributes:
        white: White noise in unit/√Hz (coefficient N).
        instability: Bias instability (flicker noise) in the unit of the record (coefficient B).
        walk: Random walk in unit/√s (coefficient K).
    """

    white: Interval
    instability: Interval
    walk: Interval


def allan_curve(
    values: ArrayLike,
    period: float,
    *,
    level: float = 0.95,
    shortest: float = 0.0,
    longest: float = 0.1,
) -> AllanCurve:
    """Return the overlapping Allan deviation of a record that was sampled at a constant rate.

    Intervals use the chi-square distribution. Its degrees of freedom depend on the type of noise, which is inferred
    from the slope of the curve.

    Args:
        values: Samples of the quantity itself, for example an angular rate (not its integral), shape ``(n,)``.
        period: Sampling period in s.
        level: Confidence level of the intervals.
        shortest: Shortest averaging time in s. If the sensor filters its signal, use about a hundred times the filter's
            time constant, because the filter distorts the curve at shorter times.
        longest: Longest averaging time, as a fraction of the record.

    Raises:
        InputError: If there are fewer than 9 samples, a sample is not finite, or the record is too short for the
            shortest time.
    """
    check_level(level)
    record = np.asarray(values, dtype=np.float64)
    if record.ndim != 1 or len(record) < _FEWEST or not np.isfinite(record).all():
        raise InputError(
            f"An Allan deviation needs a series of at least {_FEWEST} finite numbers; given {record.shape}. "
            "Give one channel of a record at rest, without gaps."
        )
    least = max(1, math.ceil(shortest / period))
    most = max(least + 1, int(len(record) * longest))
    count = max(2, math.ceil(_PER_DECADE * math.log10(most / least)) + 1)
    averaged = np.unique(np.round(np.geomspace(least, most, count)).astype(np.int64))
    if 2 * most >= len(record):
        raise InputError(
            f"A record of {len(record) * period:g} s is too short for averages over {most * period:g} s. Give a longer "
            "one, or shorter averages."
        )
    phase = np.concatenate([[0.0], np.cumsum(record - record.mean())]) * period
    variance = np.array([_allan_variance(phase, int(m)) for m in averaged]) / (averaged * period) ** 2
    time = np.asarray(averaged * period, dtype=np.float64)
    slope = np.gradient(np.log(variance), np.log(time)) / 2.0
    freedom = _degrees_of_freedom(slope, averaged.astype(np.float64), len(phase))
    tail = (1.0 - level) / 2.0
    low, high = (freedom * variance / chdtri(freedom, part) for part in (tail, 1.0 - tail))
    deviation = Interval.of(
        np.sqrt(variance), np.sqrt(low), np.sqrt(high), level=level, method="overlapping Allan deviation, chi-square"
    )
    return AllanCurve(time=time, deviation=deviation, freedom=freedom)


def allan_noise(curve: AllanCurve) -> AllanNoise:
    """Fit white noise, flicker noise and random walk to an Allan curve, by weighted least squares.

    Residuals are relative to the Allan variance. The interval of a coefficient comes from one point of the curve: the
    averaging time at which this type of noise has the largest share of the variance. There, the part of the variance
    that the other two types contribute is subtracted from the lower and from the upper limit of the Allan variance. A
    coefficient of 0 has an interval from 0 to the largest value that the curve's upper limit allows.
    """
    from scipy.optimize import nnls  # slow to load

    time, level = curve.time, curve.deviation.level
    variance = curve.deviation.estimate**2
    basis = np.stack([1.0 / time, np.full_like(time, _FLICKER), time / 3.0], axis=1)
    weight = np.sqrt(curve.freedom / 2.0) / variance
    squares, _ = nnls(basis * weight[:, None], variance * weight)
    return AllanNoise(
        white=_coefficient(curve, basis, squares, 0, level),
        instability=_coefficient(curve, basis, squares, 1, level),
        walk=_coefficient(curve, basis, squares, 2, level),
    )


def _allan_variance(phase: NDArray[np.float64], m: int) -> float:
    """Return half the mean square of the second differences of a record's integral.

    Args:
        phase: Integral of the record.
        m: Averaging time in samples.
    """
    second = phase[2 * m :] - 2.0 * phase[m:-m] + phase[: -2 * m]
    return float(np.mean(second * second)) / 2.0


def _degrees_of_freedom(slope: NDArray[np.float64], m: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """Return the equivalent degrees of freedom of Allan variances (NIST SP 1065, table 5).

    Args:
        slope: Local exponent of the deviation, which selects the noise type.
        m: Averaging times in samples.
        n: Number of samples of the integrated record (one more than the record).
    """
    white = (3.0 * (n - 1) / (2.0 * m) - 2.0 * (n - 2) / n) * 4.0 * m**2 / (4.0 * m**2 + 5.0)
    first = 2.0 * (n - 2) ** 2 / (2.3 * n - 4.9)
    flicker = np.where(m > 1, 5.0 * n**2 / (4.0 * m * (n + 3.0 * m)), first)
    walk = (n - 2) / m * ((n - 1) ** 2 - 3.0 * m * (n - 1) + 4.0 * m**2) / (n - 3) ** 2
    kind = np.where(
        slope < -0.25, white, np.where(slope < 0.25, flicker, walk)
    )  # limits halfway between the slopes of the noise types
    return np.maximum(kind, 1.0)


def _coefficient(
    curve: AllanCurve, basis: NDArray[np.float64], squares: NDArray[np.float64], which: int, level: float
) -> Interval:
    """Return one noise coefficient with its interval.

    The interval comes from the averaging time at which this type of noise has the largest share of the variance.

    Args:
        curve: The Allan curve.
        basis: Allan variance at each averaging time if one squared coefficient is 1 and the others are 0, shape
            ``(ntime, 3)``: 1/τ for white noise, 2 ln 2 / π for bias instability, τ/3 for random walk.
        squares: The fitted squared coefficients, shape ``(3,)``.
        which: Index of the coefficient: 0 white noise, 1 bias instability, 2 random walk.
        level: Confidence level.
    """
    model = basis @ squares
    share = basis[:, which] * squares[which] / model
    method = "least squares of the Allan variance, chi-square where the part is largest"
    if squares[which] <= 0.0:
        allowed = (curve.deviation.high**2 / basis[:, which]).min()
        return Interval.of(0.0, 0.0, math.sqrt(allowed), level=level, method=method)
    # Among the times where its part is nearly the largest, take the most accurate one.
    near = share > share.max() - 0.05  # 5 % less is less than any interval here
    place = int(np.argmax(np.where(near, curve.freedom, 0.0)))
    rest = model[place] - basis[place, which] * squares[which]
    estimate, low, high = (
        float(end[place]) ** 2 for end in (curve.deviation.estimate, curve.deviation.low, curve.deviation.high)
    )
    # The other parts have the relative uncertainty of the whole variance, and are largest if this part is smallest.
    ends = [max(end, 0.0) / basis[place, which] for end in (low - rest * high / estimate, high - rest * low / estimate)]
    return Interval.of(
        math.sqrt(squares[which]),
        math.sqrt(min(ends[0], squares[which])),
        math.sqrt(max(ends[1], squares[which])),
        level=level,
        method=method,
    )
