"""Read from and write to the workspace that the studio shows; requests of several threads take turns."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import threading
from collections.abc import Generator, Mapping, Sequence
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

MOST_ROWS = 10_000  # of one answer; pages show far fewer


class StudioData:
    """Workspace that several requests read at the same time, and in which a person labels episodes.

    Args:
        workspace: the open workspace.
        author: name under which labels are stored.
        where: the folder that the user named.
    """

    def __init__(self, workspace: Workspace, author: str, where: Path) -> None:
        self.workspace, self.author, self.where = workspace, author, where
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
        file = None if folder is None else folder / "result.json"
        if file is None or not file.is_file():
            return recorded
        written = _read_result(file, file.stat().st_mtime_ns)
        same = written.get("made") == recorded.get("made")  # else a later run wrote to the same folder
        return {**recorded, **written} if same else recorded

    def find_folder(self, row: Mapping[str, Any]) -> Path | None:
        """Return the output folder of a run; None if it wrote none, or one outside the workspace or in a store."""
        if not row["folder"] or "://" in row["folder"]:
            return None
        root = self.workspace.root.resolve()
        folder = (root / row["folder"]).resolve()
        return folder if folder.is_relative_to(root) and folder.is_dir() else None

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
    """Open what the user named: a workspace, or a dataset, which gets a workspace in the cache folder of the user.

    Raises:
        InputError: If the folder is neither, or there is no workspace upwards from here.
        DatasetError: If the dataset is damaged.
    """
    if path is None:
        workspace = Workspace.open()
        return StudioData(workspace, author, workspace.root)
    path = path.absolute()
    if (path / FILE).is_file():
        return StudioData(Workspace.open(path), author, path)
    if not (path / layout.INFO).is_file():
        raise InputError(
            f"{path} is neither a workspace ({FILE}) nor a LeRobot v3.0 dataset ({layout.INFO}). Create a workspace "
            "with `twinloop init FOLDER`, or convert a log with `twinloop import`."
        )
    around = Workspace.find(path)
    if around is not None:
        return StudioData(Workspace.open(around), author, path)
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    kept = Path(pooch.os_cache("twinloop")) / "studio" / f"{path.name}-{digest}"
    workspace = Workspace.open(kept) if (kept / FILE).is_file() else Workspace.create(kept, name=path.name)
    workspace.add(path)
    return StudioData(workspace, author, path)
