"""The commands that make a workspace and tell it of datasets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from twinloop.cli.commands import Outcome, console


@dataclass(frozen=True, kw_only=True)
class Init:
    """Make a workspace: one folder that holds the whole state of a project, all of it in plain files."""

    folder: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DIR")]]
    """The folder to make; an existing one must be empty of a workspace."""
    robot: str | None = None
    """so101 or panda: the built-in twin of that robot on a table."""
    twin: str | None = None
    """Instead of a robot, a built-in twin, a twin YAML, an MJCF or URDF file, or menagerie:NAME."""
    name: str | None = None
    """What the project is called; by default as the folder."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Make it."""
        from twinloop.workflows.data.workspace import run_init

        figures = run_init(
            self.folder, robot=self.robot, twin=self.twin, name=self.name, console=console(json=self.json)
        )
        return figures, 0


@dataclass(frozen=True, kw_only=True)
class Add:
    """Tell the workspace of datasets: LeRobot v3.0 folders, where they lie; again, to bring it up to date."""

    datasets: tyro.conf.Positional[Annotated[tuple[Path, ...], tyro.conf.arg(metavar="DIR")]]
    """Folders of datasets, of twinloop or any other program."""
    batch: str | None = None
    """What the workspace calls it; by default as the folder. For one folder only."""
    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from here."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Add."""
        from twinloop.workflows.data.workspace import run_add

        figures = run_add(self.datasets, batch=self.batch, workspace=self.workspace, console=console(json=self.json))
        return figures, 0
