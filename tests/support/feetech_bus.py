"""A bus of Feetech STS3215 servos on a pseudo-terminal, for LeRobot's driver in place of ``/dev/ttyACM0``.

Packets, addresses and bits are those of Feetech's protocol manual and memory table of the STS series (FT-SCS, little
endian): an instruction is FF FF ID LENGTH INSTRUCTION PARAMETERS CHECKSUM, an answer has the status byte in place of
the instruction, and a checksum is the complement of the sum of the bytes between header and checksum. Half duplex:
servos send only answers, and answers to a sync read come in the order of the requested ids.

A servo keeps its goal while its torque is off, and moves to it when torque comes on: the harsher of the known
firmware behaviours.
"""

from __future__ import annotations

import os
import pty
import select
import threading
import time
import tty
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

PING, READ, WRITE, REG_WRITE, ACTION, SYNC_READ, SYNC_WRITE = 1, 2, 3, 4, 5, 0x82, 0x83
BROADCAST = 0xFE
MODEL = 777  # of an STS3215, at address 3
FIRMWARE, RESPONSE_LEVEL, MIN_LIMIT, MAX_LIMIT, HOMING, MODE = 0, 8, 9, 11, 31, 33
TORQUE, GOAL, LOCK, POSITION, VOLTAGE, STATUS = 40, 42, 55, 56, 62, 65
VOLTAGE_ERROR, ANGLE_ERROR, OVERHEAT, OVERCURRENT, OVERLOAD = 1, 2, 4, 8, 32
READ_ONLY = {0, 1, 3, 4, *range(56, 71)}
TURN = 4096
BYTE_S = 10 / 1_000_000  # ten bits at 1 Mbit/s
SILENCE_S = 0.05


class Plant(Protocol):
    """What the servos move: encoder ticks without homing offset, by id."""

    def ticks(self, number: int) -> int:
        """Where a motor is now."""
        ...

    def go(self, number: int, ticks: int | None) -> None:
        """Hold a motor at a goal; None lets it go."""
        ...


@dataclass
class Lag:
    """Motors that approach their goals with a time constant; a motor without torque stays at its position."""

    at: dict[int, float]
    seconds: float = 0.03
    goals: dict[int, float | None] = field(default_factory=dict)
    furthest: dict[int, float] = field(default_factory=dict)
    _then: float = field(default_factory=time.perf_counter)

    def ticks(self, number: int) -> int:
        self._advance()
        return round(self.at[number])

    def go(self, number: int, ticks: int | None) -> None:
        self._advance()
        self.goals[number] = ticks

    def _advance(self) -> None:
        now = time.perf_counter()
        share = min(1.0, (now - self._then) / self.seconds)
        self._then = now
        for number, goal in self.goals.items():
            if goal is not None:
                self.furthest[number] = max(self.furthest.get(number, 0.0), abs(goal - self.at[number]))
                self.at[number] += share * (goal - self.at[number])


@dataclass
class Faults:
    """Faults of the bus, changed while it runs.

    ``silent`` ids do not answer; ``errors`` are status bits by id; ``lost`` decides from a request's number whether its
    answers are lost; ``corrupt`` decides whether a byte of the first is changed; ``late_s`` is the delay of answers.
    """

    silent: set[int] = field(default_factory=set)
    errors: dict[int, int] = field(default_factory=dict)
    lost: Callable[[int], bool] = lambda _: False
    corrupt: Callable[[int], bool] = lambda _: False
    late_s: Callable[[int], float] = lambda _: 0.0


