"""What a fit to one public set of real measurements is: how it is read, cut into folds, fitted and scored."""

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
_NOTHING = 1e-300  # weight of a figure of which a resample has no unit


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to fit a set and to predict with the fit.

    ``structure`` says what is fitted, ``prediction`` what a prediction does with the fit; candidates of one structure
    share a fit.
    """

    name: str
    structure: str = ""
    prediction: str = ""


@dataclass(frozen=True, kw_only=True)
class Fold:
    """Episodes to fit and episodes to score, by the name of what is left out."""

    name: str
    training: Sequence[Episode]
    test: Sequence[Episode]


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Errors of predictions, ``values`` ``(nunit, nfigure)``: absolute, or squared where ``squared``.

    A unit is an episode, or a window where few episodes are scored; intervals are bootstrapped over units. ``weights``
    are ``(nunit,)``, or ``(nunit, nfigure)`` where figures count different units. ``names`` and ``units`` are those of
    the figures.
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    values: Array
    weights: Array
    squared: bool = False

    def at(self, rows: NDArray[np.intp]) -> Array:
        """The figures ``(k, nfigure)`` of resamples ``(k, n)`` of the units: means, or root mean squares."""
        weights = self.weights.reshape(len(self.values), -1)[rows]
        means = np.sum(weights * self.values[rows], axis=1) / np.maximum(weights.sum(axis=1), _NOTHING)
        return np.sqrt(means) if self.squared else means

    @property
    def figures(self) -> Array:
        """The figures of all units, ``(nfigure,)``."""
        return self.at(np.arange(len(self.values))[None])[0]


def mean_errors(values: Array, names: Sequence[str], units: Sequence[str], *, weights: Array | None = None) -> Errors:
    """Absolute errors ``(nepisode, nfigure)``, averaged over episodes, with weights ``(nepisode,)`` such as lengths."""
    weight = np.ones(len(values)) if weights is None else weights
    return Errors(names=tuple(names), units=tuple(units), values=values, weights=weight)


@dataclass(frozen=True, kw_only=True)
class Constant:
    """A physical constant as fitted, its 95 % interval, and its published value.

    ``value`` is NaN where the data do not determine the constant.
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
    """A fit, or known values to compare with: parameters in SI, how to predict, the result behind them, notes."""

    values: Mapping[str, float] = field(default_factory=dict[str, float])
    prediction: str = ""
    result: IdentifyResult | None = None
    notes: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])


class RealCase(ABC):
    """One public set and the twin that is fitted to it.

    ``name`` is the set's in the registry, ``twin`` the built-in twin, ``rule`` how the set is cut into folds.
    ``candidates`` is the whole list of structures and predictions among which inner folds choose; the first is taken
    where there are no inner folds. ``published`` predicts with published parameters, None where there are none.
    """

    name: str
    twin: str
    rule: str
    candidates: tuple[Candidate, ...]
    published: Fitted | None = None

    @abstractmethod
    def folds(self, episodes: Sequence[Episode]) -> list[Fold]:
        """Outer folds of one folder: each is scored once, by a fit and a choice that saw its training part alone."""

    def inner_folds(self, training: Sequence[Episode]) -> list[Fold]:
        """Folds of a training part, which choose among the candidates."""
        return self.folds(training)

    @abstractmethod
    def fit(self, training: Sequence[Episode], structure: str, backend: Backend) -> Fitted:
        """Fit the twin; the same episodes give the same fit."""

    def references(self, training: Sequence[Episode]) -> Mapping[str, Fitted]:  # noqa: ARG002
        """What a fit is compared with on the same test data: the twin `SHIPPED` first."""
        return {SHIPPED: Fitted()} | ({} if self.published is None else {PUBLISHED: self.published})

    @abstractmethod
    def errors(self, fitted: Fitted, test: Sequence[Episode], backend: Backend) -> Errors:
        """Errors of predictions on test episodes."""

    def constants(self, fitted: Fitted) -> list[Constant]:  # noqa: ARG002
        """Constants that have been published, as fitted."""
        return []


def leave_one_out(groups: Mapping[str, Sequence[Episode]]) -> list[Fold]:
    """A fold for every group, trained on all others; no folds of fewer than two groups."""
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
    """Episodes by key, keys in the order of their first episode."""
    groups: dict[str, list[Episode]] = {}
    for key, episode in zip(keys, episodes, strict=True):
        groups.setdefault(key, []).append(episode)
    return groups
