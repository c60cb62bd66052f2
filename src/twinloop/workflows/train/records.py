"""Record runs that trained a policy, and the policy itself, in the workspace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from twinloop.catalog import Workspace
from twinloop.core.errors import TwinloopError
from twinloop.workflows.run.results import recorded_words

_POLICY_FACTS = ("config_hash", "data_hash", "seed", "versions", "checkpoint", "worlds")


def record_training(
    root: Path,
    output: Path,
    result: Mapping[str, Any],
    started: datetime,
    console: Console,
    *,
    facts: Sequence[str],
    datasets: Sequence[str] = (),
    base: str | None = None,
) -> bool:
    """Record a run and its policy in a workspace; return whether that succeeded.

    If it fails, the reason is printed; the policy is still valid.

    Args:
        root: folder of the workspace.
        output: folder of the policy.
        result: result of the training, with ``verb`` and the policy's ``hash``.
        started: when the training began.
        console: console on which a failure is printed.
        facts: names of the entries of ``result`` that the record of the run keeps.
        datasets: references of the dataset versions that trained the policy; none if it was taught in simulated worlds
            that ``result["worlds"]`` describes.
        base: hash of the policy from which the training continued.
    """
    short = {key: result[key] for key in facts if key in result}
    extra = {key: result[key] for key in _POLICY_FACTS if key in result}
    try:
        with Workspace.open(root) as held:
            run = held.record_run(result["verb"], output, short, started, datetime.now(UTC), recorded_words())
            if base is not None and not len(held.query("SELECT policy FROM policies WHERE policy = ?", [base])):
                console.print(f"Note: the workspace has no record of the base policy {base[:16]}.", soft_wrap=True)
                base, extra = None, {**extra, "base_hash": base}
            held.record_policy(result["hash"], output.name, datasets, run, extra, base=base)
    except TwinloopError as error:
        console.print(f"Not recorded in the workspace {root}: {error}", soft_wrap=True)
        return False
    return True


def record_simulated_training(
    workspace: Path | None, output: Path, result: Mapping[str, Any], started: datetime, console: Console,
) -> None:  # fmt: skip
    """Record a policy that was trained in simulated worlds without a dataset, if there is a workspace.

    Args:
        workspace: folder of the workspace; None for the nearest one upwards from the policy's folder.
        output: folder of the policy.
        result: result of the training.
        started: when the training began.
        console: console for messages.
    """
    root = workspace or Workspace.find(output.absolute())
    if root is None:
        return
    facts = ("hash", "policy", "seed", "twin", "task", "parameters")
    if record_training(root, output, result, started, console, facts=facts, base=result.get("base")):
        console.print(
            f"In the workspace: policy {output.name}, trained in {result['worlds']['episodes']} simulated worlds"
        )
