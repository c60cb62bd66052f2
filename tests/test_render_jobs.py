"""Rendering with several processes: the same pictures in the same order as with one, and errors that name the job."""

from __future__ import annotations

import os
import time

import mujoco
import numpy as np
import pytest

from twinloop.core.errors import InputError, TwinloopError
from twinloop.render import (
    Frames,
    RenderJob,
    SceneStates,
    model_to_bytes,
    open_renderer,
    probe_renderer,
    render_episodes,
)

SCENE = """
<mujoco><worldbody><light pos="0 0 3"/>
<camera name="top" pos="0 0 1.5"/><camera name="side" pos="0 -1 0" euler="90 0 0"/>
<body><joint name="turn" axis="0 0 1"/><geom type="box" size="0.3 0.1 0.05" rgba="0.9 0.4 0.1 1"/></body>
</worldbody></mujoco>
"""

pytestmark = pytest.mark.skipif(
    not probe_renderer("gl").available, reason="renderer gl is not available; it renders these jobs"
)


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(SCENE)


def jobs_of(model: mujoco.MjModel, count: int = 5) -> list[RenderJob]:
    data = model_to_bytes(model)
    return [
        RenderJob(
            key=key,
            model=data,
            states=SceneStates(qpos=np.linspace(0, 0.1 * (key + 1), 3)[:, None]),
            cameras=("top", "side") if key % 2 else ("top",),
            height=32,
            width=48,
            fields={"light_diffuse": np.full((1, 3), 0.2 * (key + 1))},
        )
        for key in range(count)
    ]


def mean_after_a_while(job: RenderJob, frames: Frames) -> tuple[float, int]:
    time.sleep(0.3 if job.key == 0 else 0.0)  # the first is the last to finish
    return float(frames["top"].mean()), os.getpid()


def die(job: RenderJob, frames: Frames) -> int:
    if job.key == 1:
        os._exit(1)
    return 0


def test_the_binary_form_compiles_to_the_same_pictures(model: mujoco.MjModel) -> None:
    (job,) = jobs_of(model, 1)
    ((_, frames),) = render_episodes([job], renderer="gl")
    with open_renderer("gl", model, height=32, width=48, cameras=("top",)) as opened:
        np.testing.assert_array_equal(opened.render(job.states, job.fields)["top"], frames["top"])


def test_two_workers_give_what_one_gives_in_order_of_the_jobs(model: mujoco.MjModel) -> None:
    jobs = jobs_of(model)
    alone = list(render_episodes(jobs, workers=1, renderer="gl"))
    both = list(render_episodes(jobs, workers=2, renderer="gl"))
    assert [job.key for job, _ in both] == [job.key for job, _ in alone] == [0, 1, 2, 3, 4]
    for (_, one), (_, two) in zip(alone, both, strict=True):
        assert list(one) == list(two)
        for camera in one:
            np.testing.assert_array_equal(one[camera], two[camera])


def test_what_is_finished_in_the_workers_still_comes_in_order(model: mujoco.MjModel) -> None:
    results = list(render_episodes(jobs_of(model), workers=2, renderer="gl", finish=mean_after_a_while))
    means = [mean for _, (mean, _) in results]
    assert means == sorted(means), "each job is lit more than the one before"
    processes = {process for _, (_, process) in results}
    assert len(processes) == 2
    assert os.getpid() not in processes


def test_jobs_are_read_only_as_far_ahead_as_needed(model: mujoco.MjModel) -> None:
    read = []
    stream = (read.append(job.key) or job for job in jobs_of(model, 8))
    results = render_episodes(stream, workers=2, renderer="gl", finish=mean_after_a_while)
    next(results)
    assert len(read) <= 3
    results.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_that_does_not_fit_is_named(model: mujoco.MjModel, workers: int) -> None:
    good, bad, _ = jobs_of(model, 3)
    bad = RenderJob(key=731, model=bad.model, states=SceneStates(qpos=np.zeros((1, 4))), cameras=("top",))
    results = render_episodes([good, bad], workers=workers, renderer="gl")
    assert next(results)[0].key == 0
    with pytest.raises(InputError, match="Episode 731: The states have 4 positions per frame, the model has nq = 1"):
        next(results)


def test_a_worker_that_dies_is_named_and_what_came_before_is_whole(model: mujoco.MjModel) -> None:
    results = render_episodes(jobs_of(model, 3), workers=2, renderer="gl", finish=die)
    with pytest.raises(TwinloopError, match=r"A renderer process ended while episode [01] was rendered"):
        list(results)
