"""Check ``state.sqlite`` for `fsck`: its pages, its newest commit, its rows, and the content of some tables.

The content checks find changed dataset versions and policy versions, a damaged audit log of releases, Parquet files
that are not in the order of their commits, and recorded runs that contain credentials.
"""

from __future__ import annotations

import json
import re
import sqlite3
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from twinloop.catalog import audit
from twinloop.catalog.dataset_versions import FOLDER, hash_episode_list, read_episode_list
from twinloop.catalog.fsck import FsckFinding
from twinloop.catalog.parts import PartStore, ulid
from twinloop.catalog.querying import redact_run
from twinloop.catalog.schema import EVALUATIONS, SCORES
from twinloop.catalog.state import NewerStateError, UnreachableStateError, WorkspaceState
from twinloop.catalog.state_digests import count_file, find_changed_tables, read_count, read_hash
from twinloop.core.errors import DatasetError
from twinloop.core.files import sha256_file

# The fields of SQLite's header that never change in our files (sqlite.org/fileformat.html): offset, format, value.
_HEADER = ((0, "16s", (b"SQLite format 3\0",)), (18, "6B", (2, 2, 0, 64, 32, 32)), (44, ">3I", (4, 0, 0)),
           (56, ">I", (1,)), (64, ">2I20s", (0, 0, bytes(20))))  # fmt: skip


def check_state(path: Path) -> list[FsckFinding]:
    """Return the faults that prevent SQLite from reading all pages and all commits of ``state.sqlite``.

    Raises:
        NewerStateError: If a newer version of twinloop wrote the file; then it must not be checked or rebuilt.
        UnreachableStateError: If the disk is full or refuses access, which is not a fault of the file.
    """
    try:
        state = WorkspaceState(path)
        try:
            answer = [row["integrity_check"] for row in state.rows("PRAGMA integrity_check(5)")]
            noted = read_count(path)
            lost = 0 if noted is None else noted - state.counter("state")
        finally:
            state.close()
    except (NewerStateError, UnreachableStateError):
        raise
    except DatasetError as error:
        return [_make_state_finding(path, str(error))]
    if answer != ["ok"]:
        return [_make_state_finding(path, f"{path} is damaged: {'; '.join(answer)}.")]
    if not _has_our_header(path):
        return [_make_state_finding(path, f"{path} is damaged: its header is not one that twinloop writes.")]
    if lost > 0:
        what = f"{path} lacks its last {lost} commits: it is an older copy, or its write-ahead log was damaged."
        return [_make_state_finding(path, what)]
    return []


def check_rows(state: WorkspaceState) -> Iterator[FsckFinding]:
    """Find tables of ``state.sqlite`` whose rows were changed outside of a commit, and other changes of the file.

    Also yield a finding if the file ``state.sqlite.commits``, which has the number of the newest commit, is missing or
    damaged.
    """
    with state.snapshot() as connection:
        changed = _find_changed_tables(connection)
    for table in changed:
        yield FsckFinding(
            kind="rows",
            location=f"{state.path.name}: {table}",
            problem=f"{state.path}: rows of {table} differ from the committed ones.",
            remedy=f"Restore a copy of {state.path.name}. --repair keeps the present rows, and the old file.",
            repair="rebuild",
        )
    digest = read_hash(state.path, state.counter("state"))
    if not changed and digest not in (None, sha256_file(state.path)):
        yield FsckFinding(
            kind="bytes",
            location=state.path.name,
            problem=f"{state.path} has other bytes than after its last commit. All of its rows are intact.",
            remedy="No data is lost: SQLite does not use these bytes. --repair records their present state.",
            repair="count",
        )
    name = count_file(state.path)
    if state.row("SELECT 1 FROM sqlite_master WHERE name = 'row_digests'") and read_count(state.path) is None:
        yield FsckFinding(
            kind="count",
            location=name.name,
            problem=f"{name} is missing or damaged. It holds the number of the newest commit.",
            remedy="No data is lost: --repair and the next commit write it again.",
            repair="count",
        )


def _find_changed_tables(connection: sqlite3.Connection) -> list[str]:
    try:
        return find_changed_tables(connection)
    except (sqlite3.Error, OverflowError):
        return ["its tables"]


def _has_our_header(path: Path) -> bool:
    with path.open("rb") as file:
        header = file.read(100)
    return len(header) == 100 and all(struct.unpack_from(form, header, at) == value for at, form, value in _HEADER)


def _make_state_finding(path: Path, what: str) -> FsckFinding:
    return FsckFinding(
        kind="state",
        location=path.name,
        problem=what,
        remedy=f"Restore a copy of {path.name}, or rebuild it from the parts: `twinloop fsck --repair`.",
        repair="rebuild",
    )


