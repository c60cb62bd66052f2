"""Extend uvicorn's HTTP and WebSocket protocols by connection limits and by deadlines for slow clients.

uvicorn limits the time between two requests, but not the time in which a request arrives: each byte stops its timer. A
middleware cannot limit it either, because it runs after the headers are complete. The protocols in this module
therefore set deadlines at the connection, for headers, bodies, and clients that do not read their data.

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
    """Counter of a server's open connections, in total and for each network address.

    Args:
        sessions: sessions of the server. Those of an ended connection are closed after ``limits.gone_s`` seconds, see
            `Connection.release_place`.
        limits: largest numbers of connections, and times.
    """

    def __init__(self, sessions: Sessions, limits: ServeLimits) -> None:
        self.sessions, self.limits = sessions, limits
        self._count = Counter[str]()

    def admit(self, address: str) -> str:
        """Count a new connection of a network address, and return the reason why it must be refused, or ""."""
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
        """True if more than twice the allowed number of connections are open, including refused ones."""
        return self._count.total() > 2 * self.limits.connections

    def remove_connection(self, address: str) -> None:
        """Remove an ended connection of a network address from the count."""
        self._count[address] -= 1
        if not self._count[address]:
            del self._count[address]


@dataclass(eq=False)
class Connection:
    """Connection of one client; the application finds it in the ASGI scope as ``state["connection"]``.

    Attributes:
        connections: counter of all connections of the server.
        address: network address of the client.
        sessions: names of the sessions that were last used over this connection.
    """

    connections: Connections
    address: str = ""
    sessions: set[str] = field(default_factory=set[str])

    def release_place(self) -> None:
        """Remove this ended connection from the server's count of open connections, and close its sessions later.

        Another connection can then open. A session is closed after ``ServeLimits.gone_s`` seconds, unless another
        connection has used it in the meantime.
        """
        self.connections.remove_connection(self.address)
        loop, since, sessions = asyncio.get_running_loop(), time.monotonic(), self.connections.sessions
        for name in self.sessions:
            loop.call_later(self.connections.limits.gone_s, sessions.close_unused, name, since)


class _Timer:
    """Timer with one deadline at a time; setting it again for the same purpose does not move the deadline."""

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
    """Base class of the HTTP and WebSocket protocols: deadlines for input and output, and the end of the connection."""

    loop: Any
    transport: Any

    def _set_up_timers(self, connection: Connection) -> None:
        self._connection, self._limits = connection, connection.connections.limits
        self._arriving, self._reading = _Timer(self.loop), _Timer(self.loop)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers and remove the ended connection from the count; asyncio calls this method."""
        self._arriving.clear()
        self._reading.clear()
        self._connection.release_place()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Set the deadline for a client that does not read its data; asyncio calls this when data wait to be sent."""
        super().pause_writing()
        self._reading.set("reading", self._limits.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel the deadline for a client that does not read its data, because it has read the data."""
        self._reading.clear()
        super().resume_writing()

    def shutdown(self) -> None:
        """End the connection when the server stops; abort it if this fails."""
        try:
            super().shutdown()  # pyright: ignore[reportAttributeAccessIssue]
        except Exception:  # noqa: BLE001
            self.transport.abort()


