"""LeRobot's own SO-101 driver and Feetech's own library on an emulated servo bus, driven by `twinloop run`.

Needs an interpreter that has twinloop, LeRobot and feetech-servo-sdk, as ``scripts/lerobot_env.sh`` makes one; where it
is another than the one that runs the tests, ``tests/release/test_run_lerobot.py`` has it run this file.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import threading
import time

import numpy as np
import pytest

from support.feetech_bus import GOAL, OVERLOAD, TORQUE, VOLTAGE_ERROR, FeetechBus, Lag
from twinloop.cli.main import main
from twinloop.core.contract import STATE
from twinloop.core.errors import InputError
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.hardware import open_robot
from twinloop.hardware.lerobot_bus import ServoFaultError
from twinloop.hardware.protocol import NotConnectedError
from twinloop.release.envelope import Envelope
from twinloop.release.envelope_settings import EnvelopeSettings
from twinloop.release.running import Runner
from twinloop.release.running_robot import RunOptions, TimedRobot, offered_contract
from twinloop.train.lerobot_side import declare_torchvision_operators
from twinloop.twin import load_twin

pytest.importorskip("lerobot")
pytest.importorskip("scservo_sdk")
declare_torchvision_operators()
pytestmark = pytest.mark.slow

JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
# Homing offset and swept range by id: (offset, low, high); the middle is the twin's zero, except gripper and roll.
CALIBRATION = {
    1: (-85, 790, 3260),
    2: (1047, 850, 3200),
    3: (-1024, 900, 3130),
    4: (12, 870, 3220),
    5: (303, 0, 4095),
    6: (-2047, 2030, 3490),
}
DEGREE = 4095 / 360
PATIENT = 15
MAX_AGE_S = 0.2 * PATIENT
TWIN = load_twin("so101_tabletop")
HOME = TWIN.units.from_si(TWIN.home()[0][TWIN.joint_qpos])


@pytest.fixture(autouse=True)
def _in_time(monkeypatch):
    """All waiting is PATIENT times as long as it is usual, for machines that stop for half a second at times.

    LeRobot gives a bus 50 ms for an answer (``patch_setPacketTimeout``), the envelope 0.2 s.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(2e-4)

    def patient(port, length):
        port.packet_start_time = port.getCurrentTime()
        port.packet_timeout = PATIENT * (port.tx_time_per_byte * (length + 3.0) + 50)

    monkeypatch.setattr("lerobot.motors.feetech.feetech.patch_setPacketTimeout", patient)
    monkeypatch.setattr("twinloop.hardware.lerobot_bus.LATE_S", 0.05 * PATIENT)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def bus():
    """Six servos half a turn from their encoders' zero, whose last goals are somewhere else."""
    plant = Lag({number: 2047.0 + offset for number, (offset, _, _) in CALIBRATION.items()})
    with FeetechBus(plant) as made:
        made.calibrate(CALIBRATION)
        for number in CALIBRATION:
            made.registers[number][GOAL : GOAL + 2] = (2400).to_bytes(2, "little")
        yield made


@pytest.fixture
def address(bus, tmp_path):
    rows = {
        joint: {"id": n, "drive_mode": 0, "homing_offset": CALIBRATION[n][0], "range_min": CALIBRATION[n][1],
                "range_max": CALIBRATION[n][2]}
        for n, joint in enumerate(JOINTS, start=1)
    }  # fmt: skip
    path = tmp_path / "my_arm.json"
    path.write_text(json.dumps(rows))
    return f"lerobot:so101?port={bus.path}&calibration={path}"


@pytest.fixture
def arm(address):
    robot = open_robot(address)
    robot.connect()
    yield robot
    robot.disconnect()


def positions(robot) -> np.ndarray:
    seen = robot.get_observation()
    return np.array([seen[f"{joint}.pos"] for joint in JOINTS])


def commanded(values) -> dict[str, float]:
    return {f"{joint}.pos": float(value) for joint, value in zip(JOINTS, values, strict=True)}


