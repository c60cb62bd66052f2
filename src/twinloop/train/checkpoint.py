"""Where a training run stands, in one file that is replaced whole: weights, optimizer, best so far, and the record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors  # pyright: ignore[reportMissingImports]
import safetensors.torch  # pyright: ignore[reportMissingImports]
from torch import Tensor  # pyright: ignore[reportMissingImports]

from twinloop.core.documents import parse_json, require_regular
from twinloop.core.errors import InputError
from twinloop.core.files import dumps, write_bytes
from twinloop.train.config import CHECKPOINT, RESULT

FILE = CHECKPOINT
_SCHEMA = 1
_KEY = "twinloop"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """``tensors`` by name and ``facts`` in plain values."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]

    def group(self, name: str) -> dict[str, Tensor]:
        """The tensors whose names begin with ``NAME/``, without it."""
        prefix = f"{name}/"
        return {key.removeprefix(prefix): value for key, value in self.tensors.items() if key.startswith(prefix)}


def write_checkpoint(folder: Path, groups: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]) -> None:
    """Replace the folder's checkpoint.

    Raises:
        DatasetError: the disk is full; the checkpoint before is still there.
    """
    tensors = {
        f"{group}/{name}": value.detach().to("cpu").contiguous()
        for group, values in groups.items()
        for name, value in values.items()
    }
    said = {_KEY: dumps({"schema": _SCHEMA, **facts})}
    write_bytes(folder / FILE, safetensors.torch.save(tensors, metadata=said))


def read_checkpoint(folder: Path) -> Checkpoint:
    """The folder's checkpoint.

    Raises:
        InputError: there is none, or it is damaged, or of a newer version.
    """
    path = folder / FILE
    if (folder / RESULT).is_file():
        raise InputError(
            f"{folder} holds a finished run: nothing is left to resume. `--adapt {folder}` with another --output "
            "trains on from its weights."
        )
    if not path.is_file():
        raise InputError(f"{folder} holds no run to resume: {FILE} is missing. Train without --resume.")
    require_regular(path)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            facts = parse_json((file.metadata() or {})[_KEY], where=str(path))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (safetensors.SafetensorError, OSError, KeyError, ValueError) as error:
        raise InputError(
            f"{path} ({path.stat().st_size} bytes) is no whole checkpoint ({error}). Put a copy of it back, "
            "or train anew."
        ) from error
    if facts.get("schema") != _SCHEMA:
        raise InputError(f"{path} has schema {facts.get('schema')}, this version reads {_SCHEMA}. Update twinloop.")
    return Checkpoint(tensors=tensors, facts=facts)
