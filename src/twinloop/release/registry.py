"""Keep immutable versions of policies in a workspace, with aliases that can move.

Every change is one SQLite transaction. The files of a version are on the disk before its row, and an alias moves
together with the log entry that gives the reason. A process that is ended therefore leaves the state before or after
the change, and two processes cannot change the state at the same time.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinloop.catalog import Workspace
from twinloop.catalog import audit as log
from twinloop.catalog.fsck_state import describe_changed_files
from twinloop.catalog.parts import flush_folder, ulid
from twinloop.catalog.state import now
from twinloop.core.decision import GateDecision
from twinloop.core.errors import DatasetError, InputError
from twinloop.core.evaluation import Evaluation
from twinloop.core.extension import PICKLE_SUFFIXES
from twinloop.core.files import dumps, sha256_file, sha256_json
from twinloop.dataset.storage.snapshot import hold_folder_lock
from twinloop.release.version import (
    MAIN,
    Alias,
    PolicyVersion,
    check_name,
    compute_policy_hash,
    describe_version,
    format_record,
    get_current_user,
    list_aliases,
    list_versions,
    resolve_version,
)

if TYPE_CHECKING:
    from twinloop.policies import Policy


STAGED = ".adding-"


def hash_files(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file in a folder, by its path relative to the folder.

    Raises:
        InputError: the folder is missing or empty, a link leads out of it, or a file is a pickle; names it.
    """
    if not folder.is_dir():
        raise InputError(
            f"{folder} is not a folder. Give the folder of a saved policy: config.json, model.safetensors."
        )
    root, found = folder.resolve(), dict[str, str]()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.resolve().is_relative_to(root):
            raise InputError(f"{path} is a link to a file outside the policy's folder. Put the file itself there.")
        if path.suffix in PICKLE_SUFFIXES:
            raise InputError(f"{path} may run code when it is opened. Save weights as safetensors and remove it.")
        if path.is_file():
            found[name] = sha256_file(path)
    if not found:
        raise InputError(f"{folder} is empty. Give the folder of a saved policy: config.json, model.safetensors.")
    return found


def combine_file_hashes(files: Mapping[str, str]) -> str:
    """Return the hash of a folder from the hashes of its files, as `core.files.sha256_tree` computes it."""
    return sha256_json(sorted(files.items()))


@contextlib.contextmanager
def stage_copy(folder: Path, home: Path, files: Mapping[str, str]) -> Iterator[Path]:
    """Copy a folder, read-only and flushed to the disk, next to its final place; the block must `place_copy` it.

    A copy that was not placed is removed when the block ends.

    Args:
        folder: folder to copy.
        home: parent folder of the copy.
        files: result of `hash_files`; the copy must have the same hashes.

    Raises:
        DatasetError: the disk is full, or the folder changed while it was copied; no files remain.
    """
    copy = home / f"{STAGED}{ulid()}"
    with hold_folder_lock(copy):
        try:
            _copy(folder, copy, files)
            yield copy
        finally:
            _discard(copy)


def _copy(folder: Path, copy: Path, files: Mapping[str, str]) -> None:
    try:
        for name in files:
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, target)
            flush_folder(target)
        changed = describe_changed_files(copy, files)
        if changed:
            raise DatasetError(
                f"{folder} changed while it was copied: {changed}. Wait until it is complete, then add it again."
            )
        _protect(copy)
    except OSError as error:
        raise DatasetError(
            f"{copy.parent}: a copy of {folder} could not be written ({error.strerror}). Nothing was added."
        ) from error


def remove_leftovers(home: Path) -> None:
    """Remove copies and locks of ended processes from a folder. Those of a running process are locked and remain."""
    copies = {path.name for path in home.glob(f"{STAGED}*")}
    copies |= {path.name[1 : -len(".lock")] for path in home.glob(f".{STAGED}*.lock")}
    for name in copies:
        with contextlib.suppress(DatasetError), hold_folder_lock(home / name):
            _discard(home / name)


def place_copy(copy: Path, target: Path) -> None:
    """Move a copy to its final place, so that it remains there even if this process ends."""
    copy.replace(target)
    flush_folder(target.parent)


def _discard(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")] if folder.is_dir() else []:
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder, ignore_errors=True)


def _protect(folder: Path) -> None:
    """Make all files and folders read-only and flush them to the disk."""
    below = sorted(folder.rglob("*"), reverse=True)
    for path in below:
        path.chmod(0o555 if path.is_dir() else 0o444)
    for path in [*[path for path in below if path.is_dir()], folder]:
        flush_folder(path)
    folder.chmod(0o555)


EVIDENCE = ".evidence"  # in policies/: evaluations on which decisions are based, by hash


