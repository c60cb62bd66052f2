"""The command ``twinloop coverage``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from twinloop.cli.commands import Outcome, console


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How much of its parameter space a generated dataset covers: each parameter, pairs of them, the largest hole."""

    dataset: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DIR")]]
    """Folder of a generated dataset, with or without pixels."""
    output: Path | None = None
    """Write a page with plots to this file."""
    triples: bool = False
    """Count triples of parameters too."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Measure."""
        from twinloop.loop.coverage import run_coverage

        return run_coverage(self.dataset, output=self.output, triples=self.triples, console=console(json=self.json)), 0
