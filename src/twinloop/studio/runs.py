"""List the recorded runs of a workspace, and describe one: its command, its results and its report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twinloop.cli.main import STAGES
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.studio.data import StudioData, parse_recorded

REPORT = "report.html"
_COMMANDS = {command.name for commands in STAGES.values() for command in commands}
_LISTED = 200


def list_runs(data: StudioData, verb: str, *, offset: int) -> dict[str, Any]:
    """Return runs, newest first, and the number of runs of each command.

    Args:
        data: the workspace.
        verb: list only runs of this command; empty for all.
        offset: number of newer runs before the page.
    """
    where = "WHERE verb = $verb" if verb else ""
    given = {"verb": verb} if verb else {}
    sql = f"SELECT run_id, verb, folder, arguments, started, ended, result FROM runs {where}"  # noqa: S608 - ours
    rows = data.rows(f"{sql} ORDER BY run_id DESC LIMIT {_LISTED} OFFSET {offset}", given)
    return {
        "verbs": data.rows("SELECT verb AS value, count(*) AS n FROM runs GROUP BY 1 ORDER BY 2 DESC, 1"),
        "total": data.rows(f"SELECT count(*) AS n FROM runs {where}", given)[0]["n"],  # noqa: S608 - ours
        "offset": offset,
        "rows": [_describe(data, row) for row in rows],
    }


def describe_run(data: StudioData, run_id: str) -> dict[str, Any]:
    """Return one run with its whole result.

    Raises:
        UnknownNameError: If no run has this id.
    """
    row = _find(data, run_id)
    return {**_describe(data, row), "result": data.read_result(row)}


def find_report(data: StudioData, run_id: str) -> Path:
    """Return the report page that a run wrote.

    Raises:
        UnknownNameError: If no run has this id.
        InputError: If the run wrote no report, or its folder is gone.
    """
    folder = data.find_folder(_find(data, run_id))
    if folder is None or not (folder / REPORT).is_file():
        raise InputError(f"Run {run_id} has no report, or its folder was removed.")
    return folder / REPORT


def _find(data: StudioData, run_id: str) -> dict[str, Any]:
    rows = data.rows("SELECT * FROM runs WHERE run_id = ?", [run_id])
    if not rows:
        newest = [row["run_id"] for row in data.rows("SELECT run_id FROM runs ORDER BY run_id DESC LIMIT 5")]
        raise UnknownNameError("run", run_id, newest, where=str(data.workspace.root))
    return rows[0]


def _describe(data: StudioData, row: dict[str, Any]) -> dict[str, Any]:
    folder, result = data.find_folder(row), parse_recorded(row["result"], {})
    words = [str(word) for word in parse_recorded(row["arguments"], [])]
    return {
        **{name: row[name] for name in ("run_id", "verb", "folder", "started", "ended")},
        "command": ["twinloop", *([] if words and words[0] in _COMMANDS else [row["verb"]]), *words],
        "exit_code": result.get("exit_code") if isinstance(result, dict) else None,
        "report": folder is not None and (folder / REPORT).is_file(),
    }
