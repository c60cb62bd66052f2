"""Check arguments that have the same meaning in every command: seeds, process counts, levels and local paths."""

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
    """Check the numbers in a request: seeds, numbers of processes and threads, and the confidence level.

    Args:
        command: Request of the command, a dataclass whose fields are the flags.

    Raises:
        InputError: If a seed does not fit in 64 bits, a number of processes or threads is negative, or the level is not
            between 0 and 1.
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
    """Yield the names and values of all numbers in a request, including those of its subcommand."""
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
    """Check that no URL is given where a local path is required.

    Otherwise a folder with the URL as its name, credentials included, would be created.

    Args:
        command: Request of the command, a dataclass whose fields are the flags.

    Raises:
        InputError: If a path has the form of a URL and does not exist.
    """
    for name, path in _iterate_paths(command):
        if _ADDRESS.match(str(path)) and not path.exists():
            raise InputError(
                f"{name} {path} is an address, but a local file or folder is needed. Copy a dataset here with "
                "`twinloop fetch ADDRESS DIR` or `twinloop pull`, or write to a folder and copy it to the store."
            )


def _iterate_paths(command: object) -> Iterator[tuple[str, Path]]:
    """Yield the flag and the value of all paths in a request, including those of nested settings."""
    if not dataclasses.is_dataclass(command):
        return
    for name, value in vars(command).items():
        values: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
        for item in values:
            if isinstance(item, Path):
                yield f"--{name.replace('_', '-')}", item
            else:
                yield from _iterate_paths(item)
