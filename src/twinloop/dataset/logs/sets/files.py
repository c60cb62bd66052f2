"""Files of a set's folder, by pattern and in a stable order."""

from __future__ import annotations

import re
from pathlib import Path

from twinloop.core.errors import LogError


def recordings(folder: Path, subfolder: str, pattern: str) -> list[Path]:
    """The files of ``folder/subfolder`` that match, sorted by the numbers in their names, then by name.

    A folder without that subfolder is taken for it.

    Raises:
        LogError: none is there.
    """
    inner = folder / subfolder
    found = sorted((inner if inner.is_dir() else folder).glob(pattern), key=_order)
    if not found:
        raise LogError(f"{folder} holds no recordings of this set: it has no {subfolder}/{pattern}.")
    return found


def number(path: Path) -> int:
    """The last number in a file's name: its own number in sets that count their recordings.

    Raises:
        LogError: the name has none.
    """
    digits = re.findall(r"\d+", path.stem)
    if not digits:
        raise LogError(f"{path} has no number in its name, by which this set's recordings are known.")
    return int(digits[-1])


def _order(path: Path) -> tuple[str, list[tuple[int, str]]]:
    parts = re.findall(r"(\d+)|(\D+)", path.stem)
    return str(path.parent), [(int(digits), "") if digits else (-1, text) for digits, text in parts]
