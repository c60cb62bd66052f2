"""Check what a dataset folder's metadata may say, and tell whether it grew, moved or was written anew.

The episode table is told by size and end of each of its files: a Parquet file ends in its footer, which holds the place
and the extremes of every column, so that other rows have another end. Names and times of files do not count, so a
moved or copied folder is still the same.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from twinloop.core.documents import parse_json, read_json, require_regular
from twinloop.core.errors import DatasetError, InputError
from twinloop.core.files import sha256_bytes, sha256_json
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.validation import require_possible

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


Change = Literal["same", "grown", "changed"]

_END = 1 << 16  # bytes: more than the footer of a block of 64 episodes


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """Digest of ``info.json``, and of each file of the episode table by its path in the folder."""

    info: str
    files: Mapping[str, str]

    @classmethod
    def of(cls, folder: Path) -> Fingerprint:
        """The fingerprint of a folder as it is now.

        Raises:
            DatasetError: it is no dataset, or was swapped meanwhile again and again.
        """
        if (folder / layout.INFO).exists():
            require_regular(folder / layout.INFO)
        for _ in range(3):
            try:
                info = sha256_bytes((folder / layout.INFO).read_bytes())
                found = {path: _digest(folder / path) for path in episode_files(folder)}
                if info == sha256_bytes((folder / layout.INFO).read_bytes()):
                    return cls(info=info, files=found)
            except FileNotFoundError:
                continue
        raise DatasetError(f"{folder} is not a LeRobot dataset, or changes while it is read. Check the path.")

    @property
    def hash(self) -> str:
        """One name for all of it."""
        return sha256_json([self.info, dict(self.files)])

    def to_text(self) -> str:
        """JSON, for the table of batches."""
        return json.dumps({"info": self.info, "files": dict(self.files)})

    @classmethod
    def from_text(cls, text: str) -> Fingerprint:
        """The inverse of `to_text`."""
        value = parse_json(text, where="A stored fingerprint")
        return cls(info=value["info"], files=value["files"])

    def since(self, before: Fingerprint) -> Change:
        """What became of the folder that looked like ``before``: files added only, or something else."""
        if self == before:
            return "same"
        kept = all(self.files.get(path) == digest for path, digest in before.files.items())
        return "grown" if kept and len(self.files) >= len(before.files) else "changed"


def episode_files(folder: Path) -> list[str]:
    """The files of a folder's episode table, in order."""
    found = sorted((folder / "meta" / "episodes").glob("chunk-*/file-*.parquet"))
    return [path.relative_to(folder).as_posix() for path in found]


def _digest(path: Path) -> str:
    if path.exists():
        require_regular(path)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _END))
        return sha256_bytes(str(size).encode(), file.read())
