"""Work on local processes, results in order, nothing left behind; and on ones that may die and are replaced.

For work that calls libraries which end the process when something is wrong, as renderers do. `pool` is for work that
does not: there a death ends the run.
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

    def __enter__(self) -> WorkEngine: ...

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
        """See `WorkEngine`."""
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


Report = Callable[[Any], None]
Work = Callable[[Item, Report], Result]

# Processes that one item may crash before it is given up as a `LostItem`: one crash may come from a busy machine, an
# item that crashes two processes will crash the next one too.
TRIES = 2


@dataclass(frozen=True, kw_only=True)
class LostItem:
    """An item that ended its process each time: how the last one ended, and what it had reported last (or None)."""

    how: str
    reported: Any


def lasting_map(
    function: Work[Item, Result],
    items: Iterable[Item],
    *,
    workers: int,
    progress: Report | None = None,
) -> Iterator[tuple[Item, Result | LostItem]]:
    """Yield every item with ``function(item, report)`` in order, whoever was faster and whoever died.

    Args:
        function: picklable; ``report`` takes what it wants to say on the way, of which the last is kept.
        items: all of them are worked on, however far behind the one is that is yielded next: results should be small.
        workers: processes; 0 works in this one, which then dies with what is wrong.
        progress: called here with every report.

    Raises:
        TwinloopError: or whatever else the function raised, when it is the item's turn.
    """
    tell: Report = progress or (lambda _: None)
    if not workers:
        for item in items:
            yield item, function(item, tell)
        return
    crew = _WorkerPool(function, workers)
    try:
        yield from _supervised(crew, [_Task(item=item) for item in items], tell)
    finally:
        for worker in crew.workers:
            worker.stop()


@dataclass(kw_only=True)
class _Task(Generic[Item]):
    item: Item
    deaths: int = 0
    outcome: tuple[str, Any] | None = None  # how it went, and what came of it


class _Worker:
    """One process and the pipe to it; ``task`` is what it works on."""

    def __init__(self, function: Work[Any, Any], threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.task: _Task[Any] | None = None
        self.reported: Any = None
        self.process = context.Process(target=_serve, args=(function, theirs, threads), daemon=True)
        self.process.start()
        theirs.close()  # so that the end of the process is the end of the pipe

    def begin(self, task: _Task[Any]) -> None:
        self.task, self.reported = task, None
        try:
            self.pipe.send(task.item)
        except OSError:
            return  # it has died before: the pipe says so to who waits

    def message(self) -> tuple[str, Any]:
        """What it says next; that it ended, when it did."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            return "ended", _how(self.process.exitcode)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


class _WorkerPool:
    """As many workers as are wanted at a time, made anew where one has died."""

    def __init__(self, function: Work[Any, Any], size: int) -> None:
        self._function, self._size, self._threads = function, size, max(1, cores() // size)
        self.workers: list[_Worker] = []

    def idle(self) -> _Worker | None:
        """Somebody without work, engaged where there is room."""
        found = next((worker for worker in self.workers if worker.task is None), None)
        if found is None and len(self.workers) < self._size:
            found = _Worker(self._function, self._threads)
            self.workers.append(found)
        return found

    def busy(self) -> dict[Connection, _Worker]:
        """Those with work, by the pipes to wait at."""
        return {worker.pipe: worker for worker in self.workers if worker.task is not None}

    def dismiss(self, worker: _Worker) -> None:
        """Forget somebody who died."""
        self.workers.remove(worker)
        worker.stop()


def _supervised(crew: _WorkerPool, tasks: list[_Task[Item]], progress: Report) -> Iterator[tuple[Item, Any | LostItem]]:
    waiting, following = collections.deque(tasks), collections.deque(tasks)
    while following:
        while waiting and (worker := crew.idle()) is not None:
            worker.begin(waiting.popleft())
        busy = crew.busy()
        for pipe in wait(list(busy)):
            _hear(crew, busy[pipe], waiting, progress)  # pyright: ignore[reportArgumentType]
        while following and following[0].outcome is not None:
            yield _outcome(following.popleft())


def _hear(crew: _WorkerPool, worker: _Worker, waiting: collections.deque[_Task[Item]], progress: Report) -> None:
    """Take one message of a worker."""
    kind, value = worker.message()
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
    crew.dismiss(worker)
    task.deaths += 1
    if task.deaths < TRIES:
        waiting.appendleft(task)
    else:
        task.outcome = ("lost", LostItem(how=value, reported=worker.reported))


def _outcome(task: _Task[Item]) -> tuple[Item, Any]:
    kind, value = task.outcome or ("lost", None)
    if isinstance(value, Exception) and kind == "raised":
        raise value
    return task.item, value


def _how(code: int | None) -> str:
    """How a process ended, for people."""
    if code is None or code >= 0:
        return f"ended with code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else "unknown"
    memory = "; the system kills so what takes too much memory" if -code == signal.SIGKILL else ""
    return f"was ended by signal {-code} ({name}{memory})"


def _serve(function: Work[Any, Any], pipe: Connection, threads: int) -> None:
    """What a worker does: one item after another, until the pipe ends."""
    begin_worker(str(threads))
    while True:
        try:
            item = pipe.recv()
        except EOFError:
            return
        try:
            answer = ("done", function(item, lambda value: pipe.send(("report", value))))
        except Exception as error:  # noqa: BLE001 - carried to who asked, where it is raised
            answer = ("raised", error)
        try:
            pipe.send(answer)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            pipe.send(("raised", TwinloopError(f"{answer[1]!r} cannot be handed back: {error}")))
