"""Rebuild the world of a failed episode, run it again in simulation, and store it as a scenario."""

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
from twinloop.rollout.pinned import PinnedWorld, WorldOrigin
from twinloop.rollout.pinned_files import check_free, check_name, write_pinned
from twinloop.scenario.rebuild import TABLE, LoggedEpisode, scenario_from_log
from twinloop.scenario.regress import format_expectation
from twinloop.scenario.trials import TrialOutcomes, try_actor, try_commands
from twinloop.simulate import Backend, open_backend, rollout
from twinloop.tasks import Task, open_task
from twinloop.twin import Twin, load_twin
from twinloop.workflows.scenario import places
from twinloop.workflows.scenario.places import DatasetEpisode
from twinloop.workflows.scenario.requests import FromFailureRequest


@dataclass(frozen=True, kw_only=True)
class RebuiltWorld:
    """A world with its twin and task.

    ``exact`` is True if the stored states were reproduced bit for bit, None for a log, which has none. ``parameters``
    is the source of the parameters; ``lines`` are output for people. ``policy_hash`` is that of the actor, if
    the episode records it.
    """

    world: PinnedWorld
    twin: Twin
    task: Task
    exact: bool | None
    parameters: str
    lines: tuple[str, ...]
    policy_hash: str = ""


def is_simulated(located: DatasetEpisode) -> bool:
    """Return whether an episode is simulated and has its states; runs on a robot, also a virtual one, are logs."""
    reader, index = located.reader, located.index
    if not reader.ours or reader.is_appended(index) or reader.has_log(index) or not reader.provenance(index).twin:
        return False
    try:
        return len(reader.states(index)) > 0
    except DatasetError:
        return False


def rebuild_from_provenance(located: DatasetEpisode, asked: FromFailureRequest, backend: Backend) -> RebuiltWorld:
    """Rebuild the world of a simulated episode from its provenance.

    Raises:
        InputError: it succeeded, its twin and task are not recorded, or its dataset or twin has changed.
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
    world = PinnedWorld.of_episode(
        episode,
        twin,
        task,
        name=asked.name or _make_default_name(located, found),
        twin_reference=str(config["twin"]),
        reason=asked.reason or (f"{found}: {why}" if found else ""),
        meaning=asked.meaning,
        origin=_origin(located, record.actor, record.source),
    )
    world = replace(world, task=str(config["task"]))
    exact = _is_reproduced_exactly(world, twin, task, episode, backend)
    said = "equal bit for bit" if exact else "NOT equal bit for bit: another MuJoCo or processor made them"
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


def _is_reproduced_exactly(world: PinnedWorld, twin: Twin, task: Task, episode: SimEpisode, backend: Backend) -> bool:
    """Return whether the rebuilt world with the stored commands reproduces the stored states bit for bit."""
    begun = world.make_worlds(twin=twin, task=task)
    ran = rollout(backend, twin, begun.params, begun.initial, episode.commands[None], len(episode.commands))
    return ran.states[0].tobytes() == np.ascontiguousarray(episode.states).tobytes()


def _find_failure_class(reader: DatasetReader, index: int, task: Task) -> tuple[str, str]:
    """Return the failure class by the task's rule, and its sentence; empty if no rule decides."""
    material = RuleEpisode(episode_id="", reader=reader, index=index, world=task)
    found = [one for one in FailureFromStates().label(material) if one.value != UNKNOWN]
    return (found[0].value, found[0].reason) if found else ("", "")


