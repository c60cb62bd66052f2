"""Virtual robots: by seed, behind the protocol, and with every hidden effect measurable from outside."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest

from twinloop.core.errors import CheckFailedError, InputError, UnknownNameError
from twinloop.hardware.arms import VirtualArms
from twinloop.hardware.hidden import HiddenParameters, draw_hidden
from twinloop.hardware.protocol import NotConnectedError, Robot, check_robot
from twinloop.hardware.record import drive, record
from twinloop.hardware.virtual import VirtualRobot
from twinloop.twin import load_twin

ROBOTS = ("so101_tabletop", "panda_tabletop", "double_pendulum")
TWIN = load_twin("so101_tabletop")
HOME = TWIN.units.from_si(TWIN.home()[0][TWIN.joint_qpos])
KEYS = [f"{joint}.pos" for joint in TWIN.robot.joints]
COUNT_DEG = 360 / 4096


def connected(seed=0, session=0):
    robot = VirtualRobot("so101_tabletop", seed=seed, session=session)
    robot.connect()
    return robot


def action(values):
    return dict(zip(KEYS, values, strict=True))


def sweep(joint, track):
    """Commands ``(nstep, 6)`` at home but for one joint, in degrees from home."""
    rows = np.tile(HOME, (len(track), 1))
    rows[:, TWIN.robot.joints.index(joint)] += track
    return rows


class TestProtocol:
    @pytest.mark.parametrize("name", ROBOTS)
    def test_the_laws_hold(self, name):
        robot = VirtualRobot(name, seed=1)
        assert isinstance(robot, Robot)
        check_robot(robot)

    def test_the_checker_finds_what_is_broken(self):
        class Silent(VirtualRobot):
            def get_observation(self):
                return {"shoulder_pan.pos": 0.0}

        class Drifting(VirtualRobot):
            def send_action(self, action):
                return {key: value + 1 for key, value in super().send_action(action).items()}

        with pytest.raises(CheckFailedError, match="answers while it is not connected"):
            check_robot(Silent("so101_tabletop"))
        with pytest.raises(CheckFailedError, match="changed when it is sent again"):
            check_robot(Drifting("so101_tabletop"))
        with pytest.raises(CheckFailedError, match=r"object lacks .*calibrate.*send_action"):
            check_robot(object())  # pyright: ignore[reportArgumentType]

    def test_time_stands_still_until_it_is_told_to_move(self):
        robot = connected()
        before = robot.clock.now()
        for _ in range(5):
            robot.get_observation()
            robot.send_action(action(HOME))
        assert robot.clock.now() == before == 0.0
        robot.clock.wait_until(0.5)
        assert 0.5 <= robot.clock.now() <= 0.5 + robot.reveal().clock_jitter_s + TWIN.dt

    def test_commands_beyond_the_limits_are_sent_at_the_limits(self):
        robot = connected()
        sent = robot.send_action(action([500.0, *HOME[1:]]))
        assert sent["shoulder_pan.pos"] == pytest.approx(math.degrees(1.91986))
        assert list(sent.values())[1:] == pytest.approx(HOME[1:])

    def test_what_is_wrong_is_named(self):
        robot = VirtualRobot("so101_tabletop", seed=2)
        with pytest.raises(NotConnectedError, match=r"virtual:so101_tabletop\?seed=2 is not connected. Call connect"):
            robot.send_action(action(HOME))
        robot.connect()
        with pytest.raises(UnknownNameError, match="Unknown action 'elbow.pos'.*Nearest existing: elbow_flex.pos"):
            robot.send_action(action(HOME) | {"elbow.pos": 0.0})
        with pytest.raises(InputError, match=r"lacks gripper\.pos"):
            robot.send_action(dict(zip(KEYS[:-1], HOME[:-1], strict=True)))
        with pytest.raises(InputError, match="The command of wrist_roll is not finite"):
            robot.send_action(action(HOME) | {"wrist_roll.pos": math.nan})


class TestSeeds:
    def test_a_robot_is_a_function_of_its_seed_and_session(self):
        commands = sweep("elbow_flex", 20 * np.sin(np.arange(30) / 5))
        one, same = (record(connected(4), commands, 30.0) for _ in range(2))
        np.testing.assert_array_equal(one.state, same.state)
        np.testing.assert_array_equal(one.time, same.time)
        other = record(connected(5), commands, 30.0)
        assert np.abs(one.state - other.state).max() > 0.5  # another arm
        later = record(connected(4, session=1), commands, 30.0)
        assert 0 < np.abs(one.state - later.state).max() < 2.0  # the same arm, other noise
        assert (one.time != later.time).any()

    def test_reconnecting_begins_the_next_session(self):
        robot = connected(4)
        robot.disconnect()
        robot.connect()
        commands = sweep("elbow_flex", np.zeros(5))
        expected = record(connected(4, session=1), commands, 30.0)
        np.testing.assert_array_equal(record(robot, commands, 30.0).state, expected.state)

    @pytest.mark.parametrize("name", ROBOTS)
    def test_hidden_values_are_within_the_twins_bounds_and_differ_between_robots(self, name):
        twin = load_twin(name)
        robots = [draw_hidden(twin, seed) for seed in range(20)]
        for hidden in robots:
            twin.table(1, hidden.params)  # raises where one is out of bounds
            assert (hidden.backlash > 0).all()
            assert (hidden.load_friction > 0).all()
        for parameter in robots[0].params:
            assert len({hidden.params[parameter] for hidden in robots}) == 20

    def test_supply_moves_gain_and_limit_together(self):
        ratios = [
            (
                h.params["actuator/elbow_flex/kp"] / TWIN.params["actuator/elbow_flex/kp"].nominal,
                h.params["actuator/elbow_flex/torque_limit"] / TWIN.params["actuator/elbow_flex/torque_limit"].nominal,
            )
            for h in (draw_hidden(TWIN, seed) for seed in range(60))
        ]
        assert np.corrcoef(np.transpose(ratios))[0, 1] > 0.7

    def test_the_truth_is_not_to_be_read(self):
        """Except `reveal`, no public attribute of a robot or its clock leads to a hidden number."""
        robot = connected(6)
        truth = {*robot.reveal().params.values()} - {p.nominal for p in TWIN.params.values()}
        seen, todo = set(), [robot]
        while todo:
            thing = todo.pop()
            for name in dir(thing):
                if name.startswith("_") or name == "reveal":
                    continue
                value = getattr(thing, name)
                assert not isinstance(value, (HiddenParameters, VirtualArms))
                if isinstance(value, float):
                    assert value not in truth
                elif type(value).__module__.startswith("twinloop") and id(value) not in seen:
                    seen.add(id(value))
                    todo.append(value)
        assert seen
        assert {f.name for f in fields(HiddenParameters)} & set(vars(robot)) == set()


class TestFromOutside:
    """Each hidden effect recovered through the protocol alone; `reveal` only judges."""

    def test_readings_come_in_counts_and_flicker_by_one(self):
        robot = connected(1)
        readings = np.array([list(robot.get_observation().values()) for _ in range(400)])
        scale = robot.reveal().params["sensor/shoulder_lift/scale"]
        steps = np.diff(np.unique(readings[:, 1]))
        assert len(steps) >= 1
        np.testing.assert_allclose(steps, COUNT_DEG / scale, rtol=1e-6)
        noise = np.hypot(robot.reveal().read_noise[1], robot.reveal().count[1] / math.sqrt(12))
        assert readings[:, 1].std() == pytest.approx(math.degrees(noise) / scale, rel=0.4)

    @pytest.mark.parametrize("seed", [1, 3])
    def test_delay_and_jitter_from_the_onset_of_steps(self, seed):
        robot = connected(seed)
        hidden = robot.reveal()
        onsets = onset_of_steps(robot)
        delay = hidden.params["actuator/elbow_flex/delay"] + hidden.command_jitter_s / 2
        assert np.median(onsets) == pytest.approx(delay, abs=0.006)
        spread = np.subtract(*np.percentile(onsets, [75, 25]))  # half the width of a uniform distribution
        assert spread == pytest.approx(hidden.command_jitter_s / 2, rel=0.4)

    @pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
    def test_the_width_of_the_play_from_reversals(self, seed):
        """Among arms that differ only in backlash, equal responses to reversals identify equal backlash."""
        time = np.arange(240) / 60
        triangle = 0.04 * (1 - np.abs(time * 0.3 / 0.04 % 2 - 1)) * 2
        commands = sweep("shoulder_pan", np.degrees(triangle))
        measured = record(connected(seed), commands, 60.0).state[:, 0]
        hidden = draw_hidden(TWIN, seed)
        plays, costs = np.array([0.004, 0.010, 0.016, 0.022]), []
        for play in plays:
            like = replace(hidden, backlash=np.full(6, play))
            arms = VirtualArms(TWIN, like, seed=99, sessions=range(2), nthread=1)
            answers = drive(arms, iter(np.tile(commands[:, None], (1, 2, 1))), 60.0).state[..., 0]
            costs.append(np.mean((answers.mean(axis=0) - measured) ** 2))
        curvature, slope, _ = np.polyfit(plays, costs, 2)
        assert -slope / (2 * curvature) == pytest.approx(hidden.backlash[0], rel=0.15)

    @pytest.mark.parametrize("seed", [0, 1])
    def test_friction_grows_with_the_load(self, seed):
        """The rest positions after motion from above and from below differ more for a loaded joint."""
        unloaded, loaded = [0, 0, -90, 0, 0, 40], [0, 45, -30, 0, 0, 40]
        (width0, sag0), (width1, sag1) = (
            rest_widths(connected(seed), np.array(pose, float)) for pose in (unloaded, loaded)
        )
        assert width1 > 2 * width0
        # width = 2 (dry + c · load) / kp and sag = load / kp
        coefficient = (width1 - width0) / (2 * (abs(sag1) - abs(sag0)))
        assert coefficient == pytest.approx(draw_hidden(TWIN, seed).load_friction[1], rel=0.4)


def onset_of_steps(robot, key="elbow_flex.pos", step=-12.0, top=80.0):
    """Seconds between commands that lift the forearm and its first motion: the square root of travel, back to zero."""
    clock, hold, onsets = robot.clock, action(HOME) | {"shoulder_lift.pos": -60.0}, []
    for _ in range(3):
        for goal in np.linspace(hold[key], top, 45):
            hold[key] = goal
            robot.send_action(hold)
            clock.wait_until(clock.now() + 1 / 30)
        clock.wait_until(clock.now() + 0.5)
        for number in range(8):
            rest = np.mean([robot.get_observation()[key] for _ in range(10)])
            hold[key] += step
            robot.send_action(hold)
            sent, time, counts = clock.now(), [], []
            for _ in range(60):
                clock.wait_until(clock.now() + 1e-4)
                time.append(clock.now() - sent)
                counts.append((robot.get_observation()[key] - rest) / COUNT_DEG * np.sign(step))
            time, counts = np.array(time), np.array(counts)
            early = (counts > 2.5) & np.logical_and.accumulate(counts < 25)
            if number:  # the first crosses the play first: the forearm came from the other side
                onsets.append(np.polyfit(np.sqrt(counts[early]), time[early], 1)[1])
            clock.wait_until(clock.now() + 0.45)
    return np.array(onsets)


def rest_widths(robot, pose, span=8.0):
    """Degrees between where the lift rests coming from above and from below, and how far their middle sags."""
    state = {"time": robot.clock.now(), "at": HOME}

    def ramp(goal, seconds):
        start = state["at"]
        for part in np.linspace(0, 1, round(seconds * 30)):
            state["time"] += 1 / 30
            robot.clock.wait_until(state["time"])
            robot.send_action(action(start + part * (goal - start)))
        state["at"] = goal

    def rest(goal):
        ramp(goal, 1.0)
        ramp(goal, 0.5)
        return np.mean([robot.get_observation()["shoulder_lift.pos"] for _ in range(20)])

    offset = span * np.eye(6)[1]
    ramp(pose + offset, 2.0)
    above = rest(pose)
    ramp(pose - offset, 1.0)
    below = rest(pose)
    return above - below, (above + below) / 2 - pose[1]


ARM = """
<mujoco><compiler angle="radian"/><option timestep="0.002"/><worldbody>
  <body name="upper"><joint name="hinge" axis="0 1 0" damping=".3" armature=".02" frictionloss=".03" range="-2 2"
    limited="true"/><geom type="capsule" fromto="0 0 0 .3 0 0" size=".02" mass=".2"/></body>
</worldbody><actuator><position name="servo" joint="hinge" kp="12"/></actuator></mujoco>
"""


def test_a_users_own_model_can_be_a_virtual_robot_too(tmp_path):
    path = tmp_path / "arm.xml"
    path.write_text(ARM)
    robot = VirtualRobot(path, seed=5)
    check_robot(robot)
    robot.connect()
    episode = record(robot, np.linspace(0, [1.0], 100), 50.0)
    assert episode.state[-1, 0] == pytest.approx(1.0, abs=0.15)
    assert episode.action[-1, 0] == 1.0  # no limit in the model: none is applied
    assert robot.reveal().params["joint/hinge/damping"] != pytest.approx(0.3, rel=0.01)
