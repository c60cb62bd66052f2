"""Show the progress of long work on standard error: as a bar in a terminal, as lines of text in a file or a pipe.

All commands use this module, so that bars and lines have one form and one estimate of the time that is left. Standard
output is never written, because it may be reserved for JSON. A program that starts a command can name a file in the
environment variable ``TWINLOOP_PROGRESS``; while long work runs, it contains the progress as JSON.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from twinloop.core.console import SafeConsole, escape_control
from twinloop.core.errors import TwinloopError
from twinloop.core.files import write_json

T = TypeVar("T")

FIRST_LINE_S = 10.0  # s; work that ends earlier prints no line
LINE_EVERY_S = 20.0  # s; time between two lines
LONG_S = 60.0  # s; work that is expected to take longer is announced
FILE_EVERY_S = 0.5  # s; time between two writes of the progress file
VARIABLE = "TWINLOOP_PROGRESS"
_file = os.environ.pop(VARIABLE, "")  # worker processes must not write it too
_hidden = False
_shown = list["ProgressCounter"]()  # work may contain work; the file shows the innermost


def format_duration(seconds: float) -> str:
    """Return a duration as text, such as ``0:09``, ``12:05`` or ``3:02:00``, rounded to 1 s."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minutes}:{second:02d}"


def announce_duration(label: str, seconds: float) -> None:
    """Print a warning on standard error before work that is expected to take more than a minute.

    Args:
        label: Description of the work.
        seconds: Expected time in s.
    """
    if seconds > LONG_S:
        announce(f"{label}: this takes about {format_duration(seconds)} (a first estimate)")


def announce(text: str) -> None:
    """Print a line on standard error that people should read before long work has ended."""
    if _hidden:
        return
    _make_console().print(escape_control(text))


def _make_console() -> SafeConsole:
    return SafeConsole(stderr=True, markup=False, highlight=False, soft_wrap=True)


class ProgressCounter:
    """Number of finished items of some work, which may consist of stages, and the time that is left.

    Args:
        total: Number of items of the first stage; 0 if it is unknown.
        done: Number of items that an earlier run has finished; they do not count for the speed.
        clock: Function that returns a time in s.
    """

    def __init__(self, total: int, *, done: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._stage = clock, ""
        self._began = self._stage_began = clock()
        self._done = self._first = done
        self._total = total

    @property
    def total(self) -> int:
        """Number of items of the current stage."""
        return self._total

    @property
    def done(self) -> int:
        """Number of finished items of the current stage."""
        return self._done

    def advance(self, items: int = 1) -> None:
        """Count ``items`` more items as finished."""
        self._done += items

    def update(self, stage: str, done: int, total: int) -> None:
        """Set the number of finished items of a stage, of at most ``total``. A new name begins a new stage."""
        if stage != self._stage:
            self._stage, self._stage_began, self._first = escape_control(stage), self._clock(), max(done - 1, 0)
        self._done, self._total = done, total

    def seconds_left(self) -> float | None:
        """Return the time in s until the stage ends, at its mean speed so far; None while the speed is unknown."""
        new = self._done - self._first
        if new <= 0 or not self._total:
            return None
        return (self._clock() - self._stage_began) / new * max(self._total - self._done, 0)

    def to_json(self) -> dict[str, str | int | float | None]:
        """Return the stage, the numbers of items, and the times in s that passed and are left."""
        passed = self._clock() - self._began
        return {"stage": self._stage, "done": self._done, "total": self._total, "passed_s": passed,
                "left_s": self.seconds_left()}  # fmt: skip

    def __str__(self) -> str:
        passed, left = format_duration(self._clock() - self._began), self.seconds_left()
        most = "at most " if self._stage else ""
        parts = [self._stage, f"{self._done} of {most}{self._total}" if self._total else str(self._done)]
        parts += [f"{passed} so far"]
        if left is not None:
            parts += [f"{most}{format_duration(left)} left" + (" in this stage" if self._stage else "")]
        return ", ".join(part for part in parts if part)


class _CounterColumn(ProgressColumn):
    def __init__(self, counter: ProgressCounter) -> None:
        super().__init__()
        self._counter = counter

    def render(self, task: Task) -> Text:
        task.completed, task.total = self._counter.done, self._counter.total or None
        return Text(str(self._counter))


@contextmanager
def hidden() -> Generator[None]:
    """Show no progress and no announcements while the ``with`` block runs."""
    global _hidden
    before, _hidden = _hidden, True
    try:
        yield
    finally:
        _hidden = before


@contextmanager
def show_counter(label: str, total: int, *, done: int = 0) -> Generator[ProgressCounter]:
    """Show a `ProgressCounter` on standard error while the ``with`` block runs.

    In a terminal it is a bar that disappears at the end. Otherwise a line is printed after 10 s, one every 20 s, and
    one at the end; work that takes less than 10 s prints nothing.

    Args:
        label: Description of the work.
        total: Number of items of the first stage; 0 if it is unknown.
        done: Number of items that an earlier run has finished.
    """
    counter, label = ProgressCounter(total, done=done), escape_control(label)
    console = _make_console()
    if _hidden:
        yield counter
        return
    if _file:
        with _write_file(Path(_file), label, counter):
            yield counter
        return
    if sys.stderr.isatty():
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), _CounterColumn(counter))
        with Progress(*columns, console=console, transient=True) as bar:
            bar.add_task(label, total=total)
            yield counter
        return
    with _print_lines(lambda: console.print(f"{label}: {counter}")):
        yield counter


