"""Faults while a policy drives a robot: the robot holds, the fault is recorded, and the dataset is whole."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from support.run_faults import CONTRACT, ENVELOPE, ROBOT, TWIN, assert_came_to_rest, ran_with
from twinloop.core.contract import STATE
from twinloop.core.errors import InputError, TwinloopError
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.logs.formats import load_log
from twinloop.dataset.side_tables import open_side_table
from twinloop.hardware.driver import RobotLostError
from twinloop.hardware.limits import CLEARANCE
from twinloop.hardware.virtual import VirtualRobot
from twinloop.release.running_record import EVENTS, STEPS, RunFacts, RunWriter
from twinloop.release.running_robot import WatcherReport

HOME = TWIN.units.from_si(TWIN.home()[0][TWIN.joint_qpos])


class Swaying:
    """A decider that moves the first joint to and fro, and does something else from a step on."""

    name, hash, contract = "swaying", "5" * 64, CONTRACT

    def __init__(self, fault=None, *, since: int = 8, until: int = 10**6) -> None:
        self.step, self.seen, self.told = 0, [], []
        self._fault, self._since, self._until = fault, since, until

    def restart(self, episode: int) -> None:
        self.step = 0

    def act(self, observation) -> np.ndarray:
        self.step += 1
        self.seen.append(dict(observation))
        command = HOME + np.array([12 * np.sin(self.step / 6), 0, 0, 0, 0, 0])
        if self._fault is not None and self._since < self.step <= self._until:
            return self._fault(command)
        return command

    def report_sent(self, command) -> None:
        self.told.append(command)

    def close(self) -> None:
        pass


class Broken:
    """A robot that fails from a given call on; before, it forwards to the wrapped robot."""

    def __init__(self, robot: VirtualRobot, **faults) -> None:
        self._robot, self._faults, self.calls = robot, faults, {"get_observation": 0, "send_action": 0}

    def __getattr__(self, name):
        return getattr(self._robot, name)

    def _called(self, name, *given):
        self.calls[name] += 1
        since, until, fault = self._faults.get(name, (10**6, 10**6, None))
        answer = getattr(self._robot, name)(*given)
        return fault(answer) if since < self.calls[name] <= until else answer

    def get_observation(self):
        return self._called("get_observation")

    def send_action(self, action):
        return self._called("send_action", action)


def written(ran, folder, **notes):
    """The same as a dataset, read back."""
    facts = RunFacts(
        origin=ROBOT.origin, source="sim", contract=CONTRACT, twin=TWIN.name, twin_hash=TWIN.hash, task="sway"
    )
    writer = RunWriter(folder, facts)
    writer.add(ran, policy_hash="5" * 64, success=None, notes=notes)
    writer.finish({"verb": "run"})
    writer.close()
    [log] = load_log(folder)
    assert len(log) == len(ran.steps) == DatasetReader(folder).lengths[0]
    np.testing.assert_array_equal(log.action, [step.issued for step in ran.steps])
    return log, open_side_table(folder, STEPS).to_table(), open_side_table(folder, EVENTS).to_table().to_pylist()


def test_a_policy_that_keeps_the_limits_is_sent_as_it_is():
    decider = Swaying()
    ran = ran_with(decider)
    assert (ran.end_kind, ran.reason, len(ran.steps), ran.violations) == (None, "", 30, 0)
    for step, seen in zip(ran.steps, decider.seen, strict=True):
        assert step.decision.command.tobytes() == step.requested.tobytes()
        np.testing.assert_allclose(step.issued, step.requested, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(step.observation.reading, seen[STATE])
    np.testing.assert_allclose(np.diff([step.time_s for step in ran.steps]), 1 / 30, atol=0.01)
    assert decider.told == []


@pytest.mark.slow
def test_an_episode_alone_is_the_same_again_bit_for_bit():
    robots = [VirtualRobot("so101_tabletop", seed=3, session=4) for _ in range(2)]
    first, second = (ran_with(Swaying(), robot=robot, steps=12) for robot in robots)
    for one, other in zip(first.steps, second.steps, strict=True):
        assert one.observation.reading.tobytes() == other.observation.reading.tobytes()
        assert one.time_s == other.time_s


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda command: command * np.nan, "the command of shoulder_pan is not a number"),
        pytest.param(lambda command: command[:4], "a command of shape (4,) for 6 joints", marks=pytest.mark.slow),
        pytest.param(
            lambda command: np.append(command[:5], np.inf),
            "the command of gripper is not a number",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_policy_that_says_what_is_no_command_is_held_and_then_stopped(fault, said, tmp_path):
    ran = ran_with(Swaying(fault))
    assert ran.end_kind == "stopped"
    assert ran.reason == f"{said}, for 0.4 s"
    assert_came_to_rest(ran, by=14)
    kinds = [event.kind for event in ran.events]
    assert kinds == ["held", "stopped"]
    log, steps, events = written(ran, tmp_path / "run")
    assert np.isfinite(log.action).all()
    assert events[0] | {"episode_index": 0} == events[0]
    assert (events[0]["kind"], events[0]["message"], events[0]["frame"]) == ("held", said, 8)
    assert steps["ruling"].to_pylist()[8] == "held"
    assert steps["wanted/gripper"].to_pylist()[8] is None
    row = DatasetReader(tmp_path / "run").provenance(0)
    assert row.extra["run"]["trip"] == "stopped"
    assert row.extra["run"]["envelope"] == {"passed": 8, "held": 12, "stopped": 1}


@pytest.mark.slow
def test_one_wrong_answer_is_a_short_hold_and_the_policy_hears_of_it():
    decider = Swaying(lambda command: command * np.nan, until=10)
    ran = ran_with(decider)
    assert ran.end_kind is None
    assert [step.decision.kind for step in ran.steps][7:11] == ["passed", "held", "held", ran.steps[10].decision.kind]
    assert len(decider.told) >= 2
    assert_came_to_rest(ran)


@pytest.mark.slow
def test_a_policy_that_answers_late_is_not_waited_for():
    def slowly(command):
        time.sleep(0.12)
        return command

    ran = ran_with(Swaying(slowly, until=9), patience_s=0.03)
    kinds = [step.decision.kind for step in ran.steps]
    assert kinds[8] == "held"
    assert kinds[-1] == "passed"
    assert "the policy has taken 0.0" in ran.steps[8].decision.reason
    late = next(step for step in ran.steps[9:] if np.isfinite(step.latency_s))
    assert late.latency_s > 0.12
    assert late.age_s > 1 / 30
    assert ran.end_kind is None


@pytest.mark.slow
def test_a_policy_that_never_answers_again_is_stopped():
    release = threading.Event()

    def never(command):
        release.wait(20.0)
        return command

    ran = ran_with(Swaying(never), patience_s=0.005)
    release.set()
    assert ran.end_kind == "stopped"
    assert ran.reason.startswith("no command in time: the policy has taken")
    assert_came_to_rest(ran, by=14)


@pytest.mark.slow
def test_an_answer_to_what_was_long_ago_is_not_used():
    def slowly(command):
        time.sleep(0.3)
        return command + 5.0

    ran = ran_with(Swaying(slowly, until=9), patience_s=0.03)
    late = [event for event in ran.events if event.kind == "late"]
    assert len(late) == 1
    assert "too late to be used" in late[0].message


@pytest.mark.slow
def test_a_policy_that_raises_ends_the_episode_at_rest(tmp_path):
    def wrong(command):
        raise ZeroDivisionError("no way out")

    ran = ran_with(Swaying(wrong))
    assert ran.end_kind == "policy"
    assert ran.reason.startswith("the policy failed: ZeroDivisionError: no way out")
    assert_came_to_rest(ran, by=-1)
    _, _, events = written(ran, tmp_path / "run")
    assert [event["kind"] for event in events] == ["policy", "held"]


def lost(answer):
    raise ConnectionError("there is no status packet")


@pytest.mark.slow
def test_a_robot_that_misses_one_answer_goes_on():
    robot = Broken(ROBOT, get_observation=(9, 10, lost), send_action=(20, 21, lost))
    ran = ran_with(Swaying(), robot=robot)
    assert ran.end_kind is None
    robots = [event for event in ran.events if event.kind == "robot"]
    assert len(robots) == 2
    assert "does not answer: ConnectionError: there is no status packet" in robots[0].message
    assert [step.decision.kind for step in ran.steps].count("held") == 2  # once for each
    assert [step.sent for step in ran.steps].count(False) == 1


def test_a_robot_that_stops_answering_ends_the_episode(tmp_path):
    robot = Broken(ROBOT, get_observation=(9, 10**6, lost), send_action=(12, 10**6, lost))
    ran = ran_with(Swaying(), robot=robot)
    assert ran.end_kind == "robot"
    assert ran.reason.startswith("the robot's last answer is 0.2")
    assert "ConnectionError: there is no status packet" in ran.reason
    assert len(ran.steps) < 25
    written(ran, tmp_path / "run")


@pytest.mark.slow
def test_a_robot_whose_driver_hangs_ends_the_episode():
    release = threading.Event()

    def hang(answer):
        release.wait(20.0)
        return answer

    robot = Broken(VirtualRobot("so101_tabletop", seed=3), get_observation=(9, 10**6, hang))
    ran = ran_with(Swaying(), robot=robot, robot_patience_s=0.05)
    release.set()
    assert ran.end_kind == "robot"
    assert "still has not answered" in ran.reason or "has not answered for 0.05 s" in ran.reason


def test_a_reading_that_is_not_a_number_holds_and_is_written_as_it_was_before(tmp_path):
    robot = Broken(ROBOT, get_observation=(9, 12, lambda answer: answer | {"elbow_flex.pos": np.nan}))
    decider = Swaying()
    ran = ran_with(decider, robot=robot)
    assert ran.end_kind is None
    held = [step.decision.reason for step in ran.steps if step.decision.kind == "held"]
    assert held == ["the reading of elbow_flex is not a number"] * 3
    assert all(np.isfinite(seen[STATE]).all() for seen in decider.seen)
    log, _, _ = written(ran, tmp_path / "run")
    assert np.isfinite(log.state).all()


def test_an_observation_that_is_none_is_a_lost_robot():
    robot = Broken(ROBOT, get_observation=(0, 10**6, lambda answer: {"elbow": 1.0}))
    with pytest.raises(RobotLostError, match="gave an observation that cannot be read .*KeyError"):
        ran_with(Swaying(), robot=robot)


def test_a_watcher_raises_an_alarm_and_one_that_fails_stops_nothing():
    class Alarmed:
        def __init__(self) -> None:
            self.seen = 0

        def begin(self, episode: int) -> None:
            self.seen = 0

        def watch_step(self, seen, command):
            self.seen += 1
            return WatcherReport(scores={"ood": float(self.seen)}, alarm="far from home" if self.seen == 11 else "")

    class Failing(Alarmed):
        def watch_step(self, seen, command):
            raise KeyError("lens")

    ran = ran_with(Swaying(), watchers=(Failing(), Alarmed()))
    assert (ran.end_kind, ran.reason) == ("alarm", "far from home")
    assert [step.scores["ood"] for step in ran.steps[:11]] == list(range(1, 12))
    assert "Failing failed and is no longer used: KeyError" in ran.events[0].message
    assert_came_to_rest(ran, by=-1)


@pytest.mark.slow
def test_a_person_stops_it_at_rest():
    count = iter(range(1000))
    ran = ran_with(Swaying(), interrupted=lambda: next(count) > 9)
    assert (ran.end_kind, ran.reason) == ("hand", "stopped by hand")
    assert 11 <= len(ran.steps) < 30
    assert_came_to_rest(ran, by=-1)


def test_a_policy_that_cannot_begin_moves_nothing():
    class Absent(Swaying):
        def restart(self, episode: int) -> None:
            raise OSError("no weights")

    with pytest.raises(TwinloopError, match="swaying cannot start an episode: OSError: no weights"):
        ran_with(Absent())


@pytest.mark.slow
def test_a_policy_that_pushes_into_the_table_is_held_above_it():
    ran = ran_with(Swaying(lambda command: command + np.array([0, 60, -20, 0, 0, 0])), steps=60)
    assert ran.end_kind is None
    positions = ENVELOPE.units.to_si(np.array([step.issued for step in ran.steps]))
    assert ENVELOPE.space.find_first_fault(positions) is None
    assert {cut.rule for step in ran.steps for cut in step.decision.changes} >= {"acceleration", "clearance"}
    assert ENVELOPE.settings.clearance_m == CLEARANCE


def test_a_robot_in_the_way_of_itself_is_not_begun_with():
    robot = Broken(ROBOT, get_observation=(0, 10**6, lambda answer: answer | {"shoulder_lift.pos": 60.0}))
    with pytest.raises(InputError, match="in a position that the envelope forbids"):
        ran_with(Swaying(), robot=robot)
