"""The envelope: every output keeps every limit; an input within the limits passes bit for bit."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.joint_limits import (
    JointLimits,
    compute_braking_step,
    compute_stoppable_speed,
    compute_stopping_path,
    compute_window,
)
from twinloop.release.envelope import Envelope, RobotMotion
from twinloop.release.envelope_settings import EnvelopeSettings
from twinloop.release.envelope_space import PoseSpace
from twinloop.twin import load_twin

TWIN = load_twin("so101_tabletop")
HOME = TWIN.units.from_si(TWIN.home()[0][TWIN.joint_qpos])
ENVELOPE = Envelope(TWIN)
BOXED = Envelope(TWIN, EnvelopeSettings(workspace={"x": (0.1, 0.32), "z": (0.03, 0.25)}, max_relative_target=8.0))
WILD = st.one_of(
    st.floats(-400, 400), st.sampled_from([np.nan, np.inf, -np.inf, 0.0, 1e300]), st.floats(allow_nan=True)
)
COMMANDS = st.lists(st.one_of(st.none(), st.lists(WILD, min_size=6, max_size=6)), min_size=5, max_size=25)


def off_home(*amounts: float) -> np.ndarray:
    return HOME + np.array(amounts)


def limits(**changed) -> JointLimits:
    one = {"low": [-1.0], "high": [1.0], "speed": [2.0], "acceleration": [30.0]}
    return JointLimits(**{name: np.array(value) for name, value in (one | changed).items()}, dt=1 / 30)


def assert_within(envelope: Envelope, before: RobotMotion, ruling, round_off=1e-9) -> None:
    bounds, position = envelope.limits, envelope.units.to_si(ruling.command)
    speed = (position - before.position) / bounds.dt
    assert np.isfinite(position).all()
    assert (position >= np.minimum(bounds.low, before.position) - round_off).all()
    assert (position <= np.maximum(bounds.high, before.position) + round_off).all()
    assert (np.abs(speed) <= bounds.speed + 1e-6).all()
    assert (np.abs(speed - before.velocity) <= bounds.max_speed_change + 1e-6).all()
    rest = compute_stopping_path(ruling.motion.position, ruling.motion.velocity, bounds)
    assert envelope.space.find_first_fault(np.concatenate([position[None], rest])) is None


@pytest.mark.parametrize("envelope", [ENVELOPE, BOXED], ids=["default", "boxed"])
@given(commands=COMMANDS, pushes=st.lists(st.floats(-25, 25), min_size=6, max_size=6))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_nothing_that_is_asked_for_gets_out_of_the_limits(envelope, commands, pushes):
    motion = envelope.begin(HOME)
    for wanted in commands:
        reading = envelope.units.from_si(motion.position) + pushes
        ruling = envelope.judge(motion, wanted, reading)
        assert_within(envelope, motion, ruling)
        motion = ruling.motion


@given(steps=st.lists(st.floats(-60, 60), min_size=4, max_size=60), acceleration=st.floats(0.5, 500))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_joint_can_always_stop_before_the_end_of_its_range(steps, acceleration):
    bounds = limits(acceleration=[acceleration])
    position, velocity = np.array([0.3]), np.array([0.0])
    for step in steps:
        allowed = compute_window(position, velocity, bounds)
        assert (allowed.low <= allowed.high).all()
        goal = np.clip(position + step, allowed.low, allowed.high)
        position, velocity = goal, (goal - position) / bounds.dt
        stop, speed = position, velocity
        while np.abs(speed).max() > 1e-12:
            stop, speed = compute_braking_step(stop, speed, bounds)
        assert -1 - 1e-9 <= stop[0] <= 1 + 1e-9


@given(speed=st.floats(0.0, 5.0), brake=st.floats(0.05, 4.0))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_the_closed_form_of_braking_is_what_braking_step_by_step_covers(speed, brake):
    bounds = limits(acceleration=[brake * 30])
    covered, left = speed / 30, speed
    while left > 0.0:
        left = max(left - brake, 0.0)
        covered += left / 30
    assert compute_stoppable_speed(np.array([covered]), bounds)[0] == pytest.approx(speed, abs=1e-6)


def test_a_command_within_the_limits_goes_through_bit_for_bit():
    motion = ENVELOPE.begin(HOME)
    random = np.random.default_rng(3)
    for _ in range(40):
        wanted = ENVELOPE.units.from_si(motion.position) + random.uniform(-0.5, 0.5, 6)
        ruling = ENVELOPE.judge(motion, wanted, HOME)
        assert ruling.kind == "passed"
        assert ruling.changes == ()
        assert ruling.command.tobytes() == wanted.tobytes()
        motion = ruling.motion


@pytest.mark.parametrize(
    ("change", "rule"),
    [({0: 40.0}, "acceleration"), ({4: -25.0}, "acceleration"), ({5: 100.0}, "acceleration")],
)
def test_a_cut_says_joint_rule_and_how_much(change, rule):
    wanted = HOME.copy()
    for joint, value in change.items():
        wanted[joint] += value
    ruling = ENVELOPE.judge(ENVELOPE.begin(HOME), wanted, HOME)
    assert ruling.kind == "limited"
    [cut] = ruling.changes
    [joint] = change
    assert (cut.joint, cut.rule) == (TWIN.robot.joints[joint], rule)
    assert cut.requested == wanted[joint]
    assert abs(cut.issued - HOME[joint]) < abs(wanted[joint] - HOME[joint])
    others = [j for j in range(6) if j != joint]
    assert ruling.command[others].tobytes() == wanted[others].tobytes()


def rules_on_the_way(envelope: Envelope, wanted, steps: int = 90):
    motion, seen, last = envelope.begin(HOME), set(), None
    for _ in range(steps):
        last = envelope.judge(motion, wanted)
        seen |= {cut.rule for cut in last.changes}
        motion = last.motion
    assert last is not None
    return seen, last


def test_the_arm_stops_above_the_table_and_says_what_was_in_the_way():
    down = off_home(0, 60, -20, 0, 0, 0)
    seen, last = rules_on_the_way(ENVELOPE, down)
    assert "clearance" in seen
    assert "table" in last.reason
    assert last.motion.is_at_rest
    place = ENVELOPE.space.compute_tool_position(last.motion.position)
    assert 0.0 < place[2] < 0.06


def test_the_hand_still_closes_where_the_arm_may_not_go_on():
    down = off_home(0, 60, -20, 0, 0, -20)
    _, last = rules_on_the_way(ENVELOPE, down)
    assert ENVELOPE.units.from_si(last.motion.position)[5] == pytest.approx(down[5])


def test_the_tool_stays_in_its_box():
    envelope = Envelope(TWIN, EnvelopeSettings(workspace={"y": (-0.05, 0.05)}))
    seen, last = rules_on_the_way(envelope, off_home(50, 0, 0, 0, 0, 0))
    assert "workspace" in seen
    assert "the tool would be at y" in last.reason
    assert 0.03 < abs(envelope.space.compute_tool_position(last.motion.position)[1]) <= 0.05


def test_links_keep_their_distance_and_the_hand_may_close_on_itself():
    space = PoseSpace(TWIN, clearance=0.025)
    folded = TWIN.home()[0][TWIN.joint_qpos] + [0, -1.0, 1.0, 0.2, 0, 0]
    free = TWIN.home()[0][TWIN.joint_qpos]
    assert space.find_first_fault(free[None]) is None
    closed = np.where(np.arange(6) == 5, -0.17, free)
    assert space.find_first_fault(closed[None]) is None
    fault = space.find_first_fault(np.stack([free, folded]))
    assert fault is not None
    assert fault[0] == "clearance"


def test_a_tool_without_a_gripper_may_reach_the_table_but_its_link_may_not(tmp_path):
    (tmp_path / "press.xml").write_text(
        """<mujoco><worldbody><geom name="table" type="plane" size="1 1 1"/><body name="arm" pos="0 0 0.3">
        <joint name="z" type="slide" axis="0 0 1" range="-0.3 0.3"/><geom name="link" size="0.1"/>
        <body name="rod" pos="0 0 -0.05"><geom size="0.05" pos="0 0 -0.1"/><site name="tip"/></body></body></worldbody>
        <actuator><position name="z" joint="z" kp="9"/></actuator></mujoco>"""
    )
    for tcp, pose, rule in (("tcp: tip", -0.09, None), ("", -0.09, "clearance"), ("tcp: tip", -0.11, "clearance")):
        (tmp_path / "twin.yaml").write_text(
            "name: press\nmodel: press.xml\ncontrol_hz: 20\nsubsteps: 10\n"
            f"robot: {{type: press, joints: [z], units: [m]{', ' * bool(tcp)}{tcp}}}\n"
        )
        fault = PoseSpace(load_twin(tmp_path / "twin.yaml"), clearance=0.025).find_first_fault(np.array([[pose]]))
        assert (fault and fault[0]) == rule


def test_clearance_to_the_table_is_what_measuring_each_shape_says():
    clearance, model = 0.03, TWIN.model
    space, data = PoseSpace(TWIN, clearance=clearance, hand_clearance=clearance), mujoco.MjData(TWIN.model)
    base, table = model.body("base").id, model.geom("table").id
    links = [g for g in range(model.ngeom) if model.geom_bodyid[g] > base and model.geom_contype[g]]
    random, found = np.random.default_rng(5), []
    for pose in TWIN.home()[0][TWIN.joint_qpos] + random.uniform(-0.5, 0.9, (150, 6)):
        data.qpos[:] = TWIN.home()[0]
        data.qpos[TWIN.joint_qpos] = pose
        mujoco.mj_kinematics(model, data)
        near = min(mujoco.mj_geomDistance(model, data, table, geom, 1.0, None) for geom in links)
        fault = space.find_first_fault(pose[None])
        if abs(near - clearance) < 1e-4 or (fault is not None and "table" not in fault[1]):
            continue
        assert (near < clearance) == (fault is not None)
        found.append(fault is not None)
    assert 20 < sum(found) < len(found) - 20


def test_the_jump_from_where_the_joint_is_holds_like_lerobots():
    envelope = Envelope(TWIN, EnvelopeSettings(max_relative_target={"shoulder_pan": 0.5}))
    ruling = envelope.judge(envelope.begin(HOME), off_home(1.0, 0.3, 0, 0, 0, 0), HOME)
    assert [(cut.joint, cut.rule) for cut in ruling.changes] == [("shoulder_pan", "jump")]
    assert ruling.command[0] == pytest.approx(HOME[0] + 0.5)


def moving() -> RobotMotion:
    motion = ENVELOPE.begin(HOME)
    for _ in range(8):
        motion = ENVELOPE.judge(motion, off_home(60, 0, 0, 0, 0, 0)).motion
    assert not motion.is_at_rest
    return motion


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (None, "no command in time"),
        (HOME * np.nan, "the command of shoulder_pan is not a number"),
        (np.append(HOME[:5], np.inf), "the command of gripper is not a number"),
        (HOME[:5], "a command of shape (5,) for 6 joints"),
        (np.stack([HOME, HOME]), "a command of shape (2, 6) for 6 joints"),
    ],
)
def test_what_is_no_command_makes_the_robot_brake_and_hold(wanted, said):
    motion, first = moving(), None
    while not motion.is_at_rest:
        ruling = ENVELOPE.judge(motion, wanted, HOME)
        assert_within(ENVELOPE, motion, ruling)
        first, motion = first or ruling, ruling.motion
    assert first.kind == "held"
    assert first.reason == said
    held = ENVELOPE.judge(motion, wanted, HOME)
    np.testing.assert_array_equal(held.motion.position, motion.position)


def test_holding_for_too_long_stops_for_good_and_a_command_in_between_begins_anew():
    brief = Envelope(TWIN, EnvelopeSettings(stop_after_s=0.2))
    motion = brief.begin(HOME)
    for _ in range(5):
        motion = brief.judge(motion, None).motion
    motion = brief.judge(motion, HOME).motion
    assert motion.held_s == 0.0
    for _ in range(7):
        motion = brief.judge(motion, None).motion
    assert motion.stopped == "no command in time, for 0.2 s"
    again = brief.judge(motion, HOME + 0.1, HOME)
    assert (again.kind, again.reason) == ("stopped", motion.stopped)


def test_a_stale_observation_stops():
    ruling = ENVELOPE.judge(moving(), HOME, HOME, age_s=0.25)
    assert ruling.kind == "stopped"
    assert ruling.reason == "the robot's last answer is 0.25 s old, 0.2 s allowed"
    assert ENVELOPE.judge(moving(), HOME, HOME, age_s=0.19).kind != "stopped"


def test_a_reading_that_is_not_a_number_holds():
    ruling = ENVELOPE.judge(moving(), HOME, HOME * [1, 1, np.nan, 1, 1, 1])
    assert (ruling.kind, ruling.reason) == ("held", "the reading of elbow_flex is not a number")


def test_a_robot_that_stands_in_the_table_is_not_begun_with():
    with pytest.raises(InputError, match="in a position that the envelope forbids: .*table.* Move it by hand"):
        ENVELOPE.begin(off_home(0, 75, -40, 0, 0, 0))
    with pytest.raises(InputError, match="does not report a position for every joint"):
        ENVELOPE.begin(HOME * np.nan)


def test_a_robot_outside_its_range_may_come_back_and_go_no_further():
    outside = replace(ENVELOPE.begin(HOME), position=ENVELOPE.limits.high * [1, 0, 0, 0, 0, 0] + [0.05, 0, 0, 0, 0, 0])
    allowed = compute_window(outside.position, outside.velocity, ENVELOPE.limits)
    assert allowed.high[0] == outside.position[0]
    assert allowed.low[0] < outside.position[0]


def test_settings_are_checked_and_say_what_exists(tmp_path):
    path = tmp_path / "envelope.yaml"
    path.write_text("clearence_m: 0.01\nworkspace: {x: [0.3, 0.1]}\n")
    with pytest.raises(InputError, match=r"(?s)clearence_m.*Nearest existing: .*clearance_m.*|x must be \[low, high\]"):
        EnvelopeSettings.read(path)
    with pytest.raises(UnknownNameError, match="Unknown joint 'elbow' in max_relative_target. Nearest.*elbow_flex"):
        Envelope(TWIN, EnvelopeSettings(max_relative_target={"elbow": 3.0}))
    with pytest.raises(InputError, match="double_pendulum is commanded by torques"):
        Envelope(load_twin("double_pendulum"))


def test_the_settings_on_the_page_are_settings():
    page = (Path(__file__).parents[2] / "docs" / "guides" / "deployment.md").read_text()
    [text] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    envelope = Envelope(TWIN, EnvelopeSettings.of(yaml.safe_load(text), where="docs/guides/deployment.md"))
    assert envelope.watchdog_s == 0.05
    speed, acceleration = np.rad2deg(ENVELOPE.limits.speed).round(), ENVELOPE.limits.acceleration.round()
    assert f"0.6: SO-101 {speed[0]:.0f} deg/s, gripper {speed[5]:.0f} deg/s" in page
    assert f"SO-101 {acceleration[:5].min():.0f} to {acceleration[:5].max():.0f} rad/s², gripper" in page


def test_a_twin_with_other_joints_is_refused():
    with pytest.raises(InputError, match="has no joint"):
        Envelope(TWIN, units=load_twin("panda_tabletop").units)


@pytest.mark.bench
def test_judging_is_quick_enough_for_a_hundred_hertz():
    motion, spent = ENVELOPE.begin(HOME), []
    for step in range(300):
        started = time.perf_counter()
        motion = ENVELOPE.judge(motion, HOME + 20 * np.sin(step / 8), HOME).motion
        spent.append(time.perf_counter() - started)
    assert np.quantile(spent, 0.99) < 5e-3
