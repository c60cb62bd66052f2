"""Run ``twinloop distill``: teach a policy in the worlds of a generate file, while an expert labels its states."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from twinloop.core.errors import InputError
from twinloop.generate.config import load_plan, read_config
from twinloop.policies.factory import open_policy, require_torch
from twinloop.rollout.labelling import require_labels
from twinloop.tasks import open_task
from twinloop.tasks.assignment import assign
from twinloop.train.config import CHECKPOINT, RESULT
from twinloop.workflows.run.results import claim_output, write_request
from twinloop.workflows.run.taught_worlds import print_ranges, write_worlds
from twinloop.workflows.train.records import record_simulated_training
from twinloop.workflows.train.requests import DistillRequest
from twinloop.workflows.train.train import parse_policy_settings

_FIELDS = ("worlds", "rounds", "steps", "final_steps", "tracker_noise", "tracker_offset", "tracker_wander",
           "tracker_turn", "expert_share", "batch", "lr", "height", "width", "images", "renderer")  # fmt: skip


def has_checkpoint(request: DistillRequest) -> bool:
    """Return whether the output folder has a checkpoint that ``--resume`` can continue."""
    return (request.output / CHECKPOINT).is_file()


def run_distill(request: DistillRequest, console: Console) -> dict[str, Any]:
    """Teach a policy, and print who acted in each round, how often with success, and the loss.

    Raises:
        TwinloopError: If the file or a setting is wrong, or the task has no expert that labels states; see
            `train.distill.distill`.
    """
    require_torch()
    from twinloop.train.distill import DistillConfig, describe_weak_expert, distill

    given = {name: getattr(request, name) for name in _FIELDS if getattr(request, name) is not None}
    share = request.randomize_share
    if not 0 <= share <= 1:
        raise InputError(f"--randomize-share {share:g}: give a share of the worlds from 0 to 1.")
    if share != 1.0 and request.randomize_from is None:
        raise InputError(
            f"--randomize-share {share:g} needs --randomize-from with the folder of an identification run."
        )
    config = DistillConfig.of(
        {
            **given,
            "policy": request.policy,
            "other_share": 1.0 - share,
            "inputs": request.inputs,
            "cameras": request.cameras,
            "settings": parse_policy_settings(request.set),
            "seed": request.seed or 0,
        },
        where="The settings of distill",
    )
    worlds = config.worlds * config.rounds
    made = read_config(request.file, episodes=worlds, seed=request.seed, randomize_from=request.randomize_from)
    plan = load_plan(made)
    print_ranges(made, plan.twin, console)
    other = load_plan(read_config(request.file, episodes=worlds, seed=request.seed)) if share < 1.0 else None
    task = open_task(made.task, plan.twin)
    teacher = None if request.teacher is None else open_policy(request.teacher)
    require_labels(task, plan.twin, teacher)
    base, eyes = (None if folder is None else open_policy(folder) for folder in (request.base, request.eyes))
    started = datetime.now(UTC)
    if not (request.resume and (request.output / RESULT).is_file()):
        claim_output(request.output)
    kept = assign(made.twin, made.task, plan.twin, task)
    metrics = distill(
        plan, task, config, request.output, other=other, assignment=kept, resume=request.resume, teacher=teacher,
        base=base, eyes=eyes,
    )  # fmt: skip
    write_worlds(request.output, made)
    write_request(request.output)
    table = Table("round", "expert acts", "policy acts", "success", "loss", box=None, pad_edge=False)
    for number, row in enumerate(metrics["rounds"]):
        success = f"{row['successes'] / row['worlds']:.0%}"
        table.add_row(f"{number + 1}", f"{row['by_expert']}", f"{row['by_policy']}", success, f"{row['loss']:.4f}")
    console.print(table)
    if weakness := describe_weak_expert(metrics["rounds"][0]):
        console.print(weakness, style="bold", soft_wrap=True)
    if estimates := metrics["rounds"][-1].get("estimates"):
        console.print(f"R² of the estimates in new worlds: {_format_estimates(estimates)}", soft_wrap=True)
    console.print(f"Policy hash {metrics['hash'][:16]}: {request.output}", soft_wrap=True)
    record_simulated_training(request.workspace, request.output, metrics, started, console)
    console.print(f"Next: twinloop evaluate {request.output} --suite randomized", soft_wrap=True)
    return {**metrics, "output": str(request.output)}


def _format_estimates(estimates: Mapping[str, float]) -> str:
    """Return the mean and the largest R² of each quantity over the joints."""
    groups: dict[str, list[float]] = {}
    for name, share in estimates.items():
        groups.setdefault(name.rpartition("/")[2], []).append(share)
    return ", ".join(f"{name} {np.mean(rows):.2f} (at most {max(rows):.2f})" for name, rows in groups.items())
