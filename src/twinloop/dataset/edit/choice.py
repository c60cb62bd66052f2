"""Which episodes a person means: numbers, ranges, ids; and what groups they fall into."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from twinloop.core.errors import InputError
from twinloop.dataset.edit.source import Source

Choice = str | Sequence[int | str]
_SPAN = re.compile(r"(\d*):(\d*)")
_CLOSED = re.compile(r"(\d+)-(\d+)")
_ID = re.compile(r"[0-9a-f]{8,64}")


def chosen(source: Source, choice: Choice) -> list[int]:
    """The ``episode_index`` of each chosen episode, in the order given.

    Args:
        choice: ``episode_index``, ranges (``0:10`` without 10, ``40:``, ``0-9`` with 9) and episode ids or their
            beginnings of at least eight characters, as a list or with commas between them.

    Raises:
        InputError: an episode beyond the end, an id that none or several have, or something else.
    """
    parts = choice.split(",") if isinstance(choice, str) else choice
    found: list[int] = []
    for part in parts:
        text = str(part).strip()
        if text:
            found += _part(source, text, choice)
    return found


def _part(source: Source, text: str, choice: Choice) -> list[int]:
    count = len(source)
    if span := _SPAN.fullmatch(text):
        start, stop = int(span[1] or 0), int(span[2] or count)
    elif span := _CLOSED.fullmatch(text):
        start, stop = int(span[1]), int(span[2]) + 1
    elif text.isdigit() and len(text) < 8:
        start, stop = int(text), int(text) + 1
    elif _ID.fullmatch(text):
        return [_named(source, text)]
    else:
        raise InputError(
            f"The episodes {choice!r} are not understood at {text!r}. Give numbers (3,5,8), ranges (0:30, 40:) or "
            "episode ids, commas between them."
        )
    if stop > count or start >= stop:
        raise InputError(f"The episodes {text} of {source}: it has {count}, numbered 0 to {count - 1}.")
    return list(range(start, stop))


def _named(source: Source, text: str) -> int:
    matches = [index for index, name in enumerate(source.ids) if name.startswith(text)]
    if len(matches) != 1:
        how = f"{len(matches)} episodes" if matches else "No episode"
        has = "Give more of the id." if matches else f"`twinloop query` shows the ids; {source} has {len(source)}."
        raise InputError(f"{how} of {source} {'have' if matches else 'has'} an id that begins with {text}. {has}")
    return matches[0]


def groups(source: Source, by: str) -> list[str]:
    """What each episode is in one respect: its ``task``, ``success``, ``source`` or any column of the episode table.

    Raises:
        InputError: the folder does not say that of its episodes.
    """
    if by == "task":
        return ["; ".join(texts or ()) for texts in source.column("tasks")]
    name = by if by in source.columns.names else f"provenance/{by}"
    if name not in source.columns.names:
        plain = [n.removeprefix("provenance/") for n in source.columns.names if n.startswith("provenance/")]
        has = ", ".join(["task", *plain[:20]])
        raise InputError(f"{source} does not say {by!r} of its episodes. It says: {has}.")
    return [_said(value) for value in source.column(name)]


def _said(value: Any) -> str:
    return "not said" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
