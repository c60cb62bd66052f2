"""Show the metrics of stored gap runs in order of time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from twinloop.core.documents import read_json
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.headline import HeadlineMetric, read_headlines
from twinloop.report import ReportPage
from twinloop.report.curves import history_curves
from twinloop.workflows.gap.requests import GapHistoryRequest
from twinloop.workflows.run.results import write_report

_SIDE_BY_SIDE = 4  # runs that fit side by side in a terminal with their intervals
_PAGES = (".html", ".htm")
_HASH = 8  # printed characters of a hash


@dataclass(frozen=True, kw_only=True)
class PastRun:
    """One stored measurement: time, twin, data, and metrics."""

    folder: Path
    made: str
    twin: str
    twin_hash: str
    data: str
    data_hash: str
    params: str
    figures: dict[str, HeadlineMetric]

    @property
    def version(self) -> str:
        """The twin and the parameters that were measured, short enough for a table."""
        name = f"{self.twin} {self.twin_hash[:_HASH]}".strip()
        return f"{name} · {self.params}" if self.params else name


def find_past_runs(places: Sequence[Path], kind: str) -> list[PastRun]:
    """Return the stored runs of one kind below some folders, oldest first; other runs are ignored.

    Raises:
        InputError: a folder does not exist, a result cannot be read, or there is no run of that kind.
    """
    if not places:
        raise InputError("No folder was given. Give folders of gap runs, or one that holds them.")
    for place in places:
        if not place.is_dir():
            raise InputError(f"{place} is no folder. Give folders of gap runs, or one that holds them.")
    files = sorted({file.resolve() for place in places for file in place.rglob("result.json")})
    read = [(file, _read_result(file)) for file in files]
    runs = [_parse_past_run(file.parent, result) for file, result in read if _is_gap(result) and result["kind"] == kind]
    if not runs:
        kinds = sorted({result["kind"] for _, result in read if _is_gap(result)})
        found = f"There are runs of: {', '.join(kinds)}; say --kind" if kinds else "Make one with `twinloop gap`"
        where = ", ".join(str(place) for place in places)
        raise InputError(f"No run of `gap {kind}` with figures lies below {where}. {found}.")
    return sorted(runs, key=lambda run: (run.made, str(run.folder)))


def run_gap_history(request: GapHistoryRequest, console: Console) -> dict[str, Any]:
    """Print the metrics of earlier runs in a table, and write their plots to the page ``output``, if given.

    Raises:
        InputError: see `find_past_runs`.
        UnknownNameError: no run has a requested metric.
    """
    if request.output is not None:
        _refuse_output(request.output)
    runs = find_past_runs(request.runs, request.kind)
    names = _select_metrics(runs, request.metrics)
    console.print(_table(runs, names, request.kind))
    if len({run.data_hash or run.data for run in runs}) > 1:
        console.print("These runs measured different data; compare only rows of the same data.", soft_wrap=True)
    if request.output is not None:
        page = ReportPage(f"How the gap moved: {request.kind}", f"{len(runs)} runs, {runs[0].made} to {runs[-1].made}")
        write_report(page, lambda report: _fill_report(report, runs, names), request.output, console)
    return {
        "kind": request.kind,
        "runs": [
            vars(run)
            | {
                "folder": str(run.folder),
                "figures": {name: run.figures[name].to_json() for name in names if name in run.figures},
            }
            for run in runs
        ],
    }


def _is_gap(result: dict[str, Any]) -> bool:
    return result.get("verb") == "gap" and "kind" in result and bool(result.get("headline"))


def _read_result(file: Path) -> dict[str, Any]:
    try:
        result = read_json(file)
    except InputError as error:
        raise InputError(f"{error} Move the file away, or make the run again.") from error
    return result if isinstance(result, dict) else {}


def _as_record(value: Any) -> dict[str, Any]:
    """Return a result's description of its twin or data as a record, also if it is only a name."""
    return value if isinstance(value, dict) else {"label": value, "name": value} if value else {}


