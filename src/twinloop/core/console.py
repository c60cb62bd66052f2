"""Print untrusted text safely on the console and in Markdown, and remove credentials from it.

Names and tasks in a dataset may come from another person. When a Markdown dataset card (README.md) is shown as a page,
for example by the Hugging Face Hub, such a text must not insert a link, an image, HTML, a heading or a table column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.text import Text

from twinloop.core.redaction import redact_text

# Control characters except tab and line feed; marks that change the direction of text; unpaired surrogates.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class SafeConsole(Console):
    """A rich console that escapes control characters and removes credentials in every text that it prints.

    Otherwise, a name in a dataset could clear the screen, write to the clipboard or hide another text.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """Convert a string to a rich text, with control characters escaped and credentials removed.

        rich calls this method for every string that is printed, including table cells and table titles.

        Args:
            text: String to print.
            options: Keyword arguments of `rich.console.Console.render_str`.
        """
        return super().render_str(escape_control(redact_text(text)), **options)


def fit_column(least: int, texts: Iterable[str]) -> int:
    """Return the width of a table's column in which two spaces follow the longest text, at least ``least``."""
    return max(least, 2 + max(map(len, texts), default=0))


def escape_control(text: str) -> str:
    r"""Return a text in which control characters are escaped, such as ``\u001b``.

    Tabs and line feeds are not escaped. Marks that change the text direction and unpaired surrogates are escaped, too.
    An escaped JSON text is parsed to the same value as before.
    """
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


# A backslash before these prevents markup. An underscore within a word is not markup.
_MARKUP = re.compile(r"([\\`*\[\]~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
_ENTITY = re.compile(r"&(?=#|[A-Za-z])")
# The start of a heading, a list item or a rule.
_AT_START = re.compile(r"#(?=#{0,5}(?: |$))|[+](?= |$)|-(?=[- ]|$)|\d{1,9}(?=[.)](?: |$))")


class MarkdownCode(str):
    """A string that `markdown_cell` formats as inline code instead of plain text."""

    __slots__ = ()


def to_single_line(value: object) -> str:
    """Return a value as a single line of text for the YAML header of a dataset card (README.md).

    Runs of white space become one space, and control characters are escaped.
    """
    return escape_control(" ".join(str(value).split()))


def markdown_text(value: object) -> str:
    """Return a value as one line of Markdown in which no character acts as markup.

    A start such as ``1.``, ``-`` or ``#`` is escaped, too, so that the line does not become a list item or a heading.
    """
    text = _MARKUP.sub(r"\\\1", _ENTITY.sub("&amp;", to_single_line(value))).replace("<", "&lt;").replace(">", "&gt;")
    first = _AT_START.match(text)
    if first is None:
        return text
    # Only punctuation can be escaped: "1." becomes "1\.".
    place = first.end() if first[0].isdigit() else 0
    return f"{text[:place]}\\{text[place:]}"


def markdown_code(value: object) -> str:
    """Return a value as inline code in Markdown."""
    text = to_single_line(value)
    fence = "`" * (_longest_run(text) + 1)
    space = " " if len(fence) > 1 or not text else ""
    return f"{fence}{space}{text}{space}{fence}"


def markdown_cell(value: object) -> str:
    """Return a value as the content of a Markdown table cell, with ``|`` escaped.

    A `MarkdownCode` is formatted as inline code, any other value as plain text.
    """
    return (markdown_code if isinstance(value, MarkdownCode) else markdown_text)(value).replace("|", "\\|")


def markdown_block(text: str, language: str = "") -> str:
    """Return a text as a fenced Markdown code block whose fence is longer than any run of backticks in the text.

    Args:
        text: Content of the block.
        language: Language for syntax highlighting, for example ``python``; none by default.
    """
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
