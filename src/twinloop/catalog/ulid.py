"""Names that sort by time: ULIDs, 48 bits of milliseconds and 80 of chance, as 26 letters and digits.

The format is that of https://github.com/ulid/spec, monotonic within a process.
"""

from __future__ import annotations

import os
import threading
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_RANDOM_BITS = 80
_STEP_BYTES = 8  # of chance between names of one millisecond: two of a million processes agree once in 37 million
LENGTH = 26
_LATEST = 1 << 44 + _RANDOM_BITS  # no clock gives more: time_ns ends in the year 2262, and this is the year 2527

_lock = threading.Lock()
_last = 0


def ulid(*, after: str | None = None) -> str:
    """Return a new name, which sorts after every earlier one of this process and after ``after``.

    Clocks differ and jump. Where names decide an order, give the last one as ``after``: the order is then that of the
    calls. An ``after`` that no clock can have made is ignored. Where the clock is behind the last name, the next one
    lies a random distance after it: processes that were forked after a jump of the clock share the last name, and must
    not give the same next one.
    """
    global _last
    with _lock:
        moment = max(time.time_ns() // 1_000_000, 0)
        drawn = moment << _RANDOM_BITS | int.from_bytes(os.urandom(_RANDOM_BITS // 8), "big")
        before = max(_last, _decode(after))
        _last = drawn if drawn > before else before + 1 + int.from_bytes(os.urandom(_STEP_BYTES), "big")
        return _encode(_last)


def _decode(name: str | None) -> int:
    """Return the number that a name stands for; 0 for a name that `ulid` cannot have made."""
    if name is None or len(name) != LENGTH or not set(name) <= set(_ALPHABET):
        return 0
    value = 0
    for letter in name:
        value = value << 5 | _ALPHABET.index(letter)
    return value if value < _LATEST else 0


def _encode(value: int) -> str:
    return "".join(_ALPHABET[value >> 5 * place & 31] for place in range(LENGTH - 1, -1, -1))
