"""Show the metrics of stored `twinloop gap` runs in order of time, as a table and as plots (`twinloop gap history`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console
from rich.table import Table

from twinloop.core.documents import read_json
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.headline import HeadlineMetric, read_headlines
from twinloop.core.plain import JsonRecord
from twinloop.report import ReportPage
from twinloop.report.curves import plot_history_curves
from twinloop.workflows.gap.requests import GapHistoryRequest
from twinloop.workflows.run.results import write_report

_SIDE_BY_SIDE = 4  # runs that fit side by side in a terminal with their intervals
_PAGES = (".html", ".htm")
_HASH = 8  # printed characters of a hash


@dataclass(frozen=True, kw_only=True)
class PastRun(JsonRecord):
    """One stored gap measurement, as read from its result.json. A text is empty if the result does not contain it.

    Attributes:
        folder: folder of the run.
        made_at: date and time of the run (ISO 8601).
        twin: name of the twin.
        twin_hash: hash of the twin's content.
        data: label of the measured data.
        data_hash: hash of the measured data; only runs with the same data are comparable.
        params: name of the identify run whose parameters were measured; empty for nominal parameters.
        metrics: metrics by name.
    """

    folder: Path
    made_at: str
    twin: str
    twin_hash: str
    data: str
    data_hash: str
    params: str
    metrics: dict[str, HeadlineMetric]
    json_names: ClassVar = {"made_at": "made"}

    @property
    def version(self) -> str:
        """Name of the twin, beginning of its hash, and name of the identify run, short enough for a table."""
        name = f"{self.twin} {self.twin_hash[:_HASH]}".strip()
        return f"{name} · {self.params}" if self.params else name


def find_past_runs(folders: Sequence[Path], kind: str) -> list[PastRun]:
    """Return the stored gap runs of one kind below some folders, oldest first; other runs are ignored.

    Args:
        folders: folders that are searched at any depth.
        kind: kind of measurement, such as ``dynamics`` or ``vision``.

    Raises:
        InputError: If a folder does not exist, a result cannot be read, or there is no run of that kind.
    """
    if not folders:
        raise InputError("No folder was given. Give folders of gap runs, or one that holds them.")
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder. Give folders of gap runs, or one that holds them.")
    files = sorted({file.resolve() for folder in folders for file in folder.rglob("result.json")})
    read = [(file, _read_result(file)) for file in files]
    runs = [parse_past_run(file.parent, result) for file, result in read if is_gap(result) and result["kind"] == kind]
    if not runs:
        kinds = sorted({result["kind"] for _, result in read if is_gap(result)})
        found = (
            f"There are runs of: {', '.join(kinds)}; give one of them as --kind"
            if kinds
            else f"Make one with `twinloop gap {kind} --output FOLDER`"
        )
        where = ", ".join(str(folder) for folder in folders)
        raise InputError(f"{where} contains no run of `twinloop gap {kind}`. {found}.")
    return sorted(runs, key=lambda run: (run.made_at, str(run.folder)))


def run_gap_history(request: GapHistoryRequest, console: Console) -> dict[str, Any]:
    """Print the metrics of earlier runs in a table; if ``output`` is given, also write a page with their plots.

    Raises:
        InputError: If no run is found (see `find_past_runs`), or ``output`` is a folder or a file that is not a page.
        UnknownNameError: If no run has a requested metric.
    """
    if request.output is not None:
        _refuse_output(request.output)
    runs = find_past_runs(request.runs, request.kind)
    names = _select_metrics(runs, request.metrics)
    console.print(_table(runs, names, request.kind))
    if len({run.data_hash or run.data for run in runs}) > 1:
        console.print("These runs measured different data; compare only rows of the same data.", soft_wrap=True)
    if request.output is not None:
        page = ReportPage(
            f"History of the gap: {request.kind}", f"{len(runs)} runs, {runs[0].made_at} to {runs[-1].made_at}"
        )
        write_report(page, lambda report: _fill_report(report, runs, names), request.output, console)
    return {
        "kind": request.kind,
        "runs": [
            run.to_json() | {"metrics": {name: run.metrics[name].to_json() for name in names if name in run.metrics}}
            for run in runs
        ],
    }


def parse_past_run(folder: Path, result: Mapping[str, Any]) -> PastRun:
    """Read a stored gap measurement from the content of its result.json; see `is_gap`."""
    twin, data = _as_record(result.get("twin")), _as_record(result.get("data"))
    return PastRun(
        folder=folder,
        made_at=result.get("made") or "",
        twin=twin.get("name", ""),
        twin_hash=twin.get("hash", ""),
        data=data.get("label", data.get("name", "")),
        data_hash=data.get("hash", ""),
        params=result.get("params") or "",
        metrics=read_headlines(result),
    )


def is_gap(result: Mapping[str, Any]) -> bool:
    """Return whether a result is that of a gap measurement with headline metrics."""
    return result.get("verb") == "gap" and "kind" in result and bool(result.get("headline"))


def _read_result(file: Path) -> dict[str, Any]:
    try:
        result = read_json(file)
    except InputError as error:
        raise InputError(f"{error} Move the file away, or make the run again.") from error
    return result if isinstance(result, dict) else {}


def _as_record(value: Any) -> dict[str, Any]:
    """Return the entry ``twin`` or ``data`` of a ``result.json`` as a dictionary.

    A plain text becomes its ``label`` and ``name``; a missing entry becomes an empty dictionary.
    """
    return value if isinstance(value, dict) else {"label": value, "name": value} if value else {}


def _refuse_output(output: Path) -> None:
    """Raise `InputError` if a path is a folder, or an existing file that is not an HTML page."""
    if output.is_dir():
        raise InputError(f"{output} is a folder, and the history is one page. Name a file in it, such as history.html.")
    if output.exists() and output.suffix not in _PAGES:
        raise InputError(f"{output} exists and is not an HTML page. Name another --output, such as history.html.")


def _select_metrics(runs: Sequence[PastRun], patterns: Sequence[str]) -> list[str]:
    """Return the names of the metrics that match any pattern, in the order of the runs.

    If no pattern is given, return the names without a slash, or all names if each has a slash.

    Raises:
        UnknownNameError: If a pattern matches no metric.
    """
    every = list(dict.fromkeys(name for run in runs for name in run.metrics))
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in every):
            raise UnknownNameError("metric", pattern, every)
    if patterns:
        return [name for name in every if any(fnmatchcase(name, pattern) for pattern in patterns)]
    return [name for name in every if "/" not in name] or every


def _table(runs: Sequence[PastRun], names: Sequence[str], kind: str) -> Table:
    """Return a table of metrics: a row per metric and a column per run for at most 4 runs, else a row per run."""
    units = {name: metric.unit for run in runs for name, metric in run.metrics.items()}
    titles = [f"{name} ({units[name]})" if units[name] else name for name in names]
    head = ["run", "made", "twin", "data", *titles]
    lines = [
        [run.folder.name, run.made_at[:16].replace("T", " "), run.version, run.data_hash[:_HASH] or run.data]
        + [_format_cell(run.metrics.get(name)) for name in names]
        for run in runs
    ]
    head, *lines = _drop_empty_columns(head, lines)
    if len(runs) <= _SIDE_BY_SIDE:
        head, *lines = [list(line) for line in zip(head, *lines, strict=True)]
    table = Table(*head, title=f"gap {kind}")
    for line in lines:
        table.add_row(*line)
    return table


def _format_cell(metric: HeadlineMetric | None) -> str:
    if metric is None or math.isnan(metric.estimate):
        return "–"
    interval = "" if math.isnan(metric.low) else f" [{metric.low:.3g}, {metric.high:.3g}]"
    return f"{metric.estimate:.3g}{interval}"


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
        rows = [run.metrics.get(name) or HeadlineMetric(name=name, estimate=math.nan) for run in runs]
        page.plot(plot_history_curves(labels, rows), _caption(name, rows))
    head = ["run", "made", "twin", "data", *names]
    lines = [
        [run.folder.name, run.made_at, run.version, run.data_hash[:_HASH] or run.data]
        + [run.metrics[name].estimate if name in run.metrics else None for name in names]
        for run in runs
    ]
    head, *lines = _drop_empty_columns(head, lines)
    page.table(head, lines)


def _drop_empty_columns(head: list[Any], lines: list[list[Any]]) -> list[list[Any]]:
    """Return head and lines without the columns that are empty in every line.

    For example, runs that compare trials have no twin, so the column of the twin is empty.
    """
    filled = [i for i in range(len(head)) if any(line[i] not in ("", None) for line in lines)]
    return [[row[i] for i in filled] for row in (head, *lines)]
