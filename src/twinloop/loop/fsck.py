"""Whether a workspace is whole, and what can be put right."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from twinloop.catalog.compaction import compact
from twinloop.catalog.fsck import Finding, check_batches, check_index, check_kept, check_parts
from twinloop.catalog.fsck_frozen import check_frozen
from twinloop.catalog.fsck_release import check_release
from twinloop.catalog.fsck_runs import check_order, check_secrets
from twinloop.catalog.fsck_state import check_rows, check_state
from twinloop.catalog.parts import Parts
from twinloop.catalog.repair import repair, repair_state
from twinloop.catalog.run_files import accept, check_run_files
from twinloop.catalog.state import State
from twinloop.catalog.workspace import STATE, Workspace
from twinloop.core.errors import InputError


def run_fsck(
    workspace: Path | None, *, deep: bool, mend: bool, join: bool, console: Console, meant: Sequence[Path] = ()
) -> tuple[dict[str, Any], int]:
    """Check everything, put right what can be, and tell.

    Args:
        workspace: its folder; by default the nearest upwards.
        deep: read every file whole and decode videos.
        mend: repair what loses nothing.
        join: join small parts into large ones afterwards.
        console: for people.
        meant: files and folders of recorded runs that were changed on purpose: they are known as they are now.

    Returns:
        The figures, and 1 where something is wrong still.

    Raises:
        InputError: there is no workspace, or one of ``meant`` is of no recorded run.
    """
    root = Workspace.find(workspace or Path.cwd())
    if root is None or (workspace is not None and root != workspace.absolute()):
        raise InputError(f"{workspace or 'Here'} is no workspace. Make one: `twinloop init FOLDER`.")
    at = root / "catalog" / STATE
    found, done = _of_state(root, at, mend=mend)
    notes = list[str]()
    if not any(finding.kind == "state" and finding not in done for finding in found):
        with contextlib.closing(State(at)) as state:
            parts = Parts(root / "catalog", state)
            said = (*check_frozen(parts.folder, state), *check_release(root, state))
            said += (*check_order(parts), *check_secrets(state))
            more = [*check_rows(state), *check_parts(parts), *check_kept(parts), *check_index(parts)]
            notes += accept(root, state, meant)
            more += check_run_files(root, state, notes.append, deep=deep)
            more += [*check_batches(parts, deep=deep, note=notes.append), *said]
            found += more
            if mend:
                done |= _mended(root, parts, more)
            if join:
                for table, count in compact(parts).items():
                    console.print(f"{count} parts of {table} became fewer.")
    for note in notes:
        console.print(note)
    _tell(found, done, console)
    left = [finding for finding in found if finding not in done or done[finding].startswith("Not ")]
    figures = {
        "schema": 1,
        "verb": "fsck",
        "workspace": str(root),
        "deep": deep,
        "findings": [{**vars(finding), "repaired": done.get(finding)} for finding in found],
        "notes": notes,
        "wrong": len(left),
    }
    return figures, 1 if left else 0


def _of_state(root: Path, at: Path, *, mend: bool) -> tuple[list[Finding], dict[Finding, str]]:
    """What is wrong with SQLite's file; made again where asked, since nothing can be checked without it."""
    found = check_state(at)
    if not found or not mend:
        return found, {}
    catalog = root / "catalog"
    return found, {found[0]: repair_state(catalog, at)}


def _mended(root: Path, parts: Parts, found: Sequence[Finding]) -> dict[Finding, str]:
    done = repair(parts, [finding for finding in found if finding.repair != "rebuild"])
    wrong = [finding for finding in found if finding.repair == "rebuild"]
    if wrong:
        parts.state.close()
        said = repair_state(root / "catalog", parts.state.path)
        done |= dict.fromkeys(wrong, said)
    return done


def _tell(found: Sequence[Finding], done: dict[Finding, str], console: Console) -> None:
    for finding in found:
        console.print(finding.what)
        console.print(f"  {done.get(finding) or finding.remedy}")
    console.print(f"{len(found)} findings." if found else "Everything is whole.")
