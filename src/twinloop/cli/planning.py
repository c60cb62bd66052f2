"""Flags of `identify` that look before the fit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class Planning:
    """Look before the fit: what the data can tell, and a motion that would tell the rest."""

    plan: bool = False
    """Say what the data, or none, can tell about each parameter; fit nothing. Needs neither --data nor --output."""
    excitation: Path | None = None
    """With --plan: write the motion that would tell the rest, within the robot's limits, to this .yaml."""
    duration: float = 30.0
    """Seconds of one pass of that motion."""
    repeat: int = 4
    """How often it will be recorded, each pass an episode."""
    optimal: Literal["D", "A", "E"] = "D"
    """What of the open parameters' covariance is made small: determinant, trace or largest eigenvalue."""
    speed_share: float = 0.6
    """Part of the servos' no-load speed, and of the acceleration that their torque gives, that it may use."""
    plan_seed: int = 0
    """Seed of the plausible parameters and of the search."""

    def run(self, twin: str, log: Any, *, config: Any, output: Path | None, console: Console) -> dict[str, Any]:
        """Plan."""
        from twinloop.workflows.identify.excitation import PlanRequest, run_plan

        request = PlanRequest(
            excitation=self.excitation,
            duration=self.duration,
            repeat=self.repeat,
            criterion=self.optimal,
            speed=self.speed_share,
            seed=self.plan_seed,
        )
        return run_plan(twin, log, request, console=console, config=config, output=output)
