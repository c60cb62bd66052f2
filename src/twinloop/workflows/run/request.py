"""Define the base classes of requests: one dataclass per command, which defines the command's flags.

A field is a flag, with its name, type, default and docstring. The request is passed to the function that runs the
command. Modules of requests import nothing heavy, because the command line reads all of them before it selects the
command.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform, get_type_hints

import tyro

_T = TypeVar("_T")
_NO_VALUE = ("None", "False", "", "''")  # defaults that the help does not print
_DEFAULT = tyro.conf.arg(help_behavior_hint=lambda value: "" if value in _NO_VALUE else f"(default: {value})")
RepeatedFlag = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]
"""Type of a flag that is repeated for each of its texts."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
def request(cls: type[_T]) -> type[_T]:
    """Convert a class to a request: a frozen, keyword-only dataclass whose own fields come before inherited ones."""
    hints, own = get_type_hints(cls, include_extras=True), inspect.get_annotations(cls)
    cls.__annotations__ = {name: Annotated[hints[name], _DEFAULT] for name in own}
    made: Any = dataclass(frozen=True, kw_only=True)(cls)
    order = dict.fromkeys(name for base in cls.__mro__ for name in inspect.get_annotations(base))
    made.__dataclass_fields__ = {name: made.__dataclass_fields__[name] for name in order}
    return made


@request
class Request:
    """Options of all commands."""

    json: bool = False
    """End with one line of JSON on standard output."""
    quiet: bool = False
    """Print only errors and the line of --json."""
    verbose: bool = False
    """Also print log messages, those of libraries included."""
    log_file: Path | None = None
    """File to which everything that is printed is also appended, each line with its time."""


@request
class WorkspaceRequest(Request):
    """Options of all commands that need a workspace."""

    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from here."""


@request
class ReportedRequest(Request):
    """Options of all commands that write a result and a report."""

    output: Path | None = None
    """Folder for result.json and report.html."""


@request
class ScenarioFolderRequest(Request):
    """Options of all commands on stored scenarios."""

    scenarios: Path | None = None
    """Folder of scenarios; by default that of the workspace or, without a workspace, the folder scenarios here."""


@request
class SeedOption:
    """Options of all commands with random draws."""

    seed: int = 0
    """Run seed. The same seed gives the same random draws, so that compared policies or twins get the same worlds."""


@request
class WorkersOption:
    """Options of all commands that compute in several processes."""

    workers: int = 0
    """Number of processes; 0 uses every core. The result does not depend on it."""


@request
class RerunOption:
    """Options of all commands that can be watched while they run."""

    rerun: bool = False
    """Also show figures, such as losses or joint positions, in the viewer of Rerun."""


@request
class TrackOption(RerunOption):
    """Options of all commands that report losses and errors while they run."""

    track: tuple[Literal["mlflow", "tensorboard", "trackio"], ...] = ()
    """Also report losses and errors to these programs, whose packages must be installed. TensorBoard's files are in
    OUTPUT/tensorboard.
    """


@request
class LevelOption:
    """Options of all commands that report intervals."""

    level: float = 0.95
    """Confidence level of intervals; the significance level of tests is one minus this value."""


@request
class FailIfOption:
    """The flag --fail-if, for commands whose exit code can depend on their metrics."""

    fail_if: tuple[str, ...] = ()
    """Exit with 1 if a metric meets one of these conditions, each as 'NAME > VALUE'. NAME.low and NAME.high are the
    bounds of its interval.
    """
