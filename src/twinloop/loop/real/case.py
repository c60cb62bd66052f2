"""What a fit to one public set of real measurements is: how it is read, split, fitted and scored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from twinloop.core.records import Episode
from twinloop.identify import IdentifyResult
from twinloop.simulate import Backend


@dataclass(frozen=True, kw_only=True)
class Score:
    """One figure of a twin on test episodes, with its 95 % interval over them, and what it is held against.

    ``kind`` says what reaching the target means: an ``error`` is reached at or below it; a published value
    ``within`` is reached where ``low`` to ``high``, the fit's own interval, holds it; what is ``undetermined`` is
    reached where the fit says that the data do not tell it (``value`` NaN). ``source`` says where the target is from.
    """

    name: str
    unit: str
    value: float
    low: float = math.nan
    high: float = math.nan
    target: float | None = None
    source: str = ""
    kind: Literal["error", "within", "undetermined"] = "error"

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached; None where there is none."""
        if self.kind == "undetermined":
            return math.isnan(self.value)
        if self.target is None:
            return None
        if self.kind == "within":
            return self.low <= self.target <= self.high
        return self.value <= self.target

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        return {**self.__dict__, "reached": self.reached}


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """What a case's fit gave: parameter values in SI, the result behind them, and what must be said."""

    values: Mapping[str, float]
    result: IdentifyResult | None = None
    notes: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])


class RealCase(Protocol):
    """One public set and the twin that is fitted to it.

    ``name`` is the set's in the registry, ``twin`` the built-in twin, ``baseline`` says in words what `score` measures
    without a fit, ``split_rule`` how `split` holds out where only one folder is at hand.
    """

    name: str
    twin: str
    baseline: str
    split_rule: str

    def split(self, episodes: Sequence[Episode]) -> tuple[list[Episode], list[Episode]]:
        """Training and held-out episodes of one folder."""
        ...

    def fit(self, training: Sequence[Episode], backend: Backend) -> Fitted:
        """Fit the twin; the same episodes give the same fit."""
        ...

    def score(self, fitted: Fitted | None, test: Sequence[Episode], backend: Backend) -> list[Score]:
        """Figures of the fitted twin on test episodes, or of the baseline; the same names in the same order."""
        ...
