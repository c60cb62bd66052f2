"""The command ``twinloop gap classes``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from twinloop.cli.commands import Outcome, Reading, console


@dataclass(frozen=True, kw_only=True)
class GapClasses:
    """Why it fails in practice: name the failure class by rule, with its evidence and the command that mends it."""

    data: str | None = None
    """A real log or dataset, or the name of a public set."""
    twin: str | None = None
    """The twin that was calibrated: a built-in name, a twin YAML, an MJCF or URDF file, or menagerie:NAME."""
    params: Path | None = None
    """Folder of the identify run that calibrated it."""
    training: str | None = None
    """What the policy was trained on: a dataset, or the folder of an identify run whose ranges were drawn from."""
    trials: tuple[Path, ...] = ()
    """Scored trials, real and simulated: tables or datasets with policy, domain, success and condition."""
    gap: Path | None = None
    """Folder of a run of `twinloop gap`."""
    other: str | None = None
    """A real log of another environment, such as one in which the policy fails."""
    calibrated: str | None = None
    """Number of the first episode of --data after the calibration, or its date (2026-03-01T08:00)."""
    least_skill: float = 0.5
    """Skill below which a gap is too wide."""
    most_unexplained: float = 0.25
    """Unexplained share above which a gap is too wide."""
    least_success: float = 0.5
    """Success in simulation below which a policy is weak."""
    output: Path | None = None
    """Folder for result.json and report.html."""
    fail_if: tuple[str, ...] = ()
    """Exit with 1 if a figure is such, as in 'classes > 0' or 'class/drift > 0'."""
    reading: Reading = field(default_factory=Reading)
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Diagnose."""
        from twinloop.workflows.data.logs import open_log
        from twinloop.workflows.gap.classes import Request, run_gap_classes

        given = {name: getattr(self, name) for name in Request.__dataclass_fields__}
        request = Request(**given)
        log = None if self.data is None else open_log(self.data, **vars(self.reading))
        return run_gap_classes(request, log, self.output, fail_if=self.fail_if, console=console(json=self.json))
