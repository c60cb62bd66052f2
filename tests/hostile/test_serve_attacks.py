"""Attacks on a policy server's connections: clients that are slow, many, or dead."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from _policy_server import (
    ACT,
    LIMITS,
    PATIENCE_S,
    SLACK_S,
    STEP_S,
    UPGRADE,
    Observed,
    answer,
    assert_serves,
    connected,
    frame,
    gated,
    head,
    hostile,
    message_of,
    open_files,
    opened,
    post,
    read_head,
    replaced,
    reset,
    seconds_until_closed,
    sent,
    serves,
    serving,
    streamed,
    wait_for,
)

from support.serve import CONTRACT, Adding, observation
from twinloop.release.serve import PolicyServer
from twinloop.release.serve_wire import Message, encode


@pytest.fixture(scope="module")
def server() -> Iterator[PolicyServer]:
    with serving() as running:
        yield running


# --- clients that send slowly, or not at all ---

CLOSED = "closed after the time for headers (5 s; here 0.4 s)"
BODY = "closed after the time for a body (10 s; here 0.4 s)"


def letter(_: int) -> bytes:
    return b"a"


def silence(_: int) -> bytes:
    return b""


def pings(_: int) -> bytes:
    return frame(b"", opcode=9)


SLOW = [
    hostile("silent", "connect and send nothing", CLOSED, b"", silence),
    hostile("header-bytes", "send one byte of a header at a time, for ever", CLOSED, head("GET", "/health"), letter),
    hostile(
        "header-lines", "send one more header line at a time", CLOSED, head("GET", "/health"), lambda i: b"x: y\r\n"
    ),
    hostile("request-line", "send the letters of an endless method", CLOSED, b"", letter),
    hostile(
        "second-request",
        "a good request, then a second one byte by byte on the same connection",
        CLOSED,
        head("GET", "/health") + b"\r\n",
        letter,
    ),
    hostile(
        "pipelined-half",
        "a good request together with half of the next",
        CLOSED,
        head("GET", "/health") + b"\r\n" + head("GET", "/health"),
        silence,
    ),
    hostile(
        "rest",
        "keep a connection without a session open after its answer",
        "closed after the time to rest (10 s; here 0.4 s)",
        head("GET", "/health") + b"\r\n",
        silence,
    ),
    hostile(
        "late-body",
        "send the body of a message to an unknown session byte by byte",
        BODY,
        head("POST", "/v1/sessions/none", "Content-Length: 60000") + b"\r\n",
        letter,
    ),
    hostile(
        "handshake",
        "send the handshake of a WebSocket line by line",
        CLOSED,
        UPGRADE,
        lambda i: f"x{i}: y\r\n".encode(),
    ),
]


@pytest.mark.parametrize(("begin", "drip"), SLOW)
def test_a_slow_client_is_closed(server: PolicyServer, begin: bytes, drip: Callable, observed: Observed) -> None:
    with connected(server) as line:
        line.sendall(begin)
        took = seconds_until_closed(line, drip)
    observed(f"closed after {'less than a second' if took < 1 else f'{took:.1f} s'}")
    assert took < LIMITS.body_s + SLACK_S
    assert_serves(server)


SLOW_BODIES = [
    hostile("bytes", "send a body one byte at a time", BODY, f"Content-Length: {len(ACT)}", letter),
    hostile(
        "short", "announce a longer body than the one that comes", BODY, f"Content-Length: {len(ACT) + 9}", silence
    ),
    hostile(
        "chunks", "send chunks of one byte without end", BODY, "Transfer-Encoding: chunked", lambda i: b"1\r\na\r\n"
    ),
    hostile(
        "expect", "ask for 100 Continue and send nothing", BODY, "Content-Length: 9\r\nExpect: 100-continue", silence
    ),
]


@pytest.mark.parametrize(("field", "drip"), SLOW_BODIES)
def test_a_slow_body_is_refused_with_408_and_frees_the_session(
    server: PolicyServer, field: str, drip: Callable, observed: Observed
) -> None:
    with connected(server) as line:
        path = opened(line)
        line.sendall(head("POST", path, field) + b"\r\n")
        took = seconds_until_closed(line, drip)
        observed("closed, and the session takes messages again")
        assert took < LIMITS.body_s + SLACK_S
        status, _ = sent(server, post(path, ACT))
        assert status == 200


@pytest.mark.attack("read the answer to a body that came too late", expected="408, naming the limit")
def test_a_late_body_is_told_why(server: PolicyServer, observed: Observed) -> None:
    with connected(server) as line:
        line.sendall(head("POST", opened(line), "Content-Length: 99") + b"\r\nabc")
        status, body = answer(line)
    observed(message_of(body))
    assert status == 408
    assert "body was not complete after 0.4 s" in message_of(body)


SLOW_STREAMS = [
    hostile(
        "frame",
        "announce a WebSocket message of 60,000 bytes and send one byte at a time",
        BODY,
        lambda i: frame(b"", announced=60_000) if i == 0 else b"a",
    ),
    hostile(
        "fragments",
        "send a WebSocket message in endless fragments of one byte, with pings between them",
        BODY,
        lambda i: frame(b"a", opcode=0 if i else 2, fin=False) + frame(b"", opcode=9),
    ),
    hostile(
        "empty-fragments",
        "send a WebSocket message in endless empty fragments, thousands at a time",
        BODY,
        lambda i: frame(b"", fin=False) if i == 0 else 5000 * frame(b"", opcode=0, fin=False),
    ),
    hostile("silent", "open a WebSocket and send nothing", "closed after the time for a first message (30 s)", silence),
    hostile("pings", "open a WebSocket and only ping", "closed after the time for a first message (30 s)", pings),
    hostile("half-header", "send the first byte of a WebSocket frame, and nothing more", BODY, lambda i: b"\x82"[i:]),
]


@pytest.mark.parametrize("drip", SLOW_STREAMS)
def test_a_slow_stream_is_closed_and_its_slot_given_back(drip: Callable, observed: Observed) -> None:
    # The time for a first message must not help where a message is under way.
    limits = LIMITS if drip in (silence, pings) else replaced(first_s=600.0, idle_s=600.0)
    with serving(sessions=1, limits=limits) as server, streamed(server) as line:
        took = seconds_until_closed(line, drip)
        wait_for(lambda: len(server.sessions) == 0, "the slot was not given back")
        observed("closed, and the slot given back")
        assert took < max(LIMITS.body_s, LIMITS.first_s) + LIMITS.linger_s + SLACK_S
        assert_serves(server)


@pytest.mark.attack("ask for thousands of answers and read none of them", expected="closed after 10 s (here 0.4 s)")
def test_a_client_that_does_not_read_is_closed(server: PolicyServer, observed: Observed) -> None:
    with connected(server) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        took = flooded(line, 200 * (head("GET", "/v1/policy") + b"\r\n"))
    observed("closed")
    assert took < PATIENCE_S


class Wordy(Adding):
    """A policy whose description has 20 kB, less than asyncio keeps for a client before it complains."""

    contract = dataclasses.replace(CONTRACT, environment=tuple(f"{i:0100d}" for i in range(200)))


@pytest.mark.attack(
    "leave the last 20 kB of an answer unread, which the server then holds in memory",
    expected="closed after 10 s (here 0.4 s)",
)
def test_a_client_that_leaves_a_little_unread_is_closed(observed: Observed) -> None:
    with serving(Wordy, limits=replaced(rest_s=60.0)) as server:
        server._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)  # of connections to come

        def gone() -> bool:
            return not server._server.server_state.connections

        for count in range(1, 30):  # one answer more each time, until one does not fit into the system's buffers
            with connected(server) as line:
                line.sendall(count * (head("GET", "/v1/policy") + b"\r\n"))
                [theirs] = wait_for_connections(server)
                time.sleep(2 * STEP_S)  # what the system still takes is gone by then
                unread = theirs.transport.get_write_buffer_size
                if unread():  # on a busy machine the system may take it later: then one answer more is tried
                    wait_for(lambda: gone() or not unread(), "the connection was kept")  # noqa: B023 - of this round
                    if gone():
                        break
            wait_for(gone, "the connection was kept")
        else:
            raise AssertionError("the system took all answers")
    observed("closed")


def wait_for_connections(server: PolicyServer) -> list[Any]:
    """The server's own side of its connections."""
    wait_for(lambda: server._server.server_state.connections, "nobody is connected")
    return list(server._server.server_state.connections)


