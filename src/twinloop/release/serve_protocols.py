"""Connections of a policy server: uvicorn's protocols with limits and with deadlines for headers, bodies and reading.

uvicorn limits the time between two requests, but not the time in which a request arrives: each byte stops its
timer. A middleware cannot help, because it runs after the headers are complete. The protocols here add the missing
timers at the connection.

This module needs the extra ``serve``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import h11  # pyright: ignore[reportMissingImports]
from uvicorn.protocols.http.h11_impl import H11Protocol  # pyright: ignore[reportMissingImports]
from uvicorn.protocols.websockets.websockets_sansio_impl import (  # pyright: ignore[reportMissingImports]
    WebSocketsSansIOProtocol,
)

from twinloop.release.serve_sessions import Sessions
from twinloop.release.serve_worker import ServeLimits

_log = logging.getLogger(__name__)
# The kernel probes a silent client after 10 s, then every 5 s, and gives up after 3 probes: a client without
# power or network is detected after 25 s.
_PROBES = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}


class Connections:
    """All open connections of a server, counted by network address.

    Args:
        sessions: sessions, which are closed when their connection is gone.
        limits: see `ServeLimits`.
    """

    def __init__(self, sessions: Sessions, limits: ServeLimits) -> None:
        self.sessions, self.limits = sessions, limits
        self._count = Counter[str]()

    def admit(self, address: str) -> str:
        """Count a new connection of an address; return why it must be refused, or ""."""
        full = self._count.total() >= self.limits.connections
        crowded = self._count[address] >= self.limits.connections_per_address
        self._count[address] += 1
        if full:
            return f"The server has {self.limits.connections} connections open, which is the limit. Try again later."
        if crowded:
            return f"{address} has {self.limits.connections_per_address} connections open. Close one, or try later."
        return ""

    @property
    def is_flooded(self) -> bool:
        """True if there are more than twice as many connections as allowed, refused ones included."""
        return self._count.total() > 2 * self.limits.connections

    def remove_connection(self, address: str) -> None:
        """Count the end of a connection."""
        self._count[address] -= 1
        if not self._count[address]:
            del self._count[address]


@dataclass(eq=False)
class Connection:
    """One client's connection; the application finds it in the scope, as ``state["connection"]``.

    Attributes:
        sessions: names of the sessions that were last used over this connection.
    """

    everyone: Connections
    address: str = ""
    sessions: set[str] = field(default_factory=set[str])

    def release_place(self) -> None:
        """Release the connection's place, and after ``gone_s`` its sessions, unless another connection uses them."""
        self.everyone.remove_connection(self.address)
        loop, since, sessions = asyncio.get_running_loop(), time.monotonic(), self.everyone.sessions
        for name in self.sessions:
            loop.call_later(self.everyone.limits.gone_s, sessions.close_unused, name, since)


class _Timer:
    """Timer with one deadline at a time; setting the same purpose again does not move the deadline."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None
        self._purpose: Any = None

    def set(self, purpose: Any, seconds: float, late: Callable[[], object]) -> None:
        if purpose == self._purpose:
            return
        self.clear()
        self._purpose, self._handle = purpose, self._loop.call_later(seconds, late)

    def clear(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._purpose = self._handle = None


class _DeadlineProtocol(asyncio.Protocol):
    """Base class of both protocols: deadlines for input and output, and the end of the connection."""

    loop: Any
    transport: Any

    def _set_up_timers(self, connection: Connection) -> None:
        self._connection, self._limits = connection, connection.everyone.limits
        self._arriving, self._reading = _Timer(self.loop), _Timer(self.loop)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the resources of the connection."""
        self._arriving.clear()
        self._reading.clear()
        self._connection.release_place()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Set the deadline for a client that does not read its data."""
        super().pause_writing()
        self._reading.set("reading", self._limits.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Remove the deadline after the client has read its data."""
        self._reading.clear()
        super().resume_writing()

    def shutdown(self) -> None:
        """End the connection when the server stops; abort it if this fails."""
        try:
            super().shutdown()  # pyright: ignore[reportAttributeAccessIssue]
        except Exception:  # noqa: BLE001
            self.transport.abort()


