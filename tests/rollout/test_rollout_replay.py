"""An episode's record is enough to make its states again, bit for bit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from twinloop.core.errors import InputError
from twinloop.core.records import Provenance
from twinloop.randomize import Plan, default_draws
from twinloop.randomize.distributions import Uniform
from twinloop.randomize.plan import Draw
from twinloop.rollout import initial_from_state, replay, replay_episode, run_batch
from twinloop.simulate import open_backend
from twinloop.tasks import open_task
from twinloop.twin import load_twin


def batch(name, numbers, *extra):
    twin = load_twin(name)
    plan = Plan(twin=twin, run_seed=9, draws=(*default_draws(twin, skip=[n for d in extra for n in d.names]), *extra))
    task = open_task("pick_and_place", twin)
    task.nstep = 60  # long enough for contact
    return run_batch(twin, task, plan.draw(numbers, nstep=60), run_seed=9, episodes=numbers)


@pytest.fixture(scope="module", params=["so101_tabletop", "panda_tabletop"])
def made(request):
    return batch(request.param, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("backend", ["threads", "reference"])
def test_replay_is_bit_for_bit_on_either_backend(made, backend):
    episode = made.episode(3)
    stored = Provenance.from_json(episode.provenance.to_json())
    result = replay_episode(made.twin, dataclasses.replace(episode, provenance=stored), backend=open_backend(backend))
    assert result.identical
    assert result.difference == 0.0
    assert np.ptp(result.states, axis=0).max() > 0.1


def test_a_changed_command_or_parameter_shows(made):
    episode = made.episode(0)
    commands = episode.commands.copy()
    commands[30, 0] += 1e-9
    assert not replay_episode(made.twin, dataclasses.replace(episode, commands=commands)).identical
    name = next(n for n in episode.provenance.params if n.endswith("/kp"))
    params = {**episode.provenance.params, name: 1.001 * episode.provenance.params[name]}
    other = dataclasses.replace(episode, provenance=dataclasses.replace(episode.provenance, params=params))
    assert replay_episode(made.twin, other).difference > 0


def test_parameters_that_change_at_every_step_are_replayed_too():
    delay = Draw(names=("actuator/elbow_flex/delay",), distribution=Uniform(low=0.0, high=0.06), scope="step")
    made = batch("so101_tabletop", [2, 5], delay)
    assert replay_episode(made.twin, made.episode(1)).identical
    stripped = {k: v for k, v in made.episode(1).provenance.extra.items() if k != "step_params"}
    plain = dataclasses.replace(made.episode(1).provenance, extra=stripped)
    assert not replay_episode(made.twin, dataclasses.replace(made.episode(1), provenance=plain)).identical


def test_many_worlds_replay_at_once(made):
    start = initial_from_state(made.twin, made.trajectories.states[:, 0], made.initial.command)
    states = replay(made.twin, made.params, start, made.trajectories.commands)
    np.testing.assert_array_equal(states, made.trajectories.states)


def test_a_replay_from_the_middle_stays_close(made):
    begin, commands = 6, made.trajectories.commands
    held = commands[:, begin - 1]
    start = initial_from_state(made.twin, made.trajectories.states[:, begin], held)
    states = replay(made.twin, made.params, start, commands[:, begin:])
    arm = made.task.chain.qpos + 1  # after the time
    difference = np.abs(states[..., arm] - made.trajectories.states[:, begin:][..., arm])
    assert difference[:, 0].max() == 0.0
    assert difference.max() < 0.02


def test_what_cannot_be_replayed_says_why(made):
    episode = made.episode(0)
    with pytest.raises(InputError, match=r"Episode 0 was made with .* this is cube_toss .* Replay with the version"):
        replay_episode(load_twin("cube_toss"), episode)
    bare = dataclasses.replace(episode.provenance, extra={})
    with pytest.raises(InputError, match="Episode 0 holds no 'initial_command' in its provenance"):
        replay_episode(made.twin, dataclasses.replace(episode, provenance=bare))
    with pytest.raises(InputError, match="The state has 3 numbers, but states of"):
        initial_from_state(made.twin, np.zeros(3), made.initial.command[0])
