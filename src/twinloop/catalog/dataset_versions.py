"""Freeze selections of episodes as named dataset versions, and record which versions trained which policy.

The episode list of a version is the file ``catalog/datasets/HASH.parquet``, whose name and content depend on the
episode ids only. The row of the version is committed after this file is on disk. Therefore a row always has its list,
and a list without a row is not a dataset version.

A policy has seen an episode in training if the episode was in a dataset version that trained the policy, if an episode
of such a version was derived from it, or if the base policy, from which the training continued, has seen it.
"""

from __future__ import annotations

import functools
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from twinloop.catalog.episode_lookup import query_episode_ids
from twinloop.catalog.parts import flush_folder
from twinloop.catalog.state import WorkspaceState, now
from twinloop.core.errors import DatasetError, InputError, UnknownNameError
from twinloop.core.files import dumps, sha256_bytes, write_bytes
from twinloop.dataset.lerobot.parquet import open_parquet

if TYPE_CHECKING:
    from twinloop.catalog.state import OpenWorkspace


FOLDER = "datasets"  # within catalog/
LISTS = "dataset_lists"  # view of the result of `read_all_lists`
# Names can be typed without quotes; "@" divides name and version, and 64 digits would be a hash.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_LEAST_PREFIX = 6  # fewest digits of a hash that identify a version
_SCHEMA = pa.schema([pa.field("episode_id", pa.string(), nullable=False)])
_LIST_ROWS = pa.schema([pa.field("hash", pa.dictionary(pa.int32(), pa.string())), _SCHEMA.field(0)])


