"""Find scenarios, episodes and policies by the names that users give, and list or show stored scenarios."""

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
from twinloop.policies.folder import is_policy_path
from twinloop.rollout import Actor, ExpertActor
from twinloop.rollout.scenario import Scenario
from twinloop.rollout.scenario_files import SCENARIO, list_scenarios, read_scenario
from twinloop.tasks import Task
from twinloop.twin import Twin
from twinloop.workflows.scenario.requests import ScenarioListRequest, ScenarioShowRequest

EXPERT = "expert"
_HOME = "scenarios"


@dataclass(frozen=True, kw_only=True)
class DatasetEpisode:
    """Episode in a dataset.

    Attributes:
        reader: reader of the dataset.
        index: index of the episode in the dataset.
        episode_id: id in the catalog; "" if the episode was not found through the catalog.
    """

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


def open_scenario(name: str, scenarios: Path | None = None) -> tuple[Path, Scenario]:
    """Return the folder and the world of a stored scenario.

    Args:
        name: name or folder of the scenario.
        scenarios: folder of scenarios; by default that of the workspace.

    Raises:
        UnknownNameError: If there is no such scenario.
        InputError: If files of the scenario have changed since they were stored.
    """
    folder = scenarios_folder(scenarios) / name
    if not (folder / SCENARIO).is_file() and (Path(name) / SCENARIO).is_file():
        folder = Path(name)
    if not (folder / SCENARIO).is_file():
        there = [path.name for path in list_scenarios(scenarios_folder(scenarios))]
        makes = "" if there else "; `twinloop scenario from-failure EPISODE` makes them"
        raise UnknownNameError("scenario", name, there, where=f"{scenarios_folder(scenarios)}{makes}")
    return folder, read_scenario(folder)


