"""Keep immutable versions of policies in a workspace, with aliases such as ``champion`` that can move.

Every change is one SQLite transaction. The files of a version are written to the disk before its database row. An alias
moves in the same transaction as the entry of the audit log that gives the reason. If the process ends during a change,
the state is therefore either that before or that after the change. Two processes cannot change the state at the same
time.
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
from twinloop.catalog.fsck_state import describe_changed_files, is_registry_entry
from twinloop.catalog.parts import flush_folder, ulid
from twinloop.catalog.state import now
from twinloop.core.decision import GateDecision
from twinloop.core.errors import DatasetError, InputError
from twinloop.core.evaluation import Evaluation
from twinloop.core.extension import PICKLE_SUFFIXES
from twinloop.core.files import dumps, sha256_file, sha256_json
from twinloop.dataset.storage.snapshot import hold_folder_lock
from twinloop.policies.folder import ONNX_NAME, find_onnx
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


def hash_files(folder: Path, *, shared: bool = False) -> dict[str, str]:
    """Return the SHA-256 hash of every file in a folder, by its path relative to the folder.

    An ONNX file counts as a folder with only this file, named ``policy.onnx``.

    Args:
        folder: folder or ONNX file of a saved policy.
        shared: whether the registry keeps versions in the same folder. They are then no files of the policy.

    Raises:
        InputError: If the folder is missing or empty, a link leads out of it, or a file is a pickle.
    """
    if folder.is_file() and find_onnx(folder):
        return {ONNX_NAME: sha256_file(folder)}
    if not folder.is_dir():
        what = "is neither a folder nor an ONNX file" if folder.exists() else "does not exist"
        raise InputError(
            f"{folder} {what}. Give the folder of a saved policy (config.json, model.safetensors) or a policy's ONNX "
            "file."
        )
    root, found = folder.resolve(), dict[str, str]()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if shared and is_registry_entry(name.partition("/")[0]):
            continue
        if not path.resolve().is_relative_to(root):
            raise InputError(f"{path} is a link to a file outside the policy's folder. Put the file itself there.")
        if path.suffix in PICKLE_SUFFIXES:
            raise InputError(
                f"{path} may run code when it is opened. Save weights as safetensors and remove this file."
            )
        if path.is_file():
            found[name] = sha256_file(path)
    if not found:
        what = "has only versions of the registry" if shared else "is empty"
        raise InputError(f"{folder} {what}. Give the folder of a saved policy: config.json, model.safetensors.")
    return found


def combine_file_hashes(files: Mapping[str, str]) -> str:
    """Return the hash of a folder from the hashes of its files, equal to that of `core.files.sha256_tree`.

    Args:
        files: hash of each file, by path.
    """
    return sha256_json(sorted(files.items()))


@contextlib.contextmanager
def stage_copy(folder: Path, home: Path, files: Mapping[str, str]) -> Iterator[Path]:
    """Copy a folder temporarily (context manager), so that `place_copy` can move the finished copy to its final path.

    A copy that was not moved is removed when the context ends. The copy is read-only and flushed to the disk.

    Args:
        folder: folder to copy.
        home: parent folder of the copy, on the same disk as its final path.
        files: result of `hash_files`; the copy must have the same hashes.

    Raises:
        DatasetError: If the disk is full, or the folder changed while it was copied. In this case no files remain.
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
            shutil.copyfile(folder if folder.is_file() else folder / name, target)
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
    """Remove unfinished copies and their locks that ended processes left in a folder.

    Copies of running processes are locked and remain.
    """
    copies = {path.name for path in home.glob(f"{STAGED}*")}
    copies |= {path.name[1 : -len(".lock")] for path in home.glob(f".{STAGED}*.lock")}
    for name in copies:
        with contextlib.suppress(DatasetError), hold_folder_lock(home / name):
            _discard(home / name)


def place_copy(copy: Path, target: Path) -> None:
    """Move a finished copy to its final path, and flush the move to the disk."""
    copy.replace(target)
    flush_folder(target.parent)


def _discard(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")] if folder.is_dir() else []:
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder, ignore_errors=True)


