"""The dataset card says what a reader needs first, and folds the rest."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from twinloop.core.units import JointUnit, UnitMap
from twinloop.dataset.card import card
from twinloop.dataset.spec import DatasetSpec


@pytest.fixture
def spec():
    units = UnitMap(source="t", joints=(JointUnit(joint="pan", unit="deg", scale=0.0174532925, offset=0.0),))
    return DatasetSpec(name="t", robot_type="r", fps=30, joints=("pan",), units=units, config={"plan": {"seed": 7}})


def written(spec):
    return card(spec, episodes=1, frames=2, tasks=["Swing."], logged=False)


def test_the_configuration_is_folded_and_whole(spec):
    folded = written(spec).split("<details>")[1].split("</details>")[0]
    assert json.loads(folded.split("```json")[1].split("```")[0]) == {"plan": {"seed": 7}}


def test_the_true_time_is_named_where_it_is_written(spec):
    assert "observation.time" not in written(spec)
    assert "`observation.time` is the true time of each step in s" in written(replace(spec, unsteady=True))
