"""Sessions of a policy server: each client acts with a memory of its own, and one at a time with the network."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import Contract
from twinloop.core.errors import InputError, TwinloopError
from twinloop.core.extension import raised
from twinloop.release.running_policy import Decider, Observation
from twinloop.release.serve_wire import SENT, check_observation

IDLE_S = 600.0  # after which a session may make room for another; a person resets a scene in less
MOST_SESSIONS = 16  # robots on one server; our choice
_TOKEN_BYTES = 16


class NoSessionError(InputError):
    """A session that does not exist, or no longer."""


class FullError(TwinloopError):
    """A server that serves as many clients as it may."""


class PolicyFailedError(TwinloopError):
    """A policy that raised, or gave no command."""


@dataclass
class _Session:
    decider: Decider
    used: float
    lock: threading.Lock = field(default_factory=threading.Lock)


class Sessions:
    """What a server knows of its clients.

    Args:
        make: gives a decider of its own to every session; all share one network.
        most: sessions at a time.
        idle_s: after this long without a word, a session gives its place to a new one.
    """

    def __init__(self, make: Callable[[], Decider], *, most: int = MOST_SESSIONS, idle_s: float = IDLE_S) -> None:
        self._make, self._most, self._idle_s = make, most, idle_s
        self._open: dict[str, _Session] = {}
        self._lock, self._network = threading.Lock(), threading.Lock()
        self.answered = 0
        first = make()
        self.name, self.hash, self.contract = first.name, first.hash, first.contract
        self._spare: Decider | None = first

    @property
    def contract_json(self) -> dict[str, Any]:
        """The policy's contract in plain values."""
        contract: Contract = self.contract
        return contract.to_json()

    def __len__(self) -> int:
        return len(self._open)

    def open(self) -> str:
        """A new session; returns its name, which nobody can guess.

        Raises:
            FullError: every place is taken by a client that was heard of lately.
        """
        with self._lock:
            if len(self._open) >= self._most:
                name, oldest = min(self._open.items(), key=lambda item: item[1].used)
                if time.monotonic() - oldest.used < self._idle_s:
                    raise FullError(
                        f"{self._most} clients are served already, and none has been silent for {self._idle_s:g} s. "
                        "Close one, or serve more: --sessions."
                    )
                del self._open[name]
            decider, self._spare = self._spare or self._make(), None
            name = secrets.token_hex(_TOKEN_BYTES)
            self._open[name] = _Session(decider=decider, used=time.monotonic())
        self.restart(name)
        return name

    def close(self, name: str) -> None:
        """End a session, if there is one."""
        with self._lock:
            self._open.pop(name, None)

    def restart(self, name: str, episode: int = 0) -> None:
        """A new episode of a session begins.

        Raises:
            NoSessionError: there is none of that name.
            PolicyFailedError: the policy raised.
        """
        session = self._session(name)
        with session.lock, self._network:
            _tried(lambda: session.decider.restart(episode))

    def act(self, name: str, observation: Observation) -> NDArray[np.float64]:
        """The next command of a session, ``(k,)``.

        Raises:
            NoSessionError: there is none of that name.
            WireError: the observation is not what the policy wants.
            PolicyFailedError: the policy raised, or gave something of another shape.
        """
        session = self._session(name)
        check_observation(observation, self.contract)
        with session.lock, self._network:
            if SENT in observation:
                session.decider.sent(np.asarray(observation[SENT], dtype=np.float64))
            command = np.asarray(_tried(lambda: session.decider.act(observation)), dtype=np.float64)
        self.answered += 1
        wanted = (len(self.contract.action.names),)
        if command.shape != wanted:
            raise PolicyFailedError(f"The policy gave a command of shape {command.shape} where {wanted} belongs.")
        return command

    def _session(self, name: str) -> _Session:
        with self._lock:
            session = self._open.get(name)
            if session is None:
                raise NoSessionError("There is no such session: the server was started again, or gave its place away.")
            session.used = time.monotonic()
            return session


def _tried(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except TwinloopError:
        raise
    except Exception as error:  # whatever a policy raises, the server goes on
        raise PolicyFailedError(f"The policy failed: {raised(error)}.") from error
