"""Tables of measured figures: made by studies, printed, and written between two marks of a page."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.files import write_text
from twinloop.core.pool import LocalProcesses, count_cores


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
    with. ``page`` is the page of ``docs/`` whose marks ``python -m benchmarks gap NAME`` take the table.
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


@dataclass(frozen=True, kw_only=True)
class Studies:
    """The studies of one command: ``areas`` are modules of ``package``, each with ``TABLES``.

    ``place`` is the command, whose name stands in the marks of the pages.
    """

    package: str
    areas: tuple[str, ...]
    place: str

    def chosen(self, only: Sequence[str] = ()) -> list[Study]:
        """Every study, or those whose area or name is asked for.

        Raises:
            UnknownNameError: no such area or study.
        """
        found = {area: list(importlib.import_module(f"{self.package}.{area}").TABLES) for area in self.areas}
        names = [study.name for rows in found.values() for study in rows]
        for word in only:
            if word not in names and word not in found:
                raise UnknownNameError("study", word, [*found, *names])
        every = [(area, study) for area, rows in found.items() for study in rows]
        return [study for area, study in every if not only or area in only or study.name in only]

    def run(
        self,
        console: Console,
        *,
        only: Sequence[str] = (),
        repetitions: int | None = None,
        seed: int = 0,
        workers: int = 1,
        docs: Path | None = None,
    ) -> dict[str, Any]:
        """Run studies, print their tables and, with ``docs``, put each into its page of that folder.

        ``workers`` 0 takes every core; figures do not depend on it.

        Raises:
            UnknownNameError: no such study.
            InputError: fewer than one repetition, or a page without a place for its table; said before anything runs.
        """
        if repetitions is not None and repetitions < 1:
            raise InputError(f"{repetitions} repetitions measure nothing. Ask for at least one.")
        chosen = self.chosen(only)
        if docs is not None:
            for study in chosen:
                around(docs / study.page, self._mark(study))
        made: dict[str, Any] = {}
        items = [(self, study.name, repetitions or study.repetitions, seed) for study in chosen]
        with LocalProcesses(workers or count_cores()) as engine:
            for study, (item, (table, seconds)) in zip(chosen, engine.map(_made, items), strict=True):
                console.print(printed(table))
                if table.note:
                    console.print(table.note, soft_wrap=True)
                console.print(f"{study.name}: {seconds:.1f} s\n")
                if docs is not None:
                    write_between(docs / study.page, self._mark(study), table.markdown())
                made[study.name] = {**table.to_json(), "repetitions": item[2], "seconds": seconds}
        return {"seed": seed, "studies": made}

    def _mark(self, study: Study) -> str:
        return f"{self.place} {study.name}"


def _made(item: tuple[Studies, str, int, int]) -> tuple[StudyTable, float]:
    """One study's table, and how many seconds it took."""
    studies, name, repetitions, seed = item
    began = time.perf_counter()
    return studies.chosen([name])[0].run(repetitions, seed), time.perf_counter() - began


def printed(table: StudyTable) -> Table:
    """A table of a study for a terminal."""
    printed = Table(*table.head, title=table.title, title_justify="left")
    for row in table.rows:
        printed.add_row(*row)
    return printed
