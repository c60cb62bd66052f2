"""Groups of parameters cover exactly what changed, once each, under names that people use."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinloop.core.errors import BoundsError, InputError, UnknownNameError
from twinloop.gap.attribution.groups import CAUSES, changed_params, find_cause, parameter_groups, read_groups
from twinloop.twin import load_twin
from twinloop.twin.quantities import QUANTITIES

TWIN = load_twin("so101_tabletop")
NAMES = tuple(TWIN.params)


def test_every_kind_of_parameter_that_moves_something_has_a_cause():
    physical = [q.path("thing") for q in QUANTITIES if not q.visual and q.stage != "sensing"]
    assert {find_cause(path) for path in physical} <= set(CAUSES)


@given(
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=40, unique=True),
    st.sampled_from(["quantity", "joint", "quantity and joint", "parameter"]),
    st.booleans(),
)
def test_groups_hold_every_parameter_exactly_once(names, by, own):
    mine = {"mine": ["actuator/elbow*/*"]} if own else None
    groups = parameter_groups(TWIN, names, by=by, own=mine)
    assert sorted(name for group in groups for name in group.params) == sorted(names)
    assert len({group.name for group in groups}) == len(groups)
    assert all(group.params for group in groups)


def test_groups_are_named_after_causes_joints_both_or_a_users_words():
    names = ["actuator/elbow_flex/kp", "actuator/gripper/kp", "joint/elbow_flex/frictionloss", "sensor/gripper/offset"]
    assert [group.text() for group in parameter_groups(TWIN, names)] == [
        "servo gain: actuator/*/kp",
        "dry friction: joint/elbow_flex/frictionloss",
        "encoder: sensor/gripper/offset",
    ]
    assert {g.name for g in parameter_groups(TWIN, names, by="joint")} == {"elbow_flex", "gripper"}
    both = parameter_groups(TWIN, names, by="quantity and joint")
    assert "servo gain, elbow_flex" in {group.name for group in both}
    own = parameter_groups(TWIN, names, own={"elbow": ["*/elbow_flex/*"], "wrist": ["*/wrist_roll/*"]})
    assert [(g.name, len(g.params)) for g in own] == [("elbow", 2), ("servo gain", 1), ("encoder", 1)]


def test_what_changed_is_what_differs_from_nominal():
    kp = "actuator/elbow_flex/kp"
    nominal = TWIN.params[kp].nominal
    same = {"joint/elbow_flex/damping": TWIN.params["joint/elbow_flex/damping"].nominal}
    assert changed_params(TWIN, {kp: 1.1 * nominal} | same) == (kp,)
    with pytest.raises(InputError, match="nominal ones of so101_tabletop: there is no difference to attribute"):
        changed_params(TWIN, {kp: nominal})
    with pytest.raises(BoundsError, match="in the identified parameters is outside"):
        changed_params(TWIN, {kp: -1.0})
    with pytest.raises(UnknownNameError, match=kp):
        changed_params(TWIN, {"actuator/elbow_flex/kpp": 1.0})


def test_groups_are_read_from_a_command_line():
    assert read_groups(["arm gains=actuator/shoulder*/kp, actuator/elbow*/kp"]) == {
        "arm gains": ("actuator/shoulder*/kp", "actuator/elbow*/kp")
    }
    with pytest.raises(InputError, match=r"--group 'gains' is not a group. Write NAME=PATTERN"):
        read_groups(["gains"])
    with pytest.raises(InputError, match="--group a is given twice"):
        read_groups(["a=x", "a=y"])


def test_mistakes_are_named():
    kp = ["actuator/elbow_flex/kp"]
    with pytest.raises(UnknownNameError, match="grouping 'colour'"):
        parameter_groups(TWIN, kp, by="colour")
    with pytest.raises(UnknownNameError, match="in group 'gains'"):
        parameter_groups(TWIN, kp, own={"gains": ["actuator/elbow_flex/gain"]})
    with pytest.raises(InputError, match="'a' and 'b' both contain actuator/elbow_flex/kp"):
        parameter_groups(TWIN, kp, own={"a": ["actuator/elbow_flex/*"], "b": kp})
