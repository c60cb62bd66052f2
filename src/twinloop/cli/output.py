"""Direct what a command prints and reports: to nowhere, to more lines, also to a file, and to programs with plots."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from twinloop.core import progress
from twinloop.core.console import escape_control
from twinloop.core.errors import InputError
from twinloop.core.metrics import open_trackers
from twinloop.core.redaction import redact_text

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # colours and movements of the cursor


class SafeFormatter(logging.Formatter):
    """A log formatter that removes credentials and control characters from the log lines of libraries."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a log message, without credentials and control characters."""
        return escape_control(redact_text(super().format(record)))


@contextlib.contextmanager
def directed_output(verb: str, request: Any) -> Generator[None]:
    """Apply ``--quiet``, ``--verbose``, ``--log-file``, ``--track`` and ``--rerun`` while the ``with`` block runs.

    Args:
        verb: Name of the command.
        request: Its request.

    Raises:
        InputError: If the log file cannot be written.
        MissingDependencyError: If the package of a tracker is not installed.
    """
    with contextlib.ExitStack() as stack:
        if getattr(request, "log_file", None) is not None:
            file = stack.enter_context(_open_log(request.log_file))
            for name in ("stdout", "stderr"):
                stack.enter_context(_replaced(name, _Both(getattr(sys, name), file)))
        if getattr(request, "verbose", False):
            stack.enter_context(_logging())
        if getattr(request, "quiet", False):
            stack.enter_context(progress.hidden())
        trackers = [*getattr(request, "track", ()), *(["rerun"] if getattr(request, "rerun", False) else [])]
        if trackers:
            stack.enter_context(open_trackers(trackers, verb=verb, output=request.output))
        yield


class _Both:
    """Text stream that writes to another stream, and each line with its time also to a file."""

    def __init__(self, stream: TextIO, file: TextIO) -> None:
        self._stream, self._file, self._line = stream, file, ""

    def write(self, text: str) -> int:
        """Write a text, and its complete lines to the file; of a bar that is drawn again and again only the last."""
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            last = _CONTROL.sub("", line).rstrip("\r").rpartition("\r")[2]
            self._file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {last}\n")
        return self._stream.write(text)

    def flush(self) -> None:
        """Flush both."""
        self._stream.flush()
        self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _open_log(path: Path) -> Generator[TextIO]:
    try:
        file = path.open("a", encoding="utf-8", buffering=1)
    except OSError as error:
        raise InputError(f"--log-file {path} cannot be written ({error.strerror}). Choose another file.") from error
    with file:
        yield file


@contextlib.contextmanager
def _replaced(name: str, stream: Any) -> Generator[None]:
    before = getattr(sys, name)
    setattr(sys, name, stream)
    try:
        yield
    finally:
        setattr(sys, name, before)


@contextlib.contextmanager
def _logging() -> Generator[None]:
    """Print log messages from the level INFO on to standard error."""
    root, handler = logging.getLogger(), logging.StreamHandler()
    handler.setFormatter(SafeFormatter("%(asctime)s %(name)s: %(message)s"))
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
