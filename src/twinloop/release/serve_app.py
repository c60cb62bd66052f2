"""Handle the web requests of a policy server: check access, and answer at its HTTP and WebSocket paths.

- ``GET /health`` reports that the server runs.
- ``GET /v1/policy`` returns name, hash and contract of the policy.
- ``POST /v1/sessions`` opens a session and returns its name.
- ``POST /v1/sessions/NAME`` takes a message (see `serve_wire`) and answers with a message.
- ``DELETE /v1/sessions/NAME`` ends a session.
- At ``/v1/stream``, each WebSocket is one session, and each message gets one answer.

This module needs the extra ``serve``; it is imported when a server is created (`release.serve`).
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response, WebSocket, WebSocketDisconnect  # pyright: ignore[reportMissingImports]
from fastapi.responses import JSONResponse  # pyright: ignore[reportMissingImports]
from starlette.datastructures import Headers  # pyright: ignore[reportMissingImports]
from starlette.requests import ClientDisconnect  # pyright: ignore[reportMissingImports]

from twinloop import __version__
from twinloop.core.errors import TwinloopError
from twinloop.release.serve_protocols import Connection
from twinloop.release.serve_sessions import FullError, NoSessionError, PolicyFailedError, Session, Sessions
from twinloop.release.serve_wire import PROTOCOL, Message, TooLargeError, WireError, decode, encode
from twinloop.release.serve_worker import BusyError, PolicyStuckError, PolicyThread, ServeLimits

HEALTH = "/health"  # needs no token, so that server monitoring works without it
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:]*)(:[0-9]+)?", re.IGNORECASE)
_log = logging.getLogger(__name__)


class RequestGuard:
    """ASGI application that refuses forbidden requests and catches all errors of an inner application.

    Args:
        app: inner ASGI application.
        token: token that clients must send as ``Authorization: Bearer TOKEN``; None allows all clients.
        hosts: host names under which clients may call the server, so that no web page reaches it under another name;
            None allows any name.
    """

    def __init__(self, app: Any, *, token: str | None, hosts: frozenset[str] | None) -> None:
        self._app, self._token, self._hosts = app, token, hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request or one WebSocket, with ASGI's arguments."""
        started = False

        async def forward_message(message: Any) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            why = self._find_refusal(Headers(scope=scope), scope["path"])
            if why:
                await _send_error(scope, receive, send, 401, "Refused", why)
            else:
                await self._app(scope, receive, forward_message)
        except (ClientDisconnect, WebSocketDisconnect):
            return  # the client is gone
        except asyncio.CancelledError:
            if not started:
                await _send_error(scope, receive, send, 503, "Stopping", "The server is being stopped.")
        except Exception as error:  # noqa: BLE001  # an error in the server; it was answered with 500, without details
            _log.error("a request failed: %s: %.200s", type(error).__name__, " ".join(str(error).split()))

    def _find_refusal(self, headers: Mapping[str, str], path: str) -> str:
        """Return the reason why a request is refused, or ""."""
        if "origin" in headers or headers.get("sec-fetch-site", "none") != "none":
            return "Web pages are not served."
        if self._hosts is not None and parse_host_name(headers.get("host", "")) not in self._hosts:
            return "The server was called by an unknown host name."
        given = headers.get("authorization", "").removeprefix("Bearer ").encode()
        if self._token is not None and path != HEALTH and not hmac.compare_digest(given, self._token.encode()):
            return "The token is missing or wrong."
        return ""


def parse_host_name(header: str) -> str:
    """Return the host name in a ``Host`` header, excluding the port; "" if the header is invalid."""
    match = _HOST.fullmatch(header.strip())
    return match[1].strip("[]").lower() if match else ""


async def _send_error(scope: Any, receive: Any, send: Any, status: int, error: str, message: str) -> None:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {"Retry-After": "5"}
    response = JSONResponse({"error": error, "message": message}, status, headers)
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(response)
    else:
        await response(scope, receive, send)


MEDIA_TYPE = "application/octet-stream"
_LONGEST_MESSAGE = 2000  # characters of an error message; a header of 64 KiB can have very many errors
_GOING_AWAY = 1001  # WebSocket's status code for a regular end of the connection


