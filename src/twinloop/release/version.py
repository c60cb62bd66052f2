"""Describe versions of policies (files, training data, contract), and find a version by alias, name or hash."""

from __future__ import annotations

import getpass
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from twinloop import __version__
from twinloop.catalog import Workspace
from twinloop.catalog.state import WorkspaceState
from twinloop.core.documents import read_json
from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.core.plain import JsonRecord
from twinloop.policies.folder import find_onnx
from twinloop.policies.folder import read_config as read_saved_config


@dataclass(frozen=True, kw_only=True)
class TrainingRecord:
    """Simulated training data of a policy.

    Attributes:
        episodes: number of simulated training episodes.
        twins: hashes of the twins in which they were simulated.
        ranges: smallest and largest value of each twin parameter over the training episodes, in SI units.
    """

    episodes: int
    twins: tuple[str, ...] = ()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def read_training_record(workspace: Workspace, policy: str | None) -> TrainingRecord:
    """Return the training data of a policy, including the data of the policies from which its training started.

    Args:
        workspace: workspace whose catalog records the training.
        policy: hash of the policy's weights and settings; None gives an empty record.
    """
    seen = "(SELECT DISTINCT episode_id FROM policy_episodes WHERE policy = ?)"
    twins = workspace.query(
        f"SELECT twin_hash, count(*) AS n FROM episodes WHERE episode_id IN {seen} AND source = 'sim' GROUP BY ALL",  # noqa: S608
        [policy or ""],
    ).to_pylist()
    drawn = workspace.query(
        f"SELECT name, min(value) AS low, max(value) AS high FROM params WHERE episode_id IN {seen} GROUP BY name",  # noqa: S608
        [policy or ""],
    ).to_pylist()
    worlds = _list_worlds(workspace, policy or "")
    ranges = {row["name"]: (row["low"], row["high"]) for row in drawn}
    for name, (low, high) in (item for one in worlds for item in one["ranges"].items()):
        before = ranges.get(name, (low, high))
        ranges[name] = (min(low, before[0]), max(high, before[1]))
    hashes = [*(row["twin_hash"] for row in twins if row["twin_hash"]), *(one["twin_hash"] for one in worlds)]
    return TrainingRecord(
        episodes=sum(row["n"] for row in twins) + sum(one["episodes"] for one in worlds),
        twins=tuple(dict.fromkeys(hashes)),
        ranges=ranges,
    )


def _list_worlds(workspace: Workspace, policy: str) -> list[dict[str, Any]]:
    """Return the descriptions of simulated worlds without episodes that trained a policy, or those it started from."""
    rows = workspace.query(
        "SELECT p.extra FROM policy_bases b JOIN policies p ON p.policy = b.base WHERE b.policy = ?", [policy]
    ).to_pylist()
    facts = [json.loads(row["extra"]) for row in rows if row["extra"]]
    return [one["worlds"] for one in facts if one.get("worlds")]


Alias = Literal["champion", "candidate", "previous", "shadow", "canary"]
ALIASES: tuple[Alias, ...] = get_args(Alias)
MAIN = "main"  # the deployment if none is given
# Names can be typed without quotes; "@" divides name and version, "/" a deployment and its alias.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_LEAST_PREFIX = 6  # digits of a hash


@dataclass(frozen=True, kw_only=True)
class PolicyVersion(JsonRecord):
    """One version of a policy in the registry; it never changes.

    Attributes:
        name: name of the policy.
        version: version number, from 1.
        hash: hash of all files of the version.
        policy: hash of the policy's weights and settings; None if unknown.
        record: description with the keys ``files`` (hash of each file), ``contract``, ``normalization``, ``datasets``,
            ``twins``, ``code`` (package versions), ``evaluations`` and others, see `describe_version`.
        added: time at which the version was added, in ISO 8601.
        added_by: user who added it.
    """

    json_also = ("reference",)

    name: str
    version: int
    hash: str
    policy: str | None
    record: Mapping[str, Any]
    added: str
    added_by: str

    @property
    def reference(self) -> str:
        """Name of this version for all commands, ``NAME@VERSION``."""
        return f"{self.name}@{self.version}"


def list_versions(state: WorkspaceState) -> list[PolicyVersion]:
    """Return all versions of all policies in a workspace, oldest first."""
    rows = state.rows("SELECT * FROM policy_versions ORDER BY rowid")
    return [PolicyVersion(**{**row, "record": json.loads(row["record"])}) for row in rows]


def list_aliases(state: WorkspaceState, deployment: str) -> dict[str, str]:
    """Return the aliases of a deployment: for each alias, such as ``champion``, its version ``NAME@VERSION``."""
    rows = state.rows("SELECT alias, policy FROM policy_aliases WHERE deployment = ?", (deployment,))
    return {row["alias"]: row["policy"] for row in rows}


def _describe_search(state: WorkspaceState, deployment: str, held: Mapping[str, str]) -> str:
    """Return a phrase for an error message: in which deployment an alias was searched, and why it may be missing.

    Args:
        deployment: deployment that was searched.
        held: aliases of this deployment.
    """
    place = f"the deployment {deployment}"
    if held:
        return place
    others = [row["deployment"] for row in state.rows("SELECT DISTINCT deployment FROM policy_aliases ORDER BY 1", ())]
    if others:
        return f"{place}, which has no aliases; aliases exist in {', '.join(others)}"
    return f"{place}, in which no policy has been promoted yet (`twinloop promote`)"


