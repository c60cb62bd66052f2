"""The commands ``twinloop gap data``, ``gap sensors`` and ``gap vision``: data against data."""

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


@dataclass(frozen=True, kw_only=True)
class GapVision:
    """How far simulated pictures are from real ones, where it shows, and which camera parameter would close it."""

    real: str
    """A LeRobot dataset with pictures, or a folder with one folder of pictures (or one array) for each episode."""
    sim: str
    """The simulated one, such as what `twinloop render` wrote."""
    camera: str | None = None
    """Camera, as in observation.images.NAME; may be left out where there is one."""
    sim_camera: str | None = None
    """Camera of the simulated pictures where it has another name."""
    embedding: str = "classical"
    """classical, onnx:FILE, torch:FILE (TorchScript), policy:FOLDER, or my_file.py:Encoder."""
    frames: int = 8
    """Pictures of each episode, at most, chosen by seed."""
    size: str | None = None
    """WIDTHxHEIGHT to scale all pictures to; by default both sides must have one size."""
    twin: str | None = None
    """The twin whose sensor the simulated pictures were seen through, where the dataset does not say it."""
    seed: int = 0
    """Of frames, relabellings and resamples."""
    draws: int = 4999
    """Relabellings of episodes for each test."""
    output: Path | None = None
    """Folder for result.json and report.html."""
    fail_if: tuple[str, ...] = ()
    """Exit with 1 if a figure is such, as in 'auc > 0.8' or 'mmd.low > 0'."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Measure."""
        from twinloop.workflows.gap.vision import run_gap_vision

        given = {name: value for name, value in vars(self).items() if name not in ("real", "sim", "output", "json")}
        return run_gap_vision(self.real, self.sim, self.output, **given, console=console(json=self.json))
