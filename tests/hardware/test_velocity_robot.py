"""A virtual robot that takes velocities: it is moved, recorded and identified like the others."""

from __future__ import annotations

import json

import numpy as np
import pytest

from twinloop.cli.main import main
from twinloop.core.errors import InputError
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.hardware import open_robot
from twinloop.hardware.hidden import draw_hidden
from twinloop.hardware.motions import plan_motion
from twinloop.hardware.record import command_kind
from twinloop.twin import load_twin

ROBOT = "virtual:waffle_warehouse?seed=603"


def test_its_actions_are_velocities():
    robot = open_robot(ROBOT)
    assert list(robot.action_features) == ["wheel_left.vel", "wheel_right.vel"]
    assert command_kind(robot) == "velocity"
    robot.connect()
    try:
        sent = robot.send_action({"wheel_left.vel": 3.0, "wheel_right.vel": -20.0})
    finally:
        robot.disconnect()
    assert sent == {"wheel_left.vel": 3.0, "wheel_right.vel": -8.06}


def test_motions_for_positions_are_refused_by_what_the_robot_takes():
    with pytest.raises(
        InputError, match=r"reach needs position commands, and waffle_warehouse takes velocities. Use random"
    ):
        plan_motion(load_twin("waffle_warehouse"), "reach", seed=0, episode=0)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels") / "log"
    assert main(["record", "--robot", ROBOT, "--motion", "random", "--seconds", "8", "--repeat", "4",
                 "--output", str(folder), "--quiet"]) == 0  # fmt: skip
    return folder


def test_wheels_turn_as_their_recorded_velocities_say(recorded):
    reader = DatasetReader(recorded)
    assert len(reader) == 4
    for episode in range(4):
        turned, speed = reader.array(episode, "observation.state"), reader.array(episode, "action")
        assert np.abs(speed).max() > 2.0
        lag = 0.25 * np.abs(speed).max()  # delay, motor and clock: less than a quarter of a second
        np.testing.assert_allclose(turned - turned[0], (np.cumsum(speed, axis=0) - speed) / reader.fps, atol=lag)


@pytest.mark.slow
def test_intervals_hold_the_delay_and_the_gain_of_its_motors(recorded, tmp_path, capsys):
    settings = tmp_path / "fit.yaml"
    settings.write_text('free: ["actuator/*/kv", "actuator/*/delay", "joint/wheel_*/frictionloss"]\n')
    assert main(["identify", "--twin", "waffle_warehouse", "--data", str(recorded), "--fit", str(settings),
                 "--holdout", "last:1", "--output", str(tmp_path / "fit"), "--quiet"]) == 0  # fmt: skip
    twin = load_twin("waffle_warehouse")
    truth = {name: param.nominal for name, param in twin.params.items()} | draw_hidden(twin, 603).params
    found = json.loads((tmp_path / "fit" / "result.json").read_text())["estimates"]
    determined = [row for row in found if row["determined"]]
    assert any(row["name"].endswith("/delay") for row in determined)
    for row in determined:
        assert row["low"] <= truth[row["name"]] <= row["high"], row["name"]
