"""Continue the training of a policy in worlds near a failure.

A policy that ``twinloop distill`` taught is taught on: it and the expert act in worlds near the failure and in others,
which are from the distribution of its teaching or around an identified robot, and the expert labels all states. Any
other policy is trained on demonstrations near the failure and on its earlier data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from twinloop.core.documents import read_json
from twinloop.core.errors import InputError
from twinloop.generate.config import load_plan, read_config
from twinloop.rollout.scenario import Scenario
from twinloop.tasks import open_task
from twinloop.tasks.assignment import assign
from twinloop.workflows.run.results import claim_output
from twinloop.workflows.run.taught_worlds import has_worlds, print_ranges, read_worlds, write_worlds
from twinloop.workflows.scenario.augment import run_augment, write_plan
from twinloop.workflows.scenario.requests import AugmentRequest, RetrainRequest
from twinloop.workflows.train.records import record_simulated_training

if TYPE_CHECKING:
    from twinloop.policies import Policy

_RESULT, _TARGETED = "result.json", "targeted"
# Training on data continues at a tenth of its learning rate: the preset of fine-tuning without forgetting
# (docs/guides/training.md).
_SLOWER = 0.1
_KEPT = ("batch", "task", "weight_decay", "ema", "clip")  # of the configuration that the policy was trained with
# Teaching on needs more: after two rounds the policy had lost what it could do before.
_ROUNDS, _SLOWER_TAUGHT = 4, 0.5
_STEPS, _STEPS_TAUGHT = 2000, 8000
# Share of the worlds in which the expert acts. Without them, nothing shows the states to which its labels lead, where
# they differ from what the policy does: in the next round the policy then fails almost everywhere.
_EXPERT_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class ContinuedTraining:
    """Result of a training that was continued near a failure.

    Attributes:
        targeted: facts about the worlds near the failure: the file that draws them, its ranges, the number of episodes
            ``attempted``, and of those that were kept, ``episodes``.
        trained: facts about the training.
        summary: what was done, for a report.
    """

    targeted: Mapping[str, Any]
    trained: Mapping[str, Any]
    summary: str


def continue_training(request: RetrainRequest, scenario: Scenario, folder: Path, console: Console) -> ContinuedTraining:
    """Continue the training of the policy in a folder near a failure; write the new policy to ``OUTPUT/policy``.

    Args:
        request: the flags of the command.
        scenario: the failure.
        folder: folder of the policy.
        console: gets a line for each step.

    Raises:
        InputError: If the policy's training data or worlds are unknown, or a flag does not fit.
    """
    if not 0 < request.share < 1:
        raise InputError(f"--share {request.share:g}: give a part of the training, between 0 and 1.")
    if has_worlds(folder):
        return _teach(request, scenario, folder, console)
    if request.randomize_from is not None:
        raise InputError(f"{folder} was not taught by `twinloop distill`. Leave --randomize-from out.")
    return _train(request, folder, _training_sources(request, folder), console)


def _teach(request: RetrainRequest, scenario: Scenario, folder: Path, console: Console) -> ContinuedTraining:
    """Teach the policy on, in worlds near the failure and in others, with one twin for both; see `read_worlds`."""
    from twinloop.policies import open_policy
    from twinloop.train.distill import DistillConfig, distill

    if request.data:
        raise InputError(f"{folder} was taught in simulated worlds, not from data. Leave --data out.")
    before = read_worlds(folder, randomize_from=request.randomize_from, seed=request.seed)
    worlds, steps = round(request.episodes / request.share), request.steps or _STEPS_TAUGHT
    said = _read_training_config(folder)
    claim_output(request.output / _TARGETED)
    file, box = write_plan(
        scenario,
        request.output / _TARGETED / "generate.yaml",
        episodes=request.episodes,
        width=request.width,
        only=request.only,
        seed=request.seed,
    )
    plan = load_plan(before.model_copy(update={"episodes": worlds * _ROUNDS}))
    print_ranges(before, plan.twin, console)
    near = load_plan(read_config(file, episodes=worlds * _ROUNDS).model_copy(update={"twin": before.twin}))
    config = DistillConfig.of(
        {
            "inputs": tuple(said.get("inputs", ())),
            "worlds": worlds,
            "rounds": _ROUNDS,
            "other_share": request.share,
            "expert_share": _EXPERT_SHARE,
            "steps": max(1, steps // 2 // (_ROUNDS - 1)),
            "final_steps": max(1, steps // 2),
            "lr": request.lr or _SLOWER_TAUGHT * float(said.get("lr", 1e-3)),
            "seed": request.seed,
        },
        where="the training of scenario loop",
    )
    count, run = request.episodes * _ROUNDS, request.randomize_from
    others = "from those that it was taught in before" if run is None else f"around the robot that {run} identified"
    console.print(
        f"1. {request.policy} is taught on, in {_ROUNDS} rounds of {worlds} worlds: {request.share:.0%} of them near "
        f"{scenario.name}, the others {others}",
        soft_wrap=True,
    )
    started = datetime.now(UTC)
    task, output = open_task(before.task, plan.twin), request.output / "policy"
    kept = assign(before.twin, before.task, plan.twin, task)
    metrics = distill(plan, task, config, output, other=near, assignment=kept, base=open_policy(folder))
    write_worlds(output, before)
    record_simulated_training(None, output, metrics, started, console)
    return ContinuedTraining(
        targeted={
            "file": str(file),
            "ranges": {key: list(pair) for key, pair in box.ranges.items()},
            "fixed": list(box.fixed),
            "attempted": count,
            "episodes": count,
            "data": None,
        },
        trained={"hash": metrics["hash"], "steps": steps, "rounds": metrics["rounds"]},
        summary=f"{count} worlds were near the failure, and {worlds * _ROUNDS - count} {others}. The expert acted in "
        f"{_EXPERT_SHARE:.0%} of them, the policy in the rest; the expert labelled every state, and the teaching "
        "continued from the policy's weights.",
    )


def _read_training_config(folder: Path) -> dict[str, Any]:
    """Return the training configuration that is stored in a policy's folder; empty if it is not stored."""
    file = folder / _RESULT
    said = read_json(file) if file.is_file() else {}
    return said.get("config", {}) if isinstance(said, dict) else {}


