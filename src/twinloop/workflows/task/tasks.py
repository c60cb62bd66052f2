"""Write a class for the user's own task, and check a task and its scripted expert."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from twinloop.checks.task import TaskTrials, check_task
from twinloop.core.errors import InputError
from twinloop.core.files import write_text
from twinloop.stats.proportion import wilson
from twinloop.tasks import OwnTask, Task, open_task
from twinloop.tasks.protocol import has_expert, has_tracked_values
from twinloop.twin import Twin
from twinloop.workflows.run.results import require_new_class_file
from twinloop.workflows.run.twin_and_task import load_requested_twin
from twinloop.workflows.task.requests import TaskCheckRequest, TaskNewRequest

_NEW_EPISODES = 8  # worlds of each kind in which a new task is tried
_HEAD = '''\
"""{what}.

    twinloop tasks check {file}:{name}{twin}
"""

import numpy as np

from twinloop.tasks import {imports}
from twinloop.tasks.predicates import held_for  # more conditions: in_disc, above_plane, occurred_before


class {name}(OwnTask):
    """{what}.

    This is an example that runs, whatever the class is called: replace the goal, success() and expert() by your own.
    """

    instruction = "{what}."  # for policies that read text
    seconds = {seconds:g}  # duration of an episode
    joint_noise = {noise:g}  # rad or m: largest deviation of an initial joint from the home pose
    # Objects begin where the twin's parameters object/NAME/position/x and .../y place them. For other initial states
    # write a reset() that changes the result of super().reset(...), see twinloop.tasks.protocol.Task.
'''
_TOOL = """
    # Bodies: {bodies}. Their positions are also what a policy observes (environment_state).
    above = [{above}]  # m: the goal, from {anchor}

    def success(self, states):  # states: (worlds, times, values); True where the task is done
        {goal}
        near = np.linalg.norm(self.position(states, "tool") - goal, axis=-1) < 0.02
        return held_for(near, round(0.5 * self.twin.control_hz))  # for half a second

    def expert(self, initial):  # waypoints in m; positions may be functions of the present state, see ToolState
        {start}
        return WaypointExpert(self.arm, initial, [
            Waypoint(name="reach", position=goal, patience=1.0),
            # Waypoint(name="close", gripper="closed"),
            # Waypoint(name="lift", position=goal + [0, 0, 0.05], pace=0.5),
        ])  # the tool keeps the orientation of the home pose; frame=None leaves it free
"""
_JOINTS = """
    # Joints: {joints}.

    def success(self, states):  # states: (worlds, times, values); True where the task is done
        near = np.abs(self.joints(states) - self.goal()).max(axis=-1) < 0.05
        return held_for(near, round(0.5 * self.twin.control_hz))  # for half a second

    def expert(self, initial):
        return JointExpert(self.twin, initial, self.goal(), seconds=2.0)

    def goal(self):  # rad or m, one value per joint: here the home pose
        return self.twin.home()[0][self.twin.joint_qpos]
"""


def run_task_new(request: TaskNewRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Write the class, and check it by running its expert.

    Returns:
        The metrics, and exit code 1 if the expert never succeeds, else 0.

    Raises:
        InputError: If the file exists or is no Python file, or the twin has no robot.
        CheckFailedError: If the task violates a rule of the protocol.
    """
    output, twin = request.output, load_requested_twin(request.twin, request.output)
    name = require_new_class_file(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, format_task(twin, name, file=str(output), twin_reference=request.twin))
    reference = f"{output}:{name}"
    console.print(f"{output}: the class {name}, a task for {twin.name}.", soft_wrap=True)
    found = _check(open_task(reference, twin), twin, _NEW_EPISODES, 0, console)
    console.print(f"Next: edit it, then twinloop tasks check {reference}{_twin_flag(request.twin)}", soft_wrap=True)
    return {"schema": 1, "verb": "tasks", "kind": "new", "task": reference, **found}, _exit_code(found)


