"""The way home: it ends there, at rest, and its fastest joint reaches a sixth of its speed limit."""

from __future__ import annotations

import numpy as np
import pytest

from twinloop.core.contract import STATE, Contract
from twinloop.release.envelope import Envelope
from twinloop.release.running_policy import HomingMove
from twinloop.twin import load_twin

TWIN = load_twin("so101_tabletop")
ENVELOPE = Envelope(TWIN)
HOME = TWIN.units.from_si(TWIN.home()[0][TWIN.joint_qpos])
CONTRACT = Contract(robot_type="so101", control_hz=TWIN.control_hz, action=TWIN.units)


def way(away, count=None):
    homing = HomingMove(ENVELOPE, HOME, CONTRACT)
    commands = [homing.act({STATE: HOME + away}) for _ in range(count or homing.count_steps(HOME + away))]
    return np.array([TWIN.units.to_si(row) for row in [HOME + away, *commands]])


def test_the_fastest_joint_reaches_a_sixth_of_its_limit_and_no_joint_exceeds_it():
    share = np.abs(np.diff(way(np.array([-60.0, 40.0, 30.0, 0.0, 20.0, 0.0])), axis=0)) / ENVELOPE.limits.dt
    share = share.max(axis=0) / ENVELOPE.limits.speed
    assert share.max() == pytest.approx(1 / 6, rel=0.02)


def test_it_ends_at_home_and_stays_there():
    path = way(np.array([10.0, -5.0, 0.0, 0.0, 0.0, 0.0]))
    home = TWIN.units.to_si(HOME)
    rest = round(0.5 / ENVELOPE.limits.dt)
    np.testing.assert_allclose(path[-rest + 1 :], np.broadcast_to(home, (rest - 1, 6)), atol=1e-9)
    longer = way(np.array([10.0, -5.0, 0.0, 0.0, 0.0, 0.0]), count=len(path) + 10)
    np.testing.assert_allclose(longer[-1], home, atol=1e-9)


def test_a_short_way_takes_half_a_second_and_rests_as_long():
    assert HomingMove(ENVELOPE, HOME, CONTRACT).count_steps(HOME + 0.1) == round(1.0 / ENVELOPE.limits.dt)


def test_a_new_episode_begins_where_the_arm_is_then():
    homing = HomingMove(ENVELOPE, HOME, CONTRACT)
    first = homing.act({STATE: HOME + 20.0})
    homing.restart(1)
    np.testing.assert_allclose(homing.act({STATE: HOME - 20.0}) - HOME, HOME - first, atol=1e-6)
