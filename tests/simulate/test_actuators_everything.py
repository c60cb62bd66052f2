"""All that drives, gears, commands, clocks and encoders can do, at once, within ranges that real robots show."""

from __future__ import annotations

import dataclasses
import fnmatch

import numpy as np
import pytest

from twinloop.core.records import Provenance
from twinloop.randomize import Plan, default_draws
from twinloop.randomize.distributions import Uniform
from twinloop.randomize.plan import Draw
from twinloop.rollout import replay_episode, run_batch
from twinloop.simulate import open_backend
from twinloop.tasks import open_task
from twinloop.twin import load_twin

RANGES = {
    "actuator/*/voltage": (6.4, 8.4),
    "supply/bus/resistance": (0.0, 0.3),
    "actuator/*/thermal_resistance": (4.0, 8.0),
    "actuator/*/temperature_rise": (0.0, 40.0),
    "joint/*/stiction": (1.0, 1.8),
    "joint/*/load_friction": (0.05, 0.2),
    "timing/command/jitter": (0.0, 0.012),
    "timing/command/drop_rate": (0.0, 0.05),
    "timing/control/jitter": (0.0, 0.006),
    "timing/control/period": (1.0, 1.1),
    "timing/readings/delay": (0.0, 0.01),
    "timing/readings/rate": (50.0, 500.0),
    "timing/readings/phase": (0.0, 1.0),
    "sensor/*/noise": (0.0003, 0.0009),
}


@pytest.fixture(scope="module")
def plan():
    twin = load_twin("so101_tabletop_geared")
    draws = [
        Draw(
            names=tuple(fnmatch.filter(twin.params, pattern)),
            distribution=Uniform(low=low, high=high),
            tied=pattern == "actuator/*/voltage",
        )
        for pattern, (low, high) in RANGES.items()
    ]
    return Plan(twin=twin, run_seed=0, draws=(*default_draws(twin), *draws))


def batch(plan, numbers, nstep=None):
    task = open_task("pick_and_place", plan.twin)
    task.nstep = nstep or task.nstep
    return run_batch(plan.twin, task, plan.draw(numbers), run_seed=0, episodes=numbers)


@pytest.mark.parametrize("backend", ["reference", "threads"])
def test_an_episode_is_made_again_from_its_provenance_on_either_backend(plan, backend):
    made = batch(plan, [3, 4], nstep=25)
    episode = made.episode(1)
    stored = dataclasses.replace(episode, provenance=Provenance.from_json(episode.provenance.to_json()))
    assert replay_episode(plan.twin, stored, backend=open_backend(backend)).identical


def test_an_episode_is_the_same_alone_and_in_company(plan):
    alone, together = batch(plan, [4], nstep=25).episode(0), batch(plan, [3, 4, 5], nstep=25).episode(1)
    np.testing.assert_array_equal(alone.states, together.states)
    np.testing.assert_array_equal(alone.observation, together.observation)


@pytest.mark.slow
def test_the_expert_bears_it(plan):
    made = batch(plan, list(range(128)))
    assert made.trajectories.valid.all()
    assert made.success.mean() > 0.9