class MediaTypeError(WireError):
    """Error for a request body with another content type than ``application/octet-stream``, or with compression."""


_STATUS = {
    NoSessionError: 404,
    BusyError: 409,
    TooLargeError: 413,
    MediaTypeError: 415,
    PolicyFailedError: 500,
    FullError: 503,
    PolicyStuckError: 503,
}
_RETRY = (409, 503)


class Application:
    """Handler of a policy server's requests, independent of the web framework.

    Args:
        sessions: sessions of the served policy.
        worker: thread that calls the policy.
        largest: largest message in bytes.
    """

    def __init__(self, sessions: Sessions, worker: PolicyThread, limits: ServeLimits, *, largest: int) -> None:
        self.sessions, self.limits, self.largest = sessions, limits, largest
        self._worker = worker

    async def open(self, connection: Connection) -> str:
        """Open a session and return its name; if the policy cannot start, remove the session.

        Args:
            connection: connection of the client.

        Raises:
            FullError: If the connection has too many unused sessions, or the server has too many clients.
        """
        unused = self.sessions.count_unused(connection.sessions)
        if unused >= self.limits.sessions_per_connection:
            raise FullError(f"This connection has opened {unused} sessions without using them. Use or close one first.")
        name = self.sessions.reserve()
        connection.sessions.add(name)
        try:
            await self._worker.run(lambda: self.sessions.begin(name))
        except BaseException:
            self.close(name, connection)
            raise
        return name

    def close(self, name: str, connection: Connection) -> None:
        """End the session with this name, if it exists.

        Args:
            name: name of the session.
            connection: connection of the client; the session is removed from its ``sessions``.
        """
        connection.sessions.discard(name)
        self.sessions.close(name)

    async def answer(self, name: str, session: Session, data: bytes) -> Message:
        """Return the answer to a message: the kind ``action`` with the next command, or ``ready`` after a restart.

        Args:
            name: name of the session.
            session: session, which the request has claimed (`Sessions.claim`).
            data: bytes of the message in the format of `serve_wire`, of the kind ``act`` or ``restart``.

        Raises:
            WireError: If the bytes are not such a message, or the observation does not fit the policy's contract.
            PolicyFailedError: If the policy raised an error or gave no valid command.
            BusyError: If other calls of the policy took too long.
            PolicyStuckError: If the policy did not answer in time; the session is closed.
        """
        try:
            return await self._worker.run(lambda: self._answer_message(session, data))
        except PolicyStuckError:
            self.sessions.close(name)  # its policy is still in a call and cannot be used again
            raise

    def _answer_message(self, session: Session, data: bytes) -> Message:
        message = decode(data, largest=self.largest)
        if message.kind == "act":
            action = session.act(message.arrays)
            self.sessions.answered += 1
            return Message(kind="action", arrays={"action": action})
        if message.kind == "restart":
            session.restart()
            return Message(kind="ready")
        raise WireError(f"A client must send act or restart, not {message.kind}.")

    async def read_body(self, request: Request) -> bytes:
        """Return the body of a request, of at most ``largest`` bytes.

        Raises:
            TooLargeError: If the body, or its announced length, is larger.
            MediaTypeError: If the body is compressed, or its content type is not that of a message.
        """
        encoding, kind = (request.headers.get(f"content-{name}", "") for name in ("encoding", "type"))
        if encoding not in ("", "identity") or kind not in ("", MEDIA_TYPE):
            raise MediaTypeError(f"A message must be {MEDIA_TYPE} and not compressed; this is {kind} {encoding}.")
        announced = request.headers.get("content-length", "0")
        if int(announced) > self.largest:
            raise TooLargeError(
                f"A message may have at most {self.largest} bytes here; this one announces {announced}."
            )
        parts, count = list[bytes](), 0
        async for part in request.stream():
            count += len(part)
            if count > self.largest:
                raise TooLargeError(f"A message may have at most {self.largest} bytes here.")
            parts.append(part)
        return b"".join(parts)


