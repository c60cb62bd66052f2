"""Write and read a policy's folder: ``config.json``, ``model.safetensors`` and ``README.md``; pickles are never read.

The hash of a policy covers all data that determine the commands: every tensor with its name, type and shape (weights
and normalization), the kind, the settings and the contract. Model card, versions and statistics are not covered, so
that they may be corrected.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import safetensors  # pyright: ignore[reportMissingImports]
import safetensors.torch  # pyright: ignore[reportMissingImports]
import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor  # pyright: ignore[reportMissingImports]

from twinloop.core.assignment import copy_sources
from twinloop.core.documents import read_bytes
from twinloop.core.errors import InputError
from twinloop.core.files import dumps, sha256_bytes
from twinloop.dataset.storage.snapshot import create_locked_snapshot, replace_bytes
from twinloop.policies.config import CONFIG, RESTORE, SCHEMA
from twinloop.policies.folder import README, WEIGHTS, PolicyCard, render_card

_MOST_BYTES = 16 << 30  # maximum size of the weights: twice that of the largest open policies
_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")  # first bytes of torch.save and pickle


def content_hash(tensors: Mapping[str, Tensor], identity: Mapping[str, Any]) -> str:
    """Return the hexadecimal SHA-256 of a policy's content.

    Args:
        tensors: weights and normalization, by name.
        identity: kind, settings and contract of the policy.
    """
    parts = [json.dumps(json.loads(dumps(identity)), sort_keys=True).encode()]
    for name in sorted(tensors):
        values = tensors[name].detach().to("cpu").contiguous()
        parts += [f"{name} {values.dtype} {tuple(values.shape)}".encode(), values.numpy().tobytes()]
    return sha256_bytes(*parts)


def write_policy(
    folder: Path,
    tensors: Mapping[str, Tensor],
    identity: Mapping[str, Any],
    statistics: Mapping[str, Any],
    card: PolicyCard,
) -> Path:
    """Write the files of a policy's folder in one step; return the folder.

    ``model.safetensors`` contains the tensors, ``config.json`` everything else, and ``README.md`` the model card as
    text. The files of the user's own twin and task are below ``sources``. Other processes see the folder either before
    or after all changes.

    Args:
        folder: the folder.
        tensors: weights and normalization, by name.
        identity: kind, settings and contract of the policy.
        statistics: statistics as a JSON value.
        card: model card.

    Raises:
        InputError: If a tensor has numbers that are not finite. Nothing is written then.
        DatasetError: If the folder cannot be written, or another process writes it.
    """
    plain = {name: values.detach().to("cpu").contiguous() for name, values in tensors.items()}
    require_finite(plain, where="This policy", remedy="Go back to a checkpoint before they appeared.")
    config = {
        "schema": SCHEMA,
        **identity,
        "hash": content_hash(plain, identity),
        "parameters": sum(values.numel() for name, values in plain.items() if name.startswith("network.")),
        "statistics": statistics,
        "versions": dict(_versions()),
        "card": card.to_json(),
    }
    facts = {"hash": config["hash"]}  # a single entry: safetensors writes several in a random order
    with create_locked_snapshot(folder) as stage:
        replace_bytes(stage / WEIGHTS, safetensors.torch.save(plain, metadata=facts))
        replace_bytes(stage / CONFIG, (dumps(config, indent=2) + "\n").encode())
        copy_sources(card.sources, stage)
        replace_bytes(stage / README, render_card(card, config).encode())
    return folder


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read the tensors of a policy's folder, by name.

    Raises:
        InputError: If the file is missing, a pickle, cut off or not safetensors, or a tensor has numbers that are not
            finite.
    """
    path = folder / WEIGHTS
    if not path.is_file():
        raise InputError(f"{path} does not exist: the policy has no weights. {RESTORE}")
    # Not memory-mapped: truncation of a mapped file would end the process.
    data = read_bytes(path, _MOST_BYTES)
    # The first eight bytes of safetensors are the length of the JSON after them, which may equal a pickle's (640).
    if data.startswith(_PICKLES) and data[8:9] != b"{":
        raise InputError(
            f"{path} is a pickle, as torch.save writes, which could run any code. It was not opened. Save the "
            "weights as safetensors."
        )
    try:
        tensors = safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise InputError(
            f"{path} ({len(data)} bytes) is not a complete safetensors file ({error}). {RESTORE}"
        ) from error
    require_finite(tensors, where=str(path), remedy=RESTORE)
    return tensors


def require_finite(tensors: Mapping[str, Tensor], *, where: str, remedy: str) -> None:
    """Raise an error if a tensor has numbers that are not finite.

    Args:
        tensors: the tensors, by name.
        where: origin of the tensors, the start of the message.
        remedy: sentence on the next step, the end of the message.

    Raises:
        InputError: If a tensor has such numbers.
    """
    for name, values in tensors.items():
        bad = int((~torch.isfinite(values)).sum())
        if bad:
            raise InputError(f"{where}: {name} has {bad} of {values.numel()} numbers that are not finite. {remedy}")


def require_matching_tensors(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor], *, where: str) -> None:
    """Raise an error if tensors do not fit a network.

    Args:
        tensors: the tensors, by name.
        wanted: tensors of the network, by name, whose names, shapes and types are required.
        where: origin of the tensors, for the message.

    Raises:
        InputError: If a tensor is missing, unexpected, or has another shape or type.
    """
    faults = [f"{name} is missing" for name in wanted if name not in tensors]
    faults += [f"{name} is not part of the network" for name in tensors if name not in wanted]
    for name in wanted.keys() & tensors.keys():
        mine, theirs = wanted[name], tensors[name]
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            faults.append(
                f"{name} is {theirs.dtype} {tuple(theirs.shape)} but must be {mine.dtype} {tuple(mine.shape)}"
            )
    if faults:
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise InputError(f"{where} does not fit its {CONFIG}: {'; '.join(sorted(faults)[:3])}{more}. {RESTORE}")


@functools.cache
def _versions() -> Mapping[str, str]:
    return {name: version(name) for name in ("twinloop", "torch", "safetensors", "numpy")}
