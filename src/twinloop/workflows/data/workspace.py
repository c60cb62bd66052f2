"""Create a workspace, add datasets to it, and check and repair it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from twinloop.catalog import AddResult
from twinloop.catalog.dataset_folder import escape_path
from twinloop.catalog.fsck import FsckFinding, check_batches, check_cache, check_index, check_parts
from twinloop.catalog.fsck_state import (
    check_dataset_versions,
    check_order,
    check_release,
    check_rows,
    check_secrets,
    check_state,
)
from twinloop.catalog.parts import PartStore, compact
from twinloop.catalog.repair import repair, repair_state
from twinloop.catalog.run_files import accept_changes, check_run_files
from twinloop.catalog.state import WorkspaceState
from twinloop.catalog.workspace import STATE, Workspace
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.tasks import find_task_name
from twinloop.twin import load_twin
from twinloop.twin.robot_names import ROBOTS
from twinloop.workflows.data.requests import AddRequest, FsckRequest, InitRequest

_SHOWN = 5  # file names in one printed line
_GITIGNORE = "data/\ncatalog/\nruns/\npolicies/\n"
_PLAN = """\
# The first dataset of this workspace:  twinloop generate generate.yaml --output data/first --episodes 100
scene:
  {scene}
  task: {task}
randomization: default        # the twin's own ranges; see `twinloop twin show {twin}`
rollout:
  parallel_envs: 64
