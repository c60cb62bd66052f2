"""Run studies that make tables, print the tables, and write them between two marker comments of a page."""

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
    """Return the two marker comments that enclose the tables of a command in a page."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table; vertical bars within cells are escaped."""
    cells = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells)


def around(page: Path, name: str) -> tuple[str, str]:
    """Return the text of a page before and after its tables.

    Raises:
        InputError: If the page lacks the marker comments of ``name``.
    """
    first, last = marks(name)
    before, begin, rest = (page.read_text() if page.is_file() else "").partition(first)
    _, end, after = rest.partition(last)
    if not (begin and end):
        raise InputError(f"{page} has no place for the tables. Put these two lines into it: {first} and {last}.")
    return before, after


def write_between(page: Path, name: str, text: str) -> None:
    """Replace the text between the marker comments of a page.

    Raises:
        InputError: If the page lacks the marker comments of ``name``.
    """
    before, after = around(page, name)
    first, last = marks(name)
    write_text(page, f"{before}{first}\n{text}\n{last}{after}")


@dataclass(frozen=True, kw_only=True)
class StudyTable:
    """A table of text, with an explanation in ``note``; ``metrics`` has the same numbers for programs."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    metrics: tuple[dict[str, Any], ...] = ()

    def markdown(self) -> str:
        """Format title, table and note for a page of the documentation."""
        parts = [f"**{self.title}**", markdown_table(self.head, self.rows), self.note]
        return "\n\n".join(part for part in parts if part)

    def to_json(self) -> dict[str, Any]:
        """Return the table as plain JSON types."""
        return {"title": self.title, "head": list(self.head), "rows": [list(row) for row in self.rows]} | {
            "note": self.note,
            "metrics": list(self.metrics),
        }


@dataclass(frozen=True, kw_only=True)
class Study:
    """One table and the function that makes it.

    Attributes:
        name: Name of the study.
        page: Page of ``docs/`` that contains the table.
        repetitions: Number of repetitions of the published table.
        run: Function from the number of repetitions and the run seed to the table.
    """

    name: str
    page: str
    repetitions: int
    run: Callable[[int, int], StudyTable]


def share(count: int, total: int) -> str:
    """Format a rate in per cent with its Monte Carlo standard error: ``4.8 ± 0.5 %``."""
    rate = count / total
    error = (rate * (1 - rate) / total) ** 0.5
    return f"{100 * rate:.1f} ± {100 * error:.1f} %"


@dataclass(frozen=True, kw_only=True)
class Studies:
    """The studies of one command.

    Attributes:
        package: Package of the studies.
        areas: Names of its modules, each with a list ``TABLES`` of studies.
        place: Name of the command in the marker comments of the pages.
    """

    package: str
    areas: tuple[str, ...]
    place: str

    def chosen(self, only: Sequence[str] = ()) -> list[Study]:
        """Return the studies whose area or name is in ``only``; all studies if it is empty.

        Raises:
            UnknownNameError: If an area or study does not exist.
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
        """Run studies and print their tables; if ``docs`` is given, also replace the tables in that folder's pages.

        Args:
            console: Where to print.
            only: Areas or names of studies; empty for all.
            repetitions: Repetitions per table row; None for the number of the published table.
            seed: Run seed.
            workers: Number of processes; 0 uses every core. Results do not depend on it.
            docs: Documentation folder.

        Raises:
            UnknownNameError: If a study does not exist.
            InputError: If ``repetitions`` is below 1 or a page lacks marker comments; raised before anything runs.
        """
        if repetitions is not None and repetitions < 1:
            raise InputError(f"--repetitions {repetitions}: give at least 1.")
        chosen = self.chosen(only)
        if docs is not None:
            for study in chosen:
                around(docs / study.page, self._mark(study))
        made: dict[str, Any] = {}
        items = [(self, study.name, repetitions or study.repetitions, seed) for study in chosen]
        with LocalProcesses(workers or count_cores()) as engine:
            for study, (item, (table, seconds)) in zip(chosen, engine.map(_run_study, items), strict=True):
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


def _run_study(item: tuple[Studies, str, int, int]) -> tuple[StudyTable, float]:
    """Run one study; return its table, and the seconds that it took."""
    studies, name, repetitions, seed = item
    began = time.perf_counter()
    return studies.chosen([name])[0].run(repetitions, seed), time.perf_counter() - began


def printed(table: StudyTable) -> Table:
    """Format the table of a study for a terminal."""
    printed = Table(*table.head, title=table.title, title_justify="left")
    for row in table.rows:
        printed.add_row(*row)
    return printed
