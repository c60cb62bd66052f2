"""Write and check the audit log of releases, the list of all actions that changed which policy is released.

The log is a hash chain: each entry contains the hash of the previous entry, so that a changed entry is detected. The
policy of every alias (such as ``champion``) follows from the log, so the table of aliases can be checked against it. A
hash chain cannot show that its last entries were removed. Therefore the hash of the newest entry is also stored in
``policies/audit-head.json``, and a copy of it may be kept in another place.
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

HEAD_FILE = "audit-head.json"  # in policies/


@dataclass(frozen=True, kw_only=True)
class AuditEntry(JsonRecord):
    """One entry of the audit log: who did which action on which policy.

    Attributes:
        seq: number of the entry, from 1.
        at: time, ISO 8601 in UTC.
        who: person or program.
        action: ``add`` (register the policy), ``gate`` (record the decision of the gate), ``alias`` (set or remove an
            alias), ``stage`` (begin or change a stage of a rollout), ``promote`` (make the policy the champion),
            ``rollback`` (return to an earlier policy) or ``abort`` (end a rollout).
        deployment: deployment whose aliases the action concerns.
        policy: NAME@VERSION of the policy.
        details: further facts; ``details["aliases"]`` maps each changed alias to its new NAME@VERSION, or to None if
            the alias was removed.
        before: hash of the previous entry; empty for the first entry.
        sha256: hash of this entry.
    """

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
    """Append an entry to the audit log within a transaction; return the entry's hash."""
    last = connection.execute("SELECT seq, sha256 FROM release_audit ORDER BY seq DESC LIMIT 1").fetchone()
    seq, before = (last[0] + 1, last[1]) if last else (1, "")
    text = dumps(dict(details))
    row = (seq, now(), who, action, deployment, policy, text, before)
    digest = _hash_entry(row)
    connection.execute("INSERT INTO release_audit VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, digest))
    return digest


def read_entries(state: WorkspaceState, deployment: str | None = None) -> list[AuditEntry]:
    """Return the entries of the audit log, oldest first; only those of ``deployment`` if it is not None."""
    rows = state.rows("SELECT * FROM release_audit ORDER BY seq")
    made = [AuditEntry(**{**row, "details": json.loads(row["details"])}) for row in rows]
    return [entry for entry in made if deployment in (None, entry.deployment)]


def resolve_aliases(log: Sequence[AuditEntry]) -> dict[tuple[str, str], str]:
    """Apply all entries of a log, given oldest first, and return the policy that each alias names.

    Keys of the result are (deployment, alias), values are NAME@VERSION.
    """
    policies: dict[tuple[str, str], str] = {}
    for entry in log:
        for alias, policy in entry.details.get("aliases", {}).items():
            policies.pop((entry.deployment, alias), None)
            if policy is not None:
                policies[entry.deployment, alias] = policy
    return policies


def find_chain_faults(state: WorkspaceState) -> list[str]:
    """Check the hash chain of the audit log; return one sentence for each fault, or an empty list."""
    faults, before = list[str](), ""
    for number, row in enumerate(state.rows("SELECT * FROM release_audit ORDER BY seq"), start=1):
        if row["seq"] != number:
            faults.append(f"Entry {number} of the audit log is missing: the next one is {row['seq']}.")
            return faults
        if row["before"] != before:
            faults.append(f"Entry {number} of the audit log does not continue the entry before it.")
        values = tuple(row[name] for name in ("seq", "at", "who", "action", "deployment", "policy", "details"))
        if _hash_entry((*values, row["before"])) != row["sha256"]:
            faults.append(f"Entry {number} of the audit log ({row['action']} {row['policy']}) was changed.")
        before = row["sha256"]
    return faults


def read_newest_entry(state: WorkspaceState) -> tuple[int, str]:
    """Return the number and the hash of the newest entry of the audit log; ``(0, "")`` if the log is empty."""
    row = state.row("SELECT seq, sha256 FROM release_audit ORDER BY seq DESC LIMIT 1")
    return (row["seq"], row["sha256"]) if row else (0, "")


def write_head_file(root: Path, state: WorkspaceState) -> None:
    """Write the number and the hash of the newest log entry to the workspace's ``policies/audit-head.json``."""
    seq, digest = read_newest_entry(state)
    write_json(root / "policies" / HEAD_FILE, {"seq": seq, "sha256": digest})


def compare_head_file(root: Path, state: WorkspaceState) -> str | None:
    """Compare the audit log with ``policies/audit-head.json``, a copy of the newest entry's number and hash.

    The copy shows whether the last entries of the log were removed, which the log alone cannot show.

    Returns:
        A sentence on the contradiction (log entries were removed or replaced, or the file is missing or damaged), or
        None.
    """
    path = root / "policies" / HEAD_FILE
    if not path.is_file():
        count = read_newest_entry(state)[0]
        return f"{path} is missing, but the audit log has {count} entries." if count else None
    try:
        recorded = read_json(path)
        seq, digest = int(recorded["seq"]), str(recorded["sha256"])
    except (InputError, KeyError, TypeError, ValueError) as error:
        return f"{path} is damaged ({error})."
    missing = explain_missing_entry(state, seq, digest)
    return missing and f"{missing} The newest entry is recorded in {path}."


def explain_missing_entry(state: WorkspaceState, seq: int, digest: str) -> str | None:
    """Return why the log has no entry with number ``seq`` and hash ``digest``, or None if it has this entry."""
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
