"""The command ``twinloop gap sensors``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from twinloop.cli.commands import Outcome, Reading, console


@dataclass(frozen=True, kw_only=True)
class GapSensors:
    """How far simulated sensors are from real ones: noise spectra, Allan deviation, lag, lost samples, counts."""

    real: str
    """The real log or dataset, or the name of a public set."""
    sim: str
    """The simulated one, such as a generated dataset with `rollout: {sensors: all}`."""
    twin: str | None = None
    """The twin that the simulated log was made with: its nominal values make the values that close a gap exact."""
    same: tuple[str, ...] = ()
    """REAL=SIM for a signal that has two names, such as acceleration/imu=acceleration/tool_imu."""
    output: Path | None = None
    """Folder for result.json and report.html."""
    fail_if: tuple[str, ...] = ()
    """Exit with 1 if a figure is such, as in 'sensors_differ > 0.1' or 'noise/position/elbow_flex.low > 0'."""
    reading: Reading = field(default_factory=Reading)
    """What the real log does not say of itself."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Measure."""
        from twinloop.workflows.data.logs import open_log
        from twinloop.workflows.gap.sensors import run_gap_sensors

        return run_gap_sensors(
            open_log(self.real, **vars(self.reading)),
            open_log(self.sim),
            self.output,
            twin=self.twin,
            same=self.same,
            fail_if=self.fail_if,
            console=console(json=self.json),
        )
