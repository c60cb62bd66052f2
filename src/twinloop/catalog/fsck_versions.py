"""Check whether frozen datasets and versions of policies still are what they were.

Whether the log of releases is whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from twinloop.catalog import audit
from twinloop.catalog.frozen import FOLDER, list_hash, read_list
from twinloop.catalog.fsck import Finding
from twinloop.catalog.state import State
from twinloop.core.errors import DatasetError
from twinloop.core.files import sha256_file


def check_frozen(catalog: Path, state: State) -> Iterator[Finding]:
    """Lists that are missing, damaged or not what their row says; rows that speak of nothing."""
    known = set[str]()
    for row in state.rows("SELECT name, version, hash, sha256, episodes FROM datasets ORDER BY name, version"):
        known.add(row["hash"])
        where = f"dataset {row['name']}@{row['version']}"
        try:
            ids = read_list(catalog, row["hash"], row["sha256"])
        except DatasetError as error:
            yield Finding(kind="frozen", where=where, what=str(error), remedy=_REMEDY)
            continue
        if list_hash(ids) != row["hash"] or len(ids) != row["episodes"]:
            what = f"Its row says {row['episodes']} episodes of another hash; its list has {len(ids)}."
            yield Finding(kind="frozen", where=where, what=what, remedy="Put a copy of state.sqlite back.")
    for row in state.rows("SELECT policy, dataset FROM policy_datasets ORDER BY policy, dataset"):
        if row["dataset"] not in known:
            yield Finding(
                kind="frozen",
                where=f"policy {row['policy'][:16]}",
                what=f"It was trained on a dataset {row['dataset'][:16]} that no row names.",
                remedy="Put a copy of state.sqlite back.",
            )
    lost = state.rows("SELECT seq FROM label_ends WHERE seq NOT IN (SELECT seq FROM label_history)")
    if lost:
        yield Finding(
            kind="labels",
            where="state.sqlite",
            what=f"{len(lost)} labels ended that the history does not hold, the first number {lost[0]['seq']}.",
            remedy="Put a copy of state.sqlite back.",
        )


_REMEDY = (
    f"Put a copy of the file in catalog/{FOLDER} back. Where the SQL of the dataset still selects the same, freezing "
    "it again writes that file."
)


_BACK = "Put a copy of state.sqlite and of policies/ back. Who can write to these files can write anything in them."


def check_release(root: Path, state: State) -> Iterator[Finding]:
    """Versions that are missing or changed, leftovers, a log that was changed, aliases that nobody moved."""
    yield from _versions(root, state)
    faults = audit.faults(state)
    head = audit.unwitnessed(root, state)
    for what in [*faults, *([head] if head else [])]:
        yield Finding(kind="audit", where="release_audit", what=what, remedy=_BACK)
    said = audit.standing(audit.entries(state)) if not faults else {}
    rows = state.rows("SELECT deployment, alias, policy FROM policy_aliases")
    held = {(row["deployment"], row["alias"]): row["policy"] for row in rows}
    for key in sorted(said.keys() | held.keys()) if not faults else []:
        if said.get(key) != held.get(key):
            deployment, alias = key
            what = f"The {alias} of {deployment} is {_or(held.get(key))}, and the audit log says {_or(said.get(key))}."
            yield Finding(kind="audit", where=f"policy_aliases {alias}", what=what, remedy=_BACK)


def _versions(root: Path, state: State) -> Iterator[Finding]:
    known = set[Path]()
    for row in state.rows("SELECT name, version, record FROM policy_versions ORDER BY name, version"):
        folder = root / "policies" / row["name"] / str(row["version"])
        known.add(folder)
        wrong = different(folder, json.loads(row["record"])["files"])
        if wrong:
            yield Finding(
                kind="policy",
                where=folder.relative_to(root).as_posix(),
                what=f"{row['name']}@{row['version']} is not what was added: {wrong}.",
                remedy="Put a copy of these files back, or add the same policy again under its name: that heals it.",
            )
    for folder in sorted((root / "policies").glob("[!.]*/*")):
        if folder.is_dir() and folder not in known:
            where = folder.relative_to(root).as_posix()
            yield Finding(
                kind="leftover",
                where=where,
                what=f"{where} is in no row of the registry: a process was ended, or adds it right now.",
                remedy=f"Nothing needs it. Remove it: rm -r {where}",
            )


def different(folder: Path, files: Mapping[str, str]) -> str:
    """What is other than it was in a folder, in words; empty where every byte is as it was.

    Args:
        folder: of a version.
        files: the SHA-256 of each of its files, by path in it.
    """
    if not folder.is_dir():
        return "the folder is missing"
    present = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    wrong = [f"{name} is missing" for name in files if name not in present]
    wrong += [f"{name} was put there" for name in present if name not in files]
    known = [(name, digest) for name, digest in files.items() if name in present]
    return "; ".join(
        wrong + [f"{name} has other bytes" for name, digest in known if sha256_file(present[name]) != digest]
    )


def _or(policy: str | None) -> str:
    return policy or "nobody"
