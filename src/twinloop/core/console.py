"""Show text from data as text, on the console and in Markdown, without credentials; and the progress of long work.

A card is shown by the Hub and by others as a page. A task or a name in a dataset must not put a link, a picture, HTML,
a heading or another column into it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from twinloop.core.redaction import redacted

# Control characters but tab and line feed; marks that turn the direction of writing; halves of characters.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class SafeConsole(Console):
    """A console that shows control characters instead of obeying them, and removes credentials from every text.

    A name in a dataset could otherwise clear the screen, write to the clipboard or hide behind another text.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a text, as rich does for everything that is printed: lines, cells and titles of tables."""
        return super().render_str(visible(redacted(text)), **options)


def visible(text: str) -> str:
    r"""Return a text with control characters written out, such as ``\u001b``; JSON stays the same JSON."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


# A backslash keeps these from being markup. An underscore within a word is none.
_MARKUP = re.compile(r"([\\`*\[\]~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
_ENTITY = re.compile(r"&(?=#|[A-Za-z])")
# A heading, an item of a list or a rule, where a line begins so.
_AT_START = re.compile(r"#(?=#{0,5}(?: |$))|[+](?= |$)|-(?=[- ]|$)|\d{1,9}(?=[.)](?: |$))")


class MarkdownCode(str):
    """A text that `markdown_cell` shows as code."""

    __slots__ = ()


def one_line(value: object) -> str:
    """Return a value as one line, as the front matter of a card takes it."""
    return visible(" ".join(str(value).split()))


def markdown_text(value: object) -> str:
    """Return a value as one line of text in Markdown, also for the item of a list."""
    text = _MARKUP.sub(r"\\\1", _ENTITY.sub("&amp;", one_line(value))).replace("<", "&lt;").replace(">", "&gt;")
    first = _AT_START.match(text)
    if first is None:
        return text
    # Only punctuation can be escaped: "1." becomes "1\.".
    place = first.end() if first[0].isdigit() else 0
    return f"{text[:place]}\\{text[place:]}"


def markdown_code(value: object) -> str:
    """Return a value as code within a line of Markdown."""
    text = one_line(value)
    fence = "`" * (_longest_run(text) + 1)
    space = " " if len(fence) > 1 or not text else ""
    return f"{fence}{space}{text}{space}{fence}"


def markdown_cell(value: object) -> str:
    """Return a value as the cell of a table in Markdown: a `MarkdownCode` as code, anything else as text."""
    return (markdown_code if isinstance(value, MarkdownCode) else markdown_text)(value).replace("|", "\\|")


def markdown_block(text: str, language: str = "") -> str:
    """Return a text as a block of code, whose fence is longer than any in the text."""
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


T = TypeVar("T")


def track(items: Iterable[T], *, label: str, total: int | None = None) -> Iterator[T]:
    """Yield ``items`` while a bar moves on standard error; no bar when it is not a terminal."""
    with _bar() as progress:
        yield from progress.track(items, description=visible(label), total=total)


@contextmanager
def counted(*, label: str, total: int) -> Generator[Callable[[int], None]]:
    """A bar like `track`'s for work that says itself how much of it is done: a function that takes what was added."""
    with _bar() as progress:
        task = progress.add_task(visible(label), total=total)
        yield lambda steps: progress.advance(task, steps)


def _bar() -> Progress:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=SafeConsole(stderr=True), transient=True, disable=not sys.stderr.isatty())
