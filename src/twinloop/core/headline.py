"""Define headline metrics: named results that programs can watch without knowledge of the measurement."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from twinloop.core.errors import InputError

Better = Literal["higher", "lower"]


@dataclass(frozen=True, kw_only=True)
class HeadlineMetric:
    """One metric with its interval.

    ``name`` is a path such as ``skill/elbow_flex``: the quantity and, if there are several, its object; characters that
    have a meaning in conditions (spaces, <, =, >) become underscores. ``low`` and ``high`` are NaN without an interval;
    ``method`` states how the interval is computed or why there is none. ``unit`` is "" for a ratio. ``better`` is the
    direction of improvement.
    """

    name: str
    estimate: float
    low: float = math.nan
    high: float = math.nan
    level: float = 0.95
    unit: str = ""
    better: Better = "lower"
    method: str = ""
    meaning: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", format_metric_name(self.name))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary; values that are not finite become null."""
        values = vars(self).items()
        return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in values}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> HeadlineMetric:
        """Create the object from the dictionary that `to_json` returns.

        Raises:
            InputError: the value does not have the form that `to_json` writes.
        """
        unknown = [key for key in value if key not in cls.__dataclass_fields__]
        if unknown or "name" not in value:
            raise InputError(
                f"The metric {dict(value)} has another form than twinloop writes. Give an unchanged result.json."
            )
        given: dict[str, Any] = {key: math.nan if item is None else item for key, item in value.items()}
        return cls(**given)


def format_metric_name(text: str) -> str:
    """Return a metric's name with each run of spaces and of the signs <, =, > replaced by an underscore."""
    return re.sub(r"[\s<>=]+", "_", text.strip())


def read_headlines(result: Mapping[str, Any]) -> dict[str, HeadlineMetric]:
    """Return the headline metrics of a run's ``result.json`` by name; empty if it has none."""
    return {row.name: row for row in map(HeadlineMetric.from_json, result.get("headline", []))}
