"""The command ``twinloop gap data``: states and actions."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from twinloop.cli.commands import Outcome, Reading, console


@dataclass(frozen=True, kw_only=True)
class GapData:
    """Compare real trajectories with simulated ones as distributions: distances, a classifier, and what gives it away.

    With neither --sim nor --twin the real episodes are compared half with half: what is seen where there is no gap.
    """

    real: str
    """A log or dataset, or the name of a public set."""
    sim: str | None = None
    """Simulated episodes: a dataset or log."""
    twin: str | None = None
    """Instead of --sim: a twin that replays the real commands; trials are then compared in pairs."""
    params: Path | None = None
    """Folder of an identify run, whose estimates replace the twin's nominal values."""
    ranges: str | None = None
    """A twin whose joint ranges stand in for the calibration of a log that has none, as for identify."""
    output: Path | None = None
    """Folder for result.json and report.html."""
    fail_if: tuple[str, ...] = ()
    """Exit with 1 where this holds, such as 'auc > 0.7'."""
    clip: float = 2.0
    """Length of a clip in s; every clip becomes one row of features."""
    level: float = 0.95
    """Confidence level of intervals; tests are at one minus it."""
    draws: int = 999
    """Relabellings of episodes in every test; 0 for distances without tests."""
    seed: int = 0
    """Run seed."""
    reading: Reading = field(default_factory=Reading)
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Measure."""
        from twinloop.workflows.data.logs import open_log
        from twinloop.workflows.gap.data import run_gap_data

        return run_gap_data(
            open_log(self.real, **vars(self.reading)),
            sim=None if self.sim is None else open_log(self.sim),
            twin=self.twin,
            params=self.params,
            ranges=self.ranges,
            clip_s=self.clip,
            level=self.level,
            draws=self.draws,
            seed=self.seed,
            output=self.output,
            fail_if=self.fail_if,
            console=console(json=self.json),
        )
