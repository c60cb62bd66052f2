"""The audit log of releases: a chain of entries, each with the hash of the one before.

What an alias stands for follows from the log alone (`standing`), so that the table of aliases can be checked against
it. A chain cannot tell that its own end was cut off; for that, the hash of the newest entry is kept in a file beside
the policies (`witness`), and may be noted anywhere else.
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
    """One thing that was done. ``details["aliases"]`` is what it changed: alias to NAME@VERSION, or None."""

    seq: int
    at: str
    who: str
    action: str
    deployment: str
    policy: str
    details: Mapping[str, Any]
    before: str
    sha256: str


def append(
    connection: sqlite3.Connection,
    *,
    who: str,
    action: str,
    policy: str,
    deployment: str,
    details: Mapping[str, Any],
) -> str:
    """Add an entry within a transaction; returns its hash."""
    last = connection.execute("SELECT seq, sha256 FROM release_audit ORDER BY seq DESC LIMIT 1").fetchone()
    seq, before = (last[0] + 1, last[1]) if last else (1, "")
    text = dumps(dict(details))
    row = (seq, now(), who, action, deployment, policy, text, before)
    digest = _hash(row)
    connection.execute("INSERT INTO release_audit VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, digest))
    return digest


def entries(state: WorkspaceState, deployment: str | None = None) -> list[AuditEntry]:
    """The log, oldest first; of one deployment, if one is named."""
    rows = state.rows("SELECT * FROM release_audit ORDER BY seq")
    made = [AuditEntry(**{**row, "details": json.loads(row["details"])}) for row in rows]
    return [entry for entry in made if deployment in (None, entry.deployment)]


def standing(log: Sequence[AuditEntry]) -> dict[tuple[str, str], str]:
    """What every alias stands for after these entries: (deployment, alias) to NAME@VERSION."""
    found: dict[tuple[str, str], str] = {}
    for entry in log:
        for alias, policy in entry.details.get("aliases", {}).items():
            found.pop((entry.deployment, alias), None)
            if policy is not None:
                found[entry.deployment, alias] = policy
    return found


def faults(state: WorkspaceState) -> list[str]:
    """What is wrong with the chain, a sentence each; empty where it is whole."""
    found, before = list[str](), ""
    for number, row in enumerate(state.rows("SELECT * FROM release_audit ORDER BY seq"), start=1):
        if row["seq"] != number:
            found.append(f"Entry {number} of the audit log is missing: the next one is {row['seq']}.")
            return found
        if row["before"] != before:
            found.append(f"Entry {number} of the audit log does not follow on the one before it.")
        values = tuple(row[name] for name in ("seq", "at", "who", "action", "deployment", "policy", "details"))
        if _hash((*values, row["before"])) != row["sha256"]:
            found.append(f"Entry {number} of the audit log ({row['action']} {row['policy']}) was changed.")
        before = row["sha256"]
    return found


def head(state: WorkspaceState) -> tuple[int, str]:
    """Number and hash of the newest entry; 0 and "" where there is none."""
    row = state.row("SELECT seq, sha256 FROM release_audit ORDER BY seq DESC LIMIT 1")
    return (row["seq"], row["sha256"]) if row else (0, "")


def witness(root: Path, state: WorkspaceState) -> None:
    """Write down what the newest entry is, in ``policies/`` of a workspace."""
    seq, digest = head(state)
    write_json(root / "policies" / WITNESS, {"seq": seq, "sha256": digest})


def unwitnessed(root: Path, state: WorkspaceState) -> str | None:
    """What is wrong with the log against its witness: entries that were there are not, or others are."""
    path = root / "policies" / WITNESS
    if not path.is_file():
        count = head(state)[0]
        return f"{path} is missing, and the audit log has {count} entries." if count else None
    try:
        said = read_json(path)
        seq, digest = int(said["seq"]), str(said["sha256"])
    except (InputError, KeyError, TypeError, ValueError) as error:
        return f"{path} is damaged ({error})."
    lost = missing_head(state, seq, digest)
    return lost and f"{lost} The head was noted in {path}."


def missing_head(state: WorkspaceState, seq: int, digest: str) -> str | None:
    """Why an entry that was noted elsewhere is not in the log; None where it is."""
    if seq == 0 and not digest:
        return None
    row = state.row("SELECT sha256 FROM release_audit WHERE seq = ?", (seq,))
    if row is None:
        return f"The audit log had {seq} entries and has {head(state)[0]}: its end was cut off."
    if row["sha256"] != digest:
        return f"Entry {seq} of the audit log is not the one that was noted: the log was written anew."
    return None


def _hash(row: Sequence[Any]) -> str:
    return sha256_json(list(row))
