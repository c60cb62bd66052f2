"""Drivers, readings, clocks and policies that lie, fail or exit: no command leaves the limits, and the run says so."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from _drivers import ENVELOPE, HOME, HZ, KEYS, TWIN, Arm, Sways, require_limits, require_rest, run_arm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twinloop.cli.main import main
from twinloop.core.errors import CheckFailedError, InputError, TwinloopError
from twinloop.core.units import UnitMap
from twinloop.dataset.reader import DatasetReader
from twinloop.dataset.side_tables import open_side_table
from twinloop.hardware import check_robot
from twinloop.hardware.driver_clock import CheckedClock
from twinloop.release.envelope import Envelope
from twinloop.release.envelope_settings import EnvelopeSettings
from twinloop.release.running_record import STEPS
from twinloop.release.running_robot import RobotLostError, Spoken
from twinloop.release.running_steps import Told


def attack(tried: str, expected: str, *values: Any, id: str):  # noqa: A002  # pytest's word
    return pytest.param(*values, marks=pytest.mark.attack(tried, expected=expected), id=id)


class Exits:
    """A number that ends the program when it is read."""

    def __float__(self) -> float:
        raise SystemExit(0)


class Raises(dict):
    """A dictionary that interrupts whoever looks into it."""

    def __getitem__(self, key: str) -> float:
        raise KeyboardInterrupt


class Custom(BaseException):
    """What no driver has a reason to raise."""


def every(value):
    """All joints say the same."""
    return lambda arm, sent: dict.fromkeys(KEYS, value)


def first(value):
    """The first joint says something else."""
    return lambda arm, sent: sent | {KEYS[0]: value}


def moved(change):
    """The values are changed as one array."""
    return lambda arm, answer: named(change(np.array(list(answer.values()))))


def named(values):
    return dict(zip(KEYS, np.asarray(values).tolist(), strict=True))


def off_home(pan=0.0, lift=0.0):
    return HOME + np.array([pan, lift, 0, 0, 0, 0])


def near_reading(arm: Arm, sent: dict[str, float]) -> dict[str, float]:
    values = np.array(list(sent.values()))
    return named(np.clip(values, arm.position - 3, arm.position + 3))


def walking(arm: Arm, answer: dict[str, float]) -> dict[str, float]:
    return answer | {KEYS[2]: answer[KEYS[2]] + 22.0 * (arm.counts["get_observation"] - 9)}


def stood_still(time: float, moments=[]) -> float:  # noqa: B006  # the same moment from the first call on
    moments.append(time)
    return moments[0]


def unit_of(**changes):
    return lambda: arm_with(units=with_units(**changes))


def drifting(arm: Arm, sent: dict[str, float]) -> dict[str, float]:
    return {key: value + 0.2 * len(arm.issued) for key, value in sent.items()}


def stale(arm: Arm, sent: dict[str, float]) -> dict[str, float]:
    return dict(zip(KEYS, arm.issued[max(0, len(arm.issued) - 15)].tolist(), strict=True))


def emptied(arm: Arm, sent: dict[str, float]) -> dict[str, float]:
    sent.clear()
    return sent


TRIPS = "stopped by the robot's own report; no command leaves the limits"
RETURNED = [
    attack("send_action returns 9e9 for one joint", TRIPS, first(9e9), "9e+09", id="9e9"),
    attack("send_action returns −1e308 for all joints", TRIPS, every(-1e308), "-1e+308", id="-1e308"),
    attack("send_action returns NaN", TRIPS, first(math.nan), "sent nan", id="nan"),
    attack("send_action returns infinity", TRIPS, first(math.inf), "sent inf", id="inf"),
    attack("send_action returns ticks of 0 to 4095", TRIPS, moved(lambda v: 2048 + v * 4096 / 360), "", id="ticks"),
    attack("send_action returns radians where degrees were given", TRIPS, moved(np.deg2rad), "", id="radians"),
    attack("send_action returns the joints in reverse order", TRIPS, moved(lambda v: v[::-1]), "", id="reverse"),
    attack("send_action returns the negative of every joint", TRIPS, moved(lambda v: -v - 30), "", id="negative"),
    attack("send_action returns a position 30 degrees further", TRIPS, moved(lambda v: v + 30), "", id="offset"),
    attack("send_action drifts away by 0.2 of a unit at each step", TRIPS, drifting, "", id="drift"),
    attack("send_action returns what was sent half a second ago", TRIPS, stale, "", id="stale"),
    attack("send_action returns None", TRIPS, lambda arm, sent: None, "does not say what it sent", id="None"),
    attack("send_action returns a list", TRIPS, lambda arm, sent: list(sent.values()), "does not say", id="list"),
    attack("send_action leaves a joint out", TRIPS, lambda arm, sent: dict(list(sent.items())[1:]), "", id="missing"),
    attack("send_action returns numbers as text", TRIPS, first("12.5"), "str is not a number", id="text"),
    attack("send_action returns True", TRIPS, first(True), "bool is not a number", id="bool"),
    attack("send_action returns an array of one number", TRIPS, first(np.ones(1)), "ndarray is not", id="array"),
    attack("send_action returns an integer of 400 digits", TRIPS, first(10**400), "OverflowError", id="huge"),
    attack("send_action returns a complex number", TRIPS, first(1j), "complex is not a number", id="complex"),
    attack("a returned value calls sys.exit when it is converted", TRIPS, first(Exits()), "", id="exits"),
    attack(
        "a returned dictionary raises KeyboardInterrupt when read", TRIPS, lambda arm, sent: Raises(sent), "", id="r"
    ),
    attack("send_action empties the dictionary that it was given", TRIPS, emptied, "", id="emptied"),
]


@pytest.mark.parametrize(("fault", "said"), RETURNED)
def test_what_a_driver_returns_moves_no_reference(fault, said, observed):
    arm = Arm(since=5, send_action=fault)
    ran = run_arm(arm)
    require_limits(arm)
    assert ran.trip == "robot"
    assert said in " ".join(event.message for event in ran.events)
    assert len(ran.steps) < 45
    assert arm.disconnections == 1
    assert np.isfinite([step.issued for step in ran.steps]).all()
    observed(f"tripped after {len(ran.steps)} of 60 frames: {ran.reason}")


GOES_ON = "goes on within the limits"


@pytest.mark.parametrize(
    "fault",
    [
        attack("send_action returns float32", GOES_ON, moved(lambda v: v.astype(np.float32)), id="float32"),
        attack(
            "send_action returns numpy scalars", GOES_ON, lambda a, s: {k: np.float64(v) for k, v in s.items()}, id="np"
        ),
        attack("send_action returns more joints than it has", GOES_ON, lambda a, s: s | {"tail.pos": 1.0}, id="more"),
        attack(
            "send_action returns whole ticks of 0.088 degrees",
            GOES_ON,
            moved(lambda v: np.round(v / 0.088) * 0.088),
            id="t",
        ),
        attack(
            "the robot cuts commands to 3 degrees from where it reads to be",
            GOES_ON,
            near_reading,
            id="relative",
        ),
    ],
)
def test_a_robot_with_limits_of_its_own_is_no_liar(fault, observed):
    arm = Arm(send_action=fault)
    ran = run_arm(arm)
    require_limits(arm)
    assert (ran.trip, len(ran.steps)) == (None, 60)
    observed("60 of 60 frames, nothing tripped")


@pytest.mark.attack(
    "the robot holds at its own narrow limit while the policy commands 60 degrees beyond",
    expected="commands run ahead of it by a step and the braking distance at most, and it never lunges",
)
def test_commands_do_not_run_ahead_of_a_robot_that_cuts_them(observed):
    arm = Narrow()
    ran = run_arm(arm, Sways(lambda seen, command: off_home(60.0)))
    require_limits(arm)
    assert ran.trip is None
    step = np.rad2deg(ENVELOPE.limits.speed[0]) / HZ
    ahead = max(command[0] for command in arm.issued) - HOME[0] - 5
    assert ahead <= 2 * step
    assert {cut.rule for step in ran.steps[30:] for cut in step.ruling.cuts} == {"robot"}
    assert max(step.issued[0] for step in ran.steps) == pytest.approx(HOME[0] + 5)  # the record is what was sent
    observed(f"at most {ahead:.2f} degrees ahead, one step is {step:.2f}")


class Narrow(Arm):
    """Its own limits are 5 degrees above home."""

    def send_action(self, action):
        sent = super().send_action(action)
        self.position = np.minimum(self.position, HOME + 5)
        return dict(zip(KEYS, np.minimum(list(sent.values()), HOME + 5).tolist(), strict=True))


@pytest.mark.attack("the robot cuts commands of a swaying policy at narrow limits of its own", expected=GOES_ON)
def test_a_robot_with_narrow_limits_goes_on(observed):
    arm = Narrow()
    ran = run_arm(arm)
    require_limits(arm)
    assert (ran.trip, len(ran.steps)) == (None, 60)
    observed("60 of 60 frames, nothing tripped")


@pytest.mark.attack(
    "the driver says that each command was cut to somewhere else, always as far as is believed",
    expected="the robot is never moved by it",
)
def test_a_driver_cannot_steer_by_believable_reports(observed):
    arm = Arm(send_action=lambda arm, sent: {key: value + 1.9 for key, value in sent.items()})  # 2 % of 100, of 190
    ran = run_arm(arm, Sways(lambda seen, command: HOME))
    assert ran.trip is None
    np.testing.assert_allclose(arm.issued, np.tile(HOME, (60, 1)), atol=1e-9)
    observed("60 commands, all of them what the policy asked for")


def raises(error):
    def fault(arm, answer):
        raise error

    return fault


def now_and_then(share):
    """Fail in this share of the calls."""

    def fault(arm, answer):
        number = len(arm.issued)
        if math.floor(number * share) > math.floor((number - 1) * share):
            raise OSError("no status packet")
        return answer

    return fault


@pytest.mark.parametrize(
    ("fault", "span", "most"),
    [
        attack("send_action raises in 40 of 60 frames", TRIPS, now_and_then(2 / 3), {}, 20, id="40-of-60"),
        attack("send_action raises in every second frame", TRIPS, now_and_then(1 / 2), {}, 20, id="half"),
        attack("send_action raises in every sixth frame", TRIPS, now_and_then(1 / 6), {}, 60, id="sixth"),
        attack("send_action raises from the first frame on", TRIPS, raises(OSError("gone")), {}, 12, id="always"),
        attack("send_action raises in the last four frames", TRIPS, raises(OSError("g")), {"since": 26}, 31, id="last"),
        attack("send_action calls sys.exit in every frame", TRIPS, raises(SystemExit(0)), {"since": 3}, 15, id="exit"),
        attack("send_action raises a BaseException of its own", TRIPS, raises(Custom("x")), {"since": 3}, 15, id="own"),
    ],
)
def test_a_robot_that_cannot_be_written_to_trips(fault, span, most, observed):
    arm = Arm(send_action=fault, **span)
    steps = 30 if "since" in span and span["since"] > 20 else 60
    ran = run_arm(arm, steps=steps)
    require_limits(arm)
    assert ran.trip == "robot"
    assert "did not take" in ran.reason
    assert len(ran.steps) <= most + 15  # the way to rest is on the record
    assert ran.unsent == sum(not step.sent for step in ran.steps) > 0
    assert sum(ran.rulings.values()) == len(ran.steps) - ran.unsent
    assert arm.disconnections == 1
    observed(f"{ran.unsent} of {len(ran.steps)} not taken: {ran.reason}")


@pytest.mark.attack(
    "3 of 60 commands fail, far apart", expected="goes on; the three are counted as not taken and none as passed"
)
def test_a_few_failed_commands_are_counted(observed):
    arm = Arm(send_action=now_and_then(1 / 18))
    ran = run_arm(arm)
    require_limits(arm)
    assert (ran.trip, ran.unsent, len(ran.steps)) == (None, 3, 60)
    assert ran.rulings["held"] == 3  # after each of them the robot brakes for a step
    before = [step.issued for step in ran.steps]
    for number, step in enumerate(ran.steps):
        if not step.sent:
            np.testing.assert_allclose(step.issued, before[number - 1])  # the last one that it took
    observed(f"60 frames, {ran.unsent} not taken, {ran.rulings['passed']} passed")


@pytest.mark.attack(
    "a command arrives, and its answer is lost", expected="the next ones brake from it; speed and acceleration hold"
)
def test_a_command_whose_answer_is_lost_has_arrived(observed):
    def lost(arm, answer):
        arm.position = arm.position + 0.9 * (arm.issued[-1] - arm.position)
        raise TimeoutError("no answer")

    arm = Arm(since=10, until=13, send_action=lost)
    ran = run_arm(arm)
    require_limits(arm)
    assert (ran.trip, ran.unsent) == (None, 3)
    observed("3 lost answers, every issued command within the limits")


@pytest.mark.attack("send_action never returns", expected="tripped in time, braking is given up, and the run ends")
def test_a_driver_that_hangs_in_writing(observed):
    release = threading.Event()
    arm = Arm(since=8, send_action=lambda arm, answer: release.wait(60.0))
    began = time.perf_counter()
    ran = run_arm(arm, robot_patience_s=0.05)
    release.set()
    assert ran.trip == "robot"
    assert time.perf_counter() - began < 10.0
    require_limits(arm)
    observed(ran.reason)


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
    assert ran.trip == "robot"
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
    assert ran.trip is None
    assert ran.rulings["held"] == 3
    observed(f"60 frames, {ran.rulings['held']} held")


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


BELIEVED = [
    moved(lambda v: v + 1.5),
    moved(lambda v: v - 1.5),
    near_reading,
    lambda arm, sent: named(0.5 * (np.array(list(sent.values())) + arm.position)),
    lambda arm, sent: named(arm.position),
]
LIES = [
    stale,
    drifting,
    moved(lambda v: v[::-1]),
    moved(lambda v: np.minimum(v, HOME + 3)),
    first(9e9),
    first(math.nan),
]
FAILURES = [raises(OSError("lost")), raises(SystemExit(0)), lambda arm, sent: None]
RETURNS = st.sampled_from(BELIEVED + LIES + FAILURES)
LIKELY = st.integers(0, 11).flatmap(lambda n: st.sampled_from(BELIEVED + FAILURES if n == 0 else BELIEVED))
WILD = st.one_of(st.floats(-400, 400), st.sampled_from([np.nan, np.inf, -1e300, 0.0]), st.floats(allow_nan=True))
WANTED = st.one_of(
    st.lists(st.floats(-60, 60), min_size=6, max_size=6).map(lambda v: HOME + v),
    st.lists(WILD, min_size=6, max_size=6).map(np.array),
)
READS = st.one_of(st.just(0.0), st.floats(-4, 4), st.sampled_from([40.0, 9e9, math.nan]))
BOXED = Envelope(TWIN, EnvelopeSettings(workspace={"x": (0.1, 0.32), "z": (0.03, 0.25)}, max_relative_target=8.0))


@pytest.mark.parametrize(
    ("envelope", "returns"),
    [
        attack(
            "random returned values and failures in any mix",
            "no command leaves the limits",
            ENVELOPE,
            RETURNS,
            id="wild",
        ),
        attack(
            "small lies that are believed, and failures now and then",
            "no command leaves the limits",
            ENVELOPE,
            LIKELY,
            id="rare",
        ),
        attack(
            "the same with a workspace box and a relative limit",
            "no command leaves the limits",
            BOXED,
            LIKELY,
            id="box",
        ),
    ],
)
@given(data=st.data())
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_the_law_of_issued_commands(envelope, returns, data):
    faults = data.draw(st.lists(returns, min_size=8, max_size=20), label="returned")
    noise = data.draw(st.lists(READS, min_size=3, max_size=8), label="readings")
    wanted = data.draw(st.lists(WANTED, min_size=4, max_size=20), label="wanted")

    def sends(arm, answer):
        return faults[len(arm.issued) % len(faults)](arm, answer)

    def reads(arm, answer):
        off = noise[arm.counts["get_observation"] % len(noise)] if arm.counts["get_observation"] else 0.0
        return answer | {KEYS[1]: answer[KEYS[1]] + off}

    arm = Arm(send_action=sends, get_observation=reads)
    act = iter(wanted * 3)
    ran = run_arm(arm, Sways(lambda seen, command: next(act)), steps=len(wanted), envelope=envelope)
    require_limits(arm, envelope)
    assert ran.unsent == sum(not step.sent for step in ran.steps)
    assert arm.disconnections == 1


def policy_of(monkeypatch, arm, decider=None):
    """Let `run` and `record` find this arm and this policy, whatever they are asked for."""
    monkeypatch.setattr("twinloop.loop.run_cell.open_robot", lambda address: arm)
    monkeypatch.setattr("twinloop.loop.record.open_robot", lambda address: arm)
    monkeypatch.setattr("twinloop.loop.run_cell.open_decider", lambda *_, **__: decider or Sways())


def command(tmp_path, capsys, *words):
    """Run `twinloop run`; returns the exit code, the figures and what people read."""
    given = ["run", "--robot", "arm", "--policy", "p", "--twin", TWIN.name, "--output", str(tmp_path / "out")]
    code = main([*given, "--seconds", "2", "--json", *words])
    shown = capsys.readouterr()
    figures = json.loads(shown.out.strip().splitlines()[-1])
    assert "Traceback" not in shown.err + shown.out
    return code, figures, " ".join(shown.err.split())


@pytest.mark.attack(
    "twinloop run with a driver whose send_action raises in 40 of 60 frames",
    expected="exit code 1; failed commands are counted, and none of them as passed",
)
def test_the_command_counts_what_the_robot_did_not_take(tmp_path, monkeypatch, capsys, observed):
    policy_of(monkeypatch, Arm(send_action=now_and_then(2 / 3)))
    code, figures, shown = command(tmp_path, capsys)
    assert code == 1
    failed, issued = figures["commands"]["failed"], figures["commands"]["issued"]
    assert failed > 0
    assert sum(figures["envelope"].values()) == issued == figures["frames"] - failed
    assert figures["trips"][0]["kind"] == "robot"
    assert f"The robot did not take {failed} of {figures['frames']} commands" in shown
    assert "Ended early: the robot did not take" in shown
    sent = open_side_table(tmp_path / "out", STEPS).to_table()["sent"].to_pylist()
    assert sent.count(False) == failed
    run = DatasetReader(tmp_path / "out").provenance(0).extra["run"]
    assert (run["unsent"], sum(run["envelope"].values())) == (failed, issued)
    observed(f"exit code 1, {failed} of {figures['frames']} failed, envelope {figures['envelope']}")


@pytest.mark.attack(
    "twinloop run with a driver that returns 9e9 from send_action",
    expected="exit code 1, the joint and the value named, the dataset holds the issued commands",
)
def test_the_command_names_what_the_driver_returned(tmp_path, monkeypatch, capsys, observed):
    arm = Arm(since=10, send_action=first(9e9))
    policy_of(monkeypatch, arm)
    code, figures, shown = command(tmp_path, capsys)
    assert code == 1
    require_limits(arm)
    assert "the driver says that it sent 9e+09 to shoulder_pan, and was given" in shown
    reader = DatasetReader(tmp_path / "out")
    actions = np.stack(reader.frames_table(0, ["action"])["action"].to_numpy())
    assert np.abs(actions).max() < 200
    observed(figures["trips"][0]["reason"])


EVENTS = "exit code not 0, no traceback, and the robot is disconnected"
ERRORS = {"exit": SystemExit(0), "interrupt": KeyboardInterrupt(), "generator": GeneratorExit(), "own": Custom("x")}


@pytest.mark.parametrize(
    ("method", "error"),
    [
        attack(f"{method} raises {type(error).__name__}", EVENTS, method, error, id=f"{method}-{name}")
        for method in ("connect", "configure", "get_observation", "send_action", "disconnect")
        for name, error in ERRORS.items()
    ],
)
def test_a_driver_that_exits_is_disconnected(method, error, tmp_path, monkeypatch, capsys, observed):
    arm = Arm(since=0 if method in ("connect", "configure", "disconnect") else 12, **{method: raises(error)})
    policy_of(monkeypatch, arm)
    code, figures, shown = command(tmp_path, capsys)
    assert code in (1, 2)
    assert arm.disconnections >= 1
    require_limits(arm) if arm.issued else None
    recorded = (tmp_path / "out").exists() and DatasetReader(tmp_path / "out").lengths
    assert bool(recorded) == (method not in ("connect", "configure"))
    assert type(error).__name__ in shown
    observed(f"exit code {code}, disconnected: {figures.get('ended') or figures.get('message')}")


def property_raising(error):
    def read(self):
        raise error

    return property(read, lambda self, value: None)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        attack(
            f"the property {name} raises {type(error).__name__}",
            "exit code 2 before it is connected",
            name,
            error,
            id=f"{name}-{type(error).__name__}",
        )
        for name in (
            "units",
            "origin",
            "name",
            "source",
            "clock",
            "action_features",
            "observation_features",
            "success",
            "task",
        )
        for error in (SystemExit(0), RuntimeError("broken"))
    ],
)
def test_a_driver_whose_properties_exit(name, error, tmp_path, monkeypatch, capsys, observed):
    kind = type("Broken", (Arm,), {name: property_raising(error)})
    arm = kind()
    policy_of(monkeypatch, arm)
    code, figures, _ = command(tmp_path, capsys)
    assert code == 2
    assert (arm.connections, arm.issued) == (0, [])
    assert not (tmp_path / "out").exists()
    observed(figures["message"])


@pytest.mark.attack("the robot's own judge calls sys.exit", expected="noted, and the episode goes on without a judge")
def test_a_judge_that_exits(tmp_path, monkeypatch, capsys, observed):
    kind = type("Judged", (Arm,), {"success": lambda self: raises(SystemExit(0))(self, None)})
    arm = kind()
    policy_of(monkeypatch, arm)
    code, figures, _ = command(tmp_path, capsys)
    assert (code, figures["frames"], figures["judged"]) == (0, 60, 0)
    assert arm.disconnections == 1
    observed(f"60 frames, {figures['judged']} judged")


@pytest.mark.attack(
    "disconnect never returns", expected="the run ends in time with exit code 1 and says that the robot is connected"
)
def test_a_driver_that_never_disconnects(tmp_path, monkeypatch, capsys, observed):
    release = threading.Event()
    arm = Arm(disconnect=lambda arm, answer: release.wait(60.0))
    policy_of(monkeypatch, arm)
    monkeypatch.setattr("twinloop.loop.run_cell.PATIENCE_S", 0.2)
    began = time.perf_counter()
    code, figures, _ = command(tmp_path, capsys)
    release.set()
    assert (code, figures["frames"]) == (1, 60)
    assert "the robot is not disconnected, switch it off by hand" in figures["ended"]
    assert time.perf_counter() - began < 20.0
    observed(figures["ended"])


def with_units(**changes):
    rows = [replace(unit, **changes) if n == 0 else unit for n, unit in enumerate(TWIN.units.joints)]
    return UnitMap(joints=tuple(rows), source="a driver")


class Shuffled(Arm):
    """Its actions come in another order than its units."""

    def __init__(self) -> None:
        super().__init__()
        self.action_features = dict.fromkeys(KEYS[::-1], float)


class Changing(Arm):
    """Its units are others once it is connected."""

    def connect(self, calibrate: bool = True) -> None:
        super().connect(calibrate)
        self.units = with_units(scale=1.0)


class Recalibrated(Arm):
    """It has one joint less once it is connected."""

    def connect(self, calibrate: bool = True) -> None:
        super().connect(calibrate)
        self.action_features = dict.fromkeys(KEYS[:-1], float)


def arm_with(**attributes):
    return type("Other", (Arm,), attributes)()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        attack("a joint's unit has scale 0", "refused, nothing moves", unit_of(scale=0.0), "scale of 0", id="scale-0"),
        attack(
            "a joint's unit has scale NaN",
            "refused, nothing moves",
            unit_of(scale=math.nan),
            "not a number",
            id="scale-nan",
        ),
        attack(
            "a joint's unit has an infinite offset",
            "refused, nothing moves",
            unit_of(offset=math.inf),
            "not a number",
            id="offset-inf",
        ),
        attack(
            "a joint's unit has a scale that is text",
            "refused, nothing moves",
            unit_of(scale="deg"),
            "",
            id="scale-text",
        ),
        attack(
            "two joints have the same name",
            "refused, nothing moves",
            unit_of(joint="gripper"),
            "occurs twice",
            id="twice",
        ),
        attack(
            "actions come in another order than units",
            "refused, nothing moves",
            Shuffled,
            "action_features are gripper",
            id="order",
        ),
        attack(
            "units change while connecting",
            "refused, nothing moves",
            Changing,
            "has other joints, units or cameras",
            id="units",
        ),
        attack(
            "a joint disappears while connecting",
            "refused, nothing moves",
            Recalibrated,
            "action_features are",
            id="joint",
        ),
        attack(
            "the source of the robot is neither real nor sim",
            "refused, nothing moves",
            lambda: arm_with(source="both"),
            "neither",
            id="source",
        ),
    ],
)
def test_a_driver_that_contradicts_itself(make, said, tmp_path, monkeypatch, capsys, observed):
    arm = make()
    policy_of(monkeypatch, arm)
    code, figures, _ = command(tmp_path, capsys)
    assert code == 2
    assert said in figures["message"]
    assert arm.issued == []
    assert arm.disconnections == arm.connections
    observed(figures["message"])


@pytest.mark.parametrize("scale", [0.0, math.nan])
def test_an_envelope_takes_no_units_of_no_size(scale):
    with pytest.raises(InputError, match="scale of 0"):
        Envelope(TWIN, units=with_units(scale=scale))


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
    assert ran.trip == "robot"
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
    assert (ran.trip, len(ran.steps)) == (None, 60)
    assert "slow" in {event.kind for event in ran.events}
    observed(", ".join(f"{event.kind}: {event.message}" for event in ran.events))


@pytest.mark.attack("Ctrl-C while a real robot is brought home", expected="it stops at once, at rest; nothing begins")
def test_a_person_stops_the_way_home(tmp_path, monkeypatch, capsys, observed):
    def pressed(arm, answer):
        if arm.counts["get_observation"] == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return answer

    arm = arm_with(source="real")
    arm.faults, arm.position = {"get_observation": pressed}, off_home(30.0)
    policy_of(monkeypatch, arm)
    code, figures, _ = command(tmp_path, capsys)
    assert code == 2
    assert "not brought to its home: stopped by hand" in figures["message"]
    assert len(arm.issued) < 15
    assert arm.disconnections == 1
    require_limits(arm, start=off_home(30.0))
    observed(figures["message"])


def test_a_checked_clock_keeps_an_honest_clock():
    arm = Arm()
    clock = CheckedClock(arm.clock, real=False)
    clock.wait_until(2.5)
    clock.wait_until(1.0)
    assert (clock.now(), clock.fault) == (2.5, "")


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
        np.testing.assert_array_equal(one.seen.reading, other.seen.reading)
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
    np.testing.assert_array_equal([s.wanted for s in ran.steps], [s.wanted for s in plain.steps])
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
    assert ran.trip == trip
    assert arm.disconnections == 1
    observed(ran.reason)


@pytest.mark.attack("the policy returns 1.7e308 for every joint", expected="cut to the limits")
def test_a_policy_that_asks_for_the_largest_number(observed):
    arm = Arm()
    ran = run_arm(arm, Sways(lambda seen, command: np.full(6, 1.7e308)))
    require_limits(arm)
    assert ran.trip is None
    observed(f"60 frames, {ran.rulings['limited']} cut")


class Watches:
    """Somebody who looks on, and exits."""

    def __init__(self, error) -> None:
        self._error = error

    def begin(self, episode: int) -> None:
        pass

    def look(self, seen, command) -> Told:
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
    assert (ran.trip, len(ran.steps)) == (None, 60)
    assert "looks on no longer" in ran.events[0].message
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
    assert (ran.trip, len(arm.issued) > 13) == ("stopped", True)
    assert "ZeroDivisionError: a fault of ours" in ran.reason
    observed(ran.reason)


@pytest.mark.parametrize(
    ("picture", "said"),
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
def test_pictures_that_are_none(picture, said, observed):
    class Camera(Arm):
        def get_observation(self):
            return super().get_observation() | {"front": picture if self.counts["get_observation"] > 10 else FRAME}

    arm = Camera()
    arm.observation_features = {**arm.observation_features, "front": (4, 6, 3)}
    ran = run_arm(arm)
    require_limits(arm)
    assert ran.trip == "robot"
    assert said in " ".join(event.message for event in ran.events)
    observed(ran.reason)


FRAME = np.zeros((4, 6, 3), np.uint8)


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
    kept = {int(step.seen.arrays["observation.images.front"].max()) for step in ran.steps}
    assert len(kept) == 20
    observed(f"{len(kept)} different pictures of 20")


@pytest.mark.attack(
    "a robot's connection is used after it was lost for good", expected="an error of ours, at once, every time"
)
def test_a_robot_that_hangs_answers_every_later_call_with_an_error(observed):
    release = threading.Event()
    spoken = Spoken(Arm(get_observation=lambda arm, answer: release.wait(60.0)), patience_s=0.05)
    spoken.connect()
    for _ in range(3):
        with pytest.raises(TwinloopError) as lost:
            spoken.look()
    release.set()
    assert spoken.disconnect() == ""  # it answers again within its time
    observed(lost.value)


class Speechless(RuntimeError):
    """An error that fails to say what it is."""

    def __str__(self) -> str:
        raise SystemExit(0)


@pytest.mark.parametrize(
    "error",
    [
        attack("a driver raises an error whose text calls sys.exit", TRIPS, Speechless(), id="speechless"),
        attack(
            "a driver raises an error with terminal commands", TRIPS, OSError("\x1b[2J\x1b]0;x\x07gone"), id="escape"
        ),
        attack("a driver raises an error of 20 MB", TRIPS, OSError("x" * 20_000_000), id="long"),
        attack("a driver raises an error in rich markup", TRIPS, OSError("[/bold] [link=x]gone[/]"), id="markup"),
    ],
)
def test_errors_with_a_hostile_text(error, tmp_path, monkeypatch, capsys, observed):
    arm = Arm(since=8, send_action=raises(error))
    policy_of(monkeypatch, arm)
    code, figures, shown = command(tmp_path, capsys)
    assert code == 1
    assert "\x1b" not in shown + figures["ended"]
    assert len(figures["ended"]) < 2000
    assert arm.disconnections == 1
    observed(figures["ended"])


@pytest.mark.attack(
    "readings jump away for good and the run is told to go on after trips",
    expected="it does not begin another episode from a position that the arm is not in",
)
def test_a_robot_that_failed_is_not_gone_on_with(tmp_path, monkeypatch, capsys, observed):
    arm = Arm(since=10, get_observation=moved(lambda v: v + off_home(60) - HOME))
    policy_of(monkeypatch, arm)
    code, figures, _ = command(tmp_path, capsys, "--episodes", "3", "--on-trip", "go-on")
    assert (code, figures["episodes"]) == (1, 1)
    require_limits(arm)
    observed(figures["ended"])


OWN = """
from _drivers import Arm

