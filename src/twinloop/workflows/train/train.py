"""Run ``twinloop train``: train a policy from a file or from flags, and record its training data in the workspace.

`run_train` passes a policy ``lerobot:NAME`` to `twinloop.train.lerobot`, which trains it with LeRobot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from twinloop.catalog import Workspace
from twinloop.catalog.engine import quote_literal
from twinloop.core.documents import read_json
from twinloop.core.errors import InputError
from twinloop.core.yaml_documents import parse_yaml
from twinloop.dataset.storage.snapshot import hold_folder_lock
from twinloop.policies.factory import require_torch
from twinloop.train import TrainConfig, read_config, train
from twinloop.train.config import CHECKPOINT, RESULT
from twinloop.train.lerobot import PREFIX, report_rows, train_lerobot
from twinloop.workflows.run.results import claim_output, write_report, write_request
from twinloop.workflows.train.page import train_page, train_section
from twinloop.workflows.train.records import record_training
from twinloop.workflows.train.requests import TrainRequest

_REPORT = "report.html"
_RUN_FACTS = ("hash", "policy", "seed", "steps", "seconds", "sources", "held_out", "notes", "checkpoint")


def has_checkpoint(request: TrainRequest) -> bool:
    """Return whether the output folder has a checkpoint that ``--resume`` can continue, of twinloop or of LeRobot."""
    output = request.output
    theirs = output.with_name(f"{output.name}.lerobot").glob("*/checkpoints/[0-9]*/pretrained_model")
    return (output / CHECKPOINT).is_file() or any(theirs)


_SAME = ("policy", "steps", "batch", "lr", "sim_fraction", "holdout", "patience", "keep", "seed", "device", "threads")


def config_from_flags(request: TrainRequest) -> dict[str, Any]:
    """Return the fields of `TrainConfig` that the flags set; a field whose flag is not given is None."""
    return {name: getattr(request, name) for name in _SAME} | {
        "sources": [{"data": one} for one in request.data] or None,
        "settings": parse_policy_settings(request.set) or None,
        "inputs": list(request.inputs) or None,
        "curriculum": {} if request.curriculum else None,
        "domain_token": {} if request.domain_token else None,
        "keep_failures": True if request.keep_failures else None,
        "adapt": _section_flags(
            **{"from": request.adapt}, method=request.method, rank=request.rank, l2_start=request.l2_start
        ),
        "align": _section_flags(method=request.align, weight=request.align_weight),
        "pixels": _section_flags(method=request.pixels),
    }


def _section_flags(**section: Any) -> dict[str, Any] | None:
    """Return the flags of one section of the configuration that are given; None if none is given."""
    return {key: value for key, value in section.items() if value is not None} or None


def run_train(request: TrainRequest, console: Console) -> dict[str, Any]:
    """Train a policy, print the result, write the report, and record run and policy in the workspace.

    Raises:
        TwinloopError: If the configuration or the data cannot be used; see `train.run.train`.
    """
    flags, output, resume = config_from_flags(request), request.output, request.resume
    for name in ("steps", "batch", "lr"):
        if flags.get(name) == 0:  # in a config, 0 means the recipe's own value
            raise InputError(f"--{name} 0 trains nothing. Give a number above 0, or leave it out for the recipe's own.")
    config = read_config(request.file, **flags)
    root = request.workspace or Workspace.find(output.absolute())
    if config.policy.startswith(PREFIX):
        return _run_lerobot(config, output, root, resume=resume, python=request.lerobot_python, console=console)
    require_torch()
    from twinloop.train.loop import read_checkpoint
    from twinloop.train.preparation import prepare, resolve_config

    config, trained_before = resolve_config(config), resume and _lacks_report(output)
    if resume and not trained_before:
        read_checkpoint(output)  # raises before anything is frozen if there is no checkpoint
    started = datetime.now(UTC)
    if not trained_before:
        claim_output(output)
    prepared = prepare(config, root)
    for note in prepared.data.notes:
        console.print(f"Note: {note}.", soft_wrap=True)
    folders = {e.episode_id: e.folder for e in prepared.data.episodes}
    frozen = (
        _freeze_training_data(root, prepared.training_ids, folders, output.name, console) if root is not None else None
    )
    if trained_before:
        result = _load_finished_run(output, config)
    else:
        result = train(config, output, workspace=root, resume=resume, prepared=prepared).metrics
    result = {**result, "output": str(output)}
    _print_summary(result, console)
    if root is not None and frozen is not None:
        result["dataset"] = frozen
        _record(root, output, result, frozen, started, console)
    write_request(output)
    # Written last, so that --resume recognizes a killed run.
    write_report(train_page(result), lambda page: train_section(page, result), output / _REPORT, console)
    console.print(f"Policy hash {result['hash'][:16]} (weights and settings): {output}", soft_wrap=True)
    return result


def _lacks_report(output: Path) -> bool:
    """Return whether a run was killed between the end of its training and the writing of its report."""
    return (output / RESULT).is_file() and not (output / _REPORT).is_file()


def _load_finished_run(output: Path, config: TrainConfig) -> dict[str, Any]:
    """Return the metrics of a finished training, and delete its checkpoint.

    Raises:
        InputError: If the training had another configuration.
    """
    result = read_json(output / RESULT)
    if result.get("config_hash") != config.hash:
        raise InputError(
            f"{output} holds a finished run with another configuration. Resume with the same settings, or train into "
            "another --output."
        )
    (output / CHECKPOINT).unlink(missing_ok=True)
    return result


def _run_lerobot(
    config: TrainConfig, output: Path, root: Path | None, *, resume: bool, python: Path | None, console: Console
) -> dict[str, Any]:
    """Train a policy with LeRobot's program ``lerobot-train``, then print and record it like any other policy.

    Args:
        config: configuration of the training.
        output: folder for the policy.
        root: the workspace, or None.
        resume: whether to continue an interrupted run.
        python: interpreter of the environment with LeRobot; None for the default.
        console: console for the result.

    Returns:
        The metrics from `train_lerobot`, the output folder and, in a workspace, the reference of the dataset version
        with the training episodes.
    """
    started = datetime.now(UTC)
    claim_output(output)
    with hold_folder_lock(output, "training"):
        trained = train_lerobot(config, output, python=python, workspace=root, resume=resume)
    write_request(output)
    result = {**trained.metrics, "output": str(output)}
    for line in [*report_rows(result), *(f"Note: {note}." for note in result["notes"])]:
        console.print(line, soft_wrap=True)
    if root is not None:
        result["dataset"] = _freeze_training_data(root, sorted(trained.folders), trained.folders, output.name, console)
        _record(root, output, result, result["dataset"], started, console)
    console.print(f"Policy {result['hash'][:16]}, which LeRobot runs: {output}")
    return result


def _freeze_training_data(
    root: Path, ids: Sequence[str], folders: Mapping[str, Path], name: str, console: Console
) -> str:
    """Freeze the training episodes as a dataset version of the workspace, and return its reference NAME@VERSION.

    Dataset folders that are not in the workspace are added first.

    Args:
        root: the workspace.
        ids: ids of the episodes.
        folders: dataset folder of each episode.
        name: name of the policy.
        console: console on which added folders are printed.
    """
    with Workspace.open(root) as held:
        known = set(held.query("SELECT DISTINCT episode_id FROM places")["episode_id"].to_pylist())
        for folder in dict.fromkeys(folder for one, folder in folders.items() if one not in known):
            added = held.add(folder)
            console.print(f"Batch {added.batch} of the workspace: {added.new} new episodes.")
        listed = ", ".join(quote_literal(one) for one in ids)
        sql = f"SELECT episode_id FROM episodes WHERE episode_id IN ({listed})"  # noqa: S608
        return held.freeze(f"train-{name}", sql, note="what a policy was trained on").reference


def _record(
    root: Path, output: Path, result: Mapping[str, Any], frozen: str, started: datetime, console: Console
) -> None:  # fmt: skip
    base = result.get("adaptation", {}).get("base_hash")
    if record_training(root, output, result, started, console, facts=_RUN_FACTS, datasets=(frozen,), base=base):
        console.print(f"In the workspace: policy {output.name}, trained on {frozen} ({len(result['sources'])} sources)")


def _print_summary(result: Mapping[str, Any], console: Console) -> None:
    from twinloop.train.run import format_error

    table = Table("source", "", "episodes", "held out", "share", "held-out action error", box=None, pad_edge=False)
    held = {row["source"]: row for row in result["held_out"]}
    for row in result["sources"]:
        errors = held.get(row["name"], {}).get("by_unit", {})
        said = "; ".join(format_error(unit, one) for unit, one in errors.items()) or "–"
        kind = "real" if row["real"] else "sim"
        table.add_row(
            row["name"], kind, str(row["episodes"]), str(row["held_out"]), f"{row['share_realized']:.4g}", said
        )
    console.print(table)
    for note in result["notes"]:
        console.print(f"Note: {note}.", soft_wrap=True)
    if "alignment" in result["adaptation"]:
        console.print(f"Alignment: {result['adaptation']['alignment']['verdict']}.", soft_wrap=True)
    console.print(
        f"{result['steps']} steps in {result['seconds']:.1f} s ({result['samples_per_second']:.0f} samples/s); the "
        f"weights of step {result['kept_step']} are kept"
    )


def parse_policy_settings(words: Sequence[str]) -> dict[str, Any]:
    """Parse words of the form ``NAME=VALUE``, such as ``width=512``; return the settings by name, read as YAML.

    Raises:
        InputError: If a word has no ``=``.
    """
    made = {}
    for word in words:
        key, separator, value = word.partition("=")
        if not separator:
            raise InputError(f"--set {word}: write NAME=VALUE, such as --set width=512.")
        made[key] = parse_yaml(value, where=f"--set {word}")
    return made
