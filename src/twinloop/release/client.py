"""A policy on another machine, as something that decides here: http://HOST:PORT or, kept open, ws://HOST:PORT."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import SplitResult, urlsplit

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import Contract
from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.release.running_policy import Array, Observation
from twinloop.release.serve_wire import (
    LARGEST_MESSAGE,
    PROTOCOL,
    SENT,
    Message,
    WireError,
    decode,
    encode,
    observation_shapes,
)

SCHEMES = ("http", "https", "ws", "wss")
TOKEN = "TWINLOOP_TOKEN"  # noqa: S105 - the name of the variable that holds it
TIMEOUT_S = 5.0  # of a connection or an answer; the envelope holds the robot long before
_JSON_BYTES = 2**20


class PolicyServerError(InputError):
    """A policy server that cannot be reached, was lost, refused, or answered what is no answer."""


def is_address(reference: str) -> bool:
    """Whether a policy's reference is a server's address."""
    return reference.partition("://")[0] in SCHEMES and "://" in reference


class PolicyClient:
    """See `running_policy.Decider`. Connecting asks the server for the policy's contract.

    Args:
        address: ``http://HOST:PORT`` or ``ws://HOST:PORT``, or with TLS ``https``, ``wss``.
        token: what the server asks for; by default what the variable ``TWINLOOP_TOKEN`` holds.
        timeout_s: of a connection or an answer.

    Raises:
        PolicyServerError: nobody answers there, or refuses, or speaks another protocol.
        MissingDependencyError: a WebSocket is asked for, and the package is not installed.
    """

    def __init__(self, address: str, *, token: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._place = _parsed(address)
        self._address, self._timeout = address, timeout_s
        given = token or os.environ.get(TOKEN)
        self._headers = {"Authorization": f"Bearer {given}"} if given else {}
        self._line: _Line | None = None
        self._sent: Array | None = None
        with _Http(self._place, self._headers, timeout_s) as asked:
            said = asked.ask("GET", "/v1/policy")
        try:
            if said["protocol"] != PROTOCOL:
                raise PolicyServerError(
                    f"{address} speaks protocol {said['protocol']!r}, this is {PROTOCOL}. Use the same version."
                )
            self.name, self.hash = str(said["policy"]), str(said["hash"])
            self.contract = Contract.from_json(said["contract"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PolicyServerError(
                f"{address} answers, and is no policy server: what it says of its policy cannot be read "
                f"({type(error).__name__}: {error})."
            ) from error
        self._keys = tuple(observation_shapes(self.contract))

    def restart(self, episode: int) -> None:  # noqa: ARG002  # the server draws nothing by episode
        """See `running_policy.Decider`; connects where there is no connection any more."""
        try:
            self._sent = None
            if self._line is not None:
                self._line.exchange(Message(kind="restart"))
                return
        except PolicyServerError:
            self.close()
        self._line = self._connected()

    def act(self, observation: Observation) -> Array:
        """See `running_policy.Decider`.

        Raises:
            PolicyServerError: the connection was lost, or the answer is none.
        """
        if self._line is None:
            self._line = self._connected()
        arrays = {key: _travelling(observation[key]) for key in self._keys if key in observation}
        if self._sent is not None:
            arrays[SENT], self._sent = _travelling(self._sent), None
        answer = self._line.exchange(Message(kind="act", arrays=arrays))
        command = answer.arrays.get("action")
        if answer.kind != "action" or command is None or command.dtype == np.uint8:
            raise PolicyServerError(f"{self._address} answered an observation with {answer.kind}, and no command.")
        return np.array(command, dtype=np.float64)

    def sent(self, command: Array) -> None:
        """See `running_policy.Decider`; goes along with the next observation."""
        self._sent = command

    def close(self) -> None:
        """Hang up."""
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def _connected(self) -> _Line:
        if self._place.scheme.startswith("ws"):
            return _Socket(self._place, self._headers, self._timeout)
        return _Session(_Http(self._place, self._headers, self._timeout))


class _Line(Protocol):
    """A session with a server."""

    def exchange(self, message: Message) -> Message:
        """Send a message, and take its answer."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class _Http:
    """One connection that is kept open."""

    def __init__(self, place: SplitResult, headers: Mapping[str, str], timeout_s: float) -> None:
        secure = place.scheme in ("https", "wss")
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self.address = place.geturl()
        self._connection = kind(place.hostname or "", place.port, timeout=timeout_s)
        self._headers = dict(headers)

    def ask(self, method: str, path: str) -> Any:
        """The JSON that an address answers with."""
        data = self.exchange(method, path, b"", limit=_JSON_BYTES)
        try:
            return json.loads(data)
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PolicyServerError(f"{self.address}{path} answered with what is no JSON: no policy server.") from error

    def exchange(self, method: str, path: str, body: bytes, *, limit: int) -> bytes:
        """Send a request and read the answer."""
        kind = {"Content-Type": "application/octet-stream"} if body else {}
        try:
            self._connection.request(method, path, body or None, {**self._headers, **kind})
            response = self._connection.getresponse()
            data = response.read(limit + 1)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise PolicyServerError(_lost(self.address, error)) from error
        if response.length and len(data) <= limit:
            self.close()
            raise PolicyServerError(_lost(self.address, EOFError(f"{response.length} bytes of the answer are missing")))
        if len(data) > limit:
            self.close()
            raise PolicyServerError(f"{self.address} answered with more than {limit} bytes.")
        if response.status != 200:
            raise PolicyServerError(f"{self.address} refused ({response.status}): {_reason(data)}")
        return data

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> _Http:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Session:
    """A session over HTTP."""

    def __init__(self, connection: _Http) -> None:
        self._http = connection
        said = connection.ask("POST", "/v1/sessions")
        name = said.get("session") if isinstance(said, dict) else None
        if not isinstance(name, str) or not name.isalnum():
            raise PolicyServerError(f"{connection.address} gave no session: no policy server.")
        self._path = f"/v1/sessions/{name}"

    def exchange(self, message: Message) -> Message:
        data = self._http.exchange("POST", self._path, encode(message), limit=LARGEST_MESSAGE)
        return _understood(data, self._http.address)

    def close(self) -> None:
        try:
            self._http.exchange("DELETE", self._path, b"", limit=_JSON_BYTES)
        except PolicyServerError:
            return  # the server is gone, and the session with it
        finally:
            self._http.close()