def _refuse_output(output: Path) -> None:
    """Refuse a folder, and a file that exists and is not a page, such as a table of trials."""
    if output.is_dir():
        raise InputError(f"{output} is a folder, and the history is one page. Name a file in it, such as history.html.")
    if output.exists() and output.suffix not in _PAGES:
        raise InputError(f"{output} exists and is no page. Name another --output, such as history.html.")


def _parse_past_run(folder: Path, result: dict[str, Any]) -> PastRun:
    twin, data = _as_record(result.get("twin")), _as_record(result.get("data"))
    return PastRun(
        folder=folder,
        made=result.get("made") or "",
        twin=twin.get("name", ""),
        twin_hash=twin.get("hash", ""),
        data=data.get("label", data.get("name", "")),
        data_hash=data.get("hash", ""),
        params=result.get("params") or "",
        figures=read_headlines(result),
    )


def _select_metrics(runs: Sequence[PastRun], patterns: Sequence[str]) -> list[str]:
    """Return the metric names that match a pattern, in the order of the runs; by default those without a slash."""
    every = list(dict.fromkeys(name for run in runs for name in run.figures))
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in every):
            raise UnknownNameError("figure", pattern, every)
    if patterns:
        return [name for name in every if any(fnmatchcase(name, pattern) for pattern in patterns)]
    return [name for name in every if "/" not in name] or every


def _table(runs: Sequence[PastRun], names: Sequence[str], kind: str) -> Table:
    """Return a row per metric with a column per run if there are few runs, else a row per run."""
    units = {name: figure.unit for run in runs for name, figure in run.figures.items()}
    titles = [f"{name} ({units[name]})" if units[name] else name for name in names]
    head = ["run", "made", "twin", "data", *titles]
    lines = [
        [run.folder.name, run.made[:16].replace("T", " "), run.version, run.data_hash[:_HASH] or run.data]
        + [_format_cell(run.figures.get(name)) for name in names]
        for run in runs
    ]
    head, *lines = _drop_empty_columns(head, lines)
    if len(runs) <= _SIDE_BY_SIDE:
        head, *lines = [list(line) for line in zip(head, *lines, strict=True)]
    table = Table(*head, title=f"gap {kind}")
    for line in lines:
        table.add_row(*line)
    return table


def _format_cell(figure: HeadlineMetric | None) -> str:
    if figure is None or math.isnan(figure.estimate):
        return "–"
    interval = "" if math.isnan(figure.low) else f" [{figure.low:.3g}, {figure.high:.3g}]"
    return f"{figure.estimate:.3g}{interval}"


def _caption(name: str, rows: Sequence[HeadlineMetric]) -> str:
    known = next(row for row in reversed(rows) if not math.isnan(row.estimate) or row.meaning)
    return f"{name} ({known.better} is better)" + (f": {known.meaning}." if known.meaning else "")


def _fill_report(page: ReportPage, runs: Sequence[PastRun], names: Sequence[str]) -> None:
    page.section(
        "Every run, oldest first",
        "A point per run with its interval. Runs on other data or with other settings are not comparable; the table "
        "has the data of each run.",
    )
    labels = [f"{run.folder.name}<br>{run.version}" for run in runs]
    for name in names:
        rows = [run.figures.get(name) or HeadlineMetric(name=name, estimate=math.nan) for run in runs]
        page.plot(history_curves(labels, rows), _caption(name, rows))
    head = ["run", "made", "twin", "data", *names]
    lines = [
        [run.folder.name, run.made, run.version, run.data_hash[:_HASH] or run.data]
        + [run.figures[name].estimate if name in run.figures else None for name in names]
        for run in runs
    ]
    head, *lines = _drop_empty_columns(head, lines)
    page.table(head, lines)


def _drop_empty_columns(head: list[Any], lines: list[list[Any]]) -> list[list[Any]]:
    """Return head and lines without the columns that are empty in every run, such as the twin of trials."""
    told = [i for i in range(len(head)) if any(line[i] not in ("", None) for line in lines)]
    return [[row[i] for i in told] for row in (head, *lines)]
