"""Rules against the truth: phases that an expert was in, failures that were planted, gripper motions drawn by hand."""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from support.labelled import workspace
from support.placing import PLANTED, run
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.label.rule import RuleEpisode
from twinloop.label.rules import RULES, SqlRule, open_rule
from twinloop.label.rules_builtin import (
    FailureFromStates,
    SubtasksFromGripper,
    SubtasksFromStates,
    SuccessFromGripper,
    find_gripper_cycles,
)
from twinloop.stats import match_times
from twinloop.tasks.pick_and_place_expert import ExpertPhase
from twinloop.twin import load_twin

# The expert's phases as subtasks: its commands begin there, and the arm follows a little later.
TOLD = {
    "grasp": ExpertPhase.CLOSE,
    "lift": ExpertPhase.LIFT,
    "transport": ExpertPhase.CARRY,
    "place": ExpertPhase.LOWER,
    "release": ExpertPhase.OPEN,
    "retreat": ExpertPhase.RETREAT,
}


def material(task, states, *, fps=None):
    """An episode as rules see it, without a folder."""
    reader = SimpleNamespace(fps=fps or task.twin.control_hz, lengths=[len(states) - 1], written_by_twinloop=False)
    made = RuleEpisode(episode_id="x", reader=reader, index=0, task=task)
    made.__dict__["states"] = states
    return made


def joints_of(task, states):
    """What LeRobot would have recorded of a simulated episode: joints in rad, the gripper in percent."""
    from twinloop.simulate.protocol import state_poses

    model, hand = task.twin.model, task.hand
    qpos = state_poses(model, states[:-1])["qpos"]
    low, high = sorted((hand.closed, hand.open))
    finger = 100.0 * (qpos[:, hand.joint_qpos] - low) / (high - low)
    return np.column_stack([qpos[:, task.chain.qpos], finger if hand.open > hand.closed else 100.0 - finger])


def recorded(values, names, fps=30.0):
    """An episode of joints alone."""
    reader = SimpleNamespace(
        fps=fps, lengths=[len(values)], written_by_twinloop=False, units=None, info={"features": {}}
    )
    made = RuleEpisode(episode_id="x", reader=reader, index=0)
    made.__dict__.update(joints=np.asarray(values, float), joint_names=list(names))
    return made


@pytest.fixture(scope="module")
def worlds():
    faults = (*PLANTED, "")
    task, result, phases = run(load_twin("so101_tabletop"), faults)
    assert result.valid.all()
    return task, faults, result.states, phases


def said(rule, made):
    return [(x.value, x.first_frame, x.last_frame) for x in rule.label(made)]


def test_failure_classes_are_those_that_were_planted(worlds):
    task, faults, states, _ = worlds
    found = [FailureFromStates().label(material(task, one)) for one in states]
    assert ["".join(x.value for x in rows) for rows in found] == list(faults)
    assert all(x.kind == "failure" and x.reason for rows in found for x in rows)


def test_an_episode_that_ends_as_the_hand_opens_over_the_target_ran_out_of_time(worlds):
    task, faults, states, _ = worlds
    good = states[faults.index("")]
    opened = SubtasksFromStates().label(material(task, good))[-2]
    assert opened.value == "release"
    (finding,) = FailureFromStates().label(material(task, good[: opened.first_frame + 6]))
    assert (finding.value, finding.reason[:18]) == ("timeout", "let go on the targ")


def test_phases_are_found_from_states_and_from_joints(worlds):
    task, faults, states, phases = worlds
    for world in (0, len(faults) - 1):
        told = {word: int(np.argmax(phases[world] == phase)) for word, phase in TOLD.items()}
        from_states = {word: first for word, first, _ in said(SubtasksFromStates(), material(task, states[world]))}
        assert list(from_states) == ["reach", *TOLD]
        late = np.array([from_states[word] - told[word] for word in TOLD]) / task.twin.control_hz
        assert np.abs(late).max() <= 0.2, (late, "s after what the expert was told")
        names = [f"j{i}" for i in range(len(task.chain.qpos))] + ["gripper"]
        by_hand = said(SubtasksFromGripper(), recorded(joints_of(task, states[world]), names))
        firsts = {word: first for word, first, _ in by_hand}
        for word in ("grasp", "release"):
            assert abs(firsts[word] - from_states[word]) <= 2
        assert by_hand[0][1] == 0
        assert by_hand[-1][2] == len(states[world]) - 2
        assert all(early[2] + 1 == late[1] for early, late in itertools.pairwise(by_hand))


def test_a_guess_from_joints_sees_what_hands_do_and_no_more(worlds):
    """The rule cannot see an object's place or an empty hand; without a release it answers no."""
    task, faults, states, _ = worlds
    names = [f"j{i}" for i in range(len(task.chain.qpos))] + ["gripper"]
    found = [SuccessFromGripper().label(recorded(joints_of(task, one), names))[0].value for one in states]
    by_fault = dict(zip(faults, found, strict=True))
    assert by_fault[""] == by_fault["placed_off_target"] == "yes"
    assert by_fault["never_reached"] == by_fault["grasp_missed"] == by_fault["timeout"] == "no"
    assert by_fault["not_released"] == "no"


def test_without_what_it_takes_a_rule_says_that_it_cannot_tell():
    made = recorded(np.zeros((10, 2)), ["shoulder", "elbow"])
    made = dataclasses.replace(made, missing_reason="it was not simulated")
    made.__dict__.update(joints=np.zeros((10, 2)), joint_names=["shoulder", "elbow"])
    for rule in (SubtasksFromStates(), FailureFromStates(), SubtasksFromGripper(), SuccessFromGripper()):
        (finding,) = rule.label(made)
        assert finding.value == "unknown"
        assert finding.reason
    assert "it was not simulated" in FailureFromStates().label(made)[0].reason


