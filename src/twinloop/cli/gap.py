"""The command ``twinloop gap``: how far simulation is from reality, why, in which classes, and over runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from twinloop.cli.commands import Outcome, Reading, console
from twinloop.cli.gap_data import GapData, GapSensors, GapVision
from twinloop.cli.gap_policies import GapCompare, GapEstimate, GapPolicies, GapPower, GapPredictivity


@dataclass(frozen=True, kw_only=True)
class Comparing:
    """How a log is cut, what of it is compared, and what is simulated."""

    window: float | None = None
    """Replay windows of so many seconds from measured states; default 1, or whole episodes where half of them are
    shorter. 0 replays whole episodes."""
    stride: float | None = None
    """Seconds from one window's beginning to the next; by default windows meet."""
    compare: tuple[str, ...] = ()
    """Kinds of measurement: position, velocity, pose/BODY, pose_error/BODY (distance and angle), twist/BODY,
    acceleration/SITE, angular_velocity/SITE. Default: joint positions, or the pose errors of a twin without a robot."""
    contacts: bool = False
    """Simulate contacts and joint stops, which a log of joint positions alone does not tell; always done for a twin
    without a robot. Errors are then told apart by contact."""
    measured_torque: bool = False
    """Drive a torque-controlled twin by the torques that were measured, instead of those that were commanded."""
    condition: tuple[str, ...] = ()
    """PARAMETER=CONDITION where every episode states a parameter's value, as in
    actuator/pendulum/firmware_gain=firmware_kp."""


@dataclass(frozen=True, kw_only=True)
class GapDynamics:
    """Measure how far a twin is from real logs: error over time, delay, skill, and real against real."""

    twin: str
    """A built-in name, a twin YAML, an MJCF or URDF file, or menagerie:NAME."""
    data: tuple[str, ...]
    """A log or dataset, or the name of a public set; of several, the episodes are counted through."""
    output: Path | None = None
    """Folder for result.json and report.html."""
    params: Path | None = None
    """Folder of an identify run, whose estimates replace the twin's nominal values. Of the log that it was fitted to,
    only its held-out episodes are measured."""
    no_why: bool = False
    """With --params: leave out why the nominal twin errs (`twinloop gap why`), which takes most of the time."""
    comparing: Comparing = field(default_factory=Comparing)
    repeats: str = "auto"
    """Which episodes repeat one motion, for the noise floor: auto (equal commands), task (episodes of one task), none,
    or numbers such as 0-9,12/20-24, where slashes part groups."""
    fail_if: tuple[str, ...] = ()
    """Exit with 1 if a figure is such, as in 'skill < 0.5' or 'delay/elbow_flex > 0.02'."""
    reading: Reading = field(default_factory=Reading)
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Measure."""
        from twinloop.workflows.data.logs import open_logs
        from twinloop.workflows.gap.dynamics import run_gap
        from twinloop.workflows.gap.options import Request

        return run_gap(
            self.twin,
            open_logs(self.data, **vars(self.reading)),
            self.output,
            params=self.params,
            request=Request(**vars(self.comparing), repeats=self.repeats),
            why=not self.no_why,
            fail_if=self.fail_if,
            console=console(json=self.json),
        )


@dataclass(frozen=True, kw_only=True)
class Attributing:
    """Which groups the error is shared out among, and how surely."""

    by: Literal["quantity", "joint", "quantity and joint", "parameter"] = "quantity"
    """How parameters that differ from nominal are grouped: by what they mean, by joint, by both, or each alone."""
    group: tuple[str, ...] = ()
    """Groups of your own, NAME=PATTERN,PATTERN; parameters that none takes are grouped as --by says."""
    groups: Path | None = None
    """YAML file with groups of your own: NAME: [PATTERN, …]."""
    draws: int = 12
    """Draws of the identified parameters, so that what is not known of them counts; 0 for the estimate alone."""
    over: Literal["identified", "ranges", "none"] = "identified"
    """Drawn from to see what moves the predictions: what was identified, the default ranges, or none."""
    seed: int = 0
    """Run seed."""


@dataclass(frozen=True, kw_only=True)
class GapWhy:
    """Say why a twin errs: the share of each group of parameters, and what no parameter explains and where it sits."""

    twin: str
    """A built-in name, a twin YAML, an MJCF or URDF file, or menagerie:NAME."""
    data: tuple[str, ...]
    """A log or dataset, or the name of a public set; of several, the episodes are counted through."""
    params: Path
    """Folder of an identify run. Of the log that it was fitted to, only its held-out episodes are used."""
    output: Path | None = None
    """Folder for result.json and report.html."""
    attributing: Attributing = field(default_factory=Attributing)
    comparing: Comparing = field(default_factory=Comparing)
    fail_if: tuple[str, ...] = ()
    """Exit with 1 if a figure is such, as in 'unexplained > 0.3' or 'unexplained/elbow_flex > 0.5'."""
    reading: Reading = field(default_factory=Reading)
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Explain."""
        from twinloop.workflows.data.logs import open_logs
        from twinloop.workflows.gap.options import Request
        from twinloop.workflows.gap.why import Asking, run_why

        return run_why(
            self.twin,
            self.data,
            open_logs(self.data, **vars(self.reading)),
            self.output,
            params=self.params,
            request=Request(**vars(self.comparing)),
            asking=Asking(**vars(self.attributing)),
            fail_if=self.fail_if,
            console=console(json=self.json),
        )


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


