"""What a policy sees of a robot: joints, what a tracker sees and images, each under its own name and in its order."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from twinloop.core.contract import ENVIRONMENT, IMAGES, STATE
from twinloop.hardware.protocol import TRACKED_PREFIX
from twinloop.release.running_robot import TimedRobot, offered_contract
from twinloop.twin import load_twin

TWIN = load_twin("so101_tabletop")
KEYS = [f"{joint}.pos" for joint in TWIN.robot.joints]
SCENE = {f"{TRACKED_PREFIX}cube_x": 0.1, f"{TRACKED_PREFIX}cube_y": 0.2, f"{TRACKED_PREFIX}target_x": 0.3}
IMAGE = np.arange(72, dtype=np.uint8).reshape(4, 6, 3)


class Watched:
    """An arm at 0, 1, 2, … with a tracker and a camera; it reports half of each command as sent."""

    name, source, origin, units = "so101_follower", "sim", "arm", TWIN.units
    is_calibrated, is_connected = True, False
    action_features = dict.fromkeys(KEYS, float)
    observation_features = dict.fromkeys([*KEYS, *SCENE], float) | {"front": IMAGE.shape}

    def __init__(self):
        self.clock = SimpleNamespace(now=lambda: 2.5, wait_until=lambda moment: None)
        self.told = {}

    def connect(self, calibrate=True):
        self.is_connected = True

    def configure(self):
        pass

    def get_observation(self):
        return {**SCENE, **{key: float(i) for i, key in enumerate(KEYS)}, "front": IMAGE}

    def send_action(self, action):
        self.told = dict(action)
        return {key: value / 2 for key, value in action.items()}

    def disconnect(self):
        self.is_connected = False


def test_a_policy_reads_joints_tracker_and_images_each_in_its_order():
    spoken = TimedRobot(Watched(), patience_s=10.0)
    try:
        spoken.connect()
        contract = offered_contract(spoken.robot, hz=30.0, task="pick")
        assert contract.environment == ("cube_x", "cube_y", "target_x")
        assert contract.cameras == {"front": (4, 6)}
        assert (contract.control_hz, contract.task, contract.robot_type) == (30.0, "pick", "so101_follower")
        seen = spoken.read_observation()
        assert seen.time_s == 2.5
        assert seen.arrays[STATE].tolist() == seen.reading.tolist() == list(range(len(KEYS)))
        assert seen.arrays[ENVIRONMENT].tolist() == [0.1, 0.2, 0.3]
        assert np.array_equal(seen.arrays[f"{IMAGES}front"], IMAGE)
        asked = replace(contract, environment=("target_x", "cube_x"), cameras={"front": (2, 2)})
        assert asked.find_differences(contract) == [
            "observation.images.front: the policy needs 2x2 pixels, but 6x4 is given"
        ]
        assert asked.find_differences(contract, reduced=True) == []
        assert len(replace(asked, cameras={"front": (5, 6)}).find_differences(contract, reduced=True)) == 1
        columns = spoken.find_environment_columns(asked)
        shown = seen.copy_for_policy(asked, columns)
        assert shown[ENVIRONMENT].tolist() == [0.3, 0.1]
        # The middle four of six columns, then the mean of each 2x2 pixels.
        assert np.array_equal(shown[f"{IMAGES}front"][0, 0], np.floor(IMAGE[:2, 1:3].mean(axis=(0, 1)) + 0.5))
        assert shown[f"{IMAGES}front"].shape == (2, 2, 3)
        assert f"{IMAGES}front" not in seen.copy_for_policy(replace(asked, cameras={}), columns)
        shown[STATE][:] = 9.0
        assert seen.reading[0] == 0.0  # a policy's own copy
        command = np.linspace(-1.0, 1.0, len(KEYS))
        assert spoken.send(command).tolist() == (command / 2).tolist()
        assert spoken.robot.told == dict(zip(KEYS, command.tolist(), strict=True))
    finally:
        spoken.disconnect()
