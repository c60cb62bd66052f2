"""Numbers that mean the same to every command, held against what they can be before anything is opened."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from twinloop.core.errors import InputError

_SEEDS = ("seed", "run_seed", "plan_seed")
_PROCESSES = ("workers", "threads")
_MOST = 2**63  # datasets and the catalog store seeds as 64-bit integers


def check_numbers(command: object) -> None:
    """Refuse a seed that cannot be stored, fewer than no processes, and a level that is no probability.

    Raises:
        InputError: names the flag.
    """
    for name, value in _given(command):
        flag = f"--{name.replace('_', '-')} {value}"
        if name in _SEEDS and not 0 <= value < _MOST:
            raise InputError(f"{flag} is no seed. Give a whole number from 0 to 2^63 − 1.")
        if name in _PROCESSES and value < 0:
            rest = "processes, or 0 for every core" if name == "workers" else "threads, or leave it out"
            raise InputError(f"{flag}: give a number of {rest}.")
        if name == "level" and not 0 < value < 1:
            raise InputError(f"{flag} is no confidence level between 0 and 1. Write 95 % as 0.95.")


def _given(command: object) -> Iterator[tuple[str, Any]]:
    """The numbers of a command and of the action within it."""
    if not dataclasses.is_dataclass(command):
        return
    for name, value in vars(command).items():
        if name == "action":
            yield from _given(value)
        elif isinstance(value, int | float):
            yield name, value
