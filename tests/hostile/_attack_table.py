"""Cells of the table of attacks: observed results as Markdown text, without local paths."""

from __future__ import annotations

import re
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = (f"{_ROOT}/", f"{sys.prefix}/", f"{sys.base_prefix}/", f"{Path.home()}/")
_TEMPORARY = re.compile(r"/\S*?/(?:pytest-of-[^/\s]+/pytest-\d+/[^/\s.,:;'\"]+|campaign-\w+(?:/copy)?/world)")


def anonymous(text: str) -> str:
    """Return a text as one line, without the folders of this machine."""
    text = _TEMPORARY.sub("…", text)
    for folder in _FOLDERS:
        text = text.replace(folder, "")
    return " ".join(text.split())


def cell_of(text: str) -> str:
    """Return a text as a cell of Markdown: nothing in it is markup, and a bar is escaped by the table."""
    text = re.sub(r"[^ -~\u00a0-\u2027\u202a-\uffff]", "?", text)  # control characters
    return re.sub(r"([\\`*_\[\]])", r"\\\1", text).replace("<", "&lt;").replace(">", "&gt;").strip()


def cells_of(line: str) -> list[str]:
    """Return the cells of a row of the table, as `cell_of` made them."""
    cells = line.removeprefix("| ").removesuffix(" |").split(" | ")  # the table escapes the bars of cells
    return [cell.replace("\\|", "|") for cell in cells]
