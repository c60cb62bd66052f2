"""The emulated servo bus against packets of Feetech's manual, and the care that is taken of LeRobot's bus."""

from __future__ import annotations

import os
import select
import time
import tty

import pytest

from support.feetech_bus import GOAL, HOMING, LOCK, TORQUE, FeetechBus, Lag, checksum
from twinloop.hardware.lerobot_bus import LATE_S, STATUS_S, GuardedBus, ServoFaultError


class Line:
    """The other end of a bus."""

    def __init__(self, bus: FeetechBus) -> None:
        self._end = os.open(bus.path, os.O_RDWR | os.O_NOCTTY)
        tty.setraw(self._end)

    def ask(self, packet: str, wait_s: float = 1.0) -> str:
        """The answer to a packet, both in hexadecimal; empty where none comes."""
        os.write(self._end, bytes.fromhex(packet))
        got = b""
        while select.select([self._end], [], [], 0.05 if got else wait_s)[0]:
            got += os.read(self._end, 256)
        return got.hex(" ")

    def close(self) -> None:
        os.close(self._end)


@pytest.fixture
def bus():
    with FeetechBus(Lag({1: 1000.0, 2: 2000.0}, seconds=1e-3), ids=(1, 2)) as made:
        yield made


@pytest.fixture
def line(bus):
    made = Line(bus)
    yield made
    made.close()


def test_packets_are_those_of_the_manual(bus, line):
    assert line.ask("ff ff 01 02 01 fb") == "ff ff 01 02 00 fc"  # ping, as the protocol manual has it
    assert line.ask("ff ff 01 04 02 38 02 be") == "ff ff 01 04 00 e8 03 0f"  # position 1000, address 56
    assert line.ask("ff ff 01 04 02 03 02 f3") == "ff ff 01 04 00 09 03 ee"  # model 777
    assert checksum(bytes.fromhex("01 04 02 38 02")) == 0xBE
    # Both positions at once, answered in the requested order.
    assert line.ask("ff ff fe 06 82 38 02 02 01 3c") == "ff ff 02 04 00 d0 07 22 ff ff 01 04 00 e8 03 0f"


def test_what_is_written_moves_and_what_is_broken_is_not_heard(bus, line):
    assert line.ask("ff ff 01 04 03 28 01 ce") == "ff ff 01 02 00 fc"  # torque on, address 40
    assert line.ask("ff ff fe 07 83 2a 02 01 b0 04 96", wait_s=0.1) == ""  # a sync write is not answered
    assert (bus.registers[1][TORQUE], bus.word(1, GOAL)) == (1, 1200)
    deadline = time.monotonic() + 2
    while bus.plant.ticks(1) != 1200 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert bus.plant.ticks(1) == 1200
    assert line.ask("ff ff 01 02 01 fa", wait_s=0.1) == ""  # a wrong checksum
    assert line.ask("ff ff 03 02 01 f9", wait_s=0.1) == ""  # no servo of that id
    assert line.ask("00 ff ff ff 01 02 01 fb") == "ff ff 01 02 00 fc"
    bus.calibrate({2: (-500, 0, 4095)})
    assert bus.word(2, HOMING) == 500 | 1 << 11  # sign and magnitude
    assert line.ask("ff ff 02 04 02 38 02 bd") == "ff ff 02 04 00 c4 09 2c"  # 2000 + 500
    assert bus.registers[2][LOCK] == 1


class Bus:
    """The used part of LeRobot's bus, with a record of the calls."""

    def __init__(self) -> None:
        self.done, self.status, self.silent = [], dict.fromkeys(("arm", "hand"), 0), ()
        self.port_handler = self
        self.is_open, self.ser, self.others = True, self, []

    def reset_input_buffer(self):
        self.done.append("emptied")

    def closePort(self):
        raise OSError("gone")

    def enable_torque(self, motors=None, num_retry=0):
        self.done.append("torque")

    def disable_torque(self, joint, num_retry=0):
        if joint in self.silent:
            raise ConnectionError
        self.done.append(f"{joint} off")

    def sync_read(self, name, motors=None, *, normalize=True, num_retry=0):
        assert not normalize
        if self.silent:
            raise ConnectionError
        if name == "Status" and self.others:
            return {"arm": self.others.pop(), "hand": 255}
        return dict(self.status) if name == "Status" else {"arm": 10, "hand": 20}

    def write(self, name, joint, value, *, normalize=True, num_retry=0):
        self.done.append((name, joint, value))


class OfLeRobot:
    def __init__(self) -> None:
        self.bus = Bus()


@pytest.fixture
def robot():
    return OfLeRobot()


def test_torque_comes_on_where_the_servos_stand(robot):
    GuardedBus(robot, gripper="hand")
    robot.bus.enable_torque()
    assert robot.bus.done == [("Goal_Position", "arm", 10), ("Goal_Position", "hand", 20), "torque"]


def test_servos_are_asked_twice_a_second_and_always_while_one_is_not_well(robot):
    careful = GuardedBus(robot, gripper="hand")
    careful.check_status(0.0)
    robot.bus.status["arm"] = 32 | 4
    careful.check_status(0.9 * STATUS_S)
    for moment in (STATUS_S, STATUS_S + 1e-3):
        with pytest.raises(ServoFaultError, match=r"arm reports overheated and overload\. Let the robot rest"):
            careful.check_status(moment)
    robot.bus.status = {"arm": 0, "hand": 32}  # the gripper gives way when it holds something
    careful.check_status(STATUS_S + 2e-3)
    robot.bus.status["hand"] = 1
    with pytest.raises(ServoFaultError, match="hand reports voltage"):
        careful.check_status(3 * STATUS_S)
    robot.bus.status["hand"] = 0
    robot.bus.others = [255]  # a late answer to another question
    careful.check_status(3.05 * STATUS_S)
    robot.bus.silent = ("arm",)
    careful.check_status(5 * STATUS_S)  # an answer that is lost is no fault of a servo


def test_torque_is_taken_off_whatever_one_of_them_does_and_a_dead_port_is_closed(robot):
    careful = GuardedBus(robot, gripper="hand")
    robot.bus.silent = ("arm",)
    with pytest.raises(ServoFaultError, match=r"torque of arm is still on: no answer\. Switch the supply off"):
        careful.disable_joint_torque(["arm", "hand"])
    assert robot.bus.done == ["hand off"]
    careful.close()
    assert not robot.bus.is_open
    careful.close()
    careful.discard_late_answers()
    assert robot.bus.done[-1] == "emptied"


def test_an_answer_that_did_not_come_is_waited_for_and_dropped(robot, monkeypatch):
    slept = []
    monkeypatch.setattr("twinloop.hardware.lerobot_bus.time.sleep", slept.append)
    careful = GuardedBus(robot, gripper="hand")
    assert careful.read_fresh(lambda: 5) == 5
    with pytest.raises(ConnectionError):
        careful.read_fresh(_lost)
    assert slept == []
    assert careful.read_fresh(lambda: robot.bus.done[-1]) == "emptied"
    assert slept == [LATE_S]
    assert careful.read_fresh(lambda: 6) == 6
    assert slept == [LATE_S]


def _lost():
    raise ConnectionError


def test_a_robot_without_a_bus_is_left_alone():
    careful = GuardedBus(object(), gripper="hand")
    careful.check_status(0.0)
    careful.discard_late_answers()
    careful.close()
    assert not careful.disable_joint_torque(["arm"])
