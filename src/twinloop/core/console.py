"""Print text from data safely on the console and in Markdown, without credentials; show the progress of long work.

The Hub and other programs show a card as a page. A task or a name in a dataset must not insert a link, an image, HTML,
a heading or a table column into it.
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

from twinloop.core.redaction import redact_text

# Control characters except tab and line feed; marks that change the direction of text; unpaired surrogates.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class SafeConsole(Console):
    """A console that prints control characters as text and removes credentials from every text.

    A name in a dataset could otherwise clear the screen, write to the clipboard or hide behind another text.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a text; rich calls this for everything that is printed: lines, cells and titles of tables."""
        return super().render_str(escape_control(redact_text(text)), **options)


def escape_control(text: str) -> str:
    r"""Return a text with control characters escaped, such as ``\u001b``; a JSON text keeps its meaning."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


# A backslash before these prevents markup. An underscore within a word is not markup.
_MARKUP = re.compile(r"([\\`*\[\]~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
_ENTITY = re.compile(r"&(?=#|[A-Za-z])")
# The start of a heading, a list item or a rule.
_AT_START = re.compile(r"#(?=#{0,5}(?: |$))|[+](?= |$)|-(?=[- ]|$)|\d{1,9}(?=[.)](?: |$))")


class MarkdownCode(str):
    """A text that `markdown_cell` formats as code."""

    __slots__ = ()


def one_line(value: object) -> str:
    """Return a value as one line, for the front matter of a card."""
    return escape_control(" ".join(str(value).split()))


def markdown_text(value: object) -> str:
    """Return a value as one line of Markdown text, also usable as a list item."""
    text = _MARKUP.sub(r"\\\1", _ENTITY.sub("&amp;", one_line(value))).replace("<", "&lt;").replace(">", "&gt;")
    first = _AT_START.match(text)
    if first is None:
        return text
    # Only punctuation can be escaped: "1." becomes "1\.".
    place = first.end() if first[0].isdigit() else 0
    return f"{text[:place]}\\{text[place:]}"


def markdown_code(value: object) -> str:
    """Return a value as inline code in Markdown."""
    text = one_line(value)
    fence = "`" * (_longest_run(text) + 1)
    space = " " if len(fence) > 1 or not text else ""
    return f"{fence}{space}{text}{space}{fence}"


def markdown_cell(value: object) -> str:
    """Return a value as a Markdown table cell: a `MarkdownCode` as code, any other value as text."""
    return (markdown_code if isinstance(value, MarkdownCode) else markdown_text)(value).replace("|", "\\|")


def markdown_block(text: str, language: str = "") -> str:
    """Return a text as a code block with a fence longer than any in the text."""
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


T = TypeVar("T")


def track(items: Iterable[T], *, label: str, total: int | None = None) -> Iterator[T]:
    """Yield ``items`` and show a progress bar on standard error, if that is a terminal."""
    with _create_progress() as progress:
        yield from progress.track(items, description=escape_control(label), total=total)


@contextmanager
def show_progress(*, label: str, total: int) -> Generator[Callable[[int], None]]:
    """Show a progress bar as `track` does; yield a function that takes the number of newly finished items."""
    with _create_progress() as progress:
        task = progress.add_task(escape_control(label), total=total)
        yield lambda steps: progress.advance(task, steps)


def _create_progress() -> Progress:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=SafeConsole(stderr=True), transient=True, disable=not sys.stderr.isatty())
