"""Define headline metrics: the main results of a run, in one form for all commands.

Programs can monitor these metrics over time without knowledge of how each command measures them.
"""

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
    """One main metric of a run, with its confidence interval.

    Attributes:
        name: Name such as ``skill/elbow_flex``: the quantity, and the joint or other object to which it applies, if
            there are several. Spaces and the signs <, =, > are replaced by underscores, because conditions such as
            ``skill/elbow_flex < 0.5`` (``--fail-if``) contain these signs.
        estimate: Value of the metric.
        low: Lower end of the interval; NaN if there is no interval.
        high: Upper end of the interval; NaN if there is no interval.
        level: Confidence level of the interval.
        unit: Unit; "" for a ratio.
        better: Direction of improvement, ``higher`` or ``lower``.
        method: Method of the interval, or the reason why there is no interval.
        meaning: Description of the metric for people.
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
        """Return the metric as a JSON-compatible dictionary; NaN and infinity become null."""
        values = vars(self).items()
        return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in values}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> HeadlineMetric:
        """Create the metric from the dictionary that `to_json` returns.

        Raises:
            InputError: If the value does not have the form that `to_json` writes.
        """
        unknown = [key for key in value if key not in cls.__dataclass_fields__]
        if unknown or "name" not in value:
            raise InputError(
                f"The metric {dict(value)} does not have the form that twinloop writes. Give an unchanged result.json."
            )
        given: dict[str, Any] = {key: math.nan if item is None else item for key, item in value.items()}
        return cls(**given)


def format_metric_name(text: str) -> str:
    """Return a metric's name in which each run of spaces, <, = and > is replaced by one underscore."""
    return re.sub(r"[\s<>=]+", "_", text.strip())


def read_headlines(result: Mapping[str, Any]) -> dict[str, HeadlineMetric]:
    """Return the headline metrics in the content of a run's ``result.json``, by name; empty if it has none."""
    return {row.name: row for row in map(HeadlineMetric.from_json, result.get("headline", []))}
