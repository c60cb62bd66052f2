"""A checkpoint that LeRobot's own interpreter keeps open, asked over pipes."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import CheckFailedError
from twinloop.train.lerobot_interpreter import SIDE
from twinloop.train.lerobot_side import ACTION, FEATURES, receive, send

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
