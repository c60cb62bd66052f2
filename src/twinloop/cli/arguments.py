"""Check arguments that have the same meaning in every command: numbers, repeated flags, local paths."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from twinloop.core.errors import InputError

_SEEDS = ("seed", "run_seed", "plan_seed")
_PROCESSES = ("workers", "threads")
_MOST = 2**63  # datasets and the catalog store seeds as 64-bit integers


def check_numbers(command: object) -> None:
    """Refuse a seed that cannot be stored, a negative number of processes or threads, and a level outside of 0 to 1.

    Raises:
        InputError: names the flag.
    """
    for name, value in _iterate_numbers(command):
        flag = f"--{name.replace('_', '-')} {value}"
        if name in _SEEDS and not 0 <= value < _MOST:
            raise InputError(f"{flag} is not a seed. Give a whole number from 0 to 2^63 − 1.")
        if name in _PROCESSES and value < 0:
            rest = "processes, or 0 for every core" if name == "workers" else "threads, or leave it out"
            raise InputError(f"{flag}: give a number of {rest}.")
        if name == "level" and not 0 < value < 1:
            raise InputError(f"{flag} is not a confidence level between 0 and 1. Write 95 % as 0.95.")


def _iterate_numbers(command: object) -> Iterator[tuple[str, Any]]:
    """Yield the numbers of a command and of its subcommand, with their names."""
    if not dataclasses.is_dataclass(command):
        return
    for name, value in vars(command).items():
        if name == "action":
            yield from _iterate_numbers(value)
        elif isinstance(value, int | float):
            yield name, value


# Path() removes one of the two slashes of an address; "simplecache::s3://…" is an address, too.
_ADDRESS = re.compile(r"(?:[A-Za-z][\w+.-]*::)*[A-Za-z][A-Za-z0-9+.-]+:/")


def check_local_paths(command: object) -> None:
    """Refuse an address that is given as a local path.

    Otherwise a folder with this name, credentials included, would be created.

    Raises:
        InputError: names the flag.
    """
    for name, path in _iterate_paths(command):
        if _ADDRESS.match(str(path)) and not path.exists():
            raise InputError(
                f"{name} {path} is an address, but a local file or folder is needed. Copy a dataset here with "
                "`twinloop fetch ADDRESS DIR` or `twinloop pull`, or write to a folder and copy it to the store."
            )


def _iterate_paths(command: object) -> Iterator[tuple[str, Path]]:
    """Yield the paths of a command and of the settings within it, each with its flag."""
    if not dataclasses.is_dataclass(command):
        return
    for name, value in vars(command).items():
        values: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
        for item in values:
            if isinstance(item, Path):
                yield f"--{name.replace('_', '-')}", item
            else:
                yield from _iterate_paths(item)
