"""Requests: one dataclass per command, which defines its flags and is passed to its workflow.

A field is a flag, with its name, type, default and docstring. Modules of requests import nothing heavy, because the
command line reads all of them before it selects the command.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, dataclass_transform, get_type_hints

import tyro

_T = TypeVar("_T")
_NO_VALUE = ("None", "False", "", "''")  # defaults that the help does not print
_DEFAULT = tyro.conf.arg(help_behavior_hint=lambda value: "" if value in _NO_VALUE else f"(default: {value})")
Texts = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]
"""Texts that are given one by one: the flag is repeated for each."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
def request(cls: type[_T]) -> type[_T]:
    """Make a class a request: a frozen, keyword-only dataclass whose own fields come before the common ones."""
    hints, own = get_type_hints(cls, include_extras=True), inspect.get_annotations(cls)
    cls.__annotations__ = {name: Annotated[hints[name], _DEFAULT] for name in own}
    made: Any = dataclass(frozen=True, kw_only=True)(cls)
    order = dict.fromkeys(name for base in cls.__mro__ for name in inspect.get_annotations(base))
    made.__dataclass_fields__ = {name: made.__dataclass_fields__[name] for name in order}
    return made


@request
class Request:
    """Common to all commands."""

    json: bool = False
    """End with one line of JSON on standard output."""


@request
class WorkspaceRequest(Request):
    """Common to commands that need a workspace."""

    workspace: Path | None = None
    """Folder of the workspace; by default the nearest one upwards from here."""


@request
class ReportedRequest(Request):
    """Common to commands that write a result and a report."""

    output: Path | None = None
    """Folder for result.json and report.html."""


@request
class ScenarioFolderRequest(Request):
    """Common to commands on stored scenarios."""

    scenarios: Path | None = None
    """Folder of scenarios; by default that of the workspace, or the folder scenarios here."""


@request
class SeedOption:
    """Common to commands with random draws."""

    seed: int = 0
    """Run seed. The same seed gives the same draws, and the same worlds for everything that is compared."""


@request
class WorkersOption:
    """Common to commands that compute in several processes."""

    workers: int = 0
    """Number of processes; 0 uses every core. The result does not depend on it."""


@request
class LevelOption:
    """Common to commands that report intervals."""

    level: float = 0.95
    """Confidence level of intervals; the significance level of tests is one minus this value."""


@request
class FailIfOption:
    """Common to commands whose metrics can fail a build."""

    fail_if: tuple[str, ...] = ()
    """Exit with 1 if a metric meets one of these conditions, each as 'NAME > VALUE'; NAME.low and NAME.high are the
    ends of its interval."""
