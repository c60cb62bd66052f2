"""A pinned world as a folder: ``scenario.yaml`` for people, ``arrays.npz`` without pickles, one hash over both."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from twinloop.core.documents import read_arrays
from twinloop.core.errors import InputError
from twinloop.core.files import sha256_json, write_bytes, write_text
from twinloop.core.params import ParamTable
from twinloop.core.yaml_documents import load_yaml
from twinloop.rollout.pinned import INITIAL_ARRAYS, Origin, PinnedWorld
from twinloop.simulate import InitialState
from twinloop.twin.spec import describe

SCENARIO, ARRAYS = "scenario.yaml", "arrays.npz"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}", re.IGNORECASE)
_MOST_BYTES = 2**28  # of all arrays unpacked: a minute of a humanoid's commands and a thousand draws are 1 % of it
_STEPS = "steps/"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Outcome(_Strict):
    success: bool
    reason: str = ""


class _Chance(_Strict):
    run_seed: int
    episode: int = Field(ge=0)
    attempt: int = Field(default=0, ge=0)


class _Origin(_Strict):
    source: Literal["real", "sim", "augmented", "human-in-the-loop"] = "sim"
    place: str = ""
    episode_id: str = ""
    episode: int = -1
    actor: str = ""


class _File(_Strict):
    """``scenario.yaml``."""

    schema_: Literal[1] = Field(alias="schema")
    name: str
    meaning: str = ""
    outcome: _Outcome
    twin: str
    twin_hash: str
    task: str
    task_version: str
    success_version: str
    steps: int = Field(ge=1)
    chance: _Chance
    parameters: dict[str, float] = {}
    origin: _Origin = _Origin()
    evidence: dict[str, Any] = {}
    versions: dict[str, str] = {}
    hash: str


def check_name(name: str) -> str:
    """A scenario's name, which becomes a folder's.

    Raises:
        InputError: it is not letters, digits, dots, dashes and underscores, or is too long.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} is no name of a scenario. Use up to 80 letters, digits, dots, dashes and underscores, and begin "
            "with a letter or a digit."
        )
    return name


def write_pinned(pinned: PinnedWorld, folder: Path) -> Path:
    """Store a world in a folder of its own; an earlier one there must be moved away first.

    Raises:
        InputError: the folder holds a scenario already, or the name is none.
    """
    check_name(pinned.name)
    check_free(folder)
    rewrite_pinned(pinned, folder)
    return folder


def check_free(folder: Path) -> None:
    """Whether a scenario may be stored in a folder, asked before it is made.

    Raises:
        InputError: the folder holds one already.
    """
    if (folder / SCENARIO).exists():
        raise InputError(f"{folder} holds a scenario already. Choose another --name, or move that one away.")


def rewrite_pinned(pinned: PinnedWorld, folder: Path) -> None:
    """Store a world in place of what the folder holds of it: what was measured of it since, or where it moved to."""
    packed = io.BytesIO()
    np.savez_compressed(packed, names=np.array(pinned.params.names), **pinned.arrays)  # pyright: ignore[reportArgumentType]
    write_bytes(folder / ARRAYS, packed.getvalue())
    write_text(folder / SCENARIO, yaml.safe_dump(_said(pinned), sort_keys=False, allow_unicode=True, width=110))


def read_pinned(folder: Path) -> PinnedWorld:
    """The world that a folder holds.

    Raises:
        InputError: a file is missing, is not what `write_pinned` writes, or was changed since; names the file and key.
    """
    path = folder / SCENARIO
    if not path.is_file():
        raise InputError(f"{folder} holds no {SCENARIO}, so it is no scenario. Give a folder that `scenario` wrote.")
    try:
        said = _File.model_validate(load_yaml(path))
    except ValidationError as error:
        raise InputError(describe(error, where=str(path), model=_File)) from error
    arrays, names = _arrays(folder / ARRAYS)
    pinned = _made(said, arrays, names, folder)
    if said.hash != _hash(pinned):
        raise InputError(
            f"{folder} was changed after it was stored: its hash is {_hash(pinned)[:12]}, and {SCENARIO} says "
            f"{said.hash[:12]}. Only `meaning` may be edited. Restore both files, or pin the failure again."
        )
    return pinned


