"""Render pictures of a twin for people: in its home pose, or with the expert of a task at work."""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.checks.task import StillActor
from twinloop.render import SceneStates, open_renderer
from twinloop.rollout.actor import ExpertActor
from twinloop.rollout.episodes import run_batch
from twinloop.tasks import Task
from twinloop.tasks.protocol import has_expert
from twinloop.twin import Twin
from twinloop.twin.compiling import compile_model

Array = NDArray[np.float64]

_HEIGHT, _WIDTH = 240, 320  # pixels
_CAMERA = "twinloop_overview"
# The camera looks down from the side, where people see tool and object beside each other: our choice.
_FOVY, _SIDE, _DOWN = np.radians([40.0, 55.0, 28.0])
_AROUND = 0.45  # space around the objects and tools, as a share of the distance from the robot's base to its tool


def render_moment(twin: Twin, task: Task, share: float = 0.5) -> NDArray[np.uint8]:
    """Return an image ``(H, W, 3)`` of a task in the nominal world, seen from the side, with the expert at work if any.

    Args:
        twin: the twin.
        task: the task.
        share: moment of the episode, from 0 (start) to 1 (end).
    """
    actor = ExpertActor(task=task) if has_expert(task) else StillActor()
    batch = run_batch(twin, task, twin.table(1), run_seed=0, episodes=[0], actor=actor)
    state = batch.trajectories
    step = round(share * task.nstep)
    initial = batch.initial
    states = SceneStates(qpos=state.qpos[0, step], mocap_pos=initial.mocap_pos[:1], mocap_quat=initial.mocap_quat[:1])
    return _render(twin, states)


def render_home(twin: Twin) -> NDArray[np.uint8]:
    """Return an image ``(H, W, 3)`` of a twin in its home pose, seen from the side."""
    return _render(twin, SceneStates(qpos=twin.home()[0]))


def _render(twin: Twin, states: SceneStates) -> NDArray[np.uint8]:
    model = _add_camera(twin, states)
    with open_renderer("auto", model, height=_HEIGHT, width=_WIDTH, cameras=[_CAMERA]) as opened:
        return opened.render(states)[_CAMERA][0]


def _add_camera(twin: Twin, states: SceneStates) -> mujoco.MjModel:
    """Return the twin's model with another camera, which has the objects and the tools of a state in its image."""
    model, data = twin.model, mujoco.MjData(twin.model)
    data.qpos[:] = np.reshape(states.qpos, (-1, model.nq))[0]
    if model.nmocap and states.mocap_pos is not None and states.mocap_quat is not None:
        data.mocap_pos[:], data.mocap_quat[:] = states.mocap_pos[0], states.mocap_quat[0]
    mujoco.mj_forward(model, data)
    points, space = _find_focus(twin, data)
    middle = (points.min(axis=0) + points.max(axis=0)) / 2.0
    several = (
        twin.spec.robot is not None and len(twin.spec.robot.hands) > 0
    )  # from the side, one arm would hide another
    out = _find_direction(model, data, middle, 0.0 if several else _SIDE)
    right = np.cross([0.0, 0.0, 1.0], out) / np.cos(_DOWN)
    up = np.cross(out, right)
    tangents = np.tan(_FOVY / 2.0) * np.array([_WIDTH / _HEIGHT, 1.0])
    sides = np.abs((points - middle) @ np.stack([right, up], axis=1)) + space
    distance = ((points - middle) @ out + (sides / tangents).max(axis=1)).max()
    spec = twin.mjspec.copy()
    spec.worldbody.add_camera(
        name=_CAMERA, pos=middle + distance * out, xyaxes=[*right, *up], fovy=float(np.degrees(_FOVY))
    )
    return compile_model(spec)


def _find_focus(twin: Twin, data: mujoco.MjData) -> tuple[Array, float]:
    """Return points ``(n, 3)`` of the objects and tools, or else of all bodies, and the space around them in m."""
    model, robot = twin.model, twin.spec.robot
    joints = [model.joint(name).id for name in robot.joints] if robot else []
    roots = set(model.body_rootid[model.jnt_bodyid[joints]].tolist())
    sites = [hand.tcp for hand in (robot.find_hand(), *robot.hands.values()) if hand.tcp] if robot else []
    movable = model.geom_bodyid > 0
    things = data.geom_xpos[movable & ~np.isin(model.body_rootid[model.geom_bodyid], sorted(roots))]
    if not sites or not len(things):
        # A forearm or another base that never moves is left out.
        free = (model.body_weldid[model.geom_bodyid] > 0) | (model.body_mocapid[model.geom_bodyid] >= 0)
        movable = free if free.any() else movable
        points = data.geom_xpos[movable] if movable.any() else data.geom_xpos
        return points, 0.3 * float(np.ptp(points, axis=0).max()) + float(model.geom_rbound[movable].max(initial=0.0))
    tools = np.array([data.site(name).xpos for name in sites])
    bases = data.xpos[sorted(roots)]
    reach = max(float(np.linalg.norm(bases - tool, axis=1).min()) for tool in tools)
    return np.concatenate([tools, things]), _AROUND * reach


def _find_direction(model: mujoco.MjModel, data: mujoco.MjData, middle: Array, side: float) -> Array:
    """Return the unit vector from a point to the camera, ``side`` rad to the side of the model's first fixed camera."""
    fixed = np.flatnonzero(model.cam_bodyid == 0)
    ahead = data.cam_xpos[fixed[0]] - middle if len(fixed) else np.array([1.0, 0.0, 0.0])
    bearing = np.arctan2(ahead[1], ahead[0]) + side
    return np.array([np.cos(bearing) * np.cos(_DOWN), np.sin(bearing) * np.cos(_DOWN), np.sin(_DOWN)])
