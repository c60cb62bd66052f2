"""Find the recordings of a public set in its folder, in a stable order.

A public set is a published set of measurements on a real system (see `public_sets`). Each file that matches the file
pattern of the set is one recording.
"""

from __future__ import annotations

import re
from pathlib import Path

from twinloop.core.errors import LogError


def find_recordings(folder: Path, subfolder: str, pattern: str) -> list[Path]:
    """Return the files of ``folder/subfolder`` that match a pattern, sorted by folder and by number in the name.

    If there is no such subfolder, ``folder`` itself is searched.

    Args:
        folder: Folder of the set.
        subfolder: Usual folder of the recordings.
        pattern: Glob pattern of the files, relative to the subfolder.

    Raises:
        LogError: If no file matches.
    """
    inner = folder / subfolder
    found = sorted((inner if inner.is_dir() else folder).glob(pattern), key=_sort_key)
    if not found:
        raise LogError(f"{folder} holds no recordings of this set: it has no {subfolder}/{pattern}.")
    return found


def recording_number(path: Path) -> int:
    """Return the last number in a file's name, which is the number of the recording.

    Raises:
        LogError: If the name has no number.
    """
    digits = re.findall(r"\d+", path.stem)
    if not digits:
        raise LogError(f"{path} has no number in its name, which must be the number of the recording.")
    return int(digits[-1])


def _sort_key(path: Path) -> tuple[str, list[tuple[int, str]]]:
    parts = re.findall(r"(\d+)|(\D+)", path.stem)
    return str(path.parent), [(int(digits), "") if digits else (-1, text) for digits, text in parts]