@contextmanager
def _write_file(path: Path, label: str, counter: ProgressCounter) -> Generator[None]:
    """Write the progress of the innermost work to a file every 0.5 s, and remove it at the end of the outermost."""

    def run(ended: threading.Event) -> None:
        while True:
            if _shown[-1:] == [counter]:
                with contextlib.suppress(TwinloopError, OSError):
                    write_json(path, {"label": label, **counter.to_json()})
            if ended.wait(FILE_EVERY_S):
                return

    _shown.append(counter)
    try:
        with _beside(run):
            yield
    finally:
        _shown.remove(counter)
        if not _shown:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


@contextmanager
def _print_lines(print_line: Callable[[], None]) -> Generator[None]:
    """Call ``print_line`` after 10 s, then every 20 s, and, if it was called, at the end of the ``with`` block."""

    def run(ended: threading.Event) -> None:
        wait = FIRST_LINE_S
        while not ended.wait(wait):
            print_line()
            wait = LINE_EVERY_S

    began = time.monotonic()
    try:
        with _beside(run):
            yield
    finally:
        if time.monotonic() - began >= FIRST_LINE_S:
            print_line()


@contextmanager
def _beside(run: Callable[[threading.Event], None]) -> Generator[None]:
    """Call a function in another thread during the ``with`` block; it returns when the event that it gets is set."""
    ended = threading.Event()
    thread = threading.Thread(target=run, args=(ended,), name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def show_progress(*, label: str, total: int, done: int = 0) -> Generator[Callable[[int], None]]:
    """Show progress on standard error while the ``with`` block runs; see `show_counter`.

    The context manager yields a function; call it with the number of newly finished items.

    Args:
        label: Description of the work.
        total: Number of items.
        done: Number of items that an earlier run has finished.
    """
    with show_counter(label, total, done=done) as counter:
        yield counter.advance


def track(items: Iterable[T], *, label: str, total: int | None = None) -> Iterator[T]:
    """Yield ``items`` and show on standard error how many are done; see `show_counter`.

    Args:
        items: Objects to iterate over.
        label: Description of the work.
        total: Number of items, if ``items`` has no length.
    """
    known = len(items) if total is None and isinstance(items, Sized) else total
    with show_counter(label, known or 0) as counter:
        for item in items:
            yield item
            counter.advance()
