"""Find the folders of scenarios, episodes and actors, and show one scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from twinloop.core.errors import InputError, TwinloopError, UnknownNameError
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.rollout import Actor, ExpertActor
from twinloop.rollout.pinned import PinnedWorld
from twinloop.rollout.pinned_files import SCENARIO, list_scenarios, read_pinned
from twinloop.tasks import Task
from twinloop.twin import Twin
from twinloop.workflows.scenario.requests import ScenarioListRequest, ScenarioShowRequest

EXPERT = "expert"
_HOME = "scenarios"


@dataclass(frozen=True, kw_only=True)
class DatasetEpisode:
    """An episode in a dataset: its reader, its index, and its id in the catalog, "" if it has none."""

    reader: DatasetReader
    index: int
    episode_id: str = ""


def scenarios_folder(scenarios: Path | None = None) -> Path:
    """Return the folder of scenarios: the given one, the workspace's, or ``scenarios`` in the working folder."""
    if scenarios is not None:
        return scenarios
    from twinloop.catalog import Workspace

    root = Workspace.find(Path.cwd())
    return (root or Path.cwd()) / _HOME


def open_scenario(name: str, scenarios: Path | None = None) -> tuple[Path, PinnedWorld]:
    """Return the folder and the world of a scenario, which is given by name or as a folder.

    Raises:
        UnknownNameError: there is no such scenario; lists the stored ones.
        InputError: its files have changed since they were stored.
    """
    folder = scenarios_folder(scenarios) / name
    if not (folder / SCENARIO).is_file() and (Path(name) / SCENARIO).is_file():
        folder = Path(name)
    if not (folder / SCENARIO).is_file():
        there = [path.name for path in list_scenarios(scenarios_folder(scenarios))]
        makes = "" if there else "; `twinloop scenario from-failure EPISODE` makes them"
        raise UnknownNameError("scenario", name, there, where=f"{scenarios_folder(scenarios)}{makes}")
    return folder, read_pinned(folder)


def open_scenarios(names: Sequence[str], scenarios: Path | None = None) -> list[tuple[Path, PinnedWorld]]:
    """Return the folders and worlds of the scenarios of these names, or of all.

    Raises:
        InputError: no scenario is stored.
    """
    if names:
        return [open_scenario(name, scenarios) for name in names]
    folders = list_scenarios(scenarios_folder(scenarios))
    if not folders:
        raise InputError(
            f"{scenarios_folder(scenarios)} holds no scenario. Make one of a failed episode: `twinloop scenario "
            "from-failure "
            "EPISODE`."
        )
    return [(folder, read_pinned(folder)) for folder in folders]


def locate_episode(episode: str) -> DatasetEpisode:
    """Return the episode that ``FOLDER:INDEX`` or the beginning of a catalog id names.

    Raises:
        InputError, UnknownNameError: there is no such dataset or episode.
    """
    folder, colon, index = episode.rpartition(":")
    if colon and index.isdigit() and (Path(folder) / layout.INFO).is_file():
        reader = DatasetReader(folder)
        reader.row(int(index))
        return DatasetEpisode(reader=reader, index=int(index))
    if colon and (Path(folder).exists() or "/" in folder):
        raise InputError(
            f"{folder} is no LeRobot dataset with an episode {index!r}. Write FOLDER:INDEX, such as data:3."
        )
    from twinloop.catalog import Workspace
    from twinloop.catalog.episode_lookup import resolve_episodes

    if Workspace.find(Path.cwd()) is None:
        raise InputError(
            f"{episode!r} is no FOLDER:INDEX, and there is no workspace here to look it up in. Write the dataset's "
            "folder and the episode's index, such as data:3."
        )
    with Workspace.open() as workspace:
        (name,) = resolve_episodes(workspace, [episode])
        place = workspace.locate(name)
        return DatasetEpisode(reader=DatasetReader(place.folder), index=place.index, episode_id=name)


