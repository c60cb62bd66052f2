"""Manage the sessions of a policy server: each client has a separate policy memory and one request at a time."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import Contract
from twinloop.core.errors import InputError, TwinloopError
from twinloop.core.extension import describe_error
from twinloop.release.running_policy import Decider, Observation
from twinloop.release.serve_wire import SENT, check_observation
from twinloop.release.serve_worker import LIMITS, BusyError

MOST_SESSIONS = 16  # robots on one server; our choice
_TOKEN_BYTES = 16  # 128 random bits: the name of another client's session cannot be guessed
_LONGEST_REASON = 300  # characters of a policy's error
_log = logging.getLogger(__name__)


class NoSessionError(InputError):
    """Error for a session that does not exist, or no longer exists."""


class FullError(TwinloopError):
    """Error for a server that has reached its largest number of clients."""


class PolicyFailedError(TwinloopError):
    """Error for a policy that raised an error or gave no valid command."""


class Session:
    """Session of one client, with a separate copy of the policy's memory.

    `Sessions.claim` gives a session to one request at a time.
    """

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self.decider: Decider | None = None
        self.used = time.monotonic()
        self.heard = self.busy = False

    def restart(self, episode: int = 0) -> None:
        """Start a new episode: clear the policy's memory.

        Args:
            episode: number of the episode, on which the policy's random draws depend.

        Raises:
            PolicyFailedError: If the policy raised an error.
        """
        _call_policy(lambda: self._started_decider.restart(episode))

    def act(self, observation: Observation) -> NDArray[np.float64]:
        """Return the next command for k joints, shape ``(k,)``, in the contract's units.

        Raises:
            WireError: If the observation does not fit the policy's contract.
            PolicyFailedError: If the policy raised an error, or its command is not finite or has a wrong shape.
        """
        check_observation(observation, self._contract)
        command = _call_policy(lambda: self._compute_command(observation))
        wanted = (len(self._contract.action.names),)
        if command.shape != wanted:
            raise PolicyFailedError(f"The policy gave a command of shape {command.shape} instead of {wanted}.")
        if not np.isfinite(command).all():
            joint = self._contract.action.names[int(np.argmin(np.isfinite(command)))]
            raise PolicyFailedError(f"The policy gave a command that is not a number, for {joint}.")
        return command

    @property
    def _started_decider(self) -> Decider:
        assert self.decider is not None  # noqa: S101 - Sessions.begin made it
        return self.decider

    def _compute_command(self, observation: Observation) -> NDArray[np.float64]:
        if SENT in observation:
            self._started_decider.report_sent(np.asarray(observation[SENT], dtype=np.float64))
        return np.asarray(self._started_decider.act(observation), dtype=np.float64)


class Sessions:
    """All sessions of a server. Its methods may be called from any thread.

    Args:
        make: function that returns a separate source of commands for every session; all share one network.
        most: largest number of sessions at a time.
        idle_s: time in s without a message after which a session may be replaced by a new one.
        first_s: time in s after which a session that has sent no message yet may be replaced.
    """

    def __init__(
        self,
        make: Callable[[], Decider],
        *,
        most: int = MOST_SESSIONS,
        idle_s: float = LIMITS.idle_s,
        first_s: float = LIMITS.first_s,
    ) -> None:
        self._make, self._most = make, most
        self._idle_s, self._first_s = idle_s, min(first_s, idle_s)
        self._open: dict[str, Session] = {}
        self._lock = threading.Lock()
        self.answered = 0
        first = make()
        self.name, self.hash, self.contract = first.name, first.hash, first.contract
        self._spare: Decider | None = first

    def __len__(self) -> int:
        return len(self._open)

    def count_unused(self, names: set[str]) -> int:
        """Return the number of sessions with these names that have sent no message.

        The names of closed sessions are removed from ``names`` in place.
        """
        with self._lock:
            names &= set(self._open)
            return sum(not self._open[name].heard for name in names)

    def open(self) -> str:
        """Open a session, start an episode, and return the name of the session.

        Raises:
            FullError: If the largest number of sessions is reached, and none has been idle for too long.
            PolicyFailedError: If the policy raised an error.
        """
        name = self.reserve()
        try:
            self.begin(name)
        except BaseException:
            self.close(name)
            raise
        return name

    def reserve(self) -> str:
        """Add a session that has no policy yet, and return its random name.

        Raises:
            FullError: If the largest number of sessions is reached, and none has been idle for too long.
        """
        with self._lock:
            if len(self._open) >= self._most:
                self._make_room()
            name = secrets.token_hex(_TOKEN_BYTES)
            self._open[name] = Session(self.contract)
        return name

    def begin(self, name: str) -> None:
        """Give a reserved session its copy of the policy, and start an episode; this may take long.

        Raises:
            NoSessionError: If the session was closed in the meantime.
            PolicyFailedError: If the policy raised an error.
        """
        with self._lock:
            session, spare = self._find(name), self._spare
            self._spare = None
        session.decider = spare or _call_policy(self._make)
        session.restart()

    def close(self, name: str) -> None:
        """Remove the session with this name, if it exists."""
        with self._lock:
            self._open.pop(name, None)

    def close_unused(self, name: str, since: float) -> None:
        """Remove a session, unless a request has used it after the time ``since`` of `time.monotonic`."""
        with self._lock:
            session = self._open.get(name)
            if session is not None and session.used <= since:
                del self._open[name]

    @contextlib.contextmanager
    def claim(self, name: str) -> Iterator[Session]:
        """Reserve a session for one request, as a context manager.

        Two requests therefore never use the memory of one policy at the same time.

        Raises:
            NoSessionError: If no session has this name.
            BusyError: If an earlier request of this session is not answered yet.
        """
        with self._lock:
            session = self._find(name)
            if session.busy:
                raise BusyError("The session has not finished an earlier request. Wait for its answer.")
            session.busy = session.heard = True
            session.used = time.monotonic()
        try:
            yield session
        finally:
            session.busy, session.used = False, time.monotonic()

    def act(self, name: str, observation: Observation) -> NDArray[np.float64]:
        """Return the next command of a session for k joints, shape ``(k,)``.

        It raises the errors of `claim` and `Session.act`.
        """
        with self.claim(name) as session:
            return session.act(observation)

    def _find(self, name: str) -> Session:
        session = self._open.get(name)
        if session is None:
            raise NoSessionError(
                "There is no such session: the server was restarted, or ended it after a long silence. Open a new one."
            )
        return session

    def _make_room(self) -> None:
        """Remove the session that has exceeded its idle time by most.

        Raises:
            FullError: If no session has exceeded its idle time.
        """
        now = time.monotonic()
        late = {name: now - session.used - self._get_idle_limit(session) for name, session in self._open.items()}
        name = max(late, key=lambda name: late[name])
        if late[name] < 0.0:
            raise FullError(
                f"{self._most} clients are served already, and none has been silent for {self._idle_s:g} s. "
                "Close one, or allow more with --sessions."
            )
        del self._open[name]

    def _get_idle_limit(self, session: Session) -> float:
        """Return the time in s for which a session may send nothing; it is infinite while a request is running."""
        if session.busy:
            return float("inf")
        return self._idle_s if session.heard else self._first_s


def _call_policy(call: Callable[[], Any]) -> Any:
    """Call a function of the policy and return its result; errors are raised as `PolicyFailedError`.

    The client gets type and message of an error. The position in the source code is written only to the server's log.
    """
    try:
        return call()
    except InputError:
        raise
    except BaseException as error:  # even SystemExit: no error of a policy may stop the server
        _log.error("the policy failed: %s", describe_error(error))
        message = " ".join(str(error).split())[:_LONGEST_REASON]
        raise PolicyFailedError(f"The policy failed: {type(error).__name__}: {message}.") from error
