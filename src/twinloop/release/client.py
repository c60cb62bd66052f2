"""Get commands for a robot from a policy server, over HTTP (``http://``) or a permanent WebSocket (``ws://``)."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import SplitResult, urlsplit

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import Contract
from twinloop.core.errors import InputError, TwinloopError
from twinloop.release.client_wire import HttpConnection, WebSocketStream
from twinloop.release.running_policy import Array, Decider, Observation, open_saved
from twinloop.release.serve_wire import (
    PROTOCOL,
    SENT,
    Message,
    WireError,
    decode,
    encode,
    largest_answer,
    observation_shapes,
)

if TYPE_CHECKING:
    from twinloop.release.registry import PolicyRegistry

SCHEMES = ("http", "https", "ws", "wss")
TOKEN = "TWINLOOP_TOKEN"  # noqa: S105 - the name of the variable that holds it
TIMEOUT_S = 5.0  # longest time for a connection or a whole answer; the envelope holds the robot much earlier
_CLOSE_S = 1.0  # longest time to end a session; without an answer, the server ends it later
_JSON_BYTES = 2**20
_LONGEST_TEXT = 500  # characters of a server's message
_SESSION = re.compile(r"[0-9A-Za-z]{1,128}")
_NO_ADDRESS = "is not an address of a policy server. Write it as http://HOST:PORT or ws://HOST:PORT."
_HASH = re.compile(r"[0-9A-Za-z_:-]{1,128}")


class PolicyServerError(InputError):
    """Error for a policy server that cannot be reached, refused a request, or gave an invalid answer."""


def is_address(reference: str) -> bool:
    """Return whether a reference to a policy is the address of a server, such as ``http://HOST:PORT``."""
    return reference.partition("://")[0] in SCHEMES and "://" in reference


