"""Run work in local processes with results in order, with or without replacement of processes that crash.

`map_crash_tolerant` is for work that calls libraries which may end the process on an error, such as renderers.
`LocalProcesses` is for other work: there a crash ends the run.
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
    """Place where items are processed; a context manager that releases its resources.

    ``workers`` items are processed at a time, each with ``threads`` cores; ``elsewhere`` is true if this happens in
    other processes.
    """

    workers: int
    threads: int
    elsewhere: bool

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
        """Yield every item with ``function(item)``, in the order of the items; may be called again.

        Args:
            function: picklable.
            items: read as needed, at most ``workers + 1`` ahead of the yielded ones.

        Raises:
            TwinloopError: the function's error, or a lost worker; items yielded before are complete.
        """
        ...

    def __enter__(self) -> WorkEngine: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalProcesses:
    """Worker processes on this machine, started at the first `map` without inherited state.

    With one worker everything runs in this process. Each process gets an equal share of the cores for libraries that
    start threads.
    """

    def __init__(self, workers: int) -> None:
        self.workers = max(1, workers)
        self.threads = max(1, count_cores() // self.workers)
        self.elsewhere = self.workers > 1
        self._pool: ProcessPoolExecutor | None = None

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
        """Yield every item with its result, in order; with one worker, everything runs in this process."""
        if not self.elsewhere:
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
    """Set up a worker: ignore Ctrl-C, end with the parent, and limit libraries to ``threads`` threads."""
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

# Crashes of one item before it becomes a `LostItem`: one crash may come from a busy machine, but an
# item that crashes two processes will crash the next one too.
TRIES = 2


@dataclass(frozen=True, kw_only=True)
class LostItem:
    """An item that crashed every process: a description of the last crash, and its last report (or None)."""

    how: str
    reported: Any


def map_crash_tolerant(
    function: Work[Item, Result],
    items: Iterable[Item],
    *,
    workers: int,
    progress: Report | None = None,
) -> Iterator[tuple[Item, Result | LostItem]]:
    """Yield every item with ``function(item, report)`` in order; a process that crashes is replaced.

    Args:
        function: picklable; it may call ``report`` with its progress, of which the last value is kept.
        items: all are processed without waiting for the consumer, so results should be small.
        workers: number of processes; 0 works in this process, which ends if the work crashes.
        progress: called in this process with every report.

    Raises:
        TwinloopError: or any other error of the function, when its item is next.
    """
    tell: Report = progress or (lambda _: None)
    if not workers:
        for item in items:
            yield item, function(item, tell)
        return
    crew = _WorkerPool(function, workers)
    try:
        yield from _supervise_workers(crew, [_Task(item=item) for item in items], tell)
    finally:
        for worker in crew.workers:
            worker.stop()


@dataclass(kw_only=True)
class _Task(Generic[Item]):
    item: Item
    deaths: int = 0
    outcome: tuple[str, Any] | None = None  # kind of the outcome, and the result or error


class _Worker:
    """One process and the pipe to it; ``task`` is its current task."""

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
        """Return the next message of the process; after its end, ``("ended", description)``."""
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
    """Up to ``size`` workers; a worker that crashed is replaced."""

    def __init__(self, function: Work[Any, Any], size: int) -> None:
        self._function, self._size, self._threads = function, size, max(1, count_cores() // size)
        self.workers: list[_Worker] = []

    def find_idle_worker(self) -> _Worker | None:
        """Return a worker without a task, started if there are fewer than ``size``; None if all are busy."""
        found = next((worker for worker in self.workers if worker.task is None), None)
        if found is None and len(self.workers) < self._size:
            found = _Worker(self._function, self._threads)
            self.workers.append(found)
        return found

    def list_busy_workers(self) -> dict[Connection, _Worker]:
        """Return the workers with a task, by their pipes."""
        return {worker.pipe: worker for worker in self.workers if worker.task is not None}

    def remove_worker(self, worker: _Worker) -> None:
        """Remove a worker that has ended."""
        self.workers.remove(worker)
        worker.stop()


def _supervise_workers(
    crew: _WorkerPool, tasks: list[_Task[Item]], progress: Report
) -> Iterator[tuple[Item, Any | LostItem]]:
    waiting, following = collections.deque(tasks), collections.deque(tasks)
    while following:
        while waiting and (worker := crew.find_idle_worker()) is not None:
            worker.start_task(waiting.popleft())
        busy = crew.list_busy_workers()
        for pipe in wait(list(busy)):
            _process_message(crew, busy[pipe], waiting, progress)  # pyright: ignore[reportArgumentType]
        while following and following[0].outcome is not None:
            yield _unpack_outcome(following.popleft())


def _process_message(
    crew: _WorkerPool, worker: _Worker, waiting: collections.deque[_Task[Item]], progress: Report
) -> None:
    """Process one message of a worker."""
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
    crew.remove_worker(worker)
    task.deaths += 1
    if task.deaths < TRIES:
        waiting.appendleft(task)
    else:
        task.outcome = ("lost", LostItem(how=value, reported=worker.reported))


def _unpack_outcome(task: _Task[Item]) -> tuple[Item, Any]:
    kind, value = task.outcome or ("lost", None)
    if isinstance(value, Exception) and kind == "raised":
        raise value
    return task.item, value


def _describe_exit(code: int | None) -> str:
    """Describe how a process ended."""
    if code is None or code >= 0:
        return f"ended with code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else "unknown"
    memory = "; the system does this to a process that uses too much memory" if -code == signal.SIGKILL else ""
    return f"was ended by signal {-code} ({name}{memory})"


def _run_worker(function: Work[Any, Any], pipe: Connection, threads: int) -> None:
    """Run a worker: process one item after another, until the pipe closes."""
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
