"""A leader arm drives a virtual robot by LeRobot 0.6.1's own command; its six servos are emulated byte by byte."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from support.feetech_bus import FeetechBus
from support.lerobot06 import environment, run
from twinloop.dataset.lerobot.reader import DatasetReader

pytestmark = pytest.mark.slow

JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
MIDDLE, HALF = 2047, 1100  # ticks of the calibrated range
SWEEP = 150  # ticks to both sides, 13 degrees
PERIOD_S = 4.0


class Hand:
    """A hand that moves the first joint of a leader arm to and fro; the other joints rest."""

    def ticks(self, number: int) -> int:
        wave = np.sin(2 * np.pi * time.perf_counter() / PERIOD_S) if number == 1 else 0.0
        return round(MIDDLE + SWEEP * float(wave))

    def go(self, number: int, ticks: int | None) -> None:
        """A leader arm has no torque."""


@pytest.fixture
def leader(tmp_path):
    environment()
    rows = {
        joint: {"id": n, "drive_mode": 0, "homing_offset": 0, "range_min": MIDDLE - HALF, "range_max": MIDDLE + HALF}
        for n, joint in enumerate(JOINTS, start=1)
    }
    (tmp_path / "my_leader.json").write_text(json.dumps(rows))
    with FeetechBus(Hand()) as bus:
        bus.calibrate(dict.fromkeys(range(1, 7), (0, MIDDLE - HALF, MIDDLE + HALF)))
        yield [
            "--teleop.type=so101_leader",
            f"--teleop.port={bus.path}",
            "--teleop.id=my_leader",
            f"--teleop.calibration_dir={tmp_path}",
        ]


def test_the_twin_follows_a_leader_arm(leader, tmp_path):
    run(
        "lerobot-record",
        "--robot.type=twinloop",
        "--robot.address=virtual:so101_tabletop?seed=3&task=pick_and_place",
        *leader,
        "--dataset.repo_id=local/led",
        f"--dataset.root={tmp_path / 'led'}",
        "--dataset.no_stamp=true",
        "--dataset.num_episodes=1",
        "--dataset.episode_time_s=6",
        "--dataset.fps=30",
        "--dataset.single_task=wave",
        "--dataset.push_to_hub=false",
        "--play_sounds=false",
        home=tmp_path,
    )
    reader = DatasetReader(tmp_path / "led")
    action, state = reader.array(0, "action"), reader.array(0, "observation.state")
    sweep = SWEEP * 360 / 4095
    np.testing.assert_allclose([action[:, 0].min(), action[:, 0].max()], [-sweep, sweep], atol=1.0)
    np.testing.assert_allclose(action[:, 1:5], 0.0, atol=0.1)
    np.testing.assert_allclose(action[:, 5], 50.0, atol=0.1)  # half open
    settled = slice(60, None)  # the arm first moves from its home to the leader's pose
    assert np.corrcoef(action[settled, 0], state[settled, 0])[0, 1] > 0.9
    assert np.abs(state[-1, 1:5] - action[-1, 1:5]).max() < 6.0