def _training_sources(request: RetrainRequest, folder: Path) -> list[dict[str, Any]]:
    """Return the data sources to train on again: those in the request, or those recorded in the policy's folder.

    Raises:
        InputError: If no source is known.
    """
    if request.data:
        return [{"data": one, "kind": "sim"} for one in request.data]
    sources = _read_training_config(folder).get("sources")
    if not sources:
        raise InputError(
            f"{folder} does not record the policy's training data. Give them with --data, to train on them again."
        )
    return list(sources)


def _train(
    request: RetrainRequest, folder: Path, sources: Sequence[Mapping[str, Any]], console: Console
) -> ContinuedTraining:
    """Train the policy on demonstrations near the failure and on its earlier data."""
    from twinloop.policies import open_policy
    from twinloop.train.run import train

    console.print(f"1. Demonstrations around {request.name}", soft_wrap=True)
    augmented = run_augment(
        AugmentRequest(
            name=request.name,
            output=request.output / _TARGETED,
            episodes=request.episodes,
            width=request.width,
            only=request.only,
            seed=request.seed,
            scenarios=request.scenarios,
            workers=request.workers,
        ),
        console=console,
    )
    console.print(
        f"2. Training of {request.policy}, continued: {request.share:.0%} of every batch are "
        "demonstrations near the failure",
        soft_wrap=True,
    )
    champion = open_policy(folder)
    config = _training_config(request, champion, _read_training_config(folder), sources, augmented["data"])
    trained = train(config, request.output / "policy", base=champion).metrics
    return ContinuedTraining(
        targeted=augmented,
        trained={key: trained[key] for key in ("hash", "steps", "seconds", "sources")},
        summary=f"{augmented['episodes']} of {augmented['attempted']} demonstrations around the failure succeeded and "
        "were mixed with what the policy was trained on before; training continued from its weights.",
    )


def _training_config(
    request: RetrainRequest,
    champion: Policy,
    said: Mapping[str, Any],
    sources: Sequence[Mapping[str, Any]],
    targeted: str,
) -> Any:
    """Return the configuration of a training on earlier data and on demonstrations near the failure.

    Args:
        request: the flags of the command.
        champion: the policy to continue from.
        said: the configuration that it was trained with.
        sources: its earlier data.
        targeted: dataset of the demonstrations.
    """
    from twinloop.train import TrainConfig

    contract = champion.contract
    inputs = [name for name in ("state", "environment") if getattr(contract, name)]
    old = [{**one, "weight": (1.0 - request.share) / len(sources)} for one in sources]
    return TrainConfig.of(
        {
            **{key: said[key] for key in _KEPT if key in said},
            "policy": champion.settings.kind,
            "settings": champion.settings.model_dump(mode="json", exclude={"kind"}),
            "inputs": [*inputs, *contract.cameras],
            "sources": [*old, {"data": targeted, "name": "targeted", "weight": request.share}],
            "steps": request.steps or _STEPS,
            "lr": request.lr or _SLOWER * float(said.get("lr", 1e-3)),
            "seed": request.seed,
        },
        where="the training of scenario loop",
    )
