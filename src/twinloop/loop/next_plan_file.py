"""The next generate file: what was generated before, with boxes where the holes are, and comments that say why."""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from twinloop.core.errors import InputError
from twinloop.core.yaml_documents import load_yaml
from twinloop.curate.plan import Target
from twinloop.generate.config import make_plan, resolve
from twinloop.loop.coverage_params import Generated
from twinloop.loop.coverage_words import failing_words

_WIDTH = 110  # of comments


@dataclass(frozen=True, kw_only=True)
class Fill:
    """A target with the box that is drawn from and its share of the episodes."""

    target: Target
    box: Mapping[str, tuple[float, float]]
    episodes: int


def next_file(generated: Generated, fills: Sequence[Fill], *, base: Path | None) -> tuple[str, list[str]]:
    """The text of the file, and what had to be changed besides.

    The plan is made once, so that what is written down is known to run.

    Raises:
        InputError: the base is not valid, or the boxes cannot be drawn under its constraints.
    """
    value = _base(generated, base)
    folder = generated.folder if base is None else base.parent
    notes = _fitted(value, fills, generated, folder)
    if base is None:
        notes.append("Pictures are not asked for: add a render section, or give --base the file that had one.")
    config = resolve(value, where="the next plan", folder=folder)
    make_plan(config, generated.plan.twin)
    return _text(value, fills, notes), notes


def _base(generated: Generated, base: Path | None) -> dict[str, Any]:
    """What is gone on from, as plain values."""
    if base is not None:
        value = load_yaml(base)
        if not isinstance(value, dict) or "scene" not in value:
            raise InputError(f"{base} is no generate file: it has no scene.")
        made = copy.deepcopy(value)
    else:
        made = generated.config.file.model_dump(mode="json", exclude_none=True)
        made["scene"] = {"twin": generated.config.twin, "task": generated.config.task}
    section = made.get("randomization", "default")
    made["randomization"] = {"default": True} if section == "default" else dict(section)
    made["seed"] = int(made.get("seed") or generated.config.seed) + 1
    return made


def _fitted(value: dict[str, Any], fills: Sequence[Fill], generated: Generated, folder: Path) -> list[str]:
    """Put the boxes in, and take out what stands against them; returns what was taken out, and why."""
    section, notes = value["randomization"], []
    for key, why in (("boxes", "of the run before"), ("adaptive", "which would move the ranges")):
        if key in section:
            del section[key]
            notes.append(f"Taken out: {key}, {why}.")
    design = section.get("design")
    if isinstance(design, dict) and design.get("kind") == "grid":
        del section["design"]
        notes.append("Taken out: the grid, whose levels are not those of the holes.")
    total = sum(fill.episodes for fill in fills)
    most = int(value.get("rollout", {}).get("parallel_envs", 64))
    worlds = max(n for n in range(1, min(total, max(most, 1)) + 1) if total % n == 0)
    value["rollout"] = {**value.get("rollout", {}), "parallel_envs": worlds, "episodes_per_env": total // worlds}
    section["boxes"] = [
        {"episodes": fill.episodes, "params": {name: list(pair) for name, pair in fill.box.items()}} for fill in fills
    ]
    kept = []
    for constraint in section.get("constraints", []):
        refused = [fill for fill in fills if not _possible(value, fill, constraint, generated, folder)]
        if refused:
            notes.append(
                f"Taken out: the constraint {constraint!r}, which keeps episodes out of {refused[0].target.name} "
                "although reality is there. Put it back if it says what cannot be."
            )
        else:
            kept.append(constraint)
    if "constraints" in section:
        section["constraints"] = kept
        if not kept:
            del section["constraints"]
    return notes


def _possible(value: dict[str, Any], fill: Fill, constraint: str, generated: Generated, folder: Path) -> bool:
    """Whether a constraint lets episodes into a box: a plan of that box alone is refused where it hardly does."""
    alone = copy.deepcopy(value)
    alone["randomization"]["constraints"] = [constraint]
    alone["randomization"]["boxes"] = [{"episodes": 1, "params": {name: list(pair) for name, pair in fill.box.items()}}]
    try:
        make_plan(resolve(alone, where="the next plan", folder=folder), generated.plan.twin)
    except InputError as error:
        if "constraint" not in str(error):
            raise
        return False
    return True


def _text(value: Mapping[str, Any], fills: Sequence[Fill], notes: Sequence[str]) -> str:
    """The file with comments; the boxes stand last, each below its reason."""
    plain = copy.deepcopy(dict(value))
    del plain["randomization"]["boxes"]
    section = plain.pop("randomization")
    lines = [
        *_comment("Made by `twinloop plan`: what reality shows and simulation does not, and where simulation fails."),
        *(line for note in notes for line in _comment(note)),
        yaml.safe_dump(plain, sort_keys=False, allow_unicode=True).rstrip(),
        "randomization:",
        *(f"  {line}" for line in yaml.safe_dump(section, sort_keys=False, allow_unicode=True).rstrip().splitlines()),
        "  boxes:",
    ]
    for fill in fills:
        target = fill.target
        failing = f", {failing_words(target.failure, target.judged)} failing" if target.judged else ""
        share = f"{target.mass:.1%} of reality in {target.episodes} episodes{failing}"
        said = f"{target.name}: {share}; {fill.episodes} episodes of the next run. {target.why}"
        lines += ["", *_comment(said, indent="    ")]
        lines.append(f"    - episodes: {fill.episodes}")
        lines.append("      params:")
        lines += [f"        {name}: [{low:.6g}, {high:.6g}]" for name, (low, high) in fill.box.items()]
    return "\n".join(lines) + "\n"


def _comment(text: str, indent: str = "") -> list[str]:
    return [f"{indent}# {line}" for line in textwrap.wrap(text, _WIDTH, break_long_words=False)]
