"""Connect a policy client to a server over HTTP or WebSocket, with one deadline for each request and its answer.

The timeout of a socket restarts with every byte, so a server that sends one byte per second could block the caller
forever. Here the remaining time is set before each call on the socket.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import logging
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import SplitResult

from twinloop.core.errors import MissingDependencyError
from twinloop.hardware.call_thread import CallThread

_CHUNK = 65536
_SECURE = ("https", "wss")


class TimedSocket:
    """Socket whose calls all end by a deadline, which `start` sets.

    Args:
        place: URL of the server with host and port; its scheme selects TLS.
        timeout_s: longest time in s to look up the host, connect, and negotiate TLS.

    Raises:
        OSError: If the host does not exist or does not answer, or TLS fails.
    """

    def __init__(self, place: SplitResult, timeout_s: float) -> None:
        self.start(timeout_s)
        host = place.hostname or ""
        self._socket = self._connect_first(_resolve_addresses(host, place.port or 0, self.get_remaining_s()))
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if place.scheme in _SECURE:
                with self.apply_deadline():
                    self._socket = ssl.create_default_context().wrap_socket(self._socket, server_hostname=host)
        except BaseException:
            self._socket.close()
            raise

    def start(self, timeout_s: float) -> None:
        """Set the deadline for the following calls to ``timeout_s`` seconds from now."""
        self._timeout_s, self._deadline = timeout_s, time.monotonic() + timeout_s

    def get_remaining_s(self) -> float:
        """Return the seconds until the deadline.

        Raises:
            TimeoutError: If the deadline has passed.
        """
        left = self._deadline - time.monotonic()
        if left <= 0.0:
            raise TimeoutError(self._timeout_message)
        return left

    @property
    def _timeout_message(self) -> str:
        return f"no complete answer within {self._timeout_s:g} s"

    @contextlib.contextmanager
    def apply_deadline(self) -> Iterator[None]:
        """Limit the socket calls in a ``with`` block to the time that is left until the deadline.

        Raises:
            TimeoutError: If the deadline passes; the message gives the whole time limit.
        """
        self._socket.settimeout(self.get_remaining_s())
        try:
            yield
        except TimeoutError as error:
            raise TimeoutError(self._timeout_message) from error

    def sendall(self, data: Any) -> None:
        """Send all bytes before the deadline."""
        rest = memoryview(data)
        while rest:
            with self.apply_deadline():
                rest = rest[self._socket.send(rest) :]

    def recv(self) -> bytes:
        """Return the next received bytes; empty if the server has closed the connection."""
        with self.apply_deadline():
            return self._socket.recv(_CHUNK)

    def read_unrequested(self) -> bytes | None:
        """Return bytes that the server sent without a request, without waiting for them.

        The result is b"" if the server has closed the connection, and None if there are no bytes.
        """
        self._socket.setblocking(False)
        try:
            return self._socket.recv(_CHUNK)
        except (BlockingIOError, ssl.SSLWantReadError):
            return None

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        """Return a file object that reads from the socket until the deadline, as `http.client` requires."""
        return io.BufferedReader(_DeadlineReader(self, self._socket))

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _connect_first(self, addresses: list[Any]) -> socket.socket:
        """Return a connection to the first address that accepts one.

        Each address gets an equal share of the remaining time.

        Args:
            addresses: addresses as `socket.getaddrinfo` returns them.
        """
        last: OSError | None = None
        for index, (family, kind, protocol, _, address) in enumerate(addresses):
            connection = socket.socket(family, kind, protocol)
            try:
                connection.settimeout(self.get_remaining_s() / (len(addresses) - index))
                connection.connect(address)
            except OSError as error:
                connection.close()
                last = error
            else:
                return connection
        raise last or OSError("the host has no address")


class _DeadlineReader(io.RawIOBase):
    """Raw file that reads from a `TimedSocket` until its deadline; the socket stays open until the file is closed."""

    def __init__(self, timed: TimedSocket, connection: socket.socket) -> None:
        self._timed = timed
        self._file = connection.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        with self._timed.apply_deadline():
            return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


def _resolve_addresses(host: str, port: int, timeout_s: float) -> list[Any]:
    """Return the network addresses of a host, as `socket.getaddrinfo` does, but with a time limit.

    The look-up runs in a thread, because the operating system has no deadline for it.

    Raises:
        OSError: If the host does not exist or its name is invalid.
        TimeoutError: If there is no result within ``timeout_s``.
    """
    thread = CallThread("look-up of a host's address")
    thread.start(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    answer = thread.wait(timeout_s)
    thread.close()
    if answer is None:
        raise TimeoutError(f"no address of {host} was found within {timeout_s:g} s")
    if isinstance(answer.error, UnicodeError):
        raise OSError("this is not a valid host name") from answer.error
    if answer.error is not None:
        raise answer.error
    return answer.value


class HttpConnection(http.client.HTTPConnection):
    """HTTP connection, with or without TLS, with one deadline for each request and its answer.

    Args:
        place: URL of the server with host and port; its scheme selects TLS.
        timeout_s: longest time in s to connect by `connect`. The argument ``timeout_s`` of `exchange` sets the deadline
            of one request.
    """

    def __init__(self, place: SplitResult, timeout_s: float) -> None:
        super().__init__(place.hostname or "", place.port)
        self._place, self._timeout_s = place, timeout_s

    def connect(self) -> None:
        """Connect to the server; `request` calls this method if necessary."""
        self.sock: Any = TimedSocket(self._place, self._timeout_s)

    def exchange(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], *, limit: int, timeout_s: float
    ) -> tuple[int, bytes]:
        """Send a request, and return the status and the whole body of its answer.

        Args:
            limit: largest body of the answer in bytes.
            timeout_s: longest time in s for the request and the whole answer.

        Raises:
            OSError: If the connection was lost, or the deadline passed.
            HTTPException: If the answer is not HTTP, is cut short, or is longer than ``limit`` (`http.client`).
        """
        if self.sock is None:
            self._timeout_s = timeout_s
            self.connect()
        else:
            self.sock.start(timeout_s)
            if self.sock.read_unrequested() is not None:
                raise ConnectionError("the server closed the connection, or sent more than requested")
        self.request(method, path, body or None, dict(headers))
        with self.getresponse() as response:
            if (response.length or 0) > limit:
                raise http.client.HTTPException(f"the answer has {response.length} bytes; at most {limit} are read")
            data = response.read(limit + 1)
            if len(data) > limit:
                raise http.client.HTTPException(f"the answer has more than {limit} bytes")
            if response.length:
                raise http.client.HTTPException(f"{response.length} bytes of the answer are missing")
        return response.status, data


class WebSocketStream:
    """WebSocket with one deadline for each message and its answer.

    Args:
        place: address with the scheme ``ws`` or ``wss``, host and port.
        headers: headers of the handshake.
        timeout_s: longest time in s to connect, including the handshake.
        limit: largest message in bytes.

    Raises:
        MissingDependencyError: If the package websockets is not installed.
        OSError: If the server cannot be reached, or the connection is lost.
        WebSocketException: If the handshake fails (`websockets.exceptions`).
    """

    def __init__(
        self, place: SplitResult, path: str, headers: Mapping[str, str], *, timeout_s: float, limit: int
    ) -> None:
        try:
            from websockets.client import ClientProtocol  # pyright: ignore[reportMissingImports]
            from websockets.uri import parse_uri  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise MissingDependencyError(
                "ws:// needs the package websockets; http:// works without it.", remedy="pip install 'twinloop[serve]'"
            ) from error
        log = logging.getLogger(f"{__name__}.websocket")
        log.setLevel(logging.WARNING)  # below this level, the package would log all headers, including the token
        self._protocol = ClientProtocol(parse_uri(f"{place.geturl()}{path}"), max_size=limit, logger=log)
        self._messages: list[bytes] = []
        self._parts: list[bytes] = []
        self._timed = TimedSocket(place, timeout_s)
        try:
            request = self._protocol.connect()
            request.headers.update(headers)
            self._protocol.send_request(request)
            self._flush()
            while self._protocol.state.name == "CONNECTING":
                self._read(self._timed.recv())
        except BaseException:
            self._timed.close()
            raise

    def start(self, timeout_s: float) -> None:
        """Set the deadline for the next message and its answer to ``timeout_s`` seconds from now.

        Raises:
            ConnectionError: If the server has closed the connection, or has sent a message without a request.
        """
        self._timed.start(timeout_s)
        while (data := self._timed.read_unrequested()) is not None:
            self._timed.get_remaining_s()
            self._read(data)
        if self._messages:
            raise ConnectionError("the server sent a message that was not requested")

    def send(self, data: bytes) -> None:
        """Send one binary message."""
        self._protocol.send_binary(data)
        self._flush()

    def receive(self) -> bytes:
        """Wait for the next message until the deadline of `start`, and return it.

        Raises:
            OSError: If the server closed the connection or sent text, or the deadline passed (`TimeoutError`).
            EOFError: If the connection ended without WebSocket's close frame.
            WebSocketException: If the server broke the protocol (`websockets.exceptions`).
        """
        while not self._messages:
            self._read(self._timed.recv())
        return self._messages.pop(0)

    def close(self) -> None:
        """Send WebSocket's close frame without waiting for an answer, and close the socket."""
        try:
            if self._protocol.state.name == "OPEN":
                self._timed.start(0.1)
                self._protocol.send_close(1000)
                self._flush()
        except OSError:
            return  # the connection is lost already
        finally:
            self._timed.close()

    def _read(self, data: bytes) -> None:
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        for event in self._protocol.events_received():
            self._handle_event(event)
        error = self._protocol.handshake_exc or self._protocol.parser_exc
        if error is not None and not self._messages:
            raise error
        self._flush()
        if not data and not self._messages:
            raise ConnectionError("the server closed the connection")

    def _handle_event(self, event: Any) -> None:
        """Add a received frame to its message; pings were already answered.

        Raises:
            ConnectionError: If the server closed the connection or sent text.
        """
        kind = getattr(getattr(event, "opcode", None), "name", "")
        if kind == "CLOSE":
            close = self._protocol.close_rcvd
            raise ConnectionError(f"the server closed the connection ({close})")
        if kind == "TEXT":
            raise ConnectionError("the server sent text instead of a message")
        if kind in ("BINARY", "CONT"):
            self._parts.append(bytes(event.data))
            if event.fin:
                self._messages.append(b"".join(self._parts))
                self._parts = []

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:  # empty data is a request to close, which the caller decides
                self._timed.sendall(data)
