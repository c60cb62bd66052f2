"""Check the integrity of a workspace, and give for each fault its location and its remedy.

`check_parts`, `check_cache`, `check_index` and `check_batches` check the catalog's Parquet files, cache files, index of
episode locations, and dataset folders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from twinloop.catalog.adding import encode_episode_id, write_seals
from twinloop.catalog.dataset_folder import (
    Fingerprint,
    Seal,
    escape_path,
    find_file_fault,
    is_block_file,
    is_sealed,
    list_sealed_files,
    read_seals,
    require_footer,
    seal_files,
)
from twinloop.catalog.parts import PATTERN, PartFile, PartStore
from twinloop.catalog.schema import EPISODES, PARAMS, TABLES
from twinloop.catalog.state import WorkspaceState
from twinloop.catalog.view_tables import find_damaged_files
from twinloop.core.errors import DatasetError, TwinloopError
from twinloop.core.files import sha256_file
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.content_ids import compute_content_ids
from twinloop.dataset.lerobot.parquet import read_table
from twinloop.dataset.lerobot.reader import DatasetReader

Repair = Literal["find", "add", "copy", "meant"]

_ID = "provenance/episode_id"
_PLACE = ["episode_index", "length", "tasks", "data/chunk_index", "data/file_index"]


def check_batch(
    parts: PartStore, row: Mapping[str, Any], note: Callable[[str], None], *, deep: bool
) -> Iterator[tuple[str, Repair]]:
    """Check a dataset folder of the catalog, and yield a sentence on each fault with the kind of its repair.

    The kinds are ``find`` (look for the moved folder), ``add`` (add the folder again), ``copy`` (the user must restore
    a copy) and ``meant`` (the change may have been intended: the user must restore a copy, or add the folder again).

    Args:
        parts: the catalog's Parquet files.
        row: the folder's row of the table ``batches``.
        note: receives a sentence if ``deep`` is true and the check adds the size and hash of files to the catalog that
            an earlier version of twinloop did not record completely.
        deep: whether to read all files completely, to decode the first and the last image of each episode, and to
            compute the ids of episodes without a stored id again (hashes of the episodes' content).
    """
    folder = parts.folder.parent / row["path"]
    if not (folder / layout.INFO).is_file():
        yield f"{folder} is missing, or is no longer a dataset.", "find"
        return
    try:
        damaged = list(_check_files(parts, row, folder, note, deep=deep))
    except DatasetError as error:
        yield str(error), "copy"
        return
    if damaged:
        yield from damaged
        return
    if Fingerprint.of(folder).change_since(Fingerprint.from_text(row["files"])) == "changed":
        yield f"{folder} was rewritten since it was added.", "add"
        return
    try:
        yield from _check_episodes(parts, row, folder, deep=deep)
    except TwinloopError as error:
        yield f"{folder}: {error}", "copy"


def _check_files(
    parts: PartStore, row: Mapping[str, Any], folder: Path, note: Callable[[str], None], *, deep: bool
) -> Iterator[tuple[str, Repair]]:
    """Yield the files of a batch that differ from their recorded size and SHA-256, and files that are not recorded.

    If block files (numbered files ``chunk-*/file-*``) below both ``meta`` and ``data`` are missing or have another
    size, the folder was rewritten. Then this check yields nothing, because `check_batch` reports the changed
    fingerprint of the folder.

    Args:
        parts: the catalog's Parquet files.
        row: the batch's row in the table ``batches``.
        folder: the batch's dataset folder.
        note: function that is called with each remark for the user.
        deep: whether to read all files completely.
    """
    batch, seals = row["batch"], read_seals(parts.state, row["batch"])
    wrong = [(item, what) for item in seals if (what := find_file_fault(folder, item, deep=deep)) is not None]
    blocks = [(item, what) for item, what in wrong if is_block_file(item.path)]
    if {item.path.partition("/")[0] for item, what in blocks if "other bytes" not in what} >= {"meta", "data"}:
        return  # the folder has another dataset; its fingerprint is checked next
    new = sorted(set(list_sealed_files(folder)) - {item.path for item in seals})
    grown = any(path.startswith("meta/episodes/") for path in new)
    for item, what in blocks if grown else wrong:  # a dataset that grew has other metadata
        yield f"{escape_path(folder / item.path)} {what}.", "copy" if is_block_file(item.path) else "meant"
    if deep:
        known = {item.path for item, _ in wrong}
        yield from _check_footers(
            folder, [item.path for item in seals if is_block_file(item.path) and item.path not in known]
        )
    extra = [path for path in new if is_sealed(seals) or (seals and is_block_file(path))]
    if extra:
        what = f"{len(extra)} files that are not in the catalog, such as {escape_path(extra[0])}"
        yield f"{escape_path(folder)} has {what}.", "add"
    if deep and not wrong:
        _seal_missing_files(parts.state, batch, folder, seals, note)


def _check_footers(folder: Path, paths: list[str]) -> Iterator[tuple[str, Repair]]:
    """Yield the Parquet files that cannot be read although unchanged; they were already damaged when added."""
    for path in paths:
        try:
            require_footer(folder / path)
        except DatasetError as error:
            yield f"{error} It was already damaged when it was added.", "copy"


def _seal_missing_files(
    state: WorkspaceState, batch: str, folder: Path, seals: Sequence[Seal], note: Callable[[str], None]
) -> None:
    """Record the size and SHA-256 of files that an earlier version of twinloop did not record completely.

    These are videos, of which only the end was hashed, and all files that are not block files (``chunk-*/file-*``).

    Args:
        state: the workspace's state.
        batch: name of the batch.
        folder: its dataset folder.
        seals: the sizes and hashes recorded so far.
        note: function that is called with a message for the user if files were recorded.
    """
    fresh = [Seal.of(folder, item.path) for item in seals if not item.whole]
    if seals and not is_sealed(seals):
        fresh += [item for item in seal_files(folder, [item.path for item in seals]) if not is_block_file(item.path)]
    if fresh:
        with state.transaction() as connection:
            write_seals(connection, batch, fresh)
        note(f"{len(fresh)} files of batch {batch} were sealed now. Earlier changes cannot be detected.")


def _check_episodes(
    parts: PartStore, row: Mapping[str, Any], folder: Path, *, deep: bool
) -> Iterator[tuple[str, Repair]]:
    reader = DatasetReader(folder)
    locations = parts.state.rows("SELECT episode_id, episode_index FROM places WHERE batch = ?", (row["batch"],))
    keys_by_index = {item["episode_index"]: item["episode_id"] for item in locations}
    for index, name in _read_episode_ids(reader, row["source"], deep=deep):
        if keys_by_index.get(index, encode_episode_id(name)) != encode_episode_id(name):
            yield (
                f"Episode {index} of {folder} has the id {name[:16]}…, but another id in the catalog: it changed.",
                "add",
            )
    if deep:
        yield from _check_videos(reader)


def _read_episode_ids(reader: DatasetReader, source: str, *, deep: bool) -> Iterator[tuple[int, str]]:
    """Yield index and id of each episode with a stored id; if ``deep``, also computed ids of the other episodes."""
    for path in sorted((reader.path / "meta" / "episodes").glob("chunk-*/file-*.parquet")):
        rows = read_table(path)
        stored_ids = rows[_ID].to_pylist() if _ID in rows.column_names else [None] * len(rows)
        indices = rows["episode_index"].to_pylist()
        yield from ((index, name) for index, name in zip(indices, stored_ids, strict=True) if name)
        nameless = [i for i, name in enumerate(stored_ids) if not name]
        if deep and nameless:
            chosen = rows.select(_PLACE).take(nameless)
            names = compute_content_ids(reader.path, reader.info, chosen, source)
            yield from zip(chosen["episode_index"].to_pylist(), names, strict=True)


def _check_videos(reader: DatasetReader) -> Iterator[tuple[str, Repair]]:
    """Yield a fault for each episode and camera whose first or last image cannot be decoded."""
    for camera in reader.cameras:
        for index, length in enumerate(reader.lengths.tolist()):
            try:
                reader.images(index, camera, sorted({0, max(length - 1, 0)}))
            except (TwinloopError, OSError, ValueError) as error:
                yield f"{reader.path}: camera {camera} of episode {index} cannot be decoded ({error}).", "copy"


SWEPT = "swept"  # within catalog/: files that no transaction lists, kept until a person removes them
Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class FsckFinding:
    """Fault that `fsck` found.

    Attributes:
        kind: kind of the fault, such as ``dataset``, ``part``, ``index`` or ``state``.
        location: the file, batch or table with the fault.
        problem: sentence that describes the fault.
        remedy: sentence on what the user can do.
        repair: name of the repair that ``fsck --repair`` does; empty if only the user can repair the fault.
        batch: name of the batch concerned, if any.
    """

    kind: str
    location: str
    problem: str
    remedy: str
    repair: str = ""
    batch: str | None = None


def check_parts(parts: PartStore) -> Iterator[FsckFinding]:
    """Compare size and SHA-256 of each Parquet file of the catalog with the list of committed files.

    Yield a fault also for each file in the catalog's folders that is not in the list.
    """
    for table in TABLES:
        listed = {part.part: part for part in parts.list_parts(table)}
        for part in listed.values():
            yield from _check_part(parts, part)
        yield from _find_unlisted_files(parts, table, set(listed))


def check_cache(parts: PartStore) -> Iterator[FsckFinding]:
    """Yield a fault for each cache file (see `CacheFolder`) whose content differs from the hash in its name."""
    for path in find_damaged_files(parts.folder):
        where = path.relative_to(parts.folder.parent).as_posix()
        yield FsckFinding(
            kind="kept",
            location=where,
            problem=f"{where}, a cache file, differs from the written one.",
            remedy="No data is lost: --repair removes it, and the next query makes it again.",
            repair="forget",
        )


def check_index(parts: PartStore) -> Iterator[FsckFinding]:
    """Compare the episode locations in ``state.sqlite`` with the catalog's Parquet files; yield batches that differ."""
    state, episodes = parts.state, parts.list_parts(EPISODES.name)
    try:
        tables = [
            pq.read_table(parts.path(EPISODES.name, part.part), columns=["batch", "episode_index", "episode_id"])
            for part in episodes
        ]
    except (pa.ArrowException, OSError):
        return  # reported already by `check_parts`
    rows = pa.concat_tables(tables) if tables else EPISODES.schema.empty_table()
    for row in state.rows("SELECT batch, episodes FROM batches ORDER BY batch"):
        batch_rows = rows.filter(pc.equal(rows["batch"], row["batch"]))
        locations = state.rows("SELECT episode_id, episode_index FROM places WHERE batch = ?", (row["batch"],))
        indexed = {(item["episode_id"], item["episode_index"]) for item in locations}
        expected = zip(batch_rows["episode_id"].to_pylist(), batch_rows["episode_index"].to_pylist(), strict=True)
        if {(encode_episode_id(name), index) for name, index in expected} != indexed or len(batch_rows) != row[
            "episodes"
        ]:
            yield FsckFinding(
                kind="index",
                location=f"batch {row['batch']}",
                problem=f"It has {row['episodes']} episodes, but the parts have {len(batch_rows)} and the index has "
                f"{len(indexed)} of them.",
                remedy="Rebuild it with --repair, from the parts or, if they lack some, from the folder.",
                repair="rebuild" if len(batch_rows) == row["episodes"] else "reread",
                batch=row["batch"],
            )


def check_batches(parts: PartStore, *, deep: bool, note: Report = lambda _sentence: None) -> Iterator[FsckFinding]:
    """Check every dataset folder of the catalog against its recorded state.

    Args:
        parts: the catalog's Parquet files.
        deep: whether to read all files completely; see `check_batch`.
        note: receives one sentence on each change that the check itself makes.
    """
    for row in parts.state.rows("SELECT * FROM batches ORDER BY added, batch"):
        for what, repair in check_batch(parts, row, note, deep=deep):
            yield FsckFinding(
                kind="dataset",
                location=f"batch {row['batch']} at {row['path']}",
                problem=what,
                remedy=_REMEDIES[repair].format(path=row["path"]),
                repair=repair if repair in ("find", "add") else "",
                batch=row["batch"],
            )


_REMEDIES = {
    "find": "Move it back, or `twinloop add` it at its new place; --repair looks for it in the workspace.",
    "add": "If this was intended: `twinloop add {path}`, or --repair.",
    "meant": "Restore a copy of the file. If the change was intended: `twinloop add {path}`.",
    "copy": "Restore a copy of the file, or export the dataset again and `twinloop add {path}`.",
}


def is_part_damaged(parts: PartStore, part: PartFile) -> bool:
    """Return whether a Parquet file of the catalog is missing or differs from the committed one."""
    return next(_check_part(parts, part), None) is not None


def _check_part(parts: PartStore, part: PartFile) -> Iterator[FsckFinding]:
    path = parts.path(part.table_name, part.part)
    name = f"catalog/{part.table_name}/{part.part}"
    if not path.is_file():
        yield _make_part_finding(name, part, f"{name} ({part.rows} rows) is missing.")
    elif path.stat().st_size != part.bytes:
        yield _make_part_finding(name, part, f"{name} has {path.stat().st_size} bytes; {part.bytes} were committed.")
    elif sha256_file(path) != part.sha256:
        yield _make_part_finding(name, part, f"{name} differs from the committed file ({part.rows} rows).")


def _make_part_finding(name: str, part: PartFile, what: str) -> FsckFinding:
    joined = part.table_name in (EPISODES.name, PARAMS.name) and part.run_id is None
    if joined or part.batch is not None:
        whose = f"batch {part.batch}" if part.batch else "several batches"
        remedy = f"Its rows come from {whose}: --repair reads them again."
        return FsckFinding(kind="part", location=name, problem=what, remedy=remedy, repair="reread", batch=part.batch)
    return FsckFinding(
        kind="part",
        location=name,
        problem=what,
        remedy=f"Restore a copy of the file, or make its rows again ({part.table_name} of run {part.run_id}).",
    )


def _find_unlisted_files(parts: PartStore, table: str, listed: set[str]) -> Iterator[FsckFinding]:
    retired = {row["path"] for row in parts.state.rows("SELECT path FROM retired")}
    folder = parts.folder / table
    for path in sorted({*folder.glob(PATTERN), *folder.glob(".part-*")}):
        if path.name not in listed and f"{table}/{path.name}" not in retired:
            yield FsckFinding(
                kind="leftover",
                location=f"catalog/{table}/{path.name}",
                problem=f"catalog/{table}/{path.name} is in no commit: a writer was interrupted, or is still writing.",
                remedy=f"It is not needed; --repair moves it to catalog/{SWEPT}.",
                repair="sweep",
            )
