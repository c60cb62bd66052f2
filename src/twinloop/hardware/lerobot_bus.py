"""What LeRobot's serial bus leaves open, and a robot that moves by itself must not (lerobot 0.4.4, ``motors_bus.py``).

- When torque comes on, a servo goes to the last goal that it was given, wherever the arm was put meanwhile.
- An answer that comes after its time stays in the port's buffer, and is the next reading: if that of the first servo
  is among it, every reading from then on is one step old.
- A synchronous read drops the status bits by which servos say that something is wrong with them.
- A connection that fails half-way leaves the port open, and so looks like one that stands.
- Torque is taken off motor by motor, and the first that does not answer leaves it on all after it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from twinloop.core.errors import TwinloopError

# Status byte of the STS series (Feetech's memory table, address 65).
_BITS = {1: "voltage", 2: "encoder", 4: "overheated", 8: "overcurrent", 32: "overload"}
_OVERLOAD = 32
_RETRIES = 5  # as many as LeRobot has where it takes the torque off
STATUS_S = 0.5  # a synchronous read takes 1.7 ms of a period (huggingface/lerobot#608), and drives warm in seconds

LATE_S = 0.05  # as long as LeRobot waits for an answer


class ServoFaultError(TwinloopError):
    """A servo that says that something is wrong with it."""


class GuardedBus:
    """The bus of one of LeRobot's robots, treated with care; of a robot that has none nothing is done.

    Args:
        robot: LeRobot's.
        gripper: the joint whose overload is no fault: LeRobot has it give way at a quarter of its torque, and holding
            a thing is what it is for.
    """

    def __init__(self, robot: Any, *, gripper: str) -> None:
        self._bus: Any = getattr(robot, "bus", None)
        self._gripper, self._asked, self._wrong, self._lost = gripper, -STATUS_S, False, False
        if self._bus is not None:
            _hold_when_torque_comes(self._bus)

    def ask(self, question: Callable[[], Any]) -> Any:
        """The answer to a question to the robot, and not to one before it; raises what it raises."""
        self.forget_late_answers()
        self._lost = True
        answer = question()
        self._lost = False
        return answer

    def forget_late_answers(self) -> None:
        """Drop what came since the last answer was read; where none came, wait for it before."""
        if self._lost and self._bus is not None:
            time.sleep(LATE_S)
            self._lost = False
        port = getattr(getattr(self._bus, "port_handler", None), "ser", None)
        if port is not None:
            port.reset_input_buffer()

    def check(self, now: float) -> None:
        """Ask the servos how they are, every half second, and at each call while one of them is not well.

        Raises:
            ServoFaultError: names each servo and what it says.
        """
        if self._bus is None or (not self._wrong and now - self._asked < STATUS_S):
            return
        try:
            said = self._status()
            if any(said.values()):  # twice, because a late answer to another question looks like anything
                said = {joint: bits & said[joint] for joint, bits in self._status().items()}
        except ConnectionError:
            return  # one lost answer; whether the servos are there is for the reading of their positions to say
        self._asked = now
        faults = [f"{joint} says {words}" for joint, status in said.items() if (words := self._words(joint, status))]
        self._wrong = bool(faults)
        if faults:
            raise ServoFaultError(f"{', '.join(faults)}. Let it rest, look at load and supply, and connect again.")

    def close(self) -> None:
        """Close the port, if it is open, and leave the servos as they are."""
        port = getattr(self._bus, "port_handler", None)
        if port is not None and port.is_open:
            with contextlib.suppress(OSError):
                port.closePort()
            port.is_open = False

    def let_go(self, joints: Sequence[str]) -> bool:
        """Take the torque off every joint that answers; False where there is no bus.

        Raises:
            ServoFaultError: some did not; names them.
        """
        if self._bus is None:
            return False
        held = []
        for joint in joints:
            try:
                self._bus.disable_torque(joint, num_retry=_RETRIES)
            except Exception:  # noqa: BLE001 - the others are to be let go all the same
                held.append(joint)
        if held:
            raise ServoFaultError(f"The torque of {', '.join(held)} is still on: no answer. Switch the supply off.")
        return True

    def _status(self) -> dict[str, int]:
        self.forget_late_answers()
        return self._bus.sync_read("Status", normalize=False)

    def _words(self, joint: str, status: int) -> str:
        if joint == self._gripper:
            status &= ~_OVERLOAD
        return " and ".join(word for bit, word in _BITS.items() if status & bit)


def _hold_when_torque_comes(bus: Any) -> None:
    """Let a bus give every servo the goal that it stands at before its torque comes on."""
    enable = bus.enable_torque

    def careful(motors: Any = None, num_retry: int = 0) -> None:
        here = bus.sync_read("Present_Position", motors, normalize=False, num_retry=_RETRIES)
        for joint, ticks in here.items():
            bus.write("Goal_Position", joint, ticks, normalize=False, num_retry=_RETRIES)
        enable(motors, num_retry)

    bus.enable_torque = careful
