"""Keep the distribution of the worlds in which a policy was taught, in its folder, and print how worlds are drawn."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from twinloop.core.documents import read_json
from twinloop.core.errors import InputError
from twinloop.core.files import write_json
from twinloop.evaluate.worlds import PlannedSuite
from twinloop.generate.config import (
    GenerateConfig,
    identified_range_notes,
    load_plan,
    resolve_config,
    use_identified,
)
from twinloop.twin import Twin

TAUGHT = "taught"  # name of the suite with these worlds
_FILE = "worlds.json"


def print_ranges(config: GenerateConfig, twin: Twin, console: Console) -> list[str]:
    """Print and return how worlds are drawn from an identification run, with any warning of its fit.

    There are no lines without such a run.

    Args:
        config: the resolved generate file of the worlds.
        twin: its twin.
        console: output for people.
    """
    lines = identified_range_notes(config, twin)
    for line in lines:
        console.print(f"Ranges: {line}", soft_wrap=True)
    return lines


def has_worlds(folder: Path) -> bool:
    """Return whether the folder of a policy keeps the worlds in which it was taught."""
    return (folder / _FILE).is_file()


def write_worlds(folder: Path, config: GenerateConfig) -> None:
    """Write the resolved generate file of the worlds into the folder of a policy."""
    write_json(folder / _FILE, config.model_dump(mode="json"))


def read_worlds(folder: Path, *, randomize_from: Path | None = None, seed: int | None = None) -> GenerateConfig:
    """Read the resolved generate file of the worlds in which a policy was taught.

    Args:
        folder: folder of the policy.
        randomize_from: folder of an identification run to draw parameters from, instead of the policy's distribution.
        seed: seed of the worlds; by default that of the teaching.

    Raises:
        InputError: If the policy keeps no worlds.
    """
    if not has_worlds(folder):
        raise InputError(
            f"{folder} keeps no worlds in which it was taught. Policies of `twinloop distill` and `reinforce` do."
        )
    kept = GenerateConfig.model_validate(read_json(folder / _FILE))
    if randomize_from is not None:
        where, scene = str(folder / _FILE), {"twin": kept.twin, "task": kept.task}
        section = use_identified(kept.file.randomization, randomize_from, where=where)
        value = {**kept.file.model_dump(mode="json"), "scene": scene, "randomization": section}
        kept = resolve_config(value, where=where, folder=Path.cwd(), episodes=kept.episodes, seed=kept.seed)
    return kept if seed is None else kept.model_copy(update={"seed": seed})


def taught_suite(config: GenerateConfig, episodes: int | None = None) -> PlannedSuite:
    """Return the suite with the worlds of a resolved generate file; see `read_worlds`.

    Args:
        config: the resolved generate file.
        episodes: number of trials; by default 100.
    """
    return PlannedSuite.of(load_plan(config), name=TAUGHT, episodes=episodes or 100)
