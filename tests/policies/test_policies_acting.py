"""A policy in the loop: against plain loops and formulas, with worlds that reset and non-finite numbers."""

from __future__ import annotations

import numpy as np
import pytest

from support.policies import contract
from twinloop.core.contract import ENVIRONMENT, STATE
from twinloop.core.errors import InputError
from twinloop.core.joint_limits import compute_window
from twinloop.policies import LAST_COMMAND, PolicyLoop, read_settings
from twinloop.policies.factory import new_policy
from twinloop.policies.statistics import Statistics


class Recorder:
    """A policy whose action encodes its input: a chunk holds its input's mark, its noise and the step ahead."""

    def __init__(self, *, noise_size=0, size=2, **settings) -> None:
        self.contract = contract(joints=size, environment=1)
        given = {"chunk_size": 5, "n_action_steps": 3, "n_obs_steps": 2, **settings}
        self.settings, self.noise_size, self.asked = read_settings("mlp", given), noise_size, []
        last = (LAST_COMMAND,) if self.settings.last_command else ()
        self.observation_keys = (STATE, ENVIRONMENT, *last)

    def predict_with_features(self, seen, noise=None, domain=None):
        self.asked.append({**{key: rows.copy() for key, rows in seen.items()}, "noise": noise})
        n, size = len(seen[STATE]), seen[STATE].shape[2]
        chunk = np.empty((n, self.settings.chunk_size, size))
        chunk[...] = 100 * seen[STATE][:, -1, :1, None] + np.arange(self.settings.chunk_size)[:, None]
        chunk += 0.01 * np.arange(size) + (0 if noise is None else noise[:, :1, None])
        return chunk, seen[STATE][:, -1]


def _seen(marks):
    marks = np.asarray(marks, dtype=float)
    return {STATE: np.stack([marks, marks], axis=1), ENVIRONMENT: marks[:, None] / 10}


def _loop(policy, marks, starts):
    """Commands of one world, step by step: a plain receding horizon."""
    commands, history, queue = [], [], []
    for step, mark in enumerate(marks):
        if step in starts:
            history, queue = [], []
        history = [*(history or [mark] * policy.settings.n_obs_steps)[1:], mark]
        if not queue:
            seen = {STATE: np.array([[[m, m] for m in history]]), ENVIRONMENT: np.zeros((1, 2, 1))}
            queue = list(policy.predict_with_features(seen)[0][0][: policy.settings.n_action_steps])
        commands.append(queue.pop(0))
    return np.array(commands)


@pytest.mark.parametrize("n_action_steps", [1, 3, 5])
def test_a_receding_horizon_is_a_queue_in_every_world(n_action_steps):
    policy = Recorder(n_action_steps=n_action_steps)
    marks = np.random.default_rng(0).integers(0, 50, (23, 4)).astype(float)
    starts = {0: [0], 1: [0, 4, 5], 2: [0, 11], 3: [0]}
    acting, got = PolicyLoop(policy, 4), []
    for step, row in enumerate(marks):
        acting.restart([world for world, when in starts.items() if step in when])
        got.append(acting.act(_seen(row)))
    for world, when in starts.items():
        np.testing.assert_array_equal(np.array(got)[:, world], _loop(policy, marks[:, world], when))


def test_a_history_begins_with_the_first_observation_and_forgets_the_oldest():
    policy = Recorder(n_action_steps=1, n_obs_steps=3)
    acting = PolicyLoop(policy, 2)
    for marks in ([1, 5], [2, 6], [3, 7], [4, 8]):
        acting.act(_seen(marks))
    asked = [row[STATE][:, :, 0].tolist() for row in policy.asked]
    assert asked == [
        [[1, 1, 1], [5, 5, 5]],
        [[1, 1, 2], [5, 5, 6]],
        [[1, 2, 3], [5, 6, 7]],
        [[2, 3, 4], [6, 7, 8]],
    ]
    np.testing.assert_array_equal(policy.asked[-1][ENVIRONMENT][0, :, 0], [0.2, 0.3, 0.4])