@dataclass(frozen=True, kw_only=True)
class DatasetVersion:
    """Named list of episodes that never changes.

    Attributes:
        name: name of the dataset.
        version: number of the version, from 1.
        hash: SHA-256 over the sorted episode ids.
        sql: the SQL statement that selected the episodes.
        note: purpose of the version.
        created: time of its creation, ISO 8601 in UTC.
        episode_ids: the sorted episode ids.
        new: whether this call of `freeze` created the version; false if a version with the same episodes existed.
    """

    name: str
    version: int
    hash: str
    sql: str
    note: str
    created: str
    episode_ids: tuple[str, ...]
    new: bool = False

    @property
    def reference(self) -> str:
        """Unambiguous reference ``NAME@VERSION``."""
        return f"{self.name}@{self.version}"

    def __len__(self) -> int:
        return len(self.episode_ids)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary that has the number of episodes instead of their ids."""
        return {key: value for key, value in vars(self).items() if key != "episode_ids"} | {
            "reference": self.reference,
            "episodes": len(self),
        }


def hash_episode_list(episode_ids: Iterable[str]) -> str:
    """Return the SHA-256 over the sorted episode ids, which does not depend on their order."""
    return sha256_bytes(*(name.encode() for name in sorted(episode_ids)))


def freeze(ws: OpenWorkspace, name: str, sql: str, note: str = "") -> DatasetVersion:
    """Create a dataset version from the episodes that an SQL statement selects now.

    If the newest version of that name has the same episodes, it is returned unchanged.

    Args:
        ws: the workspace.
        name: name of the dataset: up to 63 letters, digits, ``.``, ``_`` and ``-``.
        sql: a statement over the catalog's views whose result has a column ``episode_id``; each episode counts once.
        note: purpose of the version.

    Raises:
        InputError: If the name is invalid, or the result has no column ``episode_id``, no episodes, unknown episodes or
            excluded episodes.
    """
    if not _NAME.fullmatch(name) or re.fullmatch(r"[0-9a-f]{64}", name):
        raise InputError(
            f"{name!r} cannot name a dataset. Use up to 63 letters, digits, '.', '_' and '-'; the version number is "
            "added automatically."
        )
    ids = sorted(query_episode_ids(ws, sql))
    if not ids:
        raise InputError("The statement selects no episode. Nothing was frozen.")
    _require_included(ws, ids)
    digest = hash_episode_list(ids)
    path = _list_path(ws.root / "catalog", digest)
    data = _encode_list(ids)
    if not path.is_file() or path.read_bytes() != data:
        write_bytes(path, data)
    flush_folder(path.parent)
    with ws.state.transaction() as connection:
        excluded = _select_excluded(connection.execute("SELECT episode_id FROM tombstones").fetchall(), ids)
        if excluded:  # excluded by another process after the statement was run
            raise _make_excluded_error(excluded)
        row = connection.execute(
            "SELECT version, hash FROM datasets WHERE name = ? ORDER BY version DESC LIMIT 1", (name,)
        ).fetchone()
        new = row is None or row[1] != digest
        if new:
            values = (name, 1 + (row[0] if row else 0), digest, sql, len(ids), sha256_bytes(data), now(), note or None)
            connection.execute("INSERT INTO datasets VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
    return replace(load_dataset_version(ws, name), new=new)


def load_dataset_version(ws: OpenWorkspace, reference: str) -> DatasetVersion:
    """Load a dataset version and its list of episodes.

    Args:
        ws: the workspace.
        reference: ``NAME`` (newest version), ``NAME@VERSION``, a hash, or the first 6 or more digits of a hash.

    Raises:
        UnknownNameError: If there is no such version.
        InputError: If several hashes begin with these digits.
        DatasetError: If the list of episodes is missing or damaged.
    """
    row = _find_row(ws.state, reference)
    return DatasetVersion(
        **{name: row[name] for name in ("name", "version", "hash", "sql", "created")},
        note=row["note"] or "",
        episode_ids=read_episode_list(ws.root / "catalog", row["hash"], row["sha256"]),
    )


def read_episode_list(catalog: Path, digest: str, sha256: str) -> tuple[str, ...]:
    """Read the episode ids of a dataset version after checking the SHA-256 of their file.

    Args:
        catalog: the workspace's folder ``catalog``.
        digest: hash of the dataset version, which is the name of the file.
        sha256: the expected SHA-256 of the file.

    Raises:
        DatasetError: If the file is missing or was changed.
    """
    path = _require_list_file(catalog, digest)
    data = path.read_bytes()
    if sha256_bytes(data) != sha256:
        raise DatasetError(f"{path} was changed after it was frozen: its bytes differ. Restore a copy of it.")
    return tuple(pq.read_table(io.BytesIO(data), columns=["episode_id"])["episode_id"].to_pylist())


def read_all_lists(root: Path, state: WorkspaceState) -> pa.Table:
    """Return the episode lists of all dataset versions as a table with the columns ``hash`` and ``episode_id``.

    The view `dataset_episodes` is made from this table.

    Raises:
        DatasetError: If a list is missing or cannot be read.
    """
    rows = state.rows("SELECT DISTINCT hash FROM datasets ORDER BY hash")
    parts = [_LIST_ROWS.empty_table(), *(_read_list_rows(root / "catalog", row["hash"]) for row in rows)]
    return pa.concat_tables(parts).unify_dictionaries()


@functools.lru_cache(maxsize=8)  # a list never changes
def _read_list_rows(catalog: Path, digest: str) -> pa.Table:
    with open_parquet(_require_list_file(catalog, digest)) as file:
        ids = file.read(columns=["episode_id"])["episode_id"].combine_chunks()
    codes = pa.DictionaryArray.from_arrays(pa.array([0] * len(ids), pa.int32()), pa.array([digest]))
    return pa.Table.from_arrays([codes, ids], schema=_LIST_ROWS)


@dataclass(frozen=True, kw_only=True)
class DatasetDifference:
    """Difference between two dataset versions.

    Attributes:
        first: the first version.
        second: the second version.
        only_first: sorted ids of the episodes that only the first version has.
        only_second: sorted ids of the episodes that only the second version has.
        both: number of episodes that both versions have.
    """

    first: DatasetVersion
    second: DatasetVersion
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    both: int


def compare_versions(ws: OpenWorkspace, first: str, second: str) -> DatasetDifference:
    """Compare the episodes of two dataset versions, which are given as in `load_dataset_version`.

    Raises:
        TwinloopError: If a version cannot be loaded; see `load_dataset_version`.
    """
    one, other = load_dataset_version(ws, first), load_dataset_version(ws, second)
    left, right = set(one.episode_ids), set(other.episode_ids)
    return DatasetDifference(
        first=one,
        second=other,
        only_first=tuple(sorted(left - right)),
        only_second=tuple(sorted(right - left)),
        both=len(left & right),
    )


def _find_row(state: WorkspaceState, reference: str) -> dict[str, Any]:
    name, _, version = reference.partition("@")
    rows = state.rows(
        "SELECT * FROM datasets WHERE name = ? AND (? = '' OR version = ?) ORDER BY version DESC",
        (name, version, version),
    )
    if not rows and len(reference) >= _LEAST_PREFIX and re.fullmatch(r"[0-9a-f]+", reference):
        rows = state.rows(
            "SELECT * FROM datasets WHERE substr(hash, 1, ?) = ? ORDER BY rowid DESC",
            (len(reference), reference),
        )
        hashes = sorted({row["hash"] for row in rows})
        if len(hashes) > 1:
            raise InputError(
                f"{reference} begins {len(hashes)} hashes of datasets: {', '.join(h[:16] for h in hashes)}. "
                "Give more digits."
            )
    if not rows:
        known = [f"{row['name']}@{row['version']}" for row in state.rows("SELECT name, version FROM datasets")]
        raise UnknownNameError(
            "dataset version",
            reference,
            {*known, *(name.split("@")[0] for name in known)},
            add="twinloop datasets freeze",
        )
    return rows[0]


def _require_included(ws: OpenWorkspace, ids: Sequence[str]) -> None:
    included = set(ws.query("SELECT episode_id FROM episodes")["episode_id"].to_pylist())
    missing = [name for name in ids if name not in included]
    if not missing:
        return
    excluded = _select_excluded(ws.query("SELECT episode_id FROM tombstones")["episode_id"].to_pylist(), missing)
    if excluded:
        raise _make_excluded_error(excluded)
    raise InputError(
        f"{len(missing)} of the selected ids are not episodes of this workspace, the first {missing[0][:16]}. Select "
        "from the view episodes, or `twinloop add` their dataset."
    )


def _select_excluded(rows: Iterable[Any], ids: Iterable[str]) -> list[str]:
    names = {row if isinstance(row, str) else row[0] for row in rows}
    return sorted(names.intersection(ids))


def _make_excluded_error(excluded: Sequence[str]) -> InputError:
    return InputError(
        f"{len(excluded)} of the selected episodes are excluded and cannot be frozen, the first {excluded[0][:16]}. "
        "Select from the view episodes, which leaves them out; the view tombstones has the reasons."
    )


def _list_path(catalog: Path, digest: str) -> Path:
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise DatasetError(f"{digest[:80]!r} is not the hash of a list of episodes; state.sqlite is damaged.")
    return catalog / FOLDER / f"{digest}.parquet"


def _require_list_file(catalog: Path, digest: str) -> Path:
    path = _list_path(catalog, digest)
    if not path.is_file():
        raise DatasetError(f"{path} is missing; it is the list of a dataset version. Restore a copy of it.")
    return path


def _encode_list(ids: Sequence[str]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"episode_id": list(ids)}, schema=_SCHEMA), sink, compression="zstd", use_dictionary=False)
    return sink.getvalue()


def record_policy(
    ws: OpenWorkspace,
    policy: str,
    name: str,
    dataset: str | Sequence[str],
    run_id: str | None = None,
    extra: Mapping[str, Any] | None = None,
    *,
    base: str | None = None,
) -> None:
    """Record which dataset versions, or which simulated worlds without a dataset, trained a policy.

    A record never changes. Recording a policy again with the same facts has no effect.

    Args:
        ws: the workspace.
        policy: hash of the policy's weights and settings.
        name: name of the policy.
        dataset: name, ``NAME@VERSION`` or hash of one dataset version, or a list of several; an empty list if
            ``extra`` describes the simulated worlds.
        run_id: id of the run that trained the policy.
        extra: further JSON-compatible facts. ``worlds`` describes simulated worlds of which no episodes are stored, as
            `train.worlds.describe_worlds` returns them.
        base: hash of the recorded policy from which the training continued; None for training from new weights.

    Raises:
        InputError: If the policy is already recorded with other facts, or the hash, the name or the dataset is missing.
        UnknownNameError: If a dataset version or the base policy does not exist.
    """
    if not policy or not name:
        raise InputError("The record of a policy needs the hash of its weights and a name. Give both.")
    given = [dataset] if isinstance(dataset, str) else list(dataset)
    if not given and not (extra or {}).get("worlds"):
        raise InputError(f"Policy {name} has no dataset that trained it. Freeze one first: `twinloop datasets freeze`.")
    rows = sorted(
        {(entry.hash, entry.reference) for entry in (load_dataset_version(ws, reference) for reference in given)}
    )
    trained = dict(reversed(rows))
    try:
        text = None if not extra else json.dumps(json.loads(dumps(dict(extra))), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"Policy {name}: extra has a value that JSON cannot represent ({error}). Leave it out."
        ) from error
    with ws.state.transaction() as connection:
        if base is not None:
            known = [row[0] for row in connection.execute("SELECT policy FROM policies").fetchall()]
            if base not in known:
                raise UnknownNameError("policy", base, known, where="the recorded policies, as the base of another")
        known = connection.execute("SELECT name, base, extra FROM policies WHERE policy = ?", (policy,)).fetchone()
        if known is None:
            connection.execute(
                "INSERT INTO policies VALUES (?, ?, ?, ?, ?, ?)", (policy, name, base, run_id, now(), text)
            )
            connection.executemany(
                "INSERT INTO policy_datasets VALUES (?, ?, ?)",
                [(policy, digest, named_as) for digest, named_as in sorted(trained.items())],
            )
            return
        cursor = connection.execute("SELECT dataset FROM policy_datasets WHERE policy = ?", (policy,))
        before = (*known, {row[0] for row in cursor.fetchall()})
        if before != (name, base, text, set(trained)):
            raise InputError(
                f"Policy {policy[:16]} is already recorded as {known[0]}, trained on {len(before[3])} dataset(s) with "
                "other facts than these. The record of a policy cannot change; record the new one under its own hash."
            )
