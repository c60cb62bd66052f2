"""Keep the twin and the task of a dataset, policy or scenario with it, so that it can be used elsewhere.

Built-in twins and tasks, and those of installed packages, are kept by name. The files of a user's own twin or task are
copied to ``FOLDER/sources/HASH/``, where HASH identifies their content. A task's file brings the files that it imports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from twinloop.core.errors import InputError
from twinloop.core.extension import mark_references, split_mark
from twinloop.core.files import write_bytes
from twinloop.core.plain import JsonRecord
from twinloop.core.registry import is_file_reference

SOURCES = "sources"
_ELSEWHERE = ("menagerie:", "package:")  # twins that are found by name on every machine


@dataclass(frozen=True, kw_only=True)
class Assignment(JsonRecord):
    """Twin and task of a dataset, policy or scenario.

    Attributes:
        twin: Name of the twin, or the path of its copied file below the folder that has the ``sources``.
        twin_hash: Hash of the twin's content.
        task: Name of the task, or the path of its copied file with the class, ``sources/HASH/FILE.py:CLASS``.
        task_name: Name that the task gives itself.
        task_hash: Hash of the content of the task's files; empty for a task with a name.
    """

    twin: str
    twin_hash: str
    task: str
    task_name: str
    task_hash: str = ""

    @classmethod
    def from_json(cls, value: Any, *, where: str) -> Assignment:
        """Create the assignment from the dictionary that `to_json` returns.

        Raises:
            InputError: If an entry is missing or is not text.
        """
        names = ("twin", "twin_hash", "task", "task_name", "task_hash")
        given: Mapping[str, Any] = cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
        texts = {name: split_mark(given[name])[0] for name in names if isinstance(given.get(name), str)}
        if len(texts) < len(names):
            raise InputError(f"{where}: the assignment needs the texts {', '.join(names)}. Restore the file.")
        return cls(**texts)

    @property
    def identity(self) -> str:
        """Name of the task, with the hash of its content if it is a user's own: tasks of one name may differ."""
        return f"{self.task_name}@{self.task_hash[:12]}" if self.task_hash else self.task_name

    def references(self, folder: Path) -> tuple[str, str]:
        """Return the arguments of `load_twin` and `open_task` for the twin and the task of a folder.

        The code of a copied task runs only after the user approved its content.

        Args:
            folder: Folder that has the ``sources``, or a policy's file next to them.

        Raises:
            InputError: If a path leaves the folder, or a copied file is missing.
        """
        twin, task = (_locate(reference, folder) for reference in (self.twin, self.task))
        return twin, str(mark_references(task, folder))


def _locate(reference: str, folder: Path) -> str:
    path, colon, name = reference.partition(":") if is_file_reference(reference) else (reference, "", "")
    if not colon and (not {"/", "\\", "."} & set(path) or path.startswith(_ELSEWHERE)):
        return reference
    home = folder.parent if folder.is_file() else folder
    file = home / path
    if not file.resolve().is_relative_to((home / SOURCES).resolve()) or not file.is_file():
        raise InputError(f"{folder} names {path}, which is not in its {SOURCES}. Restore the folder.")
    return f"{file}{colon}{name}"


def find_assignments(config: Mapping[str, Any], *, where: str) -> list[Assignment]:
    """Return the different assignments in the configuration of a dataset; a merged one may have several.

    Datasets of earlier versions name twin and task in their generate section only: these assignments have no hash.

    Args:
        config: ``config`` of the dataset's specification.
        where: Name of the dataset, for error messages.

    Raises:
        InputError: If an assignment is damaged.
    """
    found, waiting = list[Assignment](), [config]
    while waiting:
        row = waiting.pop()
        if "assignment" in row:
            found.append(Assignment.from_json(row["assignment"], where=where))
        elif isinstance(section := row.get("generate"), Mapping):
            twin, task = (str(cast("Mapping[str, Any]", section).get(key, "")) for key in ("twin", "task"))
            name = "" if is_file_reference(task) else task
            found.append(Assignment(twin=twin, twin_hash="", task=task, task_name=name))
        below = [row.get("parent"), *dict(row.get("runs") or {}).values()]
        waiting += [value for value in below if isinstance(value, Mapping)]
    return list(dict.fromkeys(found))


def copy_sources(files: Mapping[str, Path], folder: Path) -> None:
    """Copy the files of an assignment into a folder, by their paths in it; files that exist are kept."""
    for name, file in files.items():
        target = folder / name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(target, file.read_bytes())


def list_sources(folder: Path) -> dict[str, Path]:
    """Return all files in the ``sources`` of a folder, or next to a policy's file, by their path in the folder."""
    folder = folder.parent if folder.is_file() else folder
    return {
        path.relative_to(folder).as_posix(): path
        for path in sorted((folder / SOURCES).rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
