"""Read and write scenario folders (stored worlds), and move a scenario to another version of its twin."""

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

from twinloop.core.assignment import copy_sources, list_sources
from twinloop.core.documents import read_arrays
from twinloop.core.errors import InputError
from twinloop.core.files import sha256_json, write_bytes, write_text
from twinloop.core.params import ParamTable, SeedPath
from twinloop.core.yaml_documents import load_yaml
from twinloop.rollout.scenario import INITIAL_ARRAYS, Scenario, WorldOrigin, find_non_nominal
from twinloop.simulate import InitialState
from twinloop.tasks import Task
from twinloop.twin import Twin
from twinloop.twin.spec import describe_errors

SCENARIO, ARRAYS = "scenario.yaml", "arrays.npz"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}", re.IGNORECASE)
_MOST_BYTES = 2**28  # limit of unpacked arrays; one minute of humanoid commands with 1000 draws needs 1 % of it
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
    """Schema of ``scenario.yaml``.

    ``chance`` has the seeds of the random effects. ``evidence`` has measurements of the world, such as how often an
    actor fails in it. The other fields are those of `Scenario`.
    """

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
    """Return the name if it is a valid scenario name, which is also a folder name.

    Raises:
        InputError: If the name has other characters than letters, digits, dots, dashes and underscores, does not begin
            with a letter or digit, or has more than 80 characters.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} is not a valid scenario name. Use up to 80 letters, digits, dots, dashes and underscores. Begin "
            "with a letter or a digit."
        )
    return name


def write_scenario(scenario: Scenario, folder: Path) -> Path:
    """Write a scenario to a new folder, and return the folder.

    Raises:
        InputError: If the folder already contains a scenario, or the name is invalid.
    """
    check_name(scenario.name)
    check_free(folder)
    rewrite_scenario(scenario, folder)
    return folder


def check_free(folder: Path) -> None:
    """Check in advance that a folder does not contain a scenario yet.

    Raises:
        InputError: If the folder already contains a scenario.
    """
    if (folder / SCENARIO).exists():
        raise InputError(f"{folder} holds a scenario already. Choose another --name, or move that one away.")


def rewrite_scenario(scenario: Scenario, folder: Path) -> None:
    """Replace the scenario in a folder, after new measurements or a move to another twin version."""
    packed = io.BytesIO()
    np.savez_compressed(packed, names=np.array(scenario.params.names), **scenario.arrays)  # pyright: ignore[reportArgumentType]
    copy_sources(scenario.sources, folder)
    write_bytes(folder / ARRAYS, packed.getvalue())
    write_text(
        folder / SCENARIO, yaml.safe_dump(_to_document(scenario), sort_keys=False, allow_unicode=True, width=110)
    )


def read_scenario(folder: Path) -> Scenario:
    """Read the scenario in a folder.

    Raises:
        InputError: If a file is missing, has another format than `write_scenario` writes, or was changed after it was
            written. The message has the file and the key.
    """
    path = folder / SCENARIO
    if not path.is_file():
        raise InputError(f"{folder} holds no {SCENARIO}, so it is not a scenario. Give a folder that `scenario` wrote.")
    try:
        document = _ScenarioFile.model_validate(load_yaml(path))
    except ValidationError as error:
        raise InputError(describe_errors(error, where=str(path), model=_ScenarioFile)) from error
    arrays, names = _read_world_arrays(folder / ARRAYS)
    scenario = _build_world(document, arrays, names, folder)
    if document.hash != _hash(scenario):
        raise InputError(
            f"{folder} was changed after it was stored: its hash is {_hash(scenario)[:12]}, but {SCENARIO} has "
            f"{document.hash[:12]}. Only `meaning` may be edited. Restore both files, or pin the failure again."
        )
    return scenario


def _hash(scenario: Scenario) -> str:
    """Return the hash of all stored data except ``meaning``, which users may edit."""
    return sha256_json(
        [scenario.hash, scenario.name, scenario.twin, scenario.reason, asdict(scenario.origin), scenario.evidence]
    )


def _to_document(scenario: Scenario) -> dict[str, Any]:
    return {
        "schema": 1,
        "name": scenario.name,
        "meaning": scenario.meaning,
        "outcome": {"success": scenario.success, "reason": scenario.reason},
        "twin": scenario.twin,
        "twin_hash": scenario.twin_hash,
        "task": scenario.task,
        "task_version": scenario.task_version,
        "success_version": scenario.success_version,
        "steps": scenario.nstep,
        "chance": {"run_seed": scenario.run_seed, "episode": scenario.episode, "attempt": scenario.attempt},
        "parameters": scenario.non_nominal_values,
        "origin": asdict(scenario.origin),
        "evidence": dict(scenario.evidence),
        "versions": dict(scenario.versions),
        "hash": _hash(scenario),
    }


def _read_world_arrays(path: Path) -> tuple[dict[str, NDArray[np.float64]], tuple[str, ...]]:
    if not path.exists():
        raise InputError(f"{path} does not exist. Restore it: {SCENARIO} alone does not hold the world.")
    found = read_arrays(path, max_bytes=_MOST_BYTES, where=str(path))
    names = tuple(str(name) for name in found.pop("names", np.array([])).tolist())
    for key, value in found.items():
        if value.dtype != np.float64 or not np.isfinite(value).all():
            raise InputError(
                f"{path}: the array {key} has values that are not finite numbers. Restore the file, or pin the "
                "failure again."
            )
    return found, names


def _build_world(
    document: _ScenarioFile, arrays: Mapping[str, NDArray[np.float64]], names: tuple[str, ...], folder: Path
) -> Scenario:
    path = folder / ARRAYS
    missing = [key for key in ("params", *INITIAL_ARRAYS) if key not in arrays]
    if missing:
        raise InputError(f"{path} lacks {', '.join(missing)}. Restore the file, or pin the failure again.")
    if arrays["params"].shape != (len(names),):
        raise InputError(f"{path} holds {arrays['params'].size} values for {len(names)} parameters. Restore the file.")
    row = dict(zip(names, arrays["params"].tolist(), strict=True))
    other = [name for name, value in document.parameters.items() if row.get(name) != value]
    if other:
        raise InputError(
            f"{folder / SCENARIO}: parameters.{other[0]} is {document.parameters[other[0]]:g}, and {ARRAYS} has "
            f"{row.get(other[0], float('nan')):g}. Only `meaning` may be edited: try other values with `twinloop "
            f"scenario counterfactual {document.name} --change '{other[0]}={document.parameters[other[0]]:g}'`."
        )
    steps = {key.removeprefix(_STEPS): value[None] for key, value in arrays.items() if key.startswith(_STEPS)}
    try:
        return Scenario(
            name=check_name(document.name),
            twin=document.twin,
            twin_hash=document.twin_hash,
            task=document.task,
            task_version=document.task_version,
            success_version=document.success_version,
            params=ParamTable(names=names, values=arrays["params"][None], steps=steps),
            initial=InitialState(**{key: arrays[key][None] for key in INITIAL_ARRAYS}),  # pyright: ignore[reportArgumentType]
            run_seed=document.chance.run_seed,
            episode=document.chance.episode,
            attempt=document.chance.attempt,
            nstep=document.steps,
            success=document.outcome.success,
            reason=document.outcome.reason,
            commands=arrays.get("commands"),
            readings=arrays.get("readings"),
            draws=arrays.get("draws"),
            non_nominal=tuple(document.parameters),
            origin=WorldOrigin(**document.origin.model_dump()),
            meaning=document.meaning,
            evidence=document.evidence,
            versions=document.versions,
            sources=list_sources(folder),
        )
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} does not fit {SCENARIO} ({error}). Restore both files.") from error


def list_scenarios(folder: Path) -> list[Path]:
    """Return the scenario folders in a folder, sorted by name; empty if the folder does not exist."""
    return sorted(path.parent for path in folder.glob(f"*/{SCENARIO}"))


@dataclass(frozen=True, kw_only=True)
class RebasedWorld:
    """Scenario on another version of its twin, with the differences between the versions.

    Attributes:
        world: the scenario on the new version.
        moved: old and new nominal value of each parameter whose nominal value differs, by name.
        gone: names of parameters that the new version does not have.
        new: names of parameters that only the new version has.
    """

    world: Scenario
    moved: dict[str, tuple[float, float]]
    gone: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def text(self) -> str:
        """Differences between the twin versions in one sentence."""
        parts = [f"{name} {old:g} → {value:g}" for name, (old, value) in list(self.moved.items())[:8]]
        parts += [f"no {name} any more" for name in self.gone[:4]] + [f"{name} is new" for name in self.new[:4]]
        more = len(self.moved) + len(self.gone) + len(self.new) - len(parts)
        text = ", ".join(parts) + (f", and {more} more" if more else "")
        return text or "no nominal value differs, but the model differs"


def rebase(scenario: Scenario, twin: Twin, task: Task) -> RebasedWorld:
    """Move a scenario to another version of its twin.

    Parameters that differ from nominal in the scenario keep their values. All other parameters take the nominal values
    of the new twin. Joints keep their initial positions and velocities. Object poses and the command before the first
    step come from the task's reset on the new twin.

    Args:
        scenario: the scenario.
        twin: new version of its twin.
        task: its task on the new twin.

    Raises:
        InputError: If the new twin lacks parameters of the scenario, their values are outside its bounds, or its state
            has other sizes. The message has all of these problems.
    """
    names = [*scenario.non_nominal, *(name for name in _find_drawn_names(scenario) if name not in scenario.non_nominal)]
    problems = [
        f"it has no parameter {name} (stored: {scenario.non_nominal_values.get(name, np.nan):g})" for name in names
    ]
    problems = [text for text, name in zip(problems, names, strict=True) if name not in twin.params]
    problems += _list_bound_violations(
        scenario, twin, [name for name in names if name in twin.params]
    ) + _list_layout_differences(scenario, twin)
    if problems:
        raise InputError(
            f"Scenario {scenario.name} cannot be moved from {scenario.twin} {scenario.twin_hash[:12]} to {twin.name} "
            f"{twin.hash[:12]}: {'; '.join(problems)}. Store the failure again on this twin, or keep the old version."
        )
    table = twin.table(1, scenario.non_nominal_values).with_steps(scenario.params.steps)
    old = scenario.params.row(0)
    shared = [name for name in twin.params if name in old and name not in scenario.non_nominal]
    moved = {name: (old[name], twin.params[name].nominal) for name in shared if old[name] != twin.params[name].nominal}
    world = replace(
        scenario,
        params=table,
        non_nominal=find_non_nominal(twin, table),
        draws=None if scenario.draws is None else _convert_draws(scenario, scenario.draws, table),
        twin_hash=twin.hash,
        task_version=task.version,
        initial=scenario.initial,
    )
    return RebasedWorld(
        world=_reset_world(world, twin, task),
        moved=moved,
        gone=tuple(name for name in old if name not in twin.params),
        new=tuple(name for name in twin.params if name not in old),
    )


def _find_drawn_names(scenario: Scenario) -> list[str]:
    """Return the names of the uncertain parameters, whose values differ between the draws and the stored world."""
    if scenario.draws is None:
        return []
    moves = (scenario.draws != scenario.params.values).any(axis=0)
    return [name for name, drawn in zip(scenario.params.names, moves, strict=True) if drawn]


def _list_bound_violations(scenario: Scenario, twin: Twin, names: list[str]) -> list[str]:
    row = scenario.params.row(0)
    params = [(twin.params[name], row[name]) for name in names]
    return [
        f"{param.name} = {value:g} {param.unit} is outside its bounds [{param.low:g}, {param.high:g}] now"
        for param, value in params
        if not param.low <= value <= param.high
    ]


def _list_layout_differences(scenario: Scenario, twin: Twin) -> list[str]:
    model, initial = twin.model, scenario.initial
    sizes = {
        "positions": (initial.qpos.shape[1], model.nq),
        "velocities": (initial.qvel.shape[1], model.nv),
        "actuators": (initial.command.shape[1], model.nu),
        "mocap bodies": (initial.mocap_pos.shape[1], model.nmocap),
    }
    return [f"it has {new} {label}, the world {old}" for label, (old, new) in sizes.items() if old != new]


def _convert_draws(scenario: Scenario, draws: NDArray[np.float64], table: ParamTable) -> NDArray[np.float64]:
    """Return the draws with the columns of the new parameter table.

    A parameter that was not drawn takes the value of the new table. Every drawn parameter must exist in the new table.

    Args:
        scenario: the scenario on the old twin.
        draws: its draws, ``(ndraw, nparam)``.
        table: parameters of the scenario on the new twin, one row.
    """
    rows = np.tile(table.values, (len(draws), 1))
    for name in _find_drawn_names(scenario):
        rows[:, table.names.index(name)] = draws[:, scenario.params.names.index(name)]
    return rows


def _reset_world(world: Scenario, twin: Twin, task: Task) -> Scenario:
    own = world.params.with_seeds(SeedPath.of(world.run_seed, [world.episode], world.attempt))
    reset = task.reset(own, run_seed=world.run_seed, episodes=[world.episode], attempt=world.attempt)
    qpos = reset.qpos.copy()
    qpos[:, twin.joint_qpos] = world.initial.qpos[:, twin.joint_qpos]
    command = reset.command if world.readings is None else world.initial.command
    initial = replace(reset, qpos=twin.align_motors(qpos), qvel=world.initial.qvel, command=command)
    return replace(world, initial=replace(initial, earlier=world.initial.earlier))
