"""Drivers that misreport or omit a command: no command leaves the limits, and the run reports it."""

from __future__ import annotations

import math
import threading
import time

import numpy as np
import pytest
from _drivers import (
    ENVELOPE,
    GOES_ON,
    HOME,
    HZ,
    KEYS,
    TRIPS,
    TWIN,
    Arm,
    Custom,
    Sways,
    attack,
    command,
    first,
    moved,
    named,
    off_home,
    policy_of,
    raises,
    require_limits,
    run_arm,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.side_tables import open_side_table
from twinloop.release.envelope import Envelope
from twinloop.release.envelope_settings import EnvelopeSettings
from twinloop.release.running_record import STEPS


class Exits:
    """A number that ends the program when it is read."""

    def __float__(self) -> float:
        raise SystemExit(0)


class Raises(dict):
    """A dictionary that raises an interrupt when it is read."""

    def __getitem__(self, key: str) -> float:
        raise KeyboardInterrupt


def every(value):
    """Replace the values of all joints."""
    return lambda arm, sent: dict.fromkeys(KEYS, value)


def near_reading(arm: Arm, sent: dict[str, float]) -> dict[str, float]:
    values = np.array(list(sent.values()))
    return named(np.clip(values, arm.position - 3, arm.position + 3))


def drifting(arm: Arm, sent: dict[str, float]) -> dict[str, float]:
    return {key: value + 0.2 * len(arm.issued) for key, value in sent.items()}


def stale(arm: Arm, sent: dict[str, float]) -> dict[str, float]:
    return dict(zip(KEYS, arm.issued[max(0, len(arm.issued) - 15)].tolist(), strict=True))


def emptied(arm: Arm, sent: dict[str, float]) -> dict[str, float]:
    sent.clear()
    return sent


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
    attack("send_action returns None", TRIPS, lambda arm, sent: None, "did not return the sent command", id="None"),
    attack("send_action returns a list", TRIPS, lambda arm, sent: list(sent.values()), "did not return", id="list"),
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
    assert ran.end_kind == "robot"
    assert said in " ".join(event.message for event in ran.events)
    assert len(ran.steps) < 45
    assert arm.disconnections == 1
    assert np.isfinite([step.issued for step in ran.steps]).all()
    observed(f"tripped after {len(ran.steps)} of 60 frames: {ran.reason}")


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
    assert (ran.end_kind, len(ran.steps)) == (None, 60)
    observed("60 of 60 frames, nothing tripped")


@pytest.mark.attack(
    "the robot holds at its own narrow limit while the policy commands 60 degrees beyond",
    expected="commands run ahead of it by a step and the braking distance at most, and it never lunges",
)
def test_commands_do_not_run_ahead_of_a_robot_that_cuts_them(observed):
    arm = Narrow()
    ran = run_arm(arm, Sways(lambda seen, command: off_home(60.0)))
    require_limits(arm)
    assert ran.end_kind is None
    step = np.rad2deg(ENVELOPE.limits.speed[0]) / HZ
    ahead = max(command[0] for command in arm.issued) - HOME[0] - 5
    assert ahead <= 2 * step
    assert {cut.rule for step in ran.steps[30:] for cut in step.decision.changes} == {"robot"}
    assert max(step.issued[0] for step in ran.steps) == pytest.approx(HOME[0] + 5)  # the record holds the sent commands
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
    assert (ran.end_kind, len(ran.steps)) == (None, 60)
    observed("60 of 60 frames, nothing tripped")


@pytest.mark.attack(
    "the driver says that each command was cut to somewhere else, always as far as is believed",
    expected="the robot is never moved by it",
)
def test_a_driver_cannot_steer_by_believable_reports(observed):
    arm = Arm(send_action=lambda arm, sent: {key: value + 1.9 for key, value in sent.items()})  # 2 % of 100, of 190
    ran = run_arm(arm, Sways(lambda seen, command: HOME))
    assert ran.end_kind is None
    np.testing.assert_allclose(arm.issued, np.tile(HOME, (60, 1)), atol=1e-9)
    observed("60 commands, all of them what the policy asked for")


@pytest.mark.attack(
    "readings creep away by 1 degree at each step, and the driver says that it sent what it reads",
    expected="the robot is never moved by it",
)
def test_a_driver_cannot_steer_by_readings_that_creep(observed):
    def creeps(arm, answer):
        return answer | {KEYS[0]: HOME[0] + arm.counts["get_observation"]}

    arm = Arm(get_observation=creeps, send_action=lambda arm, sent: sent | {KEYS[0]: HOME[0] + len(arm.issued)})
    ran = run_arm(arm, Sways(lambda seen, command: HOME))
    assert (ran.end_kind, len(ran.steps)) == (None, 60)
    np.testing.assert_allclose(arm.issued, np.tile(HOME, (60, 1)), atol=1e-9)
    observed("60 commands, all of them what the policy asked for; the last reading was 60 degrees off")


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
    assert ran.end_kind == "robot"
    assert "did not take" in ran.reason
    assert len(ran.steps) <= most + 15  # the way to rest is on the record
    assert ran.unsent_count == sum(not step.sent for step in ran.steps) > 0
    assert sum(ran.decision_counts.values()) == len(ran.steps) - ran.unsent_count
    assert arm.disconnections == 1
    observed(f"{ran.unsent_count} of {len(ran.steps)} not taken: {ran.reason}")


@pytest.mark.attack(
    "3 of 60 commands fail, far apart", expected="goes on; the three are counted as not taken and none as passed"
)
def test_a_few_failed_commands_are_counted(observed):
    arm = Arm(send_action=now_and_then(1 / 18))
    ran = run_arm(arm)
    require_limits(arm)
    assert (ran.end_kind, ran.unsent_count, len(ran.steps)) == (None, 3, 60)
    assert ran.decision_counts["held"] == 3  # after each of them the robot brakes for a step
    before = [step.issued for step in ran.steps]
    for number, step in enumerate(ran.steps):
        if not step.sent:
            np.testing.assert_allclose(step.issued, before[number - 1])  # the last one that it took
    observed(f"60 frames, {ran.unsent_count} not taken, {ran.decision_counts['passed']} passed")


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
    assert (ran.end_kind, ran.unsent_count) == (None, 3)
    observed("3 lost answers, every issued command within the limits")


@pytest.mark.attack("send_action never returns", expected="tripped in time, braking is given up, and the run ends")
def test_a_driver_that_hangs_in_writing(observed):
    release = threading.Event()
    arm = Arm(since=8, send_action=lambda arm, answer: release.wait(60.0))
    began = time.perf_counter()
    ran = run_arm(arm, robot_patience_s=0.05)
    release.set()
    assert ran.end_kind == "robot"
    assert time.perf_counter() - began < 10.0
    require_limits(arm)
    observed(ran.reason)


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
    assert ran.unsent_count == sum(not step.sent for step in ran.steps)
    assert arm.disconnections == 1


@pytest.mark.attack(
    "twinloop run with a driver whose send_action raises in 40 of 60 frames",
    expected="exit code 1; failed commands are counted, and none of them as passed",
)
def test_the_command_counts_what_the_robot_did_not_take(tmp_path, monkeypatch, capsys, observed):
    policy_of(monkeypatch, Arm(send_action=now_and_then(2 / 3)))
    code, metrics, shown = command(tmp_path, capsys)
    assert code == 1
    failed, issued = metrics["commands"]["failed"], metrics["commands"]["issued"]
    assert failed > 0
    assert sum(metrics["envelope"].values()) == issued == metrics["frames"] - failed
    assert metrics["trips"][0]["kind"] == "robot"
    assert f"The robot did not take {failed} of {metrics['frames']} commands" in shown
    assert "Ended early: the robot did not take" in shown
    sent = open_side_table(tmp_path / "out", STEPS).to_table()["sent"].to_pylist()
    assert sent.count(False) == failed
    run = DatasetReader(tmp_path / "out").provenance(0).extra["run"]
    assert (run["unsent"], sum(run["envelope"].values())) == (failed, issued)
    observed(f"exit code 1, {failed} of {metrics['frames']} failed, envelope {metrics['envelope']}")


@pytest.mark.attack(
    "twinloop run with a driver that returns 9e9 from send_action",
    expected="exit code 1, the joint and the value named, the dataset holds the issued commands",
)
def test_the_command_names_what_the_driver_returned(tmp_path, monkeypatch, capsys, observed):
    arm = Arm(since=10, send_action=first(9e9))
    policy_of(monkeypatch, arm)
    code, metrics, shown = command(tmp_path, capsys)
    assert code == 1
    require_limits(arm)
    assert "the driver reports that it sent 9e+09 to shoulder_pan; the command was" in shown
    reader = DatasetReader(tmp_path / "out")
    actions = np.stack(reader.frames_table(0, ["action"])["action"].to_numpy())
    assert np.abs(actions).max() < 200
    observed(metrics["trips"][0]["reason"])


@pytest.mark.attack(
    "readings jump away for good and the run is told to go on after trips",
    expected="it does not begin another episode from a position that the arm is not in",
)
def test_a_robot_that_failed_is_not_gone_on_with(tmp_path, monkeypatch, capsys, observed):
    arm = Arm(since=10, get_observation=moved(lambda v: v + off_home(60) - HOME))
    policy_of(monkeypatch, arm)
    code, metrics, _ = command(tmp_path, capsys, "--episodes", "3", "--on-trip", "go-on")
    assert (code, metrics["episodes"]) == (1, 1)
    require_limits(arm)
    observed(metrics["ended"])
