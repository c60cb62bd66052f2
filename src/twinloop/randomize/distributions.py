"""Define probability distributions of parameters by their quantile function ``ppf``.

A draw is ``ppf`` of a reproducible uniform random number. ``cdf`` maps values to the unit interval, in which coverage
is measured. ``logpdf`` gives importance weights of draws from a proposal distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, ndtri

from twinloop.core.errors import InputError, UnknownNameError


class Distribution(Protocol):
    """Interface of a one-dimensional probability distribution."""

    def ppf(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the values at cumulative probability ``u`` in (0, 1): the inverse of ``cdf``."""
        ...

    def cdf(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the cumulative probability of the values ``x``.

        For a discrete distribution it is the middle of the step at ``x``.
        """
        ...

    def support(self) -> tuple[float, float]:
        """Return the limits of the smallest interval that contains every possible value."""
        ...


@runtime_checkable
class WeightedDistribution(Distribution, Protocol):
    """Interface of a distribution with a density (a probability if discrete), which importance weights need."""

    def logpdf(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the natural logarithm of the density at ``x``; minus infinity outside the support."""
        ...


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """Uniform distribution between ``low`` and ``high``."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_order(self.low, self.high)

    def ppf(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the values at cumulative probability ``u``."""
        return self.low + (self.high - self.low) * u

    def cdf(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the cumulative probability of the values ``x``; one half if ``low`` equals ``high``."""
        width = self.high - self.low
        return np.clip((x - self.low) / width, 0.0, 1.0) if width else np.full_like(x, 0.5)

    def logpdf(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the logarithm of the density at ``x``; if ``low`` equals ``high``, that of the probability."""
        width = self.high - self.low
        inside = (x >= self.low) & (x <= self.high)
        return np.where(inside, -math.log(width) if width else 0.0, -np.inf)

    def support(self) -> tuple[float, float]:
        """Return the lowest and the highest possible value."""
        return self.low, self.high


@dataclass(frozen=True, kw_only=True)
class LogUniform:
    """Log-uniform distribution: the logarithm is uniform between the logarithms of two positive bounds."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_order(self.low, self.high)
        if self.low <= 0:
            raise InputError(f"A log-uniform distribution needs positive bounds, got [{self.low:g}, {self.high:g}].")

    def ppf(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the values at cumulative probability ``u``."""
        return self.low * (self.high / self.low) ** u

    def cdf(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the cumulative probability of the values ``x``; one half if ``low`` equals ``high``."""
        width = math.log(self.high / self.low)
        if not width:
            return np.full_like(x, 0.5)
        return np.clip(np.log(np.maximum(x, self.low) / self.low) / width, 0.0, 1.0)

    def logpdf(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the logarithm of the density at ``x``; if ``low`` equals ``high``, that of the probability."""
        width = math.log(self.high / self.low)
        inside = (x >= self.low) & (x <= self.high)
        density = -np.log(np.where(inside, x, 1.0)) - math.log(width) if width else np.zeros_like(x)
        return np.where(inside, density, -np.inf)

    def support(self) -> tuple[float, float]:
        """Return the lowest and the highest possible value."""
        return self.low, self.high


@dataclass(frozen=True, kw_only=True)
class TruncatedNormal:
    """Normal distribution truncated to [``low``, ``high``]; by default the bounds are infinite, without truncation.

    Attributes:
        mean: Mean before truncation.
        std: Standard deviation before truncation.
        low: Lower bound.
        high: Upper bound.
    """

    mean: float
    std: float
    low: float = -math.inf
    high: float = math.inf

    def __post_init__(self) -> None:
        _check_order(self.low, self.high)
        if math.isnan(self.mean):
            raise InputError("A normal distribution needs a mean that is a number, got NaN.")
        if not self.std > 0:
            raise InputError(f"A normal distribution needs a positive std, got {self.std:g}.")

    def ppf(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the values at cumulative probability ``u``."""
        below, above = ndtr((self.low - self.mean) / self.std), ndtr((self.high - self.mean) / self.std)
        values = self.mean + self.std * ndtri(below + (above - below) * u)
        return np.minimum(np.maximum(values, self.low), self.high)

    def cdf(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the cumulative probability of the values ``x``."""
        below, above = ndtr((self.low - self.mean) / self.std), ndtr((self.high - self.mean) / self.std)
        return np.clip((ndtr((x - self.mean) / self.std) - below) / (above - below), 0.0, 1.0)

    def logpdf(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the logarithm of the density at ``x``; minus infinity outside the bounds."""
        low, high = (self.low - self.mean) / self.std, (self.high - self.mean) / self.std
        if low > 0:  # in the far upper tail 1 - 1 loses all digits; the mirrored lower tail does not
            low, high = -high, -low
        mass = log_ndtr(high) + np.log1p(-np.exp(log_ndtr(low) - log_ndtr(high)))
        density = -0.5 * ((x - self.mean) / self.std) ** 2 - math.log(self.std * math.sqrt(2 * math.pi)) - mass
        return np.where((x >= self.low) & (x <= self.high), density, -np.inf)

    def support(self) -> tuple[float, float]:
        """Return the lower and upper bound."""
        return self.low, self.high


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Discrete distribution over ``values``.

    Attributes:
        values: The possible values.
        weights: Probabilities of the values up to a common factor; empty for equal probabilities.
    """

    values: tuple[float, ...]
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.values:
            raise InputError("A choice needs at least one value.")
        if self.weights and (len(self.weights) != len(self.values) or min(self.weights) < 0 or sum(self.weights) <= 0):
            raise InputError(f"A choice of {len(self.values)} values needs as many weights ≥ 0, got {self.weights}.")

    def ppf(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the values at cumulative probability ``u``."""
        edges = self._step_edges()
        return np.asarray(self.values)[np.minimum(np.searchsorted(edges, u, side="right"), len(edges) - 1)]

    def cdf(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the cumulative probability of each value, at the middle of the value's step.

        The steps are in the given order of the values, which need not be ascending.
        """
        edges = self._step_edges()
        middle = edges - 0.5 * np.diff(edges, prepend=0.0)
        return middle[np.argmin(np.abs(np.asarray(x)[..., None] - np.asarray(self.values)), axis=-1)]

    def logpdf(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the logarithm of the probability of each value in ``x``; minus infinity for impossible values."""
        chances = np.diff(self._step_edges(), prepend=0.0)
        total = ((np.asarray(x)[..., None] == np.asarray(self.values)) * chances).sum(axis=-1)
        return np.where(total > 0, np.log(np.where(total > 0, total, 1.0)), -np.inf)

    def _step_edges(self) -> NDArray[np.float64]:
        weights = np.asarray(self.weights or np.ones(len(self.values)), dtype=np.float64)
        return np.cumsum(weights) / weights.sum()

    def support(self) -> tuple[float, float]:
        """Return the lowest and the highest possible value."""
        return min(self.values), max(self.values)


@dataclass(frozen=True, kw_only=True)
class Empirical:
    """Empirical distribution of measured ``samples``, with linear interpolation between the sorted samples."""

    samples: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.samples or not np.isfinite(self.samples).all():
            raise InputError("An empirical distribution needs at least one finite sample and no NaN.")

    def ppf(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the values at cumulative probability ``u``."""
        return np.quantile(np.asarray(self.samples), u)

    def cdf(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the cumulative probability of the values ``x``; one half for a single sample."""
        ordered = np.sort(np.asarray(self.samples, dtype=np.float64))
        return np.interp(x, ordered, np.linspace(0.0, 1.0, len(ordered))) if len(ordered) > 1 else np.full_like(x, 0.5)

    def support(self) -> tuple[float, float]:
        """Return the lowest and the highest sample."""
        return min(self.samples), max(self.samples)


@dataclass(frozen=True, kw_only=True)
class MultivariateNormal:
    """Joint normal distribution of k values.

    Attributes:
        mean: Means, ``(k,)``.
        covariance: Covariance matrix, ``(k, k)``; it may be singular.
    """

    mean: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]

    def sample(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return n joint draws ``(n, k)`` from independent uniform random numbers ``u`` ``(n, k)``.

        Raises:
            InputError: If the covariance has a negative eigenvalue.
        """
        matrix = np.asarray(self.covariance, dtype=np.float64)
        eigenvalues, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        if eigenvalues.min() < -1e-9 * max(eigenvalues.max(), 1e-300):
            raise InputError("The covariance has a negative eigenvalue: it is not a covariance.")
        factor = vectors * np.sqrt(np.maximum(eigenvalues, 0.0))
        # Summed column by column: the rows of a matrix product can differ in the last bits with the size of the batch.
        values = np.tile(np.asarray(self.mean, dtype=np.float64), (len(u), 1))
        for column, normal in zip(factor.T, ndtri(u).T, strict=True):
            values += normal[:, None] * column
        return values

    def cdf(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the marginal cumulative probability of each column of ``x`` ``(n, k)``.

        It is one half for a column of zero variance.
        """
        std = np.sqrt(np.maximum(np.diag(np.asarray(self.covariance, dtype=np.float64)), 0.0))
        return ndtr(np.where(std > 0, x - np.asarray(self.mean), 0.0) / np.where(std > 0, std, 1.0))


_LISTS = ("values", "weights", "samples")
_KINDS = {
    "uniform": Uniform,
    "log_uniform": LogUniform,
    "normal": TruncatedNormal,
    "truncated_normal": TruncatedNormal,
    "choice": Choice,
    "empirical": Empirical,
}


def make_distribution(kind: str, arguments: dict[str, Any], *, where: str) -> Distribution:
    """Make a distribution from its kind and arguments in YAML.

    Args:
        kind: For example ``uniform`` or ``truncated_normal``.
        arguments: Arguments of the distribution by name.
        where: Place of the arguments, for error messages.

    Raises:
        UnknownNameError: If the kind does not exist.
        InputError: If the arguments do not fit the distribution.
    """
    if kind not in _KINDS:
        raise UnknownNameError("distribution", kind, _KINDS, where=where)
    plain = {key: tuple(value) if isinstance(value, Sequence) else value for key, value in arguments.items()}
    for key, value in plain.items():
        if isinstance(value, tuple) != (key in _LISTS):
            wanted = "a list of numbers, such as [0.1, 0.2]" if key in _LISTS else "a number"
            raise InputError(f"{where}.{key}: {wanted} is expected; given {arguments[key]!r:.60}.")
    try:
        return _KINDS[kind](**plain)
    except TypeError as error:
        fields = ", ".join(_KINDS[kind].__dataclass_fields__)
        raise InputError(f"{where}: {kind} takes {fields}, given {', '.join(arguments) or 'nothing'}.") from error
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def distribution_json(distribution: Distribution | MultivariateNormal) -> dict[str, Any]:
    """Return a JSON-compatible dictionary for files and hashes."""
    return {"kind": type(distribution).__name__, **asdict(distribution)}  # pyright: ignore[reportArgumentType]


def _check_order(low: float, high: float) -> None:
    if math.isnan(low) or math.isnan(high):
        raise InputError(f"The range [{low:g}, {high:g}] contains NaN, which is not a number. Write two numbers.")
    if not low <= high:
        raise InputError(
            f"The range [{low:g}, {high:g}] is empty: its lower limit is above its upper limit. Swap them."
        )
