"""Create, open and query a workspace: one folder with the whole state of a project in plain files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from twinloop import __version__
from twinloop.catalog.adding import AddResult, add_folder, encode_episode_id
from twinloop.catalog.dataset_folder import Fingerprint
from twinloop.catalog.dataset_versions import DatasetVersion, freeze, load_dataset_version, record_policy
from twinloop.catalog.label_checks import Label
from twinloop.catalog.labels import LabelWriteResult, ReviewRecord, write_labels
from twinloop.catalog.limits import QueryLimits
from twinloop.catalog.parts import LENGTH, DraftPart, PartFile, PartStore, convert_table_rows, register_parts, ulid
from twinloop.catalog.querying import CatalogQueries
from twinloop.catalog.schema import EPISODES, TABLES
from twinloop.catalog.state import WorkspaceState, now
from twinloop.core.errors import DatasetError, InputError, UnknownNameError
from twinloop.core.extension import approve_if_possible
from twinloop.core.files import dumps, write_text
from twinloop.core.records import Source
from twinloop.core.redaction import redact_text, redact_values, redact_words
from twinloop.core.yaml_documents import load_yaml
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.reader import DatasetReader

FILE = "twinloop.yaml"
STATE = "state.sqlite"
_FOLDERS = ("twins", "assets", "data", "catalog", "runs", "policies", "scenarios")


@dataclass(frozen=True, kw_only=True)
class EpisodeLocation:
    """Location of an episode on disk.

    Attributes:
        folder: folder of the dataset that contains the episode.
        index: the episode's ``episode_index`` in that dataset.
        batch: name of the dataset folder in the catalog.
    """

    folder: Path
    index: int
    batch: str


class Workspace:
    """Open workspace, created by `create` or `open`; several processes may open a folder, and one writes at a time.

    Use it as a context manager, or call `close` at the end.

    Attributes:
        root: folder of the workspace.
        config: content of ``twinloop.yaml``.
        state: access to the workspace's SQLite file.
        parts: the catalog's Parquet files.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = _read_config(root / FILE)
        self.state = WorkspaceState(root / "catalog" / STATE)
        self.parts = PartStore(root / "catalog", self.state)
        self._queries = CatalogQueries(self.parts, self.folder, QueryLimits.read(self.config, root / FILE))

    @classmethod
    def create(
        cls,
        path: Path | str,
        *,
        name: str | None = None,
        twin: str | None = None,
        task: str | None = None,
        files: Mapping[str, str] | None = None,
    ) -> Workspace:
        """Create a workspace in a new or existing folder and open it.

        Args:
            path: the folder; it is created if it does not exist.
            name: name of the project; by default the folder's name.
            twin: default twin of the project, or None.
            task: default task of the project, or None.
            files: texts of further files to write, by their path in the folder.

        Raises:
            InputError: If the folder is already a workspace, is inside a workspace, or cannot be written.
        """
        root = Path(path).absolute()
        if (root / FILE).exists():
            raise InputError(f"{root} is already a workspace. Choose another folder, or work in that one.")
        outer = cls.find(root.resolve().parent)
        if outer is not None:
            raise InputError(
                f"{root} is inside the workspace {outer}. Work in that one, or choose a folder outside it."
            )
        try:
            for folder in _FOLDERS:
                (root / folder).mkdir(parents=True, exist_ok=True)
            for table in TABLES:
                (root / "catalog" / table).mkdir(exist_ok=True)
        except OSError as error:
            raise InputError(f"{root} cannot be created ({error.strerror}). Choose another folder.") from error
        if not (root / "catalog" / STATE).exists():
            WorkspaceState.create(root / "catalog" / STATE).close()
        for path_in_it, text in (files or {}).items():
            write_text(root / path_in_it, text)
        content = {"schema": 1, "name": name or root.name, "twin": twin, **({"task": task} if task else {})}
        write_text(
            root / FILE, yaml.safe_dump(content, sort_keys=False)
        )  # written last: a folder with this file is a complete workspace
        approve_if_possible(root, how="init")  # code that its own files name may run, as if the user named it
        return cls(root)

    @classmethod
    def open(cls, path: Path | str | None = None) -> Workspace:
        """Open an existing workspace.

        Args:
            path: the workspace folder; None for the current folder or the nearest folder above it that is a workspace.

        Raises:
            InputError: If there is no workspace.
        """
        here = Path.cwd() if path is None else Path(path).absolute()
        root = cls.find(here) if path is None else here
        if root is None or not (root / FILE).is_file():
            what = "No workspace here or in a folder above" if path is None else f"{path} is not a workspace"
            raise InputError(f"{what}: there is no {FILE}. Create one: `twinloop init FOLDER`.")
        return cls(root)

    @staticmethod
    def find(path: Path | str) -> Path | None:
        """Return the nearest workspace folder, from ``path`` upwards; None if there is none."""
        here = Path(path).absolute()
        return next((folder for folder in (here, *here.parents) if (folder / FILE).is_file()), None)

    def query(
        self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), *, max_rows: int | None = None
    ) -> pa.Table:
        """Run one read-only SQL statement over the catalog's views (`catalog.views`) and return its rows.

        Args:
            sql: ``SELECT …``, with ``?`` or ``$name`` for parameters.
            parameters: values of the parameters: a sequence for ``?``, a mapping for ``$name``.
            max_rows: maximum number of rows; None for as many as the memory limit allows.

        Raises:
            UnknownNameError: If a view or a column does not exist.
            InputError: If the text is not one read-only statement, DuckDB refuses it, or it takes more time or memory
                than ``query: {memory: …, timeout_s: …}`` in ``twinloop.yaml`` allows.
        """
        return self._queries.run(sql, parameters, max_rows=max_rows)

    def add(
        self, folder: Path | str, *, batch: str | None = None, run_id: str | None = None, source: Source = "real"
    ) -> AddResult:
        """Add a LeRobotDataset v3.0 folder to the catalog, or its new episodes if it was added before.

        The folder may be written by any program. It is not moved or changed.

        Args:
            folder: the dataset's folder.
            batch: name of the folder in the catalog; by default the folder's name.
            run_id: id of the run that made the folder.
            source: source of episodes that do not state their source: real, sim, augmented or human-in-the-loop.

        Raises:
            DatasetError: If the folder is not such a dataset, is damaged, or has an impossible value. Nothing has
                changed then.
            InputError: If another folder has this name in the catalog.
        """
        folder = Path(folder).absolute()
        return add_folder(
            self.parts, folder, path=self.format_stored_path(folder), batch=batch, source=source, run_id=run_id
        )

    def append(self, table: str, rows: pa.Table, *, run_id: str) -> str:
        """Add rows to a table of the catalog in one commit; return the name of the written Parquet file.

        Args:
            table: ``scores``, ``evaluations``, ``embeddings`` or ``params``.
            rows: the rows.
            run_id: id of the run that made the rows; it fills the column ``run_id`` if ``rows`` lacks it.

        Raises:
            UnknownNameError: If the table or a column does not exist.
            InputError: If a required column is missing or has nulls, a column has another type, or the table is
                ``episodes``.
        """
        return self.append_many({table: rows}, run_id=run_id)[0]

    def append_many(self, tables: Mapping[str, pa.Table], *, run_id: str) -> list[str]:
        """Add rows to several tables in one commit; return the names of the written Parquet files.

        Args:
            tables: the rows of each table, by name of the table; see `append`.
            run_id: id of the run that made the rows; it fills the column ``run_id`` where the rows lack it.

        Raises:
            UnknownNameError: If a table or a column does not exist.
            InputError: If a required column is missing or has nulls, a column has another type, or a table is
                ``episodes``, whose rows come only from dataset folders (`add`).
        """
        if EPISODES.name in tables:
            raise InputError("Rows of episodes come from datasets: `Workspace.add` a folder.")
        drafts = [
            DraftPart(table=table, rows=convert_table_rows(table, rows, given={"run_id": run_id}))
            for table, rows in tables.items()
        ]
        with self.parts.write_parts(drafts, run_id=run_id) as written, self.state.transaction() as connection:
            register_parts(connection, written)
        return [part.part for part in written]

    def locate(self, episode_id: str) -> EpisodeLocation:
        """Find an episode on disk; if it has several copies, the first one whose folder still exists is returned.

        Raises:
            UnknownNameError: If no episode has this id.
            DatasetError: If all folders with the episode are missing or were rewritten.
        """
        rows = self.state.rows(
            "SELECT p.batch, p.episode_index FROM places p JOIN batches b USING (batch) WHERE p.episode_id = ? "
            "ORDER BY b.added, p.episode_index",
            (encode_episode_id(episode_id),),
        )
        if not rows:
            raise UnknownNameError("episode", episode_id, self._find_similar_ids(episode_id), where=str(self.root))
        problem: DatasetError | None = None
        for row in rows:
            try:
                folder = self.folder(row["batch"])
            except DatasetError as error:
                problem = problem or error
                continue
            return EpisodeLocation(folder=folder, index=row["episode_index"], batch=row["batch"])
        raise problem or DatasetError(f"Episode {episode_id} has no location.")

    def format_stored_path(self, folder: Path) -> str:
        """Return a folder's path as the catalog stores it: relative if it is inside the workspace, else absolute."""
        with contextlib.suppress(ValueError):
            return folder.resolve().relative_to(self.root.resolve()).as_posix()
        return folder.resolve().as_posix()

    def folder(self, batch: str) -> Path:
        """Return the dataset folder with the name ``batch`` in the catalog.

        The folder may have newer episodes that are not in the catalog yet.

        Raises:
            UnknownNameError: If no dataset folder in the catalog has this name.
            DatasetError: If the folder is missing or was rewritten.
        """
        row = self.state.row("SELECT path, files FROM batches WHERE batch = ?", (batch,))
        if row is None:
            known = [item["batch"] for item in self.state.rows("SELECT batch FROM batches")]
            raise UnknownNameError("batch", batch, known, where=str(self.root))
        folder = self.root / row["path"]
        if not (folder / layout.INFO).is_file():
            raise DatasetError(
                f"Batch {batch} is no longer at {folder}. Move it back; or `twinloop add` it at its new place "
                "(`twinloop fsck --repair` looks for it in the workspace)."
            )
        if Fingerprint.of(folder).change_since(Fingerprint.from_text(row["files"])) == "changed":
            raise DatasetError(
                f"{folder} was rewritten since the workspace added it as batch {batch}. Update the catalog: "
                f"`twinloop add {folder}`."
            )
        return folder

    def reader(self, batch: str) -> DatasetReader:
        """Open the dataset of a batch (dataset folder in the catalog) for reading.

        Raises:
            UnknownNameError: If no batch has this name.
            DatasetError: If the folder is missing or was rewritten.
        """
        return DatasetReader(self.folder(batch))

    def record_run(
        self,
        verb: str,
        folder: Path | str | None,
        result: Mapping[str, Any],
        started: datetime,
        ended: datetime,
        arguments: Sequence[str],
    ) -> str:
        """Record a run of a command; return the id of the run.

        The id is a ULID that sorts after the ids of all earlier runs. Credentials are removed from the record.

        Args:
            verb: name of the command.
            folder: output folder of the run, or None.
            result: JSON-compatible results.
            started: time at which the run began.
            ended: time at which the run ended.
            arguments: arguments of the command line.
        """
        where = None if folder is None else redact_text(self.format_stored_path(Path(folder).absolute()))
        texts = (dumps(redact_words(arguments)), dumps(redact_values(dict(result))))
        times = [moment.astimezone(UTC).isoformat(timespec="milliseconds") for moment in (started, ended)]
        values = (verb, where, *texts, *times, __version__)
        with self.state.transaction() as connection:
            # `ulid` makes no other names before the year 2527.
            sql = "SELECT max(run_id) FROM runs WHERE length(run_id) = ? AND run_id < '1'"
            run_id = ulid(after=connection.execute(sql, (LENGTH,)).fetchone()[0])
            connection.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (run_id, *values))
        return run_id

    def exclude_episodes(self, episode_ids: Sequence[str], reason: str, by: str) -> int:
        """Exclude episodes from the view ``episodes``; return the number of episodes that were not excluded before.

        Nothing is deleted; `include_episodes` reverses it.

        Args:
            episode_ids: the episodes.
            reason: reason of the exclusion.
            by: person or program that excludes the episodes.
        """
        with self.state.transaction() as connection:
            rows = [(name, reason, by, now()) for name in dict.fromkeys(episode_ids)]
            sql = "INSERT OR IGNORE INTO tombstones VALUES (?, ?, ?, ?)"
            return connection.executemany(sql, rows).rowcount

    def include_episodes(self, episode_ids: Sequence[str]) -> int:
        """Include excluded episodes in the view ``episodes`` again; return the number of newly included episodes."""
        with self.state.transaction() as connection:
            sql = "DELETE FROM tombstones WHERE episode_id = ?"
            return connection.executemany(sql, [(name,) for name in episode_ids]).rowcount

    def freeze(self, name: str, sql: str, note: str = "") -> DatasetVersion:
        """Create a dataset version from the episodes that an SQL statement selects now.

        See `catalog.dataset_versions.freeze` for the arguments and errors.
        """
        return freeze(self, name, sql, note)

    def find_dataset_version(self, reference: str) -> DatasetVersion:
        """Load the dataset version with a name, ``NAME@VERSION`` or a hash.

        See `catalog.dataset_versions.load_dataset_version` for the errors.
        """
        return load_dataset_version(self, reference)

    def record_policy(
        self,
        policy: str,
        name: str,
        dataset: str | Sequence[str],
        run_id: str | None = None,
        extra: Mapping[str, Any] | None = None,
        *,
        base: str | None = None,
    ) -> None:
        """Record which dataset versions, or which simulated worlds without a dataset, trained a policy.

        See `catalog.dataset_versions.record_policy` for the arguments and errors.
        """
        record_policy(self, policy, name, dataset, run_id, extra, base=base)

    def label(
        self,
        labels: Iterable[Label],
        *,
        add: bool = False,
        review: ReviewRecord | None = None,
        run_id: str | None = None,
    ) -> LabelWriteResult:
        """Write labels of episodes, all or none; see `catalog.labels.write_labels` for the arguments."""
        return write_labels(self, labels, add=add, review=review, run_id=run_id)

    def close(self) -> None:
        """Close the database connections of the calling thread and release their memory."""
        self._queries.close()
        self.state.close()

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _find_similar_ids(self, episode_id: str) -> list[str]:
        """Return up to three episode ids near an unknown id, which the error message proposes."""
        prefix = episode_id[:4]
        with contextlib.suppress(ValueError):
            rows = self.state.rows(
                "SELECT lower(hex(episode_id)) AS name FROM places WHERE episode_id >= ? ORDER BY episode_id LIMIT 3",
                (bytes.fromhex(prefix),),
            )
            return [row["name"] for row in rows]
        return []


def _read_config(path: Path) -> dict[str, Any]:
    value = load_yaml(path)
    if not isinstance(value, dict):
        raise InputError(f"{path} has no settings. It needs at least a name, such as `name: my-cell`.")
    return value


__all__ = ["AddResult", "EpisodeLocation", "PartFile", "Workspace"]
