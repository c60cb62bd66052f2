"""Describe all commands and their flags, from the request classes that the command line itself uses, for forms."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from twinloop.cli.commands import Command, Group
from twinloop.cli.parser import summary
from twinloop.core.plain import to_plain_value

# Commands that wait for a person or another program, or that a page cannot use.
_LEFT_OUT = {"studio", "serve", "init", "doctor", "demo", "approve"}
_OF_TERMINALS = ("json", "quiet", "verbose", "log_file", "workspace")  # flags without a meaning in a form
_KINDS = {bool: "flag", int: "integer", float: "number", str: "text", Path: "path"}


def describe_commands(stages: Mapping[str, Sequence[Command | Group]]) -> list[dict[str, Any]]:
    """Return all commands that a form can start, with their flags."""
    return [
        {"stage": stage, "name": " ".join(names), "summary": summary(command), "example": command.example,
         "fields": list(_describe_fields(command.request))}
        for stage, commands in stages.items()
        for names, command in _walk(commands)
        if names[0] not in _LEFT_OUT
    ]  # fmt: skip


def _walk(
    commands: Sequence[Command | Group], before: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Command]]:
    for one in commands:
        if isinstance(one, Group):
            yield from _walk(one.commands, (*before, one.name))
        else:
            yield (*before, one.name), one


def _describe_fields(request: type[Any]) -> Iterator[dict[str, Any]]:
    """Yield the flags of a request; those of requests within it follow at their place."""
    hints, texts = get_type_hints(request, include_extras=True), _read_docstrings(request)
    for field in dataclasses.fields(request):
        kind, marks = _split(hints[field.name])
        if dataclasses.is_dataclass(kind):
            yield from _describe_fields(kind)  # type: ignore[arg-type]
        elif field.name not in _OF_TERMINALS:
            yield _describe_field(field, kind, marks, texts.get(field.name, ""))


def _describe_field(field: dataclasses.Field[Any], kind: Any, marks: Sequence[Any], text: str) -> dict[str, Any]:
    settings = [mark for mark in marks if hasattr(mark, "metavar")]
    name = next((mark.name for mark in settings if mark.name), field.name).replace("_", "-")
    label = next((mark.metavar for mark in settings if mark.metavar), name)
    text = next((mark.help for mark in settings if mark.help), text)
    positional = any(str(mark) == "Positional" for mark in marks)  # tyro's marker has no public class
    required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    default = None if required or field.default is dataclasses.MISSING else field.default
    several = get_origin(kind) is tuple
    if several:
        kind = _split(get_args(kind)[0])[0]
    return {
        "flag": None if positional else f"--{'no-' if kind is bool and default else ''}{name}",
        "label": label,
        "help": " ".join(text.split()),
        "kind": "choice" if get_origin(kind) is Literal else _KINDS.get(kind, "text"),
        "choices": list(get_args(kind)) if get_origin(kind) is Literal else [],
        "several": several,
        "required": required,
        "default": to_plain_value(default) if isinstance(default, tuple | Path) else default,
    }  # fmt: skip


def _split(hint: Any) -> tuple[Any, list[Any]]:
    """Return a type without annotations and None, and all its annotations."""
    marks = list[Any]()
    while True:
        if get_origin(hint) is Annotated:
            hint, *more = get_args(hint)
            marks += more
        elif (
            get_origin(hint) in (Union, UnionType)
            and len(given := [one for one in get_args(hint) if one is not NoneType]) == 1
        ):
            (hint,) = given
        else:
            return hint, marks


def _read_docstrings(request: type[Any]) -> dict[str, str]:
    """Return the text that follows each field in the source of a class and its bases."""
    found: dict[str, str] = {}
    for cls in reversed(request.__mro__[:-1]):
        try:
            (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        except (OSError, TypeError, SyntaxError):
            continue
        lines = body.body if isinstance(body, ast.ClassDef) else []
        for field, text in itertools.pairwise(lines):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[ast.unparse(field.target)] = str(text.value.value)
    return found
