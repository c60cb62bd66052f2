"""Call a policy in a separate thread, one call after the other, and define the limits of a policy server."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from twinloop.core.errors import TwinloopError


@dataclass(frozen=True, kw_only=True)
class ServeLimits:
    """Limits of a policy server; tests use shorter times.

    Attributes:
        header_s: longest time in s for the headers of a request to arrive; short, because they fit into one or two
            packets.
        body_s: longest time in s for a request's body, or for one WebSocket message, to arrive. 64 MiB take 5.4 s at
            100 Mbit/s.
        write_s: longest time in s in which a client must read the data sent to it.
        rest_s: longest idle time in s between requests on a connection without a session; after it, the connection is
            closed.
        first_s: time in s within which a new session must send its first message; enough, because a robot sends it at
            once.
        idle_s: time in s without a message after which a session may be replaced by that of another client. It is long,
            because a person may reset a scene in this time.
        gone_s: time in s for which a session over HTTP remains after its connection has ended; short, because a client
            that reconnects does so at once.
        policy_s: longest time in s for the policy to answer; long, because a policy may compile or load something when
            an episode begins.
        stop_s: time in whole seconds for which a server that is being stopped waits for unfinished answers.
        linger_s: time in s for which the connection of a refused client stays open, so that it can read the reason.
        connections: largest number of open connections; 128, because a robot needs one, and 128 file descriptors fit
            into every system's limit.
        connections_per_address: largest number of open connections of one network address, so that one machine cannot
            take all of them.
        sessions_per_connection: largest number of unused sessions that one connection may open, so that one client
            cannot take all sessions. It is above 1, because several robots may share a connection through a proxy.
        header_bytes: largest size in bytes of a request's line and headers. Twinloop's client sends less than 1 KiB.
        stuck_threads: number of policy calls that never returned after which the policy is not called again, because
            each such call occupies a thread.
    """

    header_s: float = 5.0
    body_s: float = 10.0
    write_s: float = 10.0
    rest_s: float = 10.0
    first_s: float = 30.0
    idle_s: float = 600.0
    gone_s: float = 10.0
    policy_s: float = 30.0
    stop_s: int = 5
    linger_s: float = 1.0
    connections: int = 128
    connections_per_address: int = 64
    sessions_per_connection: int = 4
    header_bytes: int = 32 * 2**10
    stuck_threads: int = 4


LIMITS = ServeLimits()


class BusyError(TwinloopError):
    """Error for a request to a server or a session that has not finished an earlier request."""


class PolicyStuckError(TwinloopError):
    """Error for a policy that did not return in time."""


class _Job:
    """One call of the policy by the worker thread; the future ``outcome`` receives the pair (value, error or None)."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[tuple[Any, BaseException | None]] = self.loop.create_future()
        self.began: float | None = None
        self.abandoned = False

    def run(self) -> None:
        self.began = time.monotonic()
        try:
            outcome = self.call(), None
        except BaseException as error:  # noqa: BLE001  # no error of a policy may stop the server
            outcome = None, error
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server has stopped
            self.loop.call_soon_threadsafe(self._set_outcome, outcome)

    def _set_outcome(self, outcome: tuple[Any, BaseException | None]) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)


class PolicyThread:
    """Daemon thread that runs calls of a policy one after the other.

    A thread cannot be stopped from outside. A call that takes longer than ``limit_s`` is therefore abandoned with its
    thread, and a new thread continues with the waiting calls. The thread is a daemon, so that a call that never returns
    does not keep the process alive.

    Args:
        limit_s: longest time in s for a call to wait until it begins, and again to return.
        most_stuck: number of abandoned calls after which no further call is started.
    """

    def __init__(self, *, limit_s: float, most_stuck: int) -> None:
        self._limit_s, self._most_stuck = limit_s, most_stuck
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._stuck = 0
        self._current: threading.Thread | None = None

    async def run(self, call: Callable[[], Any]) -> Any:
        """Run a call in the thread and return its result, or raise its error.

        Raises:
            BusyError: If other calls took so long that this call did not begin in time.
            PolicyStuckError: If the call did not return in time, or too many earlier calls did not.
        """
        self._ensure_thread()
        job = _Job(call)
        self._jobs.put(job)
        try:
            if not await self._wait_for_job(job):
                raise self._abandon_job(job)
        finally:
            job.abandoned = True
        value, error = job.outcome.result()
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """End the thread after it has finished the waiting calls."""
        self._jobs.put(None)

    async def _wait_for_job(self, job: _Job) -> bool:
        """Wait for a job, and return whether it has finished within its time limits."""
        deadline = time.monotonic() + self._limit_s
        while True:
            await asyncio.wait([job.outcome], timeout=max(deadline - time.monotonic(), 0.0))
            if job.outcome.done():
                return True
            began, now = job.began, time.monotonic()
            if began is None or now >= began + self._limit_s:
                return False
            deadline = began + self._limit_s

    def _abandon_job(self, job: _Job) -> TwinloopError:
        if job.began is None:
            return BusyError(
                f"The policy was busy with other clients for {self._limit_s:g} s. Try again, or serve fewer robots."
            )
        self._stuck += 1
        self._current = None  # its thread ends when the call returns, which may be never
        if self._stuck < self._most_stuck:
            self._ensure_thread()
        return PolicyStuckError(f"The policy did not return within {self._limit_s:g} s. Start a new episode.")

    def _ensure_thread(self) -> None:
        if self._current is not None:
            return
        if self._stuck >= self._most_stuck:
            raise PolicyStuckError(
                f"The policy did not return {self._stuck} times and is not called again. Restart the server."
            )
        self._current = threading.Thread(target=self._work, name="served policy", daemon=True)
        self._current.start()

    def _work(self) -> None:
        mine = threading.current_thread()
        while self._current is mine:
            job = self._jobs.get()
            if job is None:
                return
            if not job.abandoned:
                job.run()
