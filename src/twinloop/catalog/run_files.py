"""Record the size and the SHA-256 of each file that a recorded command wrote, and find files that changed later."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from twinloop.catalog.dataset_folder import Seal, escape_path, find_file_fault
from twinloop.catalog.fsck import FsckFinding
from twinloop.catalog.state import WorkspaceState
from twinloop.core.errors import InputError
from twinloop.dataset.lerobot import layout

_ELSEWHERE = ("catalog", "policies")  # folders of a workspace that have checks of their own


def seal_run(root: Path, state: WorkspaceState, folder: Path) -> int:
    """Record the size and the SHA-256 of the files in a run's output folder; return the number of files.

    Earlier records of the folder are replaced. Files of datasets in the folder are not recorded here, but when the
    dataset is added to the catalog. Nothing is recorded if the folder is the workspace itself, is outside the
    workspace, or is in ``catalog`` or ``policies``.

    Args:
        root: the workspace folder.
        state: the workspace's SQLite file.
        folder: the run's output folder.
    """
    try:
        name = folder.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        return 0
    if name == "." or name.partition("/")[0] in _ELSEWHERE:
        return 0
    seals = [Seal.of(root, path) for path in _list_files(root, root / name)]
    with state.transaction() as connection:
        held = connection.execute("SELECT path, folder FROM run_files").fetchall()
        gone = [(path,) for path, of in held if of == name or path.startswith(f"{name}/")]
        connection.executemany("DELETE FROM run_files WHERE path = ?", gone)
        rows = [(item.path, name, item.bytes, item.sha256) for item in seals]
        connection.executemany("INSERT INTO run_files VALUES (?, ?, ?, ?)", rows)
    return len(seals)


def check_run_files(
    root: Path, state: WorkspaceState, note: Callable[[str], None], *, deep: bool
) -> Iterator[FsckFinding]:
    """Yield a fault for each file of a recorded run that is missing or was changed.

    Args:
        root: the workspace folder.
        state: the workspace's SQLite file.
        note: receives a sentence on each output folder that is missing completely.
        deep: whether to read every file; if false, files above 1 MiB are compared by size only.
    """
    folders: dict[str, list[Seal]] = {}
    for row in state.rows("SELECT path, folder, bytes, sha256 FROM run_files ORDER BY path"):
        item = Seal(path=row["path"], bytes=row["bytes"], sha256=row["sha256"])
        folders.setdefault(row["folder"], []).append(item)
    for name, seals in folders.items():
        if not os.path.lexists(root / name):
            note(f"{escape_path(root / name)}, which a run wrote, is missing with {len(seals)} files.")
            continue
        for item in seals:
            what = find_file_fault(root, item, deep=deep)
            if what is not None:
                yield FsckFinding(
                    kind="run",
                    location=escape_path(item.path),
                    problem=f"{escape_path(root / item.path)} {what.replace('it was added', 'its run was recorded')}.",
                    remedy="Restore a copy of the file, or run the command again. If the change was intended: "
                    f"`twinloop fsck --accept {escape_path(item.path)}`.",
                )


def accept_changes(root: Path, state: WorkspaceState, paths: Sequence[Path]) -> list[str]:
    """Record the present content of changed files of runs as intended; return one sentence per path.

    Args:
        root: the workspace folder.
        state: the workspace's SQLite file.
        paths: files or folders that recorded runs wrote.

    Raises:
        InputError: If a path does not belong to a recorded run.
    """
    done = list[str]()
    for given in paths:
        name = _make_relative(root, given)
        rows = state.rows("SELECT path FROM run_files WHERE path = ? OR substr(path, 1, ?) = ?",
                          (name, len(name) + 1, f"{name}/"))  # fmt: skip
        if not rows:
            raise InputError(
                f"{escape_path(given)} is not a file of a recorded run. Only such files can be accepted as changed."
            )
        there = [Seal.of(root, row["path"]) for row in rows if (root / row["path"]).is_file()]
        with state.transaction() as connection:
            connection.executemany("DELETE FROM run_files WHERE path = ?",
                                   [(row["path"],) for row in rows if not (root / row["path"]).is_file()])  # fmt: skip
            connection.executemany("UPDATE run_files SET bytes = ?, sha256 = ? WHERE path = ?",
                                   [(item.bytes, item.sha256, item.path) for item in there])  # fmt: skip
        done.append(
            f"{escape_path(name)}: {len(there)} are recorded as they are now, {len(rows) - len(there)} are missing."
        )
    return done


def _make_relative(root: Path, given: Path) -> str:
    """Return a path relative to the workspace, whether it was given relative to the workspace or the current folder."""
    for path in (Path.cwd() / given, root / given):
        name = Path(os.path.normpath(path))
        if name.is_relative_to(root.resolve()) or name.is_relative_to(root):
            base = root if name.is_relative_to(root) else root.resolve()
            return name.relative_to(base).as_posix()
    return given.as_posix()


def _list_files(root: Path, folder: Path) -> Iterator[str]:
    """Yield the paths of the files in a run's folder, relative to the workspace ``root``.

    Hidden files, links, pipes and datasets are left out.
    """
    if (folder / layout.INFO).is_file():
        return
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.startswith(".") or not _is_text(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _list_files(root, Path(entry.path))
            elif entry.is_file(follow_symlinks=False):
                yield Path(entry.path).relative_to(root).as_posix()


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
