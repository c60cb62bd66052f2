"""Measure the run time of named code sections (spans), excluding nested spans; off by default."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

_active: Profile | None = None
_NOTHING = nullcontext()


class Profile:
    """Total run time of each named code section (span) in one thread.

    Time in a nested span counts for the nested span only, so that the sum over all names is the time during which any
    span was open.

    Attributes:
        seconds: Time in s by span name.
        other_process_seconds: Times in s that other processes measured, by span name; not included in ``seconds``.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.other_process_seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    def add_process_seconds(self, seconds: Mapping[str, float]) -> None:
        """Add times in s that another process measured, by span name, to ``other_process_seconds``."""
        for name, value in seconds.items():
            self.other_process_seconds[name] = self.other_process_seconds.get(name, 0.0) + value

    @contextmanager
    def span(self, name: str) -> Generator[None]:
        """Add the run time of the ``with`` block to the span ``name``, excluding nested spans."""
        self._update_seconds()
        self._open.append(name)
        try:
            yield
        finally:
            self._update_seconds()
            self._open.pop()

    def _update_seconds(self) -> None:
        """Add the time since the last call to the innermost open span."""
        now = time.perf_counter()
        if self._open:
            name = self._open[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now


def span(name: str) -> AbstractContextManager[None]:
    """Return a context manager that measures its block as the span ``name``; it does nothing if profiling is off."""
    return _NOTHING if _active is None else _active.span(name)


@contextmanager
def record_spans(profile: Profile | None) -> Generator[None]:
    """Measure all spans of the ``with`` block in ``profile``; None turns profiling off in the block."""
    global _active
    before, _active = _active, profile
    try:
        yield
    finally:
        _active = before
