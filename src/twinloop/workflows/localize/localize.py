"""Run ``twinloop localize``: train a localizer, score it on photos, correct it for a robot, give it a policy."""

from __future__ import annotations

import functools
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from twinloop.core.assignment import list_sources
from twinloop.core.errors import InputError
from twinloop.core.pool import count_cores
from twinloop.generate.config import GenerateConfig, load_plan, read_config
from twinloop.policies.factory import open_policy, require_torch
from twinloop.policies.folder import PolicyCard, read_card
from twinloop.randomize import Plan
from twinloop.tasks import Task, open_task
from twinloop.tasks.assignment import assign
from twinloop.train.config import CHECKPOINT, RESULT
from twinloop.workflows.localize.requests import (
    LocalizeAdaptRequest,
    LocalizeAttachRequest,
    LocalizeScoreRequest,
    LocalizeTrainRequest,
)
from twinloop.workflows.run.results import claim_output, write_request, write_result
from twinloop.workflows.run.taught_worlds import write_worlds
from twinloop.workflows.run.twin_and_task import load_requested_twin
from twinloop.workflows.train.records import record_simulated_training
from twinloop.workflows.train.train import parse_policy_settings

_FIELDS = ("height", "width", "images", "renderer", "worlds", "frames", "steps", "batch", "lr")


def has_checkpoint(request: LocalizeTrainRequest) -> bool:
    """Return whether the output folder has images or a checkpoint that ``--resume`` can continue."""
    from twinloop.train.distill import ROUNDS

    return (request.output / CHECKPOINT).is_file() or (request.output / ROUNDS).is_dir()


def open_worlds(made: GenerateConfig) -> tuple[Plan, Task]:
    """Return the distribution of the worlds of a generate file, and its task."""
    plan = load_plan(made)
    return plan, open_task(made.task, plan.twin)


def run_localize_train(request: LocalizeTrainRequest, console: Console) -> dict[str, Any]:
    """Train a localizer, and print its errors in held-out worlds.

    Raises:
        TwinloopError: If the file or a setting is wrong; see `train.localize.train_localizer`.
    """
    require_torch()
    from twinloop.train.localize import LocalizeConfig, train_localizer

    given = {name: getattr(request, name) for name in _FIELDS if getattr(request, name) is not None}
    lists = {name: getattr(request, name) for name in ("tracked", "cameras")}
    settings = {"settings": parse_policy_settings(request.set), "seed": request.seed or 0}
    config = LocalizeConfig.of({**given, **lists, **settings}, where="The settings of localize train")
    made = read_config(request.file, episodes=config.worlds, seed=request.seed)
    plan, task = open_worlds(made)
    control = None if request.control is None else open_policy(request.control)
    started = datetime.now(UTC)
    if not (request.resume and (request.output / RESULT).is_file()):
        claim_output(request.output)
    metrics = train_localizer(
        functools.partial(open_worlds, made),
        config,
        request.output,
        control=control,
        base=None if request.base is None else open_localizer(request.base),
        assignment=assign(made.twin, made.task, plan.twin, task),
        workers=request.workers or count_cores(),
        resume=request.resume,
    )
    write_worlds(request.output, made)
    write_request(request.output)
    console.print(f"Errors in {metrics['held_out']['worlds']} held-out worlds:")
    console.print(format_errors(metrics["held_out"]["bodies"]))
    record_simulated_training(request.workspace, request.output, metrics, started, console)
    following = "twinloop localize attach" if metrics["control"] is None else "twinloop evaluate"
    console.print(f"Next: {following} {request.output}", soft_wrap=True)
    return {**metrics, "output": str(request.output)}


def format_errors(bodies: dict[str, dict[str, Any]]) -> Table:
    """Return a table of the errors by body, in mm and degrees."""
    table = Table("", "median", "95 % interval", "90 % below", "images", box=None, pad_edge=False)
    for name, row in bodies.items():
        what, _, unit = name.rpartition(", ")
        factor, shown = (1e3, "mm") if unit == "m" else (57.29578, "°")
        low, high = (f"{factor * row[side]:.1f}" for side in ("low", "high"))
        table.add_row(
            what,
            f"{factor * row['median']:.1f} {shown}",
            f"[{low}, {high}]",
            f"{factor * row['q90']:.1f}",
            f"{row['n']}",
        )
    return table


def run_localize_attach(request: LocalizeAttachRequest, console: Console) -> dict[str, Any]:
    """Write a policy from images, made of a localizer and a policy that reads a tracker.

    Raises:
        InputError: If one of them is something else, or they do not fit; see `policies.localizer.attach_control`.
    """
    claim_output(request.output)
    localizer, control = open_localizer(request.localizer), open_policy(request.control)
    from twinloop.policies.localizer import attach_control
    from twinloop.policies.policy import Policy

    if not isinstance(control, Policy):
        raise InputError(
            f"{request.control} is not a policy with weights of twinloop. Give a folder, not an ONNX file."
        )
    made = attach_control(localizer, control)
    made.save(request.output, _read_card(request.localizer))
    console.print(f"Policy hash {made.hash[:16]}: {request.output}", soft_wrap=True)
    console.print(f"Next: twinloop evaluate {request.output} --suite randomized", soft_wrap=True)
    return {"hash": made.hash, "localizer": localizer.hash, "control": control.hash, "output": str(request.output)}


