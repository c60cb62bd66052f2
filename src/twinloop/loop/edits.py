"""An edit asked for on the command line: done, timed and told."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console

from twinloop.dataset.edit.writing import Edited


def run_edit(verb: str, work: Callable[[], Edited | dict[str, Edited]], *, console: Console) -> dict[str, Any]:
    """Do an edit and say what was written; returns its figures.

    Raises:
        TwinloopError: see `dataset.edit.operations`.
    """
    start = time.perf_counter()
    made = work()
    seconds = time.perf_counter() - start
    figures: dict[str, Any] = {"schema": 1, "verb": f"edit {verb}", "seconds": seconds}
    if isinstance(made, Edited):
        _tell(made, console)
        return {**figures, **made.to_json()}
    for part in made.values():
        _tell(part, console)
    return {**figures, "parts": {name: part.to_json() for name, part in made.items()}}


def _tell(made: Edited, console: Console) -> None:
    console.print(f"{made.output}: {made.episodes} episodes, {made.frames} frames.")
    for key, row in made.videos.items():
        ways = [f"{count} {way}" for way, count in row.items() if count]
        console.print(f"  {key}: {', '.join(ways)}")
    for kind, row in _groups(made.details):
        console.print(f"  {kind}: {row['before']} before, {row['after']} now")
    left = made.details.get("left_out") or ()
    if left:
        console.print(f"  left out: {len(left)} episodes, listed by --json")
    for note in made.notes:
        console.print(f"  {note}", style="dim")


def _groups(details: Mapping[str, Any]) -> list[tuple[str, Mapping[str, int]]]:
    return list(details.get("groups", {}).items())
