"""Store a pinned world as a folder, and move one to another version of its twin."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from twinloop.core.documents import read_arrays
from twinloop.core.errors import InputError
from twinloop.core.files import sha256_json, write_bytes, write_text
from twinloop.core.params import ParamTable, SeedPath
from twinloop.core.yaml_documents import load_yaml
from twinloop.rollout.pinned import INITIAL_ARRAYS, PinnedWorld, WorldOrigin, find_departures
from twinloop.simulate import InitialState
from twinloop.tasks import Task
from twinloop.twin import Twin
from twinloop.twin.spec import describe_errors

SCENARIO, ARRAYS = "scenario.yaml", "arrays.npz"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}", re.IGNORECASE)
_MOST_BYTES = 2**28  # unpacked arrays: a minute of a humanoid's commands and a thousand draws are 1 % of it
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


class _ScenarioFile(_Strict):
    """Schema of ``scenario.yaml``."""

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
    """Return a valid scenario name, which is also a folder name.

    Raises:
        InputError: it has other characters than letters, digits, dots, dashes and underscores, or is too long.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} is not a valid scenario name. Use up to 80 letters, digits, dots, dashes and underscores. Begin "
            "with a letter or a digit."
        )
    return name


def write_pinned(pinned: PinnedWorld, folder: Path) -> Path:
    """Store a world in a new folder; move an earlier scenario in this folder away first.

    Raises:
        InputError: the folder holds a scenario already, or the name is invalid.
    """
    check_name(pinned.name)
    check_free(folder)
    rewrite_pinned(pinned, folder)
    return folder


def check_free(folder: Path) -> None:
    """Check in advance that a scenario may be stored in a folder.

    Raises:
        InputError: the folder holds a scenario already.
    """
    if (folder / SCENARIO).exists():
        raise InputError(f"{folder} holds a scenario already. Choose another --name, or move that one away.")


def rewrite_pinned(pinned: PinnedWorld, folder: Path) -> None:
    """Replace the stored world in a folder, after new measurements or a move to another twin version."""
    packed = io.BytesIO()
    np.savez_compressed(packed, names=np.array(pinned.params.names), **pinned.arrays)  # pyright: ignore[reportArgumentType]
    write_bytes(folder / ARRAYS, packed.getvalue())
    write_text(folder / SCENARIO, yaml.safe_dump(_to_document(pinned), sort_keys=False, allow_unicode=True, width=110))


def read_pinned(folder: Path) -> PinnedWorld:
    """Read the world in a folder.

    Raises:
        InputError: a file is missing, has another form than `write_pinned` writes, or was changed since; the message
            names file and key.
    """
    path = folder / SCENARIO
    if not path.is_file():
        raise InputError(f"{folder} holds no {SCENARIO}, so it is not a scenario. Give a folder that `scenario` wrote.")
    try:
        said = _ScenarioFile.model_validate(load_yaml(path))
    except ValidationError as error:
        raise InputError(describe_errors(error, where=str(path), model=_ScenarioFile)) from error
    arrays, names = _read_world_arrays(folder / ARRAYS)
    pinned = _build_world(said, arrays, names, folder)
    if said.hash != _hash(pinned):
        raise InputError(
            f"{folder} was changed after it was stored: its hash is {_hash(pinned)[:12]}, but {SCENARIO} has "
            f"{said.hash[:12]}. Only `meaning` may be edited. Restore both files, or pin the failure again."
        )
    return pinned


def _hash(pinned: PinnedWorld) -> str:
    """Return the hash of all stored data except ``meaning``."""
    return sha256_json([pinned.hash, pinned.name, pinned.twin, pinned.reason, asdict(pinned.origin), pinned.evidence])


def _to_document(pinned: PinnedWorld) -> dict[str, Any]:
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


def _read_world_arrays(path: Path) -> tuple[dict[str, NDArray[np.float64]], tuple[str, ...]]:
    if not path.exists():
        raise InputError(f"{path} does not exist. Restore it: {SCENARIO} alone does not hold the world.")
    found = read_arrays(path, most=_MOST_BYTES, where=str(path))
    names = tuple(str(name) for name in found.pop("names", np.array([])).tolist())
    for key, value in found.items():
        if value.dtype != np.float64 or not np.isfinite(value).all():
            raise InputError(f"{path}: {key} is not all finite numbers. Restore the file, or pin the failure again.")
    return found, names


def _build_world(
    said: _ScenarioFile, arrays: Mapping[str, NDArray[np.float64]], names: tuple[str, ...], folder: Path
) -> PinnedWorld:
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
            f"scenario counterfactual {said.name} --change '{other[0]}={said.parameters[other[0]]:g}'`."
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
            origin=WorldOrigin(**said.origin.model_dump()),
            meaning=said.meaning,
            evidence=said.evidence,
            versions=said.versions,
        )
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} does not fit {SCENARIO} ({error}). Restore both files.") from error


def list_scenarios(folder: Path) -> list[Path]:
    """Return the scenario folders in a folder, sorted by name; empty if it does not exist."""
    return sorted(path.parent for path in folder.glob(f"*/{SCENARIO}"))