@dataclass(frozen=True, kw_only=True)
class GapHistory:
    """How the gap moved over runs: every figure of earlier `gap` runs in order of time, beside the twin's version."""

    runs: tyro.conf.Positional[tuple[Annotated[Path, tyro.conf.arg(metavar="DIR")], ...]]
    """Folders of gap runs, or folders that hold such folders at any depth."""
    figures: tuple[str, ...] = ()
    """Names or patterns of figures, such as skill or 'rmse/*'; default those without a slash."""
    kind: str = "dynamics"
    """Which measurement: dynamics, sensors, vision, data, policies, predictivity."""
    output: Path | None = None
    """Write a page with the curves to this file."""
    json: bool = False
    """End with one line of JSON on standard output."""

    def run(self) -> Outcome:
        """Collect."""
        from twinloop.workflows.gap.history import run_gap_history

        out = console(json=self.json)
        return run_gap_history(self.runs, figures=self.figures, kind=self.kind, output=self.output, console=out), 0


_HELP = ("-h", "--help")


@dataclass(frozen=True, kw_only=True)
class Gap:
    """How far simulation is from reality, why, and how well it predicts; without a word, `dynamics`."""

    action: (
        Annotated[GapDynamics, tyro.conf.subcommand("dynamics", prefix_name=False)]
        | Annotated[GapWhy, tyro.conf.subcommand("why", prefix_name=False)]
        | Annotated[GapSensors, tyro.conf.subcommand("sensors", prefix_name=False)]
        | Annotated[GapVision, tyro.conf.subcommand("vision", prefix_name=False)]
        | Annotated[GapData, tyro.conf.subcommand("data", prefix_name=False)]
        | Annotated[GapPolicies, tyro.conf.subcommand("policies", prefix_name=False)]
        | Annotated[GapPredictivity, tyro.conf.subcommand("predictivity", prefix_name=False)]
        | Annotated[GapClasses, tyro.conf.subcommand("classes", prefix_name=False)]
        | Annotated[GapCompare, tyro.conf.subcommand("compare", prefix_name=False)]
        | Annotated[GapPower, tyro.conf.subcommand("power", prefix_name=False)]
        | Annotated[GapEstimate, tyro.conf.subcommand("estimate", prefix_name=False)]
        | Annotated[GapHistory, tyro.conf.subcommand("history", prefix_name=False)]
    )

    @property
    def json(self) -> bool:
        """See the action."""
        return self.action.json

    def run(self) -> Outcome:
        """Run the action."""
        return self.action.run()


def said(words: Sequence[str]) -> list[str]:
    """The words of a command line in which ``gap --flag`` says ``gap dynamics --flag``."""
    given = list(words)
    if given[:1] == ["gap"] and len(given) > 1 and given[1].startswith("-") and given[1] not in _HELP:
        given.insert(1, "dynamics")
    return given