def test_lerobot_reads_and_moves_the_servos(bus, arm):
    middles = np.array([(low + high) / 2 for _, low, high in CALIBRATION.values()])
    wanted = (2047 - middles) / DEGREE
    wanted[5] = (2047 - 2030) / (3490 - 2030) * 100
    np.testing.assert_allclose(positions(arm), wanted, atol=1e-9)
    angles = arm.units.to_si(wanted)
    np.testing.assert_allclose(angles[:5], (2047 - middles[:5]) * 2 * np.pi / 4095, atol=1e-9)

    goal = wanted + np.array([10, -15, 20, 5, -30, 25])
    sent = arm.send_action(commanded(goal))
    assert list(sent.values()) == pytest.approx(goal)
    time.sleep(0.3)
    np.testing.assert_allclose(positions(arm), goal, atol=360 / 4095)  # LeRobot cuts to whole ticks
    assert bus.goal(1) == int(goal[0] * DEGREE + middles[0]) - 85
    assert [bus.registers[n][21] for n in CALIBRATION] == [16] * 6  # LeRobot's P
    assert bus.word(6, 16) == 500


def test_it_stands_still_while_it_is_connected(bus, address):
    """The servos' last goals are 31 degrees away; torque is switched on at the present positions."""
    robot = open_robot(address)
    robot.connect()
    time.sleep(0.2)
    assert max(bus.plant.furthest.values()) <= 1
    assert all(bus.registers[n][TORQUE] == 1 for n in CALIBRATION)
    robot.disconnect()
    assert all(bus.registers[n][TORQUE] == 1 for n in CALIBRATION)  # it holds


def test_both_units_mean_the_same_angles(bus, address):
    read = []
    for degrees in ("true", "false"):
        robot = open_robot(f"{address}&use_degrees={degrees}")
        robot.connect()
        read.append(robot.units.to_si(positions(robot)))
        robot.disconnect()
    np.testing.assert_allclose(read[0], read[1], atol=1e-9)


def test_an_arm_that_holds_another_calibration_is_refused(bus, address):
    bus.calibrate({3: (-1024, 900, 3131)})
    spoken = TimedRobot(open_robot(address), patience_s=5.0)
    with pytest.raises(InputError, match="is not calibrated, so its readings mean nothing"):
        spoken.connect()
    spoken.disconnect()
    robot = open_robot(address)
    robot._robot.bus.connect()
    robot._robot.bus.write_calibration(robot._robot.calibration)  # what lerobot-calibrate does with a file
    assert robot.is_calibrated
    robot.disconnect()


def test_a_motor_that_is_not_there_is_said_and_the_port_closed(bus, address):
    bus.faults.silent = {4}
    robot = open_robot(address)
    with pytest.raises(RuntimeError, match=r"Missing motor IDs:\s+- 4"):
        robot.connect()
    assert not robot.is_connected
    with pytest.raises(NotConnectedError):
        robot.get_observation()
    bus.faults.silent = set()
    robot.connect()
    assert robot.is_connected
    robot.disconnect()


def test_lost_and_corrupt_answers_cost_one_reading(bus, arm):
    before = positions(arm)
    for fault in ("lost", "corrupt"):
        first = len(bus.requests) + 1
        setattr(bus.faults, fault, lambda number, first=first: number == first)
        began = time.perf_counter()
        with pytest.raises(ConnectionError, match="Present_Position"):
            arm.get_observation()
        assert time.perf_counter() - began < 0.1 * PATIENT
        np.testing.assert_array_equal(positions(arm), before)
        setattr(bus.faults, fault, lambda _: False)


def test_after_a_late_answer_readings_are_of_now(bus, arm):
    """Left in the buffer, it would be the next reading, and every reading from then on one step old."""
    first = len(bus.requests) + 1
    bus.faults.late_s = lambda number: 0.12 * PATIENT if number == first else 0.0
    with pytest.raises(ConnectionError):
        arm.get_observation()
    for number in CALIBRATION:
        bus.plant.at[number] += 100
        bus.plant.goals[number] = None
    time.sleep(0.12 * PATIENT)
    here = positions(arm)
    middles = np.array([(low + high) / 2 for _, low, high in CALIBRATION.values()])
    np.testing.assert_allclose(here[:5], ((2147 - middles) / DEGREE)[:5], atol=1e-9)


@pytest.mark.parametrize(
    ("number", "bits", "said"),
    [
        (3, OVERLOAD, "elbow_flex reports overload"),
        (2, VOLTAGE_ERROR | 4, "shoulder_lift reports voltage and overheated"),
        (6, OVERLOAD | 8, "gripper reports overcurrent"),
    ],
)
def test_a_servo_that_is_not_well_is_heard(bus, arm, number, bits, said):
    positions(arm)
    bus.faults.errors = {number: bits}
    time.sleep(0.55)
    for _ in range(2):  # from then on at every reading
        with pytest.raises(ServoFaultError, match=said):
            arm.get_observation()
    bus.faults.errors = {6: OVERLOAD}  # the gripper holds a thing
    positions(arm)
    time.sleep(0.55)
    positions(arm)


