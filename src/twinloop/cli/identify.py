"""The command that identifies a twin from logs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from twinloop.cli.commands import Outcome, Reading, console


@dataclass(frozen=True, kw_only=True)
class Identify:
    """Identify a twin's parameters from logs, with intervals clustered by episode, and test them on held-out ones."""

    twin: str
    """A built-in name, a twin YAML, an MJCF or URDF file, or menagerie:NAME."""
    data: str
    """A log or dataset, or the name of a public set."""
    output: Path
    """Folder for result.json and report.html."""
    holdout: str | None = None
    """Held-out episodes: last:K, every:K, or episode numbers separated by commas; without them the fit says so."""
    reading: Reading = field(default_factory=Reading)
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Identify."""
        from twinloop.loop.identify import run_identify
        from twinloop.loop.logs import open_log

        log = open_log(self.data, **vars(self.reading))
        return run_identify(self.twin, log, self.output, holdout=self.holdout, console=console(json=self.json)), 0
