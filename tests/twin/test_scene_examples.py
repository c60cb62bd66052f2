"""The example with clutter, from its YAML to episodes that replay bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from twinloop.generate import generate_states, read_config, replay_episode
from twinloop.generate.config import load_plan
from twinloop.rollout import replay_episode as replay_record
from twinloop.rollout import run_batch
from twinloop.simulate import open_backend
from twinloop.tasks import open_task

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def plan():
    return load_plan(read_config(EXAMPLES / "clutter.yaml"))


def test_cluttered_and_pushed_episodes_replay_from_their_provenance(plan):
    task, numbers = open_task("pick_and_place", plan.twin), [0, 3]
    task.nstep = 30
    batch = run_batch(plan.twin, task, plan.draw(numbers, nstep=30), run_seed=plan.run_seed, episodes=numbers)
    for world, episode in enumerate(batch.episodes()):
        provenance = episode.provenance
        things = provenance.extra["scene/things"]
        assert len(things) == int(plan.twin.scene.occupied_mask(batch.params)[world].sum())
        assert (provenance.extra["scene/trials"] >= 1) == bool(things)
        assert replay_record(plan.twin, episode, backend=open_backend("reference")).identical
    alone = run_batch(plan.twin, task, plan.draw([3], nstep=30), run_seed=plan.run_seed, episodes=[3])
    np.testing.assert_array_equal(alone.trajectories.states[0], batch.trajectories.states[1])


@pytest.mark.slow
def test_the_example_generates_a_dataset_with_its_acceptance_rate(tmp_path):
    config = read_config(EXAMPLES / "clutter.yaml", episodes=32)
    result = generate_states(config, tmp_path / "data")
    made = result["attempted"] - result["invalid"]
    assert result["success"] >= 0.9 * made
    assert result["clutter"]["placed"] <= result["clutter"]["drawn"]
    assert 0 < result["clutter"]["acceptance"] <= 1
    assert replay_episode(tmp_path / "data", 2).equal
