"""Whether a workspace is whole: every hash and every index, and what can be done where one is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from twinloop.catalog.batch_commit import key_of
from twinloop.catalog.fsck_batches import check_batch
from twinloop.catalog.kept import damaged
from twinloop.catalog.parts import PATTERN, Part, Parts
from twinloop.catalog.schema import EPISODES, PARAMS, TABLES
from twinloop.core.files import sha256_file

SWEPT = "swept"  # within catalog/: what no transaction lists, kept until a person removes it
Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something wrong: what kind, where, what it is, what to do, and what `fsck --repair` can do about it."""

    kind: str
    where: str
    what: str
    remedy: str
    repair: str = ""
    batch: str | None = None


def check_parts(parts: Parts) -> Iterator[Finding]:
    """Every part against the list of parts, its hash and its own footer; files that nothing lists."""
    for table in TABLES:
        listed = {part.part: part for part in parts.listed(table)}
        for part in listed.values():
            yield from _check_part(parts, part)
        yield from _unlisted(parts, table, set(listed))


def check_kept(parts: Parts) -> Iterator[Finding]:
    """What was kept for quick opening against the hash in its name."""
    for path in damaged(parts.folder):
        where = path.relative_to(parts.folder.parent).as_posix()
        yield Finding(
            kind="kept",
            where=where,
            what=f"{where}, which makes opening quick, has other bytes than those written.",
            remedy="Nothing is lost: --repair removes it, and the next query makes it again.",
            repair="forget",
        )


def check_index(parts: Parts) -> Iterator[Finding]:
    """Whether what SQLite says of places is what the parts say."""
    state, episodes = parts.state, parts.listed(EPISODES.name)
    try:
        tables = [
            pq.read_table(parts.path(EPISODES.name, part.part), columns=["batch", "episode_index", "episode_id"])
            for part in episodes
        ]
    except (pa.ArrowException, OSError):
        return  # told of already, by name
    rows = pa.concat_tables(tables) if tables else EPISODES.schema.empty_table()
    for row in state.rows("SELECT batch, episodes FROM batches ORDER BY batch"):
        mine = rows.filter(pc.equal(rows["batch"], row["batch"]))
        held = state.rows("SELECT episode_id, episode_index FROM places WHERE batch = ?", (row["batch"],))
        said = {(item["episode_id"], item["episode_index"]) for item in held}
        meant = zip(mine["episode_id"].to_pylist(), mine["episode_index"].to_pylist(), strict=True)
        if {(key_of(name), index) for name, index in meant} != said or len(mine) != row["episodes"]:
            yield Finding(
                kind="index",
                where=f"batch {row['batch']}",
                what=f"It has {row['episodes']} episodes; the parts tell of {len(mine)}, the index of {len(said)}.",
                remedy="Make it again from the parts, or where they lack some, from the folder: --repair.",
                repair="rebuild" if len(mine) == row["episodes"] else "reread",
                batch=row["batch"],
            )


def check_batches(parts: Parts, *, deep: bool, note: Report = lambda _sentence: None) -> Iterator[Finding]:
    """Every dataset folder against what it was when it was added; ``note`` takes what was done meanwhile."""
    for row in parts.state.rows("SELECT * FROM batches ORDER BY added, batch"):
        for what, repair in check_batch(parts, row, note, deep=deep):
            yield Finding(
                kind="dataset",
                where=f"batch {row['batch']} at {row['path']}",
                what=what,
                remedy=_REMEDIES[repair].format(path=row["path"]),
                repair=repair if repair in ("find", "add") else "",
                batch=row["batch"],
            )


_REMEDIES = {
    "find": "Move it back, or `twinloop add` it where it lies now; --repair looks for it in the workspace.",
    "add": "Where that was meant, `twinloop add {path}`; --repair does it.",
    "meant": "Put a copy of the file back. Where the change was meant: `twinloop add {path}`.",
    "copy": "Put a copy of the file back, or export the dataset again and `twinloop add {path}`.",
}


def part_is_damaged(parts: Parts, part: Part) -> bool:
    """Whether a part is not the file that was committed."""
    return next(_check_part(parts, part), None) is not None


def _check_part(parts: Parts, part: Part) -> Iterator[Finding]:
    path = parts.path(part.table_name, part.part)
    name = f"catalog/{part.table_name}/{part.part}"
    if not path.is_file():
        yield _lost(name, part, f"{name} ({part.rows} rows) is missing.")
    elif path.stat().st_size != part.bytes:
        yield _lost(name, part, f"{name} has {path.stat().st_size} bytes; {part.bytes} were committed.")
    elif sha256_file(path) != part.sha256:
        yield _lost(name, part, f"{name} has other bytes than those committed ({part.rows} rows).")


def _lost(name: str, part: Part, what: str) -> Finding:
    joined = part.table_name in (EPISODES.name, PARAMS.name) and part.run_id is None
    if joined or part.batch is not None:
        whose = f"batch {part.batch}" if part.batch else "several batches"
        remedy = f"Its rows come from {whose}: --repair reads them again."
        return Finding(kind="part", where=name, what=what, remedy=remedy, repair="reread", batch=part.batch)
    return Finding(
        kind="part",
        where=name,
        what=what,
        remedy=f"Put a copy of the file back, or make its rows again ({part.table_name} of run {part.run_id}).",
    )


def _unlisted(parts: Parts, table: str, listed: set[str]) -> Iterator[Finding]:
    retired = {row["path"] for row in parts.state.rows("SELECT path FROM retired")}
    folder = parts.folder / table
    for path in sorted({*folder.glob(PATTERN), *folder.glob(".part-*")}):
        if path.name not in listed and f"{table}/{path.name}" not in retired:
            yield Finding(
                kind="leftover",
                where=f"catalog/{table}/{path.name}",
                what=f"catalog/{table}/{path.name} is in no commit: a writer was ended, or writes right now.",
                remedy=f"Nothing needs it; --repair moves it to catalog/{SWEPT}.",
                repair="sweep",
            )
