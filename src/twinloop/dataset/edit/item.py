"""One episode of a result, and what is done to it on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from twinloop.dataset.edit.source import Source


@dataclass(frozen=True, kw_only=True)
class Item:
    """Episode ``index`` of ``source``.

    ``texts`` are new task texts by the old ones; ``transforms`` are what makes it another episode than the source's, in
    order.
    """

    source: Source
    index: int
    texts: Mapping[str, str] = field(default_factory=dict[str, str])
    transforms: tuple[Mapping[str, Any], ...] = ()

    @property
    def length(self) -> int:
        """Frames."""
        return int(self.source.lengths[self.index])

    @property
    def tasks(self) -> list[str]:
        """Its task texts as they will be, each once."""
        found = self.source.reader.row(self.index).get("tasks") or []
        return list(dict.fromkeys(self.texts.get(text, text) for text in found))

    @property
    def where(self) -> str:
        """Names it in messages."""
        return f"episode {self.index} of {self.source}"