seed: 0
"""


def run_init(request: InitRequest, console: Console) -> dict[str, Any]:
    """Create a workspace and, if a built-in robot is requested, a first `generate.yaml` in it.

    Raises:
        InputError: If both robot and twin are given, or a workspace exists already.
        UnknownNameError: If there is no such robot or twin.
    """
    if request.robot and request.twin:
        raise InputError("--robot and --twin both name the twin. Give only one of them.")
    if request.robot and request.robot not in ROBOTS:
        raise UnknownNameError(
            "robot", request.robot, ROBOTS, where="the built-in twins; --twin takes a twin of your own"
        )
    reference = ROBOTS[request.robot] if request.robot else request.twin
    task = None
    if reference is not None:
        twin = load_twin(reference)  # a twin that does not load is refused before any file is written
        task = find_task_name("", twin) if request.robot else None
        at = Path(reference)
        reference = str(at.resolve()) if at.is_file() else reference
    files = {".gitignore": _GITIGNORE}
    if request.robot:
        files["generate.yaml"] = _PLAN.format(task=task, scene=f"robot: {request.robot}", twin=reference)
    made = Workspace.create(
        request.folder,
        name=request.name or request.folder.resolve().name,
        twin=reference,
        task=task,
        files=files,
    )
    made.close()
    console.print(f"Workspace {made.root}")
    if request.robot:
        console.print("Next, in that folder: twinloop generate generate.yaml --output data/first --episodes 100")
    console.print("To add data of a real robot: twinloop import LOG --output data/NAME, or twinloop add DATASET")
    return {"schema": 1, "verb": "init", "workspace": str(made.root), "twin": reference}


def run_add(request: AddRequest, console: Console) -> dict[str, Any]:
    """Add dataset folders to the catalog of a workspace; each folder is added completely or not at all.

    Raises:
        InputError: If no folder is given, or one name is given for several folders.
        DatasetError: If a folder is not a LeRobot v3.0 dataset. The folders before it remain added.
    """
    if not request.datasets:
        raise InputError("No folder is given. Name folders of datasets, such as data/real.")
    if request.batch and len(request.datasets) > 1:
        raise InputError(
            f"--batch {request.batch} names one dataset, and {len(request.datasets)} were given. Add them one by one."
        )
    with Workspace.open(request.workspace) as opened:
        rows = [_add_folder(opened, folder, request.batch, console) for folder in request.datasets]
    return {"schema": 1, "verb": "add", "workspace": str(opened.root), "batches": rows}


def _add_folder(opened: Workspace, folder: Path, batch: str | None, console: Console) -> dict[str, Any]:
    """Add one dataset folder to a workspace, and print the numbers of new episodes and unreadable files.

    Args:
        opened: the workspace.
        folder: the dataset folder.
        batch: name of the dataset in the workspace; None for the folder's name.
        console: console for the result.
    """
    added = opened.add(folder, batch=batch)
    console.print(_format_added(added))
    if added.resealed:
        files = ", ".join(escape_path(path) for path in added.resealed[:_SHOWN])
        more = f" and {len(added.resealed) - _SHOWN} more" if len(added.resealed) > _SHOWN else ""
        console.print(f"  changed since the dataset was added, and recorded as they are now: {files}{more}")
    if added.first_sealed:
        console.print(f"  {added.first_sealed} files now have a hash; the earlier version of twinloop recorded none")
    for sentence in added.unreadable[:_SHOWN]:
        console.print(f"  cannot be read: {escape_path(sentence)}", soft_wrap=True)
    if len(added.unreadable) > _SHOWN:
        console.print(f"  and {len(added.unreadable) - _SHOWN} more that cannot be read: see --json")
    if added.unreadable:
        console.print("  These episodes are in the catalog. `twinloop curate` gives them the verdict unreadable.")
    return _added_to_json(added, folder)


def _format_added(added: AddResult) -> str:
    of = f", {added.known} already known" if added.known else ""
    return f"Batch {added.batch}: {added.episodes} episodes, {added.new} new{of}"


def _added_to_json(added: AddResult, folder: Path) -> dict[str, Any]:
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


def run_fsck(request: FsckRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Check the files and the catalog of a workspace, repair them if requested, and print the faults.

    Returns:
        The result, and exit code 1 if faults remain, else 0.

    Raises:
        InputError: If there is no workspace, or a path in ``--accept`` belongs to no recorded run.
    """
    root = Workspace.find(request.workspace or Path.cwd())
    if root is None or (request.workspace is not None and root != request.workspace.absolute()):
        raise InputError(
            f"{request.workspace or 'This folder'} is not a workspace. Create one with `twinloop init FOLDER`."
        )
    at = root / "catalog" / STATE
    found, done = _check_state_file(root, at, mend=request.repair)
    notes = list[str]()
    if not any(finding.kind == "state" and finding not in done for finding in found):
        with contextlib.closing(WorkspaceState(at)) as state:
            parts = PartStore(root / "catalog", state)
            said = (*check_dataset_versions(parts.folder, state), *check_release(root, state))
            said += (*check_order(parts), *check_secrets(state))
            more = [*check_rows(state), *check_parts(parts), *check_cache(parts), *check_index(parts)]
            notes += accept_changes(root, state, request.accept)
            more += check_run_files(root, state, notes.append, deep=request.deep)
            more += [*check_batches(parts, deep=request.deep, note=notes.append), *said]
            found += more
            if request.repair:
                done |= _repair_findings(root, parts, more)
            if request.compact:
                for table, count in compact(parts).items():
                    console.print(f"{count} parts of {table} were joined into fewer.")
    for note in notes:
        console.print(note)
    _print_findings(found, done, console)
    left = [finding for finding in found if finding not in done or done[finding].startswith("Not ")]
    result = {
        "schema": 1,
        "verb": "fsck",
        "workspace": str(root),
        "deep": request.deep,
        "findings": [{**vars(finding), "repaired": done.get(finding)} for finding in found],
        "notes": notes,
        "wrong": len(left),
    }
    return result, 1 if left else 0


def _check_state_file(root: Path, at: Path, *, mend: bool) -> tuple[list[FsckFinding], dict[FsckFinding, str]]:
    """Check the SQLite file of a workspace, and rebuild it first if it is faulty, because all other checks read it.

    Args:
        root: the workspace.
        at: the SQLite file.
        mend: whether to rebuild a faulty file.

    Returns:
        The faults, and the result of the repair by fault.
    """
    found = check_state(at)
    if not found or not mend:
        return found, {}
    catalog = root / "catalog"
    return found, {found[0]: repair_state(catalog, at)}


def _repair_findings(root: Path, parts: PartStore, found: Sequence[FsckFinding]) -> dict[FsckFinding, str]:
    done = repair(parts, [finding for finding in found if finding.repair != "rebuild"])
    wrong = [finding for finding in found if finding.repair == "rebuild"]
    if wrong:
        parts.state.close()
        said = repair_state(root / "catalog", parts.state.path)
        done |= dict.fromkeys(wrong, said)
    return done


def _print_findings(found: Sequence[FsckFinding], done: dict[FsckFinding, str], console: Console) -> None:
    for finding in found:
        console.print(finding.problem)
        console.print(f"  {done.get(finding) or finding.remedy}")
    console.print(f"{len(found)} findings." if found else "No fault was found.")
