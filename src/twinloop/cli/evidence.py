"""The command ``twinloop evidence``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from twinloop.cli.commands import Outcome, console


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """How many real trials does a claim need, and what can simulation contribute to it?"""

    failure_rate: float
    """The largest failure rate that the claim allows, such as 1e-3."""
    confidence: float = 0.95
    """Of the claim."""
    failures: int = 3
    """Most failures allowed that the table goes up to."""
    seen_trials: int = 0
    """Real trials that were made already."""
    seen_failures: int = 0
    """Failures among them."""
    sim: Path | None = None
    """Output of a `twinloop scenario search`."""
    gap: float | None = None
    """Assumed: how much higher the real failure rate is than the simulated one, at most."""
    correlation: float | None = None
    """Assumed: correlation of real and simulated outcomes of the same trials."""
    region: float | None = None
    """Assumed: probability of the only region in which the robot fails."""
    output: Path | None = None
    """Folder for result.json and report.html."""
    fail_if: tuple[str, ...] = ()
    """Exit with 1 if a figure is such, as in 'more_without_failure > 0' or 'bound > 1e-3'."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Count."""
        from twinloop.workflows.evaluate.evidence import Claim, run_evidence

        apart = ("output", "fail_if", "json")
        claim = Claim(**{key: value for key, value in vars(self).items() if key not in apart})
        return run_evidence(claim, self.output, fail_if=self.fail_if, console=console(json=self.json))
