"""Run ``twinloop reinforce``: report a reward, and train a policy by reinforcement in the worlds of a generate file."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from twinloop.core.errors import InputError
from twinloop.generate.config import GenerateConfig, load_plan, read_config
from twinloop.policies.factory import require_torch
from twinloop.randomize import Plan
from twinloop.tasks import open_task
from twinloop.tasks.assignment import assign
from twinloop.train.config import CHECKPOINT, RESULT
from twinloop.workflows.run.results import claim_output, write_report, write_request
from twinloop.workflows.run.taught_worlds import print_ranges, write_worlds
from twinloop.workflows.train.records import record_simulated_training
from twinloop.workflows.train.reinforce_page import format_interval, reinforce_page, reinforce_section, report_rows
from twinloop.workflows.train.requests import ReinforceRequest
from twinloop.workflows.train.train import parse_policy_settings

_FIELDS = (
    "worlds", "iterations", "delta", "init_std", "passes", "batch", "lr", "gamma", "entropy", "target_kl",
)  # fmt: skip


def has_checkpoint(request: ReinforceRequest) -> bool:
    """Return whether the output folder has a checkpoint that ``--resume`` can continue."""
    return (request.output / CHECKPOINT).is_file()


def run_reinforce(request: ReinforceRequest, console: Console) -> dict[str, Any]:
    """Report the reward, train a policy, and print its success over the iterations.

    Raises:
        TwinloopError: If the file or a setting is wrong; see `train.reinforce.reinforce`.
    """
    require_torch()
    from twinloop.train.reinforce import ReinforceConfig, ReinforceRun, reinforce

    config = ReinforceConfig.of(_read_settings(request), where="The settings of reinforce")
    episodes = config.worlds * (config.iterations + 1)
    made = read_config(request.file, episodes=episodes, seed=request.seed, randomize_from=request.randomize_from)
    plan = load_plan(made)
    print_ranges(made, plan.twin, console)
    task = open_task(made.task, plan.twin)
    run = ReinforceRun(
        plan=plan, task=task, task_name=made.task, config=config, folder=request.output,
        make_env=lambda plan, weights, worlds: _make_env(made, plan, weights, worlds),
    )  # fmt: skip
    if request.report_only:
        run.measure()
        _print_report(run.report, console)
        return {"schema": 1, "verb": "reinforce", "reward_report": run.report}
    started = datetime.now(UTC)
    if not (request.resume and (request.output / RESULT).is_file()):
        claim_output(request.output)
    kept = assign(made.twin, made.task, plan.twin, task)
    metrics = reinforce(
        run, assignment=kept, resume=request.resume, show_report=lambda report: _print_report(report, console)
    )
    write_worlds(request.output, made)
    write_request(request.output)
    page = reinforce_page(metrics)
    write_report(page, lambda page: reinforce_section(page, metrics), request.output / "report.html", console)
    _print_iterations(metrics, console)
    console.print(f"Policy hash {metrics['hash'][:16]}: {request.output}", soft_wrap=True)
    record_simulated_training(request.workspace, request.output, metrics, started, console)
    console.print(f"Next: twinloop evaluate {request.output} --suite randomized", soft_wrap=True)
    return {**metrics, "output": str(request.output)}


def _read_settings(request: ReinforceRequest) -> dict[str, Any]:
    given = {name: getattr(request, name) for name in _FIELDS if getattr(request, name) is not None}
    reward: dict[str, Any] = {}
    for text in request.reward:
        name, separator, weight = text.partition("=")
        try:
            reward[name] = float(weight)
        except ValueError:
            raise InputError(f"--reward {text}: give NAME=WEIGHT, such as progress=1.") from None
        if not separator:
            raise InputError(f"--reward {text}: give NAME=WEIGHT, such as progress=1.")
    given |= {"reward": reward} if reward else {}
    return {
        **given,
        "inputs": request.inputs,
        "settings": parse_policy_settings(request.set),
        "seed": request.seed or 0,
    }


def _make_env(made: GenerateConfig, plan: Plan, weights: Mapping[str, float], worlds: int) -> Any:
    """Return the worlds in which the policy is trained."""
    from twinloop.envs import TwinVectorEnv

    return TwinVectorEnv(
        worlds, twin=plan.twin, goal=made.task, randomization=plan, observation="lerobot", environment_state=True,
        action="dataset", reward=weights, autoreset_mode="Disabled", end_at_success=False, repeat_episode=True,
        backend=made.file.rollout.backend,
    )  # fmt: skip


def _print_report(report: Mapping[str, Any], console: Console) -> None:
    """Print what each reward term pays per episode."""
    columns, rows = report_rows(report)
    table = Table(*columns, box=None, pad_edge=False, title="Reward per episode, weighted [95 % interval]")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for warning in report["warnings"]:
        console.print(f"Warning: {warning}.", soft_wrap=True)


def _print_iterations(metrics: Mapping[str, Any], console: Console) -> None:
    """Print ten of the iterations."""
    rows = metrics["iterations"]
    table = Table("iteration", "success", "return", "deviation of the outputs", box=None, pad_edge=False)
    for number in sorted({round(share * (len(rows) - 1) / 9) for share in range(10)}):
        row = rows[number]
        success = f"{row['successes'] / row['worlds']:.0%}"
        table.add_row(f"{number + 1}", success, f"{row['return']:.3f}", f"{row['std']:.2f}")
    console.print(table)
    for name, ends in (metrics["ranges"] or {}).get("ranges", {}).items():
        limits = metrics["ranges"]["limits"][name]
        console.print(f"{name}: {format_interval(ends)} at the end, limits {format_interval(limits)}", soft_wrap=True)
