"""What a command is: its request, its workflow, and whether workspaces keep a record of its runs."""

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
from twinloop.workflows.run.remember import Record

Figures = Mapping[str, Any]
Outcome = tuple[Figures, int]

_PIPED = 120  # columns where nobody says how many there are: tables of parameters do not fit in 80


@dataclass(frozen=True)
class Command:
    """A command: the request that makes its flags, and the workflow that is handed it.

    Attributes:
        name: the word that is typed.
        request: its fields are the flags.
        workflow: ``module:function``, loaded on use; it takes the request and a console for people, and returns the
            figures, with an exit code if that is not 0.
        record: what workspaces keep of a run: ``measures`` its figures, ``makes`` also the datasets that it wrote,
            ``stores`` no more than the hashes of its files, because it writes down the rest itself.
        example: a command line that the help shows.
        resumable: whether a run that was stopped can go on with ``--resume``; None where there is no such flag.
    """

    name: str
    request: type[Any]
    workflow: str = ""
    record: Record | None = None
    example: str = ""
    resumable: Callable[[Any], bool] | None = None

    @property
    def description(self) -> str:
        """Its help: the docstring of the request, and the example."""
        text = inspect.getdoc(self.request) or ""
        return f"{text}\n\nExample: {self.example}" if self.example else text

    def run(self, request: Any, out: Console) -> Outcome:
        """Do it."""
        if not self.workflow:
            return request.run()
        module, _, function = self.workflow.partition(":")
        made = getattr(importlib.import_module(module), function)(request, out)
        return made if isinstance(made, tuple) else (made, 0)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Commands under one word.

    Attributes:
        name: the word.
        description: heads the help.
        commands: to choose from.
        default: the command that is meant where the next word is a flag.
        any_word: whether it is also meant where the next word, or none, is no command.
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
        made = make_dataclass(self.name, [("action", union(self.commands), action)], frozen=True, kw_only=True)
        made.__doc__ = self.description
        return made


def union(commands: Sequence[Command | Group]) -> Any:
    """The requests of commands as the type that the parser chooses from."""
    return Union[  # noqa: UP007 - as many as there are
        tuple(
            Annotated[one.request, tyro.conf.subcommand(one.name, prefix_name=False, description=one.description)]
            for one in commands
        )
    ]


def console(*, json: bool) -> Console:
    """Where figures for people go: standard output, or standard error where that is kept for JSON."""
    made = SafeConsole(stderr=json, highlight=False, markup=False, emoji=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = _PIPED
    return made