def test_torque_is_taken_off_all_that_answer(bus, address):
    robot = open_robot(f"{address}&torque_off=true")
    robot.connect()
    bus.faults.silent = {2}
    with pytest.raises(ServoFaultError, match="The torque of shoulder_lift is still on"):
        robot.disconnect()
    assert [bus.registers[n][TORQUE] for n in CALIBRATION] == [0, 1, 0, 0, 0, 0]
    assert not robot.is_connected


class Sways:
    """A decider that swings the first joint to and fro, and at some steps calls something."""

    name, hash = "sways", "5" * 64

    def __init__(self, contract, then=None) -> None:
        self.contract, self._then, self._step, self._middle = contract, then or {}, 0, None

    def restart(self, episode: int) -> None:
        self._step, self._middle = 0, None

    def act(self, observation) -> np.ndarray:
        self._middle = observation[STATE].copy() if self._middle is None else self._middle
        self._then.get(self._step, lambda: None)()
        self._step += 1
        return self._middle + np.array([12 * np.sin(self._step / 6), 0, 0, 0, 0, 0])

    def report_sent(self, command) -> None:
        pass

    def close(self) -> None:
        pass


def encoder(number: int, value: float) -> float:
    """A motor's ticks where LeRobot is to read ``value``: degrees, or a share of the gripper's range in percent."""
    offset, low, high = CALIBRATION[number]
    return offset + (low + value / 100 * (high - low) if number == 6 else (low + high) / 2 + value * DEGREE)


@pytest.fixture
def at_home(bus, address):
    """The arm is at the twin's home position, and its readings use the twin's units."""
    for number, value in enumerate(HOME, start=1):
        bus.plant.at[number] = encoder(number, value)
    return f"{address}&units=so101_tabletop"


def ran_with(address: str, then=None, *, steps: int = 45):
    robot = open_robot(address)
    contract = offered_contract(robot, hz=30.0)
    spoken = TimedRobot(robot, patience_s=MAX_AGE_S)
    spoken.connect()
    envelope = Envelope(TWIN, EnvelopeSettings(stop_after_s=2.0, max_age_s=MAX_AGE_S), units=robot.units, hz=30.0)
    runner = Runner(spoken, envelope, Sways(contract, then))
    try:
        return runner.run(0, RunOptions(steps=steps))
    finally:
        runner.close()
        spoken.disconnect()


def test_the_arm_follows_a_policy_through_the_envelope(bus, at_home):
    ran = ran_with(at_home, steps=60)
    assert ran.end_kind is None, ran.reason
    issued = np.array([step.issued for step in ran.steps])
    read = np.array([step.observation.reading for step in ran.steps])
    assert np.ptp(issued[:, 0]) > 15
    lagged = np.abs(read[3:, 0] - issued[1:-2, 0])  # read two steps after the command; the servos take 30 ms
    assert np.median(lagged) < 3
    assert np.abs(read[:, 1:] - issued[:, 1:]).max() < 1
    assert bus.goal(1) == pytest.approx(encoder(1, issued[-1, 0]), abs=1.5)


def test_a_lost_answer_holds_for_a_step_and_goes_on(bus, at_home):
    def lose():
        first = len(bus.requests)
        bus.faults.lost = lambda number: first < number <= first + 2  # a command, which has no answer, and a reading

    ran = ran_with(at_home, {10: lose})
    assert ran.end_kind is None, ran.reason
    assert any(event.kind == "robot" for event in ran.events)
    assert len(ran.steps) == 45


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda bus: bus.faults.silent.add(3), "does not answer: ConnectionError: Failed to sync read"),
        (lambda bus: bus.faults.errors.update({3: OVERLOAD}), "elbow_flex reports overload"),
        (lambda bus: bus.unplug(), "does not answer|has not answered|still has not"),
    ],
    ids=["a servo falls silent", "a servo is overloaded", "the plug is pulled"],
)
def test_what_does_not_come_back_ends_the_run_and_the_servos_hold(bus, at_home, fault, said):
    ran = ran_with(at_home, {15: lambda: fault(bus)}, steps=150)
    assert ran.end_kind == "robot", (ran.end_kind, ran.reason, ran.events)
    events = [event for event in ran.events if event.kind == "robot"]
    assert re.search(said, events[0].message), events
    frames = events[0].frame
    assert len(ran.steps) < 140
    assert {step.decision.kind for step in ran.steps[frames + 1 :]} <= {"held", "stopped"}
    np.testing.assert_array_equal(ran.steps[-1].issued, ran.steps[-3].issued)  # at rest
    assert all(bus.registers[number][TORQUE] == 1 for number in CALIBRATION)


