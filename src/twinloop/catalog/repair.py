"""Putting right what `fsck` found, as far as that loses nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from twinloop.catalog.adding import add_folder, move
from twinloop.catalog.admission import checked_info
from twinloop.catalog.batch_commit import draw
from twinloop.catalog.compaction import remove_retired
from twinloop.catalog.fingerprint import Fingerprint
from twinloop.catalog.fsck import SWEPT, Finding, part_is_damaged
from twinloop.catalog.fsck_runs import put_in_order, remove_secrets
from twinloop.catalog.parts import Part, Parts, enlist
from twinloop.catalog.rebuild import rebuild
from twinloop.catalog.schema import EPISODES, PARAMS
from twinloop.core.errors import TwinloopError
from twinloop.dataset import layout

_DEPTH = 4  # folders below the workspace in which a moved dataset is looked for


def repair_state(folder: Path, path: Path) -> str:
    """Make ``state.sqlite`` of a catalog's folder again; what became of it, in a sentence."""
    made = rebuild(folder, path)
    taken = ", ".join(f"{count} {name}" for name, count in made.taken.items() if count)
    lost = f" Not readable: {', '.join(made.damaged)}." if made.damaged else ""
    unfinished = f" Of commits that never ended: {', '.join(made.unfinished)}." if made.unfinished else ""
    return f"The index was made again from {made.parts} parts; taken over: {taken or 'nothing'}.{lost}{unfinished}"


def repair(parts: Parts, findings: Sequence[Finding]) -> dict[Finding, str]:
    """Do what can be done about findings other than of the state; what was done, in a sentence each."""
    done: dict[Finding, str] = {}
    for finding in findings:
        try:
            said = _repair_one(parts, finding)
        except TwinloopError as error:
            said = f"Not repaired: {error}"
        if said:
            done[finding] = said
    remove_retired(parts)
    return done


def _repair_one(parts: Parts, finding: Finding) -> str:
    if finding.repair == "sweep":
        return _sweep(parts, finding)
    if finding.repair == "forget":
        (parts.folder.parent / finding.where).unlink(missing_ok=True)
        return "Removed."
    if finding.repair == "count":
        with parts.state.transaction():
            return "Written again."
    if finding.repair == "reorder":
        return put_in_order(parts)
    if finding.repair == "redact":
        return remove_secrets(parts.state)
    if finding.repair == "find" and finding.batch is not None:
        return _find(parts, finding.batch)
    if finding.repair == "add" and finding.batch is not None:
        return _add_again(parts, finding.batch)
    if finding.repair == "reread":
        return _read_again(parts, finding.batch)
    return ""


def _add_again(parts: Parts, batch: str) -> str:
    """Bring a batch up to date with its folder."""
    row = parts.state.row("SELECT path FROM batches WHERE batch = ?", (batch,))
    if row is None:
        return ""
    folder = parts.folder.parent / row["path"]
    added = add_folder(parts, folder, path=row["path"], batch=None, source="real", run_id=None)
    return (
        f"Brought up to date: {added.episodes} episodes, {added.new} new." if added.parts else _read_again(parts, batch)
    )


def _sweep(parts: Parts, finding: Finding) -> str:
    """Move a file aside that no transaction lists, while nobody writes."""
    path = parts.folder.parent / finding.where
    with parts.alone():
        if parts.state.row("SELECT 1 FROM parts WHERE part = ?", (path.name,)) or not path.exists():
            return "Its writer has finished meanwhile."
        target = parts.folder / SWEPT / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    return f"Moved to {target.relative_to(parts.folder.parent)}."


def _find(parts: Parts, batch: str) -> str:
    """Look for a batch's folder within the workspace, by what its metadata look like."""
    row = parts.state.row("SELECT files FROM batches WHERE batch = ?", (batch,))
    before = Fingerprint.from_text(row["files"]) if row else None
    root = parts.folder.parent
    taken = {item["path"] for item in parts.state.rows("SELECT path FROM batches")}
    for info in sorted(_infos(root)):
        folder = info.parent.parent
        path = folder.relative_to(root).as_posix()
        if before is not None and path not in taken and Fingerprint.of(folder).since(before) != "changed":
            move(parts.state, batch, path)
            return f"Found at {path}."
    return "Not found in the workspace."


def _infos(root: Path) -> set[Path]:
    return {path for depth in range(1, _DEPTH) for path in root.glob("*/" * depth + layout.INFO)}


def _read_again(parts: Parts, batch: str | None) -> str:
    """Strike out parts that are damaged, and take the rows they held from the datasets once more.

    Raises:
        DatasetError: a folder that is needed is gone or damaged; nothing has changed.
    """
    listed = [*parts.listed(EPISODES.name), *parts.listed(PARAMS.name)]
    damaged = [part for part in listed if part_is_damaged(parts, part)]
    intact = [part for part in listed if part not in damaged]
    batches = sorted({*_incomplete(parts, damaged, intact), *([batch] if batch else ())})
    rows = parts.state.rows("SELECT batch, path FROM batches ORDER BY batch")
    folders = {row["batch"]: row["path"] for row in rows if row["batch"] in batches}
    for path in folders.values():
        checked_info(parts.folder.parent / path)
    with parts.state.transaction() as connection:
        enlist(connection, [], instead_of=damaged)
        if any(part.table_name == PARAMS.name for part in damaged):
            connection.execute("DELETE FROM drawn")
            for part in intact:
                if part.table_name == PARAMS.name:
                    draw(connection, pq.read_table(parts.path(PARAMS.name, part.part), columns=["episode_id"]))
        # A fingerprint that no folder has makes all of a batch new.
        nothing = Fingerprint(info="", files={"": ""}).to_text()
        connection.executemany("UPDATE batches SET files = ? WHERE batch = ?", [(nothing, name) for name in folders])
    for path in folders.values():
        add_folder(parts, parts.folder.parent / path, path=path, batch=None, source="real", run_id=None)
    return f"Read again: {', '.join(folders) or 'nothing was left to read'}."


def _incomplete(parts: Parts, damaged: Sequence[Part], intact: Sequence[Part]) -> set[str]:
    """Batches of which the intact parts do not tell everything."""
    whole = {row["batch"]: row["episodes"] for row in parts.state.rows("SELECT batch, episodes FROM batches")}
    told = dict.fromkeys(whole, 0)
    for part in intact:
        if part.table_name == EPISODES.name:
            column = pq.read_table(parts.path(EPISODES.name, part.part), columns=["batch"])["batch"]
            for item in column.value_counts().to_pylist():
                told[item["values"]] = told.get(item["values"], 0) + item["counts"]
    missing = {name for name, count in whole.items() if told[name] != count}
    drawn = [part for part in damaged if part.table_name == PARAMS.name]
    missing |= {part.batch for part in drawn if part.batch is not None}
    return missing if all(part.batch is not None for part in drawn) else missing | set(whole)
