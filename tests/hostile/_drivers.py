"""Faulty robot drivers: a recording SO-101 on a fast clock, and the helpers to run it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from twinloop.cli.main import main
from twinloop.core.contract import Contract
from twinloop.hardware.protocol import NotConnectedError
from twinloop.release.envelope import Envelope
from twinloop.release.envelope_settings import EnvelopeSettings
from twinloop.release.running import Runner
from twinloop.release.running_robot import RunOptions, TimedRobot, offered_contract
from twinloop.twin import load_twin

TWIN = load_twin("so101_tabletop")
HOME = TWIN.units.from_si(TWIN.home()[0][TWIN.joint_qpos])
KEYS = [f"{joint}.pos" for joint in TWIN.robot.joints]
ENVELOPE = Envelope(TWIN, EnvelopeSettings(stop_after_s=0.4))
HZ = TWIN.control_hz


class FastClock:
    """Time that passes only where somebody waits for it."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def wait_until(self, moment: float) -> None:
        self.time = max(self.time, moment)


class Arm:
    """An arm that moves most of the way to each command within a control step, and records every command.

    Args:
        faults: replacement of a method's answer, by the method's name: ``fault(arm, answer)``.
        since: the first call with the fault, counted from 0.
        until: the first call without the fault after it.
    """

    name, source, origin, units = "so101_follower", "sim", "arm", TWIN.units
    is_calibrated = True

    def __init__(self, since: int = 0, until: int = 10**6, **faults: Callable[[Arm, Any], Any]) -> None:
        self.faults, self.since, self.until = faults, since, until
        self.clock, self.position = FastClock(), np.array(HOME)
        self.issued: list[np.ndarray] = []  # all that was handed to send_action
        self.taken: list[tuple[float, np.ndarray]] = []  # calls at which it did not raise
        self.counts: dict[str, int] = {}
        self.is_connected, self.connections, self.disconnections = False, 0, 0
        self.observation_features = self.action_features = dict.fromkeys(KEYS, float)

    def answered(self, method: str, answer: Any) -> Any:
        number = self.counts[method] = self.counts.get(method, -1) + 1
        fault = self.faults.get(method)
        return fault(self, answer) if fault is not None and self.since <= number < self.until else answer

    def connect(self, calibrate: bool = True) -> None:
        self.is_connected, self.connections = True, self.connections + 1
        self.answered("connect", None)

    def calibrate(self) -> None:
        pass

    def configure(self) -> None:
        self.answered("configure", None)

    def get_observation(self) -> dict[str, Any]:
        if not self.is_connected:
            raise NotConnectedError("arm is not connected")
        return self.answered("get_observation", dict(zip(KEYS, self.position.tolist(), strict=True)))

    def send_action(self, action: dict[str, float]) -> Any:
        command = np.array([action[key] for key in KEYS])
        self.issued.append(command)
        answer = self.answered("send_action", dict(action))
        self.taken.append((self.clock.time, command))
        self.position = self.position + 0.9 * (command - self.position)
        return answer

    def disconnect(self) -> None:
        self.is_connected, self.disconnections = False, self.disconnections + 1
        self.answered("disconnect", None)


class Sways:
    """A policy that sways three joints about their home, and does something else with its command where that is given.

    Args:
        change: of the command: ``change(observation, command)``.
        since: the step from which on.
    """

    name, hash = "sways", "5" * 64

    def __init__(self, change: Callable[[Any, np.ndarray], Any] | None = None, *, since: int = 0) -> None:
        self.contract: Contract = offered_contract(Arm(), hz=HZ)
        self.step, self._change, self._since = 0, change, since

    def restart(self, episode: int) -> None:
        self.step = 0

    def act(self, observation: Any) -> Any:
        self.step += 1
        command = HOME + 14 * np.sin(self.step / 6) * np.array([1.0, 0.3, 0, 0, 1.5, 0])
        return command if self._change is None or self.step <= self._since else self._change(observation, command)

    def report_sent(self, command: np.ndarray) -> None:
        command[:] = np.nan  # it is the policy's own copy

    def close(self) -> None:
        pass