class PolicyClient:
    """Client for the policy on a server, with the interface of `running_policy.Decider`.

    The constructor requests name, hash and contract of the policy from the server.

    Args:
        address: ``http://HOST:PORT`` or ``ws://HOST:PORT``, or with TLS ``https`` or ``wss``.
        token: token of the server; by default the value of the environment variable ``TWINLOOP_TOKEN``.
        timeout_s: longest time in s to connect, and longest time for each whole answer, even if its bytes arrive
            slowly.

    Raises:
        InputError: If the address or the token is invalid.
        PolicyServerError: If the server does not answer, refuses the request, or uses another protocol.
        MissingDependencyError: If the address needs WebSocket, and the package is not installed.
    """

    def __init__(self, address: str, *, token: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._place = _parse_address(address)
        self._address, self._timeout = self._place.geturl(), timeout_s
        self._headers = _make_authorization(token or os.environ.get(TOKEN))
        self._line: _ServerSession | None = None
        self._sent: Array | None = None
        with _HttpTransport(self._place, self._headers, timeout_s) as connection:
            facts = connection.request_json("GET", "/v1/policy")
        try:
            if facts["protocol"] != PROTOCOL:
                raise PolicyServerError(
                    f"{self._address} uses protocol {_sanitize_text(facts['protocol'])}, but this client uses "
                    f"{PROTOCOL}. "
                    "Use the same version of twinloop on both sides."
                )
            self.name, self.hash = _sanitize_text(facts["policy"]), _check_hash(facts["hash"])
            self.contract = Contract.from_json(facts["contract"])
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise PolicyServerError(
                f"{self._address} is not a policy server: its answer has no readable description of a policy "
                f"({_sanitize_text(f'{type(error).__name__}: {error}')})."
            ) from error
        self._limit = largest_answer(self.contract)
        self._keys = tuple(observation_shapes(self.contract))

    def restart(self, episode: int) -> None:  # noqa: ARG002  # the server does not use the episode's number
        """Start a new episode on the server; reconnect if the connection was lost.

        The server does not use the number ``episode``.

        Raises:
            PolicyServerError: If the server cannot be reached or refuses.
        """
        try:
            self._sent = None
            if self._line is not None:
                self._line.exchange(Message(kind="restart"))
                return
        except PolicyServerError:
            self.close()
        self._line = self._open_session()

    def act(self, observation: Observation) -> Array:
        """Send an observation and return the server's command for k joints, shape ``(k,)``, in the contract's units.

        Args:
            observation: arrays with LeRobot's names. Arrays that the contract does not contain are not sent.

        Raises:
            PolicyServerError: If the connection was lost, or the answer is invalid.
        """
        if self._line is None:
            self._line = self._open_session()
        arrays = {key: _to_wire_array(observation[key]) for key in self._keys if key in observation}
        if self._sent is not None:
            arrays[SENT], self._sent = _to_wire_array(self._sent), None
        answer = self._line.exchange(Message(kind="act", arrays=arrays))
        command = answer.arrays.get("action")
        if answer.kind != "action" or command is None or command.dtype == np.uint8:
            raise PolicyServerError(
                f"{self._address} answered an observation with {answer.kind} and without a usable command."
            )
        if command.shape != (len(self.contract.action.names),):
            raise PolicyServerError(
                f"{self._address} answered with a command of shape {command.shape} for "
                f"{len(self.contract.action.names)} joints."
            )
        return np.array(command, dtype=np.float64)

    def report_sent(self, command: Array) -> None:
        """Store the command ``(k,)`` that was sent to the robot; the next call of `act` transmits it to the server."""
        self._sent = command

    def close(self) -> None:
        """Close the connection to the server."""
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def _open_session(self) -> _ServerSession:
        if self._place.scheme.startswith("ws"):
            return _WebSocketSession(self._place, self._headers, self._timeout, self._limit)
        return _HttpSession(_HttpTransport(self._place, self._headers, self._timeout), self._limit)


def open_decider(
    reference: str, registry: PolicyRegistry | None, *, token: str | None = None, run_seed: int = 0
) -> Decider:
    """Open a source of commands: a policy server, a policy folder, or a version of the registry.

    Args:
        reference: address ``http://HOST:PORT`` or ``ws://HOST:PORT``, a folder, an alias such as ``champion``, or
            ``NAME@VERSION``.
        registry: registry of the workspace; None if there is no workspace.
        token: token for a server.
        run_seed: seed of random draws within a policy; not used for a server.

    Raises:
        InputError: If the reference is invalid, the folder is damaged, or the server does not answer.
        UnknownNameError: If the registry has no such reference.
    """
    if is_address(reference):
        return PolicyClient(reference, token=token)
    return open_saved(reference, registry, run_seed=run_seed)


class _ServerSession(Protocol):
    """Session with a policy server, over HTTP or WebSocket."""

    def exchange(self, message: Message) -> Message:
        """Send a message to the server and return the server's answer, which must arrive within the client's timeout.

        Raises:
            PolicyServerError: If the connection was lost, the timeout passed, the server refused, or the answer is
                invalid.
        """
        ...

    def close(self) -> None:
        """End the session."""
        ...


class _HttpTransport:
    """Persistent HTTP connection to a policy server; errors are raised as `PolicyServerError`."""

    def __init__(self, place: SplitResult, headers: Mapping[str, str], timeout_s: float) -> None:
        self.address, self._timeout = place.geturl(), timeout_s
        self._connection = HttpConnection(place, timeout_s)
        self._headers = dict(headers)

    def request_json(self, method: str, path: str) -> Any:
        """Send a request without a body and return the JSON value of the answer."""
        data = self.exchange(method, path, b"", limit=_JSON_BYTES)
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise PolicyServerError(
                f"{self.address}{path} answered with invalid JSON: it is not a policy server."
            ) from error

    def exchange(self, method: str, path: str, body: bytes, *, limit: int, timeout_s: float | None = None) -> bytes:
        """Send a request and return the body of the answer, of at most ``limit`` bytes.

        Raises:
            PolicyServerError: If the connection was lost, or the status of the answer is not 200.
        """
        kind = {"Content-Type": "application/octet-stream"} if body else {}
        try:
            status, data = self._connection.exchange(
                method, path, body, {**self._headers, **kind}, limit=limit, timeout_s=timeout_s or self._timeout
            )
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise PolicyServerError(_format_lost_connection(self.address, error)) from error
        if status != 200:
            raise PolicyServerError(f"{self.address} refused ({status}): {_read_refusal_reason(data)}")
        return data

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> _HttpTransport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _HttpSession:
    """Session over HTTP; ``limit`` is the largest answer in bytes."""

    def __init__(self, connection: _HttpTransport, limit: int) -> None:
        self._http, self._limit = connection, limit
        answer = connection.request_json("POST", "/v1/sessions")
        name = answer.get("session") if isinstance(answer, dict) else None
        if not isinstance(name, str) or not _SESSION.fullmatch(name):
            connection.close()
            raise PolicyServerError(f"{connection.address} opened no session: it is not a policy server.")
        self._path = f"/v1/sessions/{name}"

    def exchange(self, message: Message) -> Message:
        data = self._http.exchange("POST", self._path, encode(message), limit=self._limit)
        return _decode_answer(data, self._http.address, self._limit)

    def close(self) -> None:
        try:
            self._http.exchange("DELETE", self._path, b"", limit=_JSON_BYTES, timeout_s=_CLOSE_S)
        except PolicyServerError:
            return  # the server is gone, and the session with it
        finally:
            self._http.close()


class _WebSocketSession:
    """Session over a WebSocket; ``limit`` is the largest answer in bytes."""

    def __init__(self, place: SplitResult, headers: Mapping[str, str], timeout_s: float, limit: int) -> None:
        self._address, self._timeout, self._limit = place.geturl(), timeout_s, limit
        try:
            self._socket = WebSocketStream(place, "/v1/stream", headers, timeout_s=timeout_s, limit=limit)
        except Exception as error:
            raise self._to_server_error(error) from error

    def exchange(self, message: Message) -> Message:
        try:
            self._socket.start(self._timeout)
            self._socket.send(encode(message))
            data = self._socket.receive()
        except Exception as error:
            self.close()
            raise self._to_server_error(error) from error
        return _decode_answer(data, self._address, self._limit)

    def close(self) -> None:
        self._socket.close()

    def _to_server_error(self, error: Exception) -> Exception:
        """Convert any error of the connection to a `PolicyServerError`; an error of twinloop remains unchanged."""
        return (
            error
            if isinstance(error, TwinloopError)
            else PolicyServerError(_format_lost_connection(self._address, error))
        )


def _make_authorization(token: str | None) -> dict[str, str]:
    """Return the HTTP header that carries a token; empty if there is no token.

    Raises:
        InputError: If the token contains characters that cannot be sent. The message does not show the token.
    """
    if not token:
        return {}
    if not token.isascii() or not token.isprintable():
        raise InputError(
            f"The token cannot be sent: it must be one line of printable ASCII. See --token-file or {TOKEN}."
        )
    return {"Authorization": f"Bearer {token}"}


def _parse_address(address: str) -> SplitResult:
    try:
        place = urlsplit(address)
        host, port = place.hostname, place.port
    except ValueError:
        host = port = place = None
    if not place or place.scheme not in SCHEMES or not host or not port or not host.isprintable() or " " in host:
        raise InputError(f"{_redact_address(address)} {_NO_ADDRESS}")
    if place.path.strip("/") or place.query or place.fragment or place.username is not None:
        hint = f" A token goes into --token-file or {TOKEN}." if place.query or place.username else ""
        raise InputError(f"{_redact_address(address)} {_NO_ADDRESS}{hint}")
    return place._replace(path="")


def _redact_address(address: str) -> str:
    """Return an address for a message, excluding parts that may be secret: user, password and query."""
    return repr(re.sub(r"//[^/]*@", "//", address).partition("?")[0])


def _to_wire_array(values: NDArray[Any]) -> NDArray[Any]:
    """Return an array of a type that can be sent: uint8 and float32 remain, all other types become float64."""
    array = np.asarray(values)
    return array if array.dtype in (np.uint8, np.float32) else array.astype(np.float64)


def _decode_answer(data: bytes, address: str, limit: int) -> Message:
    try:
        message = decode(data, largest=limit)
    except WireError as error:
        raise PolicyServerError(f"{address} gave an invalid answer: {_sanitize_text(error)}") from error
    if message.kind == "error":
        raise PolicyServerError(f"{address} refused: {_sanitize_text(message.message)}")
    return message


def _format_lost_connection(address: str, error: Exception) -> str:
    cause = _sanitize_text(f"{type(error).__name__}: {error}")
    return (
        f"The policy server at {address} cannot be reached, or the connection was lost ({cause}). "
        "Check that it is running (`twinloop serve`) and that the token is right."
    )


def _check_hash(value: str) -> str:
    if not _HASH.fullmatch(value):
        raise ValueError("the hash of the policy is invalid")
    return value


def _read_refusal_reason(data: bytes) -> str:
    """Return the reason that the server gives in the body of a refusal."""
    answer: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        answer = json.loads(data)
    reason = answer.get("message") or answer.get("detail") if isinstance(answer, dict) else None
    return _sanitize_text(reason or "no reason is given")


def _sanitize_text(value: object) -> str:
    """Return text from a server as one line of at most 500 characters, excluding terminal control characters."""
    text = "".join(char if char.isprintable() else " " for char in str(value))
    return " ".join(text.split())[:_LONGEST_TEXT]
