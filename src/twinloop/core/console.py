"""The console of every command: text from data stays text, and no credential is shown."""

from __future__ import annotations

import re
from typing import Any

from rich.console import Console
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
