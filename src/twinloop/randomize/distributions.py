"""Define distributions by their quantile function: a draw is ``ppf`` of reproducible uniform numbers.

``cdf`` maps values to the unit interval, where coverage is measured; ``logpdf`` gives weights of proposal draws.
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
    """One-dimensional distribution."""

    def ppf(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the values at cumulative probability ``u`` in (0, 1)."""
        ...

    def cdf(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the cumulative probability of values; for a discrete distribution the middle of the step."""
        ...

    def support(self) -> tuple[float, float]:
        """Return the smallest interval that contains every possible value."""
        ...


@runtime_checkable
class WeightedDistribution(Distribution, Protocol):
    """Distribution with a density (a probability if discrete), from which importance weights are computed."""

    def logpdf(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the logarithm of the density at ``x``; minus infinity outside the support."""
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
        """Return the cumulative probability of values; one half if the range is a single value."""
        width = self.high - self.low
        return np.clip((x - self.low) / width, 0.0, 1.0) if width else np.full_like(x, 0.5)

    def logpdf(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the logarithm of the density; for a single value, of its probability."""
        width = self.high - self.low
        inside = (x >= self.low) & (x <= self.high)
        return np.where(inside, -math.log(width) if width else 0.0, -np.inf)

    def support(self) -> tuple[float, float]:
        """Return the interval of possible values."""
        return self.low, self.high


@dataclass(frozen=True, kw_only=True)
class LogUniform:
    """Uniform distribution of the logarithm between two positive bounds."""

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
        """Return the cumulative probability of values; one half if the range is a single value."""
        width = math.log(self.high / self.low)
        if not width:
            return np.full_like(x, 0.5)
        return np.clip(np.log(np.maximum(x, self.low) / self.low) / width, 0.0, 1.0)

    def logpdf(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the logarithm of the density; for a single value, of its probability."""
        width = math.log(self.high / self.low)
        inside = (x >= self.low) & (x <= self.high)
        density = -np.log(np.where(inside, x, 1.0)) - math.log(width) if width else np.zeros_like(x)
        return np.where(inside, density, -np.inf)

    def support(self) -> tuple[float, float]:
        """Return the interval of possible values."""
        return self.low, self.high


@dataclass(frozen=True, kw_only=True)
class TruncatedNormal:
    """Normal distribution truncated to [``low``, ``high``]; with infinite bounds the normal distribution."""

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
        """Return the cumulative probability of values."""
        below, above = ndtr((self.low - self.mean) / self.std), ndtr((self.high - self.mean) / self.std)
        return np.clip((ndtr((x - self.mean) / self.std) - below) / (above - below), 0.0, 1.0)

    def logpdf(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the logarithm of the density."""
        low, high = (self.low - self.mean) / self.std, (self.high - self.mean) / self.std
        if low > 0:  # in the far upper tail 1 - 1 loses all digits; the mirrored lower tail does not
            low, high = -high, -low
        mass = log_ndtr(high) + np.log1p(-np.exp(log_ndtr(low) - log_ndtr(high)))
        density = -0.5 * ((x - self.mean) / self.std) ** 2 - math.log(self.std * math.sqrt(2 * math.pi)) - mass
        return np.where((x >= self.low) & (x <= self.high), density, -np.inf)

    def support(self) -> tuple[float, float]:
        """Return the interval of possible values."""
        return self.low, self.high


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Discrete distribution over ``values``, with probabilities proportional to ``weights`` (default: equal)."""

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
        """Return the middle of each value's step, with steps in the given order of the values."""
        edges = self._step_edges()
        middle = edges - 0.5 * np.diff(edges, prepend=0.0)
        return middle[np.argmin(np.abs(np.asarray(x)[..., None] - np.asarray(self.values)), axis=-1)]

    def logpdf(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the logarithm of the probability of each value."""
        chances = np.diff(self._step_edges(), prepend=0.0)
        total = ((np.asarray(x)[..., None] == np.asarray(self.values)) * chances).sum(axis=-1)
        return np.where(total > 0, np.log(np.where(total > 0, total, 1.0)), -np.inf)

    def _step_edges(self) -> NDArray[np.float64]:
        weights = np.asarray(self.weights or np.ones(len(self.values)), dtype=np.float64)
        return np.cumsum(weights) / weights.sum()

    def support(self) -> tuple[float, float]:
        """Return the interval of possible values."""
        return min(self.values), max(self.values)


@dataclass(frozen=True, kw_only=True)
class Empirical:
    """Distribution of measured ``samples``, with linear interpolation between order statistics."""

    samples: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.samples or not np.isfinite(self.samples).all():
            raise InputError("An empirical distribution needs at least one finite sample and no NaN.")

    def ppf(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the values at cumulative probability ``u``."""
        return np.quantile(np.asarray(self.samples), u)

    def cdf(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the cumulative probability of values."""
        ordered = np.sort(np.asarray(self.samples, dtype=np.float64))
        return np.interp(x, ordered, np.linspace(0.0, 1.0, len(ordered))) if len(ordered) > 1 else np.full_like(x, 0.5)

    def support(self) -> tuple[float, float]:
        """Return the interval of possible values."""
        return min(self.samples), max(self.samples)


@dataclass(frozen=True, kw_only=True)
class MultivariateNormal:
    """Joint normal distribution: ``mean`` ``(k,)`` and ``covariance`` ``(k, k)``, which may be singular."""

    mean: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]

    def sample(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return values ``(n, k)`` from independent uniforms ``(n, k)``."""
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
        """Return the marginal cumulative probability of each column of ``x`` ``(n, k)``; one half at zero variance."""
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
    """Make a distribution from its name and arguments in YAML.

    Raises:
        UnknownNameError: the distribution does not exist.
        InputError: the arguments do not fit the distribution.
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
        raise InputError(f"The range [{low:g}, {high:g}] holds NaN, which is no number. Write two numbers.")
    if not low <= high:
        raise InputError(f"The range [{low:g}, {high:g}] is empty: its lower end is above its upper end.")
