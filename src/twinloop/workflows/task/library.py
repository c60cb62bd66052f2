"""List the tasks of the library with their robots, and render one picture of each (`twinloop tasks list`).

``python -m twinloop.workflows.task.library PAGE`` writes the tables of docs/guides/library.md.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from inspect import getdoc
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from twinloop.core.errors import MissingDependencyError
from twinloop.core.files import write_text
from twinloop.render import contact_sheet, write_png
from twinloop.tasks import open_task, task_names
from twinloop.tasks.protocol import has_expert
from twinloop.tasks.registry import TASKS
from twinloop.twin import load_twin
from twinloop.twin.load import builtin_names, library_names, read_spec
from twinloop.twin.spec import TwinSpec
from twinloop.workflows.run.pictures import render_moment
from twinloop.workflows.task.requests import TaskListRequest

_COLUMNS = 6  # pictures in a row
_LEARNED = "no expert; learned, stretch"
COMMAND = "python -m twinloop.workflows.task.library docs/guides/library.md"


def run_tasks_list(request: TaskListRequest, console: Console) -> dict[str, Any]:
    """Print every task with the twins that have settings for it; write a sheet of pictures if a file is given.

    Twins whose model is in a Python package that is not installed are listed, too, and have no picture.
    """
    specs = _read_specs()
    rows = [
        {"name": task, "expert": hasattr(TASKS[task], "expert"), "robots": _twins_with(task, specs)}
        for task in task_names()
    ]
    table = Table("task", "expert", "robot", "twin", "needs")
    for row in rows:
        first = row["name"], "scripted" if row["expert"] else _LEARNED
        for number, name in enumerate(row["robots"]):
            robot = specs[name].robot
            table.add_row(*("", "") if number else first, robot.type if robot else "", name, specs[name].install)
    console.print(table)
    console.print("Next: twinloop tasks check TASK --twin TWIN", soft_wrap=True)
    if request.image is not None:
        pairs = [(row["name"], name) for row in rows for name in row["robots"]]
        _write_sheet(request.image, pairs, console)
    return {"schema": 1, "verb": "tasks", "kind": "list", "tasks": rows}


def _write_sheet(path: Path, pairs: list[tuple[str, str]], console: Console) -> None:
    images, labels = list[NDArray[np.uint8]](), list[str]()
    for task, name in pairs:
        try:
            twin = load_twin(name)
        except MissingDependencyError as error:
            console.print(f"No picture of {name}: {error}", soft_wrap=True)
            continue
        opened = open_task(task, twin)
        images.append(render_moment(twin, opened))
        labels.append(f"{task}, {name}" if has_expert(opened) else f"{name}: {_LEARNED}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_png(path, contact_sheet(images, labels, columns=_COLUMNS))
    console.print(f"Wrote {path}.", soft_wrap=True)


def _read_specs() -> dict[str, TwinSpec]:
    """Return the YAML content of every twin that comes with twinloop, by name."""
    return {name: read_spec(name) for name in (*builtin_names(), *library_names())}


def _twins_with(task: str, specs: dict[str, TwinSpec]) -> list[str]:
    return [name for name, spec in specs.items() if task in spec.task]


def library_tables() -> str:
    """Return two tables as Markdown: the tasks with their twins, and the robots on which the tasks run."""
    specs, tasks, robots = _read_specs(), list[tuple[str, ...]](), dict[str, list[TwinSpec]]()
    for task in TASKS.builtin:
        goal = (getdoc(TASKS[task]) or "").partition("\n")[0].removeprefix("Task to ").rstrip(".")
        teaches = "yes" if hasattr(TASKS[task], "memoryless_expert") else "no"
        teaches = teaches if hasattr(TASKS[task], "expert") else _LEARNED
        twins = _twins_with(task, specs)
        tasks.append((f"`{task}`", goal, teaches, ", ".join(f"`{name}`" for name in twins)))
        for name in twins:
            if (robot := specs[name].robot) is not None:
                robots.setdefault(robot.type, []).append(specs[name])
    rows = list[tuple[str, ...]]()
    for kind, own in robots.items():
        first, joints = own[0], own[0].robot.joints if own[0].robot else []
        install = f"`{first.install}`" if first.install else "nothing"
        rows.append((f"`{kind}`", str(len(joints)), f"{first.control_hz:g}", ", ".join(first.cameras), install))
    heads = ("task", "goal", "teaches on-policy", "twins"), ("robot", "joints", "commands/s", "cameras", "needs")
    return f"{_markdown_table(heads[0], tasks)}\n\n{_markdown_table(heads[1], rows)}"


def write_tables(page: Path) -> None:
    """Replace the tables between the two marker comments of a page."""
    begin, end = (f"<!-- {COMMAND}: {mark} -->" for mark in ("begin", "end"))
    text = re.sub(
        f"(?s){re.escape(begin)}.*{re.escape(end)}", lambda _: f"{begin}\n{library_tables()}\n{end}", page.read_text()
    )
    write_text(page, text)


def _markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


if __name__ == "__main__":
    write_tables(Path(sys.argv[1]))
