"""Find the recordings in a set's folder by pattern, in a stable order."""

from __future__ import annotations

import re
from pathlib import Path

from twinloop.core.errors import LogError


def find_recordings(folder: Path, subfolder: str, pattern: str) -> list[Path]:
    """Return the matching files of ``folder/subfolder``, sorted by folder and by the numbers in their names.

    Without that subfolder, ``folder`` itself is searched.

    Raises:
        LogError: no file matches.
    """
    inner = folder / subfolder
    found = sorted((inner if inner.is_dir() else folder).glob(pattern), key=_sort_key)
    if not found:
        raise LogError(f"{folder} holds no recordings of this set: it has no {subfolder}/{pattern}.")
    return found


def recording_number(path: Path) -> int:
    """Return the last number in a file's name, which is the number of the recording.

    Raises:
        LogError: the name has no number.
    """
    digits = re.findall(r"\d+", path.stem)
    if not digits:
        raise LogError(f"{path} has no number in its name, by which this set's recordings are known.")
    return int(digits[-1])


def _sort_key(path: Path) -> tuple[str, list[tuple[int, str]]]:
    parts = re.findall(r"(\d+)|(\D+)", path.stem)
    return str(path.parent), [(int(digits), "") if digits else (-1, text) for digits, text in parts]
