"""Plan the next generate run (`twinloop plan`): write a generate file that fills holes of the coverage.

A hole is a region of real situations without simulated episodes. The file draws parameters from boxes (ranges of some
parameters) that lead into the holes, and from boxes in which simulated episodes fail.
"""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console

from twinloop.core.errors import InputError
from twinloop.core.files import write_text
from twinloop.core.yaml_documents import load_yaml
from twinloop.curate.cells import BOX_CELLS, CellBox
from twinloop.curate.coverage import CoverageHole
from twinloop.curate.parameters import ParameterAxis, compute_points
from twinloop.curate.plan import (
    FillTarget,
    allocate_episodes,
    complete_boxes,
    find_hole_response,
    round_range,
    select_separate_targets,
)
from twinloop.generate.config import make_plan, resolve_config
from twinloop.workflows.coverage.axes import GenerationSource, ParameterSpace
from twinloop.workflows.coverage.measured import PARAMETERS, CoverageResult, measure, resolve_sides
from twinloop.workflows.coverage.requests import PlanRequest
from twinloop.workflows.coverage.result_text import (
    FEW,
    describe_hole_center,
    describe_inputs,
    findings,
    format_box,
    format_failure_rate,
)

_WIDTH = 110  # characters per line of comments


@dataclass(frozen=True, kw_only=True)
class PlannedFill:
    """New episodes for one target (a hole, or a region of failures).

    Attributes:
        target: the target.
        box: range of each parameter to draw from, in SI units. All targets have the same parameters: a parameter that
            only other targets restrict has its whole range.
        episodes: number of new episodes.
    """

    target: FillTarget
    box: Mapping[str, tuple[float, float]]
    episodes: int

    @property
    def params(self) -> dict[str, list[float]]:
        """Parameter ranges in the form of a generate file: ``[low, high]`` by parameter, in SI units."""
        return {name: list(pair) for name, pair in self.box.items()}


def build_next_file(
    generated: GenerationSource, fills: Sequence[PlannedFill], *, base: Path | None
) -> tuple[str, list[str]]:
    """Return the text of the next generate file, and notes on settings that were removed from the base file.

    The file has one box (parameter ranges of new episodes) per target. Settings that conflict with the boxes are
    removed. The new file is checked, so that the next run accepts it.

    Args:
        generated: the last generate run.
        fills: the new episodes for each target.
        base: generate file to extend; None for the configuration of ``generated``.

    Raises:
        InputError: If the base file is invalid, or the boxes cannot be drawn under its constraints.
    """
    value = _load_base_plan(generated, base)
    folder = generated.folder if base is None else base.parent
    notes = _insert_boxes(value, fills, generated, folder)
    if base is None:
        notes.append("The plan renders no images: add a render section, or give a file that has one with --base.")
    config = resolve_config(value, where="the next plan", folder=folder)
    make_plan(config, generated.plan.twin)
    return _format_plan(value, fills, notes), notes


def _load_base_plan(generated: GenerationSource, base: Path | None) -> dict[str, Any]:
    """Return the generate file to extend as a dictionary, with its seed increased by one.

    Args:
        generated: the last generate run.
        base: generate file to extend; None for the configuration of ``generated``.
    """
    if base is not None:
        value = load_yaml(base)
        if not isinstance(value, dict) or "scene" not in value:
            raise InputError(f"{base} is not a generate file: it has no scene.")
        made = copy.deepcopy(value)
    else:
        made = generated.config.file.model_dump(mode="json", exclude_none=True)
        made["scene"] = {"twin": generated.config.twin, "task": generated.config.task}
    section = made.get("randomization", "default")
    made["randomization"] = {"default": True} if section == "default" else dict(section)
    made["seed"] = int(made.get("seed") or generated.config.seed) + 1
    return made


