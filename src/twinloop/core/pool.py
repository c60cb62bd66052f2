"""Work on local processes, results in order whoever was faster; nothing survives the process that asked for it."""

from __future__ import annotations

import collections
import multiprocessing
import multiprocessing.process
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Protocol, TypeVar

from twinloop.core.errors import TwinloopError
from twinloop.core.profile import span

Item = TypeVar("Item")
Result = TypeVar("Result")


class Engine(Protocol):
    """Somewhere that items are worked on; a context manager that lets go of what it holds.

    ``workers`` items are worked on at a time, each with ``threads`` cores; ``elsewhere`` says whether in processes
    other than this one.
    """

    workers: int
    threads: int
    elsewhere: bool

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
        """Yield every item with ``function(item)``, in the order of the items; may be called again.

        Args:
            function: picklable.
            items: read as needed, at most ``workers + 1`` ahead of what was yielded.

        Raises:
            TwinloopError: what the function raised, or that a worker was lost; what was yielded before is whole.
        """
        ...

    def __enter__(self) -> Engine: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalProcesses:
    """Processes of this machine, started afresh at the first `map` (no state is inherited).

    With one worker everything runs in this process. Each process gets its share of the cores for libraries that start
    threads of their own.
    """

    def __init__(self, workers: int) -> None:
        self.workers = max(1, workers)
        self.threads = max(1, cores() // self.workers)
        self.elsewhere = self.workers > 1
        self._pool: ProcessPoolExecutor | None = None

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
        """See `Engine`."""
        if not self.elsewhere:
            for item in items:
                yield item, function(item)
            return
        yield from _in_order(self._started(), function, items, ahead=self.workers + 1)

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(
                self.workers, mp_context=context, initializer=begin_worker, initargs=(str(self.threads),)
            )
        return self._pool

    def __enter__(self) -> LocalProcesses:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _in_order(
    pool: ProcessPoolExecutor, function: Callable[[Item], Result], items: Iterable[Item], *, ahead: int
) -> Iterator[tuple[Item, Result]]:
    pending: collections.deque[tuple[Item, Future[Result]]] = collections.deque()
    try:
        for item in items:
            pending.append((item, pool.submit(function, item)))
            if len(pending) >= ahead:
                yield _result(pending)
        while pending:
            yield _result(pending)
    finally:
        for _, future in pending:
            future.cancel()


def _result(pending: collections.deque[tuple[Item, Future[Result]]]) -> tuple[Item, Result]:
    item, future = pending.popleft()
    try:
        with span("waiting"):
            return item, future.result()
    except BrokenProcessPool as error:
        raise TwinloopError(
            f"A worker process ended while working on {item!s:.80}. What was finished before is whole; run again with "
            "--resume to go on from there, and with --workers 1 to see what the process says."
        ) from error


def begin_worker(threads: str) -> None:
    """Leave Ctrl-C to the parent, die with it, and keep libraries from starting a thread per core each."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, threads)
    # Mesa's software rasterizer draws in the calling thread at 0, and hands its work to as many others else, which for
    # a single one only costs: 640×480 of so101_tabletop takes 15.9 ms of processor time at 0, and 19.5 at 1.
    os.environ.setdefault("LP_NUM_THREADS", "0" if threads == "1" else threads)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)