@pytest.mark.attack(
    "send WebSocket pings without end and read none of the answers", expected="closed after 10 s (here 0.4 s)"
)
def test_a_flood_of_pings_is_closed(observed: Observed) -> None:
    with serving(sessions=1, limits=replaced(first_s=60.0, idle_s=60.0)) as server, streamed(server) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        took = flooded(line, 500 * frame(b"p" * 125, opcode=9))
        wait_for(lambda: len(server.sessions) == 0, "the slot was not given back")
    observed("closed, and the slot given back")
    assert took < PATIENCE_S


def flooded(line: socket.socket, data: bytes) -> float:
    """Send the same again and again without reading, until the server has closed; returns the seconds."""
    begin = time.monotonic()
    line.settimeout(0.2)
    while time.monotonic() - begin < PATIENCE_S:
        with contextlib.suppress(TimeoutError):
            try:
                line.sendall(data)
            except (ConnectionError, BrokenPipeError):
                break
    return time.monotonic() - begin


# --- too many connections and sessions ---


@pytest.mark.attack(
    "open more connections than the server takes from one address (64; here 10)",
    expected="503 with Retry-After; another address is served; afterwards all are served",
)
def test_one_address_cannot_take_all_connections(observed: Observed) -> None:
    with serving(limits=replaced(header_s=60.0)) as server, contextlib.ExitStack() as held:
        for _ in range(LIMITS.connections_per_address):
            held.enter_context(connected(server))
        with connected(server) as line:
            line.sendall(head("GET", "/health") + b"\r\n")
            refusal = read_head(line).decode()
        assert refusal.startswith("HTTP/1.1 503")
        assert "retry-after: 5" in refusal.lower()
        with connected(server, "127.0.0.2") as line:
            line.sendall(head("GET", "/health") + b"\r\n")
            assert answer(line)[0] == 200
        held.close()
        observed("503 for the eleventh, 200 for another address")
        wait_for(lambda: sent(server, head("GET", "/health") + b"\r\n")[0] == 200, "connections were not given back")


