"""The command ``twinloop gap history``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from twinloop.cli.commands import Outcome, console


@dataclass(frozen=True, kw_only=True)
class GapHistory:
    """How the gap moved over runs: every figure of earlier `gap` runs in order of time, beside the twin's version."""

    runs: tyro.conf.Positional[tuple[Annotated[Path, tyro.conf.arg(metavar="DIR")], ...]]
    """Folders of gap runs, or folders that hold such folders at any depth."""
    figures: tuple[str, ...] = ()
    """Names or patterns of figures, such as skill or 'rmse/*'; default those without a slash."""
    kind: str = "dynamics"
    """Which measurement: dynamics, sensors, vision, data, policies, predictivity."""
    output: Path | None = None
    """Write a page with the curves to this file."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Collect."""
        from twinloop.workflows.gap.history import run_gap_history

        out = console(json=self.json)
        return run_gap_history(self.runs, figures=self.figures, kind=self.kind, output=self.output, console=out), 0
