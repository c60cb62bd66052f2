"""Who is let in to a policy server, checked before anything of a request but its headers is read."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from collections.abc import Mapping
from typing import Any

from fastapi import WebSocket, WebSocketDisconnect  # pyright: ignore[reportMissingImports]
from fastapi.responses import JSONResponse  # pyright: ignore[reportMissingImports]
from starlette.datastructures import Headers  # pyright: ignore[reportMissingImports]
from starlette.requests import ClientDisconnect  # pyright: ignore[reportMissingImports]

HEALTH = "/health"  # needs no token, so that a monitor need not have it
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:]*)(:[0-9]+)?", re.IGNORECASE)
_log = logging.getLogger(__name__)


class Gate:
    """An ASGI application that refuses requests, and lets no error of the application inside get out.

    Args:
        app: the application inside.
        token: what clients must present as ``Authorization: Bearer TOKEN``; None asks for nothing.
        hosts: names by which the server may be called, so that no web page reaches it under another; None allows any.
    """

    def __init__(self, app: Any, *, token: str | None, hosts: frozenset[str] | None) -> None:
        self._app, self._token, self._hosts = app, token, hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request or one WebSocket."""
        started = False

        async def noted(message: Any) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            why = self._refusal(Headers(scope=scope), scope["path"])
            if why:
                await _answer(scope, receive, send, 401, "Refused", why)
            else:
                await self._app(scope, receive, noted)
        except (ClientDisconnect, WebSocketDisconnect):
            return  # the client is gone
        except asyncio.CancelledError:
            if not started:
                await _answer(scope, receive, send, 503, "Stopping", "The server is being stopped.")
        except Exception as error:  # noqa: BLE001  # a fault of ours; it was answered with 500, without details
            _log.error("a request failed: %s: %.200s", type(error).__name__, " ".join(str(error).split()))

    def _refusal(self, headers: Mapping[str, str], path: str) -> str:
        """Return why a request is refused, or ""."""
        if "origin" in headers or headers.get("sec-fetch-site", "none") != "none":
            return "Web pages are not served."
        if self._hosts is not None and host_name(headers.get("host", "")) not in self._hosts:
            return "The server was called by a name that is not its own."
        given = headers.get("authorization", "").removeprefix("Bearer ").encode()
        if self._token is not None and path != HEALTH and not hmac.compare_digest(given, self._token.encode()):
            return "The token is missing or wrong."
        return ""


def host_name(header: str) -> str:
    """Return the name in a ``Host`` header, without its port; "" for what is no host."""
    match = _HOST.fullmatch(header.strip())
    return match[1].strip("[]").lower() if match else ""


async def _answer(scope: Any, receive: Any, send: Any, status: int, error: str, message: str) -> None:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {"Retry-After": "5"}
    response = JSONResponse({"error": error, "message": message}, status, headers)
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(response)
    else:
        await response(scope, receive, send)
