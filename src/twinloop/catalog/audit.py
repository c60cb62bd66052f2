"""Write and check the audit log of releases: a chain of entries, each with the hash of the one before.

The log alone determines the policy of every alias, so the table of aliases can be checked against it. A chain cannot
show that its end was removed. Therefore the hash of the newest entry is also stored in ``policies/audit-head.json``,
and may be stored elsewhere.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinloop.catalog.state import WorkspaceState, now
from twinloop.core.documents import read_json
from twinloop.core.errors import InputError
from twinloop.core.files import dumps, sha256_json, write_json
from twinloop.core.plain import JsonRecord

WITNESS = "audit-head.json"  # in policies/


@dataclass(frozen=True, kw_only=True)
class AuditEntry(JsonRecord):
    """One logged action. ``details["aliases"]`` maps each changed alias to its NAME@VERSION, None if removed."""

    seq: int
    at: str
    who: str
    action: str
    deployment: str
    policy: str
    details: Mapping[str, Any]
    before: str
    sha256: str


def append_entry(
    connection: sqlite3.Connection,
    *,
    who: str,
    action: str,
    policy: str,
    deployment: str,
    details: Mapping[str, Any],
) -> str:
    """Add an entry within a transaction; return its hash."""
    last = connection.execute("SELECT seq, sha256 FROM release_audit ORDER BY seq DESC LIMIT 1").fetchone()
    seq, before = (last[0] + 1, last[1]) if last else (1, "")
    text = dumps(dict(details))
    row = (seq, now(), who, action, deployment, policy, text, before)
    digest = _hash_entry(row)
    connection.execute("INSERT INTO release_audit VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, digest))
    return digest


def read_entries(state: WorkspaceState, deployment: str | None = None) -> list[AuditEntry]:
    """Return the log, oldest entry first; only of one deployment if it is given."""
    rows = state.rows("SELECT * FROM release_audit ORDER BY seq")
    made = [AuditEntry(**{**row, "details": json.loads(row["details"])}) for row in rows]
    return [entry for entry in made if deployment in (None, entry.deployment)]


def resolve_aliases(log: Sequence[AuditEntry]) -> dict[tuple[str, str], str]:
    """Return the NAME@VERSION of every (deployment, alias) after these entries."""
    found: dict[tuple[str, str], str] = {}
    for entry in log:
        for alias, policy in entry.details.get("aliases", {}).items():
            found.pop((entry.deployment, alias), None)
            if policy is not None:
                found[entry.deployment, alias] = policy
    return found


def find_chain_faults(state: WorkspaceState) -> list[str]:
    """Return one sentence for each fault of the chain; empty if it is intact."""
    found, before = list[str](), ""
    for number, row in enumerate(state.rows("SELECT * FROM release_audit ORDER BY seq"), start=1):
        if row["seq"] != number:
            found.append(f"Entry {number} of the audit log is missing: the next one is {row['seq']}.")
            return found
        if row["before"] != before:
            found.append(f"Entry {number} of the audit log does not continue the entry before it.")
        values = tuple(row[name] for name in ("seq", "at", "who", "action", "deployment", "policy", "details"))
        if _hash_entry((*values, row["before"])) != row["sha256"]:
            found.append(f"Entry {number} of the audit log ({row['action']} {row['policy']}) was changed.")
        before = row["sha256"]
    return found


def read_newest_entry(state: WorkspaceState) -> tuple[int, str]:
    """Return number and hash of the newest entry; 0 and "" for an empty log."""
    row = state.row("SELECT seq, sha256 FROM release_audit ORDER BY seq DESC LIMIT 1")
    return (row["seq"], row["sha256"]) if row else (0, "")


def write_head_file(root: Path, state: WorkspaceState) -> None:
    """Write number and hash of the newest entry to ``policies/audit-head.json`` of a workspace."""
    seq, digest = read_newest_entry(state)
    write_json(root / "policies" / WITNESS, {"seq": seq, "sha256": digest})


def compare_head_file(root: Path, state: WorkspaceState) -> str | None:
    """Return how the log contradicts the stored newest entry (removed or replaced entries), or None."""
    path = root / "policies" / WITNESS
    if not path.is_file():
        count = read_newest_entry(state)[0]
        return f"{path} is missing, but the audit log has {count} entries." if count else None
    try:
        said = read_json(path)
        seq, digest = int(said["seq"]), str(said["sha256"])
    except (InputError, KeyError, TypeError, ValueError) as error:
        return f"{path} is damaged ({error})."
    lost = explain_missing_entry(state, seq, digest)
    return lost and f"{lost} The newest entry is recorded in {path}."


def explain_missing_entry(state: WorkspaceState, seq: int, digest: str) -> str | None:
    """Return why the given entry is not in the log; None if it is there."""
    if seq == 0 and not digest:
        return None
    row = state.row("SELECT sha256 FROM release_audit WHERE seq = ?", (seq,))
    if row is None:
        return f"The audit log had {seq} entries and has {read_newest_entry(state)[0]}: its end was removed."
    if row["sha256"] != digest:
        return f"Entry {seq} of the audit log is not the recorded one: the log was rewritten."
    return None


def _hash_entry(row: Sequence[Any]) -> str:
    return sha256_json(list(row))
