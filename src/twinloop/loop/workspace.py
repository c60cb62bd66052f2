"""A workspace, made with a plan to begin with, and told of datasets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from twinloop.catalog import Added, Workspace
from twinloop.catalog.seals import readable
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.generate.config import ROBOTS
from twinloop.twin import load_twin

_SHOWN = 5  # files that a line names
_GITIGNORE = "data/\ncatalog/\nruns/\npolicies/\n"
_PLAN = """\
# The first dataset of this workspace:  twinloop generate generate.yaml --output data/first --episodes 100
scene:
  {scene}
  task: pick_and_place
randomization: default        # the twin's own ranges; see `twinloop twin show {twin}`
rollout:
  parallel_envs: 64
seed: 0
"""


def run_init(
    folder: Path, *, robot: str | None, twin: str | None, name: str | None, console: Console
) -> dict[str, Any]:
    """Make a workspace; where its robot is known, with a first `generate.yaml`.

    Raises:
        InputError: robot and twin are both given, or a workspace is there already.
        UnknownNameError: no such robot or twin.
    """
    if robot and twin:
        raise InputError("--robot and --twin both say what the twin is. Give one of them.")
    if robot and robot not in ROBOTS:
        raise UnknownNameError("robot", robot, ROBOTS, where="the built-in twins; --twin takes a twin of your own")
    reference = ROBOTS[robot] if robot else twin
    if reference is not None:
        load_twin(reference)  # a twin that does not load is refused before anything is made
        at = Path(reference)
        reference = str(at.resolve()) if at.is_file() else reference
    files = {".gitignore": _GITIGNORE}
    if robot:
        files["generate.yaml"] = _PLAN.format(scene=f"robot: {robot}", twin=reference)
    made = Workspace.create(folder, name=name or folder.resolve().name, twin=reference, files=files)
    made.close()
    console.print(f"Workspace {made.root}")
    if robot:
        console.print("Next, in that folder: twinloop generate generate.yaml --output data/first --episodes 100")
    console.print("A robot's own data: twinloop import LOG --output data/NAME, or twinloop add DATASET")
    return {"schema": 1, "verb": "init", "workspace": str(made.root), "twin": reference}


def run_add(datasets: Sequence[Path], *, batch: str | None, workspace: Path | None, console: Console) -> dict[str, Any]:
    """Add dataset folders to a workspace, each whole or not at all.

    Raises:
        InputError: no folder, or one name for several.
        DatasetError: a folder is no LeRobot v3.0 dataset; those before it stay added.
    """
    if not datasets:
        raise InputError("Nothing to add. Name folders of datasets, such as data/real.")
    if batch and len(datasets) > 1:
        raise InputError(f"--batch {batch} names one dataset, and {len(datasets)} were given. Add them one by one.")
    with Workspace.open(workspace) as opened:
        rows = [_added(opened, folder, batch, console) for folder in datasets]
    return {"schema": 1, "verb": "add", "workspace": str(opened.root), "batches": rows}


def _added(opened: Workspace, folder: Path, batch: str | None, console: Console) -> dict[str, Any]:
    """Add one folder, and print what came of it."""
    added = opened.add(folder, batch=batch)
    console.print(_line(added))
    if added.resealed:
        files = ", ".join(readable(path) for path in added.resealed[:_SHOWN])
        more = f" and {len(added.resealed) - _SHOWN} more" if len(added.resealed) > _SHOWN else ""
        console.print(f"  changed since it was added, and known as it is now: {files}{more}")
    if added.first_sealed:
        console.print(f"  {added.first_sealed} files got a hash that an earlier version had left without one")
    for sentence in added.unreadable[:_SHOWN]:
        console.print(f"  cannot be read: {readable(sentence)}", soft_wrap=True)
    if len(added.unreadable) > _SHOWN:
        console.print(f"  and {len(added.unreadable) - _SHOWN} more that cannot be read: see --json")
    if added.unreadable:
        console.print("  These episodes are listed. `twinloop curate` gives them the verdict unreadable.")
    return _figures(added, folder)


def _line(added: Added) -> str:
    of = f", {added.known} known already" if added.known else ""
    return f"Batch {added.batch}: {added.episodes} episodes, {added.new} new{of}"


def _figures(added: Added, folder: Path) -> dict[str, Any]:
    return {
        "batch": added.batch,
        "folder": str(folder),
        "episodes": added.episodes,
        "new": added.new,
        "known": added.known,
        "resealed": list(added.resealed),
        "first_sealed": added.first_sealed,
        "unreadable": list(added.unreadable),
    }
