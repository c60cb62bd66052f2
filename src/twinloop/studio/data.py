"""Read from and write to the workspace that the studio shows; requests of several threads take turns."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import threading
from collections.abc import Generator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pooch
import pyarrow as pa

from twinloop.catalog import Workspace
from twinloop.catalog.querying import convert_to_json
from twinloop.catalog.workspace import FILE
from twinloop.core.documents import read_json
from twinloop.core.errors import InputError
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.workflows.run.results import replace_nonfinite

RESULT = "result.json"  # of a run, in its output folder
MOST_ROWS = 10_000  # of one answer; pages show far fewer


class StudioData:
    """Workspace that several requests read at the same time, and in which a person labels episodes.

    Args:
        workspace: the open workspace.
        author: name under which labels are stored.
        where: the folder that the user named.
        start: path of the first page.
    """

    def __init__(self, workspace: Workspace, author: str, where: Path, start: str = "/") -> None:
        self.workspace, self.author, self.where, self.start = workspace, author, where, start
        self._lock = threading.Lock()  # DuckDB's views are rebuilt for a statement, and must not change under another

    def rows(
        self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), *, most: int = MOST_ROWS
    ) -> list[dict[str, Any]]:
        """Run one read-only statement and return its rows with JSON-compatible values; see `Workspace.query`."""
        return replace_nonfinite(convert_to_json(self.table(sql, parameters, most=most).to_pylist()))

    def table(
        self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), *, most: int | None = None
    ) -> pa.Table:
        """Run one read-only statement and return its rows; see `Workspace.query`."""
        with self._lock:
            return self.workspace.query(sql, parameters, max_rows=most)

    def results(self, verb: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return the latest runs of a command, newest first, each with its result; see `read_result`."""
        rows = self.rows("SELECT * FROM runs WHERE verb = ? ORDER BY run_id DESC LIMIT 100", [verb])
        return [(row, self.read_result(row)) for row in rows]

    def read_result(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a run: the file that it wrote, or what the catalog recorded if that file is gone.

        The catalog leaves out long lists. Damaged results are empty.

        Args:
            row: the run, as in the view ``runs``.
        """
        recorded = parse_recorded(row["result"], {})
        recorded = recorded if isinstance(recorded, dict) else {}
        folder = self.find_folder(row)
        file = None if folder is None else folder / RESULT
        if file is None or not file.is_file():
            return recorded
        written = _read_result(file, file.stat().st_mtime_ns)
        same = written.get("made") == recorded.get("made")  # else a later run wrote to the same folder
        return {**recorded, **written} if same else recorded

    def find_folder(self, row: Mapping[str, Any]) -> Path | None:
        """Return the output folder of a run; None if it wrote none, or one in a store or outside the known folders.

        Known are the workspace and the folder that the user named.
        """
        if not row["folder"] or "://" in row["folder"]:
            return None
        folder = (self.workspace.root / row["folder"]).resolve()
        known = any(folder.is_relative_to(path.resolve()) for path in (self.workspace.root, self.where))
        return folder if known and folder.is_dir() else None

    @contextlib.contextmanager
    def reading(self) -> Generator[Workspace]:
        """Return a context manager for the workspace, in which no other request reads it."""
        with self._lock:
            yield self.workspace

    @property
    def moment(self) -> tuple[int, int]:
        """Counters that change with every commit to the catalog."""
        return self.workspace.state.counter("parts"), self.workspace.state.counter("state")

    def open_episode(self, episode_id: str) -> tuple[DatasetReader, int]:
        """Return the dataset with an episode, and the index of the episode in it; see `Workspace.locate`."""
        place = self.workspace.locate(episode_id)
        info = place.folder / layout.INFO
        return _open_dataset(place.folder, info.stat().st_mtime_ns), place.index


@functools.lru_cache(maxsize=200)
def _read_result(file: Path, _mtime_ns: int) -> dict[str, Any]:
    try:
        value = replace_nonfinite(read_json(file))
    except InputError:
        return {}
    return value if isinstance(value, dict) else {}


def parse_recorded(text: str, empty: Any) -> Any:
    """Return the value of a JSON text of the catalog, or ``empty`` for a text that another program damaged."""
    try:
        return json.loads(text)
    except ValueError:
        return empty


@functools.lru_cache(maxsize=16)
def _open_dataset(folder: Path, _mtime_ns: int) -> DatasetReader:
    """Open a dataset for reading; the reader is kept until the folder's metadata changes."""
    return DatasetReader(folder)


def open_folder(path: Path | None, author: str) -> StudioData:
    """Open what the user named: a workspace, a dataset, or the folder of a run.

    A dataset or run outside a workspace gets one in the cache folder of the user.

    Raises:
        InputError: If the folder is none of these, or there is no workspace upwards from here.
        DatasetError: If the dataset is damaged.
    """
    if path is None:
        workspace = Workspace.open()
        return StudioData(workspace, author, workspace.root)
    path = path.absolute()
    if (path / FILE).is_file():
        return StudioData(Workspace.open(path), author, path)
    around, run = Workspace.find(path), path / RESULT
    if (path / layout.INFO).is_file():
        if around is not None:
            return StudioData(Workspace.open(around), author, path)
        workspace = _open_kept(path)
        workspace.add(path)
        return StudioData(workspace, author, path)
    if not run.is_file():
        raise InputError(
            f"{path} is neither a workspace ({FILE}) nor a LeRobot v3.0 dataset ({layout.INFO}) nor the folder of a "
            f"run ({RESULT}). Create a workspace with `twinloop init FOLDER`, or convert a log with `twinloop import`."
        )
    workspace = _open_kept(path) if around is None else Workspace.open(around)
    return StudioData(workspace, author, path, f"/runs/{_find_run(workspace, path)}")


def _open_kept(path: Path) -> Workspace:
    """Open the workspace in the user's cache for a folder that is in none; make it the first time."""
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    kept = Path(pooch.os_cache("twinloop")) / "studio" / f"{path.name}-{digest}"
    return Workspace.open(kept) if (kept / FILE).is_file() else Workspace.create(kept, name=path.name)


def _find_run(workspace: Workspace, folder: Path) -> str:
    """Return the id of the newest recorded run with an output folder; record it if the workspace does not know it."""
    newest = "SELECT run_id FROM runs WHERE folder = ? ORDER BY run_id DESC LIMIT 1"
    found = workspace.query(newest, [workspace.format_stored_path(folder)])
    if len(found):
        return str(found["run_id"][0].as_py())
    result = read_json(folder / RESULT)
    if not isinstance(result, dict):
        raise InputError(f"{folder / RESULT} is not the result of a run.")
    verb, made = str(result.get("verb", "run")), datetime.fromtimestamp((folder / RESULT).stat().st_mtime, UTC)
    kept = {name: result[name] for name in ("verb", "kind", "made") if name in result}
    return workspace.record_run(verb, folder, kept, made, made, [])
