"""Refuse the address of a store where a command takes a local file or folder."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from twinloop.core.errors import InputError

# A path keeps one of the two slashes of an address; "simplecache::s3://…" is an address, too.
_ADDRESS = re.compile(r"(?:[A-Za-z][\w+.-]*::)*[A-Za-z][A-Za-z0-9+.-]+:/")


def check_local_paths(command: object) -> None:
    """Refuse an address given as a path, before a local folder of that name, credentials included, is made.

    Raises:
        InputError: names the flag.
    """
    for name, path in _paths(command):
        if _ADDRESS.match(str(path)) and not path.exists():
            raise InputError(
                f"{name} {path} is an address, and this takes a local file or folder. Bring a dataset here with "
                "`twinloop fetch ADDRESS DIR` or `twinloop pull`, or write to a folder and copy it to the store."
            )


def _paths(command: object) -> Iterator[tuple[str, Path]]:
    """Yield the paths of a command and of the settings within it, each with its flag."""
    if not dataclasses.is_dataclass(command):
        return
    for name, value in vars(command).items():
        values: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
        for item in values:
            if isinstance(item, Path):
                yield f"--{name.replace('_', '-')}", item
            else:
                yield from _paths(item)
