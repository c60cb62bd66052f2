"""Compare policies on virtual robots, and print and write the tables: ``python -m benchmarks transfer``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.studies import around, printed, write_between
from benchmarks.transfer import pages
from benchmarks.transfer.retraining import retraining_table
from benchmarks.transfer.settings import TransferSettings
from benchmarks.transfer.study import compare_on_robots, retrain_from_failures
from twinloop.policies.factory import require_torch
from twinloop.report import ReportPage
from twinloop.workflows.run.results import write_report, write_result

PAGE = "evidence/transfer.md"


def run_bench_transfer(
    console: Console,
    settings: TransferSettings,
    output: Path,
    *,
    workers: int = 0,
    docs: Path | None = None,
    study: str = "transfer",
) -> dict[str, Any]:
    """Run the study, print its tables, and write ``result.json`` and ``report.html``.

    If ``docs`` is given, also replace the tables of ``study`` in that folder's page. An interrupted study is resumed:
    complete parts in ``output`` are reused.

    Raises:
        InputError: If the folder contains a study with other settings, or the page lacks marker comments.
        MissingDependencyError: If torch is not installed.
    """
    require_torch()
    mark = f"benchmarks {study} {settings.family}"
    if docs is not None:
        around(docs / PAGE, mark)
    result = compare_on_robots(settings, output, workers=workers, console=console)
    for table in [*pages.success_tables(result), pages.time_table(result)]:
        console.print(printed(table))
        if table.note:
            console.print(table.note, soft_wrap=True)
    page = ReportPage("Policies on robots with hidden parameters", f"{settings.robots} robots, {settings.family}")
    write_report(page, lambda report: pages.page(report, result), output / "report.html", console)
    metrics = write_result(output, result.to_json())
    if docs is not None:
        write_between(docs / PAGE, mark, "\n\n".join(table.markdown() for table in pages.success_tables(result)))
    return metrics


def run_bench_retraining(
    console: Console, settings: TransferSettings, output: Path, *, workers: int = 0, docs: Path | None = None
) -> dict[str, Any]:
    """Retrain a policy from one failure on each robot, and print success before and after.

    Takes the folder of a comparison, or begins one. If ``docs`` is given, also replace the table in that folder's page.

    Raises:
        InputError: If the folder contains a study with other settings, or the page lacks marker comments.
    """
    mark = "benchmarks transfer retraining"
    if docs is not None:
        around(docs / PAGE, mark)
    made = retrain_from_failures(settings, output, workers=workers, console=console)
    if not made:
        console.print("The policy failed on no robot.")
        return {"schema": 1, "verb": "bench retraining", "robots": []}
    table = retraining_table(made)
    console.print(printed(table))
    console.print(table.note, soft_wrap=True)
    if docs is not None:
        write_between(docs / PAGE, mark, table.markdown())
    return {"schema": 1, "verb": "bench retraining", "robots": [asdict(one) for one in made]}
