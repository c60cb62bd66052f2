"""Flags that take several values and are given twice: both values count, where a parser keeps the last alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro


def joined(words: Sequence[str], commands: Any) -> list[str]:
    """The words of a command line in which ``--data A --data B`` says ``--data A B``.

    Args:
        words: The command line without the program's name.
        commands: The union of commands, each annotated with its name.
    """
    made = list(words)
    flags = [_flag(word) for word in made if word.startswith("--")]
    twice = sorted({flag for flag in flags if flags.count(flag) > 1})
    if not twice:
        return made
    several = _several(made, commands)
    for flag in twice:
        made = _together(made, flag) if flag in several else made
    return made


def _flag(word: str) -> str:
    return word.split("=", 1)[0].replace("_", "-")


def _several(words: Sequence[str], commands: Any) -> set[str]:
    """The flags that take several values each time, of the command that the words name."""
    for command in get_args(commands):
        of, *marks = get_args(command) if get_origin(command) is Annotated else (command,)
        if not words or words[0] not in {getattr(mark, "name", None) for mark in marks}:
            continue
        hints = get_type_hints(of, include_extras=True)
        if "action" in hints:
            return _several(words[1:], hints["action"])
        return {f"--{name.replace('_', '-')}" for name, hint in hints.items() if _takes_several(hint)}
    return set()


def _takes_several(hint: Any) -> bool:
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    kind = get_args(hint)[0] if marks else hint
    return get_origin(kind) is tuple and get_args(kind)[-1] is ... and tyro.conf.UseAppendAction not in marks


def _together(words: Sequence[str], flag: str) -> list[str]:
    """The words with all values of a flag behind its first mention."""
    rest, values = list[str](), list[str]()
    place, inside = None, False
    for word in words:
        if word.startswith("--"):
            inside = _flag(word) == flag
            if inside and place is None:
                place = len(rest)
            if inside:
                values += word.split("=", 1)[1:]
                continue
        (values if inside else rest).append(word)
    return [*rest[:place], flag, *values, *rest[place:]]
