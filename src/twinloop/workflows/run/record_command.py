"""Record each finished command in the catalog of its workspace, and add the datasets that it wrote to the workspace.

The command line calls `record_command` after every command, so that the commands themselves do not need a workspace.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from twinloop.core.errors import TwinloopError
from twinloop.core.files import dumps
from twinloop.dataset.lerobot import layout
from twinloop.dataset.storage.targets import is_address, local_path
from twinloop.workflows.run.results import replace_nonfinite

# Content that a workspace records of a run: its metrics (measures), its datasets too (makes), or hashes of files only
# (stores). Commands that record their runs themselves (evaluate, curate, train) return a ``run_id``.
Record = Literal["measures", "makes", "stores"]
_SHOWN = 5  # printed sentences on files that cannot be read
_MOST_BYTES = 4096  # per recorded metric; result.json has larger ones


def record_command(
    record: Record | None,
    words: Sequence[str],
    metrics: Mapping[str, Any],
    code: int,
    *,
    started: datetime,
    ended: datetime,
) -> str | None:
    """Record a command in its workspace, and store the hashes of the files that it wrote.

    Args:
        record: what the workspace records: ``measures`` (metrics), ``makes`` (metrics and new datasets), ``stores``
            (hashes of files only), or None (nothing).
        words: words of the command line.
        metrics: the result of the command.
        code: exit code of the command.
        started: time at which the command started.
        ended: time at which the command ended.

    Returns:
        Lines to print, or None.
    """
    lines = [
        _record_in_workspace(record, words, metrics, code, started=started, ended=ended),
        _seal_files(words, metrics) if record else None,
    ]
    return "\n".join(line for line in lines if line) or None


def _seal_files(words: Sequence[str], metrics: Mapping[str, Any]) -> str | None:
    """Store the hashes of the files that a command wrote into a workspace, so that `fsck` notices later changes.

    Args:
        words: words of the command line.
        metrics: the result of the command.

    Returns:
        A line to print if this fails, else None.
    """
    written = _find_output_folder(words, metrics)
    if written is None or not any((folder / "twinloop.yaml").is_file() for folder in written.parents):
        return None
    from twinloop.catalog import Workspace
    from twinloop.catalog.run_files import seal_run

    root = Workspace.find(written.parent)
    assert root is not None  # noqa: S101 - the line above found it
    try:
        with Workspace.open(root) as workspace:
            seal_run(workspace.root, workspace.state, written)
    except (TwinloopError, OSError, sqlite3.Error) as error:
        return f"Changes of the files in {written} will not be detected: {error}"
    return None


def _record_in_workspace(
    record: Record | None,
    words: Sequence[str],
    metrics: Mapping[str, Any],
    code: int,
    *,
    started: datetime,
    ended: datetime,
) -> str | None:
    """Record a command in its workspace, and add the datasets that it made.

    The workspace is the nearest folder with a ``twinloop.yaml`` upwards from the command's output. A command without an
    output uses the workspace in its result, or the working folder. Nothing happens outside of a workspace. A failure
    here does not affect the result of the command.

    Returns:
        Lines to print on the added datasets, or the reason why the run was not recorded; None for nothing to print.
    """
    if record not in ("measures", "makes") or metrics.get("run_id"):
        return None
    written = _find_output_folder(words, metrics)
    place = written or Path(str(metrics.get("workspace") or Path.cwd()))
    if not any((folder / "twinloop.yaml").is_file() for folder in (place, *place.parents)):
        return None  # outside of a workspace the catalog is not imported
    from twinloop.catalog import Workspace

    root = Workspace.find(place)
    assert root is not None  # noqa: S101 - the line above found it
    try:
        with Workspace.open(root) as workspace:
            result = {**_select_small_metrics(replace_nonfinite(metrics)), "exit_code": code}
            run = workspace.record_run(words[0], written, result, started, ended, list(words))
            added = [workspace.add(path, run_id=run) for path in _find_datasets(written if record == "makes" else None)]
    except (TwinloopError, OSError, sqlite3.Error) as error:
        return f"Not recorded in the workspace {root}: {error}"
    lines = [f"Batch {one.batch} of the workspace: {one.new} new episodes, {one.known} known." for one in added]
    lines += [f"Cannot be read: {sentence}" for one in added for sentence in one.unreadable[:_SHOWN]]
    return "\n".join(lines) or None


def _find_output_folder(words: Sequence[str], metrics: Mapping[str, Any]) -> Path | None:
    """Return the local folder that a command wrote, from its result or its flag ``--output``; None if there is none."""
    output = metrics.get("output") or metrics.get("stored")
    if output is None:  # measuring commands do not return it
        said = [word.removeprefix("--output=") for word in words if word.startswith("--output=")]
        said += [word for before, word in pairwise(words) if before == "--output"]
        output = said[-1] if said else None
    if output is None or is_address(str(output)):
        return None
    folder = Path(os.path.abspath(local_path(str(output))))  # noqa: PTH100 - resolves ../x, but no links
    return folder if folder.is_dir() else None


def _find_datasets(folder: Path | None) -> list[Path]:
    """Return the dataset folders that a command made.

    These are the output folder and the folder of its images or, if neither is a dataset, the datasets in the output
    folder.
    """
    if folder is None:
        return []
    parts = sorted(path for path in folder.iterdir() if path.is_dir())
    here = [folder, folder.with_name(f"{folder.name}-images")]
    found = [path for path in here if (path / layout.INFO).is_file()]
    return found or [path for path in parts if (path / layout.INFO).is_file()]


def _select_small_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of at most 4096 bytes as JSON, which are small enough for the catalog."""
    return {key: value for key, value in metrics.items() if len(dumps(value)) <= _MOST_BYTES}
