"""Excitation of a robot: sent commands, stop conditions, recorded data, and refused plans."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest

from support.record_excitation import HOME, LIMITS, TWIN, plan_of
from twinloop.cli.main import main
from twinloop.core.errors import InputError
from twinloop.dataset.logs.formats import load_log
from twinloop.hardware import VirtualRobot
from twinloop.hardware.excite import save_excitation
from twinloop.hardware.excite_drive import approach_commands, excite
from twinloop.hardware.excite_guard import GuardOptions
from twinloop.hardware.limits import ClearanceCheck

ROBOT = "virtual:so101_tabletop?seed=3"


class Troubled(VirtualRobot):
    """A virtual SO-101 that fails after ``after`` requests."""

    def __init__(self, trouble="", after=70):
        super().__init__("so101_tabletop", seed=3)
        self.trouble, self.after, self.asked, self.sent = trouble, after, 0, []

    @property
    def struck(self):
        return self.asked > self.after

    def get_observation(self):
        self.asked += 1
        reading = super().get_observation()
        if self.struck and self.trouble == "blocked":
            reading["elbow_flex.pos"] += 60.0
        if self.struck and self.trouble == "silent":
            raise OSError("no status packet")
        if self.asked == self.after and self.trouble == "ctrl-c":
            os.kill(os.getpid(), signal.SIGINT)
        return reading

    def send_action(self, action):
        sent = super().send_action(action)
        self.sent.append(self.units.to_si(list(sent.values())))
        return sent


class Warm(Troubled):
    """A robot that reports the state of its drives."""

    def get_vitals(self):
        hot = 70.0 if self.trouble == "hot" and self.struck else 40.0
        heavy = 2.5 if self.trouble == "heavy" and self.struck else 0.5
        return {"wrist_flex.temperature": hot, "shoulder_lift.torque": heavy}


def driven(robot, plan=None, **options):
    robot.connect()
    try:
        return excite(robot, plan or plan_of(), **options)
    finally:
        robot.disconnect()


def test_whole_episodes_with_the_commands_of_the_plan_slowly_from_where_the_robot_is():
    robot, plan = Troubled(after=10**9), plan_of()
    robot.connect()
    away = HOME + np.array([0.5, 0.1, -0.1, -0.2, 0.3, 0.2])
    action = dict(zip(robot.action_features, robot.units.from_si(away), strict=True))
    robot.send_action(action)
    robot.clock.wait_until(1.5)
    robot.sent.clear()
    found = excite(robot, plan, repeat=2, clearance=ClearanceCheck(TWIN))
    robot.disconnect()
    assert found.completed
    assert [len(episode) for episode in found.episodes] == [45, 45]
    for episode in found.episodes:
        np.testing.assert_allclose(robot.units.to_si(episode.action), plan.commands, atol=1e-9)
        assert episode.task == "excitation"
        assert np.abs(robot.units.to_si(episode.state[0]) - HOME).max() < 0.15  # at rest, sagging and miscalibrated
    speed = np.abs(np.diff(np.array(robot.sent), axis=0)) * 30.0
    assert (speed <= LIMITS.speed + 1e-9).all()
    assert (speed[:30] <= LIMITS.speed / 6 * 1.01).all()  # on the way to the start


def test_commands_of_a_careless_plan_are_rate_limited_and_clipped():
    commands = np.tile(HOME, (30, 1))
    commands[10:, 0] = 2.5  # a jump beyond the range
    robot = Troubled(after=10**9)
    driven(robot, plan_of(commands=commands), repeat=1, guard=GuardOptions(tracking_tolerance=9.0))
    sent = np.array(robot.sent)
    assert np.abs(np.diff(sent, axis=0)).max() * 30.0 <= LIMITS.speed[0] + 1e-9
    assert sent[:, 0].max() <= LIMITS.high[0] + 1e-9
    assert sent[-1, 0] == pytest.approx(np.minimum(20 * LIMITS.speed[0] / 30, LIMITS.high[0]))


@pytest.mark.parametrize(
    ("kind", "trouble", "reason"),
    [
        (Troubled, "blocked", "elbow_flex is .* from its command for .*blocked, overloaded, or another robot"),
        (Troubled, "silent", "the robot does not answer: OSError: no status packet"),
        (Troubled, "ctrl-c", "stopped by hand"),
        (Warm, "hot", "wrist_flex is 70 °C hot, 60 °C are allowed"),
        (Warm, "heavy", "shoulder_lift has needed .* N·m .*1.62 are allowed"),
    ],
)
def test_trouble_stops_the_motion_and_what_was_recorded_is_kept_and_marked(kind, trouble, reason):
    import re

    robot = kind(trouble)
    before = signal.getsignal(signal.SIGINT)
    found = driven(robot, plan_of(3.0), repeat=3)
    assert re.search(reason, found.reason)
    assert not found.completed
    assert len(found.episodes) == 1
    (part,) = found.episodes
    assert 2 < len(part) < 90
    assert part.task == f"excitation, cut short: {found.reason}"
    assert signal.getsignal(signal.SIGINT) == before


def test_after_a_stop_the_robot_holds_or_comes_home():
    for on_abort in ("hold", "return"):
        robot = Troubled("ctrl-c", after=90)
        found = driven(robot, plan_of(3.0), repeat=1, on_abort=on_abort)
        last_planned = robot.units.to_si(found.episodes[0].action[-1])
        away = np.abs(robot.sent[-1] - HOME).max()
        if on_abort == "hold":
            assert np.abs(robot.sent[-1] - last_planned).max() < 0.3
            assert away > 0.1
        else:
            assert away < 1e-6


def test_the_way_to_the_start_is_slow_and_ends_at_rest():
    plan = plan_of()
    rows = approach_commands(plan, HOME + 0.6)
    assert np.abs(np.diff(rows, axis=0)).max() * 30.0 <= LIMITS.speed.max() / 6 * 1.01
    np.testing.assert_allclose(rows[-25:], np.tile(HOME, (25, 1)), atol=1e-12)


def test_something_in_the_way_to_the_start_is_refused_before_anything_moves():
    class Near:
        def find_first_contact(self, poses):
            return 3, "upper_arm and table"

    robot = Troubled(after=10**9)
    with pytest.raises(InputError, match="upper_arm and table come within the clearance. Move the robot by hand"):
        driven(robot, clearance=Near())
    assert not robot.sent


def command(*words):
    return main(["record", *map(str, words)])


def test_the_command_records_a_dataset_that_reads_back(tmp_path, capsys):
    save_excitation(plan_of(), tmp_path / "p.yaml")
    assert command("--robot", ROBOT, "--excitation", tmp_path / "p.yaml", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "1 × 1.5 s at 30 Hz" in said
    assert "watched: following error only" in said
    out = tmp_path / "log"
    words = ("--robot", ROBOT, "--excitation", tmp_path / "p.yaml", "--output", out, "--repeat", 2)
    assert command(*words, "--json") == 0
    metrics = json.loads(capsys.readouterr().out)
    assert (metrics["episodes"], metrics["frames"], metrics["completed"]) == (2, 90, True)
    episodes = load_log(out)
    assert [len(e) for e in episodes] == [45, 45]
    np.testing.assert_allclose(TWIN.units.to_si(episodes[0].action), plan_of().commands, atol=1e-9)
    assert json.loads((out / "twinloop/recording.json").read_text())["robot"] == ROBOT
    assert command(*words) == 2
    assert "is not an empty folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "robot", "message"),
    [
        ({"twin_hash": "0" * 64}, ROBOT, "has changed since this plan was made"),
        ({}, "virtual:panda_tabletop", "was made for the joints shoulder_pan"),
        ({"control": "torque"}, ROBOT, "This plan commands torques"),
    ],
)
def test_a_plan_for_another_robot_is_refused(tmp_path, capsys, changes, robot, message):
    save_excitation(plan_of(**changes), tmp_path / "p.yaml")
    assert command("--robot", robot, "--excitation", tmp_path / "p.yaml", "--dry-run") == 2
    assert message in " ".join(capsys.readouterr().err.split())
    if "twin_hash" in changes:
        assert command("--robot", robot, "--excitation", tmp_path / "p.yaml", "--dry-run", "--force") == 0


def test_what_is_missing_is_asked_for(tmp_path, capsys):
    save_excitation(plan_of(), tmp_path / "p.yaml")
    assert command("--robot", ROBOT, "--excitation", tmp_path / "p.yaml") == 2
    assert "No output folder is given. Add --output DIR" in capsys.readouterr().err
    assert main(["identify", "--twin", "so101_tabletop"]) == 2
    assert "Add --plan to see which parameters the data, or none, would determine" in capsys.readouterr().err
    assert main(["identify", "--twin", "so101_tabletop", "--excitation", "x.yaml"]) == 2
    assert "Add --plan" in capsys.readouterr().err
