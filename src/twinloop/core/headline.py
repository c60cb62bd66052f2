"""The figures that a measurement ends in, by name: what programs watch without knowing how it was measured."""

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
    """One figure with its interval.

    ``name`` reads like a path, ``skill/elbow_flex``: a word for the quantity and, where there are several, what it is
    of; what a condition could not tell from its own words (spaces, <, =, >) is made an underscore. ``low`` and ``high``
    are NaN where there is no interval, and ``method`` says how it is made or why there is none. ``unit`` is "" for a
    ratio. ``better`` says which way the figure improves.
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
        object.__setattr__(self, "name", path_word(self.name))

    def to_json(self) -> dict[str, Any]:
        """A plain form for files; what is not finite is null."""
        values = vars(self).items()
        return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in values}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> HeadlineMetric:
        """The inverse of `to_json`.

        Raises:
            InputError: it is not what `to_json` wrote.
        """
        unknown = [key for key in value if key not in cls.__dataclass_fields__]
        if unknown or "name" not in value:
            raise InputError(f"A figure {dict(value)} is not one of ours. Give a result.json as it was written.")
        given: dict[str, Any] = {key: math.nan if item is None else item for key, item in value.items()}
        return cls(**given)


def path_word(text: str) -> str:
    """A name as part of a figure's: without spaces and signs, which a condition could not tell from its own."""
    return re.sub(r"[\s<>=]+", "_", text.strip())


def headlines(result: Mapping[str, Any]) -> dict[str, HeadlineMetric]:
    """The figures of a run's ``result.json`` by name; empty where it has none."""
    return {row.name: row for row in map(HeadlineMetric.from_json, result.get("headline", []))}
