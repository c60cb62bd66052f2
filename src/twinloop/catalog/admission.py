"""What a dataset's metadata may say before anything else of it is believed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twinloop.core.errors import DatasetError
from twinloop.core.files import read_json
from twinloop.dataset import layout


def checked_info(folder: Path) -> dict[str, Any]:
    """``info.json`` of a LeRobot v3.0 folder.

    Raises:
        DatasetError: it is another version, or says what cannot be.
    """
    info = read_json(folder / layout.INFO)
    version = str(info.get("codebase_version"))
    if not version.startswith("v3."):
        raise DatasetError(
            f"{folder} is LeRobot {version}; the catalog takes v3.0. `twinloop import {folder} --output FOLDER` makes "
            "one of it."
        )
    return info
