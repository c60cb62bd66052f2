"""Jobs of `_campaign.Campaign`: each function applies one fault to one command."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _campaign import Campaign, Fault, Ran, command, copied, fill, free_bytes, mounted, read_only, unmounted
from _campaign_verbs import VERBS, Verb, leftovers, whole


@contextlib.contextmanager
def campaign() -> Iterator[tuple[Campaign, Path]]:
    """Start a campaign with a fresh world; both end with the block."""
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder, Campaign.open() as run:
        run.do("_campaign_verbs:build", root=f"{folder}/world")
        yield run, Path(folder) / "world"


@contextlib.contextmanager
def environment_of(name: str, world: Path) -> Iterator[dict[str, str]]:
    """Yield the variables that a command needs: the address of a small Hub on this machine, where it talks to one."""
    if not VERBS[name].hub:
        yield {"TWINLOOP_HOME": str(world.parent / "copy" / "world" / "home")} if name == "approve" else {}
        return
    from support.hub_server import TOKEN, Repository, hub_server

    with hub_server() as server:
        folder = world / "cell" / "data" / "first"
        server.repositories["me/set"] = Repository(private=False)
        files: dict[str, bytes | None] = {
            path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
        }
        server.repositories["me/set"].commit("main", files)
        yield {"HF_ENDPOINT": server.address, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1",
               "HF_HUB_DISABLE_PROGRESS_BARS": "1"}  # fmt: skip


@contextlib.contextmanager
def _world(source: str) -> Iterator[Path]:
    """Yield the workspace of a fresh copy of the world, which is always at the same place: results name paths."""
    base = Path(source).parent / "copy"
    try:
        yield copied(Path(source), base / "world") / "cell"
    finally:
        shutil.rmtree(base)


def unbroken(world: str, name: str, environment: dict[str, str]) -> dict[str, Any]:
    """Run a command undisturbed; return its outputs, the points that it passed, and the bytes that it used."""
    verb = VERBS[name]
    with _world(world) as cell:
        before = _bytes(cell.parent)
        ran = command(verb.line(cell), cell, **environment)
        hidden = leftovers(cell.parent)
        return {"code": ran.code, "text": ran.text, "points": ran.points, "made": verb.made(cell), "hidden": hidden,
                "bytes": max(0, _bytes(cell.parent) - before)}  # fmt: skip


def _bytes(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def killed(world: str, name: str, at: list[int], environment: dict[str, str]) -> list[dict[str, Any]]:
    """Kill a command at some points, each time in a fresh copy; then check, run it again, and check."""
    return [_killed(world, VERBS[name], point, environment) for point in at]


def _killed(world: str, verb: Verb, at: int, environment: dict[str, str]) -> dict[str, Any]:
    with _world(world) as cell:
        first = command(verb.line(cell), cell, Fault(kind="kill", at=at), **environment)
        wrong = whole(cell)
        ran = again(verb, cell, environment)
        command(["fsck", "--repair"], cell)  # sweeps parts of the catalog that no commit lists
        return {"at": at, "code": first.code, "wrong": wrong, "again": ran.code, "text": ran.text[-600:],
                "made": verb.made(cell), "after": whole(cell), "hidden": leftovers(cell.parent)}  # fmt: skip


def again(verb: Verb, cell: Path, environment: dict[str, str]) -> Ran:
    """Run a command again as a user would: with --resume, or without if the message reports no unfinished run.

    If the first run had finished its output, the second one refuses it; that counts as done.
    """
    ran = command(verb.line(cell, resumed=True), cell, **environment)
    if ran.code == 2 and verb.again and "without --resume" in ran.error:
        ran = command(verb.line(cell), cell, **environment)
    if ran.code == 2 and any(word in ran.error for word in FINISHED):
        ran = Ran(code=0, text=ran.text, points=ran.points)
    return ran


FINISHED = (
    "Nothing is written over",
    "exists and is not",
    "exists. Choose another",
    "holds an earlier run",
    "holds a finished run",
    "holds a dataset",
    "holds a scenario already",
    "is already a workspace",
    "is taken",
    "not empty",
    "not an empty folder",
    "nothing is left to resume",
    "There is no",
    "nothing to roll back to",
    "is the champion",
)


def full_disk(world: str, name: str, environment: dict[str, str], needed: int) -> dict[str, Any]:
    """Run a command on a disk with too little room, three times; then free it, and run the command once more."""
    verb, base = VERBS[name], Path(world).parent / "copy"
    base.mkdir()
    try:
        mounted(base, size=64 << 20)
        cell = copied(Path(world), base / "world") / "cell"
        tries = []
        for share in (0.0, 0.35, 0.8):
            filler = fill(base, leave=int(share * needed) & ~4095)
            tries.append(_brief(command(verb.line(cell, resumed=bool(tries)), cell, **environment)))
            filler.unlink()
        wrong = whole(cell)
        ran = again(verb, cell, environment)
        return {"tries": tries, "wrong": wrong, "again": ran.code, "text": ran.text[-600:], "made": verb.made(cell),
                "hidden": leftovers(cell.parent), "free": free_bytes(base)}  # fmt: skip
    finally:
        unmounted(base)
        shutil.rmtree(base)


def refused_calls(world: str, name: str, environment: dict[str, str], faults: list[dict[str, Any]]) -> dict[str, Any]:
    """Let the operating system refuse single calls of a command, one run after the other; then run it undisturbed."""
    verb = VERBS[name]
    with _world(world) as cell:
        tries = [_brief(command(verb.line(cell, resumed=i > 0), cell, Fault(**one), **environment))
                 for i, one in enumerate(faults)]  # fmt: skip
        wrong = whole(cell)
        ran = again(verb, cell, environment)
        return {"tries": tries, "wrong": wrong, "again": ran.code, "text": ran.text[-600:], "made": verb.made(cell),
                "hidden": leftovers(cell.parent)}  # fmt: skip


def on_read_only(world: str, lines: list[list[str]], environment: dict[str, str]) -> list[dict[str, Any]]:
    """Run commands in a world that cannot be written, one after the other."""
    with _world(world) as cell:
        read_only(cell.parent)
        try:
            return [
                _brief(command([w.format(store=cell.parent / "store") for w in words], cell, **environment))
                for words in lines
            ]
        finally:
            unmounted(cell.parent)


def at_once(world: str, lines: list[list[str]], environment: dict[str, str], check: str) -> dict[str, Any]:
    """Run command lines at the same time in one world; return their exit codes and outputs."""
    verb = VERBS[check]
    with _world(world) as cell:
        words = [[w.format(store=cell.parent / "store") for w in line] for line in lines]
        readers = [_started(line, cell, environment) for line in words]
        ends = [json.loads(reader()) for reader in readers]
        return {"ends": ends, "wrong": whole(cell), "made": verb.made(cell), "hidden": leftovers(cell.parent)}


def _started(words: list[str], cell: Path, environment: dict[str, str]) -> Any:
    """Start a command in a fork; return a function that waits for its end."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        with os.fdopen(writes, "w") as pipe:
            pipe.write(json.dumps(_brief(command(words, cell, **environment))))
        os._exit(0)
    os.close(writes)

    def wait() -> str:
        with os.fdopen(reads) as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        return text

    return wait


def _brief(ran: Ran) -> dict[str, Any]:
    return {"code": ran.code, "clear": ran.clear, "text": ran.error[-1200:]}


@contextlib.contextmanager
def killed_at_random(world: Path, name: str, *, moments: int, seconds: float) -> Iterator[tuple[Path, list[int]]]:
    """Start the real program several times in one copy of the world, and kill it each time after a random time.

    Yields the workspace, and the exit codes: minus 9 if the program was killed, others if it finished before.
    """
    verb, chance = VERBS[name], random.Random(name)
    with _world(str(world)) as cell:
        codes = []
        for number in range(moments):
            line = [sys.executable, "-W", "ignore", "-m", "twinloop", *verb.line(cell, resumed=number > 0)]
            process = subprocess.Popen(
                line, cwd=cell, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
            )
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0.05, 1.0) * seconds)
            process.kill()
            codes.append(process.wait())
        yield cell, codes
