"""Clocks that are wrong: times in milliseconds since 1970, and a process whose clock can be set."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from twinloop.catalog import parts as ulid

YEAR_MS = 365 * 24 * 3_600_000
NOW_MS = time.time_ns() // 1_000_000


@contextlib.contextmanager
def clock(offset_ms: int = 0, *, at_ms: int | None = None) -> Iterator[None]:
    """Set this process' clock forward or back, and clear its caches, as in a new process."""
    moment = max(NOW_MS + offset_ms if at_ms is None else at_ms, -YEAR_MS) * 1_000_000
    kept = time.time, time.time_ns, ulid._last
    time.time, time.time_ns, ulid._last = (lambda: moment / 1e9), (lambda: moment), 0
    try:
        yield
    finally:
        time.time, time.time_ns, ulid._last = kept
