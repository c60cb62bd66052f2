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
from typing import TypeVar

from twinloop.core.errors import TwinloopError

Item = TypeVar("Item")
Result = TypeVar("Result")


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], *, workers: int
) -> Iterator[tuple[Item, Result]]:
    """Yield every item with ``function(item)``, in the order of the items.

    Args:
        function: picklable; runs in this process when ``workers`` is 1.
        items: read as needed, at most ``workers + 1`` ahead of what was yielded.
        workers: processes, started afresh (no state is inherited). Each gets its share of the cores for libraries
            that start threads of their own.

    Raises:
        TwinloopError: a worker process died; names the item. What was yielded before is whole.
    """
    if workers <= 1:
        for item in items:
            yield item, function(item)
        return
    context = multiprocessing.get_context("spawn")
    share = str(max(1, cores() // workers))
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_worker, initargs=(share,)) as pool:
        yield from _in_order(pool, function, items, ahead=workers + 1)


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
        return item, future.result()
    except BrokenProcessPool as error:
        raise TwinloopError(
            f"A worker process ended while working on {item!r:.80}. What was finished before is whole; run again with "
            "--resume to go on from there, and with --workers 1 to see what the process says."
        ) from error


def _begin_worker(threads: str) -> None:
    """Leave Ctrl-C to the parent, die with it, and keep libraries from starting a thread per core each."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Mesa's software rasterizer and BLAS read these when they start.
    for variable in ("LP_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, threads)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)