@pytest.mark.attack(
    "open more connections than the server takes in all (128; here 14), from two addresses",
    expected="503; those who are connected are served on; dropped at once beyond twice as many",
)
def test_connections_are_limited_in_all(observed: Observed) -> None:
    with serving(limits=replaced(header_s=60.0, rest_s=60.0, linger_s=60.0)) as server, contextlib.ExitStack() as held:
        early = held.enter_context(connected(server))
        path = opened(early)
        lines = [held.enter_context(connected(server, f"127.0.0.{2 + i % 3}")) for i in range(LIMITS.connections - 1)]
        late = [held.enter_context(connected(server, f"127.0.0.{5 + i % 5}")) for i in range(30)]
        answers = [answer(line)[0] for line in late]
        assert answers[:10] == [503] * 10
        assert answers[-1] == 0
        early.sendall(post(path, ACT))
        assert answer(early)[0] == 200
        assert len(lines) == 13
        observed(f"{answers.count(503)} refused, {answers.count(0)} dropped, the first still served")


@pytest.mark.attack(
    "open sessions over one connection until the server is full",
    expected="503 after 4 that are not used (here 3); robots that share a proxy's connection are served",
)
def test_one_connection_cannot_take_all_sessions(server: PolicyServer, observed: Observed) -> None:
    with connected(server) as line:
        for _ in range(2 * LIMITS.sessions_per_connection):  # as robots do that share a proxy's connection
            line.sendall(post(opened(line), ACT))
            assert answer(line)[0] == 200
        for _ in range(LIMITS.sessions_per_connection):
            opened(line)
        line.sendall(post("/v1/sessions"))
        status, body = answer(line)
    observed(message_of(body))
    assert status == 503
    assert "has opened 3 sessions without using them" in message_of(body)