def test_the_latest_and_the_previous_chunk_say_when_they_were_made():
    acting = PolicyLoop(Recorder(), 2)
    assert np.isnan(acting.chunk).all()
    for step in range(7):
        acting.act(_seen([step, 10 + step]))
        assert acting.predicted.all() == (step % 3 == 0)
    assert acting.chunk_step.tolist() == [6, 6]
    assert acting.previous_step.tolist() == [3, 3]
    np.testing.assert_array_equal(acting.chunk[:, 0, 0], [600, 1600])
    np.testing.assert_array_equal(acting.previous_chunk[:, 2, 0], [302, 1302])
    np.testing.assert_array_equal(acting.features, [[6, 6], [16, 16]])
    acting.restart([1])
    assert acting.chunk_step.tolist() == [6, -1]
    assert np.isnan(acting.previous_chunk[1]).all()
    assert np.isnan(acting.features[1]).all()


@pytest.mark.parametrize("decay", [0.0, 0.01, 0.7])
def test_an_ensemble_is_the_mean_of_all_that_was_said_of_a_step(decay):
    policy = Recorder(ensemble=decay)
    rng = np.random.default_rng(1)
    marks = rng.integers(0, 9, (13, 2)).astype(float)
    acting = PolicyLoop(policy, 2)
    restarts = {0: 0, 1: 6}
    for step, row in enumerate(marks):
        if step == 6:
            acting.restart([1])
        got = acting.act(_seen(row))
        for world in range(2):
            begun = restarts[world] if step >= restarts[world] else 0
            made = range(max(begun, step - 4), step + 1)  # the oldest chunk that reaches this step comes first
            said = np.array([100 * marks[when, world] + (step - when) + 0.01 * np.arange(2) for when in made])
            weights = np.exp(-decay * np.arange(len(said)))
            np.testing.assert_allclose(got[world], weights @ said / weights.sum(), rtol=1e-12)


def test_noise_is_a_function_of_run_episode_attempt_and_step():
    def noise(numbers, run_seed=4, attempt=0):
        policy = Recorder(noise_size=3, n_action_steps=1)
        acting = PolicyLoop(policy, len(numbers), run_seed, numbers, attempt=attempt)
        for _ in range(3):
            acting.act(_seen(np.zeros(len(numbers))))
        return np.stack([row["noise"] for row in policy.asked], axis=1)

    together = noise([5, 9, 731])
    np.testing.assert_array_equal(noise([731]), together[2:])
    assert not np.array_equal(noise([731], run_seed=5), together[2:])
    assert not np.array_equal(noise([731], attempt=1), together[2:])
    assert len(np.unique(together)) == together.size
    many = noise(np.arange(3000))
    assert abs(many.mean()) < 0.03
    assert many.std() == pytest.approx(1, abs=0.03)


def test_a_world_that_begins_anew_may_be_another_episode():
    policy = Recorder(noise_size=1, n_action_steps=1)
    acting, alone = PolicyLoop(policy, 2, 4, [5, 9]), PolicyLoop(Recorder(noise_size=1), 1, 4, [77])
    acting.act(_seen([0, 0]))
    acting.restart([1], [77])
    assert acting.act(_seen([0, 3]))[1] == pytest.approx(alone.act(_seen([3]))[0])


def test_the_last_command_is_what_the_robot_was_told():
    policy = Recorder(last_command=True, n_action_steps=1)
    acting = PolicyLoop(policy, 2, command=[[7.0, 7.0], [np.nan, np.nan]])
    first = acting.act(_seen([1, 2]))
    np.testing.assert_array_equal(policy.asked[0][LAST_COMMAND], [[7, 7], [2, 2]])  # the reading where none is known
    acting.act(_seen([3, 4]))
    np.testing.assert_array_equal(policy.asked[1][LAST_COMMAND], first)
    acting.set_sent_commands([[0.5, 0.5], [0.25, 0.25]])
    acting.act(_seen([3, 4]))
    np.testing.assert_array_equal(policy.asked[2][LAST_COMMAND], [[0.5, 0.5], [0.25, 0.25]])


def test_what_is_not_finite_is_refused_with_the_world_named():
    acting = PolicyLoop(Recorder(), 3, episodes=[20, 30, 40])
    acting.act(_seen([1, 1, 1]))
    with pytest.raises(InputError, match=r"World 1 \(episode 30\) in step 1: observation.state is not finite"):
        acting.act(_seen([1, np.nan, 1]))
    policy = Recorder()
    answer = policy.predict_with_features
    policy.predict_with_features = lambda *given: (
        answer(*given)[0] * np.array([1, 1, np.inf])[:, None, None],
        given[0][STATE][:, -1],
    )
    with pytest.raises(InputError, match=r"World 2 \(episode 40\) in step 0: the policy's commands are not finite"):
        PolicyLoop(policy, 3, episodes=[20, 30, 40]).act(_seen([1, 1, 1]))


