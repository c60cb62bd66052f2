"""What every run leaves behind: its figures as ``result.json`` and, where it has one, a report."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.core.files import write_json
from twinloop.core.redaction import redacted_values
from twinloop.dataset import layout
from twinloop.dataset.snapshot import forget_lock, locked
from twinloop.report import Report


def finite(value: Any) -> Any:
    """The same plain value with what JSON cannot say (NaN, infinity) as null."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def claim_output(folder: Path) -> None:
    """Refuse a run's folder before the work begins, where it could not be written afterwards.

    Raises:
        InputError: it holds an earlier run, lies in a dataset, or lies below something that is no folder or not
            writable.
    """
    if (folder / "result.json").exists():
        forget_lock(folder)
        raise InputError(f"{folder} holds an earlier run. Choose another --output, or move that one away.")
    if (folder / layout.INFO).is_file():
        raise InputError(f"{folder} holds a dataset. Choose another --output, or move that one away.")
    for above in folder.resolve().parents:
        if (above / layout.INFO).is_file():
            raise InputError(f"{folder} lies in the dataset {above}. Choose an --output outside it.")
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise InputError(f"{folder} cannot be made: {existing} is no folder to write to. Choose another --output.")


@contextlib.contextmanager
def finishing(folder: Path, purpose: str = "") -> Generator[None]:
    """Hold a run's folder while its files are written; ``purpose`` is for a block around another one.

    Raises:
        DatasetLockedError: another process writes there.
        InputError: another process has finished a run there since this one began.
    """
    with locked(folder, purpose):
        claim_output(folder)
        yield


def write_result(folder: Path, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Store a run's figures, without credentials, as ``FOLDER/result.json``; return them as stored."""
    plain = redacted_values(finite(dict(figures)))
    write_json(folder / "result.json", plain)
    return plain


def write_report(page: Report, fill: Callable[[Report], None], path: Path, console: Console) -> Path | None:
    """Fill and write a page, or say in one line what it needs: the figures do not depend on it."""
    try:
        fill(page)
        page.write(path)
    except MissingDependencyError as error:
        console.print(f"No report: {error}")
        return None
    console.print(f"Report: {path}")
    return path


def write_run(
    folder: Path, figures: Mapping[str, Any], page: Report, fill: Callable[[Report], None], console: Console
) -> dict[str, Any]:
    """Write a run's report and then its figures; returns the figures as stored.

    ``result.json`` comes last: a folder that has it is finished. A run that was killed, or whose disk was full, can
    then be made again in the same folder.
    """
    with finishing(folder):
        write_report(page, fill, folder / "report.html", console)
        return write_result(folder, figures)