def create_app(app: Application, *, token: str | None, hosts: frozenset[str] | None) -> RequestGuard:
    """Return the ASGI application of a policy server.

    Args:
        token: token that clients must send; None allows all clients.
        hosts: host names under which clients may call the server; None allows any name.
    """
    # No redirect, because it would lead to the host in the Host header.
    web = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    sessions = app.sessions

    @web.exception_handler(TwinloopError)
    async def _handle_error(_: Request, error: TwinloopError) -> JSONResponse:
        status = _status(error)
        headers = {"Retry-After": "1"} if status in _RETRY else None
        return JSONResponse({"error": type(error).__name__, "message": _text(error)}, status, headers)

    @web.get(HEALTH)
    async def _health() -> dict[str, Any]:
        return {"status": "ok", "protocol": PROTOCOL, "sessions": len(sessions), "answered": sessions.answered}

    @web.get("/v1/policy")
    async def _policy() -> dict[str, Any]:
        facts = {"protocol": PROTOCOL, "twinloop": __version__, "policy": sessions.name, "hash": sessions.hash}
        return {**facts, "contract": sessions.contract.to_json(), "largest_message": app.largest}

    @web.post("/v1/sessions")
    async def _open(request: Request) -> dict[str, str]:
        return {"session": await app.open(_connection(request))}

    @web.delete("/v1/sessions/{name}")
    async def _close(name: str, request: Request) -> dict[str, str]:
        app.close(name, _connection(request))
        return {"session": ""}

    @web.post("/v1/sessions/{name}")
    async def _message(name: str, request: Request) -> Response:
        with sessions.claim(name) as session:  # before the body is read: one body in memory for each session
            _connection(request).sessions.add(name)
            answer = await app.answer(name, session, await app.read_body(request))
        return Response(encode(answer), media_type=MEDIA_TYPE)

    @web.websocket("/v1/stream")
    async def _stream(stream: WebSocket) -> None:
        await stream.accept()
        await _serve_stream(stream, app)

    return RequestGuard(web, token=token, hosts=hosts)


async def _serve_stream(stream: WebSocket, app: Application) -> None:
    """Answer the messages of one WebSocket until the client closes it or sends nothing for too long."""
    connection: Connection = stream.scope["state"]["connection"]
    name, patience = "", app.limits.first_s
    try:
        name = await app.open(connection)
        while True:
            async with asyncio.timeout(patience):
                received = await stream.receive()
            if received["type"] == "websocket.disconnect":
                return
            await stream.send_bytes(encode(await _answer_stream_message(received, app, name)))
            patience = app.limits.idle_s
    except TimeoutError:
        await _end_stream(stream, TwinloopError(f"The session was ended: it sent nothing for {patience:g} s."))
    except TwinloopError as error:
        await _end_stream(stream, error)
    finally:
        app.close(name, connection)


async def _answer_stream_message(received: Mapping[str, Any], app: Application, name: str) -> Message:
    """Return the answer to one WebSocket message; an invalid message gets an error message, and the session continues.

    Args:
        received: received event of ASGI.
        app: handler of the server's requests.
        name: name of the session of this WebSocket.
    """
    data = received.get("bytes")
    with app.sessions.claim(name) as session:
        try:
            if not isinstance(data, bytes):
                raise WireError("Messages must be binary, not text.")
            return await app.answer(name, session, data)
        except PolicyStuckError:
            raise
        except TwinloopError as error:
            return _make_error_message(error)


async def _end_stream(stream: WebSocket, error: TwinloopError) -> None:
    await stream.send_bytes(encode(_make_error_message(error)))
    await stream.close(_GOING_AWAY)


def _connection(request: Request) -> Connection:
    return request.scope["state"]["connection"]


def _make_error_message(error: TwinloopError) -> Message:
    return Message(kind="error", error=type(error).__name__, message=_text(error))


def _text(error: TwinloopError) -> str:
    """Return the message of an error as valid UTF-8 text of at most 2,000 characters."""
    return str(error)[:_LONGEST_MESSAGE].encode(errors="replace").decode()


def _status(error: TwinloopError) -> int:
    return next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 400)
