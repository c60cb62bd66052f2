"""Run tasks in parallel on the machines of a Ray cluster, with results in the order of the tasks.

A lost worker process or machine costs only time, because Ray repeats its tasks elsewhere and a task's result
depends on the task alone. Only the calling process writes files.
"""

from __future__ import annotations

import collections
import importlib
import logging
import os
import socket
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

from twinloop.core.errors import InputError, MissingDependencyError, TwinloopError
from twinloop.core.profile import span

Item = TypeVar("Item")
Result = TypeVar("Result")

INSTALL = 'pip install "twinloop[ray]"'
# Retries of a task whose process or machine died; limited, so that a task that always kills its process ends.
_RETRIES = 5
_PATIENCE_S = 5.0  # timeout of the connection test; our choice


class RayCluster:
    """Work engine that runs tasks on a Ray cluster, each on one core; see `core.pool.WorkEngine`.

    Args:
        address: ``HOST:PORT`` of a running cluster, or ``auto`` for the cluster of this machine. If empty, the
            address in ``RAY_ADDRESS`` is used, or else a local Ray that ends with this object.
        workers: number of parallel tasks; 0 uses every core of the cluster.

    Raises:
        MissingDependencyError: If Ray is not installed, or no cluster answers.
        InputError: If the address has no port.
    """

    threads, in_other_processes = 1, True

    def __init__(self, address: str = "", *, workers: int = 0) -> None:
        self._ray = _import_ray()
        self._ours = not self._ray.is_initialized()
        if self._ours:
            _connect(self._ray, address or os.environ.get("RAY_ADDRESS", ""))
        self.workers = workers or max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
        """Yield every item with its result ``function(item)``, in the order of the items.

        Args:
            function: function to run on the cluster; must be picklable.
            items: arguments, read as workers become free.

        Raises:
            TwinloopError: If the function fails, or Ray cannot finish a task after several attempts.
        """
        task = self._ray.remote(num_cpus=1, max_retries=_RETRIES)(_run)
        pending: collections.deque[tuple[Item, Any]] = collections.deque()
        try:
            for item in items:
                pending.append((item, task.remote(function, item)))
                if len(pending) > self.workers:
                    yield self._result(pending)
            while pending:
                yield self._result(pending)
        finally:
            for _, reference in pending:
                self._ray.cancel(reference, force=False)

    def _result(self, pending: collections.deque[tuple[Item, Any]]) -> tuple[Item, Any]:
        item, reference = pending.popleft()
        errors = self._ray.exceptions
        try:
            with span("waiting"):
                return item, self._ray.get(reference)
        except errors.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, TwinloopError) else error) from None
        except errors.RayError as error:
            raise TwinloopError(
                f"Ray could not finish {item!r:.80} ({type(error).__name__}): its process died {_RETRIES + 1} times, "
                "or the cluster is gone. Finished results are kept. Run the command again with --resume to continue."
            ) from error

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._ours:
            self._ray.shutdown()


def _run(function: Callable[[Item], Result], item: Item) -> Result:
    """Run a task in a worker process, with numerical libraries limited to one thread."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    return function(item)


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray = importlib.import_module("ray")
            importlib.import_module("ray.exceptions")
            return ray
    except ImportError as error:
        raise MissingDependencyError("The engine ray needs Ray, which is not installed.", remedy=INSTALL) from error


def _connect(ray: Any, address: str) -> None:
    """Connect to the Ray cluster at an address, or start a local one."""
    options = {"include_dashboard": False} if not address or address == "local" else {"address": address}
    if address and address not in ("auto", "local"):
        _test_connection(address)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _unreachable_error(address or "this machine", str(error)) from error


def _test_connection(address: str) -> None:
    """Test the connection to an address first, because Ray itself would retry for minutes.

    Raises:
        InputError: If the address is not ``HOST:PORT``.
        MissingDependencyError: If nothing answers there.
    """
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if not separator or not port.isdigit():
        raise InputError(f"The Ray address {address!r} is not HOST:PORT. Write --engine ray:HOST:6379, or ray:auto.")
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE_S).close()
    except OSError as error:
        raise _unreachable_error(address, error.strerror or str(error)) from error


def _unreachable_error(address: str, reason: str) -> MissingDependencyError:
    first = reason.strip().splitlines()[0] if reason.strip() else "no answer"
    return MissingDependencyError(
        f"No Ray cluster answers at {address} ({first}).",
        remedy="ray start --head --port=6379 there, then --engine ray:HOST:6379 (--engine ray: this machine alone)",
    )
