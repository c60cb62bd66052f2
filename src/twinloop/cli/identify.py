"""The command that identifies a twin from logs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from twinloop.cli.commands import Outcome, Reading, console
from twinloop.cli.planning import Planning
from twinloop.cli.ranging import Ranging
from twinloop.core.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """How the fit walks, where the defaults do not suit the log."""

    fit: Path | None = None
    """YAML with the options of the fit (docs/identification.md); the flags below replace what it says."""
    window: float | None = None
    """Replay windows of so many seconds instead of whole episodes, from measured positions and speeds."""
    free: tuple[str, ...] = ()
    """Parameters to fit, as patterns such as 'joint/*/damping'; by default those of the robot that a log can tell."""
    bootstrap: int = 0
    """Fit so many times again to episodes (or blocks of time) drawn anew, for the intervals."""
    profile: tuple[str, ...] = ()
    """Parameters whose profile likelihood is walked: how much worse the fit is where each is held elsewhere."""
    measured_torque: bool = False
    """Drive a torque-controlled twin by the torques that were measured, instead of those that were commanded."""


@dataclass(frozen=True, kw_only=True)
class Identify:
    """Identify a twin's parameters from logs, and test them on held-out episodes.

    Intervals are clustered by episode, or by blocks of time where episodes are few; the result says which.
    """

    twin: str
    """A built-in name, a twin YAML, an MJCF or URDF file, or menagerie:NAME."""
    data: tuple[str, ...] = ()
    """A log or dataset, or the name of a public set; of several, the episodes are counted through."""
    output: Path | None = None
    """Folder for result.json and report.html."""
    holdout: str | None = None
    """Held-out episodes: last:K, every:K, or episode numbers separated by commas; without them the fit says so."""
    fitting: Fitting = field(default_factory=Fitting)
    planning: Planning = field(default_factory=Planning)
    ranging: Ranging = field(default_factory=Ranging)
    reading: Reading = field(default_factory=Reading)
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Identify."""
        from twinloop.workflows.data.logs import open_logs
        from twinloop.workflows.identify.identify import fit_config, run_identify

        if self.planning.plan:
            self._refuse_with_plan()
        config, out = fit_config(**vars(self.fitting)), console(json=self.json)
        log = open_logs(self.data, **vars(self.reading)) if self.data else None
        if self.planning.plan:
            return self.planning.run(self.twin, log, config=config, output=self.output, console=out), 0
        if self.planning.excitation is not None:
            raise InputError("--excitation suggests a motion before a fit. Say --plan as well.")
        if log is None or self.output is None:
            raise InputError("A fit needs --data and --output. Say --plan to see what data, or none, could tell.")
        figures = run_identify(
            self.twin,
            log,
            self.output,
            holdout=self.holdout,
            config=config,
            beyond=self.ranging.request(),
            console=out,
        )
        return figures, 0

    def _refuse_with_plan(self) -> None:
        """Refuse what only a fit could do, because a plan fits nothing."""
        of_fit = {**vars(self.ranging), "holdout": self.holdout}
        of_fit |= {name: getattr(self.fitting, name) for name in ("bootstrap", "profile")}
        usual = {**vars(Ranging()), "holdout": None, "bootstrap": 0, "profile": ()}
        said = [f"--{name.replace('_', '-')}" for name, value in of_fit.items() if value != usual[name]]
        if said:
            raise InputError(f"--plan fits nothing, so {', '.join(said)} would do nothing. Leave out one or the other.")