@dataclass(frozen=True, kw_only=True)
class RebasedWorld:
    """A world on another version of its twin; ``moved`` are parameters whose nominal values differ, (old, new)."""

    world: PinnedWorld
    moved: dict[str, tuple[float, float]]
    gone: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def text(self) -> str:
        """Description of the differences in one sentence."""
        parts = [f"{name} {old:g} → {value:g}" for name, (old, value) in list(self.moved.items())[:8]]
        parts += [f"no {name} any more" for name in self.gone[:4]] + [f"{name} is new" for name in self.new[:4]]
        more = len(self.moved) + len(self.gone) + len(self.new) - len(parts)
        said = ", ".join(parts) + (f", and {more} more" if more else "")
        return said or "no nominal value differs, but the model differs"


def rebase(pinned: PinnedWorld, twin: Twin, task: Task) -> RebasedWorld:
    """Return the same world on another version of its twin.

    Parameters that differ from nominal in the world keep their values; all others take the new twin's. Joints
    keep their initial positions. Objects, and the command before the first, are those of the task's present reset.

    Raises:
        InputError: the twin lacks parameters of the world, their values are outside its bounds, or its state layout
            differs; the message names all of them.
    """
    kept = [*pinned.departs, *(name for name in _find_drawn_names(pinned) if name not in pinned.departs)]
    lost = [f"it has no parameter {name} (pinned at {pinned.departures.get(name, np.nan):g})" for name in kept]
    lost = [text for text, name in zip(lost, kept, strict=True) if name not in twin.params]
    lost += _list_bound_violations(
        pinned, twin, [name for name in kept if name in twin.params]
    ) + _list_layout_differences(pinned, twin)
    if lost:
        raise InputError(
            f"Scenario {pinned.name} cannot be moved from {pinned.twin} {pinned.twin_hash[:12]} to {twin.name} "
            f"{twin.hash[:12]}: {'; '.join(lost)}. Pin the failure again on this twin, or keep the old version."
        )
    table = twin.table(1, pinned.departures).with_steps(pinned.params.steps)
    old = pinned.params.row(0)
    shared = [name for name in twin.params if name in old and name not in pinned.departs]
    moved = {name: (old[name], twin.params[name].nominal) for name in shared if old[name] != twin.params[name].nominal}
    world = replace(
        pinned,
        params=table,
        departs=find_departures(twin, table),
        draws=None if pinned.draws is None else _convert_draws(pinned, pinned.draws, table),
        twin_hash=twin.hash,
        task_version=task.version,
        initial=pinned.initial,
    )
    return RebasedWorld(
        world=_reset_world(world, twin, task),
        moved=moved,
        gone=tuple(name for name in old if name not in twin.params),
        new=tuple(name for name in twin.params if name not in old),
    )


def _find_drawn_names(pinned: PinnedWorld) -> list[str]:
    """Return the names of the drawn parameters."""
    if pinned.draws is None:
        return []
    moves = (pinned.draws != pinned.params.values).any(axis=0)
    return [name for name, drawn in zip(pinned.params.names, moves, strict=True) if drawn]


def _list_bound_violations(pinned: PinnedWorld, twin: Twin, names: list[str]) -> list[str]:
    row = pinned.params.row(0)
    params = [(twin.params[name], row[name]) for name in names]
    return [
        f"{param.name} = {value:g} {param.unit} is outside its bounds [{param.low:g}, {param.high:g}] now"
        for param, value in params
        if not param.low <= value <= param.high
    ]


def _list_layout_differences(pinned: PinnedWorld, twin: Twin) -> list[str]:
    model, initial = twin.model, pinned.initial
    sizes = {
        "positions": (initial.qpos.shape[1], model.nq),
        "velocities": (initial.qvel.shape[1], model.nv),
        "actuators": (initial.command.shape[1], model.nu),
        "bodies moved by hand": (initial.mocap_pos.shape[1], model.nmocap),
    }
    return [f"it has {new} {what}, the world {old}" for what, (old, new) in sizes.items() if old != new]


def _convert_draws(pinned: PinnedWorld, draws: NDArray[np.float64], table: ParamTable) -> NDArray[np.float64]:
    """Return the drawn rows in the new table's columns; other parameters are as in the world."""
    rows = np.tile(table.values, (len(draws), 1))
    for name in _find_drawn_names(pinned):
        rows[:, table.names.index(name)] = draws[:, pinned.params.names.index(name)]
    return rows


def _reset_world(world: PinnedWorld, twin: Twin, task: Task) -> PinnedWorld:
    own = world.params.with_seeds(SeedPath.of(world.run_seed, [world.episode], world.attempt))
    reset = task.reset(own, run_seed=world.run_seed, episodes=[world.episode], attempt=world.attempt)
    qpos = reset.qpos.copy()
    qpos[:, twin.joint_qpos] = world.initial.qpos[:, twin.joint_qpos]
    command = reset.command if world.readings is None else world.initial.command
    initial = replace(reset, qpos=twin.align_motors(qpos), qvel=world.initial.qvel, command=command)
    return replace(world, initial=replace(initial, earlier=world.initial.earlier))
