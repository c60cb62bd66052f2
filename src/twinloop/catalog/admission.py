"""What a dataset's metadata may say before anything else of it is believed."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from twinloop.core.errors import DatasetError, InputError
from twinloop.core.files import read_json
from twinloop.dataset import layout
from twinloop.dataset.declared import require_possible

MOST_INFO_BYTES = 64 << 20
_SHOWN = 8  # datasets of a folder that a message names


def checked_info(folder: Path) -> dict[str, Any]:
    """``info.json`` of a LeRobot v3.0 folder, once what it says can be.

    Raises:
        DatasetError: it is no such folder, another version, or says what cannot be; names the key.
    """
    where = folder / layout.INFO
    if not where.is_file():
        inner = _datasets_in(folder)
        if inner:
            named = " ".join(shlex.quote(str(path)) for path in inner[:_SHOWN]) + (" …" if len(inner) > _SHOWN else "")
            raise DatasetError(f"{folder} is no dataset and holds {len(inner)}. Name them: `twinloop add {named}`.")
        raise DatasetError(
            f"{folder} is no LeRobot v3.0 dataset: {layout.INFO} is missing. A robot's log of another kind becomes "
            f"one by `twinloop import {folder} --output FOLDER`."
        )
    if where.stat().st_size > MOST_INFO_BYTES:
        raise DatasetError(f"{where} has {where.stat().st_size} bytes; no metadata are that large. Export it again.")
    try:
        info = read_json(where)
    except InputError as error:
        raise DatasetError(str(error)) from error
    if not isinstance(info, dict):
        raise DatasetError(f"{where} holds a {type(info).__name__}, not the keys of a dataset. Export it again.")
    version = str(info.get("codebase_version"))
    if not version.startswith("v3."):
        raise DatasetError(
            f"{folder} is LeRobot {version}; the catalog takes v3.0. `twinloop import {folder} --output FOLDER` makes "
            "one of it."
        )
    require_possible(info, folder)
    return info


def _datasets_in(folder: Path) -> list[Path]:
    """Datasets right in a folder, or one below, as a hub's OWNER/NAME."""
    found = [path for depth in ("*", "*/*") for path in folder.glob(f"{depth}/{layout.INFO}")]
    return sorted(path.parents[1] for path in found)
