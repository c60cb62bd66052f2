"""A change of one joint's friction is found and named; where nothing changes, nothing is."""

import json

import numpy as np
import pytest

from support.swing import TRUTH, clips, swing_twin
from twinloop.core.errors import InputError, LogError
from twinloop.core.records import Episode
from twinloop.identify.config import FitConfig
from twinloop.identify.drift import detect_drift, group_episodes
from twinloop.simulate import open_backend
from twinloop.stats import group_test

FRICTION = "joint/swing/frictionloss"
CONFIG = FitConfig(fixed={"actuator/swing/delay": TRUTH["actuator/swing/delay"]})


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    return swing_twin(tmp_path_factory.mktemp("swing"))


@pytest.fixture(scope="module")
def backend():
    return open_backend("threads", nthread=2)


def test_the_permutation_test_holds_its_level_and_finds_change_and_trend():
    rng = np.random.default_rng(0)
    groups, order = np.repeat(["a", "b", "c"], 8), np.arange(24)
    found = [group_test(rng.standard_t(3, size=(24, 5)), groups, order, draws=199, seed=i) for i in range(60)]
    for name in ("p_change", "p_trend"):
        rate = np.mean(np.array([getattr(test, name) for test in found]) <= 0.1)
        assert rate == pytest.approx(0.1, abs=3 * np.sqrt(0.09 / 300))
    values = rng.normal(size=(24, 3))
    values[:8, 1] += 3.0
    values[:, 2] -= 0.25 * order
    test = group_test(values, groups, order, draws=999)
    assert test.p_change[1] < 0.01
    assert test.p_trend[2] < 0.01
    assert test.correlation[2] < -0.7
    assert min(test.p_change[0], test.p_trend[0]) > 0.01
    assert test.means[:, 0] == pytest.approx(values.reshape(3, 8, 3).mean(axis=1)[:, 0])
    inside = np.sqrt(np.mean(values.reshape(3, 8, 3).var(axis=1, ddof=1)[:, 0]))
    assert test.errors[:, 0] == pytest.approx(inside / np.sqrt(8))


def test_two_groups_are_needed_and_one_of_them_with_two_episodes():
    with pytest.raises(InputError, match="2 episodes in 2 groups cannot show a change"):
        group_test(np.zeros((2, 1)), ["a", "b"], [0, 1])


@pytest.mark.slow
def test_planted_wear_is_found_and_named(twin, backend):
    def worn(index):
        return {**TRUTH, FRICTION: 0.08 + 0.012 * index}

    log = clips(twin, backend, worn, count=12, nframe=60)
    found = detect_drift(twin, log, group_episodes(log, "3"), backend=backend, config=CONFIG)
    assert found.drifting == (FRICTION,)
    row = next(param for param in found.params if param.name == FRICTION)
    # Three groups of four: the planted means are 0.098, 0.146 and 0.194 N·m.
    assert row.estimates == pytest.approx([0.098, 0.146, 0.194], abs=0.025)
    assert row.trend > 0.8  # correlation of the estimates of single episodes with their order
    assert f"{FRICTION}: " in found.text()
    assert "DRIFT over 3 groups of episodes (0–3, 4–7, 8–11)" in found.text()
    assert json.loads(json.dumps(found.to_json()))["drifting"] == [FRICTION]


@pytest.mark.slow  # one log without a change is in test_ranges_report
def test_without_a_change_none_is_found(twin, backend):
    log = clips(twin, backend, TRUTH, count=12, nframe=60, seed=4)
    found = detect_drift(twin, log, group_episodes(log, "2"), backend=backend, config=CONFIG)
    assert found.drifting == ()
    assert "none of 3 parameters changes over 2 groups" in found.text()


def blank(twin, index, *, begin=0.0, conditions=None):
    zeros = np.zeros((3, 1))
    return Episode(
        index=index,
        time=begin + np.arange(3) / 30,
        action=zeros,
        state=zeros,
        units=twin.unit_map(["deg"]),
        conditions=conditions or {},
    )


def test_groups_come_by_number_by_clock_or_by_condition(twin):
    hours = [
        blank(twin, i, begin=1.7e9 + 3600.0 * (i // 2), conditions={"temperature": 20.0 + i // 3}) for i in range(6)
    ]
    assert group_episodes(hours, "2") == ["0–2"] * 3 + ["3–5"] * 3
    assert [hours.index(e) // 2 for e in hours] == [int(g.split()[1]) for g in group_episodes(hours, "hour")]
    assert group_episodes(hours, "temperature") == ["temperature 20"] * 3 + ["temperature 21"] * 3


@pytest.mark.parametrize(
    ("by", "error", "message"),
    [
        ("1", InputError, "4 episodes can be divided into at least 2 and at most 2 groups"),
        ("hour", LogError, "the log's times begin at 0 s, which is not a clock"),
        ("humidity", LogError, "episode 0 does not record the condition humidity. Its conditions are: none"),
    ],
)
def test_groups_that_cannot_be_made(twin, by, error, message):
    with pytest.raises(error, match=message):
        group_episodes([blank(twin, i) for i in range(4)], by)


def test_one_group_is_no_division(twin):
    same = [blank(twin, i, conditions={"load": 1.0}) for i in range(4)]
    with pytest.raises(InputError, match="all episodes are in one group, load 1"):
        group_episodes(same, "load")
