"""Flags of `identify` that go beyond the fit: calibrated ranges, rival structures, drift, a learned posterior."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Ranging:
    """Beyond the fit: ranges that cover real clips, physics that is missing, change in time."""

    calibrate: str | None = None
    """Clips of their own that widen the ranges until they cover: last:K of those not held out, every:K, or numbers."""
    compare: bool = False
    """Fit rival structures (delay, backlash, Stribeck friction, …) and say which physics is missing."""
    structures: tuple[str, ...] = ()
    """Names of the structures to compare; by default all."""
    structure_file: Path | None = None
    """YAML with structures of your own (docs/hypotheses.md)."""
    folds: int = 3
    """Folds of episodes over which structures are cross-fitted; with --holdout they are judged on that instead."""
    drift: str | None = None
    """Test for change between groups of episodes: a number of groups in order, hour, day, or a condition's name."""

    posterior: Literal["sbi"] | None = None
    """Learn a posterior by simulation-based inference beside the fit, and check it (docs/posterior.md)."""

    def request(self) -> Any:
        """What the loop takes."""
        from twinloop.workflows.identify.identify import Beyond

        return Beyond(**vars(self))
