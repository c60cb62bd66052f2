"""Policies with a memory: what they remember, what they estimate, and a message where an episode was not started."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from support.policies import SMALL, batch, contract, observation, small, statistics
from twinloop.core.contract import STATE
from twinloop.core.errors import InputError
from twinloop.policies import LAST_COMMAND, PolicyLoop, Statistics, new_policy, open_policy

torch = pytest.importorskip("torch")

from twinloop.policies.statistics import PARAMETERS  # noqa: E402
from twinloop.release.running_policy import LocalDecider  # noqa: E402

_GAIN = {"estimates": ["actuator/j0/kp", "actuator/j1/kp"]}


def estimating(seed: int = 0, **changes):
    """A small policy that estimates two gains between 0.5 and 1."""
    known = statistics(contract())
    gains = Statistics.measure({PARAMETERS: np.random.default_rng(0).uniform(0.5, 1.0, (100, 2))}, source="planted")
    both = dataclasses.replace(known, columns={**known.columns, **gains.columns})
    return new_policy("adaptive", contract(), {**SMALL["adaptive"], **_GAIN, **changes}, both, seed=seed)


def test_the_memory_has_each_reading_with_the_command_that_was_sent_before_it():
    """Command for command: the loop against a history that is stacked by hand, for worlds that restart alone."""
    policy, rng = small("adaptive", n_action_steps=1), np.random.default_rng(0)
    loop, first = PolicyLoop(policy, 2, command=np.ones((2, 2))), np.ones(2)
    readings, held = [[], []], [[first], [first]]
    for step in range(10):
        if step == 4:
            loop.restart([1], command=[first])
            readings[1], held[1] = [], [first]
        seen = observation(policy, 2, seed=step, history=False)
        commands = loop.act(seen)
        for world in range(2):
            readings[world].append(seen[STATE][world])
            remembered = {
                STATE: (readings[world][:1] * 6 + readings[world])[-6:],
                LAST_COMMAND: (held[world][:1] * 6 + held[world])[-6:],
            }
            rows = {key: np.array(rows)[None] for key, rows in remembered.items()}
            rows["observation.environment_state"] = seen["observation.environment_state"][[world], None]
            np.testing.assert_array_equal(policy.predict(rows)[0, 0], commands[world])
            held[world].append(rng.normal(0, 20, 2))
        loop.set_sent_commands([rows[-1] for rows in held])


def test_estimates_are_the_planted_parameters_of_new_robots():
    """The readings are the commands times a gain, so that the history determines the gains."""
    policy, rng = estimating(n_obs_steps=4, estimate_dropout=0.0), np.random.default_rng(0)

    def rows(count):
        gain = rng.uniform(0.5, 1.0, (count, 2))
        held = np.full((count, 4, 2), 30.0)
        drawn = {**batch(policy, count), LAST_COMMAND: held, STATE: gain[:, None] * held, PARAMETERS: gain}
        return {key: torch.as_tensor(values).float() for key, values in drawn.items()}

    optimizer, known = torch.optim.Adam(policy.parameters(), lr=1e-2), rows(256)
    assert set(policy.loss(known)[2]) == {"l1", "estimates"}
    policy.train()
    for _ in range(60):
        optimizer.zero_grad()
        policy.loss(known)[0].backward()
        optimizer.step()
    new = rows(200)
    error = (policy.estimate(new) - new[PARAMETERS]).square().mean(dim=0)
    assert (error < 0.3 * new[PARAMETERS].var(dim=0)).all()


def test_errors_of_commands_do_not_change_the_estimates_and_without_truth_nothing_is_estimated():
    policy = estimating()
    rows = batch(policy, 5)
    policy.loss(rows)[0].backward()
    history = policy.network.encoder.history
    assert all(values.grad is None for values in history.estimates.parameters())
    assert (history.latent.weight.grad != 0).any()
    with pytest.raises(InputError, match="kind adaptive estimates no parameters"):
        small("adaptive").estimate(rows)


def test_a_saved_policy_estimates_the_same(tmp_path):
    policy, seen = estimating(), {key: torch.as_tensor(row) for key, row in observation(estimating(), 3).items()}
    policy.save(tmp_path)
    assert torch.equal(open_policy(tmp_path).estimate(seen), policy.estimate(seen))


def test_a_memory_without_a_started_episode_is_named():
    policy = small("adaptive")
    decider = LocalDecider(policy, name="arm policy")
    seen = [{key: values[0] for key, values in observation(policy, 1, seed, history=False).items()} for seed in (1, 2)]
    with pytest.raises(InputError, match=r"arm policy remembers 6 control steps, but no episode was started.*restart"):
        decider.act(seen[0])
    decider.restart(0)
    first = [decider.act(row) for row in seen]
    assert not np.array_equal(decider.act(seen[0]), first[0])  # it remembers
    decider.restart(1)
    np.testing.assert_array_equal([decider.act(row) for row in seen], first)
    with pytest.raises(InputError, match=r"\(n, 6, 2\)\. It remembers 6 control steps: run it with PolicyLoop"):
        policy.predict({LAST_COMMAND: np.zeros((1, 2)), **{key: row[None] for key, row in seen[0].items()}})


def test_a_robot_without_readings_cannot_be_remembered():
    with pytest.raises(InputError, match="kind adaptive remembers observation.state"):
        small("adaptive", contract(state=None))
