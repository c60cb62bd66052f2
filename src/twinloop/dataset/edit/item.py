"""One episode of a result, and what is done to it on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from twinloop.dataset.edit.source import Source


@dataclass(frozen=True, kw_only=True)
class Item:
    """Episode ``index`` of ``source``; ``transforms`` are what makes it another episode than that, in order."""

    source: Source
    index: int
    task: str | None = None
    transforms: tuple[Mapping[str, Any], ...] = ()

    @property
    def length(self) -> int:
        """Frames."""
        return int(self.source.lengths[self.index])

    @property
    def where(self) -> str:
        """Names it in messages."""
        return f"episode {self.index} of {self.source}"
