"""Measure time in named spans, each without the spans inside it. Off by default."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

_active: Profile | None = None
_NOTHING = nullcontext()


class Profile:
    """Seconds by span name, of one thread. The sum over all names is the time during which any span was open.

    ``elsewhere`` holds the times measured by other processes.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.elsewhere: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    def add_elsewhere(self, seconds: Mapping[str, float]) -> None:
        """Add times that another process measured."""
        for name, value in seconds.items():
            self.elsewhere[name] = self.elsewhere.get(name, 0.0) + value

    @contextmanager
    def span(self, name: str) -> Generator[None]:
        """Measure the time of the block under ``name``, without the spans inside it."""
        self._update_seconds()
        self._open.append(name)
        try:
            yield
        finally:
            self._update_seconds()
            self._open.pop()

    def _update_seconds(self) -> None:
        """Add the time since the last change to the innermost open span."""
        now = time.perf_counter()
        if self._open:
            name = self._open[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now


def span(name: str) -> AbstractContextManager[None]:
    """Measure the block's time under ``name`` if profiling is on; otherwise this costs one comparison."""
    return _NOTHING if _active is None else _active.span(name)


@contextmanager
def record_spans(profile: Profile | None) -> Generator[None]:
    """Count the spans of the block in ``profile``; None turns profiling off."""
    global _active
    before, _active = _active, profile
    try:
        yield
    finally:
        _active = before
