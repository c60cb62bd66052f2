"""A driver misreports, fails, hangs or exits during an excitation: motion stops, and the recording is kept."""

from __future__ import annotations

import json
import math
import threading
import time
from typing import Any

import numpy as np
import pytest
from _drivers import HOME, TWIN, Arm, first, raises

from twinloop.cli.main import main
from twinloop.dataset.logs.formats import load_log
from twinloop.hardware.excite import ExcitationPlan, save_excitation
from twinloop.hardware.limits import motion_limits

LIMITS = motion_limits(TWIN)
START = TWIN.home()[1]
STOPS = "the motion stops, exit code 1, what was recorded before is kept, the robot is disconnected"


def attack(tried: str, *values: Any, id: str, expected: str = STOPS):  # noqa: A002  # pytest's word
    return pytest.param(*values, marks=pytest.mark.attack(tried, expected=expected), id=id)


class Exits:
    """A number that ends the program when it is read."""

    def __float__(self) -> float:
        raise SystemExit(0)


def plan_of(path) -> str:
    time = np.arange(60) / 30.0
    blend = np.sin(np.pi * time / time[-1])[:, None] ** 2
    plan = ExcitationPlan(
        twin=TWIN.name,
        twin_hash=TWIN.hash,
        joints=tuple(TWIN.robot.joints),
        control="position",
        hz=30.0,
        commands=START + blend * [0.3, -0.2, 0.2, -0.3, 0.4, 0.2],
        home=START,
        limits=LIMITS,
        tracking_error=np.full(6, 0.25),
    )
    save_excitation(plan, path)
    return str(path)


def recorded(arm, tmp_path, monkeypatch, capsys, *more: str):
    """Run `twinloop record`; returns the exit code, the figures, what people read, and the log if there is one."""
    monkeypatch.setattr("twinloop.workflows.data.record.open_robot", lambda address: arm)
    words = ["record", "--robot", "arm", "--excitation", plan_of(tmp_path / "p.yaml"), "--output"]
    code = main([*words, str(tmp_path / "log"), "--json", *more])
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err + shown.out
    metrics = json.loads(shown.out.strip().splitlines()[-1])
    log = load_log(tmp_path / "log") if (tmp_path / "log").exists() else []
    return code, metrics, " ".join(shown.err.split()), log


def require_plan_limits(arm) -> None:
    """Every command that was handed to the driver keeps range and speed."""
    path = TWIN.units.to_si(np.array([HOME, *arm.issued]))
    assert np.isfinite(path).all()
    assert ((path >= LIMITS.low - 1e-9) & (path <= LIMITS.high + 1e-9)).all()
    assert (np.abs(np.diff(path, axis=0)) * 30.0 <= LIMITS.speed + 1e-6).all()


@pytest.mark.parametrize(
    ("method", "fault", "said"),
    [
        attack("send_action returns 9e9 while recording", "send_action", first(9e9), "reports that it sent", id="9e9"),
        attack("send_action returns NaN while recording", "send_action", first(math.nan), "not a number", id="nan"),
        attack("send_action returns None while recording", "send_action", lambda a, s: None, "NoneType", id="none"),
        attack("send_action returns text while recording", "send_action", first("1"), "str is not", id="text"),
        attack("send_action raises while recording", "send_action", raises(OSError("gone")), "gone", id="raises"),
        attack(
            "send_action calls sys.exit while recording", "send_action", raises(SystemExit(0)), "SystemExit", id="x"
        ),
        attack("send_action interrupts while recording", "send_action", raises(KeyboardInterrupt()), "Keyb", id="ctrl"),
        attack("readings become NaN while recording", "get_observation", first(math.nan), "not a number", id="r-nan"),
        attack(
            "readings become infinite while recording", "get_observation", first(math.inf), "not a number", id="inf"
        ),
        attack("a reading calls sys.exit when converted", "get_observation", first(Exits()), "not a number", id="r-x"),
        attack("a joint's reading disappears", "get_observation", lambda a, s: {}, "KeyError", id="r-missing"),
        attack("get_observation calls sys.exit", "get_observation", raises(SystemExit(0)), "SystemExit", id="o-exit"),
        attack("readings jump by 60 degrees", "get_observation", first(60.0), "from its command", id="jump"),
    ],
)
def test_a_recording_stops_and_is_kept(method, fault, said, tmp_path, monkeypatch, capsys, observed):
    arm = Arm(since=90, **{method: fault})
    code, metrics, _, log = recorded(arm, tmp_path, monkeypatch, capsys)
    assert code == 1
    assert said in metrics["stopped"]
    assert not metrics["completed"]
    require_plan_limits(arm)
    assert arm.disconnections == 1
    [episode] = log
    assert 2 <= len(episode) < 60
    assert np.abs(episode.action).max() < 200
    observed(f"exit code 1, {len(episode)} frames kept: {metrics['stopped']}")


