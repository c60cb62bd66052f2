"""The JSON form of values and records."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinloop.core.plain import JsonRecord, to_plain_value


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Bare:
    place: Path
    values: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Fit(JsonRecord):
    json_schema = 3
    json_names: ClassVar[Mapping[str, str | None]] = {"rho": "lag1_autocorrelation", "draws": None}
    json_also = ("count",)

    rho: np.ndarray
    draws: np.ndarray
    inner: tuple[Bare, ...] = ()

    @property
    def count(self) -> int:
        return len(self.draws)


@dataclass(frozen=True)
class Other(JsonRecord):
    json_also: ClassVar[Mapping[str, str]] = {"twice": "two_times"}
    value: float

    @property
    def twice(self) -> float:
        return 2 * self.value


def test_a_record_is_written_by_its_fields():
    fit = Fit(rho=np.array([0.5, np.nan]), draws=np.zeros(4), inner=(Bare(Path("a/b"), np.arange(2)),))
    form = fit.to_json()
    assert list(form) == ["schema", "lag1_autocorrelation", "inner", "count"]
    assert form["schema"] == 3
    assert form["lag1_autocorrelation"][0] == 0.5
    assert np.isnan(form["lag1_autocorrelation"][1])
    assert form["inner"] == [{"place": "a/b", "values": [0, 1]}]
    assert form["count"] == 4
    assert Other(1.5).to_json() == {"value": 1.5, "two_times": 3.0}
    assert to_plain_value({"x": (Other(0.0),)}) == {"x": [{"value": 0.0, "two_times": 0.0}]}


def test_values_that_json_has_not():
    assert to_plain_value({1: np.float64(2.0), "when": datetime(2026, 1, 2, tzinfo=UTC)}) == {
        "1": 2.0,
        "when": "2026-01-02T00:00:00Z",
    }
    assert to_plain_value(Colour.RED) == "red"
    assert type(to_plain_value(np.int64(3))) is int
    with pytest.raises(TypeError, match="object has no JSON form"):
        to_plain_value(object())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_what_is_plain_stays_as_it_is(value):
    assert to_plain_value(value) == value
    assert json.loads(json.dumps(to_plain_value(value))) == value
