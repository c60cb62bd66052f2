"""What the studies of tests and intervals share: a table that is made by simulation, and how it is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from twinloop.loop.marked import markdown_table


@dataclass(frozen=True, kw_only=True)
class StudyTable:
    """Rates with their Monte Carlo spread: a title, a head, rows of text, and what they say in ``note``.

    ``figures`` is the same for programs.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    figures: tuple[dict[str, Any], ...] = ()

    def markdown(self) -> str:
        """The table for a page of the documentation."""
        parts = [f"**{self.title}**", markdown_table(self.head, self.rows), self.note]
        return "\n\n".join(part for part in parts if part)

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        return {"title": self.title, "head": list(self.head), "rows": [list(row) for row in self.rows]} | {
            "note": self.note,
            "figures": list(self.figures),
        }


@dataclass(frozen=True, kw_only=True)
class Study:
    """One table and how it is made.

    ``run`` takes the number of repetitions and the run seed. ``repetitions`` is what the published table was made
    with. ``page`` is the page of ``docs/`` whose marks ``twinloop bench gap NAME`` take the table.
    """

    name: str
    page: str
    repetitions: int
    run: Callable[[int, int], StudyTable]


def share(count: int, total: int) -> str:
    """A rate in per cent with its Monte Carlo standard error: ``4.8 ± 0.5 %``."""
    rate = count / total
    error = (rate * (1 - rate) / total) ** 0.5
    return f"{100 * rate:.1f} ± {100 * error:.1f} %"