def test_answers_that_are_always_late_end_the_run(bus, at_home):
    def slow():
        bus.faults.late_s = lambda _: 0.08 * PATIENT

    ran = ran_with(at_home, {12: slow}, steps=90)
    assert ran.end_kind in ("robot", "stopped"), ran.reason
    assert len(ran.steps) < 60


class Cell:
    """The virtual robot at its task behind the servos, in a thread: a control step every 33 ms, or later."""

    def __init__(self, seed: int) -> None:
        self.robot = open_robot(f"virtual:so101_tabletop?seed={seed}&task=pick_and_place")
        self.robot.connect()
        self.steps, self._goals = 0, dict.fromkeys(CALIBRATION)
        self._seen, self._stop = self.robot.get_observation(), threading.Event()
        self._rest = self._seen  # its position before any torque; commanded to its sagging readings, it would sink
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def ticks(self, number: int) -> int:
        return round(encoder(number, self._seen[f"{JOINTS[number - 1]}.pos"]))

    def go(self, number: int, ticks: int | None) -> None:
        self._goals[number] = ticks

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def _live(self) -> None:
        due = time.perf_counter()
        while not self._stop.is_set():
            goals = dict(self._goals)
            told = {
                f"{joint}.pos": self._rest[f"{joint}.pos"] if goals[n] is None else self._value(n, goals[n])
                for n, joint in enumerate(JOINTS, start=1)
            }
            self.robot.send_action(told)
            self.robot.clock.wait_until(self.robot.clock.now() + 1 / 30)
            self._seen = self.robot.get_observation()
            self.steps += 1
            due = max(due + 1 / 30, time.perf_counter())
            time.sleep(max(0.0, due - time.perf_counter()))

    @staticmethod
    def _value(number: int, ticks: int) -> float:
        offset, low, high = CALIBRATION[number]
        if number == 6:
            return (ticks - offset - low) / (high - low) * 100
        return (ticks - offset - (low + high) / 2) / DEGREE


def test_the_command_runs_a_policy_on_lerobots_arm(tmp_path, monkeypatch, capsys):
    """A policy with joint inputs only, trained on four simulated episodes; the bus drives the virtual robot."""
    monkeypatch.setattr("sys.stdin", io.StringIO())  # the user does not press Enter
    (tmp_path / "sim.yaml").write_text("scene: {robot: so101, task: pick_and_place}\nrollout: {parallel_envs: 4}\n")
    assert main(["generate", str(tmp_path / "sim.yaml"), "--output", str(tmp_path / "sim"), "--episodes", "4"]) == 0
    words = ["train", "--policy", "mlp", "--data", str(tmp_path / "sim"), "--inputs", "state", "--steps", "200"]
    assert main([*words, "--output", str(tmp_path / "mlp"), "--set", "width=64"]) == 0
    with contextlib.closing(Cell(seed=3)) as cell, FeetechBus(cell) as bus:
        bus.calibrate(CALIBRATION)
        rows = {
            joint: dict(zip(("id", "drive_mode", "homing_offset", "range_min", "range_max"), (n, 0, *CALIBRATION[n]),
                            strict=True))
            for n, joint in enumerate(JOINTS, start=1)
        }  # fmt: skip
        (tmp_path / "my_arm.json").write_text(json.dumps(rows))
        robot = f"lerobot:so101?port={bus.path}&calibration={tmp_path / 'my_arm.json'}&units=so101_tabletop"
        (tmp_path / "envelope.yaml").write_text(f"max_age_s: {MAX_AGE_S}\n")
        words = ["run", "--robot", robot, "--twin", "so101_tabletop", "--policy", str(tmp_path / "mlp"), "--json"]
        words += ["--envelope", str(tmp_path / "envelope.yaml")]
        assert main([*words, "--seconds", "4", "--episodes", "1", "--output", str(tmp_path / "ran")]) == 0
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    print(metrics)  # noqa: T201 - the figures of docs/guides/deployment.md
    assert (metrics["episodes"], metrics["trips"]) == (1, [])
    reader = DatasetReader(tmp_path / "ran")
    assert reader.lengths.tolist() == [120]
    assert reader.spec.robot_type == "so101_follower"
    action, state = reader.array(0, "action"), reader.array(0, "observation.state")
    assert np.ptp(action, axis=0).max() > 3
    assert np.median(np.abs(action[:-3, 0] - state[3:, 0])) < 3
