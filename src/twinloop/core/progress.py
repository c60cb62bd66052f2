"""Progress of long work on standard error, silent when nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from twinloop.core.console import SafeConsole, visible

T = TypeVar("T")


def track(items: Iterable[T], *, label: str, total: int | None = None) -> Iterator[T]:
    """Yield ``items`` while a bar moves on standard error; no bar when it is not a terminal."""
    with _bar() as progress:
        yield from progress.track(items, description=visible(label), total=total)


@contextmanager
def counted(*, label: str, total: int) -> Generator[Callable[[int], None]]:
    """A bar like `track`'s for work that says itself how much of it is done: a function that takes what was added."""
    with _bar() as progress:
        task = progress.add_task(visible(label), total=total)

        def advance(steps: int) -> None:
            progress.advance(task, steps)

        yield advance


def _bar() -> Progress:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = SafeConsole(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty())