class PolicyRegistry:
    """Registry of the policies of a workspace.

    Args:
        workspace: it must be open while the registry is used.
        deployment: owner of the aliases; a workspace may serve several robots or tasks.
        who: person recorded for changes through this object; by default the user of the process.
    """

    def __init__(self, workspace: Workspace, *, deployment: str = MAIN, who: str | None = None) -> None:
        self.workspace, self.deployment, self.who = workspace, deployment, who or get_current_user()
        self.home = workspace.root / "policies"

    def add(
        self,
        folder: Path | str,
        evidence: Sequence[Evaluation] = (),
        *,
        name: str | None = None,
        policy: str | None = None,
    ) -> str:
        """Copy a saved policy into the registry. If the same files exist under this name, return their version.

        Args:
            folder: folder with config.json, model.safetensors, README.md and any other files of the policy.
            evidence: evaluations of the policy, stored with it.
            name: name of the policy; by default the name of the folder.
            policy: hash of its weights and settings; by default computed by opening the policy.

        Returns:
            NAME@VERSION.

        Raises:
            InputError: the folder does not exist, the name is invalid, a file is a pickle, or the policy cannot be
                opened.
            DatasetError: the disk is full or the workspace cannot be written; nothing was added.
        """
        folder = Path(folder)
        name = check_name(name or folder.resolve().name)
        files = hash_files(folder)
        digest = combine_file_hashes(files)
        remove_leftovers(self.home / name)
        known = self._find_same_version(name, digest)
        if known is not None:
            self._repair_copy(known, folder, files)
            return known.reference
        policy = compute_policy_hash(folder) if policy is None else policy
        made = describe_version(folder, files, self.workspace, policy)
        made["evaluations"] = [self.store_evaluation(one) for one in evidence]
        with stage_copy(folder, self.home / name, files) as copy, self.open_transaction() as connection:
            version = self._get_next_number(connection, name, digest)
            if version is not None:
                self._insert_version(
                    connection, copy, (name, version, digest, policy, format_record(made), now(), self.who)
                )
        found = self._find_same_version(name, digest)
        assert found is not None  # noqa: S101 - it was entered, or another process had entered it
        return found.reference

    def version(self, reference: str) -> PolicyVersion:
        """Return the record of a version, by alias, NAME@VERSION, NAME or the beginning of its hash.

        Raises:
            UnknownNameError: no version has this reference.
        """
        return resolve_version(self.workspace.state, reference, self.deployment)

    def folder(self, reference: str) -> Path:
        """Return the folder of a version after checking that every file is unchanged since it was added.

        Raises:
            UnknownNameError: no version has this reference.
            DatasetError: a file is missing, changed or new; names it.
        """
        version = self.version(reference)
        folder = self.home / version.name / str(version.version)
        wrong = describe_changed_files(folder, version.record["files"])
        if wrong:
            raise DatasetError(
                f"{version.reference} in {folder} has changed since it was added: {wrong}. Restore these files from a "
                "copy, or release another version: `twinloop policies list`."
            )
        return folder

    def load(self, reference: str) -> Policy:
        """Return the policy of a version, ready to act; raises the errors of `folder` and `open_policy`."""
        from twinloop.policies import open_policy

        return open_policy(self.folder(reference))

    def versions(self) -> list[PolicyVersion]:
        """Return all versions, oldest first."""
        return list_versions(self.workspace.state)

    def aliases(self) -> dict[str, str]:
        """Return the version reference of each alias of this deployment."""
        return list_aliases(self.workspace.state, self.deployment)

    def audit(self) -> list[log.AuditEntry]:
        """Return the log of this deployment, oldest first."""
        return log.read_entries(self.workspace.state, self.deployment)

    def decisions(self, reference: str) -> list[GateDecision]:
        """Return the gate's decisions about a version in this deployment, oldest first."""
        rows = self.workspace.state.rows(
            "SELECT record FROM gate_decisions WHERE deployment = ? AND candidate = ? ORDER BY rowid",
            (self.deployment, self.version(reference).reference),
        )
        return [GateDecision.from_json(json.loads(row["record"])) for row in rows]

    def record_decision(self, decision: GateDecision) -> str:
        """Store a decision of the gate and return its hash. If it passed, the version becomes the ``candidate``.

        Raises:
            UnknownNameError: the version of the decision is not in the registry.
        """
        candidate = self.version(decision.candidate).reference
        champion = self.version(decision.champion).reference if decision.champion else None
        values = (
            *(decision.hash, self.deployment, candidate, champion, decision.passed, decision.looks),
            *(dumps(list(decision.evidence)), dumps(decision.to_json()), now()),
        )
        with self.open_transaction() as connection:
            if connection.execute("SELECT 1 FROM gate_decisions WHERE decision = ?", values[:1]).fetchone():
                return decision.hash
            connection.execute("INSERT INTO gate_decisions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
            changed = {"candidate": candidate} if decision.passed else {}
            details = {"passed": decision.passed, "decision": decision.hash, "reasons": list(decision.reasons)}
            self.record_change(connection, "gate", candidate, changed, {**details, "evidence": list(decision.evidence)})
        return decision.hash

    def move_alias(self, alias: Alias, reference: str | None, *, reason: str) -> None:
        """Move or remove an alias other than ``champion`` and ``previous``, which promotion and rollback move.

        Raises:
            InputError: the alias is champion or previous, or no reason is given.
        """
        if alias in ("champion", "previous"):
            raise InputError(
                f"The alias {alias} is moved only by `twinloop promote` and `twinloop rollback`, which record the "
                "reason."
            )
        if not reason:
            raise InputError(f"No reason is given for moving the alias {alias}. Give one: the log records it.")
        held = self.aliases().get(alias)
        policy = held if reference is None else self.version(reference).reference
        if policy is None:
            return
        with self.open_transaction() as connection:
            moved = {alias: None if reference is None else policy}
            self.record_change(connection, "alias", policy, moved, {"reason": reason})

    def store_evaluation(self, evaluation: Evaluation) -> dict[str, Any]:
        """Store an evaluation in the registry by its hash and return its summary."""
        folder = self.home / EVIDENCE / evaluation.hash
        if not (folder / "evaluation.json").is_file():
            evaluation.write(folder)
        won, tried = evaluation.counts()
        facts = {name: getattr(evaluation, name) for name in ("suite", "domain", "twin", "twin_hash", "task")}
        return {"hash": evaluation.hash, **facts, "successes": won, "trials": tried}

    @contextlib.contextmanager
    def open_transaction(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction that may add to the log, and store its newest entry's hash in a file.

        Raises:
            DatasetError: the workspace cannot be written, or another process was writing for too long.
        """
        state, root = self.workspace.state, self.workspace.root
        if not log.read_newest_entry(state)[0]:
            log.write_head_file(root, state)
        with state.transaction() as connection:
            yield connection
        log.write_head_file(root, state)

    def record_change(
        self,
        connection: sqlite3.Connection,
        action: str,
        policy: str,
        moved: Mapping[str, str | None],
        details: Mapping[str, Any],
    ) -> None:
        """Move aliases and record this in the log, within a transaction."""
        for alias, target in moved.items():
            if target is None:
                connection.execute(
                    "DELETE FROM policy_aliases WHERE deployment = ? AND alias = ?", (self.deployment, alias)
                )
            else:
                connection.execute(
                    "INSERT OR REPLACE INTO policy_aliases VALUES (?, ?, ?, ?)", (self.deployment, alias, target, now())
                )
        given = {**details, "aliases": dict(moved)}
        log.append_entry(
            connection, who=self.who, action=action, policy=policy, deployment=self.deployment, details=given
        )

    def _find_same_version(self, name: str, digest: str) -> PolicyVersion | None:
        """Return the version of this name with exactly these files, or None."""
        return next((one for one in self.versions() if one.name == name and one.hash == digest), None)

    def _repair_copy(self, version: PolicyVersion, folder: Path, files: Mapping[str, str]) -> None:
        """Replace a damaged copy in the registry by the same files."""
        target = self.home / version.name / str(version.version)
        if describe_changed_files(target, version.record["files"]):
            with stage_copy(folder, target.parent, files) as copy, self.workspace.state.transaction():
                _move_aside(target)
                place_copy(copy, target)

    def _get_next_number(self, connection: sqlite3.Connection, name: str, digest: str) -> int | None:
        """Return the next version number of a name; None if another process has added the same files meanwhile."""
        rows = connection.execute("SELECT version, hash FROM policy_versions WHERE name = ?", (name,)).fetchall()
        if any(row[1] == digest for row in rows):
            return None
        return 1 + max((row[0] for row in rows), default=0)

    def _insert_version(self, connection: sqlite3.Connection, copy: Path, row: tuple[Any, ...]) -> None:
        """Move a copy to its place and insert its row. Files that an ended process left there are moved away."""
        target = self.home / row[0] / str(row[1])
        _move_aside(target)
        place_copy(copy, target)
        connection.execute("INSERT INTO policy_versions VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        self.record_change(connection, "add", f"{row[0]}@{row[1]}", {}, {"hash": row[2], "policy": row[3]})


def _move_aside(target: Path) -> None:
    """Rename files that already exist at the path of a version."""
    if target.exists():
        target.replace(target.with_name(f".left-{ulid()}"))