def _hash(pinned: PinnedWorld) -> str:
    """Over everything that is stored but ``meaning``."""
    return sha256_json([pinned.hash, pinned.name, pinned.twin, pinned.reason, asdict(pinned.origin), pinned.evidence])


def _said(pinned: PinnedWorld) -> dict[str, Any]:
    return {
        "schema": 1,
        "name": pinned.name,
        "meaning": pinned.meaning,
        "outcome": {"success": pinned.success, "reason": pinned.reason},
        "twin": pinned.twin,
        "twin_hash": pinned.twin_hash,
        "task": pinned.task,
        "task_version": pinned.task_version,
        "success_version": pinned.success_version,
        "steps": pinned.nstep,
        "chance": {"run_seed": pinned.run_seed, "episode": pinned.episode, "attempt": pinned.attempt},
        "parameters": pinned.departures,
        "origin": asdict(pinned.origin),
        "evidence": dict(pinned.evidence),
        "versions": dict(pinned.versions),
        "hash": _hash(pinned),
    }


def _arrays(path: Path) -> tuple[dict[str, NDArray[np.float64]], tuple[str, ...]]:
    if not path.exists():
        raise InputError(f"{path} does not exist. Restore it: {SCENARIO} alone does not hold the world.")
    found = read_arrays(path, most=_MOST_BYTES, where=str(path))
    names = tuple(str(name) for name in found.pop("names", np.array([])).tolist())
    for key, value in found.items():
        if value.dtype != np.float64 or not np.isfinite(value).all():
            raise InputError(f"{path}: {key} is not all finite numbers. Restore the file, or pin the failure again.")
    return found, names


def _made(said: _File, arrays: Mapping[str, NDArray[np.float64]], names: tuple[str, ...], folder: Path) -> PinnedWorld:
    path = folder / ARRAYS
    missing = [key for key in ("params", *INITIAL_ARRAYS) if key not in arrays]
    if missing:
        raise InputError(f"{path} lacks {', '.join(missing)}. Restore the file, or pin the failure again.")
    if arrays["params"].shape != (len(names),):
        raise InputError(f"{path} holds {arrays['params'].size} values of {len(names)} parameters. Restore the file.")
    row = dict(zip(names, arrays["params"].tolist(), strict=True))
    other = [name for name, value in said.parameters.items() if row.get(name) != value]
    if other:
        raise InputError(
            f"{folder / SCENARIO}: parameters.{other[0]} is {said.parameters[other[0]]:g}, and {ARRAYS} has "
            f"{row.get(other[0], float('nan')):g}. Only `meaning` may be edited: try other values with `twinloop "
            f"scenario counterfactual {said.name} --what '{other[0]}={said.parameters[other[0]]:g}'`."
        )
    steps = {key.removeprefix(_STEPS): value[None] for key, value in arrays.items() if key.startswith(_STEPS)}
    try:
        return PinnedWorld(
            name=check_name(said.name),
            twin=said.twin,
            twin_hash=said.twin_hash,
            task=said.task,
            task_version=said.task_version,
            success_version=said.success_version,
            params=ParamTable(names=names, values=arrays["params"][None], steps=steps),
            initial=InitialState(**{key: arrays[key][None] for key in INITIAL_ARRAYS}),  # pyright: ignore[reportArgumentType]
            run_seed=said.chance.run_seed,
            episode=said.chance.episode,
            attempt=said.chance.attempt,
            nstep=said.steps,
            success=said.outcome.success,
            reason=said.outcome.reason,
            commands=arrays.get("commands"),
            readings=arrays.get("readings"),
            draws=arrays.get("draws"),
            departs=tuple(said.parameters),
            origin=Origin(**said.origin.model_dump()),
            meaning=said.meaning,
            evidence=said.evidence,
            versions=said.versions,
        )
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} does not fit {SCENARIO} ({error}). Restore both files.") from error


def stored(folder: Path) -> list[Path]:
    """The folders of scenarios in a folder of scenarios, by name; none where there is no such folder."""
    return sorted(path.parent for path in folder.glob(f"*/{SCENARIO}"))
