"""The command ``twinloop gap vision``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from twinloop.cli.commands import Outcome, console


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
