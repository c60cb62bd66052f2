"""Request of ``twinloop identify``."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Literal

from twinloop.workflows.data.requests import LogReading
from twinloop.workflows.run.request import ReportedRequest, request


@request
class FitOptions:
    """How the fit walks, where the defaults do not suit the log."""

    fit: Path | None = None
    """YAML with the options of the fit (docs/guides/identify.md); the flags below override it."""
    window: float | None = None
    """Replay windows of so many seconds instead of whole episodes, from measured positions and speeds."""
    free: tuple[str, ...] = ()
    """Parameters to fit, as patterns such as 'joint/*/damping'; by default the robot's that a log can determine."""
    bootstrap: int = 0
    """Number of fits to resampled episodes (or blocks of time), for the intervals."""
    profile: tuple[str, ...] = ()
    """Parameters whose profile likelihood is walked: how much worse the fit is where each is held elsewhere."""
    measured_torque: bool = False
    """Drive a torque-controlled twin by the torques that were measured, instead of those that were commanded."""


@request
class PlanOptions:
    """Analysis before a fit: parameters that the data determine, and a motion that determines the others."""

    plan: bool = False
    """Report how well the data, or none, determine each parameter, without a fit. Needs neither --data nor --output."""
    excitation: Path | None = None
    """With --plan: write a motion that determines the other parameters, within the robot's limits, to this .yaml."""
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


@request
class PostFitAnalyses:
    """Beyond the fit: ranges that cover real clips, physics that is missing, change in time."""

    calibrate: str | None = None
    """Additional clips that widen the ranges to their nominal coverage: last:K of those not held out, every:K, or
    numbers.
    """
    compare: bool = False
    """Fit alternative structures (delay, backlash, Stribeck friction, …) and report missing physics."""
    structures: tuple[str, ...] = ()
    """Names of the structures to compare; by default all."""
    structure_file: Path | None = None
    """YAML with structures of your own (docs/guides/identify.md)."""
    folds: int = 3
    """Folds of episodes over which structures are cross-fitted; with --holdout they are judged on that instead."""
    drift: str | None = None
    """Test for change between groups of episodes: a number of groups in order, hour, day, or a condition's name."""
    posterior: Literal["sbi"] | None = None
    """Also learn a posterior by simulation-based inference, and check it (docs/concepts/uncertainty.md)."""


@request
class IdentifyRequest(ReportedRequest):
    """Identify a twin's parameters from logs, and test them on held-out episodes.

    Intervals are clustered by episode, or by blocks of time if there are few episodes; the result names the method.
    """

    twin: str
    """A built-in name, a twin YAML, an MJCF or URDF file, or menagerie:NAME."""
    data: tuple[str, ...] = ()
    """A log or dataset, or the name of a public set; of several, the episodes are counted through."""
    holdout: str | None = None
    """Held-out episodes: last:K, every:K, or episode numbers separated by commas; by default none, with a warning."""
    fitting: FitOptions = field(default_factory=FitOptions)
    planning: PlanOptions = field(default_factory=PlanOptions)
    ranging: PostFitAnalyses = field(default_factory=PostFitAnalyses)
    reading: LogReading = field(default_factory=LogReading)
