"""Policies and watchers that return no command, exit, or write where they must not: the robot holds."""

from __future__ import annotations

import numpy as np
import pytest
from _drivers import (
    HOME,
    TWIN,
    Arm,
    Custom,
    Sways,
    attack,
    raises,
    require_limits,
    require_rest,
    run_arm,
)

from twinloop.release.envelope import Envelope
from twinloop.release.envelope_settings import EnvelopeSettings
from twinloop.release.running_robot import WatcherReport


def scribbles(seen, command):
    for array in seen.values():
        array[...] = 9e9
    return command


@pytest.mark.attack(
    "the policy writes into the observation that it was given",
    expected="neither the envelope's reading nor the record changes",
)
def test_a_policy_that_writes_into_its_observation(observed):
    boxed = Envelope(TWIN, EnvelopeSettings(max_relative_target=8.0))
    clean, dirty = Arm(), Arm()
    before = run_arm(clean, Sways(), envelope=boxed)
    after = run_arm(dirty, Sways(scribbles), envelope=boxed)
    np.testing.assert_array_equal(clean.issued, dirty.issued)
    for one, other in zip(before.steps, after.steps, strict=True):
        np.testing.assert_array_equal(one.observation.reading, other.observation.reading)
    observed("60 commands and readings, bit for bit those of the policy that does not")


@pytest.mark.attack(
    "the policy returns the same array at each step and changes it later", expected="the record keeps what was wanted"
)
def test_a_policy_that_reuses_its_command(observed):
    buffer = np.array(HOME)

    def reused(seen, command):
        buffer[:] = command
        return buffer

    ran = run_arm(Arm(), Sways(reused))
    plain = run_arm(Arm(), Sways())
    np.testing.assert_array_equal([s.requested for s in ran.steps], [s.requested for s in plain.steps])
    observed("60 different commands on record")


HOLDS = "the robot brakes and holds; the episode ends with the reason"


@pytest.mark.parametrize(
    ("change", "trip"),
    [
        attack("the policy calls sys.exit", HOLDS, raises(SystemExit(0)), "policy", id="exit"),
        attack("the policy raises KeyboardInterrupt", HOLDS, raises(KeyboardInterrupt()), "policy", id="interrupt"),
        attack("the policy raises a BaseException of its own", HOLDS, raises(Custom("x")), "policy", id="own"),
        attack("the policy returns text", HOLDS, lambda seen, command: "left", "policy", id="text"),
        attack(
            "the policy returns an integer of 400 digits", HOLDS, lambda seen, c: [10**400] * 6, "policy", id="huge"
        ),
        attack(
            "the policy returns rows of different lengths",
            HOLDS,
            lambda seen, c: [[1.0], [1.0, 2.0]],
            "policy",
            id="ragged",
        ),
        attack("the policy returns None", HOLDS, lambda seen, command: None, "stopped", id="None"),
        attack("the policy returns a matrix", HOLDS, lambda seen, command: np.ones((6, 6)), "stopped", id="matrix"),
        attack("the policy returns nothing", HOLDS, lambda seen, command: np.empty(0), "stopped", id="empty"),
    ],
)
def test_a_policy_that_returns_no_command(change, trip, observed):
    arm = Arm()
    ran = run_arm(arm, Sways(change, since=10))
    require_limits(arm)
    require_rest(arm)
    assert ran.end_kind == trip
    assert arm.disconnections == 1
    observed(ran.reason)


@pytest.mark.attack("the policy returns 1.7e308 for every joint", expected="cut to the limits")
def test_a_policy_that_asks_for_the_largest_number(observed):
    arm = Arm()
    ran = run_arm(arm, Sways(lambda seen, command: np.full(6, 1.7e308)))
    require_limits(arm)
    assert ran.end_kind is None
    observed(f"60 frames, {ran.decision_counts['limited']} cut")


class Watches:
    """Somebody who looks on, and exits."""

    def __init__(self, error) -> None:
        self._error = error

    def begin(self, episode: int) -> None:
        pass

    def watch_step(self, seen, command) -> WatcherReport:
        raise self._error


@pytest.mark.parametrize(
    "error",
    [
        attack("a watcher calls sys.exit", "it looks on no longer, and the episode goes on", SystemExit(0), id="exit"),
        attack(
            "a watcher raises its own BaseException",
            "it looks on no longer, and the episode goes on",
            Custom(),
            id="own",
        ),
    ],
)
def test_a_watcher_that_exits(error, observed):
    ran = run_arm(Arm(), watchers=(Watches(error),))
    assert (ran.end_kind, len(ran.steps)) == (None, 60)
    assert "is no longer used" in ran.events[0].message
    observed(ran.events[0].message)


@pytest.mark.attack("something in the run itself raises", expected="the robot brakes, and the record says why")
def test_a_fault_in_the_run_itself_brakes(observed):
    count = iter(range(1000))

    def interrupted():
        if next(count) == 12:
            raise ZeroDivisionError("a fault of ours")
        return False

    arm = Arm()
    ran = run_arm(arm, interrupted=interrupted)
    require_limits(arm)
    require_rest(arm)
    assert (ran.end_kind, len(arm.issued) > 13) == ("stopped", True)
    assert "ZeroDivisionError: a fault of ours" in ran.reason
    observed(ran.reason)