def open_actor(reference: str, twin: Twin, task: Task) -> Actor:
    """Return the actor: ``expert``, a policy's folder, or its name in the workspace's registry.

    Raises:
        InputError, UnknownNameError: there is no such policy, or it does not fit the twin and the task.
    """
    if reference == EXPERT:
        return ExpertActor(task=task)
    from twinloop.evaluate.candidates import make_candidate
    from twinloop.policies import open_policy

    return make_candidate(open_policy(policy_folder(reference)), name=reference).make(twin, task)


def policy_folder(reference: str) -> Path:
    """Return the folder of a policy, which is given as a folder or by its name in the registry.

    Raises:
        InputError: it is neither.
    """
    if Path(reference).is_dir():
        return Path(reference)
    from twinloop.catalog import Workspace

    if Workspace.find(Path.cwd()) is None:
        raise InputError(
            f"{reference!r} is not a policy's folder, and there is no workspace here with a registry. "
            f"Give a folder, or {EXPERT!r}."
        )
    from twinloop.release.registry import PolicyRegistry

    try:
        with Workspace.open() as workspace:
            return PolicyRegistry(workspace).folder(reference)
    except UnknownNameError as error:
        if "/" not in reference:
            raise
        raise InputError(f"There is no folder {reference}, and no such policy in the registry: {error}") from error


def is_available(reference: str, digest: str) -> bool:
    """Return whether a policy can be opened by this name and has the hash ``digest``, if that is not ""."""
    from twinloop.release.version import read_config

    try:
        found = read_config(policy_folder(reference)).get("hash")
    except TwinloopError:
        return False
    return found is not None and digest in ("", found)


def run_list(request: ScenarioListRequest, console: Console) -> dict[str, Any]:
    """Print every scenario with its origin, twin, and number of failures when it was stored."""
    found = [read_pinned(folder) for folder in list_scenarios(scenarios_folder(request.scenarios))]
    table = Table("scenario", "from", "twin", "failed", "why")
    for pinned in found:
        table.add_row(
            pinned.name,
            pinned.origin.source,
            pinned.twin,
            _format_failures(pinned),
            pinned.meaning or pinned.reason or "–",
        )
    console.print(table if found else f"{scenarios_folder(request.scenarios)} holds no scenario.")
    return {"verb": "scenario", "kind": "list", "scenarios": [_scenario_to_json(pinned) for pinned in found]}


def run_show(request: ScenarioShowRequest, console: Console) -> dict[str, Any]:
    """Print one scenario: its origin, its parameters, and its measurements."""
    folder, pinned = open_scenario(request.name, request.scenarios)
    console.print(f"{pinned.name} ({folder})", soft_wrap=True)
    for line in filter(None, (pinned.meaning, pinned.reason)):
        console.print(line, soft_wrap=True, markup=False)
    origin = pinned.origin
    console.print(
        f"{origin.source}, episode {origin.episode} of {origin.place or 'no data'}, actor {origin.actor or 'unknown'}; "
        f"{pinned.nstep} steps of {pinned.task} on {pinned.twin} {pinned.twin_hash[:12]}.",
        soft_wrap=True,
        markup=False,
    )
    console.print(
        f"Failed with its actor: {_format_failures(pinned)}; parameters: {pinned.evidence.get('parameters', '–')}."
    )
    table = Table("own parameter", "value")
    for key, value in pinned.departures.items():
        table.add_row(key, f"{value:.5g}")
    console.print(table)
    return {"verb": "scenario", "kind": "show", **_scenario_to_json(pinned)}


def _scenario_to_json(pinned: PinnedWorld) -> dict[str, Any]:
    return {
        "scenario": pinned.name,
        "hash": pinned.hash,
        "twin": pinned.twin,
        "twin_hash": pinned.twin_hash,
        "task": pinned.task,
        "origin": vars(pinned.origin),
        "reason": pinned.reason,
        "meaning": pinned.meaning,
        "parameters": pinned.departures,
        "evidence": dict(pinned.evidence),
    }


def _format_failures(pinned: PinnedWorld) -> str:
    kept = pinned.evidence.get("expected")
    if not isinstance(kept, dict) or "failures" not in kept:
        return "–"
    return f"{kept['failures']}/{kept['trials']}"
