"""Write a class for the user's own robot or simulator, and check that a robot follows the protocol."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from twinloop.core.files import write_text
from twinloop.hardware import check_robot, open_robot
from twinloop.twin import load_twin
from twinloop.workflows.robot.requests import RobotCheckRequest, RobotNewRequest
from twinloop.workflows.run.results import require_new_class_file

_CLASS = '''\
"""{what}. Check it with `twinloop robot check {file}:{name}`."""

import numpy as np

from twinloop.hardware import OwnRobot


class {name}(OwnRobot):
{joints}
    # command = "torque"           # commands are torques in N·m instead of positions
    # tracked = ("cube.x",)        # names of the values of track(), in m; headings as cosine and sine
    # cameras = {{"front": (240, 320)}}  # height and width of the images of see()

    def __init__(self, option="1"):  # options of the address, as texts: {file}:{name}?option=2
        self.option = float(option)
{body}
    # def track(self):             # values of a tracker, in the order of `tracked`
    #     return [0.0]

    # def see(self):               # images by camera, (height, width, 3), RGB, uint8
    #     return {{"front": np.zeros((240, 320, 3), np.uint8)}}

    # def success(self):           # whether the task is done now; None if that is not known
    #     return None
'''
_JOINTS = """\
    joints = ("shoulder", "elbow")
    unit = "rad"  # rad, deg, m, range_m100_100, …: one for all joints, or one for each"""
_OF_TWIN = """\
    twin = {twin!r}  # gives name, joints, units and ranges of the robot; self.units converts to and from rad:
    # {units}"""
_SIMULATOR = """
    def reset(self, episode):  # start the scene with this number; the same number gives the same scene
        self.positions = np.zeros(len(self.units.names))

    def step(self, command, dt):  # simulate dt seconds with a command; replace it by your engine
        self.positions += (command - self.positions) * min(1.0, dt / 0.05)

    def read(self):  # readings of the joints, in `unit`
        return self.positions
"""
_ROBOT = """
    def reset(self, episode):  # open the connection; it is called at the beginning of every session
        self.positions = np.zeros(len(self.units.names))

    # If the vendor's call blocks while the robot moves: source = "real", and step(self, command, dt) instead of send.
    def send(self, command):  # send a command; return it as sent if the robot limits it
        self.positions = np.array(command)

    def read(self):  # readings of the joints, in `unit`
        return self.positions

    def close(self):  # close the connection
        pass
"""


def run_robot_new(request: RobotNewRequest, console: Console) -> dict[str, Any]:
    """Write the class, and check it.

    Raises:
        InputError: If the file exists, or is no Python file.
    """
    output = request.output
    name = require_new_class_file(output)
    joints = _JOINTS
    if request.twin is not None:
        units = ", ".join(f"{unit.joint} in {unit.unit}" for unit in load_twin(request.twin).units.joints)
        joints = _OF_TWIN.format(twin=request.twin, units=units)
    is_real = request.kind == "real"
    text = _CLASS.format(
        what="A robot" if is_real else "A robot in another simulator",
        file=output.name, name=name, joints=joints, body=_ROBOT if is_real else _SIMULATOR,
    )  # fmt: skip
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, text)
    check_robot(open_robot(f"{output}:{name}"))
    console.print(f"{output}: the class {name}, which follows the protocol of robots.")
    console.print(f"Next: edit it, then twinloop robot check {output}:{name}", soft_wrap=True)
    return {"schema": 1, "verb": "robot", "kind": "new", "robot": f"{output}:{name}"}


def run_robot_check(request: RobotCheckRequest, console: Console) -> dict[str, Any]:
    """Check a robot, and print its joints, its other readings, and whether it determines outcomes.

    Raises:
        CheckFailedError: If the robot violates a rule of the protocol.
    """
    robot = open_robot(request.robot)
    check_robot(robot)
    units = ", ".join(f"{unit.joint} in {unit.unit}" for unit in robot.units.joints)
    unknown = [unit.joint for unit in robot.units.joints if not unit.known]
    others = [key for key in robot.observation_features if not key.endswith(".pos")]
    console.print(f"{robot.name} ({robot.source}) follows the protocol: {units}.", soft_wrap=True)
    if unknown:
        console.print(
            f"Warning: the ranges of {', '.join(unknown)} are unknown, so that record and run cannot convert readings "
            "to rad. Set `twin` in the class to the name or file of the robot's twin.", soft_wrap=True,
        )  # fmt: skip
    console.print(f"Other readings: {', '.join(others) or 'none'}.", soft_wrap=True)
    known = callable(getattr(robot, "success", None))
    console.print(f"Outcomes of episodes: {'from the robot' if known else 'unknown; see --ask and --outcome of run'}.")
    return {
        "schema": 1, "verb": "robot", "kind": "check", "robot": request.robot, "name": robot.name,
        "source": robot.source, "joints": list(robot.units.names), "other_readings": others, "tells_success": known,
    }  # fmt: skip
