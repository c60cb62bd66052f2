"""Generate demonstrations near a failure, in worlds whose parameters are drawn from a box around the scenario.

The demonstrations are training data with which a policy can learn to avoid the failure.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from twinloop.core.errors import InputError
from twinloop.core.extension import resolve_reference, split_mark
from twinloop.core.files import write_text
from twinloop.dataset.lerobot import layout
from twinloop.generate.config import MAX_BATCH, make_plan, resolve_config
from twinloop.rollout.scenario import Scenario
from twinloop.scenario.target_box import WIDTH, TargetBox, make_target_box
from twinloop.tasks.protocol import has_tracked_values
from twinloop.workflows.generate.generate import run_generate
from twinloop.workflows.generate.requests import GenerateRequest
from twinloop.workflows.run.results import claim_output
from twinloop.workflows.scenario import references
from twinloop.workflows.scenario.requests import AugmentRequest

_FILE, _DATA = "generate.yaml", "data"
_WRAP = 110


def run_augment(request: AugmentRequest, console: Console) -> dict[str, Any]:
    """Write ``OUTPUT/generate.yaml`` for worlds near a scenario, and generate the dataset ``OUTPUT/data`` from it.

    Raises:
        InputError: If the scenario has only nominal parameters, or no worlds can be drawn from the ranges around it.
        CheckFailedError: If no attempt succeeded.
    """
    claim_output(request.output)
    _, scenario = references.open_scenario(request.name, request.scenarios)
    file, box = write_plan(
        scenario,
        request.output / _FILE,
        episodes=request.episodes,
        width=request.width,
        only=request.only,
        seed=request.seed,
    )
    ranged = len(box.ranges) - len(box.fixed)
    console.print(f"{file}: {ranged} parameters drawn around the scenario, {len(box.fixed)} kept at its values.")
    result: dict[str, Any] = {
        "verb": "scenario",
        "kind": "augment",
        "scenario": scenario.name,
        "file": str(file),
        "ranges": {key: list(pair) for key, pair in box.ranges.items()},
        "fixed": list(box.fixed),
        "data": None,
    }
    if request.plan_only:
        console.print(f"Run it with `twinloop generate {file} --output {request.output / _DATA}`.")
        return result
    made = run_generate(
        GenerateRequest(
            file=file,
            output=str(request.output / _DATA),
            episodes=None,
            seed=None,
            workers=request.workers,
            resume=_is_incomplete(request.output / _DATA),
            keep="success",
        ),
        console=console,
    )
    return {
        **result,
        "data": str(request.output / _DATA),
        "attempted": made["attempted"],
        "episodes": made["episodes"],
    }


def _is_incomplete(data: Path) -> bool:
    """Return whether an earlier run of the same command ended before all episodes were written."""
    return (data / layout.PROGRESS).is_file() and not (data / layout.RESULT).is_file()


def write_plan(
    scenario: Scenario, file: Path, *, episodes: int, width: float = WIDTH, only: Sequence[str] = (), seed: int = 0
) -> tuple[Path, TargetBox]:
    """Write a generate file with a box (ranges of parameters) around a scenario, after a check that its plan is valid.

    Parameters outside the box are drawn from the twin's default ranges.

    Args:
        scenario: the scenario.
        file: the generate file to write.
        episodes: number of attempts.
        width: half the width of the box, as a fraction of each parameter's default range.
        only: patterns of the parameters in the box; by default all that differ from nominal values.
        seed: run seed.

    Returns:
        The file and the box.

    Raises:
        InputError: If fewer than one episode is requested, or the box cannot be drawn from.
    """
    if episodes < 1:
        raise InputError(f"--episodes {episodes}: give at least one.")
    twin, task = scenario.open()
    box = make_target_box(scenario, twin, width=width, only=only)
    worlds = next(n for n in range(min(episodes, MAX_BATCH), 0, -1) if episodes % n == 0)
    value = {
        "scene": {"twin": _absolute(scenario.twin_reference), "task": _absolute(scenario.task_reference)},
        "seed": seed,
        "rollout": {
            "parallel_envs": worlds,
            "episodes_per_env": episodes // worlds,
            **({"environment_state": True} if has_tracked_values(task) else {}),
        },
        "randomization": {
            "default": True,
            "boxes": [{"episodes": 1, "params": {key: list(pair) for key, pair in box.ranges.items()}}],
        },
    }
    make_plan(resolve_config(value, where=str(file), folder=Path.cwd()), twin)
    said = f"Made by `twinloop scenario augment {scenario.name}`: demonstrations around a failure. {scenario.reason}"
    comment = "\n".join(f"# {line}" for line in textwrap.wrap(said, _WRAP))
    write_text(file, f"{comment}\n{yaml.safe_dump(value, sort_keys=False, allow_unicode=True)}")
    return file, box


def _absolute(reference: str) -> str:
    """Return the name or the absolute path of a twin or a task."""
    plain = split_mark(reference)[0]
    return str(Path(plain).resolve()) if Path(plain).is_file() else resolve_reference(plain, Path.cwd())
