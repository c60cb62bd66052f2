"""Real rollouts of the pendubot are counted and scored as on the public leaderboard."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.predictivity.score import height, outcome, outcome_of, succeeded, swingup_time
from twinloop.core.errors import LogError
from twinloop.core.records import Episode
from twinloop.dataset.logs.sets.registry import load_set

# Published, dfki-ric-underactuated-lab.github.io/real_ai_gym_leaderboard/pendubot_real_system_leaderboard{,_v2}.html:
# successes of ten, mean score of version 1, of version 2, and the best rollout's figures.
PUBLISHED = {
    "pendubot_mcpilco": (10, 0.839, 0.591, (1.37, 4.99, 11.66, 3.72, 8.93, 0.54, 84.61)),
    "pendubot_sac_lqr": (4, 0.298, 0.124, (0.67, 5.0, 37.12, 24.87, 78.7, 0.774, 114.04)),
}


@pytest.fixture(scope="module")
def rollouts() -> list[Episode]:
    folder = Path(os.environ.get("TWINLOOP_DATA", "")) / "dfki_double_pendulum"
    if not (folder / "real_rollouts").is_dir():
        pytest.skip("the set dfki_double_pendulum_rollouts is not here; TWINLOOP_DATA names the folder of sets")
    return load_set("dfki_double_pendulum_rollouts", folder)


@pytest.mark.parametrize("controller", PUBLISHED)
def test_successes_and_scores_of_the_raw_files_are_the_published_ones(rollouts, controller):
    successes, v1, v2, best = PUBLISHED[controller]
    outcomes = [outcome_of(rollout) for rollout in rollouts if rollout.task == controller]
    assert len(outcomes) == 10
    assert sum(bool(each.success) for each in outcomes) == successes
    assert np.mean([each.score["v1"] for each in outcomes]) == pytest.approx(v1, abs=5e-4)
    assert np.mean([each.score["v2"] for each in outcomes]) == pytest.approx(v2, abs=5e-4)
    top = max(outcomes, key=lambda each: float(each.score["v1"]))
    assert list(top.costs.values()) == pytest.approx(best, abs=5.1e-3)


def test_the_arm_is_half_a_metre_high_upright_and_hangs_half_a_metre_low():
    assert height(np.array([[np.pi, 0.0], [0.0, 0.0], [np.pi, np.pi]])) == pytest.approx([0.5, -0.5, -0.1])


def test_a_swing_up_counts_from_when_it_stays_up():
    time, up, down = np.arange(5.0), [np.pi, 0.0], [0.0, 0.0]
    position = np.array([[down, up, down, up, up], [up, up, up, up, down], [up] * 5])
    assert swingup_time(time, position).tolist() == [3.0, 4.0, 0.0]
    assert succeeded(position).tolist() == [True, False, True]


def test_a_failure_scores_nothing_and_torque_costs():
    time = np.linspace(0, 10, 1001)
    position = np.zeros((3, 1001, 2))
    position[1:, 100:, 0] = np.pi
    torque = np.zeros((3, 1001, 2))
    torque[2, :, 0] = 2.0
    scored = outcome(time, position, np.zeros_like(position), torque)
    for version in ("v1", "v2"):
        score = scored.score[version]
        assert score[0] == 0
        assert score[1] > score[2] > 0
    assert scored.costs["torque_cost"].tolist() == pytest.approx([0, 0, 40])
    assert scored.costs["integrated_torque"].tolist() == pytest.approx([0, 0, 20])


def test_a_log_without_torques_is_no_rollout(rollouts):
    with pytest.raises(LogError, match="is not a rollout of the two-joint arm. It needs two joints, torque"):
        outcome_of(replace(rollouts[0], signals={}))
