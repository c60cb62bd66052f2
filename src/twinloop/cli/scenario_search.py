"""The command ``twinloop scenario search``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from twinloop.cli.commands import Outcome, console

_Texts = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]


@dataclass(frozen=True, kw_only=True)
class ScenarioSearch:
    """Find failures that nobody logged: how often they happen, even if rarely, where, and the most probable ones."""

    file: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FILE.yaml")]]
    """A generate file: twin, task, and what is drawn, which the failure rate is asked about."""
    policy: str = "expert"
    """Who acts: a policy's folder or name, or expert."""
    worlds: int = 256
    """Worlds per round of the search."""
    rounds: int = 6
    """Most rounds of the search towards failures; 0 draws plainly."""
    draws: int = 1024
    """Worlds of the estimate, drawn afresh where failures were found."""
    modes: int = 4
    """Regions of failures that the search can hold at once."""
    illuminate: int = 512
    """Further worlds that fill the map of failures; 0 for none."""
    simplify: int = 8
    """Rounds in which what a failure does not need goes back to the middle of what is drawn; 0 for none."""
    by: _Texts = ()
    """A parameter that the map is drawn over; again for the second. By default those that failures depend on most."""
    keep: int = 0
    """How many failures to keep as scenarios, the most probable of each cell, most probable first."""
    seed: int = 0
    """Of the search."""
    level: float = 0.95
    """Of the interval."""
    output: Path | None = None
    """Folder for result.json and report.html."""
    fail_if: _Texts = ()
    """Exit with 1 if a figure is such, as in 'failure rate > 1e-3'."""
    scenarios: Path | None = None
    """Folder of scenarios; by default the workspace's, or scenarios here."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Search."""
        from twinloop.scenario.rare import Search
        from twinloop.workflows.scenario.search import Hunt, run_search

        search = Search(round_size=self.worlds, rounds=self.rounds, modes=self.modes, draws=self.draws, seed=self.seed)
        asked = Hunt(
            file=self.file,
            policy=self.policy,
            search=search,
            illuminate=self.illuminate,
            simplify=self.simplify,
            by=self.by,
            keep=self.keep,
            level=self.level,
        )
        return run_search(asked, self.output, self.scenarios, fail_if=self.fail_if, console=console(json=self.json))
