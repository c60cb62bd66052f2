"""Definition of a command: its request, its workflow, and whether workspaces record its runs."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from functools import cached_property
from typing import Annotated, Any, Union

import tyro
from rich.console import Console

from twinloop.core.console import SafeConsole
from twinloop.workflows.run.record_command import Record

Figures = Mapping[str, Any]
Outcome = tuple[Figures, int]

_PIPED = 120  # columns if the width is unknown: tables of parameters do not fit in 80


@dataclass(frozen=True)
class Command:
    """A command: the request that defines its flags, and the workflow that receives the request.

    Attributes:
        name: name on the command line.
        request: dataclass whose fields are the flags.
        workflow: ``module:function``, imported on use. It gets the request and a console, and returns the metrics, with
            an exit code if that is not 0.
        record: what a workspace records of a run. ``measures``: its metrics. ``makes``: also the datasets that it
            wrote. ``stores``: only the hashes of its files, because the workflow records the rest itself.
        example: example command line for the help.
        resumable: returns whether a stopped run can be continued with ``--resume``; None if there is no such flag.
        former: former names of flags, and of the command itself, with the present ones. They are read for one version.
    """

    name: str
    request: type[Any]
    workflow: str = ""
    record: Record | None = None
    example: str = ""
    resumable: Callable[[Any], bool] | None = None
    former: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def description(self) -> str:
        """Text of the help: the docstring of the request, and the example."""
        text = inspect.getdoc(self.request) or ""
        return f"{text}\n\nExample: {self.example}" if self.example else text

    def run(self, request: Any, out: Console) -> Outcome:
        """Run the workflow; return its metrics and exit code."""
        if not self.workflow:
            return request.run()
        module, _, function = self.workflow.partition(":")
        made = getattr(importlib.import_module(module), function)(request, out)
        return made if isinstance(made, tuple) else (made, 0)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Several commands under one name.

    Attributes:
        name: name on the command line.
        description: first paragraph of the help.
        commands: the commands of the group.
        default: command that is used if the next word is a flag.
        any_word: whether the default is also used if the next word is not the name of a command, or is missing.
    """

    name: str
    description: str
    commands: Sequence[Command]
    default: str = ""
    any_word: bool = False

    @cached_property
    def request(self) -> type[Any]:
        """A dataclass whose field ``action`` is the request of one of the commands."""
        usual = [one.request for one in self.commands if self.any_word and one.name == self.default]
        action: Any = field(default_factory=usual[0]) if usual else field()
        made = make_dataclass(
            self.name, [("action", build_request_union(self.commands), action)], frozen=True, kw_only=True
        )
        made.__doc__ = self.description
        return made


def build_request_union(commands: Sequence[Command | Group]) -> Any:
    """Return the union type of the requests of commands, from which the parser chooses."""
    return Union[  # noqa: UP007 - their number varies
        tuple(
            Annotated[one.request, tyro.conf.subcommand(one.name, prefix_name=False, description=one.description)]
            for one in commands
        )
    ]


def console(*, json: bool) -> Console:
    """Return the console for people: standard output, or standard error if standard output is for JSON."""
    made = SafeConsole(stderr=json, highlight=False, markup=False, emoji=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = _PIPED
    return made
