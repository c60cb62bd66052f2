"""Text from data within Markdown: it stays text, whatever it holds.

A card is shown by the Hub and by others as a page. A task or a name in a dataset must not put a link, a picture, HTML,
a heading or another column into it.
"""

from __future__ import annotations

import re

from twinloop.core.console import visible

# A backslash keeps these from being markup. An underscore within a word is none.
_MARKUP = re.compile(r"([\\`*\[\]~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
_ENTITY = re.compile(r"&(?=#|[A-Za-z])")
# A heading, an item of a list or a rule, where a line begins so.
_AT_START = re.compile(r"#(?=#{0,5}(?: |$))|[+](?= |$)|-(?=[- ]|$)|\d{1,9}(?=[.)](?: |$))")


class Code(str):
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
    """Return a value as the cell of a table in Markdown: a `Code` as code, anything else as text."""
    return (markdown_code if isinstance(value, Code) else markdown_text)(value).replace("|", "\\|")


def markdown_block(text: str, language: str = "") -> str:
    """Return a text as a block of code, whose fence is longer than any in the text."""
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
