"""Check the integrity of a workspace (hashes, indexes, dataset folders) and give the remedy for each finding."""

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
    """Yield the faults of a batch's folder, each with the kind of repair it needs.

    Args:
        parts: the catalog's parts.
        row: a row of the table ``batches``.
        note: receives a sentence on each action during the check.
        deep: read all files completely, compute content ids of episodes without provenance again, and decode the first
            and last image of each episode.
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
    """Yield changed files. In a rewritten folder all names or sizes differ; the fingerprint reports that."""
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
    """Yield tables with unchanged bytes that cannot be read: they were damaged when they were added."""
    for path in paths:
        try:
            require_footer(folder / path)
        except DatasetError as error:
            yield f"{error} It was already damaged when it was added.", "copy"


def _seal_missing_files(
    state: WorkspaceState, batch: str, folder: Path, seals: Sequence[Seal], note: Callable[[str], None]
) -> None:
    """Seal the files that an earlier version left out: whole videos, and files outside of blocks."""
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
    held = parts.state.rows("SELECT episode_id, episode_index FROM places WHERE batch = ?", (row["batch"],))
    named = {item["episode_index"]: item["episode_id"] for item in held}
    for index, name in _read_episode_ids(reader, row["source"], deep=deep):
        if named.get(index, encode_episode_id(name)) != encode_episode_id(name):
            yield f"Episode {index} of {folder} is {name[:16]}…, but another episode in the catalog. It changed.", "add"
    if deep:
        yield from _check_videos(reader)


def _read_episode_ids(reader: DatasetReader, source: str, *, deep: bool) -> Iterator[tuple[int, str]]:
    """Yield the index and the stored id of each episode; with ``deep`` also ids computed from the content."""
    for path in sorted((reader.path / "meta" / "episodes").glob("chunk-*/file-*.parquet")):
        rows = read_table(path)
        carried = rows[_ID].to_pylist() if _ID in rows.column_names else [None] * len(rows)
        indices = rows["episode_index"].to_pylist()
        yield from ((index, name) for index, name in zip(indices, carried, strict=True) if name)
        nameless = [i for i, name in enumerate(carried) if not name]
        if deep and nameless:
            chosen = rows.select(_PLACE).take(nameless)
            names = compute_content_ids(reader.path, reader.info, chosen, source)
            yield from zip(chosen["episode_index"].to_pylist(), names, strict=True)


def _check_videos(reader: DatasetReader) -> Iterator[tuple[str, Repair]]:
    """Check that the first and the last frame of each episode can be decoded."""
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
    """A fault: its kind, location, description and remedy, and the repair that `fsck --repair` can do."""

    kind: str
    where: str
    what: str
    remedy: str
    repair: str = ""
    batch: str | None = None


def check_parts(parts: PartStore) -> Iterator[FsckFinding]:
    """Check every part against the list of parts, its hash and its footer; report files that are not listed."""
    for table in TABLES:
        listed = {part.part: part for part in parts.list_parts(table)}
        for part in listed.values():
            yield from _check_part(parts, part)
        yield from _find_unlisted_files(parts, table, set(listed))


def check_cache(parts: PartStore) -> Iterator[FsckFinding]:
    """Check the cache files against the hashes in their names."""
    for path in find_damaged_files(parts.folder):
        where = path.relative_to(parts.folder.parent).as_posix()
        yield FsckFinding(
            kind="kept",
            where=where,
            what=f"{where}, a cache file, differs from the written one.",
            remedy="No data is lost: --repair removes it, and the next query makes it again.",
            repair="forget",
        )


def check_index(parts: PartStore) -> Iterator[FsckFinding]:
    """Check that the episode locations in SQLite agree with the parts."""
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
        mine = rows.filter(pc.equal(rows["batch"], row["batch"]))
        held = state.rows("SELECT episode_id, episode_index FROM places WHERE batch = ?", (row["batch"],))
        said = {(item["episode_id"], item["episode_index"]) for item in held}
        meant = zip(mine["episode_id"].to_pylist(), mine["episode_index"].to_pylist(), strict=True)
        if {(encode_episode_id(name), index) for name, index in meant} != said or len(mine) != row["episodes"]:
            yield FsckFinding(
                kind="index",
                where=f"batch {row['batch']}",
                what=f"It has {row['episodes']} episodes; the parts have {len(mine)}, the index has {len(said)}.",
                remedy="Rebuild it with --repair, from the parts or, if they lack some, from the folder.",
                repair="rebuild" if len(mine) == row["episodes"] else "reread",
                batch=row["batch"],
            )


def check_batches(parts: PartStore, *, deep: bool, note: Report = lambda _sentence: None) -> Iterator[FsckFinding]:
    """Check every dataset folder against its state when it was added; ``note`` receives actions during the check."""
    for row in parts.state.rows("SELECT * FROM batches ORDER BY added, batch"):
        for what, repair in check_batch(parts, row, note, deep=deep):
            yield FsckFinding(
                kind="dataset",
                where=f"batch {row['batch']} at {row['path']}",
                what=what,
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
    """Return whether a part differs from the committed file."""
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
        return FsckFinding(kind="part", where=name, what=what, remedy=remedy, repair="reread", batch=part.batch)
    return FsckFinding(
        kind="part",
        where=name,
        what=what,
        remedy=f"Restore a copy of the file, or make its rows again ({part.table_name} of run {part.run_id}).",
    )


def _find_unlisted_files(parts: PartStore, table: str, listed: set[str]) -> Iterator[FsckFinding]:
    retired = {row["path"] for row in parts.state.rows("SELECT path FROM retired")}
    folder = parts.folder / table
    for path in sorted({*folder.glob(PATTERN), *folder.glob(".part-*")}):
        if path.name not in listed and f"{table}/{path.name}" not in retired:
            yield FsckFinding(
                kind="leftover",
                where=f"catalog/{table}/{path.name}",
                what=f"catalog/{table}/{path.name} is in no commit: a writer was interrupted, or is still writing.",
                remedy=f"It is not needed; --repair moves it to catalog/{SWEPT}.",
                repair="sweep",
            )
