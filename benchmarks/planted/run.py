"""Run the study of planted parameters, and print and write its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.planted.study import Summary, cases, class_of, run_study, summarize
from benchmarks.studies import StudyTable, around, printed, write_between
from twinloop.core.plain import to_plain_value
from twinloop.core.pool import count_cores
from twinloop.stats import clopper_pearson

NAME = "benchmarks planted"
_HEAD = ("", "fits", "parameters", "determined", "intervals that hold the planted value", "median width / prior",
         "marked †", "unmarked that hold", "nearer than nominal")  # fmt: skip
_NOTE = (
    "An interval is nominal 95 %. Brackets: 95 % of Clopper and Pearson, as if parameters were independent; those of "
    "one fit are not. Width: of the interval, as a part of the central 95 % of the prior. Marked: the interval holds "
    "only if the twin's physics is right. Nearer: the estimate is nearer to the planted value than the nominal value "
    "is, as a part of all parameters."
)


def run_bench_planted(
    out: Console, *, results: Path, correct: int, missing: int, seed: int, workers: int, page: Path | None
) -> dict[str, Any]:
    """Run the fits that the results file lacks, print the tables, and write them to a page.

    Args:
        out: Console.
        results: File with one line per fit.
        correct: Number of fits of a twin with the right physics.
        missing: Number of fits with an effect that the twin lacks.
        seed: First seed.
        workers: Number of processes; 0 uses every core.
        page: Markdown page with the marker comments of the tables; None writes none.
    """
    if page is not None:
        around(page, NAME)  # fails before the work if it has no place for the tables

    def report(result: Mapping[str, Any]) -> None:
        out.print(f"{result['key']}: {result['seconds']:.0f} s")

    found = run_study(cases(correct, missing, seed), results, workers=workers or count_cores(), progress=report)
    tables = make_tables(found)
    for table in tables:
        out.print(printed(table))
        if table.note:
            out.print(table.note, soft_wrap=True)
    if page is not None:
        command = f"python -m benchmarks planted --correct {correct} --missing {missing} --seed {seed}"
        text = "\n\n".join([f"`{command}`", *(table.markdown() for table in tables)])
        write_between(page, NAME, text)
    return {"tables": [table.to_json() for table in tables]}


def make_tables(found: Sequence[Mapping[str, Any]]) -> list[StudyTable]:
    """Return the tables of the study: by class of parameter, by robot and motion, and by missing effect."""
    right = [result for result in found if not result["effect"]]
    wrong = [result for result in found if result["effect"]]

    def by_class(_: Mapping[str, Any], name: str) -> str:
        return class_of(name)

    def by_robot(result: Mapping[str, Any], _: str) -> str:
        return f"{result['robot']}, {result['kind']}"

    def by_effect(result: Mapping[str, Any], _: str) -> str:
        return f"{result['effect']}, {result['robot']}"

    plans: list[tuple[str, Sequence[Mapping[str, Any]], Callable[[Mapping[str, Any], str], str]]] = [
        ("The twin has the right physics: by class of parameter", right, by_class),
        ("The twin has the right physics: by robot and motion", right, by_robot),
        ("The robot has an effect that the twin lacks: by effect and robot", wrong, by_effect),
        ("The robot has an effect that the twin lacks: by class of parameter", wrong, by_class),
    ]
    tables = [_make_table(title, results, group) for title, results, group in plans if results]
    if right:
        marked = [any(row["conditional"] for row in result["rows"]) for result in right]
        note = f"{sum(marked)} of {len(marked)} fits with the right physics have a marked interval."
        tables[-1] = StudyTable(**{**vars(tables[-1]), "note": f"{note} {_NOTE}"})
    return tables


def _make_table(
    title: str, results: Sequence[Mapping[str, Any]], group: Callable[[Mapping[str, Any], str], str]
) -> StudyTable:
    groups = summarize(results, group)
    (everything,) = summarize(results, lambda _result, _name: "all").values()
    rows = {**groups, "**all**": everything}
    return StudyTable(
        title=title,
        head=_HEAD,
        rows=tuple((name, *_cells(summary)) for name, summary in rows.items()),
        metrics=tuple({"group": name, **to_plain_value(summary)} for name, summary in rows.items()),
    )


def _cells(summary: Summary) -> tuple[str, ...]:
    return (
        str(summary.fits),
        str(summary.parameters),
        f"{summary.determined / summary.parameters:.0%}",
        _share(summary.held, summary.determined),
        "–" if np.isnan(summary.width) else f"{summary.width:.2f}",
        f"{summary.marked / max(summary.determined, 1):.0%}",
        _share(summary.unmarked_held, summary.determined - summary.marked),
        f"{summary.nearer / summary.parameters:.0%}",
    )


def _share(count: int, total: int) -> str:
    if not total:
        return "–"
    limits = clopper_pearson(count, total)
    return f"{count / total:.0%} [{float(limits.low):.0%}, {float(limits.high):.0%}]"
