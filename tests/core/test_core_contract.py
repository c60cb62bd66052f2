"""A contract describes each mismatch in words, and survives JSON unchanged."""

from __future__ import annotations

import dataclasses
import math

import pytest

from twinloop.core.contract import Contract
from twinloop.core.units import DEGREES, unit_map_from_ranges

JOINTS = ("pan", "lift")
UNITS = unit_map_from_ranges(JOINTS, [[-1.0, 1.0], [-2.0, 0.0]], [DEGREES, DEGREES], source="test")
MINE = Contract(
    robot_type="arm",
    control_hz=30.0,
    state=UNITS,
    action=UNITS,
    environment=("tool.x", "cube.x"),
    cameras={"front": (240, 320)},
    task="pick_and_place",
)


def test_the_same_place_fits_and_json_gives_the_same_back():
    assert MINE.find_differences(MINE) == []
    assert Contract.from_json(MINE.to_json()) == MINE


def test_a_place_that_gives_more_fits():
    more = dataclasses.replace(
        MINE, environment=("tool.x", "tool.y", "cube.x"), cameras={**MINE.cameras, "wrist": (96, 96)}, task=""
    )
    assert MINE.find_differences(more) == []


OTHER = unit_map_from_ranges(JOINTS, [[-1.0, 1.0], [-2.0, 0.3]], [DEGREES, DEGREES], source="test")
RADIANS = unit_map_from_ranges(JOINTS, [[-1.0, 1.0], [-2.0, 0.0]], ["rad", "rad"], source="test")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"robot_type": "leg"}, "robot: the policy is for arm, but leg is given"),
        ({"control_hz": 50.0}, "rate: the policy needs 30 Hz, but 50 Hz is given"),
        ({"command": "torque"}, "commands: the policy gives positions, but torques are required"),
        ({"command": "velocity"}, "commands: the policy gives positions, but velocities are required"),
        ({"task": "stack"}, "task: the policy is for pick_and_place, but the task is stack"),
        ({"state": None}, "observation.state: the policy reads pan, lift, which are not available"),
        ({"action": RADIANS}, "action of pan: the policy uses deg, but rad is given"),
        (
            {"environment": ("cube.x",)},
            "observation.environment_state: the policy reads tool.x, but a tracker gives cube.x",
        ),
        ({"cameras": {}}, "observation.images.front: no such camera; existing: none"),
        (
            {"cameras": {"front": (480, 640)}},
            "observation.images.front: the policy needs 320x240 pixels, but 640x480 is given",
        ),
    ],
)
def test_every_difference_is_a_sentence(change, said):
    assert said in MINE.find_differences(dataclasses.replace(MINE, **change))


def test_another_calibration_is_told_by_what_a_value_means():
    (found,) = MINE.find_differences(dataclasses.replace(MINE, action=OTHER))
    assert found.startswith("action of lift: a value v means -1 + 0.01745 v rad or m to the policy, but -0.85 + 0.0174")
    nearly = dataclasses.replace(OTHER.joints[1], offset=-1.0 + 1e-5, scale=math.pi / 180)
    assert (
        MINE.find_differences(
            dataclasses.replace(MINE, action=dataclasses.replace(OTHER, joints=(UNITS.joints[0], nearly)))
        )
        == []
    )


def test_commands_become_si_by_their_kind():
    """A value v of lift means −1 rad + v degrees: positions are shifted and scaled, speeds scaled, torques neither."""
    values = [[0.0, 90.0]]
    assert UNITS.of_commands("position").to_si(values)[0] == pytest.approx([0.0, math.pi / 2 - 1.0])
    assert UNITS.of_commands("velocity").to_si(values)[0] == pytest.approx([0.0, math.pi / 2])
    assert UNITS.of_commands("torque").to_si(values)[0] == pytest.approx([0.0, 90.0])
