"""Run a policy's calls in turn in a thread of their own, within the limits of a server."""

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
    """Limits of a policy server. Each default has its reason; tests use shorter times.

    Attributes:
        header_s: time for the headers of a request. They fit into one or two packets.
        body_s: time for a request's body, or for one WebSocket message. 64 MiB take 5.4 s at 100 Mbit/s.
        write_s: time in which a client must read what was sent to it.
        rest_s: time that a connection without a session may stay open between requests.
        first_s: time within which a new session must send its first message. A robot sends it at once.
        idle_s: time without a message after which a session may be given to another client. A person resets a scene
            in less.
        gone_s: time for which a session over HTTP outlives its connection. A client that reconnects does so at once.
        policy_s: time for the policy to answer; a policy may compile or load something when an episode begins.
        stop_s: time for which a server that was asked to stop waits for answers under way, in whole seconds.
        linger_s: time for a refused client to read why it was refused.
        connections: open connections. A robot needs one; 128 file descriptors fit into every system's limit.
        connections_per_address: the same of one network address, so that no single machine takes all of them.
        sessions_per_connection: sessions that one connection may open and not use, so that no single client takes all
            of them. Through a proxy, several robots may share a connection.
        header_bytes: bytes of a request's line and headers. Ours take less than 1 KiB.
        stuck_threads: policy calls that never return, before the server refuses to call the policy again. Each costs a
            thread.
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
    """A server, or a session, that is still at work on an earlier request."""


class PolicyStuckError(TwinloopError):
    """A policy that did not return in time."""


class _Job:
    """One call; ``outcome`` becomes its value and what it raised."""

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
        except BaseException as error:  # noqa: BLE001  # whatever a policy raises, the server goes on
            outcome = None, error
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server has stopped
            self.loop.call_soon_threadsafe(self._settle, outcome)

    def _settle(self, outcome: tuple[Any, BaseException | None]) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)


class PolicyThread:
    """One daemon thread that runs calls in turn.

    A thread cannot be stopped from outside. A call that takes longer than ``limit_s`` is therefore left behind together
    with its thread, and a new thread goes on with the calls that wait. The thread is a daemon, so that a call that
    never returns does not keep the process alive.

    Args:
        limit_s: time for a call to begin, and again to return.
        most_stuck: calls that may be left behind; after that no call is begun any more.
    """

    def __init__(self, *, limit_s: float, most_stuck: int) -> None:
        self._limit_s, self._most_stuck = limit_s, most_stuck
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._stuck = 0
        self._current: threading.Thread | None = None

    async def run(self, call: Callable[[], Any]) -> Any:
        """Return what a call returns, or raise what it raises.

        Raises:
            BusyError: other calls took all the time.
            PolicyStuckError: the call did not return in time, or too many calls before did not.
        """
        self._ensure_thread()
        job = _Job(call)
        self._jobs.put(job)
        try:
            if not await self._settled(job):
                raise self._give_up(job)
        finally:
            job.abandoned = True
        value, error = job.outcome.result()
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """End the thread after the calls that wait."""
        self._jobs.put(None)

    async def _settled(self, job: _Job) -> bool:
        """Wait for a job; False where its time is over."""
        deadline = time.monotonic() + self._limit_s
        while True:
            await asyncio.wait([job.outcome], timeout=max(deadline - time.monotonic(), 0.0))
            if job.outcome.done():
                return True
            began, now = job.began, time.monotonic()
            if began is None or now >= began + self._limit_s:
                return False
            deadline = began + self._limit_s

    def _give_up(self, job: _Job) -> TwinloopError:
        if job.began is None:
            return BusyError(f"The policy answered others for {self._limit_s:g} s. Try again, or serve fewer robots.")
        self._stuck += 1
        self._current = None  # its thread ends when the call returns, if ever
        if self._stuck < self._most_stuck:
            self._ensure_thread()
        return PolicyStuckError(f"The policy did not return within {self._limit_s:g} s. Begin a new episode.")

    def _ensure_thread(self) -> None:
        if self._current is not None:
            return
        if self._stuck >= self._most_stuck:
            raise PolicyStuckError(
                f"The policy did not return {self._stuck} times, and is not called again. Restart the server."
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
