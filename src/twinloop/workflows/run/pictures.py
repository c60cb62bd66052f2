"""Render pictures of a twin for people: in its home pose, or with the expert of a task at work."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinloop.render import SceneStates, open_renderer
from twinloop.rollout.episodes import run_batch
from twinloop.tasks import Task
from twinloop.twin import Twin

_HEIGHT, _WIDTH = 240, 320  # pixels


def render_moment(twin: Twin, task: Task, share: float = 0.5) -> NDArray[np.uint8]:
    """Return an image ``(H, W, 3)`` of the expert at work in the nominal world, from the twin's first camera.

    Args:
        twin: the twin.
        task: the task.
        share: moment of the episode, from 0 (start) to 1 (end).
    """
    batch = run_batch(twin, task, twin.table(1), run_seed=0, episodes=[0])
    state = batch.trajectories
    step = round(share * task.nstep)
    initial = batch.initial
    states = SceneStates(qpos=state.qpos[0, step], mocap_pos=initial.mocap_pos[:1], mocap_quat=initial.mocap_quat[:1])
    return _render(twin, states)


def render_home(twin: Twin) -> NDArray[np.uint8]:
    """Return an image ``(H, W, 3)`` of a twin in its home pose, from its first camera."""
    return _render(twin, SceneStates(qpos=twin.home()[0]))


def _render(twin: Twin, states: SceneStates) -> NDArray[np.uint8]:
    camera = twin.spec.cameras[0] if twin.spec.cameras else twin.model.camera(0).name
    with open_renderer("auto", twin.model, height=_HEIGHT, width=_WIDTH, cameras=[camera]) as opened:
        return opened.render(states)[camera][0]
