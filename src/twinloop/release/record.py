"""What a version is made of, as the registry writes it down: read from its files and from what the workspace knows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twinloop import __version__
from twinloop.catalog import Workspace
from twinloop.core.documents import read_json
from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.release.trained import trained_on

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def describe(folder: Path, files: Mapping[str, str], workspace: Workspace, policy: str | None) -> dict[str, Any]:
    """The record of a version; what nobody knows is None or empty, and a gate that needs it says so.

    Args:
        folder: of the saved policy.
        files: its files with their hashes.
        workspace: which knows what trained a policy.
        policy: hash of its weights and settings.

    Raises:
        InputError: ``config.json`` is no JSON object.
    """
    config = config_of(folder)
    settings = config.get("settings") or {}
    return {
        "files": dict(files),
        "weights": files.get(WEIGHTS),
        "kind": config.get("kind"),
        "settings": settings,
        "contract": config.get("contract"),
        "normalization": {"how": settings.get("normalization"), "statistics": config.get("statistics")},
        "card": config.get("card"),
        "datasets": _datasets(workspace, policy),
        "twins": list(trained_on(workspace, policy).twins) if policy else [],
        "code": {"twinloop": __version__, **(config.get("versions") or {})},
        "evaluations": [],
    }


def policy_hash(folder: Path) -> str | None:
    """The hash of weights and settings, checked by opening the policy where torch is there.

    Raises:
        InputError: the policy is damaged; names the file.
    """
    from twinloop.policies import open_policy

    try:
        return open_policy(folder).hash
    except MissingDependencyError:
        return config_of(folder).get("hash")


def config_of(folder: Path) -> dict[str, Any]:
    """What ``config.json`` says, empty where there is none.

    Raises:
        InputError: it is no JSON object.
    """
    if not (folder / CONFIG).is_file():
        return {}
    value = read_json(folder / CONFIG)
    if not isinstance(value, dict):
        raise InputError(f"{folder / CONFIG} holds no settings. Save the policy again.")
    return value


def text(record: Mapping[str, Any]) -> str:
    """A record as it is stored."""
    return json.dumps(record, sort_keys=True, allow_nan=False)


def _datasets(workspace: Workspace, policy: str | None) -> list[dict[str, Any]]:
    """The frozen datasets that trained a policy, and those of what its training went on from."""
    if policy is None:
        return []
    return workspace.state.rows(
        "WITH RECURSIVE line(policy) AS (SELECT ? UNION SELECT p.base FROM policies p JOIN line USING (policy) "
        "WHERE p.base IS NOT NULL) SELECT DISTINCT d.dataset AS hash, d.said AS said FROM policy_datasets d "
        "JOIN line USING (policy) ORDER BY d.said",
        (policy,),
    )