class _Socket:
    """A session over a WebSocket."""

    def __init__(self, place: SplitResult, headers: Mapping[str, str], timeout_s: float) -> None:
        try:
            from websockets.exceptions import WebSocketException  # pyright: ignore[reportMissingImports]
            from websockets.sync.client import connect  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise MissingDependencyError(
                "ws:// needs the package websockets; http:// needs nothing.", remedy="pip install 'twinloop[serve]'"
            ) from error
        self._address, self._timeout, self._broken = place.geturl(), timeout_s, (OSError, WebSocketException)
        self._held = contextlib.ExitStack()
        try:
            self._socket = self._held.enter_context(
                connect(
                    f"{place.geturl()}/v1/stream",
                    additional_headers=dict(headers),
                    open_timeout=timeout_s,
                    close_timeout=1.0,
                    max_size=LARGEST_MESSAGE,
                    compression=None,
                    proxy=None,
                )
            )
        except self._broken as error:
            raise PolicyServerError(_lost(self._address, error)) from error

    def exchange(self, message: Message) -> Message:
        try:
            self._socket.send(encode(message))
            data = self._socket.recv(timeout=self._timeout)
        except self._broken as error:
            self.close()
            raise PolicyServerError(_lost(self._address, error)) from error
        if isinstance(data, str):
            raise PolicyServerError(f"{self._address} answered with text: no policy server.")
        return _understood(data, self._address)

    def close(self) -> None:
        self._held.close()


def _parsed(address: str) -> SplitResult:
    place = urlsplit(address)
    try:
        port = place.port
    except ValueError:
        port = None
    if place.scheme not in SCHEMES or not place.hostname or port is None or place.path.strip("/") or place.query:
        raise InputError(
            f"{address!r} is no address of a policy server. Write it as {SCHEMES[0]}://HOST:PORT or ws://HOST:PORT."
        )
    return place._replace(path="")


def _travelling(values: NDArray[Any]) -> NDArray[Any]:
    """An array of a type that goes over the wire."""
    array = np.asarray(values)
    return array if array.dtype in (np.uint8, np.float32) else array.astype(np.float64)


def _understood(data: bytes, address: str) -> Message:
    try:
        message = decode(data)
    except WireError as error:
        raise PolicyServerError(f"{address} answered with what is no answer: {error}") from error
    if message.kind == "error":
        raise PolicyServerError(f"{address} refused: {message.message}")
    return message


def _lost(address: str, error: Exception) -> str:
    return (
        f"The policy server at {address} cannot be reached, or was lost ({type(error).__name__}: {error}). Is it "
        "running (`twinloop serve`), and is the token right?"
    )


def _reason(data: bytes) -> str:
    """What a refusal says."""
    try:
        said = json.loads(data)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        return "it says no more"
    if not isinstance(said, dict):
        return "it says no more"
    return str(said.get("message") or said.get("detail") or "it says no more")[:2000]