@pytest.mark.parametrize(
    ("method", "error"),
    [
        attack(
            f"{method} raises {type(error).__name__} before anything is recorded",
            method,
            error,
            id=f"{method}-{type(error).__name__}",
            expected="exit code 2, no traceback, the robot is disconnected",
        )
        for method in ("connect", "configure", "get_observation")
        for error in (SystemExit(0), GeneratorExit(), OSError("no such port"))
    ],
)
def test_a_recording_that_cannot_begin(method, error, tmp_path, monkeypatch, capsys, observed):
    arm = Arm(**{method: raises(error)})
    code, metrics, _, log = recorded(arm, tmp_path, monkeypatch, capsys)
    assert (code, log, arm.issued) == (2, [], [])
    assert type(error).__name__ in metrics["message"]
    assert arm.disconnections == 1
    observed(metrics["message"])


@pytest.mark.parametrize(
    "value",
    [
        attack("the first reading is 9e9 before a recording", 9e9, id="9e9", expected="refused, nothing moves"),
        attack(
            "the first reading is in ticks before a recording", 2048.0, id="ticks", expected="refused, nothing moves"
        ),
        attack("the first reading is NaN before a recording", math.nan, id="nan", expected="refused, nothing moves"),
    ],
)
def test_a_recording_that_would_begin_where_no_joint_can_be(value, tmp_path, monkeypatch, capsys, observed):
    arm = Arm(get_observation=first(value))
    code, metrics, _, log = recorded(arm, tmp_path, monkeypatch, capsys)
    assert (code, log, arm.issued) == (2, [], [])
    assert arm.disconnections == 1
    observed(metrics["message"])


@pytest.mark.parametrize("on_abort", ["hold", "return"])
@pytest.mark.attack("readings jump away, and the arm is to come to rest where it reads to be", expected="it stays")
def test_an_arm_is_not_sent_to_where_it_cannot_be(on_abort, tmp_path, monkeypatch, capsys, observed):
    arm = Arm(since=90, get_observation=first(60.0))
    code, *_ = recorded(arm, tmp_path, monkeypatch, capsys, "--on-abort", on_abort)
    assert code == 1
    require_plan_limits(arm)
    furthest = np.abs(np.array(arm.issued)[:, 0] - HOME[0]).max()
    assert furthest < 20
    observed(f"no command further than {furthest:.1f} degrees from home; the reading was 60")


@pytest.mark.attack("a driver says how hot its drives are, and exits", expected=STOPS)
def test_vitals_that_exit(tmp_path, monkeypatch, capsys, observed):
    class Vital(Arm):
        def get_vitals(self):
            if len(self.issued) > 80:
                raise SystemExit(0)
            return {"elbow_flex.temperature": 30.0}

    arm = Vital()
    code, metrics, shown, [episode] = recorded(arm, tmp_path, monkeypatch, capsys)
    assert code == 1
    assert "SystemExit" in metrics["stopped"]
    assert "temperature" in shown  # the report names the monitored readings
    observed(f"{len(episode)} frames kept: {metrics['stopped']}")


@pytest.mark.attack("get_observation never returns while recording", expected=STOPS + ", in time")
def test_a_reading_that_never_comes(tmp_path, monkeypatch, capsys, observed):
    release = threading.Event()
    arm = Arm(since=90, get_observation=lambda arm, answer: release.wait(60.0))
    monkeypatch.setattr("twinloop.workflows.data.record._PATIENCE_S", 0.1)
    monkeypatch.setattr("twinloop.hardware.driver._FAREWELL_S", 0.1)
    began = time.perf_counter()
    code, metrics, _, [episode] = recorded(arm, tmp_path, monkeypatch, capsys)
    release.set()
    assert code == 1
    assert time.perf_counter() - began < 20.0
    assert "has not answered" in metrics["stopped"]
    assert "could not be disconnected, switch it off by hand" in metrics["stopped"]
    observed(f"{len(episode)} frames kept: {metrics['stopped']}")


@pytest.mark.attack(
    "disconnect raises after a complete recording", expected="the recording is kept whole, exit code 1 says why"
)
def test_a_robot_that_cannot_be_disconnected(tmp_path, monkeypatch, capsys, observed):
    arm = Arm(disconnect=raises(SystemExit(0)))
    code, metrics, shown, [episode] = recorded(arm, tmp_path, monkeypatch, capsys)
    assert (code, len(episode)) == (1, 60)
    assert "the robot could not be disconnected, switch it off by hand" in shown
    observed(metrics["stopped"])