def run_task_check(request: TaskCheckRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Check a task; print the success rates of its expert with 95 % intervals.

    Returns:
        The metrics, and exit code 1 if an expert never succeeds in nominal worlds, else 0.

    Raises:
        InputError: If the number of episodes is not positive, or the task cannot be opened.
        CheckFailedError: If the task violates a rule of the protocol.
    """
    if request.episodes < 1:
        raise InputError(f"--episodes {request.episodes} runs nothing. Give 1 or more.")
    twin = load_requested_twin(request.twin, None)
    found = _check(open_task(request.task, twin), twin, request.episodes, request.seed, console)
    return {"schema": 1, "verb": "tasks", "kind": "check", "task": request.task, **found}, _exit_code(found)


def _twin_flag(reference: str | None) -> str:
    return "" if reference is None else f" --twin {reference}"


def format_task(twin: Twin, name: str, *, file: str, twin_reference: str | None) -> str:
    """Return the text of a task: to reach a place with the tool, or to move the joints if the robot has no tool.

    Args:
        twin: The twin.
        name: Name of the class.
        file: Path of the file.
        twin_reference: Argument of `load_twin` that gave the twin; None for the twin of the workspace.
    """
    head = {"name": name, "file": file, "twin": _twin_flag(twin_reference)}
    robot = twin.robot
    if robot.tcp is None or robot.control != "position":
        what = "Move the joints to the home pose"
        text = _HEAD + _JOINTS.format(joints=", ".join(robot.joints))
        return text.format(what=what, imports="JointExpert, OwnTask", seconds=4.0, noise=0.2, **head)
    scene = OwnTask(twin)
    anchor = next(iter(scene.objects), None)
    height = 2.0 * scene.objects[anchor].radius + 0.05 if anchor else 0.0
    body = _TOOL.format(
        bodies=", ".join(scene.bodies),
        above=f"0, 0, {height:.3g}" if anchor else ", ".join(f"{value:.3g}" for value in _offset(scene)),
        anchor=f"the centre of the {anchor}" if anchor else "the tool in the home pose",
        goal=f'goal = self.position(states, "{anchor}")[:, :1] + self.above  # above its first place'
        if anchor
        else "goal = self.arm.home_position + self.above",
        start=f'goal = self.start(initial, "{anchor}") + self.above'
        if anchor
        else "goal = self.arm.home_position + self.above",
    )
    what = f"Move the tool above the {anchor}" if anchor else "Move the tool to a place near the home pose"
    return (_HEAD + body).format(
        what=what, imports="OwnTask, Waypoint, WaypointExpert", seconds=5.0, noise=scene.joint_noise, **head
    )


def _offset(scene: OwnTask) -> tuple[float, float, float]:
    """Return an offset of the goal from the tool in the home pose: a tenth of its distance from the base, towards it.

    The goal is in reach of most arms, because it is nearer to the base.
    """
    chain = scene.arm.chain
    base = chain.pose(scene.arm.home[None, chain.qpos]).anchors[0, 0]
    x, y, z = 0.1 * (base - scene.arm.home_position)
    return float(x), float(y), float(z)


def _check(task: Task, twin: Twin, episodes: int, seed: int, console: Console) -> dict[str, Any]:
    trials, names = list[TaskTrials](), task.environment_names if has_tracked_values(task) else ()
    for row in check_task(task, twin, episodes=episodes, seed=seed):
        if not trials:
            follows = f"{task.name} on {twin.name} follows the protocol: {task.nstep} steps per episode."
            console.print(follows, soft_wrap=True)
            seen = ", ".join(names) or "no object, only joints and images"
            console.print(f"A policy may observe: {seen}.", soft_wrap=True)
        console.print(_describe(row), soft_wrap=True)
        trials.append(row)
    if not has_expert(task):
        console.print(
            "It has no expert (learned, stretch). Next: twinloop reinforce FILE --output POLICY", soft_wrap=True
        )
    actors = dict.fromkeys(row.actor for row in trials)
    return {
        "twin": twin.name,
        "environment": list(names),
        **{actor: {row.kind: _to_json(row) for row in trials if row.actor == actor} for actor in actors},
    }


def _to_json(row: TaskTrials) -> dict[str, Any]:
    rate = wilson(row.successes, row.episodes).to_json()
    return {"successes": row.successes, "episodes": row.episodes, "invalid": row.invalid, "rate": rate}


_WHO = {"expert": "The expert", "still": "A policy that does nothing", "random": "A policy with random commands"}


def _describe(row: TaskTrials) -> str:
    rate = wilson(row.successes, row.episodes)
    worlds = "nominal worlds" if row.kind == "nominal" else "worlds with the default randomization"
    invalid = f", {row.invalid} invalid" if row.invalid else ""
    return (
        f"{_WHO[row.actor]} succeeds in {row.successes} of {row.episodes} {worlds}{invalid} "
        f"(95 % interval {100 * rate.low:.0f} to {100 * rate.high:.0f} %)."
    )


def _exit_code(found: dict[str, Any]) -> int:
    return 0 if "expert" not in found or found["expert"]["nominal"]["successes"] else 1
