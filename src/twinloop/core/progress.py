"""Progress of long work on standard error, silent when nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")


def track(items: Iterable[T], *, label: str, total: int | None = None) -> Iterator[T]:
    """Yield ``items`` while a bar moves on standard error; no bar when it is not a terminal."""
    with _bar() as progress:
        yield from progress.track(items, description=label, total=total)


@contextmanager
def counted(*, label: str, total: int) -> Generator[Callable[[int], None]]:
    """A bar like `track`'s for work that says itself how much of it is done: a function that takes what was added."""
    with _bar() as progress:
        task = progress.add_task(label, total=total)

        def advance(steps: int) -> None:
            progress.advance(task, steps)

        yield advance


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty())
