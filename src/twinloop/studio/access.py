"""Admit browsers to the studio: a token that works once becomes a cookie, and all other requests are refused."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import Any

from starlette.datastructures import Headers, MutableHeaders  # pyright: ignore[reportMissingImports]
from starlette.responses import PlainTextResponse, RedirectResponse, Response  # pyright: ignore[reportMissingImports]

ENTER = "/enter/"  # followed by the token
_REFUSED = "Open the address that `twinloop studio` printed last; it works once, for one browser."
# The pages set styles of elements; images and videos come from this server or from canvases.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; media-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class AccessGuard:
    """ASGI application that lets only admitted browsers reach an inner application.

    A request needs the cookie of an admitted browser and a host name of this server, so that no web page reaches it
    under another name. Requests that pages of other origins send are refused, except links to a page.

    Args:
        app: inner ASGI application.
        port: TCP port of the server.
        announce: function that is called with the address for the next browser, now and after each admission.
        start: path of the page that an admitted browser gets first.
    """

    def __init__(self, app: Any, port: int, announce: Callable[[str], None], *, start: str = "/") -> None:
        self._app, self._announce, self._start = app, announce, start
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._cookie = f"twinloop_{port}"  # browsers share the cookies of all ports of a host
        self._admitted = set[str]()
        self._address = f"http://127.0.0.1:{port}{ENTER}"
        self._token = ""
        self._renew_token()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request, with ASGI's arguments."""
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        response = self._refuse_stranger(scope["method"], headers) or self._admit(scope, headers)
        if response is None:
            await self._app(scope, receive, _with_headers(send))
        else:
            await response(scope, receive, _with_headers(send))

    def _refuse_stranger(self, method: str, headers: Headers) -> Response | None:
        """Return the refusal of a request that another web page sent, or that used another host name."""
        host = headers.get("host", "").lower()
        if host not in self._hosts:
            return PlainTextResponse("The server was called by an unknown host name.", 403)
        if headers.get("origin", f"http://{host}").lower() != f"http://{host}":
            return PlainTextResponse("Other web pages are not served.", 403)
        link = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not link:
            return PlainTextResponse("Other web pages are not served.", 403)
        return None

    def _admit(self, scope: Any, headers: Headers) -> Response | None:
        """Return None for an admitted browser, else the response to its token, or the refusal."""
        if not scope["path"].startswith(ENTER):
            known = any(hmac.compare_digest(self._read_cookie(headers), secret) for secret in self._admitted)
            return None if known else PlainTextResponse(_REFUSED, 401)
        if not hmac.compare_digest(scope["path"].removeprefix(ENTER).encode(), self._token.encode()):
            return PlainTextResponse(_REFUSED, 401)
        secret = secrets.token_urlsafe(32)
        self._admitted.add(secret)
        self._renew_token()
        response = RedirectResponse(self._start, 303)
        response.set_cookie(self._cookie, secret, httponly=True, samesite="lax")
        return response

    def _read_cookie(self, headers: Headers) -> str:
        try:
            held = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return ""
        return held.value if held is not None and held.value.isascii() else ""

    def _renew_token(self) -> None:
        self._token = secrets.token_urlsafe(24)
        self._announce(self._address + self._token)


def _with_headers(send: Any) -> Any:
    """Return ASGI's ``send`` that adds the security headers to the response."""

    async def forward(message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=list(message.get("headers", ())))
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            message = {**message, "headers": headers.raw}
        await send(message)

    return forward