class HttpProtocol(_DeadlineProtocol, H11Protocol):
    """uvicorn's HTTP/1.1 protocol, extended by connection limits and deadlines."""

    def __init__(
        self, config: Any, server_state: Any, app_state: dict[str, Any], *, connections: Connections, **given: Any
    ):
        connection = Connection(connections)
        super().__init__(config, server_state, {**app_state, "connection": connection}, **given)
        self._set_up_timers(connection)
        self._refused = self._upgraded = False

    def connection_made(self, transport: Any) -> None:
        """Accept a new connection, or refuse it if there are too many."""
        super().connection_made(transport)
        _configure_socket(transport)
        self._connection.address = self.client[0] if self.client else ""
        refusal = self._connection.connections.admit(self._connection.address)
        if self._connection.connections.is_flooded:
            transport.abort()
        elif refusal:
            self._refuse(503, refusal, ("retry-after", "5"))
        else:
            self._set_deadline()

    def data_received(self, data: bytes) -> None:
        """Process received bytes, and set the deadline for the bytes that are still missing."""
        if self._refused:
            return  # further bytes of a refused client are dropped
        try:
            super().data_received(data)
        except Exception as error:  # noqa: BLE001  # no input of a client may stop the server
            _drop(self.transport, error)
        self._set_deadline()

    def on_response_complete(self) -> None:
        """Set the time for which the connection may stay idle, and continue with the next request."""
        # A client with a session may pause between two episodes; others need no open connection.
        self.timeout_keep_alive = self._limits.idle_s if self._connection.sessions else self._limits.rest_s
        super().on_response_complete()
        self._set_deadline()

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Hand the connection over to a `StreamProtocol`, because the client requests a WebSocket."""
        self._upgraded = True  # from here on `StreamProtocol` has the connection, with separate timers
        self._arriving.clear()
        self._reading.clear()
        super().handle_websocket_upgrade(event)

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is not valid HTTP, with the reason that the HTTP parser gives."""
        error = sys.exc_info()[1]  # uvicorn calls this while handling h11's error, which has the reason
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        self._refuse(status, f"{msg} {error or ''}".strip())

    def _set_deadline(self) -> None:
        """Set the deadline for the next part of a request, headers or body; cancel it if no part is expected."""
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
        """Refuse the request unless its ``part`` (headers or body) is complete within ``seconds``."""
        verb = "were" if part == "headers" else "was"
        message = f"The request's {part} {verb} not complete after {seconds:g} s."
        self._arriving.set((part, self.cycle), seconds, lambda: self._refuse(408, message))

    def _refuse(self, status: int, message: str, *headers: tuple[str, str]) -> None:
        """Refuse a request with an HTTP status and a message, then close the connection.

        The client gets ``ServeLimits.linger_s`` seconds to read the answer.
        """
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
    """uvicorn's WebSocket protocol, extended by deadlines; it takes over the connection of an `HttpProtocol`."""

    def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any], **given: Any) -> None:
        super().__init__(config, server_state, app_state, **given)
        self._set_up_timers(app_state["connection"])
        self._complete = False
        self.close_timeout = self._limits.linger_s  # for the close frame of the client

    def data_received(self, data: bytes) -> None:
        """Process received bytes, and set the deadline for the rest of an incomplete message."""
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
        """Answer an invalid WebSocket handshake with the reason, because uvicorn would send no answer."""
        why = self.conn.handshake_exc
        message = str(getattr(why, "__cause__", None) or why or "no handshake").encode(errors="replace")
        head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n\r\n"
        self.transport.write(head + b"This is not a WebSocket handshake: " + message[:200])
        self.transport.close()

    def handle_connect(self, event: Any) -> None:
        """Answer the WebSocket handshake."""
        self._complete = True
        super().handle_connect(event)

    def handle_ping(self) -> None:
        """Answer a ping of the client."""
        self._complete = True
        super().handle_ping()

    def handle_pong(self, event: Any) -> None:
        """Process a pong of the client."""
        self._complete = True
        super().handle_pong(event)

    def send_receive_event_to_app(self) -> None:
        """Pass a complete message to the application."""
        self._complete = True
        if self.curr_msg_data_type == "text":  # refused by the application, so that it need not be UTF-8
            self.frames = [b""]
        super().send_receive_event_to_app()

    def pause_writing(self) -> None:
        """Set the deadline for a client that does not read its data, and stop reading from it."""
        super().pause_writing()
        self.transport.pause_reading()  # a client that does not read its pongs can send no more pings

    def resume_writing(self) -> None:
        """Resume reading requests, because the send buffer is nearly empty again; asyncio calls this method."""
        if not self.read_paused:
            self.transport.resume_reading()
        super().resume_writing()


def _configure_socket(transport: Any) -> None:
    """Configure the socket of a connection so that the kernel detects vanished clients.

    The write buffer is set to 0, so that every byte that a client does not read is noticed.
    """
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