def _insert_boxes(
    value: dict[str, Any], fills: Sequence[PlannedFill], generated: GenerationSource, folder: Path
) -> list[str]:
    """Insert boxes (parameter ranges of new episodes) into a generate file; return notes on removed settings.

    Settings that conflict with the boxes are removed.

    Args:
        value: content of the generate file, changed in place.
        fills: the boxes with their numbers of episodes.
        generated: the last generate run.
        folder: folder to which paths in the file are relative.
    """
    section, notes = value["randomization"], []
    for key, why in (("boxes", "which belong to the run before"), ("adaptive", "which would move the ranges")):
        if key in section:
            del section[key]
            notes.append(f"Removed: {key}, {why}.")
    design = section.get("design")
    if isinstance(design, dict) and design.get("kind") == "grid":
        del section["design"]
        notes.append("Removed: the grid design, whose levels do not match the holes.")
    total = sum(fill.episodes for fill in fills)
    most = int(value.get("rollout", {}).get("parallel_envs", 64))
    worlds = max(n for n in range(1, min(total, max(most, 1)) + 1) if total % n == 0)
    value["rollout"] = {**value.get("rollout", {}), "parallel_envs": worlds, "episodes_per_env": total // worlds}
    section["boxes"] = [{"episodes": fill.episodes, "params": fill.params} for fill in fills]
    kept = []
    for constraint in section.get("constraints", []):
        refused = [fill for fill in fills if not _is_feasible(value, fill, constraint, generated, folder)]
        if refused:
            notes.append(
                f"Removed: the constraint {constraint!r}, which excludes episodes from {refused[0].target.name}, "
                "where real episodes are. Restore it if it excludes impossible worlds."
            )
        else:
            kept.append(constraint)
    if kept:
        section["constraints"] = kept
    else:
        section.pop("constraints", None)
    return notes


def _is_feasible(
    value: dict[str, Any], fill: PlannedFill, constraint: str, generated: GenerationSource, folder: Path
) -> bool:
    """Return whether a constraint allows episodes in a box, tested with a plan of that box alone.

    Args:
        value: content of the generate file.
        fill: the box.
        constraint: the constraint as written in the file.
        generated: the last generate run.
        folder: folder to which paths in the file are relative.
    """
    alone = copy.deepcopy(value)
    alone["randomization"] |= {"constraints": [constraint], "boxes": [{"episodes": 1, "params": fill.params}]}
    try:
        make_plan(resolve_config(alone, where="the next plan", folder=folder), generated.plan.twin)
    except InputError as error:
        if "constraint" not in str(error):
            raise
        return False
    return True


def _format_plan(value: Mapping[str, Any], fills: Sequence[PlannedFill], notes: Sequence[str]) -> str:
    """Return the text of a generate file with comments; the boxes come last, each below the reason for it.

    A box has the parameter ranges of the new episodes for one target.

    Args:
        value: content of the generate file.
        fills: the boxes with their targets and numbers of episodes.
        notes: remarks for the user, written as comments at the beginning.
    """
    plain = {key: part for key, part in value.items() if key != "randomization"}
    section = {key: part for key, part in value["randomization"].items() if key != "boxes"}
    lines = [
        *_format_comment(
            "Made by `twinloop plan`: boxes for real situations without simulated episodes, and for simulated failures."
        ),
        *(line for note in notes for line in _format_comment(note)),
        yaml.safe_dump(plain, sort_keys=False, allow_unicode=True).rstrip(),
        "randomization:",
        *(f"  {line}" for line in yaml.safe_dump(section, sort_keys=False, allow_unicode=True).rstrip().splitlines()),
        "  boxes:",
    ]
    for fill in fills:
        target = fill.target
        share = f"{target.mass:.1%} of reality in {target.episodes} episodes{_format_failures(target)}"
        comment = f"{target.name}: {share}; {fill.episodes} episodes of the next run. {target.why}"
        lines += ["", *_format_comment(comment, indent="    "), f"    - episodes: {fill.episodes}", "      params:"]
        lines += [f"        {name}: [{low:.6g}, {high:.6g}]" for name, (low, high) in fill.box.items()]
    return "\n".join(lines) + "\n"


def _format_failures(target: FillTarget) -> str:
    return f", {format_failure_rate(target.failure, target.judged)} failing" if target.judged else ""


def _format_comment(text: str, indent: str = "") -> list[str]:
    return [f"{indent}# {line}" for line in textwrap.wrap(text, _WIDTH, break_long_words=False)]


_MOST_TARGETS = 8  # holes that are filled, largest first: with more, each would get too few episodes


def run_plan(request: PlanRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Print coverage holes and the parameter ranges that lead to them, and write the next generate file.

    A hole is a region of real motions without similar simulated ones. The targets of the new file are holes, and
    regions where simulated episodes fail.

    Returns:
        The result, and an exit code: 1 if there are targets but no parameter ranges are known for any of them, else 0.

    Raises:
        InputError: If the simulated episodes have no known generate run, the file exists, or an option is invalid.
    """
    output, episodes = request.output, request.episodes
    if output is not None and output.exists():
        raise InputError(f"{output} exists. Choose another --output, or move that one away.")
    if request.holes < 1:
        raise InputError(f"--holes {request.holes}: give 1 or more.")
    measured = measure(resolve_sides(request.sides))
    if measured.generated is None or measured.space is None:
        raise InputError(f"There is no plan to extend. {measured.notes[-1]} Give a generated dataset with --sim.")
    targets = find_targets(measured)
    chosen = select_separate_targets(targets, most=request.holes)
    for line in (*describe_inputs(measured), *measured.notes, "", *findings(measured), "", *target_lines(targets)):
        console.print(line, soft_wrap=True)
    result: dict[str, Any] = {
        "schema": 1,
        "verb": "plan",
        "metrics": measured.coverage.to_json(),
        "holes": [hole.to_json() for hole in measured.holes],
        "findings": findings(measured),
        "targets": [target.to_json() for target in targets],
    }
    if not chosen:
        console.print(_NOWHERE if targets else _NOTHING, soft_wrap=True)
        return {**result, "output": None, "episodes": 0, "boxes": []}, int(bool(targets))
    fills = _allocate_episodes(measured, chosen, episodes)
    text, notes = build_next_file(measured.generated, fills, base=request.base)
    for line in notes:
        console.print(line, soft_wrap=True)
    if output is None:
        console.print(text, soft_wrap=True)
    else:
        write_text(output, text)
        console.print(
            f"{output}: {episodes} episodes in {len(fills)} boxes. Next: twinloop generate {output} --output …"
        )
    boxes = [{"name": fill.target.name, "episodes": fill.episodes, "box": dict(fill.box)} for fill in fills]
    plan = {"output": None if output is None else str(output), "episodes": episodes, "boxes": boxes, "notes": notes}
    return {**result, **plan}, 0


_NOWHERE = (
    "Nothing is planned: no randomized parameter moves clips into a hole. Other motions are needed: another expert or "
    "task, another start pose, or demonstrations replayed in the twin; or randomize another parameter."
)
_NOTHING = "Nothing is planned: there is no hole of three or more episodes, and no region where simulation fails."


def find_targets(measured: CoverageResult) -> list[FillTarget]:
    """Return all targets for new simulated episodes, the largest weight first.

    Targets are coverage holes (real motions without similar simulated ones) and regions where simulated episodes fail.
    Each has the parameter ranges of its new episodes, or the reason why no such ranges are known.
    """
    space = measured.space
    assert space is not None  # noqa: S101 - refused before
    failures = [_failure_target(measured, space, box) for box in space.failures]
    if measured.options.embedding == PARAMETERS:
        found = [_parameter_target(measured, space, box) for box in space.holes]
    else:
        certain = [hole for hole in measured.holes if hole.episodes >= FEW][:_MOST_TARGETS]
        found = [_clip_target(measured, number, hole) for number, hole in enumerate(certain, start=1)]
    return sorted([*found, *[target for target in failures if target.mass > 0]], key=lambda target: -target.weight)


def target_lines(targets: Sequence[FillTarget]) -> list[str]:
    """Return one numbered line per target for new episodes.

    It has the target's share of the real data, its failures, and the reason for its parameter ranges or their absence.
    """
    return [
        f"{number}. {target.name}: {target.mass:.1%} of reality ({target.episodes} "
        f"episodes){_format_failures(target)}. "
        f"{target.why}"
        for number, target in enumerate(targets, start=1)
    ]


def _clip_target(measured: CoverageResult, number: int, hole: CoverageHole) -> FillTarget:
    """Return a region of real clips without simulated clips as a target for new simulated episodes.

    The target has ranges of the parameters that move simulated clips toward the region.

    Args:
        measured: the coverage.
        number: number of the hole, for its name.
        hole: the region.
    """
    generated = measured.generated
    assert generated is not None  # noqa: S101 - refused before
    axes = generated.axes
    params = compute_points(axes, [member.params for member in measured.sim.members])
    found = find_hole_response(
        params,
        measured.sim_rows,
        measured.real_rows.rows[hole.clips],
        reach=np.array([axis.normalized_bounds for axis in axes]),
        movable=np.array([axis.movable for axis in axes]),
        seed=measured.options.seed,
    )
    box = {
        axes[column].name: _si_range(axes[column], low, high)
        for column, low, high in zip(found.columns, found.low, found.high, strict=True)
    }
    parameters = ", ".join(
        f"{axes[c].name} ({t:.0%} explained)" for c, t in zip(found.columns, found.explained_variance, strict=True)
    )
    distances = (
        f"a regression predicts clips of the box {found.distance_after:.3g} from it, and the nearest of the simulated "
        f"ones {found.distance_now:.3g}; its error is {found.error:.3g} on held-out episodes"
    )
    reason = {
        "none": f"No randomized parameter moves clips toward it: {found.reason}.",
        "toward": f"Clips move toward it, but do not reach it, with {parameters}: {distances}.",
        "reaches": f"Clips reach it with {parameters}: {distances}.",
    }[found.answer]
    return FillTarget(
        kind="clips",
        name=f"hole {number} ({describe_hole_center(measured, hole)})",
        box=box,
        why=reason,
        mass=hole.mass,
        episodes=hole.episodes,
        failure=hole.failure,
        judged=hole.judged,
        weight=hole.weight,
    )


def _parameter_target(measured: CoverageResult, space: ParameterSpace, box: CellBox) -> FillTarget:
    """Return a parameter region that has too few simulated episodes as a target for new ones.

    A region that ends at the border of the randomized range is extended to the farthest real episode beyond it.
    """
    inside = box.contains_points(np.nan_to_num(space.real, nan=-9.0))
    success = measured.real.success if len(measured.real.success) == len(inside) else np.full(len(inside), np.nan)
    known = success[inside][~np.isnan(success[inside])]
    failure = float(1.0 - known.mean()) if len(known) else float("nan")
    mass = float(inside.mean())
    ranges = {}
    for column, low, high in zip(box.axes, box.low, box.high, strict=True):
        axis, points = space.axes[column], space.real[inside, column]
        ranges[axis.name] = _si_range(
            axis,
            min(low / BOX_CELLS, float(points.min())) if low == 0 else low / BOX_CELLS,
            max(high / BOX_CELLS, float(points.max())) if high == BOX_CELLS else high / BOX_CELLS,
        )
    counts = f"{box.cases} of {len(space.real)} real episodes and {box.controls} of {len(space.sim)} simulated ones"
    return FillTarget(
        kind="parameters",
        name=format_box(space.axes, box),
        box=ranges,
        why=f"{counts} are in it (p = {box.p_value:.2g}).",
        mass=mass,
        episodes=int(inside.sum()),
        failure=failure,
        judged=len(known),
        weight=mass * (1.0 + measured.options.failure_weight * (failure if len(known) else 0.0)),
    )


def _failure_target(measured: CoverageResult, space: ParameterSpace, box: CellBox) -> FillTarget:
    """Return a region of simulated failures as a target for new simulated episodes.

    Its weight, the relative number of new episodes, is the share of real episodes in the region times the failure rate
    times the option ``failure_weight``. If parameters of the real episodes are unknown, the share of simulated episodes
    is used.

    Args:
        measured: the coverage and its options.
        space: real and simulated episodes in the space of the randomized parameters.
        box: the region.
    """
    judged = box.cases + box.controls
    failure = box.cases / judged
    if set(box.axes) <= set(space.known):
        inside = box.contains_points(np.nan_to_num(space.real, nan=-9.0))
        mass, episodes, reference = float(inside.mean()), int(inside.sum()), "of reality"
    else:
        mass, episodes, reference = (
            judged / len(space.sim),
            0,
            "of simulation, because these parameters of the real episodes are not known",
        )
    ranges = {
        space.axes[column].name: _si_range(space.axes[column], low / BOX_CELLS, high / BOX_CELLS)
        for column, low, high in zip(box.axes, box.low, box.high, strict=True)
        if space.axes[column].movable
    }
    return FillTarget(
        kind="failures",
        name=f"failures with {format_box(space.axes, box)}",
        box=ranges,
        why=f"{box.cases} of {judged} simulated episodes fail there (p = {box.p_value:.2g}); {mass:.1%} {reference}.",
        mass=mass,
        episodes=episodes,
        failure=failure,
        judged=judged,
        weight=mass * measured.options.failure_weight * failure,
    )


def _si_range(axis: ParameterAxis, low: float, high: float) -> tuple[float, float]:
    ends = axis.to_si(np.array([low, high]))
    return round_range(float(ends.min()), float(ends.max()), axis.bounds)


def _allocate_episodes(measured: CoverageResult, chosen: Sequence[FillTarget], episodes: int) -> list[PlannedFill]:
    generated = measured.generated
    assert generated is not None  # noqa: S101 - refused before
    ranges = {axis.name: (axis.low, axis.high) for axis in generated.axes}
    boxes = complete_boxes([target.box for target in chosen], ranges)
    counts = allocate_episodes(episodes, [target.weight for target in chosen])
    return [PlannedFill(target=t, box=b, episodes=n) for t, b, n in zip(chosen, boxes, counts, strict=True)]