def test_a_world_that_is_refused_holds_and_its_neighbours_go_on():
    policy = Recorder(n_action_steps=2)
    acting = PolicyLoop(policy, 2, episodes=[20, 30], on_refusal="hold")
    alone = PolicyLoop(Recorder(n_action_steps=2), 1)
    for step, mark in enumerate([1, 2, np.nan, np.inf, 5, 6]):
        got = acting.act(_seen([step, mark]))
        np.testing.assert_array_equal(got[0], alone.act(_seen([step]))[0])
        if step in (1, 2, 3):
            np.testing.assert_array_equal(got[1], [101, 101.01])  # the second command of the first chunk, held
    assert [(refusal.episode, refusal.step) for refusal in acting.refusals] == [(30, 2), (30, 3)]
    assert got[1].tolist() == [501, 501.01]  # predicted again when it could be seen again


def test_a_world_that_never_was_seen_has_nothing_to_hold():
    acting = PolicyLoop(Recorder(), 2, on_refusal="hold")
    with pytest.raises(InputError, match=r"World 1 \(episode 1\) in step 0 has no command to hold"):
        acting.act(_seen([1, np.nan]))
    told = PolicyLoop(Recorder(), 2, on_refusal="hold", command=np.zeros((2, 2)))
    np.testing.assert_array_equal(told.act(_seen([1, np.nan]))[1], [0, 0])


def test_observations_that_do_not_fit_are_named():
    acting = PolicyLoop(Recorder(), 2)
    with pytest.raises(
        InputError, match="needs observation.environment_state, but the observation has observation.state"
    ):
        acting.act({STATE: np.zeros((2, 2))})
    with pytest.raises(InputError, match="observation.state has 3 rows for 2 worlds"):
        acting.act(_seen([1, 2, 3]))
    with pytest.raises(InputError, match="3 episode numbers for 2 worlds"):
        PolicyLoop(Recorder(), 2, episodes=[1, 2, 3])


LIMITS = {"low": [-0.5, -1.0], "high": [0.5, 1.0], "speed": [2.0, 3.0], "acceleration": [30.0, 20.0]}


def test_commands_keep_the_limits_of_the_settings_also_after_a_command_that_was_changed_on_the_way():
    policy = Recorder(n_action_steps=1, command_limits=LIMITS)
    hz, units = policy.contract.control_hz, policy.contract.action
    limits, random = policy.settings.command_limits.to_joints(hz), np.random.default_rng(1)
    acting = PolicyLoop(policy, 3, command=units.from_si(np.zeros((3, 2))))
    before = held = np.zeros((3, 2))
    for step in range(200):
        sent = units.to_si(acting.act(_seen(random.normal(0, 2, 3))))
        allowed = compute_window(held, (held - before) * hz, limits)
        assert (sent >= allowed.low - 1e-9).all()
        assert (sent <= allowed.high + 1e-9).all()
        if step == 100:  # a safety envelope sends another command
            sent = held + 0.5 * (sent - held)
            acting.set_sent_commands(units.from_si(sent))
        before, held = held, sent
    assert np.abs(held).max() > 0.1


def test_a_command_within_the_limits_is_sent_as_it_is():
    wide = {**LIMITS, "speed": [1e4, 1e4], "acceleration": [1e7, 1e7], "low": [-1e3] * 2, "high": [1e3] * 2}
    free, limited = (
        PolicyLoop(Recorder(n_action_steps=1, **given), 2, command=np.zeros((2, 2)))
        for given in ({}, {"command_limits": wide})
    )
    for marks in ([0.1, 0.2], [-0.3, 0.1]):
        np.testing.assert_allclose(limited.act(_seen(marks)), free.act(_seen(marks)), rtol=1e-12)


def test_limits_of_another_number_of_joints_are_refused():
    with pytest.raises(InputError, match="different numbers of joints"):
        read_settings("mlp", {"command_limits": {**LIMITS, "low": [0.0]}})
    pytest.importorskip("torch")
    with pytest.raises(InputError, match=r"command_limits are given for 2 joints, but action has 3"):
        new_policy("mlp", contract(joints=3), {"command_limits": LIMITS}, Statistics(columns={}, source=""))
