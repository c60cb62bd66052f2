"""Reward terms against their closed forms, and the goal of reach_moving against the task's own evaluation."""

import numpy as np
import pytest

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.randomize import Plan
from twinloop.rollout.actor import ExpertActor
from twinloop.rollout.episodes import run_batch
from twinloop.tasks import open_task
from twinloop.tasks.goals import ReachMovingGoal, TaskGoal, open_goal
from twinloop.tasks.protocol import GoalState
from twinloop.tasks.rewards import REWARD_TERMS, RewardMeter, read_reward
from twinloop.twin import load_twin

TWIN = load_twin("so101_tabletop")
LOW, HIGH = TWIN.find_command_ranges()
SIZE, MIDDLE = HIGH - LOW, (LOW + HIGH) / 2
STEPS, WORLDS = 10, 2


def state(potential=0.0, success=False):
    ones = np.ones(WORLDS)
    return GoalState(success=ones * success > 0, potential=potential * ones, truth=ones[:, None])


def pay(commands, potentials=None, successes=None, valid=True):
    """Return the sum of each term over an episode with these commands ``(nstep, nu)``."""
    meter = RewardMeter(TWIN, WORLDS, len(commands), dict.fromkeys(REWARD_TERMS, 1.0))
    meter.begin(np.arange(WORLDS), np.zeros(WORLDS), np.tile(MIDDLE, (WORLDS, 1)))
    total = dict.fromkeys(REWARD_TERMS, 0.0)
    for step, command in enumerate(commands):
        goal = state(0.0 if potentials is None else potentials[step], False if successes is None else successes[step])
        reward = meter.pay(goal, np.tile(command, (WORLDS, 1)), np.full(WORLDS, valid))
        assert reward == pytest.approx(sum(meter.latest.values()))
        total = {name: total[name] + meter.latest[name][0] for name in total}
    return total


def test_a_held_command_costs_nothing_and_pays_nothing():
    assert pay([MIDDLE] * STEPS) == pytest.approx(dict.fromkeys(REWARD_TERMS, 0.0))


def test_a_constant_speed_pays_minus_its_square_and_one_change_of_speed():
    speed = 0.05 * np.arange(1, STEPS + 1)[:, None] * SIZE / TWIN.control_hz  # 0.05 ranges per second
    total = pay(MIDDLE + speed)
    assert total["effort"] == pytest.approx(-(0.05**2))
    assert total["smoothness"] == pytest.approx(-(0.05**2) / STEPS)  # the speed changes in the first step only


def test_commands_beyond_a_range_pay_their_mean_distance_in_ranges():
    beyond = HIGH.copy()
    beyond[1] += 0.3 * SIZE[1]
    beyond[2] = LOW[2] - 0.1 * SIZE[2]
    assert pay([beyond] * STEPS)["limits"] == pytest.approx(-0.4 / len(SIZE))


def test_progress_sums_to_the_change_of_the_potential_and_success_pays_once():
    potentials = np.linspace(0.1, 0.9, STEPS) ** 2
    successes = [False, True, False, True, *[True] * (STEPS - 4)]
    total = pay([MIDDLE] * STEPS, potentials, successes)
    assert total["progress"] == pytest.approx(0.81)
    assert total["success"] == 1
    assert total["holding"] == pytest.approx(sum(successes) / STEPS)
    assert pay([MIDDLE] * STEPS, potentials, valid=False)["progress"] == 0


def test_an_episode_forgets_the_one_before():
    meter = RewardMeter(TWIN, WORLDS, STEPS, {"success": 1.0, "smoothness": 1.0})
    commands = np.tile(MIDDLE, (WORLDS, 1))
    meter.begin(np.arange(WORLDS), np.zeros(WORLDS), commands)
    meter.pay(state(success=True), commands + 0.1, np.ones(WORLDS, dtype=bool))
    meter.begin(np.array([1]), np.zeros(1), commands[:1])
    meter.pay(state(success=True), np.stack([MIDDLE + 0.1, MIDDLE]), np.ones(WORLDS, dtype=bool))
    assert meter.latest["success"].tolist() == [0, 1]
    assert meter.latest["smoothness"][0] < 0 == meter.latest["smoothness"][1]


def test_weights_are_checked():
    assert read_reward("dense", where="here") == {"progress": 1.0, "success": 1.0}
    with pytest.raises(UnknownNameError, match="holding"):
        read_reward({"holdng": 1}, where="here")
    with pytest.raises(UnknownNameError, match="sparse"):
        read_reward("spars", where="here")
    for wrong in (-1, float("nan"), float("inf"), True, "1"):
        with pytest.raises(InputError, match="finite number of at least 0"):
            read_reward({"success": wrong}, where="here")
    with pytest.raises(InputError, match="no term with a weight"):
        read_reward({"success": 0}, where="here")


def test_reach_movings_goal_equals_the_evaluation_of_whole_episodes():
    task = open_task("reach_moving", TWIN)
    params = Plan(twin=TWIN, run_seed=0, draws=()).draw(range(3))
    states = run_batch(
        TWIN, task, params, run_seed=0, episodes=range(3), actor=ExpertActor(task=task)
    ).trajectories.states
    fast, slow = open_goal("reach_moving", TWIN, 3), TaskGoal(task, 3)
    assert isinstance(fast, ReachMovingGoal)
    whole = np.array([task.progress(states), task.success(states)])
    order = [*range(20), *range(states.shape[1])]  # the first episode is cut off
    for count, step in enumerate(order):
        begin, envs = count in (0, 20), np.arange(3)
        quick = fast.evaluate_states(states[:, step], envs, begin=begin)
        np.testing.assert_allclose([quick.potential, quick.success], whole[:, :, step], rtol=1e-12)
        if count < 40:
            direct = slow.evaluate_states(states[:, step], envs, begin=begin)
            np.testing.assert_allclose(direct.potential, quick.potential, rtol=1e-12)
    assert whole[1, :, -1].all()
