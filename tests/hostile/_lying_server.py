"""Policy servers that send false data, stall or exit: network faults for a client's robot."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from support.serve import CONTRACT
from twinloop.release.serve_wire import Message, encode

STEP_S = 0.02  # between two bytes of a server that answers slowly
Script = Callable[[socket.socket], object]
ACTION = encode(Message(kind="action", arrays={"action": np.full(6, 3.0)}))
POLICY: dict[str, Any] = {
    "protocol": 1,
    "policy": "lying",
    "hash": "0" * 64,
    "contract": CONTRACT.to_json(),
    "largest_message": 10**6,
}


def http_answer(body: bytes, status: str = "200 OK", *fields: str) -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields, "", ""])
    return head.encode() + body


def frame(data: bytes, *, opcode: int = 2, fin: bool = True, announced: int | None = None) -> bytes:
    """A server's frame of a WebSocket."""
    length = len(data) if announced is None else announced
    first = opcode | (0x80 if fin else 0)
    if length < 126:
        return struct.pack("!BB", first, length) + data
    if length < 2**16:
        return struct.pack("!BBH", first, 126, length) + data
    return struct.pack("!BBQ", first, 127, length) + data


def handshake(request: bytes) -> bytes:
    """Return the valid answer to a client's WebSocket request."""
    key = request.partition(b"Sec-WebSocket-Key: ")[2].partition(b"\r\n")[0]
    proof = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
        + proof
        + b"\r\n\r\n"
    )


def says(data: bytes) -> Script:
    return lambda line: line.sendall(data)


def drips(begin: bytes, piece: bytes) -> Script:
    """Answer a begin, and then the same piece again and again."""

    def script(line: socket.socket) -> None:
        line.sendall(begin)
        while True:
            time.sleep(STEP_S)
            line.sendall(piece)

    return script


def floods(begin: bytes, piece: bytes) -> Script:
    """Answer a begin, and then the same piece as fast as it goes."""

    def script(line: socket.socket) -> None:
        line.sendall(begin)
        while True:
            line.sendall(piece)

    return script


def nothing(line: socket.socket) -> None:
    line.settimeout(20.0)
    while line.recv(65536):
        pass


def refuses_to_read(_: socket.socket) -> None:
    time.sleep(1.2)


def resets(line: socket.socket) -> None:
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.close()


def finished(line: socket.socket) -> None:
    """Shut down sending, and read until the client closes, so that it can read all of the answer."""
    line.shutdown(socket.SHUT_WR)
    nothing(line)


class LyingServer:
    """Answers as a policy server does, except for the given replacements.

    Args:
        policy: body of the answer to ``GET /v1/policy``, or a function to call instead.
        session: the same for ``POST /v1/sessions``.
        act: function to call on a message.
        shake: function to call on a WebSocket request.
        receive_bytes: size of the receive buffer; 0 leaves the system's.
    """

    def __init__(
        self,
        *,
        policy: Any = POLICY,
        session: Any = None,
        act: Script = nothing,
        shake: Script | None = None,
        receive_bytes: int = 0,
    ) -> None:
        self._policy, self._session = policy, {"session": "a" * 32} if session is None else session
        self._act, self._shake = act, shake
        self.requests: list[bytes] = []
        self._lines: list[socket.socket] = []
        self._listener = socket.socket()
        if receive_bytes:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for line in self._lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10.0)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._listener.accept()
                self._lines.append(line)
                thread = threading.Thread(target=self._serve, args=(line,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, line: socket.socket) -> None:
        with contextlib.suppress(OSError), line:
            while head := self._head(line):
                self.requests.append(head)
                if head.startswith(b"GET /v1/policy"):
                    self._answer(line, self._policy)
                elif head.startswith(b"GET /v1/stream"):
                    if self._shake is not None:
                        self._shake(line)
                    else:
                        line.sendall(handshake(head))
                        if line.recv(65536):  # the robot's message
                            self._act(line)
                    return finished(line)
                elif head.startswith(b"POST /v1/sessions "):
                    self._answer(line, self._session)
                elif head.startswith(b"POST"):
                    self._act(line)
                    return finished(line)
                else:
                    line.sendall(http_answer(b"{}"))
        return None

    def _answer(self, line: socket.socket, answer: Any) -> None:
        if callable(answer):
            answer(line)
            finished(line)
        else:
            line.sendall(http_answer(answer if isinstance(answer, bytes) else json.dumps(answer).encode()))

    def _head(self, line: socket.socket) -> bytes:
        """The headers of the next request; a body stays unread, unless it comes along."""
        data = b""
        while b"\r\n\r\n" not in data:
            piece = line.recv(1)
            if not piece:
                return b""
            data += piece
        return data


@contextlib.contextmanager
def lying(**given: Any) -> Iterator[LyingServer]:
    server = LyingServer(**given)
    try:
        yield server
    finally:
        server.close()
