"""Run functions in local worker processes, with results in the order of the items.

`map_crash_tolerant` replaces worker processes that crash. It is for functions that call libraries which may end the
process on an error, such as renderers. `LocalProcesses` is for other functions: a crashed worker ends the run.
"""

from __future__ import annotations

import collections
import multiprocessing
import multiprocessing.process
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from twinloop.core.errors import TwinloopError
from twinloop.core.profile import span

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkEngine(Protocol):
    """Protocol of executors, which apply a function to many items, in this process or in worker processes.

    An instance is a context manager that releases its resources at the end of the ``with`` block.

    Attributes:
        workers: Number of items processed at the same time.
        threads: Number of cores for each item.
        in_other_processes: True if the items are processed in other processes.
    """

    workers: int
    threads: int
    in_other_processes: bool

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
        """Yield every item together with ``function(item)``, in the order of the items; may be called repeatedly.

        Args:
            function: Function to apply; must be picklable.
            items: Items to process. They are read as needed, at most ``workers + 1`` ahead of the yielded items.

        Raises:
            TwinloopError: If the function raises it, or if a worker process ends. Items yielded before are complete.
        """
        ...

    def __enter__(self) -> WorkEngine: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


_share: int | None = None  # cores of this worker process


def count_cores() -> int:
    """Return the number of CPU cores that this process may use; in a worker process, its share of them."""
    if _share is not None:
        return _share
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalProcesses:
    """Worker processes on this machine, started at the first call of `map`.

    Each worker process is a fresh Python process (start method ``spawn``). The CPU cores are divided equally between
    the workers, for libraries that start threads.

    Args:
        workers: Number of processes. With 1, everything runs in the calling process.
    """

    def __init__(self, workers: int) -> None:
        self.workers = max(1, workers)
        self.threads = max(1, count_cores() // self.workers)
        self.in_other_processes = self.workers > 1
        self._pool: ProcessPoolExecutor | None = None

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
        """Yield every item together with ``function(item)``, in the order of the items; see `WorkEngine.map`."""
        if not self.in_other_processes:
            for item in items:
                yield item, function(item)
            return
        yield from _map_in_order(self._start_pool(), function, items, ahead=self.workers + 1)

    def _start_pool(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(
                self.workers, mp_context=context, initializer=initialize_worker, initargs=(str(self.threads),)
            )
        return self._pool

    def __enter__(self) -> LocalProcesses:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _map_in_order(
    pool: ProcessPoolExecutor, function: Callable[[Item], Result], items: Iterable[Item], *, ahead: int
) -> Iterator[tuple[Item, Result]]:
    pending: collections.deque[tuple[Item, Future[Result]]] = collections.deque()
    try:
        for item in items:
            pending.append((item, pool.submit(function, item)))
            if len(pending) >= ahead:
                yield _take_result(pending)
        while pending:
            yield _take_result(pending)
    finally:
        for _, future in pending:
            future.cancel()


def _take_result(pending: collections.deque[tuple[Item, Future[Result]]]) -> tuple[Item, Result]:
    item, future = pending.popleft()
    try:
        with span("waiting"):
            return item, future.result()
    except BrokenProcessPool as error:
        raise TwinloopError(
            f"A worker process ended while working on {item!s:.80}. Items finished before are complete; run again with "
            "--resume to continue, or with --workers 1 to see the output of the process."
        ) from error


def initialize_worker(threads: str) -> None:
    """Set up a worker process: ignore Ctrl-C, end with the parent process, and limit the threads of libraries.

    Args:
        threads: Largest number of threads of a library, as text.
    """
    global _share
    _share = int(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, threads)
    # With 0, Mesa's software rasterizer draws in the calling thread; otherwise it passes its work to that many threads,
    # which is slower for one: 640×480 of so101_tabletop takes 15.9 ms of processor time at 0, and 19.5 at 1.
    os.environ.setdefault("LP_NUM_THREADS", "0" if threads == "1" else threads)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()


def _exit_with_parent(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)


Report = Callable[[Any], None]
Work = Callable[[Item, Report], Result]

# Crashes of one item before it becomes a `CrashedItem`: one crash may come from a busy machine, but an
# item that crashes two processes will crash the next one too.
MAX_CRASHES = 2


@dataclass(frozen=True, kw_only=True)
class CrashedItem:
    """Result in place of an item's own result if the item crashed every worker process that tried it.

    Attributes:
        crash: Description of the last crash.
        reported: Last progress value that the function reported in that process, or None.
    """

    crash: str
    reported: Any


def map_crash_tolerant(
    function: Work[Item, Result],
    items: Iterable[Item],
    *,
    workers: int,
    progress: Report | None = None,
) -> Iterator[tuple[Item, Result | CrashedItem]]:
    """Yield every item together with ``function(item, report)``, in order; replace worker processes that crash.

    An item is tried in two processes. If both crash, a `CrashedItem` is yielded in place of its result.

    Args:
        function: Picklable function. It may call ``report(value)`` with its progress; the last value is kept.
        items: Items to process. Results are computed even if the caller does not yet read them, and kept in memory, so
            they should be small.
        workers: Number of processes; 0 runs the function in this process, which ends if the function crashes.
        progress: Function called in this process with every reported value.

    Raises:
        TwinloopError: If the function raises it. This and any other error of the function is raised when the iteration
            reaches the item.
    """
    report: Report = progress or (lambda _: None)
    if not workers:
        for item in items:
            yield item, function(item, report)
        return
    pool = _WorkerPool(function, workers)
    try:
        yield from _supervise_workers(pool, [_Task(item=item) for item in items], report)
    finally:
        for worker in pool.workers:
            worker.stop()


@dataclass(kw_only=True)
class _Task(Generic[Item]):
    item: Item
    crashes: int = 0
    outcome: tuple[str, Any] | None = None  # kind of the outcome, and the result or error


class _Worker:
    """One worker process, the pipe to it, its current task, and its last reported progress value."""

    def __init__(self, function: Work[Any, Any], threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.task: _Task[Any] | None = None
        self.reported: Any = None
        self.process = context.Process(target=_run_worker, args=(function, theirs, threads), daemon=True)
        self.process.start()
        theirs.close()  # so that the end of the process is the end of the pipe

    def start_task(self, task: _Task[Any]) -> None:
        self.task, self.reported = task, None
        try:
            self.pipe.send(task.item)
        except OSError:
            return  # the process has already ended; reading the pipe reports it

    def read_message(self) -> tuple[str, Any]:
        """Return the next message of the process as (kind, value), or ``("ended", description)`` after its end."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            return "ended", _describe_exit(self.process.exitcode)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


class _WorkerPool:
    """Up to ``size`` worker processes that run the same function."""

    def __init__(self, function: Work[Any, Any], size: int) -> None:
        self._function, self._size, self._threads = function, size, max(1, count_cores() // size)
        self.workers: list[_Worker] = []

    def find_idle_worker(self) -> _Worker | None:
        """Return a worker without a task, or None if all workers are busy.

        A new worker is started if all are busy and fewer than ``size`` exist.
        """
        found = next((worker for worker in self.workers if worker.task is None), None)
        if found is None and len(self.workers) < self._size:
            found = _Worker(self._function, self._threads)
            self.workers.append(found)
        return found

    def list_busy_workers(self) -> dict[Connection, _Worker]:
        """Return the workers that have a task, keyed by the pipe to each worker."""
        return {worker.pipe: worker for worker in self.workers if worker.task is not None}

    def remove_worker(self, worker: _Worker) -> None:
        """Remove a worker whose process has ended from the pool."""
        self.workers.remove(worker)
        worker.stop()


def _supervise_workers(
    pool: _WorkerPool, tasks: list[_Task[Item]], progress: Report
) -> Iterator[tuple[Item, Any | CrashedItem]]:
    waiting, in_order = collections.deque(tasks), collections.deque(tasks)
    while in_order:
        while waiting and (worker := pool.find_idle_worker()) is not None:
            worker.start_task(waiting.popleft())
        busy = pool.list_busy_workers()
        for pipe in wait(list(busy)):
            _process_message(pool, busy[pipe], waiting, progress)  # pyright: ignore[reportArgumentType]
        while in_order and in_order[0].outcome is not None:
            yield _unpack_outcome(in_order.popleft())


def _process_message(
    pool: _WorkerPool, worker: _Worker, waiting: collections.deque[_Task[Item]], progress: Report
) -> None:
    """Read one message of a worker, store it in the worker or its task, and repeat the task if the worker crashed.

    Args:
        pool: Pool of the worker.
        worker: Worker that has sent a message or ended.
        waiting: Queue of tasks without a worker; a task to repeat is added at its front.
        progress: Function that receives reported progress values.
    """
    kind, value = worker.read_message()
    task = worker.task
    if task is None:
        return
    if kind == "report":
        worker.reported = value
        progress(value)
        return
    worker.task = None
    if kind != "ended":
        task.outcome = (kind, value)
        return
    pool.remove_worker(worker)
    task.crashes += 1
    if task.crashes < MAX_CRASHES:
        waiting.appendleft(task)
    else:
        task.outcome = ("lost", CrashedItem(crash=value, reported=worker.reported))


def _unpack_outcome(task: _Task[Item]) -> tuple[Item, Any]:
    kind, value = task.outcome or ("lost", None)
    if isinstance(value, Exception) and kind == "raised":
        raise value
    return task.item, value


def _describe_exit(code: int | None) -> str:
    """Describe how a process ended, from its exit code (negative for a signal)."""
    if code is None or code >= 0:
        return f"ended with code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else "unknown"
    memory = "; the system does this to a process that uses too much memory" if -code == signal.SIGKILL else ""
    return f"was ended by signal {-code} ({name}{memory})"


def _run_worker(function: Work[Any, Any], pipe: Connection, threads: int) -> None:
    """Process one item after another in a worker process until the pipe closes.

    Args:
        function: Function to apply to every item.
        pipe: Connection that delivers items and receives progress values and results.
        threads: Largest number of threads of a library.
    """
    initialize_worker(str(threads))
    while True:
        try:
            item = pipe.recv()
        except EOFError:
            return
        try:
            answer = ("done", function(item, lambda value: pipe.send(("report", value))))
        except Exception as error:  # noqa: BLE001 - sent to the parent process, which raises it
            answer = ("raised", error)
        try:
            pipe.send(answer)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            pipe.send(("raised", TwinloopError(f"{answer[1]!r} cannot be sent back: {error}")))