def run_arm(arm: Any, decider: Any = None, *, steps: int = 60, envelope: Envelope = ENVELOPE, **options: Any) -> Any:
    """Run one episode with the real runner."""
    patience_s = options.pop("robot_patience_s", 5.0)
    spoken = TimedRobot(arm, patience_s=patience_s)
    runner = None
    try:
        spoken.connect()
        runner = Runner(spoken, envelope, decider or Sways(), options.pop("watchers", ()))
        return runner.run(0, RunOptions(steps=steps, **{"patience_s": 5.0, **options}))
    finally:
        if runner is not None:
            runner.close()
        spoken.disconnect()


def require_limits(arm: Arm, envelope: Envelope = ENVELOPE, start: np.ndarray = HOME) -> None:
    """Every command that was handed to the driver keeps every limit, each judged from the one before."""
    limits, units = envelope.limits, envelope.units
    path = units.to_si(np.array([start, *arm.issued]))
    assert np.isfinite(path).all()
    speed = np.diff(path, axis=0) / limits.dt
    change = np.diff(np.vstack([np.zeros(len(start)), speed]), axis=0)
    begun = path[0]
    assert (path >= np.minimum(limits.low, begun) - 1e-9).all()
    assert (path <= np.maximum(limits.high, begun) + 1e-9).all()
    assert (np.abs(speed) <= limits.speed + 1e-6).all()
    assert (np.abs(change) <= limits.max_speed_change + 1e-6).all()
    assert envelope.space.find_first_fault(path[1:]) is None
    # The commands that the driver accepted are no faster than that over the time between.
    times = np.array([moment for moment, _ in arm.taken])
    if len(times) > 1:
        arrived = units.to_si(np.array([command for _, command in arm.taken]))
        elapsed = np.diff(times)[:, None]
        assert (np.abs(np.diff(arrived, axis=0)) <= limits.speed * elapsed * (1 + 1e-9) + 1e-9).all()


def require_rest(arm: Arm, envelope: Envelope = ENVELOPE) -> None:
    """The last commands end at rest: what would come next is no other command."""
    path = envelope.units.to_si(np.array([HOME, HOME, *arm.issued]))[-2:]
    assert (np.abs(path[1] - path[0]) / envelope.limits.dt <= envelope.limits.max_speed_change + 1e-6).all()


def attack(tried: str, expected: str, *values: Any, id: str):  # noqa: A002  # pytest's word
    return pytest.param(*values, marks=pytest.mark.attack(tried, expected=expected), id=id)


TRIPS = "stopped by the robot's own report; no command leaves the limits"

GOES_ON = "goes on within the limits"


class Custom(BaseException):
    """What no driver has a reason to raise."""


def named(values):
    return dict(zip(KEYS, np.asarray(values).tolist(), strict=True))


def off_home(pan=0.0, lift=0.0):
    return HOME + np.array([pan, lift, 0, 0, 0, 0])


def first(value):
    """Replace the value of the first joint."""
    return lambda arm, sent: sent | {KEYS[0]: value}


def moved(change):
    """The values are changed as one array."""
    return lambda arm, answer: named(change(np.array(list(answer.values()))))


def raises(error):
    def fault(arm, answer):
        raise error

    return fault


def arm_with(**attributes):
    return type("Other", (Arm,), attributes)()


def policy_of(monkeypatch, arm, decider=None):
    """Make `run` and `record` use this arm and this policy for any address."""
    monkeypatch.setattr("twinloop.workflows.deploy.parts.open_robot", lambda address: arm)
    monkeypatch.setattr("twinloop.workflows.data.record.open_robot", lambda address: arm)
    monkeypatch.setattr("twinloop.workflows.deploy.parts.open_decider", lambda *_, **__: decider or Sways())


def command(tmp_path, capsys, *words):
    """Run `twinloop run`; returns the exit code, the figures and what people read."""
    given = ["run", "--robot", "arm", "--policy", "p", "--twin", TWIN.name, "--output", str(tmp_path / "out")]
    code = main([*given, "--seconds", "2", "--json", *words])
    shown = capsys.readouterr()
    metrics = json.loads(shown.out.strip().splitlines()[-1])
    assert "Traceback" not in shown.err + shown.out
    return code, metrics, " ".join(shown.err.split())
