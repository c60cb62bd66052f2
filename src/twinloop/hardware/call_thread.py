"""Run calls that may be slow, fail or never return in a thread, so that the caller can continue."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class CallResult:
    """Outcome of a call: the returned ``value``, or the ``error`` that it raised."""

    value: Any = None
    error: BaseException | None = None


class CallThread:
    """Thread that makes one call at a time.

    All calls run in this thread, since drivers and graphics contexts often belong to the thread that created them. It
    is a daemon, so that a call that never returns does not block the program's exit. Any exception of a call is its
    result, including `SystemExit` and `KeyboardInterrupt`: a driver that exits must not end the thread that will
    disconnect it.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[CallResult] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()
        self.busy = False

    def start(self, call: Callable[[], Any]) -> None:
        """Start a call in the thread. The result of the previous call must have been received."""
        assert not self.busy, f"{self._thread.name} is busy"  # noqa: S101 - our own invariant
        self.busy = True
        self._calls.put(call)

    def wait(self, timeout_s: float) -> CallResult | None:
        """Wait for the result of the call, and return it, or None after ``timeout_s`` seconds.

        After None, the caller may call `wait` again.
        """
        try:
            result = self._results.get(timeout=max(timeout_s, 0.0))
        except queue.Empty:
            return None
        self.busy = False
        return result

    def close(self) -> None:
        """Accept no more calls; a call that does not return is abandoned."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                result = CallResult(value=call())
            except BaseException as error:  # noqa: BLE001  # see the class
                result = CallResult(error=error)
            self._results.put(result)
