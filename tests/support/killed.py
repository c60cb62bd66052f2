"""A process that is killed at its n-th write to the disk: the helper of the fault tests.

`killed_at` counts every step that makes data durable (flushing a file, renaming it, each SQLite statement within
a transaction, its commit) and kills its process with SIGKILL at the N-th. `Forks` runs it many times:
a process that has everything loaded, and a fork of it for each time.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

_LEFT = -1


def step() -> None:
    """One write point."""
    global _LEFT
    if _LEFT == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    _LEFT -= 1


def arm() -> None:
    """Count from now on."""
    flush, rename, unlink = os.fsync, Path.replace, Path.unlink

    def fsync(handle: int) -> None:
        step()
        flush(handle)
        step()

    def replace(self: Path, target: Path) -> Path:
        step()
        return rename(self, target)

    def remove(self: Path, missing_ok: bool = False) -> None:
        step()
        unlink(self, missing_ok=missing_ok)

    class Connection(sqlite3.Connection):
        """Steps before and after each statement that changes something."""

        def execute(self, sql, *given):
            if not sql.lstrip().startswith(("SELECT", "PRAGMA")):
                step()
            return super().execute(sql, *given)

        def executemany(self, sql, *given):
            step()
            return super().executemany(sql, *given)

    connect = sqlite3.connect
    os.fsync, Path.replace, Path.unlink = fsync, replace, remove
    sqlite3.connect = lambda *given, **named: connect(*given, **{"factory": Connection, **named})


def work(what: str, root: Path) -> None:
    """The operations that must be whole or not at all."""
    from support.catalog_workspace import score
    from twinloop.catalog import Workspace
    from twinloop.catalog.dataset_versions import freeze
    from twinloop.catalog.parts import compact

    with Workspace.open(root) as ws:
        ws.query("SELECT count(*) FROM episodes")  # everything is loaded before the first step is counted
        arm()
        ws.state.close()
        if what == "add":
            ws.add(root / "data" / "second")
        elif what == "append":
            names = {"scores": score("e", 1.0), "params": params("e")}
            ws.append_many(names, run_id="02")
        elif what == "freeze":
            freeze(ws, "all", "SELECT episode_id FROM episodes")
        elif what == "bury":
            ws.exclude_episodes(ws.query("SELECT min(episode_id) AS n FROM places")["n"].to_pylist(), "why", "who")
        elif what == "compact":
            compact(ws.parts, min_files=1)
        elif what == "rewrite":
            ws.add(root / "data" / "first")
        elif what.startswith("release "):
            from support.releases import act

            act(ws, what.removeprefix("release "))
        else:
            raise ValueError(what)


def params(name: str):
    """Two rows of parameters."""
    import pyarrow as pa

    return pa.table({"episode_id": [name, name], "name": ["a", "b"], "value": [1.0, 2.0]})


def killed_at(step_: int, root: Path, what: str) -> None:
    """Do ``what``, ended at a write point."""
    global _LEFT
    _LEFT = step_
    work(what, root)


def serve() -> None:
    """Fork for each line ``[step, root, what]`` that comes, and answer with what the child ended with."""
    import duckdb  # noqa: F401 - loaded once, for all children
    import pyarrow.compute
    import pyarrow.parquet  # noqa: F401

    import support.catalog_workspace  # noqa: F401
    import twinloop.catalog.parts
    import twinloop.release  # noqa: F401

    for line in sys.stdin:
        at, root, what = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                killed_at(at, Path(root), what)
                code = 0
            except BaseException:  # noqa: BLE001  # reported, then the child ends
                traceback.print_exc()
            os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201  # the answer


class Forks:
    """Runs operations that are killed on the way, each in a separate process."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        self._server = server

    @classmethod
    @contextlib.contextmanager
    def open(cls) -> Iterator[Forks]:
        """One that ends with the block."""
        command = [sys.executable, "-c", "from support.killed import serve; serve()"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as server:
            try:
                yield cls(server)
            finally:
                assert server.stdin is not None
                server.stdin.close()

    def run(self, at: int, root: Path, what: str) -> int:
        """The exit code of ``what``, ended at its ``at``-th write point if it has so many."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps([at, str(root), what]) + "\n")
        self._server.stdin.flush()
        code = int(self._server.stdout.readline())
        assert code in (0, -signal.SIGKILL)
        return code
