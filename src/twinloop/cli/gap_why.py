"""The command ``twinloop gap why``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from twinloop.cli.commands import Outcome, Reading, console
from twinloop.cli.gap_dynamics import Comparing


@dataclass(frozen=True, kw_only=True)
class Attributing:
    """Which groups the error is shared out among, and how surely."""

    by: Literal["quantity", "joint", "quantity and joint", "parameter"] = "quantity"
    """How parameters that differ from nominal are grouped: by what they mean, by joint, by both, or each alone."""
    group: tuple[str, ...] = ()
    """Groups of your own, NAME=PATTERN,PATTERN; parameters that none takes are grouped as --by says."""
    groups: Path | None = None
    """YAML file with groups of your own: NAME: [PATTERN, …]."""
    draws: int = 12
    """Draws of the identified parameters, so that what is not known of them counts; 0 for the estimate alone."""
    over: Literal["identified", "ranges", "none"] = "identified"
    """Drawn from to see what moves the predictions: what was identified, the default ranges, or none."""
    seed: int = 0
    """Run seed."""


@dataclass(frozen=True, kw_only=True)
class GapWhy:
    """Say why a twin errs: the share of each group of parameters, and what no parameter explains and where it sits."""

    twin: str
    """A built-in name, a twin YAML, an MJCF or URDF file, or menagerie:NAME."""
    data: tuple[str, ...]
    """A log or dataset, or the name of a public set; of several, the episodes are counted through."""
    params: Path
    """Folder of an identify run. Of the log that it was fitted to, only its held-out episodes are used."""
    output: Path | None = None
    """Folder for result.json and report.html."""
    attributing: Attributing = field(default_factory=Attributing)
    comparing: Comparing = field(default_factory=Comparing)
    fail_if: tuple[str, ...] = ()
    """Exit with 1 if a figure is such, as in 'unexplained > 0.3' or 'unexplained/elbow_flex > 0.5'."""
    reading: Reading = field(default_factory=Reading)
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Explain."""
        from twinloop.workflows.data.logs import open_logs
        from twinloop.workflows.gap.options import Request
        from twinloop.workflows.gap.why import Asking, run_why

        return run_why(
            self.twin,
            self.data,
            open_logs(self.data, **vars(self.reading)),
            self.output,
            params=self.params,
            request=Request(**vars(self.comparing)),
            asking=Asking(**vars(self.attributing)),
            fail_if=self.fail_if,
            console=console(json=self.json),
        )
