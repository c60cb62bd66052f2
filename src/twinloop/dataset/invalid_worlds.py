"""Store and read the invalid worlds of a dataset: attempts whose simulation diverged.

They are in ``twinloop/invalid``, separate from the episodes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.files import dumps
from twinloop.core.records import Provenance
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.parquet import read_table, to_lists


@dataclass(frozen=True, kw_only=True)
class InvalidAttempt:
    """One attempt whose simulation diverged.

    A step from the last state with the last command reproduces the divergence.

    Attributes:
        number: Number of the attempt.
        step: Control step in which the simulation diverged.
        reason: Reason of the divergence.
        states: Valid simulator states, shape ``(step + 1, nstate)``.
        commands: Actuator commands of the control steps, shape ``(step + 1, nu)``; the last one was applied when
            the simulation diverged.
        provenance: Twin, parameter values and seed of the attempt.
    """

    number: int
    step: int
    reason: str
    states: NDArray[np.float64]
    commands: NDArray[np.float64]
    provenance: Provenance


def invalid_worlds_table(items: Sequence[InvalidAttempt]) -> pa.Table:
    """Return a table with one row per invalid attempt.

    Columns are the number, step, reason, flat float64 states and commands with their widths, and the provenance as
    JSON.
    """
    return pa.table(
        {
            "number": pa.array([item.number for item in items], pa.int64()),
            "step": pa.array([item.step for item in items], pa.int64()),
            "reason": pa.array([item.reason for item in items], pa.string()),
            "states": to_lists([item.states for item in items]),
            "state_width": pa.array([item.states.shape[1] for item in items], pa.int64()),
            "commands": to_lists([item.commands for item in items]),
            "command_width": pa.array([item.commands.shape[1] for item in items], pa.int64()),
            "provenance": pa.array([dumps(item.provenance.to_json()) for item in items], pa.string()),
        }
    )


def invalid_world_numbers(root: Path) -> list[int]:
    """Return the attempt numbers of a dataset's invalid worlds, in stored order."""
    return [number for path in _files(root) for number in read_table(path, ["number"])["number"].to_pylist()]


def read_invalid_world(root: Path, number: int) -> InvalidAttempt:
    """Read one invalid attempt of a dataset.

    Args:
        root: Folder of the dataset.
        number: Number of the attempt.

    Raises:
        InputError: If the dataset has no invalid attempt of this number.
    """
    for path in _files(root):
        found = read_table(path, ["number"])["number"].to_pylist()
        if number in found:
            return _record(read_table(path).slice(found.index(number), 1).to_pylist()[0], where=str(path))
    numbers = invalid_world_numbers(root)
    known = ", ".join(map(str, numbers[:12])) + (", …" if len(numbers) > 12 else "")
    raise InputError(
        f"Attempt {number} of {root} is not invalid. "
        + (f"Invalid attempts: {known}." if numbers else "It has no invalid attempts.")
    )


def _files(root: Path) -> list[Path]:
    return sorted((root / layout.INVALID).glob("chunk-*/file-*.parquet"))


def _record(row: dict[str, Any], *, where: str) -> InvalidAttempt:
    with layout.wrap_parse_errors(where):
        return InvalidAttempt(
            number=row["number"],
            step=row["step"],
            reason=row["reason"],
            states=np.array(row["states"]).reshape(-1, row["state_width"]),
            commands=np.array(row["commands"]).reshape(-1, row["command_width"]),
            provenance=Provenance.from_json(json.loads(row["provenance"])),
        )
