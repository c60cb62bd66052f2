"""Choose the twin and the task of a command: requested, or those of a policy or dataset, or of the workspace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from twinloop.catalog import Workspace
from twinloop.core.assignment import Assignment, find_assignments
from twinloop.core.errors import InputError
from twinloop.core.extension import resolve_reference
from twinloop.dataset.lerobot.layout import OWN
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.evaluate.candidates import EXPERT
from twinloop.policies.folder import read_card
from twinloop.tasks import Task, open_task
from twinloop.tasks.assignment import assign
from twinloop.tasks.registry import TASKS
from twinloop.twin import Twin, load_twin
from twinloop.twin.load import TWINS
from twinloop.workflows.scenario.references import policy_folder


def load_requested_twin(name: str | None, output: Path | None, policy: str | None = None) -> Twin:
    """Load the twin ``name``, by default the twin of the workspace, or of a policy's training data.

    Args:
        name: name or file of the twin, or None.
        output: output folder of the run, above which the workspace is searched; None for the working folder.
        policy: the policy, or None.

    Raises:
        InputError: If no twin is named.
    """
    name = name or _workspace_default("twin", output)
    if not name and policy is not None and policy != EXPERT:
        folder = policy_folder(policy)
        kept = read_card(folder).assignment
        name = "" if kept is None else kept.references(folder)[0]
    return load_twin(name or _require("twin", TWINS))


def _workspace_default(key: str, output: Path | None) -> str:
    """Return the twin or the task in ``twinloop.yaml`` of the surrounding workspace, or an empty text."""
    root = Workspace.find(output or Path.cwd())
    if root is None:
        return ""
    with Workspace.open(root) as held:
        named = str(held.config.get(key) or "")
    return str(root / named) if named and (root / named).is_file() else resolve_reference(named, root)


def _require(key: str, names: Iterable[str]) -> str:
    raise InputError(
        f"No {key} is named here, by the policy or in a workspace's twinloop.yaml. Give --{key}: {', '.join(names)}, "
        f"or {'a YAML or model file' if key == 'twin' else 'FILE.py:CLASS'}."
    )


def _kept_by(reader: DatasetReader | None) -> dict[Assignment, Path]:
    """Return the only assignment of a dataset with the folder of its sources; empty if it has none or several."""
    if reader is None or not reader.written_by_twinloop:
        return {}
    made = [one for one in find_assignments(reader.spec.config, where=str(reader.path)) if one.twin_hash]
    return {made[0]: reader.path / OWN} if len(made) == 1 else {}


@dataclass(frozen=True, kw_only=True)
class TwinAndTask:
    """Twin and task of a command.

    Attributes:
        twin: the twin.
        task: the task.
        twin_name: argument of `load_twin`.
        task_name: argument of `open_task`.
        identity: name of the task, with the hash of its content for a user's own.
    """

    twin: Twin
    task: Task
    twin_name: str
    task_name: str
    identity: str


def choose_twin_and_task(
    twin_name: str | None,
    task_name: str | None,
    policies: Sequence[str],
    output: Path | None,
    console: Console,
    *,
    recorded: DatasetReader | None = None,
) -> TwinAndTask:
    """Return the requested twin and task, by default those of the policies' training data, or of the workspace.

    A dataset that keeps its twin and task comes before the policies.

    Args:
        twin_name: requested name or file of the twin, or None.
        task_name: requested name of the task or ``FILE.py:CLASS``, or None.
        policies: the policies; ``expert`` has no training data.
        output: output folder of the run, above which the workspace is searched; None for the working folder.
        console: console for a note, if a policy was trained for another version of the task.
        recorded: reader of the dataset on which the command works, or None.

    Raises:
        InputError: If neither the flags, nor the policies, nor the workspace name a twin and a task, or if the policies
            were trained for different ones.
        NotApprovedError: If the task is the user's own and was not approved on this machine.
    """
    folders = [policy_folder(name) for name in policies if name != EXPERT]
    kept = {made: folder for folder in folders if (made := read_card(folder).assignment) is not None}
    if len({(made.twin_hash, made.identity) for made in kept}) > 1 and not (twin_name and task_name):
        listed = "; ".join(f"{folder}: {made.identity} on {made.twin}" for made, folder in kept.items())
        raise InputError(f"The policies were trained for different twins or tasks ({listed}). Give --twin and --task.")
    own_twin, own_task = next(
        (made.references(folder) for made, folder in {**_kept_by(recorded), **kept}.items()), ("", "")
    )
    twin_name = twin_name or own_twin or _workspace_default("twin", output) or _require("twin", TWINS)
    task_name = task_name or own_task or _workspace_default("task", output) or _require("task", TASKS)
    twin = load_twin(twin_name)
    task = open_task(task_name, twin)
    identity = assign(twin_name, task_name, twin, task)[0].identity
    for made, folder in kept.items():
        if made.task_name == task.name and made.identity != identity:
            console.print(f"{folder} was trained for another version of the task, {made.identity}.", soft_wrap=True)
    return TwinAndTask(twin=twin, task=task, twin_name=twin_name, task_name=task_name, identity=identity)