class Mine(Arm):
    def __init__(self, value="9e9"):
        super().__init__(since=10, send_action=lambda arm, sent: sent | {"elbow_flex.pos": float(value)})
"""


@pytest.mark.attack(
    "a driver from a file of one's own returns ticks from send_action",
    expected="twinloop run ends with exit code 1 and names the joint",
)
def test_a_driver_from_a_file(tmp_path, monkeypatch, capsys, observed):
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.setattr("twinloop.loop.run_cell.open_decider", lambda *_, **__: Sways())
    code, figures, _ = command(tmp_path, capsys, "--robot", f"{tmp_path}/mine.py:Mine?value=2048")
    assert code == 1
    assert "sent 2048 to elbow_flex" in figures["ended"]
    observed(figures["ended"])


@pytest.mark.parametrize(
    "value",
    [
        attack("check_robot meets a driver that returns 9e9", "the check fails and says so", 9e9, id="9e9"),
        attack("check_robot meets a driver that returns ticks", "the check fails and says so", 2048.0, id="ticks"),
    ],
)
def test_the_check_of_robots_finds_it(value, observed):
    with pytest.raises(CheckFailedError, match="far from what it was given") as failed:
        check_robot(Arm(send_action=first(value)))
    observed(str(failed.value)[:80])


def test_an_honest_robot_passes_the_check():
    check_robot(Arm())
