"""Run commands of twinloop in separate processes, and kill or disturb them while they run.

`Campaign` starts one process that has everything loaded. For each job it forks a child, and the child calls a function
of this module or of another one. `command` runs one command line in a further child, with one `Fault` in it.

A *point* is a step that makes data durable: opening a file for writing, renaming, removing or linking one,
flushing it, and every statement that changes the catalog's SQLite file.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
_EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate", "os.symlink")
_NEW_MOUNTS, _PRIVATE, _REMOUNT, _READ_ONLY, _BIND = 0x20000, 0x44000, 0x20, 0x1, 0x1000  # linux/sched.h, linux/mount.h
_DETACH = 2
NO_MOUNTS = 77  # exit code of a probe where this container may not mount


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens to a command: nothing, or one thing at its ``at``-th point.

    ``kind`` is "" (points are counted only), "kill" (SIGKILL), or "errno" (the operating system refuses that point and,
    where ``lasting``, all points after it). ``files`` limits the open files, ``bytes`` the size of each file.
    """

    kind: str = ""
    at: int = -1
    errno: int = 0
    lasting: bool = False
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Ran:
    """Result of a command: its exit code (minus the signal), its output, and the points that it passed."""

    code: int
    text: str
    points: int

    @property
    def error(self) -> str:
        """Return the message that the command line printed for people, in one line."""
        return " ".join(self.text.split())

    @property
    def clear(self) -> bool:
        """Return whether the command ended as promised: an exit code of the contract, and no traceback."""
        return self.code in (0, 1, 2, 3) and "Traceback" not in self.text

    @property
    def metrics(self) -> dict[str, Any]:
        """Return the last line of JSON that was printed."""
        lines = [line for line in self.text.splitlines() if line.startswith("{")]
        return json.loads(lines[-1]) if lines else {}


class Campaign:
    """A process with everything loaded, and a fork of it for each job."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        self._server = server

    @classmethod
    @contextlib.contextmanager
    def open(cls) -> Iterator[Campaign]:
        """Start the process, and end it with the block."""
        paths = [str(HERE), str(HERE.parent), *sys.path]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "COLUMNS": "400"}
        environment |= {"PYTHONDONTWRITEBYTECODE": "1"}
        words = [sys.executable, "-W", "ignore", "-c", "import _campaign; _campaign.serve()"]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        ) as server:
            try:
                yield cls(server)
            finally:
                assert server.stdin is not None
                server.stdin.close()

    def do(self, job: str, **given: Any) -> Any:
        """Call ``MODULE:FUNCTION`` in a fork; return its answer.

        Raises:
            AssertionError: the job itself failed; with its traceback.
        """
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps([job, given]) + "\n")
        self._server.stdin.flush()
        line = self._server.stdout.readline()
        assert line, "the process that runs the campaign has ended"
        answer = json.loads(line)
        assert "failed" not in answer, answer["failed"]
        return answer["value"]

    def command(self, words: list[str], folder: Path, fault: Fault | None = None, **environment: str) -> Ran:
        """Run one command line in a folder."""
        given = {"words": words, "folder": str(folder), "fault": asdict(fault or Fault()), "environment": environment}
        return Ran(**self.do("_campaign:command_job", **given))


def serve() -> None:
    """Fork for each line ``[job, arguments]`` that is read, and print what its child answers."""
    libraries = ("duckdb", "pyarrow.compute", "pyarrow.parquet", "pyarrow.dataset", "av", "mujoco", "scipy.stats",
                 "scipy.optimize", "torch", "matplotlib.figure", "huggingface_hub")  # fmt: skip
    ours = ("cli.main", "catalog", "workflows.generate.generate", "workflows.identify.identify",
            "workflows.curate.curate", "workflows.data.datasets", "dataset.reader", "workflows.deploy.release",
            "workflows.train.train", "train.run", "report")  # fmt: skip
    for name in (*libraries, *(f"twinloop.{one}" for one in ours), "_campaign_verbs"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    _register_store()
    for line in sys.stdin:
        job, given = json.loads(line)
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reads)
            os.dup2(2, 1)  # the server's own standard output is for answers alone
            with os.fdopen(writes, "w") as pipe:
                pipe.write(json.dumps(_answer(job, given)))
            os._exit(0)
        os.close(writes)
        with os.fdopen(reads) as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        print(answer or json.dumps({"failed": f"{job} was ended"}), flush=True)  # noqa: T201 - the answer


def _register_store() -> None:
    """Make ``disk://FOLDER`` an object store, as far as twinloop can see."""
    with contextlib.suppress(ImportError):
        import fsspec
        from fsspec.implementations.local import LocalFileSystem

        class Disk(LocalFileSystem):
            protocol = ("disk",)

            def __init__(self, **given):
                super().__init__(**{**given, "auto_mkdir": True})

            @classmethod
            def _strip_protocol(cls, path):
                return LocalFileSystem._strip_protocol(str(path).removeprefix("disk://"))

        fsspec.register_implementation("disk", Disk, clobber=True)


def _answer(job: str, given: dict[str, Any]) -> dict[str, Any]:
    module, _, name = job.partition(":")
    try:
        return {"value": getattr(importlib.import_module(module), name)(**given)}
    except BaseException:  # noqa: BLE001 - reported to the test, then the child ends
        return {"failed": traceback.format_exc()}


def command_job(
    words: list[str], folder: str, fault: dict[str, Any], environment: dict[str, str] | None = None
) -> dict[str, Any]:
    """Run one command, for `Campaign.command`."""
    return asdict(command(words, Path(folder), Fault(**fault), **(environment or {})))


