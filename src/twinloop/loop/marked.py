"""Tables that a command writes into a page of the documentation, between two marks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from twinloop.core.errors import InputError
from twinloop.core.files import write_text


def marks(name: str) -> tuple[str, str]:
    """The two lines between which the tables of a command stand."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; bars within cells are escaped."""
    cells = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells)


def around(page: Path, name: str) -> tuple[str, str]:
    """What stands before and after the place for the tables.

    Raises:
        InputError: the page has no such place.
    """
    first, last = marks(name)
    before, begin, rest = (page.read_text() if page.is_file() else "").partition(first)
    _, end, after = rest.partition(last)
    if not (begin and end):
        raise InputError(f"{page} has no place for the tables. Put these two lines into it: {first} and {last}.")
    return before, after


def write_between(page: Path, name: str, text: str) -> None:
    """Replace what stands between the marks.

    Raises:
        InputError: the page has no marks.
    """
    before, after = around(page, name)
    first, last = marks(name)
    write_text(page, f"{before}{first}\n{text}\n{last}{after}")
