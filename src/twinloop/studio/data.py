"""Read from and write to the workspace that the studio shows; requests of several threads take turns."""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pooch
import pyarrow as pa

from twinloop.catalog import Workspace
from twinloop.catalog.querying import convert_to_json
from twinloop.catalog.workspace import FILE
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

    @property
    def moment(self) -> tuple[int, int]:
        """Counters that change with every commit to the catalog."""
        return self.workspace.state.counter("parts"), self.workspace.state.counter("state")

    def open_episode(self, episode_id: str) -> tuple[DatasetReader, int]:
        """Return the dataset with an episode, and the index of the episode in it; see `Workspace.locate`."""
        place = self.workspace.locate(episode_id)
        info = place.folder / layout.INFO
        return _open_dataset(place.folder, info.stat().st_mtime_ns), place.index


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