class HttpProtocol(_DeadlineProtocol, H11Protocol):
    """uvicorn's HTTP/1.1 with deadlines and limits."""

    def __init__(
        self, config: Any, server_state: Any, app_state: dict[str, Any], *, everyone: Connections, **given: Any
    ):
        connection = Connection(everyone)
        super().__init__(config, server_state, {**app_state, "connection": connection}, **given)
        self._set_up_timers(connection)
        self._refused = self._upgraded = False

    def connection_made(self, transport: Any) -> None:
        """Admit a connection, or refuse it if there are too many."""
        super().connection_made(transport)
        _configure_socket(transport)
        self._connection.address = self.client[0] if self.client else ""
        refusal = self._connection.everyone.admit(self._connection.address)
        if self._connection.everyone.is_flooded:
            transport.abort()
        elif refusal:
            self._refuse(503, refusal, ("retry-after", "5"))
        else:
            self._set_deadline()

    def data_received(self, data: bytes) -> None:
        """Process bytes, and set the deadline for the missing ones."""
        if self._refused:
            return  # further bytes of a refused client are dropped
        try:
            super().data_received(data)
        except Exception as error:  # noqa: BLE001  # no input of a client may stop the server
            _drop(self.transport, error)
        self._set_deadline()

    def on_response_complete(self) -> None:
        """Set the idle time of the connection, and continue with the next request."""
        # A client with a session may pause between two episodes; others need no open connection.
        self.timeout_keep_alive = self._limits.idle_s if self._connection.sessions else self._limits.rest_s
        super().on_response_complete()
        self._set_deadline()

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Hand the connection over to a `StreamProtocol`."""
        self._upgraded = True  # from here on `StreamProtocol` has the connection, with separate timers
        self._arriving.clear()
        self._reading.clear()
        super().handle_websocket_upgrade(event)

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is not valid HTTP, with the reason."""
        error = sys.exc_info()[1]  # uvicorn calls this while handling h11's error, which has the reason
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        self._refuse(status, f"{msg} {error or ''}".strip())

    def _set_deadline(self) -> None:
        """Set the deadline for the next input: headers, a body, or nothing."""
        if self._refused or self._upgraded or self.transport.is_closing():
            return
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            self._refuse_after("body", self._limits.body_s)
        elif state is h11.IDLE and (self.cycle is None or self.conn.trailing_data[0]):
            self._refuse_after("headers", self._limits.header_s)
        else:
            self._arriving.clear()

    def _refuse_after(self, part: str, seconds: float) -> None:
        """Refuse the request unless this part of it is complete in time."""
        verb = "were" if part == "headers" else "was"
        message = f"The request's {part} {verb} not complete after {seconds:g} s."
        self._arriving.set((part, self.cycle), seconds, lambda: self._refuse(408, message))

    def _refuse(self, status: int, message: str, *headers: tuple[str, str]) -> None:
        """Answer instead of the application and close; the client gets some time to read the answer."""
        self._refused = True
        self._arriving.clear()
        self._unset_keepalive_if_required()
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # an answer is under way already
            self.transport.abort()
            return
        body = json.dumps({"error": "Refused", "message": message}).encode()
        fields = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        response = h11.Response(status_code=status, headers=[*fields, *headers], reason=HTTPStatus(status).phrase)
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.write_eof()
        self.loop.call_later(self._limits.linger_s, self.transport.abort)


class StreamProtocol(_DeadlineProtocol, WebSocketsSansIOProtocol):
    """uvicorn's WebSocket with deadlines. It takes over the connection of an `HttpProtocol`."""

    def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any], **given: Any) -> None:
        super().__init__(config, server_state, app_state, **given)
        self._set_up_timers(app_state["connection"])
        self._complete = False
        self.close_timeout = self._limits.linger_s  # for a client to answer that it closes, too

    def data_received(self, data: bytes) -> None:
        """Process bytes, and set the deadline for the missing ones."""
        self._complete = False
        try:
            super().data_received(data)
        except Exception as error:  # noqa: BLE001  # no input of a client may stop the server
            _drop(self.transport, error)
            return
        if not self.handshake_initiated:
            self._refuse_handshake()
        elif self.frames or not self._complete:
            self._arriving.set("message", self._limits.body_s, self.transport.abort)
        else:
            self._arriving.clear()

    def _refuse_handshake(self) -> None:
        """Answer an invalid handshake with the reason; uvicorn would send no answer."""
        why = self.conn.handshake_exc
        message = str(getattr(why, "__cause__", None) or why or "no handshake").encode(errors="replace")
        head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n\r\n"
        self.transport.write(head + b"This is no handshake of a WebSocket: " + message[:200])
        self.transport.close()

    def handle_connect(self, event: Any) -> None:
        """Answer the handshake."""
        self._complete = True
        super().handle_connect(event)

    def handle_ping(self) -> None:
        """Answer a ping."""
        self._complete = True
        super().handle_ping()

    def handle_pong(self, event: Any) -> None:
        """Process a pong."""
        self._complete = True
        super().handle_pong(event)

    def send_receive_event_to_app(self) -> None:
        """Hand a complete message to the application."""
        self._complete = True
        if self.curr_msg_data_type == "text":  # refused by the application, so that it need not be UTF-8
            self.frames = [b""]
        super().send_receive_event_to_app()

    def pause_writing(self) -> None:
        """Set the deadline for a client that does not read its data, and stop reading from it."""
        super().pause_writing()
        self.transport.pause_reading()  # a client that does not read its pongs can send no more pings

    def resume_writing(self) -> None:
        """Read from the client again after it has read its data."""
        if not self.read_paused:
            self.transport.resume_reading()
        super().resume_writing()


def _configure_socket(transport: Any) -> None:
    """Make the kernel detect vanished clients and report every byte that a client does not read."""
    transport.set_write_buffer_limits(high=0)
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBES.items():
        if hasattr(socket, name):  # not every system has all of them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _drop(transport: Any, error: Exception) -> None:
    _log.error("a connection was dropped: %s: %.200s", type(error).__name__, " ".join(str(error).split()))
    transport.abort()
