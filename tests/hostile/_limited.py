"""Run attacks one after another, each in a fork of one process, and measure the time and the memory that it takes.

``MOST_CPU_S`` and ``MOST_MIB`` are what a refusal may take beyond what importing the package takes. A fork that takes
more than ``_CEILING_MIB`` of address space or ``_CEILING_S`` of time is ended, so that no attack harms the machine.

The same work takes up to three times more CPU time on a slow or busy machine. An attack that takes more than
``MOST_CPU_S`` is therefore counted in the CPU time of a machine on which a fixed loop takes ``_LOOP_S``.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_CPU_S = 1.0
MOST_MIB = 512
_LOOP_S = 0.2  # a quiet core of 2023
_CEILING_MIB, _CEILING_S = 4096, 20
_PRELOADED = (
    "av",
    "mujoco",
    "PIL.Image",
    "pyarrow.parquet",
    "pyarrow.csv",
    "rich.console",
    "scipy.spatial",
    "yaml",
    "twinloop.cli.main",
    "twinloop.catalog",
    "twinloop.dataset.lerobot.reader",
    "twinloop.dataset.media.video",
    "twinloop.generate.config",
    "twinloop.twin",
)
_OPTIONAL = ("safetensors", "twinloop.policies.weights")  # the extra "train"
_COMMANDS = (
    "gate /nowhere.yaml",
    "twin check /nowhere.yaml",
    "generate /nowhere.yaml --output /nowhere",
    "import /nowhere.csv --output /nowhere",
    "gap policies /nowhere.csv",
    "gap dynamics --twin simple_pendulum --data /nowhere.csv",
    "identify --twin simple_pendulum --data /nowhere.csv",
    "curate /nowhere",
    "evaluate expert --suite /nowhere.yaml",
    "serve --policy /nowhere",
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result and cost of an attack: seconds of CPU time at the speed of `_measure_loop`, MiB of memory."""

    kind: str
    message: str
    cpu_s: float
    mib: float

    def __str__(self) -> str:
        """Return the row of the table."""
        return f"{self.message} ({self.cpu_s:.2f} s, {self.mib:.0f} MiB)"


class Limited:
    """A process that has everything loaded, and runs every attack in a fork of itself."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        self._server = server

    @classmethod
    @contextlib.contextmanager
    def open(cls) -> Iterator[Limited]:
        """Start one, which ends with the block."""
        command = [sys.executable, "-c", "import _limited; _limited.serve()"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as server:
            try:
                yield cls(server)
            finally:
                assert server.stdin is not None
                server.stdin.close()

    @classmethod
    @functools.cache
    def shared(cls) -> Limited:
        """Return one for all attacks of this process; it ends with the process."""
        running = contextlib.ExitStack()
        atexit.register(running.close)
        return running.enter_context(cls.open())

    def run(self, function: str, *arguments: str | Path, folder: Path | None = None) -> Outcome:
        """Call ``module:function`` with texts and paths in a folder; ``main`` is the command line with these words."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        words = [["path", str(word)] if isinstance(word, Path) else ["text", word] for word in arguments]
        self._server.stdin.write(json.dumps([function, words, str(folder or "/")]) + "\n")
        self._server.stdin.flush()
        return Outcome(**json.loads(self._server.stdout.readline()))

    def refused(self, function: str, *arguments: str | Path) -> Outcome:
        """Run an attack, and assert that it is refused with an error of ours, quickly and in little memory."""
        outcome = self.run(function, *arguments)
        for _ in range(2):  # a busy machine takes more processor time for the same work
            if outcome.kind == "refused" and outcome.cpu_s >= MOST_CPU_S:
                outcome = self.run(function, *arguments)
        assert outcome.kind == "refused", outcome
        assert "Traceback" not in outcome.message
        assert outcome.cpu_s < MOST_CPU_S, outcome
        assert outcome.mib < MOST_MIB, outcome
        return outcome


def serve() -> None:
    """Answer each line ``[function, arguments, folder]`` with the outcome of a fork that calls it."""
    for name in _PRELOADED:
        importlib.import_module(name)
    for name in _OPTIONAL:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for words in _COMMANDS:  # a command loads its imports: no attack is charged for that
        _commanded(words.split())
    for line in sys.stdin:
        function, words, folder = json.loads(line)
        answer, pipe = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(answer)
            os.chdir(folder)
            _attack(pipe, function, [Path(word) if kind == "path" else word for kind, word in words])
        os.close(pipe)
        with os.fdopen(answer) as stream:
            text = stream.read()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        ended = {"kind": "killed", "message": f"ended with {code}", "cpu_s": 0.0, "mib": 0.0}
        print(text or json.dumps(ended), flush=True)  # noqa: T201 - the answer


def _attack(pipe: int, function: str, arguments: list[Any]) -> None:
    """Call a function under limits, and write what happened; the process ends."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (_CEILING_MIB << 20),) * 2)
    signal.alarm(_CEILING_S)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        kind, message = _called(function, arguments)
    except BaseException:  # noqa: BLE001 - any error is the outcome
        kind, message = "crashed", traceback.format_exc(limit=-3)
    cpu_s, after = time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if cpu_s >= MOST_CPU_S:
        cpu_s *= min(1.0, _LOOP_S / _measure_loop())
    outcome = {"kind": kind, "message": message[-4000:], "cpu_s": cpu_s}
    os.write(pipe, json.dumps({**outcome, "mib": (after - before) / 1024}).encode())
    os._exit(0)


def _measure_loop() -> float:
    """Return the CPU time in seconds of a loop that makes 400,000 texts and pairs."""
    began = time.process_time()
    _ = {str(index): (index, index * index) for index in range(400_000)}
    return time.process_time() - began


def _called(function: str, arguments: list[Any]) -> tuple[str, str]:
    from twinloop.core.errors import TwinloopError

    if function == "main":
        return _commanded([str(word) for word in arguments])
    module, _, name = function.partition(":")
    target: Any = importlib.import_module(module)
    for part in name.split("."):
        target = getattr(target, part)
    try:
        return "done", repr(target(*arguments))[:300]
    except TwinloopError as error:
        return "refused", f"{type(error).__name__}: {error}"


def _commanded(words: list[str]) -> tuple[str, str]:
    from twinloop.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return ("refused" if code == 2 else f"exit {code}"), err.getvalue() + out.getvalue()
