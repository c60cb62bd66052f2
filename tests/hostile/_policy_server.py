"""Raw clients of a policy server with short limits: what an attacker sends, byte by byte."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.running import served
from support.serve import Adding, observation
from twinloop.release.serve import PolicyServer
from twinloop.release.serve_wire import Message, decode, encode
from twinloop.release.serve_worker import ServeLimits

Observed = Callable[[object], None]
LIMITS = ServeLimits(
    header_s=0.4,
    body_s=0.4,
    write_s=0.4,
    rest_s=0.4,
    first_s=0.5,
    idle_s=1.0,
    gone_s=0.3,
    policy_s=0.4,
    stop_s=1,
    linger_s=0.2,
    connections=14,
    connections_per_address=10,
    sessions_per_connection=3,
)
PATIENCE_S = 60.0  # for events that the limits above end within a second; the machine may be busy
SLACK_S = 3.0  # of a busy machine, beyond the limits
STEP_S = 0.05  # between two bytes of a client that sends slowly
UPGRADE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
)
ACT = encode(Message(kind="act", arrays=observation()))


def hostile(name: str, tried: str, expected: str, *values: Any, slow: bool = False) -> Any:
    """One row of the table of attacks."""
    marks = [pytest.mark.attack(tried, expected=expected), *([pytest.mark.slow] if slow else [])]
    return pytest.param(*values, marks=marks, id=name)


def replaced(**changes: Any) -> ServeLimits:
    """The short limits with others instead of some."""
    return ServeLimits(**{**vars(LIMITS), **changes})


class Gated(Adding):
    """A policy that waits until it is released, for observations whose first joint is at 9."""

    release = threading.Event()
    waiting = threading.Event()

    def act(self, observation: Any) -> np.ndarray:
        if observation["observation.state"][0] == 9.0:
            Gated.waiting.set()
            Gated.release.wait(60.0)
        return super().act(observation)


@contextlib.contextmanager
def gated() -> Iterator[type[Gated]]:
    """Keep a policy waiting until the block ends."""
    Gated.release.clear()
    Gated.waiting.clear()
    try:
        yield Gated
    finally:
        Gated.release.set()


def serving(make: Callable[[], Adding] = Adding, **options: Any) -> contextlib.AbstractContextManager[PolicyServer]:
    """A server with short limits, and with place for the sessions that quick tests leave behind."""
    return served(make, **{"limits": LIMITS, "sessions": 200, **options})


def port_of(server: PolicyServer) -> int:
    return int(server.address.rpartition(":")[2])


def connected(server: PolicyServer, source: str = "127.0.0.1") -> socket.socket:
    """A raw connection to a server, from one of this machine's own addresses."""
    return socket.create_connection(("127.0.0.1", port_of(server)), timeout=PATIENCE_S, source_address=(source, 0))


def head(method: str, path: str, *fields: str) -> bytes:
    """The line and the headers of a request, without the blank line after them."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *fields, ""]).encode()


def post(path: str, body: bytes = b"", *fields: str) -> bytes:
    return head("POST", path, f"Content-Length: {len(body)}", *fields) + b"\r\n" + body


def sent(server: PolicyServer, data: bytes) -> tuple[int, bytes]:
    """Status and body of the answer to raw bytes."""
    with connected(server) as line:
        line.sendall(data)
        return answer(line)


def answer(line: socket.socket) -> tuple[int, bytes]:
    """Status and body of the next answer; 0 where the connection ends without one."""
    response = http.client.HTTPResponse(line)
    try:
        response.begin()
        body = response.read()
    except (http.client.HTTPException, ConnectionError):
        return 0, b""
    return response.status, body


def message_of(body: bytes) -> str:
    return json.loads(body)["message"]


def opened(line: socket.socket) -> str:
    """Open a session over a raw connection; returns its path."""
    line.sendall(post("/v1/sessions"))
    status, body = answer(line)
    assert status == 200, body
    return f"/v1/sessions/{json.loads(body)['session']}"


def streamed(server: PolicyServer) -> socket.socket:
    """A raw WebSocket whose session is open."""
    line = connected(server)
    line.sendall(UPGRADE + b"\r\n")
    assert read_head(line).startswith(b"HTTP/1.1 101")
    wait_for(lambda: len(server.sessions) > 0, "no session was opened")
    return line


def read_head(line: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        piece = line.recv(1)
        assert piece, data
        data += piece
    return data


def frame(data: bytes, *, opcode: int = 2, fin: bool = True, announced: int | None = None) -> bytes:
    """A client's frame of a WebSocket, masked with zeros."""
    length = len(data) if announced is None else announced
    first = opcode | (0x80 if fin else 0)
    if length < 126:
        start = struct.pack("!BB", first, 0x80 | length)
    elif length < 2**16:
        start = struct.pack("!BBH", first, 0x80 | 126, length)
    else:
        start = struct.pack("!BBQ", first, 0x80 | 127, length)
    return start + b"\0\0\0\0" + data


def frames_until_closed(line: socket.socket) -> bytes:
    """Everything that the server still sends."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := line.recv(65536):
            data += piece
    return data


def unframed(data: bytes) -> Message:
    """The message in the first frame that a server sent."""
    length, start = data[1], 2
    if length == 126:
        length, start = struct.unpack_from("!H", data, 2)[0], 4
    return decode(data[start : start + length])


def seconds_until_closed(line: socket.socket, drip: Callable[[int], bytes] = lambda _: b"") -> float:
    """Send something again and again, and return after how long the server has closed the connection."""
    begin, count = time.monotonic(), 0
    line.settimeout(STEP_S)
    while time.monotonic() - begin < PATIENCE_S:
        try:
            line.sendall(drip(count))
            count += 1
            if not line.recv(65536):
                break
            time.sleep(STEP_S)
        except TimeoutError:
            continue
        except OSError:
            break
    else:
        raise AssertionError(f"the server still waits after {PATIENCE_S:g} s")
    return time.monotonic() - begin


def wait_for(condition: Callable[[], object], otherwise: str, patience_s: float = PATIENCE_S) -> float:
    """Wait until something is the case; returns how long it took."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < patience_s, otherwise
        time.sleep(0.005)
    return time.monotonic() - begin


def assert_serves(server: PolicyServer) -> None:
    """An honest client is served, and nothing of the ones before is left."""
    with connected(server) as line:
        path = opened(line)
        line.sendall(post(path, ACT))
        status, body = answer(line)
        assert status == 200, body
        np.testing.assert_array_equal(decode(body).arrays["action"], np.full(6, 3.0))
        line.sendall(head("DELETE", path) + b"\r\n")
        assert answer(line)[0] == 200


def reset(line: socket.socket) -> None:
    """Close with a reset, as the system does for a process that dies with unread data."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.close()


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def assert_no_traceback(body: bytes) -> None:
    for word in (b"Traceback", b'File "', b".py", b"site-packages"):
        assert word not in body, body


def serves(server: PolicyServer) -> bool:
    """Return whether an honest client is served now; clients that have gone may still wait to be noticed."""
    try:
        assert_serves(server)
    except (AssertionError, OSError):
        return False
    return True
