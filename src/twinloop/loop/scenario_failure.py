"""From a failed episode to a scenario: rebuilt, tried again in simulation, and kept with what came of that."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from twinloop.core.errors import InputError
from twinloop.loop import scenario_places as places
from twinloop.loop.scenario_rebuild import Rebuilt, from_log, from_provenance, simulated
from twinloop.rollout.pinned_files import check_free, check_name, write_pinned
from twinloop.scenario.regress import expectation
from twinloop.scenario.trials import Tried, try_actor, try_commands
from twinloop.simulate import Backend, open_backend

# The share of tries that must fail for a failure to have happened again in simulation; our choice: below a tenth,
# what made it fail out there is more likely what the twin lacks than what these worlds have.
LEAST = 0.1


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What `twinloop scenario from-failure` was asked; see the command."""

    episode: str
    name: str = ""
    policy: str = ""
    twin: str = "so101_tabletop"
    task: str = "pick_and_place"
    identified: Path | None = None
    tries: int = 32
    least: float = LEAST
    reason: str = ""
    meaning: str = ""
    anyway: bool = False
    seed: int = 0


def run_from_failure(
    asked: Asked, scenarios: Path | None, console: Console, *, nthread: int = 0
) -> tuple[dict[str, Any], int]:
    """Rebuild a failed episode, try it again and keep it.

    Returns:
        The figures, and exit code 1 where it does not happen again and is not kept.

    Raises:
        InputError: the episode did not fail, cannot be rebuilt, or the name is taken.
    """
    if asked.name:
        check_free(places.home(scenarios) / check_name(asked.name))
    if asked.tries < 1:
        raise InputError(f"--tries {asked.tries}: give at least one.")
    if not 0 < asked.least <= 1:
        raise InputError(f"--least {asked.least:g} is no share of the tries; give one above 0, at most 1.")
    backend = open_backend(nthread=nthread)
    rebuilt = _rebuilt(asked, backend)
    for line in rebuilt.lines:
        console.print(line, soft_wrap=True)
    reference, told = (
        (asked.policy, f"Who acts: {asked.policy}, as you said.") if asked.policy else acting_again(rebuilt)
    )
    console.print(told, soft_wrap=True)
    open_loop, closed = _tried(rebuilt, reference, asked.tries, backend)
    again = bool(rebuilt.exact) or float((closed or open_loop).failure_rate().estimate) >= asked.least
    evidence = _evidence(rebuilt, open_loop, closed, reference, again=again, least=asked.least)
    for line in _lines(rebuilt, open_loop, closed, reference, again=again):
        console.print(line, soft_wrap=True)
    world = replace(rebuilt.world, evidence=evidence)
    figures = {"verb": "scenario", "kind": "from-failure", "scenario": world.name, **evidence}
    if not again and not asked.anyway:
        console.print(
            "Not stored: where a failure does not happen again, the twin lacks what made it. Look for it with "
            "`twinloop gap`, identify the twin and give --identified, or keep it with --anyway.",
            soft_wrap=True,
        )
        return {**figures, "stored": None}, 1
    folder = write_pinned(world, places.home(scenarios) / world.name)
    console.print(f"Stored: {folder}", soft_wrap=True)
    return {**figures, "stored": str(folder)}, 0


def _rebuilt(asked: Asked, backend: Backend) -> Rebuilt:
    located = places.locate(asked.episode)
    if simulated(located):
        return from_provenance(located, asked.name, asked.reason, asked.meaning, backend)
    return from_log(
        located,
        asked.name,
        asked.reason,
        asked.meaning,
        twin=asked.twin,
        task=asked.task,
        identified=asked.identified,
        ndraw=max(asked.tries - 1, 1),
        seed=asked.seed,
    )


def acting_again(rebuilt: Rebuilt) -> tuple[str, str]:
    """Who acted in the episode, where they are here to act again, else ""; and a sentence about that."""
    actor = rebuilt.world.origin.actor
    if actor == rebuilt.task.expert_version:
        return places.EXPERT, "Who acts: the task's expert, as in the episode."
    name = actor.removeprefix("policy:")
    if name == actor:
        return "", "The episode does not say that a policy acted."
    for reference in (rebuilt.policy_hash, name):
        if reference and places.is_here(reference, rebuilt.policy_hash):
            return reference, f"Who acts: the policy {name}, as the episode says; another by --policy."
    digest = f" ({rebuilt.policy_hash[:12]})" if rebuilt.policy_hash else ""
    return "", f"The episode says that the policy {name}{digest} acted, and it is not here."


def _tried(rebuilt: Rebuilt, reference: str, tries: int, backend: Backend) -> tuple[Tried, Tried | None]:
    """Under the commands of the episode, and under whoever acts."""
    world, twin, task = rebuilt.world, rebuilt.twin, rebuilt.task
    open_loop = try_commands(world, twin, task, tries, backend=backend)
    if not reference:
        return open_loop, None
    return open_loop, try_actor(world, twin, task, places.actor(reference, twin, task), tries, backend=backend)


def _evidence(
    rebuilt: Rebuilt, open_loop: Tried, closed: Tried | None, reference: str, *, again: bool, least: float
) -> dict[str, Any]:
    expected = {"expected": expectation(reference, closed)} if closed is not None else {}
    return {
        "again": again,
        "least": least,
        "bit_for_bit": rebuilt.exact,
        "parameters": rebuilt.parameters,
        "open_loop": open_loop.to_json(),
        **expected,
    }


def _lines(rebuilt: Rebuilt, open_loop: Tried, closed: Tried | None, reference: str, *, again: bool) -> list[str]:
    rows = [(open_loop, "the commands of the episode")] + ([(closed, reference)] if closed is not None else [])
    lines = [f"Under {who}: {rate_words(tried)}." for tried, who in rows]
    if closed is None:
        lines.append("Nobody acted again: name who does with --policy, so that `scenario regress` can compare.")
    if not again:
        return [*lines, "It does NOT happen again: a gap, not a scenario."]
    return [*lines, "It happens again, exactly." if rebuilt.exact else "It happens again."]


def rate_words(tried: Tried) -> str:
    """How often tries fail, in words."""
    rate = tried.failure_rate()
    return (
        f"fails in {tried.failures} of {tried.trials} worlds, {float(rate.estimate):.0%} "
        f"(exact {rate.level:.0%} interval {float(rate.low):.0%} to {float(rate.high):.0%})"
    )
