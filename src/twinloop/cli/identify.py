"""The command that identifies a twin from logs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from twinloop.cli.commands import Outcome, Reading, console


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """How the fit walks, where the defaults do not suit the log."""

    fit: Path | None = None
    """YAML with the options of the fit (docs/identification.md); the flags below replace what it says."""
    window: float | None = None
    """Replay windows of so many seconds instead of whole episodes, from measured positions and speeds."""
    free: tuple[str, ...] = ()
    """Parameters to fit, as patterns such as 'joint/*/damping'; by default those of the robot that a log can tell."""
    measured_torque: bool = False
    """Drive a torque-controlled twin by the torques that were measured, instead of those that were commanded."""


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
    fitting: Fitting = field(default_factory=Fitting)
    reading: Reading = field(default_factory=Reading)
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Identify."""
        from twinloop.loop.fit_file import fit_config
        from twinloop.loop.identify import run_identify
        from twinloop.loop.logs import open_log

        config = fit_config(**vars(self.fitting))
        log = open_log(self.data, **vars(self.reading))
        figures = run_identify(
            self.twin, log, self.output, holdout=self.holdout, config=config, console=console(json=self.json)
        )
        return figures, 0
