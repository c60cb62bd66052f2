"""Rebuild the world of a failed episode, repeat the failure in simulation, and store the world as a scenario."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from twinloop.core.contract import ACTION, ENVIRONMENT, STATE
from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import DatasetError, InputError
from twinloop.core.records import SimEpisode
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.generate.replay import read_root_config
from twinloop.label.rule import UNKNOWN, RuleEpisode
from twinloop.label.rules_builtin import FailureFromStates
from twinloop.randomize.sources import read_identified
from twinloop.rollout.scenario import Scenario, WorldOrigin
from twinloop.rollout.scenario_files import check_free, check_name, write_scenario
from twinloop.scenario.rebuild import TABLE, LoggedEpisode, scenario_from_log
from twinloop.scenario.regress import format_stored_outcomes
from twinloop.scenario.trials import TrialOutcomes, try_actor, try_commands
from twinloop.simulate import Backend, open_backend, rollout
from twinloop.tasks import Task, open_task
from twinloop.tasks.protocol import has_expert
from twinloop.twin import Twin, load_twin
from twinloop.workflows.run.twin_and_task import choose_twin_and_task
from twinloop.workflows.scenario import references
from twinloop.workflows.scenario.references import DatasetEpisode
from twinloop.workflows.scenario.requests import FromFailureRequest


@dataclass(frozen=True, kw_only=True)
class RebuiltWorld:
    """World of a failed episode, rebuilt in simulation.

    Attributes:
        world: the world, with the commands of the episode.
        twin: its twin.
        task: its task.
        exact: whether the stored states were reproduced bit for bit; None for a robot's log, which has no states.
        parameters: source of the parameter values, as text.
        lines: lines to print for the user.
        policy_hash: hash of the policy that acted, or "" if it is not recorded.
    """

    world: Scenario
    twin: Twin
    task: Task
    exact: bool | None
    parameters: str
    lines: tuple[str, ...]
    policy_hash: str = ""


def is_simulated(located: DatasetEpisode) -> bool:
    """Return whether an episode was simulated and its states are stored.

    An episode of `twinloop run` is a log, even if its robot is virtual.
    """
    reader, index = located.reader, located.index
    if (
        not reader.written_by_twinloop
        or reader.is_appended(index)
        or reader.has_log(index)
        or not reader.provenance(index).twin
    ):
        return False
    try:
        return len(reader.states(index)) > 0
    except DatasetError:
        return False


def rebuild_from_provenance(located: DatasetEpisode, request: FromFailureRequest, backend: Backend) -> RebuiltWorld:
    """Rebuild the world of a simulated episode from its provenance (the facts from which it can be simulated again).

    Args:
        located: the episode.
        request: flags of the command.
        backend: backend that simulates the world, to compare the states.

    Raises:
        InputError: If the episode succeeded, its twin and task are not recorded, or its dataset or twin has changed.
    """
    reader, index = located.reader, located.index
    record = reader.provenance(index)
    if record.success:
        raise InputError(f"Episode {index} of {reader.path} succeeded. Give one that failed (`--keep all` keeps them).")
    config = read_root_config(reader, record.config_hash).get("generate")
    if not isinstance(config, dict) or not {"twin", "task"} <= config.keys():
        raise InputError(f"{reader.path} does not record its twin and task, so it cannot be rebuilt.")
    twin = load_twin(str(config["twin"]))
    task = open_task(str(config["task"]), twin)
    episode = SimEpisode(
        number=int(reader.numbers[index]),
        commands=reader.commands(index),
        states=reader.states(index),
        action=np.empty(0),
        observation=np.empty(0),
        next_success=np.empty(0, dtype=bool),
        provenance=record,
    )
    found, why = _find_failure_class(reader, index, task)
    world = Scenario.of_episode(
        episode,
        twin,
        task,
        name=request.name or _make_default_name(located, found),
        reason=request.reason or (f"{found}: {why}" if found else ""),
        meaning=request.meaning,
        origin=_origin(located, record.actor, record.source),
    )
    world = world.with_references(str(config["twin"]), str(config["task"]), twin, task)
    exact = _is_reproduced_exactly(world, twin, task, episode, backend)
    said = (
        "equal bit for bit"
        if exact
        else "NOT equal bit for bit: another version of MuJoCo or another processor computed them"
    )
    lines = [f"Rebuilt from its provenance: {world.nstep} frames {said}."]
    lines += [f"Why it failed: {world.reason}."] if world.reason else []
    return RebuiltWorld(
        world=world,
        twin=twin,
        task=task,
        exact=exact,
        parameters="as recorded",
        lines=tuple(lines),
        policy_hash=_policy_hash(located),
    )


def _is_reproduced_exactly(world: Scenario, twin: Twin, task: Task, episode: SimEpisode, backend: Backend) -> bool:
    """Return whether the rebuilt world with the stored commands reproduces the stored states bit for bit."""
    begun = world.make_worlds(twin=twin, task=task)
    ran = rollout(backend, twin, begun.params, begun.initial, episode.commands[None], len(episode.commands))
    return ran.states[0].tobytes() == np.ascontiguousarray(episode.states).tobytes()


def _find_failure_class(reader: DatasetReader, index: int, task: Task) -> tuple[str, str]:
    """Return the failure class of an episode and a sentence on the reason, from the built-in label rule.

    Both are "" if the rule cannot decide.

    Args:
        reader: reader of the dataset.
        index: index of the episode.
        task: task of the episode.
    """
    rule_episode = RuleEpisode(episode_id="", reader=reader, index=index, task=task)
    found = [one for one in FailureFromStates().label(rule_episode) if one.value != UNKNOWN]
    return (found[0].value, found[0].reason) if found else ("", "")


def rebuild_from_log(located: DatasetEpisode, request: FromFailureRequest, console: Console) -> RebuiltWorld:
    """Rebuild the world of a robot's log in a twin.

    Args:
        located: the episode.
        request: flags of the command, which may name the twin, the task and the policy.
        console: console for notes.

    Raises:
        InputError: If the episode succeeded, has no object poses, or does not fit the twin.
    """
    policies = [request.policy] if request.policy else []
    place = choose_twin_and_task(request.twin, request.task, policies, None, console, recorded=located.reader)
    twin, task = place.twin, place.task
    distribution, said = _load_distribution(request.identified)
    world = scenario_from_log(
        _read_log(located, twin),
        twin,
        task,
        name=request.name or _make_default_name(located, ""),
        identified=distribution,
        ndraw=max(request.tries - 1, 1),
        seed=request.seed,
        reason=request.reason,
        meaning=request.meaning,
    )
    lay = ", ".join(
        f"{key.removeprefix('object/')} {value:.4g}"
        for key, value in world.non_nominal_values.items()
        if twin.params[key].quantity.stage == "reset"
    )
    rise = world.non_nominal_values.get(TABLE, 0.0) if distribution is None else 0.0
    table = f" on a table {1e3 * rise:+.1f} mm from the twin's" if rise else ""
    lines = (f"Rebuilt from the log: {world.nstep} frames; {lay}{table}.", f"Parameters: {said}.")
    return RebuiltWorld(
        world=world.with_references(place.twin_name, place.task_name, twin, task),
        twin=twin,
        task=task,
        exact=None,
        parameters=said,
        lines=lines,
        policy_hash=_policy_hash(located),
    )


def _load_distribution(path: Path | None) -> tuple[ParamDistribution | None, str]:
    if path is None:
        return None, "the twin's nominal values; draws from its default ranges"
    found = ParamDistribution.from_json(read_identified(path)["distribution"])
    warning = f". {found.warning}" if found.warning else ""
    return found, f"identified from {found.clusters} episodes ({path}); draws from that distribution{warning}"


def _read_log(located: DatasetEpisode, twin: Twin) -> LoggedEpisode:
    reader, index = located.reader, located.index
    if ENVIRONMENT not in reader.info["features"]:
        raise InputError(
            f"{reader.path} has no {ENVIRONMENT}, so the object poses are unknown. Record with a tracker, or use a "
            "simulated episode."
        )
    row: dict[str, Any] = reader.row(index)
    if row.get("success") or row.get("provenance/success"):
        raise InputError(f"Episode {index} of {reader.path} succeeded. Give one that failed.")
    return LoggedEpisode(
        state=_read_joint_feature(reader, index, STATE, twin),
        action=_read_joint_feature(reader, index, ACTION, twin),
        environment=reader.array(index, ENVIRONMENT),
        environment_names=tuple(reader.feature_names(ENVIRONMENT)),
        units=reader.units or twin.units,
        hz=reader.fps,
        origin=_origin(located, str(row.get("provenance/expert") or ""), row.get("provenance/source") or "real"),
    )


def _read_joint_feature(reader: DatasetReader, index: int, feature: str, twin: Twin) -> NDArray[np.float64]:
    """Return a feature with one column per robot joint, shape ``(nframe, njoint)``, in the units of the dataset.

    Raises:
        InputError: If the number of columns differs from the number of joints of the twin.
    """
    values = reader.array(index, feature)
    if values.ndim != 2 or values.shape[1] != len(twin.robot.joints):
        raise InputError(
            f"{reader.path}: {feature} has {values.shape[-1] if values.ndim > 1 else 1} columns, and the twin "
            f"{twin.name} {len(twin.robot.joints)} joints ({', '.join(twin.robot.joints)}). Give this robot's twin."
        )
    return values


def _origin(located: DatasetEpisode, actor: str, source: Any) -> WorldOrigin:
    return WorldOrigin(
        source=source,
        place=str(located.reader.path),
        episode_id=located.episode_id,
        episode=located.index,
        actor=actor,
    )


def _policy_hash(located: DatasetEpisode) -> str:
    """Return the hash of the policy that acted in an episode of `twinloop run`; "" if it is not recorded."""
    if not located.reader.written_by_twinloop:
        return ""
    extra = located.reader.provenance(located.index).extra
    run = extra.get("run")
    return str(run.get("policy_hash") or "") if isinstance(run, dict) else ""


def _make_default_name(located: DatasetEpisode, failure: str) -> str:
    """Return the default name of a scenario: failure class, name of the dataset folder, and episode index."""
    letters = Path(located.reader.path).resolve().name
    stem = "".join(letter if letter.isalnum() else "-" for letter in letters).strip("-")
    return f"{failure.replace('_', '-') or 'failure'}-{stem or 'data'}-{located.index}"[:80]


def run_from_failure(request: FromFailureRequest, console: Console, *, nthread: int = 0) -> tuple[dict[str, Any], int]:
    """Rebuild a failed episode, measure how often it fails again, and store it as a scenario.

    Args:
        request: flags of the command.
        console: console for the result.
        nthread: number of simulation threads; 0 uses every core.

    Returns:
        The result, and exit code 1 if the failure does not happen again and is not stored, else 0.

    Raises:
        InputError: If the episode did not fail, cannot be rebuilt, or the name of the scenario is taken.
    """
    if request.name:
        check_free(references.scenarios_folder(request.scenarios) / check_name(request.name))
    if request.tries < 1:
        raise InputError(f"--tries {request.tries}: give at least one.")
    if not 0 < request.min_share <= 1:
        raise InputError(
            f"--min-share {request.min_share:g} is not a share of the tries. Give a number above 0 and at most 1."
        )
    backend = open_backend(nthread=nthread)
    rebuilt = _rebuild_world(request, backend, console)
    for line in rebuilt.lines:
        console.print(line, soft_wrap=True)
    reference, told = (
        (request.policy, f"Actor: {request.policy}, as requested.") if request.policy else find_actor(rebuilt)
    )
    console.print(told, soft_wrap=True)
    open_loop, closed = _run_trials(rebuilt, reference, request.tries, backend)
    again = bool(rebuilt.exact) or float((closed or open_loop).failure_rate().estimate) >= request.min_share
    evidence = _evidence(rebuilt, open_loop, closed, reference, again=again, least=request.min_share)
    for line in _describe_trials(rebuilt, open_loop, closed, reference, again=again):
        console.print(line, soft_wrap=True)
    world = replace(rebuilt.world, evidence=evidence)
    result = {"verb": "scenario", "kind": "from-failure", "scenario": world.name, **evidence}
    if not again and not request.force:
        console.print(
            "Not stored: the failure does not happen again, so the twin lacks its cause. Measure the difference with "
            "`twinloop gap`, identify the twin and give --identified, or store the scenario anyway with --force.",
            soft_wrap=True,
        )
        return {**result, "stored": None}, 1
    folder = write_scenario(world, references.scenarios_folder(request.scenarios) / world.name)
    console.print(f"Stored: {folder}", soft_wrap=True)
    return {**result, "stored": str(folder)}, 0


def _rebuild_world(request: FromFailureRequest, backend: Backend, console: Console) -> RebuiltWorld:
    located = references.locate_episode(request.episode)
    return (
        rebuild_from_provenance(located, request, backend)
        if is_simulated(located)
        else rebuild_from_log(located, request, console)
    )


def find_actor(rebuilt: RebuiltWorld) -> tuple[str, str]:
    """Find the policy or expert that acted in the failed episode.

    Returns:
        A reference for `references.open_actor`, "" if the actor is not available; and a sentence about it for the user.
    """
    actor = rebuilt.world.origin.actor
    if has_expert(rebuilt.task) and actor == rebuilt.task.expert_version:
        return references.EXPERT, "Actor: the task's expert, as in the episode."
    name = actor.removeprefix("policy:")
    if name == actor:
        return "", "The episode does not record a policy as its actor."
    for reference in (rebuilt.policy_hash, name):
        if reference and references.is_available(reference, rebuilt.policy_hash):
            return reference, f"Actor: the policy {name}, as recorded in the episode; --policy selects another."
    digest = f" ({rebuilt.policy_hash[:12]})" if rebuilt.policy_hash else ""
    return "", f"The episode records the policy {name}{digest} as its actor, which is not available here."


def _run_trials(
    rebuilt: RebuiltWorld, reference: str, tries: int, backend: Backend
) -> tuple[TrialOutcomes, TrialOutcomes | None]:
    """Repeat the failed episode in similar worlds: with its recorded commands, and with its actor.

    The actor is the policy or scripted expert that controlled the episode.

    Args:
        rebuilt: the rebuilt world.
        reference: name or folder of the actor, or "" for none.
        tries: number of worlds.
        backend: backend that simulates the worlds.

    Returns:
        Outcomes with the recorded commands, and outcomes with the actor; the latter are None if there is no actor.
    """
    world, twin, task = rebuilt.world, rebuilt.twin, rebuilt.task
    open_loop = try_commands(world, twin, task, tries, backend=backend)
    if not reference:
        return open_loop, None
    return open_loop, try_actor(world, twin, task, references.open_actor(reference, twin, task), tries, backend=backend)


def _evidence(
    rebuilt: RebuiltWorld,
    open_loop: TrialOutcomes,
    closed: TrialOutcomes | None,
    reference: str,
    *,
    again: bool,
    least: float,
) -> dict[str, Any]:
    return {
        "again": again,
        "least": least,
        "bit_for_bit": rebuilt.exact,
        "parameters": rebuilt.parameters,
        "open_loop": open_loop.to_json(),
        **({} if closed is None else {"expected": format_stored_outcomes(reference, closed)}),
    }


def _describe_trials(
    rebuilt: RebuiltWorld, open_loop: TrialOutcomes, closed: TrialOutcomes | None, reference: str, *, again: bool
) -> list[str]:
    rows = [(open_loop, "the commands of the episode")] + ([(closed, reference)] if closed is not None else [])
    lines = [f"Under {who}: {format_failure_rate(tried)}." for tried, who in rows]
    if closed is None:
        lines.append(
            "No actor was run. Name one with --policy, so that `twinloop scenario regress` can compare with it."
        )
    if not again:
        return [*lines, "The failure does NOT happen again: the twin differs from the robot (sim-to-real gap)."]
    return [*lines, "The failure happens again, exactly." if rebuilt.exact else "The failure happens again."]


def format_failure_rate(tried: TrialOutcomes) -> str:
    """Return the failure rate of trials with its exact (Clopper-Pearson) interval, as text."""
    rate = tried.failure_rate()
    return (
        f"fails in {tried.failures} of {tried.trials} worlds, {float(rate.estimate):.0%} "
        f"(exact {rate.level:.0%} interval {float(rate.low):.0%} to {float(rate.high):.0%})"
    )