def resolve_version(state: WorkspaceState, reference: str, deployment: str = MAIN) -> PolicyVersion:
    """Return the version for an alias, ``DEPLOYMENT/ALIAS``, ``NAME@VERSION``, ``NAME@HASH``, ``NAME`` or a hash.

    ``NAME`` gives the newest version of that name. The first six digits of a hash suffice.

    Args:
        reference: name, alias or hash of the version.
        deployment: owner of the aliases (a robot or a task).

    Raises:
        UnknownNameError: If no version has this reference.
    """
    where, _, word = reference.rpartition("/")
    if word in ALIASES:
        held = list_aliases(state, where or deployment)
        if word not in held:
            raise UnknownNameError("alias", word, held, where=_describe_search(state, where or deployment, held))
        reference = held[word]
    known = list_versions(state)
    name, _, tail = reference.partition("@")
    numbered = [one for one in known if one.name == name and tail in ("", str(one.version))]
    found = numbered or [one for one in known if _matches_hash(one, name, tail)]
    if not found:
        raise UnknownNameError(
            "policy",
            reference,
            [one.reference for one in known],
            where="the registry",
            add="twinloop policies add",
        )
    return found[-1]


def check_name(name: str) -> str:
    """Return a policy name unchanged after checking that it can be typed without quotes and is not an alias.

    Raises:
        InputError: If the name is invalid.
    """
    if not _NAME.fullmatch(name) or name in ALIASES:
        raise InputError(
            f"{name!r} is not a valid policy name. Use letters, digits, '.', '_' and '-', at most 63, and not one "
            f"of the aliases {', '.join(ALIASES)}."
        )
    return name


def get_current_user() -> str:
    """Return the name of the user who runs this process, or ``uid NUMBER`` if the user has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _matches_hash(version: PolicyVersion, name: str, tail: str) -> bool:
    """Return whether a reference ``NAME@HASH`` or ``HASH``, in which the hash may be shortened, means this version.

    Args:
        version: the version.
        name: part of the reference before ``@``: NAME, or the beginning of a hash if there is no ``@``.
        tail: part after ``@``: the beginning of a hash, or empty.
    """
    prefix = tail if tail and version.name == name else name if not tail else ""
    hashes = (version.hash, version.policy or "")
    return len(prefix) >= _LEAST_PREFIX and any(digest.startswith(prefix) for digest in hashes)


CONFIG, WEIGHTS = "config.json", "model.safetensors"


def describe_version(
    folder: Path, files: Mapping[str, str], workspace: Workspace, policy: str | None
) -> dict[str, Any]:
    """Return the description of a new version of a policy, as the registry stores it.

    Unknown facts are None or empty; a gate that needs one of them reports that it is missing.

    Args:
        folder: folder of the saved policy, with its ``config.json``.
        files: hash of each file, by path.
        workspace: workspace whose catalog records the training.
        policy: hash of the policy's weights and settings; None if unknown.

    Returns:
        ``files``; ``weights`` (hash of the weight file); ``kind``, ``settings``, ``contract`` and ``card`` from
        ``config.json``; ``normalization`` (``how`` and ``statistics``); ``datasets`` and ``twins`` of the training;
        ``code`` (package versions); and ``evaluations``, an empty list to which the caller adds evidence.

    Raises:
        InputError: If ``config.json`` is not a JSON object.
    """
    config = read_config(folder)
    settings, trained = config.get("settings") or {}, find_trained_hash(config, policy)
    return {
        "files": dict(files),
        "weights": files.get(WEIGHTS),
        "kind": config.get("kind"),
        "settings": settings,
        "contract": config.get("contract"),
        "normalization": {"how": settings.get("normalization"), "statistics": config.get("statistics")},
        "card": config.get("card"),
        "datasets": _list_datasets(workspace, trained),
        "twins": list(read_training_record(workspace, trained).twins) if trained else [],
        "code": {"twinloop": __version__, **(config.get("versions") or {})},
        "evaluations": [],
    }


def find_trained_hash(config: Mapping[str, Any], policy: str | None) -> str | None:
    """Return the hash under which a policy's training is recorded: for an ONNX file, that of the exported policy.

    Args:
        config: result of `read_config`.
        policy: hash of the policy's weights and settings; None if unknown.
    """
    return config.get("source_hash") or policy


def compute_policy_hash(folder: Path) -> str | None:
    """Return the hash of a saved policy's weights and settings.

    If torch is installed, the policy is opened to check the hash. Otherwise the hash in ``config.json`` is returned, or
    None if the file has none.

    Raises:
        InputError: If the policy is damaged.
    """
    from twinloop.policies import open_policy

    try:
        return open_policy(folder).hash
    except MissingDependencyError:
        return read_config(folder).get("hash")


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of a policy's ``config.json`` or ONNX file, or an empty dictionary if both are missing.

    Raises:
        InputError: If the file is not a JSON object.
    """
    if find_onnx(folder):
        return read_saved_config(folder)
    if not (folder / CONFIG).is_file():
        return {}
    value = read_json(folder / CONFIG)
    if not isinstance(value, dict):
        raise InputError(f"{folder / CONFIG} contains no settings. Save the policy again.")
    return value


def format_record(record: Mapping[str, Any]) -> str:
    """Return the description of a policy's version (result of `describe_version`) as JSON text for the registry.

    Keys are sorted, so that equal descriptions have equal texts.
    """
    return json.dumps(record, sort_keys=True, allow_nan=False)


def _list_datasets(workspace: Workspace, policy: str | None) -> list[dict[str, Any]]:
    """Return hash and name of the dataset versions that trained a policy or the policies that it started from."""
    if policy is None:
        return []
    return workspace.state.rows(
        "WITH RECURSIVE line(policy) AS (SELECT ? UNION SELECT p.base FROM policies p JOIN line USING (policy) "
        "WHERE p.base IS NOT NULL) SELECT DISTINCT d.dataset AS hash, d.said AS said FROM policy_datasets d "
        "JOIN line USING (policy) ORDER BY d.said",
        (policy,),
    )
