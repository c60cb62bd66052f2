"""Define the options of ``twinloop identify``."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Literal

from twinloop.workflows.data.requests import LogReading
from twinloop.workflows.run.request import ReportedRequest, TrackOption, request


@request
class FitOptions:
    """Options of the fit, if the defaults do not suit the log."""

    fit: Path | None = None
    """YAML file with options of the fit (docs/guides/identify.md); the flags below override it."""
    window: float | None = None
    """Length in seconds of windows that are replayed from measured states, instead of whole episodes."""
    free: tuple[str, ...] = ()
    """Parameters to fit, as patterns such as 'joint/*/damping'; by default those of the robot that a log can determine.
    """
    given: Path | None = None
    """Folder of an earlier identify run, for example of the robot without its scene. Its parameters keep their
    estimates, and its uncertainty is part of the intervals and of the result."""
    bootstrap: int = 0
    """Number of fits to resampled episodes (or blocks of time) from which intervals are computed; 0 for none."""
    profile: tuple[str, ...] = ()
    """Parameters for which to compute the profile likelihood: how much the error rises if each is fixed at other
    values.
    """
    measured_torque: bool = False
    """Drive a torque-controlled twin with the measured torques instead of the commanded ones."""


@request
class PlanOptions:
    """Analysis before a fit: which parameters the data determine, and a motion that determines the others."""

    plan: bool = False
    """Report how well the data determine each parameter, without a fit. Needs neither --data nor --output."""
    excitation: Path | None = None
    """With --plan: write to this .yaml file a motion that determines the other parameters, within the robot's limits.
    """
    duration: float = 30.0
    """Duration of one pass of that motion, in seconds."""
    repeat: int = 4
    """Number of passes to record, each as one episode."""
    optimal: Literal["D", "A", "E"] = "D"
    """Criterion to minimize: determinant (D), trace (A) or largest eigenvalue (E) of the parameters' covariance."""
    speed_share: float = 0.6
    """Share (0 to 1) of the servos' no-load speed, and of the acceleration by their torque, that the motion may use."""
    plan_seed: int = 0
    """Seed of the parameter values for which the analysis is made, and of the search for a motion."""


@request
class PostFitAnalyses:
    """Analyses after the fit: calibrated ranges, missing physics, change over time, residual, posterior."""

    calibrate: str | None = None
    """Episodes with which the ranges are widened until they cover real clips as often as stated: last:K of the episodes
    not held out, every:K, or episode numbers. These episodes are not fitted. By default the held-out episodes, if there
    are at least nine.
    """
    compare: bool = False
    """Fit with alternative model structures (delay, backlash, Stribeck friction, …) and report missing physics."""
    structures: tuple[str, ...] = ()
    """Names of the model structures to compare; by default all."""
    structure_file: Path | None = None
    """YAML file with your own model structures (docs/guides/identify.md)."""
    folds: int = 3
    """Number of cross-validation folds for the model structures; with --holdout they are tested on those episodes
    instead.
    """
    drift: str | None = None
    """Test for change of parameters between groups of episodes: a number of groups in order, hour, day, or a
    condition's name.
    """
    residual: bool = False
    """Also fit what no parameter explains as bounded offsets of the commands and a random disturbance, which held-out
    episodes admit or not. An admitted residual is written to twin.yaml in --output (docs/guides/identify.md).
    """
    posterior: Literal["sbi"] | None = None
    """Also learn a posterior by simulation-based inference, and check it (docs/concepts/uncertainty.md)."""


@request
class IdentifyRequest(TrackOption, ReportedRequest):
    """Identify a twin's parameters from logs, and test them on held-out episodes.

    Intervals are clustered by episode, or by blocks of time if there are few episodes; the result names the method.
    """

    twin: str
    """A built-in name, a twin YAML, an MJCF or URDF file, or menagerie:NAME."""
    data: tuple[str, ...] = ()
    """Logs, datasets or names of public sets. If several are given, their episodes are numbered consecutively."""
    holdout: str | None = None
    """Held-out episodes: last:K, every:K, or episode numbers separated by commas; by default none, with a warning."""
    fitting: FitOptions = field(default_factory=FitOptions)
    planning: PlanOptions = field(default_factory=PlanOptions)
    ranging: PostFitAnalyses = field(default_factory=PostFitAnalyses)
    reading: LogReading = field(default_factory=LogReading)
