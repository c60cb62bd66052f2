"""Studies that are made by simulation: chosen by name, run on every core, printed, and written into their pages."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.pool import LocalProcesses, cores
from twinloop.loop.gap_study.study import Study, StudyTable
from twinloop.loop.marked import around, write_between


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
        with LocalProcesses(workers or cores()) as engine:
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
