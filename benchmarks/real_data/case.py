"""Define the interface of a fit to one public data set: how it is split into folds, fitted and scored."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.records import Episode
from twinloop.identify import IdentifyResult
from twinloop.simulate import Backend

Array = NDArray[np.float64]
SHIPPED, PUBLISHED = "as shipped", "published"
_NOTHING = 1e-300  # lower limit of a sum of weights: a resample may have no unit of a metric


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to fit a data set and to predict with the fit; candidates with the same ``structure`` share a fit.

    Attributes:
        name: Name, as printed.
        structure: Which parameters and effects are fitted, by a name that the case defines.
        prediction: How predictions are made with the fit, by a name that the case defines.
    """

    name: str
    structure: str = ""
    prediction: str = ""


@dataclass(frozen=True, kw_only=True)
class Fold:
    """Episodes to fit and episodes to score; ``name`` describes the held-out ones."""

    name: str
    training: Sequence[Episode]
    test: Sequence[Episode]


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Errors of predictions, per unit and metric.

    A unit is an episode, or a window if few episodes are scored. Intervals are bootstrapped over units.

    Attributes:
        names: Names of the metrics.
        units: Physical units of the metrics.
        values: Errors ``(nunit, nmetric)``, absolute or squared.
        weights: Weights ``(nunit,)``, or ``(nunit, nmetric)`` if metrics use different units.
        squared: Whether ``values`` are squared errors, so that a metric is their root mean square.
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    values: Array
    weights: Array
    squared: bool = False

    def at(self, rows: NDArray[np.intp]) -> Array:
        """Return the metrics ``(k, nmetric)`` of k resamples of units, ``(k, n)``: means, or root mean squares."""
        weights = self.weights.reshape(len(self.values), -1)[rows]
        means = np.sum(weights * self.values[rows], axis=1) / np.maximum(weights.sum(axis=1), _NOTHING)
        return np.sqrt(means) if self.squared else means

    @property
    def metrics(self) -> Array:
        """Metrics over all units, ``(nmetric,)``."""
        return self.at(np.arange(len(self.values))[None])[0]


def mean_errors(values: Array, names: Sequence[str], units: Sequence[str], *, weights: Array | None = None) -> Errors:
    """Return absolute errors ``(nepisode, nmetric)`` for averages over episodes.

    ``weights`` ``(nepisode,)`` are weights of the episodes, for example their lengths.
    """
    weight = np.ones(len(values)) if weights is None else weights
    return Errors(names=tuple(names), units=tuple(units), values=values, weights=weight)


@dataclass(frozen=True, kw_only=True)
class Constant:
    """A fitted physical constant with its 95 % interval and its published value.

    Attributes:
        value: Fitted value in ``unit``; NaN if the data do not determine it.
        half: Half width of the 95 % interval.
        published: Published value; NaN if there is none.
    """

    name: str
    unit: str
    value: float
    half: float = math.nan
    published: float = math.nan

    @property
    def covers(self) -> bool:
        """Whether the interval covers the published value."""
        return abs(self.value - self.published) <= self.half


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A fit, or known values to compare with.

    Attributes:
        values: Parameter values, SI; empty for the nominal twin.
        prediction: How predictions are made, see `Candidate`.
        result: Result of the identification; None for known values.
        notes: Sentences about the fit.
        extra: Further data that the case needs for predictions.
    """

    values: Mapping[str, float] = field(default_factory=dict[str, float])
    prediction: str = ""
    result: IdentifyResult | None = None
    notes: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])


class RealCase(ABC):
    """One public data set and the twin that is fitted to it.

    Attributes:
        name: Name of the data set in the registry.
        twin: Name of the built-in twin.
        rule: How the data set is split into folds, in words.
        candidates: All candidates among which inner folds choose; the first is used if there are no inner folds.
        published: Published parameters; None if there are none.
    """

    name: str
    twin: str
    rule: str
    candidates: tuple[Candidate, ...]
    published: Fitted | None = None

    @abstractmethod
    def folds(self, episodes: Sequence[Episode]) -> list[Fold]:
        """Split the episodes into outer folds; each is scored once, by a fit that uses only its training part."""

    def inner_folds(self, training: Sequence[Episode]) -> list[Fold]:
        """Split a training part into inner folds, which choose among the candidates."""
        return self.folds(training)

    @abstractmethod
    def fit(self, training: Sequence[Episode], structure: str, backend: Backend) -> Fitted:
        """Fit the twin; the fit is deterministic."""

    def references(self, training: Sequence[Episode]) -> Mapping[str, Fitted]:  # noqa: ARG002
        """Return the predictions with which a fit is compared, by name; the nominal twin (`SHIPPED`) is first."""
        return {SHIPPED: Fitted()} | ({} if self.published is None else {PUBLISHED: self.published})

    @abstractmethod
    def errors(self, fitted: Fitted, test: Sequence[Episode], backend: Backend) -> Errors:
        """Return the errors of predictions for test episodes."""

    def constants(self, fitted: Fitted) -> list[Constant]:  # noqa: ARG002
        """Return the fitted values of constants that have been published."""
        return []


def leave_one_out(groups: Mapping[str, Sequence[Episode]]) -> list[Fold]:
    """Make one fold per group, trained on all other groups; no folds for fewer than two groups."""
    if len(groups) < 2:
        return []
    return [
        Fold(
            name=name,
            training=[episode for other, members in groups.items() if other != name for episode in members],
            test=list(group),
        )
        for name, group in groups.items()
    ]


def grouped(episodes: Sequence[Episode], keys: Sequence[str]) -> dict[str, list[Episode]]:
    """Group episodes by key; keys are in the order of their first episode."""
    groups: dict[str, list[Episode]] = {}
    for key, episode in zip(keys, episodes, strict=True):
        groups.setdefault(key, []).append(episode)
    return groups
