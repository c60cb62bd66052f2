"""A policy drives worlds: its contract holds, and an episode is the same alone and in any company."""

from __future__ import annotations

import numpy as np
import pytest

from support.policies import SMALL, statistics
from support.swing import swing_twin
from twinloop.core.contract import ENVIRONMENT, STATE, Contract
from twinloop.core.errors import InputError
from twinloop.core.seeds import uniforms
from twinloop.core.units import unit_map_from_ranges
from twinloop.policies import PolicyLoop, new_policy, open_policy, read_settings
from twinloop.rollout import PolicyActor, TrackerNoise, offered_contract, run_batch
from twinloop.simulate import InitialState, open_backend

NSTEP = 12


class Point:
    """A servo should point where a tracker sees a mark."""

    name, version, success_version, expert_version = "point", "1", "1", "1"
    instruction, nstep = "Point at the mark.", NSTEP
    environment_names = ("mark.angle", "mark.far")

    def __init__(self, twin) -> None:
        self.twin = twin

    def reset(self, params, *, run_seed, episodes, attempt=0):
        home = InitialState.home(self.twin, len(episodes))
        qpos = uniforms(run_seed, "point", episodes, attempt=attempt) - 0.5
        return InitialState(
            qpos=qpos, qvel=home.qvel, mocap_pos=home.mocap_pos, mocap_quat=home.mocap_quat, command=qpos
        )

    def success(self, states):
        return np.abs(states[..., 1] - 0.2) < 0.1

    def environment(self, states):
        return np.stack([np.full(states.shape[:-1], 0.2), states[..., 0]], axis=-1)

    def expert(self, initial):
        raise NotImplementedError


class Adds:
    """A policy that commands its newest reading and 1, 2, … degrees more; not a number where it reads a NaN mark."""

    hash, noise_size = "ab" * 32, 0

    def __init__(self, contract, **settings) -> None:
        self.contract = contract
        self.settings = read_settings("mlp", {"chunk_size": 3, "n_action_steps": 3, **settings})
        self.observation_keys = (STATE, *((ENVIRONMENT,) if contract.environment else ()))
        self.seen, self.bad = [], None

    def predict_with_features(self, seen, noise=None, domain=None):
        self.seen.append(seen)
        chunk = seen[STATE][:, -1:] + np.arange(1, 4)[:, None]
        if self.bad is not None:
            chunk[np.abs(seen[STATE][:, -1, 0] - self.bad) < 1e-9] = np.nan
        return chunk, seen[STATE][:, -1]


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return Point(swing_twin(tmp_path_factory.mktemp("swing")))


def run(task, actor, episodes, *, run_seed=3):
    table = task.twin.table(len(episodes), {"actuator/swing/kp": 6.0 + np.asarray(episodes) % 5})
    backend = open_backend("threads", nthread=1)
    return run_batch(task.twin, task, table, run_seed=run_seed, episodes=episodes, actor=actor, backend=backend)


@pytest.mark.parametrize("kind", SMALL)
def test_an_episode_is_the_same_alone_and_in_any_company(kind, task, tmp_path):
    pytest.importorskip("torch")
    contract = offered_contract(task.twin, task)
    made = new_policy(kind, contract, {**SMALL[kind], "n_obs_steps": 2}, statistics(contract))
    policy = open_policy(made.save(tmp_path / "policy"))

    def states(episodes, **how):
        return run(task, PolicyActor(policy=policy, task=task, twin=task.twin), episodes, **how).trajectories.states

    many = states(list(range(40)))
    np.testing.assert_array_equal(states([7]), many[[7]])
    np.testing.assert_array_equal(states([33, 7, 12]), many[[33, 7, 12]])
    assert not np.array_equal(states([7], run_seed=4), many[[7]])


def test_commands_are_readings_and_more_in_the_datasets_units(task):
    policy = Adds(offered_contract(task.twin, task))
    actor = PolicyActor(policy=policy, task=task, twin=task.twin, tracker=TrackerNoise(noise=0.01))
    result = run(task, actor, [0, 1, 2])
    read = result.observation[:, ::3]
    expected = (read[:, :, None] + np.arange(1, 4)[:, None]).reshape(3, NSTEP, 1)
    np.testing.assert_allclose(result.action, expected, rtol=1e-12)
    np.testing.assert_array_equal(policy.seen[2][STATE][:, 0], result.observation[:, 6])
    assert actor.name == f"policy {'ab' * 32}, Tracker(noise=0.01, offset=(0.0, 0.0, 0.0))"
    assert result.episode(0).provenance.actor == actor.name


