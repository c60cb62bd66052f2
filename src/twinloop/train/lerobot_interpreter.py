"""Find the interpreter that has LeRobot, and ask a checkpoint that it keeps open, over pipes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import CheckFailedError, MissingDependencyError
from twinloop.train.lerobot_side import ACTION, FEATURES, receive, send

VARIABLE = "TWINLOOP_LEROBOT_PYTHON"
# -P: the folder of the file, where `lerobot.py` lies, is no place to import from.
SIDE = ("-P", str(Path(__file__).with_name("lerobot_side.py")))
_REMEDY = f"pip install lerobot, or sh scripts/lerobot_env.sh DIR and then export {VARIABLE}=DIR/bin/python"
_ASK = "import importlib.metadata as m; print(m.version('lerobot'))"
_PATIENCE_S = 120.0


def require_lerobot(python: Path | None = None) -> tuple[str, str]:
    """The interpreter that has LeRobot, and LeRobot's version.

    Args:
        python: the one to take; by default that which the variable ``TWINLOOP_LEROBOT_PYTHON`` names, else this one.

    Raises:
        MissingDependencyError: it has none; says both ways to get it.
    """
    named = python or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if named is None and find_spec("lerobot") is None:
        raise MissingDependencyError("LeRobot's policies need LeRobot, which is not installed here.", remedy=_REMEDY)
    interpreter = sys.executable if named is None else str(named)
    try:
        done = subprocess.run(  # noqa: S603 - an interpreter that the user names
            [interpreter, "-c", _ASK], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        said = getattr(error, "strerror", None) or "it does not answer"
        raise MissingDependencyError(f"{interpreter} does not start ({said}).", remedy=_REMEDY) from error
    if done.returncode != 0:
        raise MissingDependencyError(f"{interpreter} has no LeRobot.", remedy=_REMEDY)
    return interpreter, done.stdout.strip()


_LAST_LINES = 12  # of what the program said, in a message
_ENDING_S = 5.0  # a process that was told to end and has not by then is killed; ending takes it a tenth of a second


class LeRobotEndedError(CheckFailedError):
    """LeRobot's interpreter ended, or could not open the checkpoint, or its policy raised."""


class Child:
    """LeRobot's interpreter with one checkpoint open, until this object is gone or closed.

    Args:
        interpreter: which has LeRobot.
        folder: of the checkpoint.
        device: where it computes.

    Raises:
        LeRobotEndedError: LeRobot cannot open the checkpoint; says what LeRobot says.
    """

    def __init__(self, interpreter: str, folder: Path, device: str) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process, which writes into it
        self._process = subprocess.Popen(  # noqa: S603 - an interpreter that the user names
            [interpreter, *SIDE, "serve", str(folder.resolve()), device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
        )
        self.close = weakref.finalize(self, _end, self._process, self._said)
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def predict(self, arrays: Mapping[str, NDArray[Any]], task: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Chunks ``(n, chunk, k)`` and features ``(n, d)``; see `lerobot_side.Served.chunk`.

        Raises:
            LeRobotEndedError: the process ended, or the policy raised.
        """
        with self._lock:
            try:
                send(self._stream(self._process.stdin), "act", arrays, task)
            except (OSError, ValueError) as error:
                raise self._ended() from error
            made = self._answer()
        return made[ACTION], made[FEATURES]

    def _answer(self) -> dict[str, NDArray[Any]]:
        try:
            kind, arrays, message = receive(self._stream(self._process.stdout))
        except (EOFError, OSError, ValueError, KeyError) as error:
            raise self._ended() from error
        if kind == "error":
            raise LeRobotEndedError(f"LeRobot cannot run {self._folder}: {message}")
        return arrays

    def _ended(self) -> LeRobotEndedError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_ENDING_S)
        self._said.seek(0)
        said = "\n".join(self._said.read().decode(errors="replace").splitlines()[-_LAST_LINES:])
        return LeRobotEndedError(
            f"LeRobot's interpreter, which ran {self._folder}, ended (code {self._process.poll()}). Its last lines:"
            f"\n{said or '(none)'}"
        )

    @staticmethod
    def _stream(stream: IO[bytes] | None) -> Any:
        if stream is None or stream.closed:
            raise ValueError("the pipe is closed")
        return stream


def _end(process: subprocess.Popen[bytes], said: IO[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    try:
        process.wait(timeout=_ENDING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    said.close()
