"""Scores of robots on wheels and legs: they stand on the world, and take velocities."""

from __future__ import annotations

import numpy as np
import pytest

from twinloop.core.errors import MissingDependencyError
from twinloop.evaluate.scores import VIOLATIONS, find_joint_violations, score_batch
from twinloop.evaluate.variants import with_contact_sensors
from twinloop.hardware.limits import motion_limits
from twinloop.rollout.actor import ExpertActor
from twinloop.rollout.episodes import run_batch
from twinloop.tasks import open_task
from twinloop.twin import load_twin


class Driver:
    """Drives with given speeds of the wheels."""

    name = "driver"

    def __init__(self, speeds):
        self._speeds = np.array(speeds)

    def begin(self, worlds):
        return lambda simulation: np.tile(self._speeds, (simulation.nworld, 1))


def score(actor, values):
    twin = with_contact_sensors(load_twin("waffle_warehouse"))
    task = open_task("dock", twin)
    nworld = len(next(iter(values.values())))
    batch = run_batch(
        twin, task, twin.table(nworld, values), run_seed=1, episodes=list(range(nworld)),
        actor=ExpertActor(task=task) if actor is None else actor, record=("sensordata",),
    )  # fmt: skip
    scores = score_batch(batch, motion_limits(twin))
    return {kind: scores.violations[:, column] for column, kind in enumerate(VIOLATIONS)}


def test_wheels_on_the_floor_are_no_contact_and_a_wall_is_one():
    """The robot drives into the west wall, 0.5 m behind it, and stays there."""
    found = score(Driver([-6.0, -6.0]), {"object/base/yaw": [0.0]})
    assert found["world"][0] > 500
    assert found["range"][0] == found["speed"][0] == 0


def test_the_expert_of_the_dock_violates_nothing():
    found = score(None, {"object/base/yaw": [0.0, 1.0, 3.0]})
    assert {kind: counts.sum() for kind, counts in found.items()} == dict.fromkeys(VIOLATIONS, 0)


@pytest.mark.parametrize(("share", "hard"), [(0.9, False), (1.1, True)])
def test_the_acceleration_of_a_velocity_command_is_its_change(share, hard):
    twin, hz, still = load_twin("waffle_warehouse"), 200.0, np.zeros((4, 2))
    limits = motion_limits(twin)
    commands = np.array([0.0, 0.0, 1.0, 1.0])[:, None] * share * limits.acceleration / hz
    found = find_joint_violations(twin, limits, still + 9.0, still, commands, hz)
    assert found.any(axis=0).tolist() == [False, False, hard]  # a wheel at 9 rad is within its range


def test_limits_of_velocities_are_those_of_the_actuators_and_a_stated_speed_counts():
    limits = motion_limits(load_twin("waffle_warehouse"))
    np.testing.assert_allclose([limits.low, limits.high, limits.speed], [[-8.06] * 2, [8.06] * 2, [8.06] * 2])
    try:
        legs = motion_limits(load_twin("go1_ground"))
    except MissingDependencyError as error:
        pytest.skip(str(error))
    np.testing.assert_allclose(legs.speed, np.tile([0.6 * 30.1, 0.6 * 30.1, 0.6 * 20.06], 4))
