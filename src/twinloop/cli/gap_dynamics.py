"""The command ``twinloop gap dynamics``, which ``twinloop gap`` stands for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from twinloop.cli.commands import Outcome, Reading, console


@dataclass(frozen=True, kw_only=True)
class GapDynamics:
    """Measure how far a twin is from a real log, joint by joint, beside three baselines."""

    twin: str
    """A built-in name, a twin YAML, an MJCF or URDF file, or menagerie:NAME."""
    data: str
    """A log or dataset, or the name of a public set."""
    output: Path
    """Folder for result.json and report.html."""
    params: Path | None = None
    """Folder of an identify run, whose estimates replace the twin's nominal values."""
    reading: Reading = field(default_factory=Reading)
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Measure."""
        from twinloop.loop.gap import run_gap
        from twinloop.loop.logs import open_log

        log = open_log(self.data, **vars(self.reading))
        return run_gap(self.twin, log, self.output, params=self.params, console=console(json=self.json)), 0