def _protect(folder: Path) -> None:
    """Make all files and folders in a folder read-only, and flush them to the disk."""
    below = sorted(folder.rglob("*"), reverse=True)
    for path in below:
        path.chmod(0o555 if path.is_dir() else 0o444)
    for path in [*[path for path in below if path.is_dir()], folder]:
        flush_folder(path)
    folder.chmod(0o555)


EVIDENCE = ".evidence"  # folder in policies/ with the evaluations on which decisions are based, by hash


class PolicyRegistry:
    """Registry of the policies of a workspace: versions, aliases, gate decisions and the audit log.

    Args:
        workspace: workspace; it must be open while the registry is used.
        deployment: name of the robot or task whose aliases, decisions and audit log are used; a workspace may serve
            several.
        who: name of the person to record for changes; by default the user of the process.
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
        """Copy a saved policy into the registry as a new version, and return its name ``NAME@VERSION``.

        If a version of this name already has exactly the same files, return that version.

        Args:
            folder: folder with config.json, model.safetensors, README.md and any other files of the policy; or its
                ONNX file.
            evidence: evaluations of the policy, stored with it.
            name: name of the policy; by default the name of the folder, or of the ONNX file without its suffix.
            policy: hash of the policy's weights and settings; by default the policy is opened to compute it.

        Raises:
            InputError: If the folder does not exist, the name is invalid, a file is a pickle, or the policy cannot be
                opened.
            DatasetError: If the disk is full or the workspace cannot be written. In this case nothing is added.
        """
        folder = Path(folder)
        made = self.describe(folder, name=name, policy=policy)
        files, home = made.record["files"], self.home / made.name
        remove_leftovers(home)
        if made.added:
            self._repair_copy(made, folder, files)
            return made.reference
        record = {**made.record, "evaluations": [self.store_evaluation(one) for one in evidence]}
        with stage_copy(folder, home, files) as copy, self.open_transaction() as connection:
            version = self._get_next_number(connection, made.name, made.hash)
            if version is not None:
                row = (made.name, version, made.hash, made.policy, format_record(record), now(), self.who)
                self._insert_version(connection, copy, row)
        found = self._find_same_version(made.name, made.hash)
        assert found is not None  # noqa: S101 - it was entered, or another process had entered it
        return found.reference

    def describe(self, folder: Path, *, name: str | None = None, policy: str | None = None) -> PolicyVersion:
        """Return the version that `add` gives to a saved policy, without adding it.

        Its attribute ``added`` is empty if the registry does not have these files yet. The arguments and errors are
        those of `add`.
        """
        name = check_name(name or (folder.stem if folder.is_file() else folder.resolve().name))
        files = hash_files(folder, shared=folder.resolve().parent == self.home.resolve())
        digest = combine_file_hashes(files)
        known = self._find_same_version(name, digest)
        if known is not None:
            return known
        policy = compute_policy_hash(folder) if policy is None else policy
        return PolicyVersion(
            name=name,
            version=1 + max((one.version for one in self.versions() if one.name == name), default=0),
            hash=digest,
            policy=policy,
            record=describe_version(folder, files, self.workspace, policy),
            added="",
            added_by="",
        )

    def version(self, reference: str) -> PolicyVersion:
        """Return the record of a version.

        Args:
            reference: alias, ``NAME@VERSION``, ``NAME`` (its newest version), or the beginning of a hash.

        Raises:
            UnknownNameError: If no version has this reference.
        """
        return resolve_version(self.workspace.state, reference, self.deployment)

    def folder(self, reference: str) -> Path:
        """Return the folder of a version, after checking that every file is unchanged since the version was added.

        Raises:
            UnknownNameError: If no version has this reference.
            DatasetError: If a file is missing, changed or new.
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
        """Open the policy of a version.

        Raises:
            UnknownNameError: If no version has this reference.
            DatasetError: If a file of the version is missing, changed or new.
            InputError: If the policy cannot be opened; see `policies.open_policy`.
        """
        from twinloop.policies import open_policy

        return open_policy(self.folder(reference))

    def versions(self) -> list[PolicyVersion]:
        """Return all versions of all policies, oldest first."""
        return list_versions(self.workspace.state)

    def aliases(self) -> dict[str, str]:
        """Return the aliases of this deployment: for each alias, such as ``champion``, its version ``NAME@VERSION``."""
        return list_aliases(self.workspace.state, self.deployment)

    def audit(self) -> list[log.AuditEntry]:
        """Return the entries of this deployment's audit log, oldest first."""
        return log.read_entries(self.workspace.state, self.deployment)

    def decisions(self, reference: str) -> list[GateDecision]:
        """Return the gate decisions about a version in this deployment, oldest first."""
        rows = self.workspace.state.rows(
            "SELECT record FROM gate_decisions WHERE deployment = ? AND candidate = ? ORDER BY rowid",
            (self.deployment, self.version(reference).reference),
        )
        return [GateDecision.from_json(json.loads(row["record"])) for row in rows]

    def record_decision(self, decision: GateDecision) -> str:
        """Store a gate decision and return its hash.

        If the gate was passed, the alias ``candidate`` moves to the version. A decision that is already stored changes
        nothing.

        Raises:
            UnknownNameError: If the candidate or the champion of the decision is not in the registry.
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
        """Move or remove an alias; ``champion`` and ``previous`` are moved only by `promote` and `rollback`.

        Args:
            alias: alias to move.
            reference: version that gets the alias; None removes the alias.
            reason: reason for the audit log.

        Raises:
            InputError: If the alias is ``champion`` or ``previous``, or no reason is given.
            UnknownNameError: If no version has this reference.
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
        """Store an evaluation under its hash, and return a summary with its numbers of successes and trials."""
        folder = self.home / EVIDENCE / evaluation.hash
        if not (folder / "evaluation.json").is_file():
            evaluation.write(folder)
        won, tried = evaluation.counts()
        facts = {name: getattr(evaluation, name) for name in ("suite", "domain", "twin", "twin_hash", "task")}
        return {"hash": evaluation.hash, **facts, "successes": won, "trials": tried}

    @contextlib.contextmanager
    def open_transaction(self) -> Iterator[sqlite3.Connection]:
        """Open a database transaction that may add to the audit log, as a context manager.

        After the transaction, the hash of the newest log entry is written to a file, so that a later change of the log
        can be detected.

        Raises:
            DatasetError: If the workspace cannot be written, or another process was writing for too long.
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
        """Move aliases and add an entry to the audit log, within a database transaction.

        Args:
            action: kind of the change, such as ``promote``.
            policy: version that the entry is about, ``NAME@VERSION``.
            moved: new version of each alias; None removes the alias.
            details: further facts for the log entry.
        """
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
        """Return the version of policy ``name`` whose files have the combined hash ``digest``, or None."""
        return next((one for one in self.versions() if one.name == name and one.hash == digest), None)

    def _repair_copy(self, version: PolicyVersion, folder: Path, files: Mapping[str, str]) -> None:
        """Replace the registry's files of a version by the same files from ``folder`` if they are damaged."""
        target = self.home / version.name / str(version.version)
        if describe_changed_files(target, version.record["files"]):
            with stage_copy(folder, target.parent, files) as copy, self.workspace.state.transaction():
                _move_aside(target)
                place_copy(copy, target)

    def _get_next_number(self, connection: sqlite3.Connection, name: str, digest: str) -> int | None:
        """Return the next version number of a policy; None if one of its versions already has exactly the same files.

        The latter happens if another process has added these files in the meantime.

        Args:
            digest: combined hash of the new files.
        """
        rows = connection.execute("SELECT version, hash FROM policy_versions WHERE name = ?", (name,)).fetchall()
        if any(row[1] == digest for row in rows):
            return None
        return 1 + max((row[0] for row in rows), default=0)

    def _insert_version(self, connection: sqlite3.Connection, copy: Path, row: tuple[Any, ...]) -> None:
        """Move a copied folder to its final path, and insert the row of the new version, within a database transaction.

        Files that an ended process left at this path are renamed.

        Args:
            copy: folder made by `stage_copy`.
            row: values of the table ``policy_versions``: name, version, hash, policy hash, record, time, user.
        """
        target = self.home / row[0] / str(row[1])
        _move_aside(target)
        place_copy(copy, target)
        connection.execute("INSERT INTO policy_versions VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        self.record_change(connection, "add", f"{row[0]}@{row[1]}", {}, {"hash": row[2], "policy": row[3]})


def _move_aside(target: Path) -> None:
    """Rename the folder of a version if it already exists, so that its path is free."""
    if target.exists():
        target.replace(target.with_name(f".left-{ulid()}"))
