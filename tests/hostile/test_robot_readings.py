"""Readings, images and clocks that cannot be right: the robot stops, and no command leaves the limits."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from _drivers import (
    HOME,
    HZ,
    KEYS,
    TRIPS,
    Arm,
    Sways,
    arm_with,
    attack,
    moved,
    named,
    off_home,
    raises,
    require_limits,
    require_rest,
    run_arm,
)

from twinloop.core.errors import InputError
from twinloop.hardware.driver import CheckedClock
from twinloop.release.running_robot import RobotLostError


def walking(arm: Arm, answer: dict[str, float]) -> dict[str, float]:
    return answer | {KEYS[2]: answer[KEYS[2]] + 22.0 * (arm.counts["get_observation"] - 9)}


@pytest.mark.parametrize(
    ("fault", "span", "said"),
    [
        attack(
            "a reading jumps by 60 degrees and stays there",
            TRIPS,
            moved(lambda v: v + off_home(60) - HOME),
            {},
            "jumped",
            id="jump",
        ),
        attack(
            "a single reading jumps by 60 degrees",
            TRIPS,
            moved(lambda v: v + off_home(0, 60) - HOME),
            {"until": 11},
            "jumped",
            id="once",
        ),
        attack("readings become 9e9", TRIPS, moved(lambda v: v + 9e9), {}, "and its range is", id="9e9"),
        attack("readings become ticks", TRIPS, moved(lambda v: 2048 + v * 4096 / 360), {}, "", id="ticks"),
        attack(
            "readings come in reverse order from a step on", TRIPS, moved(lambda v: v[::-1]), {}, "jumped", id="rev"
        ),
        attack("readings become 1e308", TRIPS, moved(lambda v: 0 * v + 1e308), {}, "", id="1e308"),
        attack("readings walk away at twice what the joint can do", TRIPS, walking, {}, "", id="walk"),
        attack(
            "readings no longer change while the arm is moved",
            TRIPS,
            lambda arm, answer: named(HOME),
            {},
            "no reading has changed",
            id="frozen",
        ),
        attack(
            "readings are text",
            TRIPS,
            lambda arm, answer: {key: str(value) for key, value in answer.items()},
            {},
            "str is not a number",
            id="text",
        ),
        attack(
            "readings are arrays of one number",
            TRIPS,
            lambda arm, answer: {key: np.array([value]) for key, value in answer.items()},
            {},
            "ndarray is not a number",
            id="array",
        ),
        attack(
            "a reading is an integer of 400 digits",
            TRIPS,
            lambda arm, answer: answer | {KEYS[0]: 10**400},
            {},
            "OverflowError",
            id="huge",
        ),
        attack("get_observation returns None", TRIPS, lambda arm, answer: None, {}, "cannot be read", id="None"),
        attack("get_observation calls sys.exit", TRIPS, raises(SystemExit("bye")), {}, "SystemExit: bye", id="exit"),
        attack("get_observation raises GeneratorExit", TRIPS, raises(GeneratorExit()), {}, "GeneratorExit", id="gen"),
        attack(
            "get_observation raises KeyboardInterrupt",
            TRIPS,
            raises(KeyboardInterrupt()),
            {},
            "KeyboardInterrupt",
            id="ctrl",
        ),
    ],
)
def test_readings_that_cannot_be(fault, span, said, observed):
    arm = Arm(**{"since": 10, **span}, get_observation=fault)
    ran = run_arm(arm, Sways())
    require_limits(arm)
    assert ran.end_kind == "robot"
    assert said in " ".join([ran.reason, *(event.message for event in ran.events)])
    assert len(ran.steps) < 45
    assert arm.disconnections == 1
    require_rest(arm)
    observed(f"tripped after {len(ran.steps)} of 60 frames: {ran.reason}")


@pytest.mark.attack("readings are NaN for three frames", expected="the robot holds for three frames and goes on")
def test_readings_that_are_no_numbers_for_a_moment(observed):
    arm = Arm(since=10, until=13, get_observation=lambda arm, answer: answer | {KEYS[1]: math.nan})
    ran = run_arm(arm)
    require_limits(arm)
    assert ran.end_kind is None
    assert ran.decision_counts["held"] == 3
    observed(f"60 frames, {ran.decision_counts['held']} held")


@pytest.mark.parametrize(
    "fault",
    [
        attack("the first reading is in ticks", "refused before anything moves", moved(lambda v: v + 2048), id="ticks"),
        attack("the first reading is 9e9", "refused before anything moves", moved(lambda v: v * 0 + 9e9), id="9e9"),
        attack("the first reading is NaN", "refused before anything moves", moved(lambda v: v * np.nan), id="nan"),
        attack(
            "the first observation calls sys.exit", "refused before anything moves", raises(SystemExit(0)), id="exit"
        ),
    ],
)
def test_a_robot_that_begins_with_what_cannot_be(fault, observed):
    arm = Arm(get_observation=fault)
    with pytest.raises((InputError, RobotLostError)) as refused:
        run_arm(arm)
    assert arm.issued == []
    assert arm.disconnections == 1
    observed(refused.value)


class BadClock:
    """A clock that does something else from its 30th reading on."""

    def __init__(self, fault) -> None:
        self.time, self.reads, self._fault = 0.0, 0, fault

    def now(self) -> float:
        self.reads += 1
        return self._fault(self.time) if self.reads > 30 else self.time

    def wait_until(self, moment: float) -> None:
        self.time = max(self.time, moment)


def exits(_):
    raise SystemExit(0)


def stood_still(time: float, moments=[]) -> float:  # noqa: B006  # the same moment from the first call on
    moments.append(time)
    return moments[0]


CLOCK = "the computer's clock goes on, the episode ends at rest"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        attack(
            "the robot's clock goes back by an hour", CLOCK, lambda now: now - 3600.0, "its clock went from", id="back"
        ),
        attack("the robot's clock becomes NaN", CLOCK, lambda now: math.nan, "to nan s", id="nan"),
        attack("the robot's clock becomes infinite", CLOCK, lambda now: math.inf, "to inf s", id="inf"),
        attack("the robot's clock becomes text", CLOCK, lambda now: "noon", "ValueError", id="text"),
        attack("the robot's clock stands still", CLOCK, stood_still, "before the moment waited for", id="still"),
        attack("the robot's clock calls sys.exit", CLOCK, exits, "SystemExit: 0", id="exit"),
    ],
)
def test_a_clock_that_fails(fault, said, observed):
    arm = Arm()
    arm.clock = BadClock(fault)
    ran = run_arm(arm)
    arm.taken.clear()  # at times of a clock that failed
    require_limits(arm)
    assert ran.end_kind == "robot"
    assert said in ran.reason
    assert arm.disconnections == 1
    observed(ran.reason)


@pytest.mark.attack(
    "a real robot's clock says that each wait is over at once",
    expected="commands follow each other no faster than twice the rate by the computer's own clock",
)
def test_a_clock_that_lets_commands_follow_each_other_too_quickly(observed):
    arm = arm_with(source="real")
    began = time.perf_counter()
    ran = run_arm(arm, steps=12)
    spent = time.perf_counter() - began
    assert len(ran.steps) == 12
    assert spent > 10 / HZ / 2
    observed(f"12 commands in {spent:.2f} s instead of {12 / HZ:.2f} s")


@pytest.mark.attack("the robot's clock jumps forward by an hour", expected="a slow step is noted, and it goes on")
def test_a_clock_that_jumps_forward(observed):
    arm = Arm()
    arm.clock = BadClock(lambda now: now + 3600.0)
    ran = run_arm(arm)
    require_limits(arm)
    assert (ran.end_kind, len(ran.steps)) == (None, 60)
    assert "slow" in {event.kind for event in ran.events}
    observed(", ".join(f"{event.kind}: {event.message}" for event in ran.events))


def test_a_checked_clock_keeps_an_honest_clock():
    arm = Arm()
    clock = CheckedClock(arm.clock, real=False)
    clock.wait_until(2.5)
    clock.wait_until(1.0)
    assert (clock.now(), clock.fault) == (2.5, "")


FRAME = np.zeros((4, 6, 3), np.uint8)


@pytest.mark.parametrize(
    ("image", "said"),
    [
        attack(
            "a camera gives a picture of another size",
            TRIPS,
            np.zeros((5, 8, 3), np.uint8),
            "shape (5, 8, 3)",
            id="size",
        ),
        attack("a camera gives floats", TRIPS, np.zeros((4, 6, 3)), "float64", id="floats"),
        attack("a camera gives objects", TRIPS, np.full((4, 6, 3), None), "object", id="objects"),
        attack("a camera gives None", TRIPS, None, "object", id="None"),
    ],
)
def test_images_that_are_none(image, said, observed):
    class Camera(Arm):
        def get_observation(self):
            return super().get_observation() | {"front": image if self.counts["get_observation"] > 10 else FRAME}

    arm = Camera()
    arm.observation_features = {**arm.observation_features, "front": (4, 6, 3)}
    ran = run_arm(arm)
    require_limits(arm)
    assert ran.end_kind == "robot"
    assert said in " ".join(event.message for event in ran.events)
    observed(ran.reason)


@pytest.mark.attack(
    "a camera writes every picture into the same memory", expected="the record keeps each picture as it was"
)
def test_a_camera_that_reuses_its_memory(observed):
    memory, number = np.zeros((4, 6, 3), np.uint8), iter(range(250))

    class Camera(Arm):
        def get_observation(self):
            memory[...] = next(number)
            return super().get_observation() | {"front": memory}

    arm = Camera()
    arm.observation_features = {**arm.observation_features, "front": (4, 6, 3)}
    ran = run_arm(arm, steps=20)
    kept = {int(step.observation.arrays["observation.images.front"].max()) for step in ran.steps}
    assert len(kept) == 20
    observed(f"{len(kept)} different pictures of 20")
