"""Progress of long work on standard error, silent when nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")


def track(items: Iterable[T], *, label: str, total: int | None = None) -> Iterator[T]:
    """Yield ``items`` while a bar moves on standard error; no bar when it is not a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        yield from progress.track(items, description=label, total=total)
