"""Questions to something that may be slow, fail or never answer, asked so that the one who asks goes on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of a question: a ``value``, or the ``error`` that was raised."""

    value: Any = None
    error: Exception | None = None


class Answerer:
    """One thread that takes one question at a time; it ends with the program, whatever it waits for.

    Calls run in that thread and in no other, since drivers and graphics contexts often belong to the thread that made
    them.
    """

    def __init__(self, name: str) -> None:
        self._questions: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()
        self.busy = False

    def ask(self, call: Callable[[], Any]) -> None:
        """Begin a question; the one before must have been answered."""
        assert not self.busy, f"{self._thread.name} is busy"  # noqa: S101 - our own invariant
        self.busy = True
        self._questions.put(call)

    def wait(self, timeout_s: float) -> Answer | None:
        """The answer, or None where there is none within that time; ask again later."""
        try:
            answer = self._answers.get(timeout=max(timeout_s, 0.0))
        except queue.Empty:
            return None
        self.busy = False
        return answer

    def close(self) -> None:
        """Take no more questions; a thread that waits for an answer is left to itself."""
        self._questions.put(None)

    def _work(self) -> None:
        while (call := self._questions.get()) is not None:
            try:
                answer = Answer(value=call())
            except Exception as error:  # noqa: BLE001  # whatever is raised is the answer
                answer = Answer(error=error)
            self._answers.put(answer)
