"""A search over a plan: points are the plan's own draws, and a planted cause of failure is found and kept."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.special import ndtri

from twinloop.core.errors import InputError
from twinloop.core.seeds import uniforms
from twinloop.randomize import section_plan
from twinloop.rollout import ExpertActor, run_batch
from twinloop.scenario.search import PlanSearch
from twinloop.simulate import open_backend
from twinloop.tasks import open_task
from twinloop.tasks.hand import FITS
from twinloop.twin import load_twin

RANGES = {"object/cube/position/x": [0.19, 0.26], "object/cube/mass": [0.02, 0.1]}


@pytest.fixture(scope="module")
def plan():
    return section_plan({"params": RANGES}, load_twin("so101_tabletop"), run_seed=5, episodes=64, where="test")


@pytest.fixture(scope="module")
def task(plan):
    task = open_task("pick_and_place", plan.twin)
    task.nstep = 12  # the law under test is about draws; no search succeeds that soon
    return task


def search(plan, task):
    return PlanSearch(plan, task, ExpertActor(task=task), open_backend("threads", nthread=1))


def test_a_point_is_the_draw_of_its_quantiles(plan, task):
    there = search(plan, task)
    table = plan.draw([3])
    streams = ["draw/" + "+".join(draw.names) for draw in plan.draws]
    u = np.concatenate([uniforms(5, s, [3], size=d.size)[0] for s, d in zip(streams, plan.draws, strict=True)])
    values = there.values(ndtri(u))
    for name in RANGES:
        assert values[name] == pytest.approx(float(table[name][0]), rel=1e-9)


def test_a_world_that_is_run_again_is_the_same(plan, task):
    there = search(plan, task)
    seen = there(np.array([[0.0, 0.0], [1.0, -1.0]]))
    seen_again = there(np.array([[0.5, 0.5]]))
    assert len(seen) == 2
    assert seen_again.failed.all()
    assert (seen.score < 1).all()
    episode = there.episode(np.array([1.0, -1.0]))
    with pytest.raises(InputError, match="has not run this world"):
        there.episode(np.array([9.0, 9.0]))
    table = plan.twin.table(1, {k: np.array([v]) for k, v in there.values(np.array([1.0, -1.0])).items()})
    assert episode.number == 1
    assert episode.provenance.params["object/cube/mass"] == float(table["object/cube/mass"][0])
    direct = run_batch(
        plan.twin,
        task,
        dataclasses.replace(there._plan_at_points(np.array([[0.0, 0.0], [1.0, -1.0]]), 0)).draw([0, 1]),
        run_seed=5,
        episodes=[0, 1],
        backend=open_backend("threads", nthread=1),
    )
    np.testing.assert_array_equal(direct.episode(1).states, episode.states)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"params": {"object/cube/size": [0.9, 1.0]}, "constraints": [FITS]}, "does not support constraints"),
        ({}, "No parameter is drawn per episode"),
    ],
)
def test_what_cannot_be_searched_is_told(section, said, task):
    made = section_plan(section, task.twin, run_seed=5, episodes=8, where="test", named=lambda: task.constraints)
    with pytest.raises(InputError, match=said):
        search(made, task)
