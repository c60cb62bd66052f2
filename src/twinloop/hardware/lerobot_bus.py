"""Work around hazards of LeRobot's serial bus, for robots that move autonomously (lerobot 0.4.4, ``motors_bus.py``).

- When torque is enabled, a servo moves to its last goal, even if the arm was moved by hand in between.
- A late answer stays in the port's buffer and becomes the next reading. If it is the first servo's, every later reading
  is one step old.
- A synchronous read discards the status bits by which servos report faults.
- A connection that fails half-way leaves the port open, so it looks connected.
- Torque is disabled motor by motor. If one motor does not answer, torque stays enabled on all later motors.
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
_RETRIES = 5  # as LeRobot uses to disable torque
STATUS_S = 0.5  # a synchronous read takes 1.7 ms of a period (huggingface/lerobot#608), and drives warm in seconds

LATE_S = 0.05  # s; LeRobot waits as long for an answer


class ServoFaultError(TwinloopError):
    """Error: a servo reports a fault."""


class GuardedBus:
    """Safe access to the serial bus of a LeRobot robot; if the robot has no bus, all methods do nothing.

    Args:
        robot: LeRobot's robot.
        gripper: the joint whose overload is not a fault: LeRobot limits it to a quarter of its torque, and it is loaded
            while it holds an object.
    """

    def __init__(self, robot: Any, *, gripper: str) -> None:
        self._bus: Any = getattr(robot, "bus", None)
        self._gripper, self._asked, self._wrong, self._lost = gripper, -STATUS_S, False, False
        if self._bus is not None:
            _hold_on_torque_enable(self._bus)

    def read_fresh(self, question: Callable[[], Any]) -> Any:
        """Call a function that reads from the bus, and return its result.

        Late replies to earlier requests are discarded first. An error of the function is raised unchanged.

        Args:
            question: function without arguments that sends a request to the bus and returns the reply.
        """
        self.discard_late_answers()
        self._lost = True
        answer = question()
        self._lost = False
        return answer

    def discard_late_answers(self) -> None:
        """Discard late replies to earlier requests; if an earlier request failed, first wait 0.05 s for its reply."""
        if self._lost and self._bus is not None:
            time.sleep(LATE_S)
            self._lost = False
        port = getattr(getattr(self._bus, "port_handler", None), "ser", None)
        if port is not None:
            port.reset_input_buffer()

    def check_status(self, now: float) -> None:
        """Read the servos' status every half second, and at each call while one of them has a fault.

        ``now`` is the time in s.

        Raises:
            ServoFaultError: If a servo reports a fault. The message names each faulty servo and its fault.
        """
        if self._bus is None or (not self._wrong and now - self._asked < STATUS_S):
            return
        try:
            status_bits = self._read_status()
            if any(status_bits.values()):  # read twice, because a late answer to another question can have any value
                status_bits = {joint: bits & status_bits[joint] for joint, bits in self._read_status().items()}
        except ConnectionError:
            return  # a lost answer; a missing servo is detected when its position is read
        self._asked = now
        faults = [
            f"{joint} reports {words}"
            for joint, status in status_bits.items()
            if (words := self._describe_status(joint, status))
        ]
        self._wrong = bool(faults)
        if faults:
            raise ServoFaultError(f"{', '.join(faults)}. Let the robot rest, check load and supply, and connect again.")

    def close(self) -> None:
        """Close the serial port if it is open; the servos keep their state."""
        port = getattr(self._bus, "port_handler", None)
        if port is not None and port.is_open:
            with contextlib.suppress(OSError):
                port.closePort()
            port.is_open = False

    def disable_joint_torque(self, joints: Sequence[str]) -> bool:
        """Disable the torque of every joint that answers; return False if there is no bus.

        Raises:
            ServoFaultError: If joints did not answer. The message names them.
        """
        if self._bus is None:
            return False
        held = []
        for joint in joints:
            try:
                self._bus.disable_torque(joint, num_retry=_RETRIES)
            except Exception:  # noqa: BLE001 - disable the torque of the other joints anyway
                held.append(joint)
        if held:
            raise ServoFaultError(f"The torque of {', '.join(held)} is still on: no answer. Switch the supply off.")
        return True

    def _read_status(self) -> dict[str, int]:
        self.discard_late_answers()
        return self._bus.sync_read("Status", normalize=False)

    def _describe_status(self, joint: str, status: int) -> str:
        if joint == self._gripper:
            status &= ~_OVERLOAD
        return " and ".join(word for bit, word in _BITS.items() if status & bit)


def _hold_on_torque_enable(bus: Any) -> None:
    """Replace the method of a bus that enables torque: first set every servo's goal to its present position."""
    enable = bus.enable_torque

    def careful(motors: Any = None, num_retry: int = 0) -> None:
        here = bus.sync_read("Present_Position", motors, normalize=False, num_retry=_RETRIES)
        for joint, ticks in here.items():
            bus.write("Goal_Position", joint, ticks, normalize=False, num_retry=_RETRIES)
        enable(motors, num_retry)

    bus.enable_torque = careful
