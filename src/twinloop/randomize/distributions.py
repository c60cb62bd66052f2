"""Distributions as inverse functions: a draw is ``ppf`` of uniform numbers, so it is as reproducible as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from twinloop.core.errors import InputError, UnknownNameError


class Distribution(Protocol):
    """A one-dimensional distribution."""

    def ppf(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values whose cumulative probability is ``u`` in (0, 1)."""
        ...

    def support(self) -> tuple[float, float]:
        """The smallest interval that holds every possible value."""
        ...


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """Equally likely between ``low`` and ``high``."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _ordered(self.low, self.high)

    def ppf(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values at cumulative probability ``u``."""
        return self.low + (self.high - self.low) * u

    def support(self) -> tuple[float, float]:
        """Interval of possible values."""
        return self.low, self.high


@dataclass(frozen=True, kw_only=True)
class LogUniform:
    """Equally likely in the logarithm between two positive bounds."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _ordered(self.low, self.high)
        if self.low <= 0:
            raise InputError(f"A log-uniform distribution needs positive bounds, got [{self.low:g}, {self.high:g}].")

    def ppf(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values at cumulative probability ``u``."""
        return self.low * (self.high / self.low) ** u

    def support(self) -> tuple[float, float]:
        """Interval of possible values."""
        return self.low, self.high


@dataclass(frozen=True, kw_only=True)
class TruncatedNormal:
    """Normal, conditioned on lying in [``low``, ``high``]; infinite bounds make it the plain normal."""

    mean: float
    std: float
    low: float = -math.inf
    high: float = math.inf

    def __post_init__(self) -> None:
        _ordered(self.low, self.high)
        if math.isnan(self.mean):
            raise InputError("A normal distribution needs a mean that is a number, got NaN.")
        if not self.std > 0:
            raise InputError(f"A normal distribution needs a positive std, got {self.std:g}.")

    def ppf(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values at cumulative probability ``u``."""
        below, above = ndtr((self.low - self.mean) / self.std), ndtr((self.high - self.mean) / self.std)
        values = self.mean + self.std * ndtri(below + (above - below) * u)
        return np.minimum(np.maximum(values, self.low), self.high)

    def support(self) -> tuple[float, float]:
        """Interval of possible values."""
        return self.low, self.high


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One of ``values``, with probabilities proportional to ``weights`` (default: equal)."""

    values: tuple[float, ...]
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.values:
            raise InputError("A choice needs at least one value.")
        if self.weights and (len(self.weights) != len(self.values) or min(self.weights) < 0 or sum(self.weights) <= 0):
            raise InputError(f"A choice of {len(self.values)} values needs as many weights ≥ 0, got {self.weights}.")

    def ppf(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values at cumulative probability ``u``."""
        weights = np.asarray(self.weights or np.ones(len(self.values)), dtype=np.float64)
        edges = np.cumsum(weights) / weights.sum()
        return np.asarray(self.values)[np.minimum(np.searchsorted(edges, u, side="right"), len(edges) - 1)]

    def support(self) -> tuple[float, float]:
        """Interval of possible values."""
        return min(self.values), max(self.values)


@dataclass(frozen=True, kw_only=True)
class Empirical:
    """The distribution of measured ``samples``: linear between their order statistics."""

    samples: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.samples or not np.isfinite(self.samples).all():
            raise InputError("An empirical distribution needs at least one finite sample and no NaN.")

    def ppf(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values at cumulative probability ``u``."""
        return np.quantile(np.asarray(self.samples), u)

    def support(self) -> tuple[float, float]:
        """Interval of possible values."""
        return min(self.samples), max(self.samples)


@dataclass(frozen=True, kw_only=True)
class MultivariateNormal:
    """A joint normal of several parameters: ``mean`` ``(k,)`` and ``covariance`` ``(k, k)``, singular allowed."""

    mean: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]

    def sample(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values ``(n, k)`` from independent uniforms ``(n, k)``."""
        matrix = np.asarray(self.covariance, dtype=np.float64)
        eigenvalues, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        if eigenvalues.min() < -1e-9 * max(eigenvalues.max(), 1e-300):
            raise InputError("The covariance has a negative eigenvalue: it is not a covariance.")
        factor = vectors * np.sqrt(np.maximum(eigenvalues, 0.0))
        # Summed one column at a time: a matrix product over a batch is not bitwise the same for each of its rows.
        values = np.tile(np.asarray(self.mean, dtype=np.float64), (len(u), 1))
        for column, normal in zip(factor.T, ndtri(u).T, strict=True):
            values += normal[:, None] * column
        return values


_KINDS = {
    "uniform": Uniform,
    "log_uniform": LogUniform,
    "normal": TruncatedNormal,
    "truncated_normal": TruncatedNormal,
    "choice": Choice,
    "empirical": Empirical,
}


def make_distribution(kind: str, arguments: dict[str, Any], *, where: str) -> Distribution:
    """A distribution from its name and arguments, as written in YAML.

    Raises:
        UnknownNameError: no distribution of that name.
        InputError: arguments that do not fit it.
    """
    if kind not in _KINDS:
        raise UnknownNameError("distribution", kind, _KINDS, where=where)
    plain = {key: tuple(value) if isinstance(value, Sequence) else value for key, value in arguments.items()}
    try:
        return _KINDS[kind](**plain)
    except TypeError as error:
        fields = ", ".join(_KINDS[kind].__dataclass_fields__)
        raise InputError(f"{where}: {kind} takes {fields}, given {', '.join(arguments) or 'nothing'}.") from error
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def describe(distribution: Distribution | MultivariateNormal) -> dict[str, Any]:
    """A plain form for files and hashes."""
    return {"kind": type(distribution).__name__, **asdict(distribution)}  # pyright: ignore[reportArgumentType]


def _ordered(low: float, high: float) -> None:
    if math.isnan(low) or math.isnan(high):
        raise InputError(f"The range [{low:g}, {high:g}] holds NaN, which is no number. Write two numbers.")
    if not low <= high:
        raise InputError(f"The range [{low:g}, {high:g}] is empty: its lower end is above its upper end.")
