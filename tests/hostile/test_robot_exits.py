"""Drivers that exit, hang or contradict themselves: the robot is disconnected, and the run reports the reason."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from dataclasses import replace

import pytest
from _drivers import (
    KEYS,
    TRIPS,
    TWIN,
    Arm,
    Custom,
    Sways,
    arm_with,
    attack,
    command,
    first,
    off_home,
    policy_of,
    raises,
    require_limits,
)

from twinloop.core.errors import CheckFailedError, InputError, TwinloopError
from twinloop.core.units import UnitMap
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.hardware import check_robot
from twinloop.release.envelope import Envelope
from twinloop.release.running_robot import TimedRobot

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
    code, metrics, shown = command(tmp_path, capsys)
    assert code in (1, 2)
    assert arm.disconnections >= 1
    require_limits(arm) if arm.issued else None
    recorded = (tmp_path / "out").exists() and DatasetReader(tmp_path / "out").lengths
    assert bool(recorded) == (method not in ("connect", "configure"))
    assert type(error).__name__ in shown
    observed(f"exit code {code}, disconnected: {metrics.get('ended') or metrics.get('message')}")


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
    code, metrics, _ = command(tmp_path, capsys)
    assert code == 2
    assert (arm.connections, arm.issued) == (0, [])
    assert not (tmp_path / "out").exists()
    observed(metrics["message"])


@pytest.mark.attack("the robot's own judge calls sys.exit", expected="noted, and the episode goes on without a judge")
def test_a_judge_that_exits(tmp_path, monkeypatch, capsys, observed):
    kind = type("Judged", (Arm,), {"success": lambda self: raises(SystemExit(0))(self, None)})
    arm = kind()
    policy_of(monkeypatch, arm)
    code, metrics, _ = command(tmp_path, capsys)
    assert (code, metrics["frames"], metrics["judged"]) == (0, 60, 0)
    assert arm.disconnections == 1
    observed(f"60 frames, {metrics['judged']} judged")


@pytest.mark.attack(
    "disconnect never returns", expected="the run ends in time with exit code 1 and says that the robot is connected"
)
def test_a_driver_that_never_disconnects(tmp_path, monkeypatch, capsys, observed):
    release = threading.Event()
    arm = Arm(disconnect=lambda arm, answer: release.wait(60.0))
    policy_of(monkeypatch, arm)
    monkeypatch.setattr("twinloop.workflows.deploy.parts.PATIENCE_S", 0.2)
    began = time.perf_counter()
    code, metrics, _ = command(tmp_path, capsys)
    release.set()
    assert (code, metrics["frames"]) == (1, 60)
    assert "the robot could not be disconnected, switch it off by hand" in metrics["ended"]
    assert time.perf_counter() - began < 20.0
    observed(metrics["ended"])


@pytest.mark.attack(
    "a robot's connection is used after it was lost for good", expected="an error of ours, at once, every time"
)
def test_a_robot_that_hangs_answers_every_later_call_with_an_error(observed):
    release = threading.Event()
    spoken = TimedRobot(Arm(get_observation=lambda arm, answer: release.wait(60.0)), patience_s=0.05)
    spoken.connect()
    for _ in range(3):
        with pytest.raises(TwinloopError) as lost:
            spoken.read_observation()
    release.set()
    assert spoken.disconnect() == ""  # it answers again within its time
    observed(lost.value)


def with_units(**changes):
    rows = [replace(unit, **changes) if n == 0 else unit for n, unit in enumerate(TWIN.units.joints)]
    return UnitMap(joints=tuple(rows), source="a driver")


def unit_of(**changes):
    return lambda: arm_with(units=with_units(**changes))


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
    code, metrics, _ = command(tmp_path, capsys)
    assert code == 2
    assert said in metrics["message"]
    assert arm.issued == []
    assert arm.disconnections == arm.connections
    observed(metrics["message"])


@pytest.mark.parametrize("scale", [0.0, math.nan])
def test_an_envelope_takes_no_units_of_no_size(scale):
    with pytest.raises(InputError, match="scale of 0"):
        Envelope(TWIN, units=with_units(scale=scale))


class Speechless(RuntimeError):
    """An error whose message cannot be computed."""

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
    code, metrics, shown = command(tmp_path, capsys)
    assert code == 1
    assert metrics["trips"][0]["kind"] == "robot"
    assert "\x1b" not in shown + metrics["ended"]
    assert len(metrics["ended"]) < 2000
    assert arm.disconnections == 1
    observed(metrics["ended"])


@pytest.mark.attack("Ctrl-C while a real robot is brought home", expected="it stops at once, at rest; nothing begins")
def test_a_person_stops_the_way_home(tmp_path, monkeypatch, capsys, observed):
    def pressed(arm, answer):
        if arm.counts["get_observation"] == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return answer

    arm = arm_with(source="real")
    arm.faults, arm.position = {"get_observation": pressed}, off_home(30.0)
    policy_of(monkeypatch, arm)
    code, metrics, _ = command(tmp_path, capsys)
    assert code == 2
    assert "did not reach its home pose: stopped by hand" in metrics["message"]
    assert len(arm.issued) < 15
    assert arm.disconnections == 1
    require_limits(arm, start=off_home(30.0))
    observed(metrics["message"])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=pytest.mark.attack(
                f"{name} reaches the program while an arm moves",
                expected="it brakes, disconnects and keeps the episode",
            ),
        )
        for name in ("SIGINT", "SIGTERM", "SIGHUP")
    ],
)
def test_a_signal_stops_the_robot(name, tmp_path, monkeypatch, capsys, observed, request):
    def sent(arm, answer):
        if arm.counts["get_observation"] == 20:
            os.kill(os.getpid(), getattr(signal, name))
        return answer

    # Under nohup SIGHUP is ignored, and stays so.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    request.addfinalizer(lambda: signal.signal(signal.SIGHUP, before))
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    arm = Arm(get_observation=sent)
    policy_of(monkeypatch, arm)
    code, metrics, _ = command(tmp_path, capsys)
    assert code in (0, 1)
    assert metrics["ended"] == "stopped by hand"
    assert arm.disconnections == 1
    require_limits(arm)
    assert DatasetReader(tmp_path / "out").lengths[0] < 60
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers
    observed(f"exit code {code}, {metrics['ended']}, disconnected")


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
    monkeypatch.setattr("twinloop.workflows.deploy.parts.open_decider", lambda *_, **__: Sways())
    code, metrics, _ = command(tmp_path, capsys, "--robot", f"{tmp_path}/mine.py:Mine?value=2048")
    assert code == 1
    assert "sent 2048 to elbow_flex" in metrics["ended"]
    observed(metrics["ended"])


@pytest.mark.parametrize(
    "value",
    [
        attack("check_robot meets a driver that returns 9e9", "the check fails and says so", 9e9, id="9e9"),
        attack("check_robot meets a driver that returns ticks", "the check fails and says so", 2048.0, id="ticks"),
    ],
)
def test_the_check_of_robots_finds_it(value, observed):
    with pytest.raises(CheckFailedError, match="far from the given") as failed:
        check_robot(Arm(send_action=first(value)))
    observed(str(failed.value)[:80])


def test_an_honest_robot_passes_the_check():
    check_robot(Arm())
