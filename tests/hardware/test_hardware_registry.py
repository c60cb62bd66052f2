"""The registry of robots: addresses, the user's classes, and errors for an unknown robot."""

from __future__ import annotations

import pytest

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.hardware.protocol import check_robot
from twinloop.hardware.registry import open_robot, robot_names

OWN = '''
from twinloop.hardware.virtual import VirtualRobot


class Mine(VirtualRobot):
    """An arm of the user's."""

    def __init__(self, number="1"):
        super().__init__("double_pendulum", seed=int(number))


class Table:
    pass
'''


def test_every_address_that_is_offered_opens_and_opens_again_by_its_origin():
    arms = ["double_pendulum", "panda_tabletop", "simple_pendulum", "so101_tabletop", "so101_tabletop_geared"]
    assert robot_names() == [f"virtual:{name}" for name in sorted([*arms, "planar_square", "xl330_pendulum"])]
    for name in robot_names():
        robot = open_robot(f"{name}?seed=3")
        assert open_robot(robot.origin).reveal().params == robot.reveal().params
        assert not robot.is_connected
    assert open_robot("virtual:so101_tabletop").origin == "virtual:so101_tabletop?seed=0"


def test_the_users_own_class_comes_in_by_its_file(tmp_path):
    path = tmp_path / "arm.py"
    path.write_text(OWN)
    robot = open_robot(f"{path}:Mine?number=4")
    check_robot(robot)
    assert robot.reveal().params == open_robot("virtual:double_pendulum?seed=4").reveal().params


def test_what_does_not_exist_is_answered_with_the_nearest(tmp_path):
    path = tmp_path / "arm.py"
    path.write_text(OWN)
    with pytest.raises(UnknownNameError, match=r"Unknown robot 'virtul:so101_tabletop'.*Nearest.*virtual:so101_table"):
        open_robot("virtul:so101_tabletop")
    with pytest.raises(UnknownNameError, match="Unknown twin 'so100_tabletop'.*Nearest existing: so101_tabletop"):
        open_robot("virtual:so100_tabletop")
    with pytest.raises(UnknownNameError, match="Unknown option 'sead'.*Nearest existing: seed"):
        open_robot("virtual:so101_tabletop?sead=3")
    with pytest.raises(InputError, match="seed=three in .* is not a whole number"):
        open_robot("virtual:so101_tabletop?seed=three")
    with pytest.raises(InputError, match="The twin cube_toss has no robot"):
        open_robot("virtual:cube_toss")
    with pytest.raises(UnknownNameError, match="Unknown robot class 'Min'.*Nearest existing: Mine"):
        open_robot(f"{path}:Min")
    with pytest.raises(InputError, match=r"arm.py:Table is not a robot"):
        open_robot(f"{path}:Table")
    with pytest.raises(InputError, match=r"does not take these options \(colour\)"):
        open_robot(f"{path}:Mine?colour=red")
    path.write_text("class Deaf:\n    def __init__(self, port):\n        raise ValueError('no such\\nport ' + port)\n")
    with pytest.raises(InputError, match=r"Deaf could not be created: ValueError: no such port 3 \(.*arm.py:3\)\.$"):
        open_robot(f"{path}:Deaf?port=3")
    path.write_text("import nothing_of_that_name")
    with pytest.raises(InputError, match=r"arm.py does not run: ModuleNotFoundError"):
        open_robot(f"{path}:Mine")
