"""Collect the files of a twin and a task that a dataset, policy or scenario keeps."""

from __future__ import annotations

import os
from pathlib import Path

from twinloop.core.assignment import SOURCES, Assignment
from twinloop.core.extension import list_source_files, split_mark
from twinloop.core.files import absolute_path, sha256_file, sha256_json
from twinloop.core.registry import is_file_reference
from twinloop.tasks.protocol import Task
from twinloop.twin import Twin
from twinloop.twin.load import list_twin_files

_DIGITS = 16  # of a hash in a folder's name


def assign(twin_reference: str, task_reference: str, twin: Twin, task: Task) -> tuple[Assignment, dict[str, Path]]:
    """Return the assignment of a twin and a task, and the files to copy by their path in a folder.

    Args:
        twin_reference: Argument of `load_twin` that gave ``twin``.
        task_reference: Argument of `open_task` that gave ``task``, also with a mark of its origin.
        twin: The loaded twin.
        task: The task.
    """
    kept_twin, files = _collect(list_twin_files(twin_reference), twin.hash) or (twin_reference, {})
    plain = split_mark(task_reference)[0]
    if not is_file_reference(plain):
        return Assignment(twin=kept_twin, twin_hash=twin.hash, task=plain, task_name=task.name), files
    path, _, name = plain.rpartition(":")
    sources = [absolute_path(file) for file in list_source_files(Path(path))]
    digest = sha256_json([[file.name, sha256_file(file)] for file in sources])
    kept_task, more = _collect(sources, digest) or (path, {})
    made = Assignment(
        twin=kept_twin, twin_hash=twin.hash, task=f"{kept_task}:{name}", task_name=task.name, task_hash=digest
    )
    return made, files | more


def _collect(files: list[Path], digest: str) -> tuple[str, dict[str, Path]] | None:
    """Return the path of the first copied file, and all files by their path in a folder; None without files."""
    if not files:
        return None
    root = Path(os.path.commonpath([file.parent for file in files]))
    named = {f"{SOURCES}/{digest[:_DIGITS]}/{file.relative_to(root).as_posix()}": file for file in files}
    return next(iter(named)), named