class FeetechBus:
    """A running bus; ``path`` is the terminal to open.

    Attributes:
        registers: memory of every servo by id.
        faults: see `Faults`.
        requests: instructions with their parameters, as they came: ``(instruction, id, parameters)``.
        problem: what ended the thread that answers, raised at the end.
    """

    def __init__(self, plant: Plant, ids: Sequence[int] = (1, 2, 3, 4, 5, 6)) -> None:
        self.plant, self.faults = plant, Faults()
        self.registers = {number: _fresh(number) for number in ids}
        self.requests: list[tuple[int, int, bytes]] = []
        self.problem: Exception | None = None
        self._pending: dict[int, tuple[int, bytes]] = {}
        self._number, self._stop = 0, threading.Event()
        self._ends = threading.Lock()
        self._master, self._slave = pty.openpty()
        tty.setraw(self._slave)
        self.path = os.ttyname(self._slave)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and close the terminal; a second time does nothing."""
        self._stop.set()
        self._thread.join(timeout=5)
        with self._ends:
            for end in (self._master, self._slave):
                if end >= 0:
                    os.close(end)
            self._master = self._slave = -1

    unplug = close

    def calibrate(self, rows: Mapping[int, tuple[int, int, int]]) -> None:
        """Write homing offset and limits by id into the servos."""
        for number, (offset, low, high) in rows.items():
            for address, value in ((HOMING, _signed(offset, 11)), (MIN_LIMIT, low), (MAX_LIMIT, high)):
                self._put(number, address, value.to_bytes(2, "little"))

    def word(self, number: int, address: int) -> int:
        """A register of two bytes."""
        return int.from_bytes(self.registers[number][address : address + 2], "little")

    def goal(self, number: int) -> int:
        """The encoder's ticks that a goal means."""
        low, high = self.word(number, MIN_LIMIT), self.word(number, MAX_LIMIT)
        return min(max(_decoded(self.word(number, GOAL), 15), low), high) + _decoded(self.word(number, HOMING), 11)

    def __enter__(self) -> FeetechBus:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        if self.problem is not None:
            raise self.problem

    def _run(self) -> None:
        try:
            self._answer_until_stopped()
        except Exception as error:  # noqa: BLE001 - raised again where the bus is closed
            self.problem = error

    def _answer_until_stopped(self) -> None:
        waiting = b""
        while not self._stop.is_set():
            if not select.select([self._master], [], [], SILENCE_S)[0]:
                waiting = b""  # a packet that does not continue is invalid
                continue
            try:
                waiting += os.read(self._master, 4096)
            except OSError:  # the other end is not open
                time.sleep(0.01)
                continue
            waiting = self._understood(waiting)

    def _understood(self, data: bytes) -> bytes:
        """Answer the whole packets in some bytes; returns those of a packet that is not whole yet."""
        while True:
            start = data.find(b"\xff\xff")
            if start < 0:
                return data[-1:]
            data = data[start:]
            if data[2:3] == b"\xff":  # no id
                data = data[1:]
                continue
            if len(data) < 4 or len(data) < 4 + data[3]:
                return data
            packet = data[: 4 + data[3]]
            if checksum(packet[2:-1]) == packet[-1]:
                data = data[len(packet) :]
                self._answer(packet[4], packet[2], packet[5:-1])
            else:
                data = data[2:]

    def _answer(self, instruction: int, number: int, given: bytes) -> None:
        self.requests.append((instruction, number, given))
        self._number += 1
        asked = [number] if number in self.registers else list(self.registers) if number == BROADCAST else []
        answers = list[bytes]()
        if instruction == SYNC_READ:
            answers = [self._status(one, self._get(one, given[0], given[1])) for one in given[2:] if self._hears(one)]
        elif instruction == SYNC_WRITE:
            address, size = given[:2]
            for at in range(2, len(given), size + 1):
                if self._hears(given[at]):
                    self._put(given[at], address, given[at + 1 : at + 1 + size])
        else:
            for one in filter(self._hears, asked):
                answers += self._single(instruction, one, given, alone=number != BROADCAST)
        self._say(answers)

    def _single(self, instruction: int, number: int, given: bytes, *, alone: bool) -> list[bytes]:
        if instruction == PING:
            return [self._status(number)]
        if instruction == READ:
            return [self._status(number, self._get(number, given[0], given[1]))] if alone else []
        if instruction == WRITE:
            self._put(number, given[0], given[1:])
        elif instruction == REG_WRITE:
            self._pending[number] = (given[0], given[1:])
        elif instruction == ACTION and number in self._pending:
            self._put(number, *self._pending.pop(number))
        return [self._status(number)] if alone and self.registers[number][RESPONSE_LEVEL] else []

    def _hears(self, number: int) -> bool:
        return number in self.registers and number not in self.faults.silent

    def _status(self, number: int, data: bytes = b"") -> bytes:
        body = bytes([number, len(data) + 2, self.faults.errors.get(number, 0)]) + data
        return b"\xff\xff" + body + bytes([checksum(body)])

    def _get(self, number: int, address: int, size: int) -> bytes:
        memory = self.registers[number]
        if address <= POSITION < address + size:
            here = self.plant.ticks(number) - _decoded(self.word(number, HOMING), 11)
            memory[POSITION : POSITION + 2] = _signed(here, 15).to_bytes(2, "little")
        memory[STATUS] = self.faults.errors.get(number, 0)
        return bytes(memory[address : address + size])

    def _put(self, number: int, address: int, data: bytes) -> None:
        memory = self.registers[number]
        for place, value in enumerate(data, start=address):
            if place not in READ_ONLY:
                memory[place] = value
        if address <= GOAL < address + len(data) or address <= TORQUE < address + len(data):
            self.plant.go(number, self.goal(number) if memory[TORQUE] == 1 else None)

    def _say(self, answers: list[bytes]) -> None:
        if not answers or self.faults.lost(self._number):
            return
        if self.faults.corrupt(self._number):
            first = bytearray(answers[0])
            first[-2] ^= 0x10
            answers[0] = bytes(first)
        data = b"".join(answers)
        wait = self.faults.late_s(self._number) + BYTE_S * len(data)
        if wait > 0.005:  # the line is free meanwhile: a late servo does not keep others from hearing
            threading.Timer(wait, self._write, [data]).start()
            return
        time.sleep(wait)
        self._write(data)

    def _write(self, data: bytes) -> None:
        with self._ends:
            if self._master >= 0:
                os.write(self._master, data)


def checksum(body: bytes) -> int:
    """Return the checksum of the bytes between the header and the checksum."""
    return ~sum(body) & 0xFF


def _fresh(number: int) -> bytearray:
    """A servo's factory memory, as far as the tests read it."""
    memory = bytearray(96)
    memory[FIRMWARE : FIRMWARE + 2] = bytes([3, 10])
    memory[3:5] = MODEL.to_bytes(2, "little")
    memory[5] = number
    memory[RESPONSE_LEVEL] = 1
    memory[MAX_LIMIT : MAX_LIMIT + 2] = (TURN - 1).to_bytes(2, "little")
    memory[21:24] = bytes([32, 32, 0])  # P, D, I
    memory[GOAL : GOAL + 2] = (TURN // 2).to_bytes(2, "little")
    memory[LOCK], memory[VOLTAGE] = 1, 74
    return memory


def _signed(value: int, bit: int) -> int:
    """Sign and magnitude, with a separate sign bit."""
    return abs(value) | (1 << bit if value < 0 else 0)


def _decoded(value: int, bit: int) -> int:
    magnitude = value & ((1 << bit) - 1)
    return -magnitude if value >> bit & 1 else magnitude
