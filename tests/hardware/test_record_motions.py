"""``record --motion`` moves any robot, and keeps its tracker and its cameras."""

import json

import numpy as np
import pytest

from tests.support.own_task import write_own_task
from twinloop.cli.main import main
from twinloop.core.errors import InputError
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.logs.formats import load_log
from twinloop.hardware import TwinCell, VirtualCell
from twinloop.hardware.limits import ClearanceCheck
from twinloop.hardware.motions import plan_motion
from twinloop.hardware.record import add_tracked_poses, record
from twinloop.simulate import open_backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayOptions, prepare_replay
from twinloop.twin import load_twin
from twinloop.workflows.data.record import tracked_pose

ROBOT = """
import numpy as np
from twinloop.hardware import OwnRobot


class Pusher(OwnRobot):
    joints, unit = ("slide_x", "slide_y"), "m"
    tracked = ("tool.x", "tool.y", "tool.z", "puck.x")
    cameras = {"front": (32, 48)}

    def reset(self, episode):
        self.x, self.time = np.zeros(2), 0.0

    def step(self, command, dt):
        self.x = command + (self.x - command) * np.exp(-dt / 0.05)

    def read(self):
        return self.x

    def track(self):
        return [*self.x, 0.03, 0.1]

    def see(self):
        return {"front": np.full((32, 48, 3), 128 + int(250 * self.x[0]), dtype=np.uint8)}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_own_task(tmp_path)
    (tmp_path / "robot.py").write_text(ROBOT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_commands_from_a_file_are_recorded_with_every_signal_and_camera(folder, capsys):
    rows = [(0.4 * t, 0.1 * np.sin(0.6 * t), 0.02 * t) for t in range(11)]
    text = "\n".join(",".join(map(str, row)) for row in [("time", "slide_x", "slide_y"), *rows])
    (folder / "motion.csv").write_text(text)
    words = ["record", "--robot", "robot.py:Pusher", "--twin", "robot/pusher.yaml", "--motion", "motion.csv"]
    assert main([*words, "--repeat", "2", "--output", "data", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["episodes"], result["signals"], result["cameras"]) == (
        2, ["environment_state", "place/tool"], ["front"]
    )  # fmt: skip
    log = load_log(folder / "data")
    assert len(log) == 2
    assert len(log[0]) == result["frames"] // 2
    time = log[0].time - log[0].time[0]
    np.testing.assert_allclose(log[0].action[:, 1], np.minimum(0.05 * time, 0.2), atol=1e-9)
    np.testing.assert_array_equal(log[1].signals["place/tool"].values[:, :2], log[1].state)
    np.testing.assert_array_equal(log[1].signals["environment_state"].values[:, 3], 0.1)
    reader = DatasetReader(folder / "data")
    spec = {reading.key: reading for reading in reader.spec.readings}["observation.environment_state"]
    assert (spec.columns, spec.units) == (("tool.x", "tool.y", "tool.z", "puck.x"), ("m",) * 4)
    frames = reader.images(0, "front")
    expected = 128 + np.floor(250 * log[0].state[:, 0])
    np.testing.assert_allclose(np.asarray(frames).mean(axis=(1, 2, 3)), expected, atol=3.0)


def test_a_motion_needs_a_twin_and_one_source(folder, capsys):
    words = ["record", "--robot", "robot.py:Pusher", "--output", "data"]
    for more, message in (
        ([], "--motion reach, pick, random"),
        (["--motion", "random"], "--twin TWIN"),
        (["--motion", "dance", "--twin", "robot/pusher.yaml"], "reach, pick, random"),
        (["--motion", "pick", "--twin", "robot/pusher.yaml"], "name a gripper"),
        (["--motion", "robot.py", "--twin", "robot/pusher.yaml"], "columns time"),
    ):
        assert main([*words, *more]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    assert not (folder / "data").exists()


@pytest.mark.parametrize("motion", ["reach", "random"])
def test_motions_are_within_the_limits_free_and_different_in_each_episode(motion):
    twin = load_twin("panda_tabletop")
    one, two = (plan_motion(twin, motion, seconds=5.0, seed=1, episode=number) for number in (0, 1))
    again = plan_motion(twin, motion, seconds=5.0, seed=1, episode=1)
    np.testing.assert_array_equal(two.commands, again.commands)
    assert not np.array_equal(one.commands[: len(two.commands)], two.commands[: len(one.commands)])
    assert all(peak["speed"] <= one.limits.speed[j] * (1 + 1e-6) for j, peak in enumerate(one.command_peaks().values()))
    assert ClearanceCheck(twin).find_first_contact(one.commands[::10]) is None
    np.testing.assert_array_equal(one.commands[0], one.commands[-1])


def test_a_robot_with_torques_or_without_a_tool_gets_random_motions_only():
    twin = load_twin("double_pendulum")
    assert plan_motion(twin, "random", seconds=3.0).control == "torque"
    for motion in ("reach", "pick"):
        with pytest.raises(InputError, match="takes torques"):
            plan_motion(twin, motion)
    with pytest.raises(InputError, match="reach, pick, random"):
        plan_motion(twin, "pik")


@pytest.mark.slow
def test_a_pick_moves_the_object_that_the_tracker_sees():
    robot = VirtualCell("so101_tabletop", seed=2)
    robot.connect()
    seen = robot.get_observation()
    cube = tracked_pose(seen, "cube")
    twin = load_twin("so101_tabletop")
    plan = plan_motion(twin, "pick", objects={"cube": cube})
    episode = record(robot, robot.units.from_si(plan.commands), plan.hz)
    moved = episode.signals["environment_state"]
    column = moved.columns.index("cube.z")
    assert moved.values[:, column].max() > cube[2] + 0.03
    assert np.linalg.norm(moved.values[-1, column - 2 : column] - cube[:2]) > 0.02


@pytest.mark.parametrize(("twin", "task", "body"), [("so101_push", "push", "brick"), ("so101_press", "press", "stand")])
def test_a_replay_with_contacts_starts_from_what_the_tracker_saw(twin, task, body):
    """The twin itself is the robot, so that its replay must return the readings, contacts included."""
    robot = TwinCell(twin, task=task)
    robot.connect()
    steps = round((8.0 if task == "push" else 3.0) * robot.cell.twin.control_hz)
    commands = (list(robot.expert_action().values()) for _ in range(steps))
    episode = add_tracked_poses(record(robot, commands, robot.cell.twin.control_hz), robot.cell.twin)
    pose = episode.signals[f"pose/{body}"].values
    np.testing.assert_allclose(np.linalg.norm(pose[:, 3:], axis=1), 1.0)
    compare = ("position", f"place/{robot.cell.twin.robot.tcp}", *([f"pose/{body}"] if task == "push" else []))
    logs = prepare_replay(robot.cell.twin, [episode], ReplayOptions(compare=compare, contacts=True))
    if task == "press":
        np.testing.assert_allclose(logs.start.initial.mocap_pos[0], pose[:1, :3])
    readings = replay(open_backend("threads"), logs, logs.twin.table(1))[0, 0]
    error = np.abs(readings - logs.measured[0])[steps // 6 :]  # the first command is taken to have been held before
    assert error[:, :6].max() < 0.06  # deg; encoder counts are 0.088 deg
    assert np.nanmax(error[:, 6:9]) < 5e-4
    if task == "push":
        assert np.ptp(pose[:, :2], axis=0).max() > 0.05
        assert error[:, 9:12].max() < 1e-5