def test_gripper_rounds_of_motions_drawn_by_hand():
    def drawn(*levels):
        return np.concatenate([np.full(20, levels[0]), *(np.linspace(a, b, 12)[1:].tolist() + [b] * 20
                               for a, b in itertools.pairwise(levels))])  # fmt: skip

    (one,) = find_gripper_cycles(drawn(0.8, 0.2, 0.8))
    assert (one.closes, one.closed, one.opens, one.opened) == (20, 29, 51, 60)  # within a tenth of each change
    assert find_gripper_cycles(drawn(0.5, 0.5)) is None
    assert find_gripper_cycles(drawn(0.2, 0.8)) == []
    noise = 0.01 * np.random.default_rng(0).normal(size=20 + 4 * 31)
    rounds = find_gripper_cycles(drawn(0.1, 0.8, 0.2, 0.8, 0.1) + noise)
    assert [cycle.opens is not None for cycle in rounds] == [True, False]
    values = np.column_stack([np.linspace(0, 3, len(noise)), 100 * (drawn(0.1, 0.8, 0.2, 0.8, 0.1) + noise)])
    words = [word for word, *_ in said(SubtasksFromGripper(), recorded(values, ["base", "gripper"]))]
    assert words == ["reach", "grasp", "transport", "release", "retreat"]  # the last closing puts the hand away


def test_gripper_units_are_believed_only_where_they_are_said():
    values = np.column_stack([np.zeros(40), np.r_[np.full(20, 1.2), np.full(20, 0.1)]])
    degrees = SimpleNamespace(joints=[SimpleNamespace(unit="deg"), SimpleNamespace(unit="deg")])
    made = recorded(values, ["base", "gripper"])
    made.reader.units = degrees
    assert made.opening is None
    assert SubtasksFromGripper().label(made)[0].value == "unknown"


def test_the_predicate_of_a_dataset_comes_back(tmp_path):
    ws, _ = workspace(tmp_path / "cell")
    rule = open_rule("success/predicate")
    with ws:
        found = rule.label(RuleEpisode(episode_id="x", reader=ws.reader("first"), index=0))
    assert [(x.kind, x.value, x.reason) for x in found] == [("success", "yes", "by 1")]


def test_rules_of_users_come_in_by_file_and_as_sql(tmp_path):
    own = tmp_path / "mine.py"
    own.write_text(
        "from twinloop.label.rule import RuleFinding\n"
        "class Long:\n"
        "    name, version, meaning, hash = 'tag/long', '1', 'many frames', 'h'\n"
        "    def label(self, material):\n"
        "        return [RuleFinding(kind='tag', value='long', reason='many')] if material.frames > 36 else []\n"
        "class NoRule:\n    name = 'x'\n"
    )
    assert open_rule(f"{own}:Long").name == "tag/long"
    with pytest.raises(InputError, match="is not a rule: it lacks version, meaning, hash, label"):
        open_rule(f"{own}:NoRule")
    with pytest.raises(UnknownNameError, match="Unknown rule 'subtask/state'.*Nearest existing: subtask/states"):
        open_rule("subtask/state")
    assert all(open_rule(name).name == name for name in RULES)
    path = tmp_path / "short.yaml"
    path.write_text("name: tag/short\nkind: tag\nsql: SELECT episode_id, 'short' AS value FROM episodes\n")
    rule = open_rule(str(path))
    assert isinstance(rule, SqlRule)
    rows = pa.table({"episode_id": ["a"], "value": [True], "first_frame": [3], "last_frame": [4]})
    ((episode, finding),) = rule.read_findings(rows)
    assert (episode, finding.kind, finding.value, finding.first_frame) == ("a", "tag", "yes", 3)
    with pytest.raises(UnknownNameError, match="Unknown column 'valu' in the rows of the rule tag/short"):
        rule.read_findings(pa.table({"episode_id": ["a"], "valu": [True]}))
    with pytest.raises(InputError, match="gives no column value"):
        rule.read_findings(pa.table({"episode_id": ["a"]}))
    with pytest.raises(InputError, match="without episode_id or value"):
        rule.read_findings(pa.table({"episode_id": ["a"], "value": pa.array([None], pa.string())}))
    path.write_text("name: x\nsq: SELECT 1\n")
    with pytest.raises(UnknownNameError, match="Unknown key 'sq' in .*short.yaml. Nearest existing: sql"):
        open_rule(str(path))


@pytest.mark.slow
@pytest.mark.parametrize("twin", ["so101_tabletop", "panda_tabletop"])
def test_planted_failures_and_phases_over_many_worlds(twin):
    """98 worlds of each robot: at least 97 of 100 classes, and phases within 0.2 s of the expert's phases."""
    faults = PLANTED * 14
    task, result, phases = run(load_twin(twin), faults, seed=23)
    right, matched, total, late = 0, 0, 0, []
    for world, fault in enumerate(faults):
        made = material(task, result.states[world])
        right += "".join(x.value for x in FailureFromStates().label(made)) == fault
        if not fault:
            told = np.array([int(np.argmax(phases[world] == phase)) for phase in TOLD.values()])
            found = np.array([first for word, first, _ in said(SubtasksFromStates(), made) if word != "reach"])
            match = match_times(told, found, 0.2 * task.twin.control_hz + 1e-6)
            matched, total = matched + len(match.first), total + len(told)
            late += ((found[match.second] - told[match.first]) / task.twin.control_hz).tolist()
    assert right >= 0.97 * len(faults)
    assert matched >= 0.95 * total
