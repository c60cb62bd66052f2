"""Check and parse the content of a policy's ``config.json``, which a policy's ONNX file has too; without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twinloop.core.contract import Contract
from twinloop.core.errors import InputError
from twinloop.policies.settings import Settings, read_settings
from twinloop.policies.statistics import Statistics

SCHEMA = 1
CONFIG = "config.json"
RESTORE = "Restore the folder from its origin, or train again."
_KEYS = ("schema", "kind", "settings", "contract", "statistics", "hash")


def check_config(config: Any, *, where: str) -> dict[str, Any]:
    """Return the content of a ``config.json`` after checking that its keys exist and its schema is known.

    Args:
        config: the content.
        where: origin of the content, for the message.

    Raises:
        InputError: If a key is missing, or the content is of a newer version.
    """
    missing = [key for key in _KEYS if not isinstance(config, dict) or key not in config]
    if missing:
        raise InputError(f"{where} has no {', '.join(missing)}: it is damaged or not from twinloop. {RESTORE}")
    if not isinstance(config["schema"], int) or config["schema"] > SCHEMA:
        raise InputError(f"{where} has schema {config['schema']}; this version reads up to {SCHEMA}. Upgrade twinloop.")
    return config


def parse_config(config: Mapping[str, Any], *, where: str) -> tuple[Contract, Settings, Statistics]:
    """Return contract, settings and statistics in the content of a policy's ``config.json``.

    Args:
        config: the content.
        where: origin of the content, for messages.

    Raises:
        InputError: If one of them is damaged.
    """
    try:
        contract = Contract.from_json(config["contract"])
        statistics = Statistics.from_json(config["statistics"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{where} is damaged: its contract or statistics cannot be read ({type(error).__name__}: {error}). Restore "
            "it from its origin."
        ) from error
    return contract, read_settings(str(config["kind"]), config["settings"], where=where), statistics