def open_scenarios(names: Sequence[str], scenarios: Path | None = None) -> list[tuple[Path, Scenario]]:
    """Return the folders and worlds of several stored scenarios.

    Args:
        names: names or folders of scenarios; empty for all.
        scenarios: folder of scenarios; by default that of the workspace.

    Raises:
        UnknownNameError: If there is no scenario of a name.
        InputError: If no scenario is stored.
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
    return [(folder, read_scenario(folder)) for folder in folders]


def locate_episode(episode: str) -> DatasetEpisode:
    """Find an episode by ``FOLDER:INDEX``, or by the beginning of its id in the workspace of the working folder.

    Raises:
        InputError, UnknownNameError: If there is no such dataset or episode.
    """
    folder, colon, index = episode.rpartition(":")
    if colon and index.isdigit() and (Path(folder) / layout.INFO).is_file():
        reader = DatasetReader(folder)
        reader.row(int(index))
        return DatasetEpisode(reader=reader, index=int(index))
    from twinloop.catalog import Workspace
    from twinloop.catalog.episode_lookup import resolve_episodes

    inside = Workspace.find(Path.cwd()) is not None
    if colon and ("/" in folder or (Path(folder).exists() and not inside)):
        raise InputError(
            f"{folder} is not the folder of a LeRobot dataset, or {index!r} is not a whole number. Write FOLDER:INDEX, "
            "such as data/run:3."
        )
    if not inside:
        raise InputError(
            f"{episode!r} is not FOLDER:INDEX, and there is no workspace here to look it up in. Write the dataset's "
            "folder and the episode's index, such as data:3."
        )
    with Workspace.open() as workspace:
        (name,) = resolve_episodes(workspace, [episode])
        place = workspace.locate(name)
        return DatasetEpisode(reader=DatasetReader(place.folder), index=place.index, episode_id=name)


def open_actor(reference: str, twin: Twin, task: Task) -> Actor:
    """Open the source of commands for a twin and a task: a policy, or the task's scripted expert.

    Args:
        reference: ``expert``, a policy's folder, or its name in the workspace's registry.
        twin: the twin.
        task: the task.

    Raises:
        InputError, UnknownNameError: If there is no such policy, or it does not fit the twin and the task.
    """
    if reference == EXPERT:
        return ExpertActor(task=task)
    from twinloop.evaluate.candidates import make_candidate
    from twinloop.policies import open_policy

    return make_candidate(open_policy(policy_folder(reference)), name=reference).make(twin, task)


def policy_folder(reference: str) -> Path:
    """Return the folder or ONNX file of a policy.

    Args:
        reference: the folder or file, or the policy's name in the registry of the workspace.

    Raises:
        InputError, UnknownNameError: If there is no such folder, and no such policy in the registry.
    """
    if is_policy_path(reference):
        return Path(reference)
    from twinloop.catalog import Workspace

    if Workspace.find(Path.cwd()) is None:
        raise InputError(
            f"{reference!r} is not a policy's folder or ONNX file, and registered policies can only be named inside a "
            f"workspace. Give the folder of a policy, change to a workspace, or write {EXPERT!r} for the task's "
            "scripted expert."
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
    """Return whether a policy can be found by a reference and has the expected hash.

    Args:
        reference: folder or name of the policy.
        digest: the expected hash; "" accepts any hash.
    """
    from twinloop.release.version import read_config

    try:
        found = read_config(policy_folder(reference)).get("hash")
    except TwinloopError:
        return False
    return found is not None and digest in ("", found)


def run_list(request: ScenarioListRequest, console: Console) -> dict[str, Any]:
    """Print every stored scenario with its origin, its twin, and how often its actor failed when it was stored."""
    found = [read_scenario(folder) for folder in list_scenarios(scenarios_folder(request.scenarios))]
    table = Table("scenario", "from", "twin", "failed", "why")
    for scenario in found:
        table.add_row(
            scenario.name,
            scenario.origin.source,
            scenario.twin,
            _format_failures(scenario),
            scenario.meaning or scenario.reason or "–",
        )
    console.print(table if found else f"{scenarios_folder(request.scenarios)} holds no scenario.")
    return {"verb": "scenario", "kind": "list", "scenarios": [scenario_to_json(scenario) for scenario in found]}


def run_show(request: ScenarioShowRequest, console: Console) -> dict[str, Any]:
    """Print one scenario: its origin, its failure rate, and the parameters that differ from its twin."""
    folder, scenario = open_scenario(request.name, request.scenarios)
    console.print(f"{scenario.name} ({folder})", soft_wrap=True)
    for line in filter(None, (scenario.meaning, scenario.reason)):
        console.print(line, soft_wrap=True, markup=False)
    origin = scenario.origin
    console.print(
        f"{origin.source}, episode {origin.episode} of {origin.place or 'no data'}, actor {origin.actor or 'unknown'}; "
        f"{scenario.nstep} steps of {scenario.task} on {scenario.twin} {scenario.twin_hash[:12]}.",
        soft_wrap=True,
        markup=False,
    )
    console.print(
        f"Failed with its actor: {_format_failures(scenario)}; parameters: {scenario.evidence.get('parameters', '–')}."
    )
    table = Table("own parameter", "value")
    for key, value in scenario.non_nominal_values.items():
        table.add_row(key, f"{value:.5g}")
    console.print(table)
    return {"verb": "scenario", "kind": "show", **scenario_to_json(scenario)}


def scenario_to_json(scenario: Scenario) -> dict[str, Any]:
    """Return origin, reason, parameters and outcomes of a scenario as a JSON-compatible dictionary."""
    return {
        "scenario": scenario.name,
        "hash": scenario.hash,
        "twin": scenario.twin,
        "twin_hash": scenario.twin_hash,
        "task": scenario.task,
        "origin": vars(scenario.origin),
        "reason": scenario.reason,
        "meaning": scenario.meaning,
        "parameters": scenario.non_nominal_values,
        "evidence": dict(scenario.evidence),
    }


def _format_failures(scenario: Scenario) -> str:
    kept = scenario.evidence.get("expected")
    if not isinstance(kept, dict) or "failures" not in kept:
        return "–"
    return f"{kept['failures']}/{kept['trials']}"