def open_localizer(folder: Path) -> Any:
    """Open the folder of a localizer.

    Raises:
        InputError: If it is another kind of policy.
    """
    require_torch()
    from twinloop.policies.localizer import Localizer

    opened = open_policy(folder)
    if not isinstance(opened, Localizer):
        raise InputError(f"{folder} is not a localizer. Train one with `twinloop localize train`.")
    return opened


def run_localize_score(request: LocalizeScoreRequest, console: Console) -> dict[str, Any]:
    """Print the errors of each localizer on photos, their ranking, and whether more photos are needed.

    Raises:
        InputError: If a folder is no localizer, or a photo or label is wrong; see `train.photos.read_photos`.
    """
    if not request.localizers:
        raise InputError("Give the folder of a localizer, or of several to rank them.")
    if request.output is not None:
        claim_output(request.output)
    opened = {str(folder): open_localizer(folder) for folder in request.localizers}
    from twinloop.train.photos import rank_localizers, read_photos, score_photos

    scores, (first, *others) = dict[str, dict[str, Any]](), list(opened)
    for folder in others:
        if opened[folder].settings.tracked != opened[first].settings.tracked:
            raise InputError(f"{folder} localizes other values than {first}, so their errors cannot be compared.")
    for folder, localizer in opened.items():
        photos = read_photos(request.photos, localizer, load_requested_twin(request.twin, request.output, folder))
        score = score_photos(localizer, photos)
        scores[folder] = score
        console.print(f"{folder}: {score['photos']} photos", soft_wrap=True)
        console.print(format_errors(score["bodies"]))
        console.print(f"inside its 95 % interval: {score['inside_95']:.0%}")
        for note in score["notes"]:
            console.print(note, soft_wrap=True)
    result: dict[str, Any] = {"schema": 1, "verb": "localize", "scores": scores}
    if len(scores) > 1:
        result["ranking"] = rank_localizers(scores)
        _print_ranking(result["ranking"], console)
    if request.output is not None:
        return write_result(request.output, result)
    return result


def _print_ranking(ranking: dict[str, Any], console: Console) -> None:
    table = Table("localizer", "mean error", "more than the best", box=None, pad_edge=False)
    for name in ranking["order"]:
        row = ranking["differences"].get(name)
        more = (
            ""
            if row is None
            else f"{1e3 * row['estimate']:+.1f} mm [{1e3 * row['low']:+.1f}, {1e3 * row['high']:+.1f}]"
        )
        table.add_row(name, f"{1e3 * ranking['mean'][name]:.1f} mm", more)
    console.print(table)
    console.print(
        {
            "best": f"{ranking['order'][0]} is the best: stop here.",
            "equal": "They differ by less than 2 mm: stop here, and take any of them.",
            "undecided": f"Not decided. About {ranking['photos']} photos would be enough.",
        }[ranking["decision"]],
        soft_wrap=True,
    )


def run_localize_adapt(request: LocalizeAdaptRequest, console: Console) -> dict[str, Any]:
    """Write a localizer that is corrected for the robot of labelled photos, and print its errors before and after.

    Raises:
        InputError: If the folder is no localizer, or a photo or label is wrong; see `train.photos.read_photos`.
    """
    claim_output(request.output)
    localizer = open_localizer(request.localizer)
    from twinloop.train.photos import adapt_localizer, read_photos

    before = localizer.hash
    photos = read_photos(
        request.photos, localizer, load_requested_twin(request.twin, request.output, str(request.localizer))
    )
    report = adapt_localizer(localizer, photos)
    card = _read_card(request.localizer)
    origin = {**card.provenance, "adapted": f"from {before[:12]} with {len(photos.files)} photos"}
    localizer.save(request.output, replace(card, provenance=origin))
    for body, error in report["before"].items():
        console.print(f"{body}: {1e3 * error:.1f} mm, corrected {1e3 * report['after'][body]:.1f} mm (left out)")
    for note in photos.notes:
        console.print(note, soft_wrap=True)
    console.print(f"Hash {localizer.hash[:16]}: {request.output}", soft_wrap=True)
    return {**report, "hash": localizer.hash, "output": str(request.output)}


def _read_card(folder: Path) -> PolicyCard:
    """Return the card of a localizer with the files of its twin and task, to be kept by another folder."""
    return replace(read_card(folder), sources=list_sources(folder))