def command(words: list[str], folder: Path, fault: Fault | None = None, **environment: str) -> Ran:
    """Fork, run one command line in a folder with a fault in it, and wait for its end."""
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as count:
        child = os.fork()
        if child == 0:
            _run(words, folder, fault or Fault(), said.fileno(), count.fileno(), environment)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        text = said.read().decode(errors="replace")
        points = int(os.pread(count.fileno(), 20, 0) or b"0")
    return Ran(code=code, text=text, points=points)


def _run(
    words: list[str], folder: Path, fault: Fault, said: int, count: int, environment: dict[str, str]
) -> None:  # the child never returns
    code = 70
    try:
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.stdout, sys.stderr = (os.fdopen(os.dup(said), "w", buffering=1) for _ in range(2))
        os.environ.update(environment)
        os.chdir(folder)
        os.setpgid(0, 0)
        from twinloop.cli.main import main

        _arm(fault, folder.resolve().parent, count)
        code = main(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - as the interpreter would
        traceback.print_exc()
        code = 1
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        _end_children()
        os._exit(code)


def _end_children() -> None:
    """End what the command started, as the interpreter does at its exit."""
    import multiprocessing

    with contextlib.suppress(Exception):
        for child in multiprocessing.active_children():
            child.kill()


@dataclass
class _Armed:
    """The points that a process passed, and the fault at one of them."""

    fault: Fault
    root: str
    count: int
    passed: int = 0
    busy: bool = False
    files: dict[int, str] = field(default_factory=dict)

    def point(self, what: str) -> None:
        """Pass one point."""
        if self.busy:
            return
        self.busy = True
        try:
            number, fault = self.passed, self.fault
            self.passed += 1
            os.pwrite(self.count, str(self.passed).encode(), 0)
            due = number == fault.at or (fault.lasting and number > fault.at >= 0)
            if due and fault.kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if due and fault.kind == "errno":
                raise OSError(fault.errno, os.strerror(fault.errno), what)
        finally:
            self.busy = False

    def hook(self, event: str, given: tuple[Any, ...]) -> None:
        """See `sys.addaudithook`: an exception in here is the operation's."""
        if event == "open":
            path, mode, flags = given
            writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) if isinstance(flags, int) else mode != "r"
        elif event in _EVENTS:
            path, writes = given[0], True
        else:
            return
        if writes and isinstance(path, str | bytes | os.PathLike) and self._within(os.fspath(path)):
            self.point(os.fsdecode(path))

    def _within(self, path: str | bytes) -> bool:
        return os.path.abspath(os.fsdecode(path)).startswith(self.root)  # noqa: PTH100 - links stay links


def _arm(fault: Fault, root: Path, count: int) -> None:
    """Count points below a folder from now on, and let the fault happen."""
    armed = _Armed(fault, str(root), count)
    flush, connect = os.fsync, sqlite3.connect

    def fsync(handle: int) -> None:
        armed.point(f"descriptor {handle}")
        flush(handle)
        armed.point(f"descriptor {handle}")

    class Connection(sqlite3.Connection):
        """Count each statement that changes something."""

        def execute(self, sql, *given):
            if fault.kind != "errno" and not sql.lstrip().startswith(("SELECT", "PRAGMA")):
                armed.point(sql)
            return super().execute(sql, *given)

    os.fsync = fsync
    sqlite3.connect = lambda *given, **named: connect(*given, **{"factory": Connection, **named})
    sys.addaudithook(armed.hook)
    if fault.files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (fault.files, fault.files))
    if fault.bytes:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault.bytes, resource.RLIM_INFINITY))


def mounted(folder: Path, *, size: int) -> None:
    """Mount a small file system in memory on a folder, for this process and its children alone.

    Raises:
        OSError: this container may not mount.
    """
    _mount(None, folder, "tmpfs", 0, f"size={size}")


def read_only(folder: Path) -> None:
    """Make a folder read-only for this process and its children, for root too."""
    _mount(folder, folder, None, _BIND, None)
    _mount(None, folder, None, _BIND | _REMOUNT | _READ_ONLY, None)


def _mount(source: Path | None, target: Path, kind: str | None, flags: int, options: str | None) -> None:
    c = ctypes.CDLL(None, use_errno=True)
    if c.unshare(_NEW_MOUNTS) != 0 or c.mount(b"none", b"/", None, _PRIVATE, None) != 0:
        raise OSError(ctypes.get_errno(), "this container may not have mounts of its own")
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    if c.mount(words[0] or b"none", words[1], words[2], flags, options.encode() if options else None) != 0:
        raise OSError(ctypes.get_errno(), f"this container may not mount on {target}")


def unmounted(folder: Path) -> None:
    """Take a mount away again; one that is in use still goes with the last who uses it."""
    ctypes.CDLL(None).umount2(os.fsencode(folder), _DETACH)


def can_mount() -> bool:
    """Return whether this container may mount; tried in a fork."""
    child = os.fork()
    if child == 0:
        code = NO_MOUNTS
        with contextlib.suppress(OSError), tempfile.TemporaryDirectory() as folder:
            mounted(Path(folder), size=65536)
            code = 0
            ctypes.CDLL(None).umount(os.fsencode(folder))
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def free_bytes(folder: Path) -> int:
    """Return the bytes that a file system still takes."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def fill(folder: Path, *, leave: int) -> Path:
    """Fill a file system until only ``leave`` bytes are left; return the file to remove."""
    filler = folder / "filler"
    room = free_bytes(folder) - leave
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, room))
    return filler


def copied(source: Path, target: Path) -> Path:
    """Return a copy of a folder, links as links."""
    return Path(shutil.copytree(source, target, symlinks=True))
