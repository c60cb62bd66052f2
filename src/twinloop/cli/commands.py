"""Define the classes of commands and command groups, which connect flags (a request) with a function (a workflow)."""

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

Metrics = Mapping[str, Any]
Outcome = tuple[Metrics, int]

_PIPED = 120  # columns if the width is unknown: tables of parameters do not fit in 80


@dataclass(frozen=True)
class Command:
    """One command of the program: a request class for its flags, and a workflow function that runs it.

    Attributes:
        name: Name on the command line.
        request: Dataclass whose fields are the flags, and whose docstring is the help text.
        workflow: Function as ``module:function``, imported at first use. Its arguments are the request and a console.
            It returns the metrics, or the metrics and an exit code. If empty, ``request.run()`` is called.
        record: Content of the record that a workspace keeps of each run: ``measures`` for the metrics, ``makes`` for
            the metrics and the written datasets, ``stores`` for the hashes of the files only (the workflow records the
            rest), or None for no record.
        example: Example command line for the help.
        resumable: Function that returns whether a stopped run can be continued with ``--resume``; None if the command
            has no such flag.
        former: Renamed flags, or the renamed command itself, as a mapping from the former to the present name. Former
            names are accepted for one version.
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
        """Help text: the docstring of the request class, and the example."""
        text = inspect.getdoc(self.request) or ""
        return f"{text}\n\nExample: {self.example}" if self.example else text

    def run(self, request: Any, out: Console) -> Outcome:
        """Run the workflow, and return its metrics and exit code.

        Args:
            request: Parsed flags, an instance of the request class.
            out: Console for messages to people.
        """
        if not self.workflow:
            return request.run()
        module, _, function = self.workflow.partition(":")
        made = getattr(importlib.import_module(module), function)(request, out)
        return made if isinstance(made, tuple) else (made, 0)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Several commands under one name, such as ``twinloop gap``.

    Attributes:
        name: Name on the command line.
        description: First paragraph of the help.
        commands: Commands of the group.
        default: Name of the command that runs if the next word is a flag, as in ``twinloop gap --data …``.
        any_word: Whether the default command also runs if the next word is missing or is not the name of a command, for
            example the path of a dataset.
    """

    name: str
    description: str
    commands: Sequence[Command]
    default: str = ""
    any_word: bool = False

    @cached_property
    def request(self) -> type[Any]:
        """Dataclass with one field, ``action``, whose value is the request of the chosen command."""
        usual = [one.request for one in self.commands if self.any_word and one.name == self.default]
        action: Any = field(default_factory=usual[0]) if usual else field()
        made = make_dataclass(
            self.name, [("action", build_request_union(self.commands), action)], frozen=True, kw_only=True
        )
        made.__doc__ = self.description
        return made


def build_request_union(commands: Sequence[Command | Group]) -> Any:
    """Return the union type of all request classes, from which the argument parser chooses by the command's name."""
    return Union[  # noqa: UP007 - their number varies
        tuple(
            Annotated[one.request, tyro.conf.subcommand(one.name, prefix_name=False, description=one.description)]
            for one in commands
        )
    ]


def make_console(*, json: bool, quiet: bool = False) -> Console:
    """Return the console for messages to people.

    Args:
        json: Whether standard output is reserved for JSON. If true, the console writes to standard error.
        quiet: Whether nothing is printed.
    """
    made = SafeConsole(stderr=json, quiet=quiet, highlight=False, markup=False, emoji=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = _PIPED
    return made