def check_dataset_versions(catalog: Path, state: WorkspaceState) -> Iterator[FsckFinding]:
    """Check the episode list of each dataset version, and find records that refer to missing rows.

    These are policies whose training dataset has no row, and ended labels (rows of ``label_ends``) that are not in the
    label history.
    """
    known = set[str]()
    for row in state.rows("SELECT name, version, hash, sha256, episodes FROM datasets ORDER BY name, version"):
        known.add(row["hash"])
        where = f"dataset {row['name']}@{row['version']}"
        try:
            ids = read_episode_list(catalog, row["hash"], row["sha256"])
        except DatasetError as error:
            yield FsckFinding(kind="frozen", location=where, problem=str(error), remedy=_REMEDY)
            continue
        if hash_episode_list(ids) != row["hash"] or len(ids) != row["episodes"]:
            what = f"Its row has {row['episodes']} episodes and another hash; its list has {len(ids)}."
            yield FsckFinding(kind="frozen", location=where, problem=what, remedy="Restore a copy of state.sqlite.")
    for row in state.rows("SELECT policy, dataset FROM policy_datasets ORDER BY policy, dataset"):
        if row["dataset"] not in known:
            yield FsckFinding(
                kind="frozen",
                location=f"policy {row['policy'][:16]}",
                problem=f"It was trained on a dataset {row['dataset'][:16]} that has no row.",
                remedy="Restore a copy of state.sqlite.",
            )
    lost = state.rows("SELECT seq FROM label_ends WHERE seq NOT IN (SELECT seq FROM label_history)")
    if lost:
        yield FsckFinding(
            kind="labels",
            location="state.sqlite",
            problem=f"{len(lost)} ended labels are not in the history, the first has number {lost[0]['seq']}.",
            remedy="Restore a copy of state.sqlite.",
        )


_REMEDY = (
    f"Restore a copy of the file in catalog/{FOLDER}. If the SQL of the dataset still selects the same, freezing "
    "it again writes that file."
)


_BACK = "Restore a copy of state.sqlite and of policies/. Anyone who can write to these files can change them."


def check_release(root: Path, state: WorkspaceState) -> Iterator[FsckFinding]:
    """Check the registry of policy versions, the audit log, and the aliases that must follow from the log.

    Yield a fault for each changed policy version, each folder that no row lists, each changed log entry, and each alias
    with another policy than in the log.
    """
    yield from _check_policy_versions(root, state)
    faults = audit.find_chain_faults(state)
    head = audit.compare_head_file(root, state)
    for what in [*faults, *([head] if head else [])]:
        yield FsckFinding(kind="audit", location="release_audit", problem=what, remedy=_BACK)
    logged_policies = audit.resolve_aliases(audit.read_entries(state)) if not faults else {}
    rows = state.rows("SELECT deployment, alias, policy FROM policy_aliases")
    registered_policies = {(row["deployment"], row["alias"]): row["policy"] for row in rows}
    for key in sorted(logged_policies.keys() | registered_policies.keys()) if not faults else []:
        if logged_policies.get(key) != registered_policies.get(key):
            deployment, alias = key
            registered, logged = _format_policy(registered_policies.get(key)), _format_policy(logged_policies.get(key))
            what = f"The {alias} of {deployment} is {registered}, but the audit log has {logged}."
            yield FsckFinding(kind="audit", location=f"policy_aliases {alias}", problem=what, remedy=_BACK)


def _check_policy_versions(root: Path, state: WorkspaceState) -> Iterator[FsckFinding]:
    known = set[Path]()
    for row in state.rows("SELECT name, version, record FROM policy_versions ORDER BY name, version"):
        folder = root / "policies" / row["name"] / str(row["version"])
        known.add(folder)
        wrong = describe_changed_files(folder, json.loads(row["record"])["files"])
        if wrong:
            yield FsckFinding(
                kind="policy",
                location=folder.relative_to(root).as_posix(),
                problem=f"{row['name']}@{row['version']} was changed after it was added: {wrong}.",
                remedy="Restore a copy of these files, or add the same policy again under its name.",
            )
    for folder in sorted((root / "policies").glob("[!.]*/*")):
        if folder.is_dir() and folder not in known and is_registry_entry(folder.name):
            where = folder.relative_to(root).as_posix()
            yield FsckFinding(
                kind="leftover",
                location=where,
                problem=f"{where} is in no row of the registry: a process was interrupted, or is still adding it.",
                remedy=f"It is not needed. Remove it: rm -r {where}",
            )


# Versions, unfinished copies with their locks, and folders that a version replaced.
_REGISTRY_ENTRY = re.compile(r"[1-9][0-9]*|\.adding-\w+|\.\.adding-\w+\.lock|\.left-\w+")


