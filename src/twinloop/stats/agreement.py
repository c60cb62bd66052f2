"""Measure how well observers agree who labelled the same units, corrected for agreement by chance.

Cohen's kappa is for two observers (Cohen, "A coefficient of agreement for nominal scales", Educational and
Psychological Measurement 20, 1960). Krippendorff's alpha is for any number of observers, who need not label every unit
(Krippendorff, "Computing Krippendorff's Alpha-Reliability", 2011). Both are functions of sums over units. A bootstrap
or jackknife therefore only needs the sums of each resample, which one matrix product computes for all resamples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from twinloop.core.errors import InputError
from twinloop.stats.bootstrap import bootstrap
from twinloop.stats.interval import Interval, check_level
from twinloop.stats.proportion import clopper_pearson

Metric = Literal["nominal", "interval"]
Array = NDArray[np.float64]
_FEWEST = 2  # units that are needed to estimate their spread
_MOST_RESAMPLED = 1000  # units; more units: the jackknife's normal interval is as good and much cheaper


def cohens_kappa(first: ArrayLike, second: ArrayLike, *, level: float = 0.95, seed: int = 0) -> Interval:
    """Return Cohen's kappa of two observers on nominal values: (observed − expected) / (1 − expected agreement).

    Args:
        first: Values of the first observer, shape ``(nunit,)``, codes or words; NaN, None or "" for a missing value.
            Units with a missing value of either observer do not count.
        second: Values of the second observer for the same units.
        level: Confidence level of the interval over units.
        seed: Seed of the bootstrap resamples.

    Returns:
        Kappa with its interval; the estimate is NaN if both observers give the same single value to all units.

    Raises:
        InputError: If the lengths are unequal, or fewer than two units have both values.
    """
    codes, size = _encode_values(_stack_observers(first, second))
    codes = codes[(codes >= 0).all(axis=1)]
    _check_unit_count(len(codes), "both observers")
    unit = np.arange(len(codes))
    sums = np.zeros((len(codes), size, size))
    sums[unit, codes[:, 0], codes[:, 1]] = 1.0

    def kappa(total: Array) -> Array:
        table = total.reshape(-1, size, size)
        units = table.sum(axis=(1, 2))
        observed = np.trace(table, axis1=1, axis2=2) / units
        expected = (table.sum(axis=1) * table.sum(axis=2)).sum(axis=1) / units**2
        return _beyond_chance(1.0 - observed, 1.0 - expected)

    agree = codes[:, 0] == codes[:, 1]
    chance = _expected_disagreement(np.bincount(codes.ravel(), minlength=size))
    return _interval(kappa, sums.reshape(len(codes), -1), agree, chance, level=level, seed=seed)


def krippendorff_alpha(
    values: ArrayLike, metric: Metric = "nominal", *, level: float = 0.95, seed: int = 0
) -> Interval:
    """Return Krippendorff's alpha of any number of observers: 1 − observed / expected disagreement.

    Args:
        values: Values, shape ``(nunit, nobserver)``: codes or words with metric ``nominal``, numbers with ``interval``;
            NaN, None or "" for a missing value. Units with fewer than two values do not count.
        metric: Measure of disagreement: 1 between unequal values (``nominal``), or the squared difference
            (``interval``).
        level: Confidence level of the interval over units.
        seed: Seed of the bootstrap resamples.

    Returns:
        Alpha with its interval; the estimate is NaN if only one value occurs.

    Raises:
        InputError: If fewer than two units have two values.
    """
    table = np.asarray(values, dtype=object)
    if table.ndim != 2:
        raise InputError(f"Values have shape {table.shape}; give (units, observers).")
    if metric == "interval":
        return _alpha_interval(table, level=level, seed=seed)
    codes, size = _encode_values(table)
    codes = codes[(codes >= 0).sum(axis=1) >= _FEWEST]
    _check_unit_count(len(codes), "two observers")
    counts = np.stack([(codes == code).sum(axis=1) for code in range(size)], axis=1).astype(np.float64)
    given = counts.sum(axis=1)
    # A unit's coincidences (Krippendorff 2011, section C), of which only those of unequal values count.
    unlike = (given**2 - (counts**2).sum(axis=1)) / (given - 1.0)
    sums = np.concatenate([unlike[:, None], counts], axis=1)

    def alpha(total: Array) -> Array:
        each = total[:, 1:]
        whole = each.sum(axis=1)
        expected = (whole**2 - (each**2).sum(axis=1)) / np.maximum(whole - 1.0, 1.0)
        return _beyond_chance(total[:, 0], expected)

    return _interval(alpha, sums, unlike == 0, _expected_disagreement(counts.sum(axis=0)), level=level, seed=seed)


def _alpha_interval(table: NDArray[np.object_], *, level: float, seed: int) -> Interval:
    numbers = np.array([[np.nan if _is_missing(x) else float(x) for x in row] for row in table], dtype=np.float64)
    numbers = numbers.reshape(table.shape)
    numbers = numbers[np.isfinite(numbers).sum(axis=1) >= _FEWEST]
    _check_unit_count(len(numbers), "two observers")
    numbers = numbers - np.nanmean(numbers)  # a difference of squares of large numbers would lose digits
    given = np.isfinite(numbers).sum(axis=1).astype(np.float64)
    plain, square = np.nansum(numbers, axis=1), np.nansum(numbers**2, axis=1)
    disagreement = np.maximum(given * square - plain**2, 0.0) / (
        given - 1.0
    )  # half the squared differences of all pairs
    sums = np.stack([disagreement, given, plain, square], axis=1)

    def alpha(total: Array) -> Array:
        disagreement, given, plain, square = total.T
        return _beyond_chance(disagreement, np.maximum(given * square - plain**2, 0.0) / np.maximum(given - 1.0, 1.0))

    agrees = np.nanmax(numbers, axis=1) == np.nanmin(numbers, axis=1)
    return _interval(alpha, sums, agrees, 1.0, level=level, seed=seed)


def _interval(
    statistic: Callable[[Array], Array],
    sums: Array,
    agrees: NDArray[np.bool_],
    chance: float,
    *,
    level: float,
    seed: int,
) -> Interval:
    """Return the confidence interval of an agreement statistic, which is a function of sums over units.

    If the observers agree on all units, all resamples are equal. The lower limit is then 1 − q / ``chance``, where q is
    the exact binomial upper limit of the share of units on which they disagree. Agreement is not defined for a resample
    in which only one value occurs; it counts as 0.

    Args:
        statistic: Function from sums ``(k, nsum)`` of k resamples to agreements ``(k,)``.
        sums: Terms of the sums for each unit, shape ``(nunit, nsum)``.
        agrees: Whether all values of a unit are equal, shape ``(nunit,)``.
        chance: Expected disagreement if labels were assigned by chance.
        level: Confidence level.
        seed: Seed of the resamples.
    """
    check_level(level)
    count = len(sums)
    estimate = statistic(sums.sum(axis=0, keepdims=True))[0]
    if np.isnan(estimate):
        return Interval.of(estimate, np.nan, np.nan, level=level, method="only one value occurs")
    if agrees.all():
        most = 1.0 - float(clopper_pearson(count, count, level=level).low)
        low = max(1.0 - most / chance, -1.0)
        return Interval.of(estimate, low, 1.0, level=level, method="exact binomial, as no unit disagrees")
    if count > _MOST_RESAMPLED:
        left_out = np.nan_to_num(statistic(sums.sum(axis=0) - sums))
        spread = np.sqrt((count - 1) / count * ((left_out - left_out.mean()) ** 2).sum())
        half = ndtri((1 + level) / 2) * spread
        ends = (estimate - half, min(estimate + half, 1.0))
        return Interval.of(estimate, *ends, level=level, method="jackknife over units")

    def resample_statistic(rows: NDArray[np.intp]) -> Array:
        weights = np.stack([np.bincount(row, minlength=count) for row in rows]).astype(np.float64)
        return np.nan_to_num(statistic(weights @ sums))

    resampled = bootstrap(resample_statistic, count, level=level, seed=seed)
    return Interval.of(estimate, resampled.low, resampled.high, level=level, method="bca bootstrap over units")


def _beyond_chance(observed: Array, expected: Array) -> Array:
    """Return 1 − observed / expected disagreement; NaN if the expected disagreement is 0."""
    some = expected > 1e-12
    return np.where(some, 1.0 - observed / np.where(some, expected, 1.0), np.nan)


def _expected_disagreement(counts: NDArray[np.generic]) -> float:
    """Return the chance that two values drawn from the observed values, given by their counts, are unequal."""
    share = np.asarray(counts, dtype=np.float64) / max(float(np.sum(counts)), 1.0)
    return max(1.0 - float((share**2).sum()), 1e-12)


def _stack_observers(first: ArrayLike, second: ArrayLike) -> NDArray[np.object_]:
    one, other = np.asarray(first, dtype=object), np.asarray(second, dtype=object)
    if one.ndim != 1 or one.shape != other.shape:
        raise InputError(
            f"Two observers' values have shapes {one.shape} and {other.shape}; give both observers one value per unit."
        )
    return np.stack([one, other], axis=1)


def _encode_values(table: NDArray[np.object_]) -> tuple[NDArray[np.intp], int]:
    """Return a table of integer codes from 0, with -1 for missing values, and the number of different values.

    Values are compared as text, and equal values have the same code in all columns. None, NaN and "" are missing.
    """
    words = sorted({str(value) for value in table.ravel() if not _is_missing(value)})
    number = {word: code for code, word in enumerate(words)}
    codes = [-1 if _is_missing(value) else number[str(value)] for value in table.ravel()]
    return np.array(codes, dtype=np.intp).reshape(table.shape), max(len(words), 1)


def _is_missing(value: object) -> bool:
    return value is None or value == "" or (isinstance(value, float) and np.isnan(value))


def _check_unit_count(units: int, whom: str) -> None:
    if units < _FEWEST:
        raise InputError(f"{units} units have values of {whom}; agreement needs at least {_FEWEST}.")