def test_a_policy_gets_the_columns_it_asks_for(task):
    offered = offered_contract(task.twin, task)
    policy = Adds(Contract(**{**vars(offered), "environment": ("mark.far",)}))
    run(task, PolicyActor(policy=policy, task=task, twin=task.twin), [0])
    far = [seen[ENVIRONMENT][0, -1].tolist() for seen in policy.seen]
    np.testing.assert_allclose(far, [[3 * number / 30] for number in range(4)], atol=1e-12)
    without = Adds(Contract(**{**vars(offered), "environment": ()}))
    run(task, PolicyActor(policy=without, task=task, twin=task.twin), [0])
    assert ENVIRONMENT not in without.seen[0]


def test_a_contract_that_does_not_fit_is_refused_with_every_difference(task):
    offered = offered_contract(task.twin, task)
    other = Contract(
        robot_type="so101",
        control_hz=50,
        action=unit_map_from_ranges(["swing"], [[-1, 1]], ["rad"], source="test"),
        state=offered.state,
        environment=("mark.angle", "cube.x"),
        cameras={"front": (48, 64)},
        task="reach",
    )
    with pytest.raises(InputError) as caught:
        PolicyActor(policy=Adds(other), task=task, twin=task.twin)
    said = str(caught.value)
    assert "The policy abababababab cannot act on swing at point:" in said
    for part in ("is for so101, but swing is given", "needs 50 Hz", "uses rad, but deg is given", "cube.x", "front"):
        assert part in said
    assert said.count("\n  ") == 6


def test_a_world_whose_policy_fails_holds_and_its_neighbours_do_not_notice(task):
    contract = offered_contract(task.twin, task)
    clean = run(task, PolicyActor(policy=Adds(contract), task=task, twin=task.twin), [0, 1, 2])
    policy = Adds(contract)
    policy.bad = clean.observation[1, 3, 0]
    actor = PolicyActor(policy=policy, task=task, twin=task.twin)
    result = run(task, actor, [0, 1, 2])
    np.testing.assert_array_equal(result.trajectories.states[[0, 2]], clean.trajectories.states[[0, 2]])
    assert actor.latest is not None
    assert [(refusal.world, refusal.step) for refusal in actor.latest.refusals] == [(1, 3)]
    assert result.action[1, 3, 0] == pytest.approx(result.action[1, 2, 0])
    assert result.action[1, 4, 0] == pytest.approx(result.observation[1, 4, 0] + 1)


def test_who_watches_sees_every_step_and_changes_nothing(task):
    policy, steps = Adds(offered_contract(task.twin, task)), []

    def watch(observation, acting: PolicyLoop, commands):
        steps.append((observation[STATE].copy(), acting.chunk_step.copy(), commands.copy()))

    result = run(task, PolicyActor(policy=policy, task=task, twin=task.twin, step_callback=watch), [0, 1])
    np.testing.assert_array_equal(np.stack([row[0] for row in steps], axis=1), result.observation)
    np.testing.assert_allclose(np.stack([row[2] for row in steps], axis=1), result.action, rtol=1e-12)
    assert [row[1][0] for row in steps] == [step - step % 3 for step in range(NSTEP)]


class Pictures:
    """Images that show the number of their step; it notes who asked for them."""

    def __init__(self):
        self.asked, self.watched = [], 0

    def begin_worlds(self, worlds, nstep):
        self.most = nstep

    def watch(self, states):
        self.watched += 1

    def take(self, rows, step):
        self.asked.append((step, rows.tolist()))
        return {"front": np.full((len(rows), 2, 3, 3), step, dtype=np.uint8)}


@pytest.mark.parametrize(("frames", "asked"), [(1, [0, 3, 6, 9]), (2, [0, 2, 3, 5, 6, 8, 9, 11])])
def test_images_are_taken_only_when_the_policy_uses_them(task, frames, asked):
    contract = Contract(**{**vars(offered_contract(task.twin, task)), "cameras": {"front": (2, 3)}})

    def act(**more):
        policy, pictures = Adds(contract, n_obs_steps=frames), Pictures()
        policy.observation_keys = (*policy.observation_keys, "observation.images.front")
        result = run(task, PolicyActor(policy=policy, task=task, twin=task.twin, images=pictures, **more), [0, 1])
        return result, policy, pictures

    result, policy, pictures = act()
    assert pictures.asked == [(step, [0, 1]) for step in asked]
    assert (pictures.watched, pictures.most) == (NSTEP, NSTEP)
    shown = [seen["observation.images.front"][0, :, 0, 0, 0].tolist() for seen in policy.seen]
    assert shown == [[max(step - back, 0) for back in range(frames)][::-1] for step in range(0, NSTEP, 3)]
    watched, _, every = act(step_callback=lambda *_: None)
    assert len(every.asked) == NSTEP
    np.testing.assert_array_equal(result.trajectories.states, watched.trajectories.states)
