"""The command ``twinloop curate``: which episodes are good, and what is wrong with the others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from twinloop.cli.commands import Outcome, console


@dataclass(frozen=True, kw_only=True)
class Curate:
    """Score every episode with reasons: physics, recording, demonstration. Nothing is deleted; a filter is a selection.

    In a workspace the scores are kept (`twinloop query "SELECT * FROM scores"`), and the selection of what is good is
    printed. A dataset folder can be scored without one.
    """

    dataset: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="DATASET")]] = None
    """A LeRobot v3.0 folder; without it, what the workspace holds."""
    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from here, unless DATASET is given."""
    where: str = ""
    """Which episodes of the workspace: a condition over the view episodes, such as "source = 'real'"."""
    twin: str | None = None
    """What episodes without a twin of their own are held against; by default the workspace's."""
    checks: str = ""
    """Names or families, comma separated (physics,recording/blur), or path/to/file.py:Class; default all."""
    show: str = ""
    """Score nothing, but print all that is kept of one episode: its id, the beginning of it, or BATCH:INDEX."""
    output: Path | None = None
    """Folder for result.json and report.html."""
    fail_if: tuple[str, ...] = ()
    """Exit with 1 where this holds, such as 'bad > 0', 'share_bad > 0.1' or 'bad/recording/blur > 0'."""
    workers: int = 0
    """Processes; 0 takes every core where there are many episodes. The scores do not depend on it."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Score."""
        from twinloop.workflows.curate.curate import run_curate, show_scores

        only = [word.strip() for word in self.checks.split(",") if word.strip()]
        if self.show:
            return show_scores(self.show, workspace=self.workspace, only=only, console=console(json=self.json))
        return run_curate(
            self.dataset,
            workspace=self.workspace,
            where=self.where,
            twin=self.twin,
            only=only,
            output=self.output,
            fail_if=self.fail_if,
            workers=self.workers,
            console=console(json=self.json),
        )
