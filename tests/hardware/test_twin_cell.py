"""A twin as a robot: its parameters are the nominal or the identified ones, its cameras show the running scene."""

from __future__ import annotations

import json

import numpy as np
import pytest

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.hardware import TwinCell, VirtualCell, check_robot, open_robot
from twinloop.randomize import Plan, default_draws
from twinloop.render import choose_renderer
from twinloop.rollout import EpisodeStart, run_batch
from twinloop.rollout.world_camera import WorldCamera
from twinloop.tasks import open_task
from twinloop.twin import load_twin
from twinloop.twin.places import Scenery

TWIN = load_twin("so101_tabletop")
NAME = "joint/elbow_flex/frictionloss"


def drive(robot, nstep):
    """Drive a robot by the expert of its task, one control step per command; the states."""
    robot.connect()
    for _ in range(nstep):
        robot.send_action(robot.expert_action())
        robot.clock.wait_until(robot.clock.now() + 1 / TWIN.control_hz)
    return robot.states()


def test_it_moves_as_the_nominal_twin_under_the_expert_and_solves_the_task():
    robot = TwinCell("so101_tabletop", session=4, run_seed=2)
    task = open_task("pick_and_place", TWIN)
    placed = [draw for draw in default_draws(TWIN) if TWIN.params[draw.names[0]].quantity.stage == "reset"]
    params = Plan(twin=TWIN, run_seed=2, draws=tuple(placed)).draw([4])
    made = run_batch(TWIN, task, params, run_seed=2, episodes=[4])
    states = drive(robot, task.nstep)
    # The commands pass through degrees, and the rounding grows in contacts.
    np.testing.assert_allclose(states[:45], made.trajectories.states[0, :45], atol=1e-9)
    assert robot.success()
    robot.disconnect()
    robot.connect()
    assert np.abs(robot.states()[0] - states[0]).max() > 1e-3  # the next scene


@pytest.fixture
def identified(tmp_path):
    value = 3.0 * TWIN.params[NAME].nominal
    one = np.array([np.log(value)])
    found = ParamDistribution(
        names=(NAME,),
        transforms=("log",),
        mean=one,
        covariance=np.array([[0.01]]),
        low=np.array([0.0]),
        high=np.array([np.inf]),
        determined=(True,),
        clusters=3,
    )
    (tmp_path / "result.json").write_text(json.dumps({"distribution": found.to_json()}))
    return tmp_path, value


def test_identified_values_replace_the_nominal_ones(identified):
    folder, value = identified
    robot = open_robot(f"twin:so101_tabletop?identified={folder}")
    table = robot.cell.table(robot.cell.plan(0).draw([0]))
    np.testing.assert_allclose(table[NAME], [value])
    nominal = TwinCell("so101_tabletop")
    assert not np.array_equal(drive(robot, 20), drive(nominal, 20))
    assert open_robot(robot.origin).cell.values == robot.cell.values


def test_a_twin_without_a_task_starts_at_home_and_its_success_is_not_known():
    robot = open_robot("twin:double_pendulum")
    check_robot(robot)
    robot.connect()
    twin = load_twin("double_pendulum")
    reading = [robot.get_observation()[f"{joint}.pos"] for joint in twin.robot.joints]
    np.testing.assert_allclose(twin.units.to_si(np.array(reading)), twin.home()[0][twin.joint_qpos], atol=1e-2)
    robot.send_action(dict.fromkeys(robot.action_features, 0.5))
    robot.clock.wait_until(0.1)
    assert robot.success() is None
    with pytest.raises(InputError, match=r"has no expert. Give one: twin:double_pendulum\?task=NAME"):
        robot.expert_action()


def test_an_address_with_a_wrong_option_is_refused():
    with pytest.raises(UnknownNameError, match=r"Unknown option 'seed'"):
        open_robot("twin:so101_tabletop?seed=3")
    with pytest.raises(InputError, match=r"session=x .* is not a whole number"):
        open_robot("twin:so101_tabletop?session=x")
    with pytest.raises(InputError, match=r"cameras=front .* needs a robot at a task"):
        open_robot("virtual:so101_tabletop?cameras=front")
    with pytest.raises(UnknownNameError, match=r"Unknown camera 'top'.*front"):
        open_robot("twin:so101_tabletop?cameras=top")
    with pytest.raises(InputError, match=r"does not exist. Give the folder of a run"):
        open_robot("twin:so101_tabletop?identified=nowhere")
    for wrong, error, message in (
        ("room=3", InputError, "room= in .* is for images. Add cameras=NAME"),
        ("cameras=front&room=200001", InputError, "the last room is 200000"),
        ("cameras=front&images=raw", UnknownNameError, "images 'raw'"),
        ("cameras=front&renderer=gm", UnknownNameError, "renderer 'gm'"),
    ):
        with pytest.raises(error, match=message):
            open_robot(f"twin:so101_tabletop?{wrong}")


def test_cameras_show_the_present_state():
    try:
        choose_renderer()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    robot = open_robot("virtual:so101_tabletop?seed=3&task=pick_and_place&cameras=front,wrist&height=48&width=64")
    assert isinstance(robot, VirtualCell)
    check_robot(robot)
    assert robot.observation_features["wrist"] == (48, 64, 3)
    assert open_robot(robot.origin).observation_features == robot.observation_features
    robot.connect()
    before = robot.get_observation()
    np.testing.assert_array_equal(robot.get_observation()["front"], before["front"])
    drive(robot, 30)
    after = robot.get_observation()
    assert np.abs(after["front"].astype(int) - before["front"]).max() > 50
    assert len(np.unique(before["front"])) > 20


def test_a_robot_in_a_room_sees_through_its_camera_model_as_trials_do():
    try:
        choose_renderer()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    address = "virtual:so101_tabletop?seed=3&task=pick_and_place&cameras=front&height=48&width=64&run_seed=5&session=2"
    robot = open_robot(f"{address}&images=device&room=100007")
    assert isinstance(robot, VirtualCell)
    assert "images=device&room=100007" in robot.origin
    robot.connect()
    drive(robot, 12)
    seen = robot.get_observation()["front"]
    cell, states = robot.cell, robot.states()
    params = cell.table(cell.plan(5).draw([2]))
    assert params["place/room"] == 100007
    camera = WorldCamera(cell.twin, ["front"], height=48, width=64, sensors=True, scenery=Scenery(rooms=True, seed=5))
    initial = robot.task.reset(params, run_seed=5, episodes=[2])
    camera.begin_worlds(EpisodeStart(numbers=np.array([2]), params=params, initial=initial, run_seed=5), 300)
    for state in states:
        camera.watch(state[None])
    np.testing.assert_array_equal(camera.take([0], len(states) - 1)["front"][0], seen)
    camera.close()
    plain = open_robot(address)
    plain.connect()
    assert np.abs(plain.get_observation()["front"].astype(int) - seen).mean() > 20