def is_registry_entry(name: str) -> bool:
    """Return whether a file or folder in ``policies/NAME`` is the registry's own, such as the version ``1``.

    A trained policy may be in the same folder: ``twinloop train --output policies/NAME`` puts it there.
    """
    return _REGISTRY_ENTRY.fullmatch(name) is not None


def describe_changed_files(folder: Path, files: Mapping[str, str]) -> str:
    """Describe the files that were removed, added or changed in the folder of a policy version.

    Args:
        folder: the folder.
        files: the recorded SHA-256 of each file, by its path in the folder.

    Returns:
        A text such as "config.json is missing", or an empty text if nothing has changed.
    """
    if not folder.is_dir():
        return "the folder is missing"
    present = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    wrong = [f"{name} is missing" for name in files if name not in present]
    wrong += [f"{name} was added" for name in present if name not in files]
    known = [(name, digest) for name, digest in files.items() if name in present]
    return "; ".join(
        wrong + [f"{name} has other bytes" for name, digest in known if sha256_file(present[name]) != digest]
    )


def _format_policy(policy: str | None) -> str:
    return policy or "not set"


_ORDERED = (SCORES.name, EVALUATIONS.name)  # tables whose views show the rows that were committed last


def check_order(parts: PartStore) -> Iterator[FsckFinding]:
    """Find Parquet files that are listed before files of an earlier commit, so that old rows hide newer ones.

    Earlier versions of twinloop ordered the files by the clocks of the writing machines, which may be wrong.
    """
    for table in _ORDERED:
        misplaced = _find_misplaced_parts(parts.state, table)
        if misplaced:
            yield FsckFinding(
                kind="order",
                location=f"catalog/{table}",
                problem=f"{len(misplaced)} parts of {table} come before parts that were committed earlier: a clock was "
                "ahead when they were written.",
                remedy="--repair puts them into the order of their commits.",
                repair="reorder",
            )


def reorder_parts(parts: PartStore) -> str:
    """Put the Parquet files that `check_order` finds into the order of their commits; return a sentence on it."""
    moved = 0
    with parts.state.transaction() as connection:
        for table in _ORDERED:
            last = connection.execute("SELECT max(position) FROM parts WHERE table_name = ?", (table,)).fetchone()[0]
            for part in _find_misplaced_parts(parts.state, table):
                last, moved = ulid(after=last), moved + 1
                connection.execute("UPDATE parts SET position = ? WHERE part = ?", (last, part))
        connection.execute("UPDATE counters SET value = value + 1 WHERE name = 'parts'")
    return f"{moved} parts were put into the order of their commits."


def check_secrets(state: WorkspaceState) -> Iterator[FsckFinding]:
    """Find recorded runs whose arguments or results contain credentials, which earlier versions did not remove."""
    found = [row["run_id"] for row in state.rows("SELECT * FROM runs ORDER BY rowid") if redact_run(row) != row]
    if found:
        yield FsckFinding(
            kind="secret",
            location="runs of state.sqlite",
            problem=f"{len(found)} runs have credentials in their records, e.g. {found[0]}.",
            remedy="--repair removes them from the records. Change those credentials: copies may have them.",
            repair="redact",
        )


def remove_secrets(state: WorkspaceState) -> str:
    """Remove credentials from the recorded runs in ``state.sqlite``; return a sentence on the result.

    Pages of the file that SQLite no longer uses still contain the old text, so they are removed too (``VACUUM``).
    """
    changed = 0
    with state.transaction() as connection:
        for row in state.rows("SELECT * FROM runs"):
            clean = redact_run(row)
            if clean != row:
                changed += 1
                connection.execute(
                    "UPDATE runs SET folder = :folder, arguments = :arguments, result = :result WHERE run_id = :run_id",
                    clean,
                )
    state.vacuum()  # pages that SQLite no longer uses still hold the old bytes
    return f"{changed} records of runs were cleaned. Change those credentials."


def _find_misplaced_parts(state: WorkspaceState, table: str) -> list[str]:
    """Return the Parquet files of a table that sort before a file of an earlier commit, in the order of their commits.

    The column ``position`` of the table ``parts`` sorts the files. The row numbers of SQLite give the order of the
    commits, so the position must increase from row to row. Joined or rewritten files are not tested, because they have
    the position of the files that they replaced.
    """
    found, last = list[str](), ""
    for row in state.rows("SELECT part, position FROM parts WHERE table_name = ? ORDER BY rowid", (table,)):
        if row["part"] != f"part-{row['position']}.parquet":
            continue
        if row["position"] < last:
            found.append(row["part"])
        last = max(last, row["position"])
    return found
