"""List the tasks of the library with their robots, and render one picture of each (`twinloop tasks list`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from twinloop.core.errors import MissingDependencyError
from twinloop.render import contact_sheet, write_png
from twinloop.tasks import open_task, task_names
from twinloop.twin import load_twin
from twinloop.twin.load import builtin_names, library_names, read_spec
from twinloop.workflows.run.pictures import render_moment
from twinloop.workflows.task.requests import TaskListRequest

_COLUMNS = 4  # pictures in a row


def run_tasks_list(request: TaskListRequest, console: Console) -> dict[str, Any]:
    """Print every task with the twins that have settings for it; write a sheet of pictures if a file is given.

    Twins whose model is in a Python package that is not installed are listed, too, and have no picture.
    """
    specs = {name: read_spec(name) for name in (*builtin_names(), *library_names())}
    rows = [
        {"name": task, "robots": [name for name, spec in specs.items() if task in spec.task]} for task in task_names()
    ]
    table = Table("task", "robot", "twin", "needs")
    for row in rows:
        for number, name in enumerate(row["robots"]):
            robot = specs[name].robot
            table.add_row("" if number else row["name"], robot.type if robot else "", name, specs[name].install)
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
        images.append(render_moment(twin, open_task(task, twin)))
        labels.append(f"{task}, {name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_png(path, contact_sheet(images, labels, columns=_COLUMNS))
    console.print(f"Wrote {path}.", soft_wrap=True)
