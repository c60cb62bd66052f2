"""What a version is made of, as the registry writes it down: read from its files and from what the workspace knows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twinloop import __version__
from twinloop.catalog.state import State
from twinloop.core.errors import InputError
from twinloop.core.files import read_json

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def describe(folder: Path, files: Mapping[str, str], state: State, policy: str | None) -> dict[str, Any]:
    """The record of a version; what nobody knows is None, and a gate that needs it says so.

    Args:
        folder: of the saved policy.
        files: its files with their hashes.
        state: of the workspace, which knows which datasets trained a policy.
        policy: hash of its weights and settings.

    Raises:
        InputError: ``config.json`` is no JSON object.
    """
    config = config_of(folder)
    return {
        "files": dict(files),
        "weights": files.get(WEIGHTS),
        "contract": config.get("contract"),
        "normalization": config.get("normalization"),
        "config": {key: value for key, value in config.items() if key not in ("contract", "normalization")},
        "datasets": _datasets(state, policy),
        "code": {"twinloop": __version__},
        "evaluations": [],
    }


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


def _datasets(state: State, policy: str | None) -> list[dict[str, Any]]:
    """The frozen datasets that trained a policy, and those of what its training went on from."""
    if policy is None:
        return []
    rows = state.rows(
        "WITH RECURSIVE line(policy) AS (SELECT ? UNION SELECT p.base FROM policies p JOIN line USING (policy) "
        "WHERE p.base IS NOT NULL) SELECT DISTINCT d.dataset AS hash, d.said AS said FROM policy_datasets d "
        "JOIN line USING (policy) ORDER BY d.said",
        (policy,),
    )
    return [dict(row) for row in rows]


def text(record: Mapping[str, Any]) -> str:
    """A record as it is stored."""
    return json.dumps(record, sort_keys=True, allow_nan=False)
