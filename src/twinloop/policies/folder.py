"""What lies in a policy's folder, and its settings read without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twinloop.core.documents import read_json
from twinloop.core.errors import InputError
from twinloop.policies.card import Card

SCHEMA = 1
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
README = "README.md"
RESTORE = "Restore the folder from its origin, or train again."
_KEYS = ("schema", "kind", "settings", "contract", "statistics", "hash")


def read_config(folder: Path) -> dict[str, Any]:
    """What stands in a policy's ``config.json``.

    Raises:
        InputError: no such folder, no policy in it, a missing key or a newer schema; names the file.
    """
    path = folder / CONFIG
    if not path.is_file():
        there = "no such folder" if not folder.is_dir() else f"it has no {CONFIG}"
        raise InputError(f"{folder} is no policy: {there}. A policy is a folder with {CONFIG} and {WEIGHTS}.")
    config = read_json(path)
    missing = [key for key in _KEYS if not isinstance(config, dict) or key not in config]
    if missing:
        raise InputError(f"{path} lacks {', '.join(missing)}: it is damaged or not ours. {RESTORE}")
    if not isinstance(config["schema"], int) or config["schema"] > SCHEMA:
        raise InputError(f"{path} has schema {config['schema']}; this version reads up to {SCHEMA}. Upgrade twinloop.")
    return config


def read_card(folder: str | Path) -> Card:
    """The card of a saved policy as its maker gave it.

    Raises:
        InputError: no policy there, or the card is damaged.
    """
    path = Path(folder)
    return Card.from_json(read_config(path).get("card", {}), where=str(path / CONFIG))
