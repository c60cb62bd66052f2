"""The web application of a policy server: its addresses over HTTP and WebSocket, and who is let in.

``GET /health`` says that it runs. ``GET /v1/policy`` says which policy, and its contract. ``POST /v1/sessions`` opens a
session, ``POST /v1/sessions/NAME`` takes a message (see `serve_wire`) and answers with one, ``DELETE`` ends it. At
``/v1/stream`` a WebSocket is a session of its own: a message in, a message out.

This module needs the extra ``serve``; `release.serve` is the door to it.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping
from typing import Any

from fastapi import (  # pyright: ignore[reportMissingImports]
    Depends,
    FastAPI,
    HTTPException,
    Request,
    Response,
    WebSocket,
    WebSocketDisconnect,
)
from fastapi.responses import JSONResponse  # pyright: ignore[reportMissingImports]

from twinloop import __version__
from twinloop.core.errors import TwinloopError
from twinloop.release.serve_sessions import FullError, NoSessionError, PolicyFailedError, Sessions
from twinloop.release.serve_wire import PROTOCOL, Message, WireError, decode, encode

MEDIA_TYPE = "application/octet-stream"
_REFUSED = 1008  # WebSocket's code for a broken policy of the server
_STATUS = {FullError: 503, NoSessionError: 404, PolicyFailedError: 500}


def create_app(sessions: Sessions, *, token: str | None, largest: int, hosts: frozenset[str] | None) -> FastAPI:
    """The application.

    Args:
        sessions: of the policy that is served.
        token: what clients must present as ``Authorization: Bearer TOKEN``; None asks for nothing.
        largest: bytes of a message.
        hosts: names by which it may be called, so that no web page reaches it under another; None allows any.
    """
    app = FastAPI(title="twinloop policy server", docs_url=None, redoc_url=None, openapi_url=None)
    gate = _Gate(token=token, hosts=hosts)
    admitted, whole_body = [Depends(gate.http)], Depends(_Body(largest))

    @app.exception_handler(TwinloopError)
    async def _say(_: Request, error: TwinloopError) -> JSONResponse:
        return JSONResponse({"error": type(error).__name__, "message": str(error)}, _status(error))

    @app.get("/health")
    def _health() -> dict[str, Any]:
        return {"status": "ok", "protocol": PROTOCOL, "sessions": len(sessions), "answered": sessions.answered}

    @app.get("/v1/policy", dependencies=admitted)
    def _policy() -> dict[str, Any]:
        said = {"protocol": PROTOCOL, "twinloop": __version__, "policy": sessions.name, "hash": sessions.hash}
        return {**said, "contract": sessions.contract_json, "largest_message": largest}

    @app.post("/v1/sessions", dependencies=admitted)
    def _open() -> dict[str, str]:
        return {"session": sessions.open()}

    @app.delete("/v1/sessions/{name}", dependencies=admitted)
    def _close(name: str) -> dict[str, str]:
        sessions.close(name)
        return {"session": ""}

    @app.post("/v1/sessions/{name}", dependencies=admitted)
    async def _message(name: str, body: bytes = whole_body) -> Response:
        message = decode(body, largest=largest)
        answer = await asyncio.to_thread(_answer, sessions, name, message)
        return Response(encode(answer), media_type=MEDIA_TYPE)

    @app.websocket("/v1/stream")
    async def _stream(socket: WebSocket) -> None:
        why = gate.refusal(socket.headers, browser=True)
        if why:
            await socket.close(_REFUSED, why)
            return
        await socket.accept()
        await _serve_stream(socket, sessions, largest)

    return app


async def _serve_stream(socket: WebSocket, sessions: Sessions, largest: int) -> None:
    name = ""
    try:
        name = await asyncio.to_thread(sessions.open)
        while True:
            received = await socket.receive()
            if received["type"] == "websocket.disconnect":
                return
            await socket.send_bytes(encode(await _heard(received, sessions, name, largest)))
    except TwinloopError as error:
        await socket.send_bytes(encode(_said(error)))
        await socket.close()
    except WebSocketDisconnect:
        return
    finally:
        sessions.close(name)


async def _heard(received: Mapping[str, Any], sessions: Sessions, name: str, largest: int) -> Message:
    """The answer to what came in; an error is answered too, and the session goes on."""
    data = received.get("bytes")
    try:
        if not isinstance(data, bytes):
            raise WireError("Messages are binary, not text.")
        return await asyncio.to_thread(_answer, sessions, name, decode(data, largest=largest))
    except TwinloopError as error:
        return _said(error)


def _answer(sessions: Sessions, name: str, message: Message) -> Message:
    if message.kind == "act":
        return Message(kind="action", arrays={"action": sessions.act(name, message.arrays)})
    if message.kind == "restart":
        sessions.restart(name)
        return Message(kind="ready")
    raise WireError(f"A client sends act or restart, not {message.kind}.")


def _said(error: TwinloopError) -> Message:
    return Message(kind="error", error=type(error).__name__, message=str(error))


def _status(error: TwinloopError) -> int:
    return next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 400)


class _Gate:
    """Who is let in."""

    def __init__(self, *, token: str | None, hosts: frozenset[str] | None) -> None:
        self._token, self._hosts = token, hosts

    def refusal(self, headers: Mapping[str, str], *, browser: bool = False) -> str:
        """Why not, or ""."""
        if browser and "origin" in headers:
            return "Web pages are not served."
        if self._hosts is not None and _host(headers.get("host", "")) not in self._hosts:
            return "The server was called by a name that is not its own."
        given = headers.get("authorization", "").removeprefix("Bearer ").encode()
        if self._token is not None and not hmac.compare_digest(given, self._token.encode()):
            return "The token is missing or wrong."
        return ""

    def http(self, request: Request) -> None:
        """Refuse a request.

        Raises:
            HTTPException: 401, with the reason.
        """
        why = self.refusal(request.headers, browser=True)
        if why:
            raise HTTPException(401, why, headers={"WWW-Authenticate": "Bearer"})


class _Body:
    """A request's body, read no further than is allowed."""

    def __init__(self, largest: int) -> None:
        self._largest = largest

    async def __call__(self, request: Request) -> bytes:
        """The whole of it.

        Raises:
            HTTPException: 413, it is longer than is read.
        """
        parts, count = [], 0
        async for part in request.stream():
            count += len(part)
            if count > self._largest:
                raise HTTPException(413, f"A message has at most {self._largest} bytes here.")
            parts.append(part)
        return b"".join(parts)


def _host(header: str) -> str:
    """The name in a ``Host`` header, without its port."""
    return header.rpartition(":")[0].strip("[]") if not header.endswith("]") and ":" in header else header.strip("[]")