def rebuild_from_log(located: DatasetEpisode, asked: FromFailureRequest) -> RebuiltWorld:
    """Rebuild the world of a robot's log in a twin.

    Raises:
        InputError: it succeeded, has no object poses, or does not fit the twin.
    """
    twin = load_twin(asked.twin)
    task = open_task(asked.task, twin)
    distribution, said = _load_distribution(asked.identified)
    world = scenario_from_log(
        _read_log(located, twin),
        twin,
        task,
        name=asked.name or _make_default_name(located, ""),
        twin_reference=asked.twin,
        identified=distribution,
        ndraw=max(asked.tries - 1, 1),
        seed=asked.seed,
        reason=asked.reason,
        meaning=asked.meaning,
    )
    lay = ", ".join(
        f"{key.removeprefix('object/')} {value:.4g}"
        for key, value in world.departures.items()
        if twin.params[key].quantity.stage == "reset"
    )
    rise = world.departures.get(TABLE, 0.0) if distribution is None else 0.0
    table = f" on a table {1e3 * rise:+.1f} mm from the twin's" if rise else ""
    lines = (f"Rebuilt from the log: {world.nstep} frames; {lay}{table}.", f"Parameters: {said}.")
    return RebuiltWorld(
        world=replace(world, task=asked.task),
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
    return found, f"identified from {found.clusters} episodes ({path}); draws from that distribution"


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
    """Return a feature of the robot's joints, ``(nframe, njoint)``."""
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
    """Return the hash of the policy that acted, as `twinloop run` records it; "" if it is not recorded."""
    if not located.reader.ours:
        return ""
    extra = located.reader.provenance(located.index).extra
    run = extra.get("run")
    return str(run.get("policy_hash") or "") if isinstance(run, dict) else ""


def _make_default_name(located: DatasetEpisode, failure: str) -> str:
    """Return a default name of a scenario from its failure class, dataset and episode index."""
    letters = Path(located.reader.path).resolve().name
    stem = "".join(letter if letter.isalnum() else "-" for letter in letters).strip("-")
    return f"{failure.replace('_', '-') or 'failure'}-{stem or 'data'}-{located.index}"[:80]


def run_from_failure(asked: FromFailureRequest, console: Console, *, nthread: int = 0) -> tuple[dict[str, Any], int]:
    """Rebuild a failed episode, run it again and store it as a scenario.

    Returns:
        The result, and exit code 1 if the failure does not happen again and is not stored.

    Raises:
        InputError: the episode did not fail, cannot be rebuilt, or the name is taken.
    """
    if asked.name:
        check_free(places.scenarios_folder(asked.scenarios) / check_name(asked.name))
    if asked.tries < 1:
        raise InputError(f"--tries {asked.tries}: give at least one.")
    if not 0 < asked.min_share <= 1:
        raise InputError(f"--min-share {asked.min_share:g} is no share of the tries; give one above 0, at most 1.")
    backend = open_backend(nthread=nthread)
    rebuilt = _rebuild_world(asked, backend)
    for line in rebuilt.lines:
        console.print(line, soft_wrap=True)
    reference, told = (asked.policy, f"Actor: {asked.policy}, as requested.") if asked.policy else find_actor(rebuilt)
    console.print(told, soft_wrap=True)
    open_loop, closed = _run_trials(rebuilt, reference, asked.tries, backend)
    again = bool(rebuilt.exact) or float((closed or open_loop).failure_rate().estimate) >= asked.min_share
    evidence = _evidence(rebuilt, open_loop, closed, reference, again=again, least=asked.min_share)
    for line in _describe_trials(rebuilt, open_loop, closed, reference, again=again):
        console.print(line, soft_wrap=True)
    world = replace(rebuilt.world, evidence=evidence)
    figures = {"verb": "scenario", "kind": "from-failure", "scenario": world.name, **evidence}
    if not again and not asked.force:
        console.print(
            "Not stored: where a failure does not happen again, the twin lacks what made it. Look for it with "
            "`twinloop gap`, identify the twin and give --identified, or keep it with --force.",
            soft_wrap=True,
        )
        return {**figures, "stored": None}, 1
    folder = write_pinned(world, places.scenarios_folder(asked.scenarios) / world.name)
    console.print(f"Stored: {folder}", soft_wrap=True)
    return {**figures, "stored": str(folder)}, 0


def _rebuild_world(asked: FromFailureRequest, backend: Backend) -> RebuiltWorld:
    located = places.locate_episode(asked.episode)
    return (
        rebuild_from_provenance(located, asked, backend) if is_simulated(located) else rebuild_from_log(located, asked)
    )


def find_actor(rebuilt: RebuiltWorld) -> tuple[str, str]:
    """Return the episode's actor, if it is available, else ""; and a sentence about that."""
    actor = rebuilt.world.origin.actor
    if actor == rebuilt.task.expert_version:
        return places.EXPERT, "Actor: the task's expert, as in the episode."
    name = actor.removeprefix("policy:")
    if name == actor:
        return "", "The episode does not record a policy as its actor."
    for reference in (rebuilt.policy_hash, name):
        if reference and places.is_available(reference, rebuilt.policy_hash):
            return reference, f"Actor: the policy {name}, as recorded in the episode; --policy selects another."
    digest = f" ({rebuilt.policy_hash[:12]})" if rebuilt.policy_hash else ""
    return "", f"The episode records the policy {name}{digest} as its actor, which is not available here."


def _run_trials(
    rebuilt: RebuiltWorld, reference: str, tries: int, backend: Backend
) -> tuple[TrialOutcomes, TrialOutcomes | None]:
    """Return outcomes with the commands of the episode, and with the actor (None without an actor)."""
    world, twin, task = rebuilt.world, rebuilt.twin, rebuilt.task
    open_loop = try_commands(world, twin, task, tries, backend=backend)
    if not reference:
        return open_loop, None
    return open_loop, try_actor(world, twin, task, places.open_actor(reference, twin, task), tries, backend=backend)


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
        **({} if closed is None else {"expected": format_expectation(reference, closed)}),
    }


def _describe_trials(
    rebuilt: RebuiltWorld, open_loop: TrialOutcomes, closed: TrialOutcomes | None, reference: str, *, again: bool
) -> list[str]:
    rows = [(open_loop, "the commands of the episode")] + ([(closed, reference)] if closed is not None else [])
    lines = [f"Under {who}: {format_failure_rate(tried)}." for tried, who in rows]
    if closed is None:
        lines.append("No actor was run: name one with --policy, so that `scenario regress` can compare.")
    if not again:
        return [*lines, "It does NOT happen again: a gap, not a scenario."]
    return [*lines, "It happens again, exactly." if rebuilt.exact else "It happens again."]


def format_failure_rate(tried: TrialOutcomes) -> str:
    """Return the failure rate of trials as text, with its exact interval."""
    rate = tried.failure_rate()
    return (
        f"fails in {tried.failures} of {tried.trials} worlds, {float(rate.estimate):.0%} "
        f"(exact {rate.level:.0%} interval {float(rate.low):.0%} to {float(rate.high):.0%})"
    )
