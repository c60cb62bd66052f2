"""Limit the time and the memory of one SQL statement.

The limits are in ``twinloop.yaml``, for example ``query: {memory: 4GB, threads: 2, timeout_s: 60}``.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from twinloop.core.errors import InputError, UnknownNameError

try:
    import resource
except ImportError:  # not on Windows
    resource = None

T = TypeVar("T")

DEFAULT_MEMORY = 4 << 30  # bytes; half of the machine's memory if that is less
DEFAULT_TIMEOUT_S = 60.0
LONGEST_TIMEOUT_S = 86_400.0
MOST_THREADS = 256
_GRACE_S = 2.0  # from the request to stop a statement until it is abandoned
_UNCOUNTED = 1 << 30  # bytes for buffers that DuckDB does not count, such as the texts of one block of rows
_NAMES = ("memory", "threads", "timeout_s")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|[KMGT]i?B|%)", re.IGNORECASE)
_UNITS = {"b": 1} | {f"{k}{i}b": (1024 if i else 1000) ** n for n, k in enumerate("kmgt", 1) for i in ("", "i")}


class StatementTimeoutError(InputError):
    """Error if an SQL statement exceeds its time limit.

    Attributes:
        abandoned: whether the statement could not be stopped and still runs in its thread.
    """

    def __init__(self, message: str, *, abandoned: bool) -> None:
        super().__init__(message)
        self.abandoned = abandoned


@dataclass(frozen=True, kw_only=True)
class QueryLimits:
    """Limits of one SQL statement.

    Attributes:
        memory: maximum memory in bytes, applied to DuckDB's intermediate results and separately to the result.
        threads: maximum number of threads; None for all cores.
        timeout_s: maximum duration in seconds.
    """

    memory: int
    threads: int | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S

    @classmethod
    def read(cls, config: Mapping[str, Any], where: Path) -> QueryLimits:
        """Read the limits from the key ``query`` of a workspace's settings.

        Args:
            config: content of ``twinloop.yaml``.
            where: path of that file, for error messages.

        Raises:
            UnknownNameError: If ``query`` has an unknown key.
            InputError: If a value has another type or is outside its range.
        """
        given = config.get("query") or {}
        if not isinstance(given, dict):
            raise InputError(f"{where}: query must hold settings, such as query: {{memory: 4GB, threads: 2}}.")
        for name in given:
            if name not in _NAMES:
                raise UnknownNameError("setting", str(name), _NAMES, where=f"query of {where}")
        return cls(
            memory=_parse_memory(given.get("memory"), where),
            threads=_parse_threads(given.get("threads"), where),
            timeout_s=_parse_timeout(given.get("timeout_s", DEFAULT_TIMEOUT_S), where),
        )

    def settings(self) -> dict[str, Any]:
        """Return DuckDB's settings of the memory limit and the number of threads."""
        threads = {} if self.threads is None else {"threads": self.threads}
        return {"memory_limit": f"{self.memory}B", **threads}

    def run(self, work: Callable[[], T], interrupt: Callable[[], None]) -> T:
        """Run a function in a separate thread within the limits, and return its result or raise its exception.

        Args:
            work: the function to run.
            interrupt: function that requests ``work`` to stop; it is called after the time limit or on Ctrl-C.

        Raises:
            StatementTimeoutError: If the function takes longer than ``timeout_s``.
        """
        outcome: Future[T] = Future()

        def target() -> None:
            try:
                with _limit_memory(2 * self.memory + _UNCOUNTED):
                    outcome.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                outcome.set_exception(error)

        # A daemon thread: a running call cannot be interrupted, and must not keep the process alive.
        thread = threading.Thread(target=target, name="twinloop-statement", daemon=True)
        thread.start()
        late = True
        try:
            thread.join(self.timeout_s)
            late = thread.is_alive()
        finally:
            if late:
                interrupt()
                thread.join(_GRACE_S)
        if late:
            if thread.is_alive():
                atexit.register(_close_stderr)
            raise StatementTimeoutError(
                f"The statement ran longer than {self.timeout_s:g} s and was stopped. Select fewer rows, or raise "
                "query: {timeout_s: …} in twinloop.yaml.",
                abandoned=thread.is_alive(),
            )
        return outcome.result()


def _close_stderr() -> None:
    """Discard error output, so that DuckDB prints nothing about a still running statement when the process ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _parse_memory(given: Any, where: Path) -> int:
    machine = _measure_machine_memory()
    if given is None:
        return min(DEFAULT_MEMORY, machine // 2)
    found = _SIZE.fullmatch(str(given).strip())
    if found is None:
        raise InputError(f"{where}: query: memory is {given!r}. Write a number and a unit, such as 4GB, 512MiB or 50%.")
    number, unit = float(found[1]), found[2].lower()
    size = int(number * machine / 100) if unit == "%" else int(number * _UNITS[unit])
    if size < 1:
        raise InputError(f"{where}: query: memory is {given!r}; a statement needs more than that, such as 512MB.")
    return min(size, machine)


def _parse_threads(given: Any, where: Path) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= MOST_THREADS:
        raise InputError(f"{where}: query: threads is {given!r}. Write a whole number from 1 to {MOST_THREADS}.")
    return given


def _parse_timeout(given: Any, where: Path) -> float:
    number = float("nan") if isinstance(given, bool) or not isinstance(given, int | float) else float(given)
    if not math.isfinite(number) or not 0 < number <= LONGEST_TIMEOUT_S:
        raise InputError(
            f"{where}: query: timeout_s is {given!r}. Write a number of seconds above 0, at most {LONGEST_TIMEOUT_S:g}."
        )
    return number


def _measure_machine_memory() -> int:
    """Return the machine's memory in bytes; 8 GiB if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # not on this system
        return 2 * DEFAULT_MEMORY


_cap_lock = threading.Lock()
_capped_now = 0
_limit_before = (-1, -1)


@contextlib.contextmanager
def _limit_memory(growth: int) -> Iterator[None]:
    """Return a context manager within which the process may allocate at most ``growth`` more bytes.

    An allocation beyond the limit fails, and DuckDB, Arrow or Python raises its error for lack of memory.

    DuckDB's own memory limit is checked only between steps. It includes neither the texts and lists that one function
    call makes nor the result, so that ``repeat('x', 4000000000)`` takes 4 GB with any such limit. This limit applies to
    the whole process. Simultaneous statements share the limit of the first one, which holds until the last of them has
    ended, even if it was abandoned. There is no limit if the system does not report the present memory of the process.
    """
    global _capped_now, _limit_before
    held = _measure_allocated_bytes()
    if resource is None or held is None:
        yield
        return
    with _cap_lock:
        if not _capped_now:
            _limit_before = resource.getrlimit(resource.RLIMIT_DATA)
            most = [n for n in (held + growth, *_limit_before) if n != resource.RLIM_INFINITY]
            resource.setrlimit(resource.RLIMIT_DATA, (min(most), _limit_before[1]))
        _capped_now += 1
    try:
        yield
    finally:
        with _cap_lock:
            _capped_now -= 1
            if not _capped_now:
                resource.setrlimit(resource.RLIMIT_DATA, _limit_before)


def _measure_allocated_bytes() -> int | None:
    """Return the private memory that this process has allocated, in bytes; None if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[5]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
