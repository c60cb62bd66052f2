"""The command ``twinloop gate``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from twinloop.cli.commands import Outcome, console


@dataclass(frozen=True, kw_only=True)
class Gate:
    """May a candidate take the champion's place? Exits with 1 where any rule says no or lacks evidence."""

    file: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FILE")]]
    """What is asked, and where the evaluations lie: see docs/release.md."""
    output: Path | None = None
    """Folder for decision.json, result.json and report.html."""
    deployment: str = "main"
    """Whose champion is meant, where a workspace serves several robots or tasks."""
    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from FILE."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Decide."""
        from twinloop.workflows.deploy.gate import run_gate

        return run_gate(
            self.file,
            self.output,
            workspace=self.workspace,
            deployment=self.deployment,
            console=console(json=self.json),
        )