@pytest.mark.attack("open a session where all are taken", expected="503 with Retry-After, naming --sessions")
def test_a_full_server_answers_503(observed: Observed) -> None:
    with serving(sessions=1) as server, connected(server) as line:
        path = opened(line)
        line.sendall(post(path, ACT))
        assert answer(line)[0] == 200
        with connected(server) as other:
            other.sendall(post("/v1/sessions"))
            begin = read_head(other).lower()
        observed(begin.splitlines()[0].decode())
        assert begin.startswith(b"http/1.1 503")
        assert b"retry-after: 1" in begin


@pytest.mark.attack(
    "open all sessions and never use them", expected="they make room after 30 s (here 0.5 s), used ones do not"
)
def test_sessions_that_are_never_used_make_room(observed: Observed) -> None:
    with serving(sessions=2, limits=replaced(rest_s=60.0, idle_s=60.0)) as server, connected(server) as line:
        used, unused = opened(line), opened(line)
        line.sendall(post(used, ACT))
        assert answer(line)[0] == 200
        with connected(server) as other:
            wait_for(lambda: other.sendall(post("/v1/sessions")) or answer(other)[0] == 200, "no room was made")
            line.sendall(post(used, ACT))
            assert answer(line)[0] == 200
            line.sendall(post(unused, ACT))
            assert answer(line)[0] == 404
    observed("the unused one was closed, the other goes on")


# --- clients that die ---


def dies_by(how: str, line: socket.socket) -> None:
    if how == "reset":
        reset(line)
    elif how == "half":
        line.shutdown(socket.SHUT_WR)
    else:
        line.close()


DEATHS = [
    hostile(f"{kind}-{how}", f"{said} while its session is open, over {kind}", f"slot given back {when}", kind, how)
    for kind, when in (("http", "10 s later (here 0.3 s)"), ("websocket", "at once"))
    for how, said in (
        ("close", "a client closes its socket without a word"),
        ("reset", "a client's connection is reset"),
        ("half", "a client closes only its sending side"),
    )
]


@pytest.mark.parametrize(("kind", "how"), DEATHS)
def test_a_dead_client_gives_its_slot_back(kind: str, how: str, observed: Observed) -> None:
    with serving(sessions=1, limits=replaced(idle_s=600.0, rest_s=60.0)) as server:
        line = streamed(server) if kind == "websocket" else connected(server)
        if kind == "http":
            line.sendall(post(opened(line), ACT))
            assert answer(line)[0] == 200
        assert len(server.sessions) == 1
        dies_by(how, line)
        wait_for(lambda: len(server.sessions) == 0, "the slot was not given back", LIMITS.gone_s + SLACK_S)
        assert_serves(server)
        line.close()
    observed("slot given back")


