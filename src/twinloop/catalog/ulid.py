"""Names that sort by time: ULIDs, 48 bits of milliseconds and 80 of chance, as 26 letters and digits.

The format is that of https://github.com/ulid/spec, monotonic within a process.
"""

from __future__ import annotations

import os
import threading
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_RANDOM_BITS = 80
LENGTH = 26

_lock = threading.Lock()
_last = 0


def ulid() -> str:
    """A name later in sorting than every earlier one of this process, and than those of others made before."""
    global _last
    with _lock:
        drawn = (time.time_ns() // 1_000_000) << _RANDOM_BITS | int.from_bytes(os.urandom(_RANDOM_BITS // 8), "big")
        _last = drawn if drawn > _last else _last + 1
        return _encode(_last)


def _encode(value: int) -> str:
    return "".join(_ALPHABET[value >> 5 * place & 31] for place in range(LENGTH - 1, -1, -1))