KILLED = """
import socket, sys, time
line = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
line.sendall(bytes.fromhex(sys.argv[2]))
line.recv(65536)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    "request_bytes",
    [
        hostile("http", "kill -9 a client that has a session over HTTP", "slot given back", post("/v1/sessions")),
        hostile("websocket", "kill -9 a client that has a WebSocket", "slot given back", UPGRADE + b"\r\n"),
    ],
)
def test_a_killed_client_gives_its_slot_back(request_bytes: bytes, observed: Observed) -> None:
    with serving(sessions=1, limits=replaced(first_s=600.0, idle_s=600.0)) as server:
        port = server.address.rpartition(":")[2]
        words = [sys.executable, "-S", "-c", KILLED, port, request_bytes.hex()]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == b"ready\n"
            wait_for(lambda: len(server.sessions) == 1, "no session was opened")
            client.kill()
        took = wait_for(lambda: len(server.sessions) == 0, "the slot was not given back", LIMITS.gone_s + SLACK_S)
        observed("slot given back")
        assert took < LIMITS.gone_s + SLACK_S
        assert_serves(server)


@pytest.mark.parametrize(
    "kind",
    [
        hostile("http", "a client dies while the policy computes its answer, over HTTP", "slot given back", "http"),
        hostile(
            "websocket", "a client dies while the policy computes its answer, over a WebSocket", "slot given back", "ws"
        ),
    ],
)
def test_a_client_that_dies_while_the_policy_computes(kind: str, observed: Observed) -> None:
    long = replaced(policy_s=60.0, idle_s=600.0)
    with gated() as policy, serving(policy, sessions=1, limits=long) as server:
        late = encode(Message(kind="act", arrays=observation(9.0)))
        line = streamed(server) if kind == "ws" else connected(server)
        line.sendall(frame(late) if kind == "ws" else post(opened(line), late))
        assert policy.waiting.wait(PATIENCE_S)
        reset(line)
        if kind == "http":
            wait_for(lambda: len(server.sessions) == 0, "the slot was not given back")
        policy.release.set()
        wait_for(lambda: len(server.sessions) == 0, "the slot was not given back")
        assert_serves(server)
    observed("slot given back")


@pytest.mark.attack(
    "a client dies in the middle of its body", expected="nothing in the log, its session takes messages"
)
def test_a_client_that_dies_in_its_body(server: PolicyServer, observed: Observed, caplog: Any) -> None:
    with connected(server) as line:
        path = opened(line)
        with connected(server) as dying:
            dying.sendall(head("POST", path, f"Content-Length: {len(ACT)}") + b"\r\n" + ACT[:50])
            time.sleep(STEP_S)
            reset(dying)
        wait_for(lambda: sent(server, post(path, ACT))[0] == 200, "the session stays busy")
    observed(caplog.text or "nothing in the log")
    assert caplog.text == ""


@pytest.mark.attack("a client goes on with its session over another connection", expected="its session lives on")
def test_a_session_that_moves_to_another_connection_lives_on(server: PolicyServer, observed: Observed) -> None:
    with connected(server) as first:
        path = opened(first)
    with connected(server) as second:
        second.sendall(post(path, ACT))
        assert answer(second)[0] == 200
        time.sleep(2 * LIMITS.gone_s)
        second.sendall(post(path, ACT))
        status, _ = answer(second)
    observed(status)
    assert status == 200


@pytest.mark.attack(
    "a client's machine loses its power or its network", expected="the kernel asks after it, and ends it after 25 s"
)
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux's names")
def test_the_kernel_asks_after_silent_clients(server: PolicyServer, observed: Observed) -> None:
    with connected(server) as line:
        opened(line)
        copies = accepted_sockets()
        [theirs] = [copy for copy in copies if copy.getpeername() == line.getsockname()]
        options = [theirs.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)]
        names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        options += [theirs.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names]
        for copy in copies:
            copy.close()
    observed(f"keep-alive {options[0]}, asked after {options[1]} s and {options[3]} times every {options[2]} s")
    assert options == [1, 10, 5, 3, 25_000]


def accepted_sockets() -> list[socket.socket]:
    """Copies of this process's connected TCP sockets."""
    found = []
    for entry in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):
            if str(entry.readlink()).startswith("socket:"):
                copy = socket.socket(fileno=os.dup(int(entry.name)))
                if copy.family != socket.AF_INET or copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    copy.close()
                    continue
                try:
                    copy.getpeername()
                except OSError:
                    copy.close()
                    continue
                found.append(copy)
    return found


@pytest.mark.attack(
    "200 clients come and go in eight ways, most of them badly", expected="no file descriptor and no slot is lost"
)
def test_connections_leak_nothing(observed: Observed) -> None:
    with serving(limits=replaced(connections=60, connections_per_address=60), sessions=60) as server:
        assert_serves(server)
        before = open_files()
        for index in range(200):
            line = connected(server)
            if index % 4 == 1:
                line.sendall(post("/v1/sessions"))
            elif index % 4 == 2:
                line.sendall(UPGRADE + b"\r\n" + frame(ACT))
            elif index % 4 == 3:
                line.sendall(b"\x16\x03\x01 no HTTP \r\n\r\n")
            if index % 8 < 4:
                reset(line)
            line.close()
        wait_for(lambda: len(server.sessions) == 0, "slots were lost")
        wait_for(lambda: open_files() <= before, "file descriptors were lost")
        wait_for(lambda: serves(server), "clients that had gone took an honest one's place")
    observed("none lost")
