"""Attacks on a robot by its policy server: every answer is a command, or an error in time."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from _lying_server import (
    ACTION,
    POLICY,
    Script,
    drips,
    floods,
    frame,
    http_answer,
    lying,
    nothing,
    refuses_to_read,
    resets,
    says,
)
from _policy_server import Observed, hostile, wait_for
from hypothesis import given, settings
from hypothesis import strategies as st

from support.serve import TOKEN, observation
from twinloop.core.contract import IMAGES
from twinloop.core.errors import InputError
from twinloop.release.client import PolicyClient, PolicyServerError
from twinloop.release.client_wire import TimedSocket
from twinloop.release.serve_wire import Message, encode

TIMEOUT_S = 0.3
SLACK_S = 1.5  # of a busy machine
LATE = "an error after the time for an answer (5 s; here 0.3 s), not one per byte"
ERROR = "an error that names the server"


def asked_of(address: str) -> np.ndarray:
    """Begin an episode, and ask for one command."""
    client = PolicyClient(address, timeout_s=TIMEOUT_S)
    try:
        client.restart(0)
        return client.act(observation())
    finally:
        client.close()


def refused(call: Callable[[], object], observed: Observed, address: str) -> str:
    """Return a client's error message about a server; assert that it comes in time."""
    begin = time.monotonic()
    with pytest.raises(PolicyServerError) as caught:
        call()
    took = time.monotonic() - begin
    said = str(caught.value)
    observed(said.replace(address, "SERVER").replace(address.replace("http", "ws", 1), "SERVER"))
    # Requesting the policy, connecting, the answer, and one more attempt to close.
    assert took < 3 * TIMEOUT_S + SLACK_S, f"{took:.1f} s"
    assert len(said) < 1000
    assert said.isprintable(), said
    return said


def chunked(*pieces: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(pieces)


def message(**header: Any) -> bytes:
    text = json.dumps({"protocol": 1, "kind": "action", **header}).encode()
    return len(text).to_bytes(4, "little") + text


OK = b"HTTP/1.1 200 OK\r\n"
LENGTH = OK + b"Content-Length: %d\r\n\r\n"
COLUMN = encode(Message(kind="action", arrays={"action": np.zeros((6, 1))}))
FIVE = encode(Message(kind="action", arrays={"action": np.zeros(5)}))
BYTES = encode(Message(kind="action", arrays={"action": np.zeros(6, dtype=np.uint8)}))
LONG = encode(Message(kind="action", arrays={"action": np.zeros(16_384)}))
STEERS = json.dumps({"message": "\x1b[2J\x1b]0;owned\x07\nrm -rf\u202e" + "a" * 20_000}).encode()

HTTP = [
    hostile("never", "never answer", LATE, nothing, "no complete answer within 0.3 s"),
    hostile("drip-head", "send one byte of a header at a time", LATE, drips(OK + b"x: ", b"a"), "within 0.3 s"),
    hostile("drip-lines", "send header lines without end, slowly", LATE, drips(OK, b"x: y\r\n"), "within 0.3 s"),
    hostile("drip-body", "send one byte of an answer at a time", LATE, drips(LENGTH % 150, b"a"), "within 0.3 s"),
    hostile("drip-close", "send an answer without a length, slowly", LATE, drips(OK + b"\r\n", b"a"), "within 0.3 s"),
    hostile("drip-chunks", "send chunks of one byte, slowly", LATE, drips(chunked(), b"1\r\na\r\n"), "within 0.3 s"),
    hostile("stops", "send half of an answer and stop", LATE, drips(LENGTH % 150 + ACTION[:50], b""), "within 0.3 s"),
    hostile("continue", "send 100 Continue without end", LATE, drips(b"", b"HTTP/1.1 100 C\r\n\r\n"), "within 0.3 s"),
    hostile(
        "continues",
        "send 100 Continue as fast as it goes",
        LATE,
        floods(b"", b"HTTP/1.1 100 C\r\n\r\n"),
        "within 0.3 s",
    ),
    hostile("headers", "send headers as fast as it goes", ERROR, floods(OK, b"x: y\r\n"), "100 headers"),
    hostile("long-line", "send a header line without end", ERROR, floods(OK, b"a" * 4096), "line"),
    hostile(
        "chunks",
        "send chunks without end as fast as it goes",
        ERROR,
        floods(chunked(), b"1000\r\n" + b"a" * 4096 + b"\r\n"),
        "more than",
    ),
    hostile("closes", "close without an answer", ERROR, says(b""), "without response"),
    hostile("resets", "reset the connection", ERROR, resets, "lost"),
    hostile("half", "close in the middle of an answer", ERROR, says(LENGTH % 150 + ACTION[:50]), "are missing"),
    hostile("garbage", "answer with another protocol", ERROR, says(b"SSH-2.0-OpenSSH_9.2\r\n"), "lost"),
    hostile("old", "answer as HTTP/0.9", ERROR, says(ACTION), "lost"),
    hostile("2gb", "announce an answer of 2 GB", "an error before any of it is read", says(LENGTH % 2**31), "at most"),
    hostile(
        "negative",
        "announce an answer of -5 bytes",
        ERROR,
        says(OK + b"Content-Length: -5\r\n\r\n"),
        "an invalid answer",
    ),
    hostile(
        "digits",
        "announce a length of 10,000 digits",
        ERROR,
        says(OK + b"Content-Length: " + b"9" * 10_000 + b"\r\n\r\n"),
        "an invalid answer",
    ),
    hostile("chunk", "a chunk whose length is none", ERROR, says(chunked(b"zz\r\n")), "lost"),
    hostile("chunk-2gb", "a chunk of 2 GB", ERROR, says(chunked(b"7fffffff\r\naaaa")), "lost"),
    hostile("empty", "an empty answer", ERROR, says(http_answer(b"")), "0 bytes are not a message"),
    hostile("no-content", "204, no content", ERROR, says(http_answer(b"", "204 No Content")), "refused (204)"),
    hostile(
        "html",
        "500 with a page of HTML",
        ERROR,
        says(http_answer(b"<h1>Oh</h1>", "500 Oh")),
        "refused (500): no reason is given",
    ),
    hostile(
        "steers",
        "a refusal with characters that steer a terminal, 20,000 long",
        "shown without them, cut",
        says(http_answer(STEERS, "400 No")),
        "refused (400): [2J",
    ),
    hostile(
        "busy",
        "409, the session is busy",
        ERROR,
        says(http_answer(b'{"message":"busy"}', "409 Conflict")),
        "refused (409): busy",
    ),
    hostile(
        "deep",
        "a refusal nested 100,000 times",
        ERROR,
        says(http_answer(b"[" * 60_000, "400 No")),
        "no reason is given",
    ),
    hostile(
        "gzip",
        "a compressed answer",
        ERROR,
        says(http_answer(b"\x1f\x8b\x08" + bytes(60), "200 OK", "Content-Encoding: gzip")),
        "an invalid answer",
    ),
    hostile("pickle", "a pickle", ERROR, says(http_answer(b"\x80\x04cos\nsystem\n(S'id'\ntR.")), "an invalid answer"),
    hostile(
        "header-2gb",
        "a message whose header is to have 2 GB",
        ERROR,
        says(http_answer(b"\xff\xff\xff\x7f{}")),
        "an invalid answer",
    ),
    hostile(
        "object",
        "an array of objects",
        ERROR,
        says(http_answer(message(arrays=[{"name": "action", "dtype": "object", "shape": [1]}]))),
        "an invalid answer",
    ),
    hostile(
        "ready",
        "an answer to another kind of request",
        ERROR,
        says(http_answer(encode(Message(kind="ready")))),
        "with ready and without a usable command",
    ),
    hostile(
        "none", "a command without numbers", ERROR, says(http_answer(message(arrays=[]))), "without a usable command"
    ),
    hostile("uint8", "a command in bytes", ERROR, says(http_answer(BYTES)), "without a usable command"),
    hostile("five", "a command for five joints", ERROR, says(http_answer(FIVE)), "of shape (5,) for 6 joints"),
    hostile("column", "a command as a column", ERROR, says(http_answer(COLUMN)), "of shape (6, 1)"),
    hostile("long", "a command for 16,384 joints", ERROR, says(http_answer(LONG)), "at most"),
    hostile(
        "error",
        "an error with a message of 8,000 characters that steer",
        "cut",
        says(http_answer(message(kind="error", message="\x1b" * 8000))),
        "refused",
    ),
]


@pytest.mark.parametrize(("act", "said"), HTTP)
def test_an_http_server_cannot_hold_or_fool_its_client(act: Script, said: str, observed: Observed) -> None:
    with lying(act=act) as server:
        assert said in refused(lambda: asked_of(server.address), observed, server.address)


WEBSOCKET = [
    hostile("never", "never answer, over a WebSocket", LATE, nothing, "no complete answer within 0.3 s"),
    hostile("drip", "send one byte of a frame at a time", LATE, drips(frame(b"", announced=150), b"a"), "within 0.3 s"),
    hostile(
        "fragments",
        "send fragments without end, slowly",
        LATE,
        drips(frame(b"", fin=False), frame(b"", opcode=0, fin=False)),
        "within 0.3 s",
    ),
    hostile(
        "pings",
        "send pings as fast as it goes, and no answer",
        LATE,
        floods(b"", 50 * frame(b"p", opcode=9)),
        "within 0.3 s",
    ),
    hostile(
        "many",
        "send empty fragments as fast as it goes",
        LATE,
        floods(frame(b"", fin=False), 500 * frame(b"", opcode=0, fin=False)),
        "within 0.3 s",
    ),
    hostile("2^62", "announce a frame of 2^62 bytes", "an error at once", says(frame(b"", announced=2**62)), "lost"),
    hostile("2gb", "announce a frame of 2 GB", "an error at once", says(frame(b"", announced=2**31)), "lost"),
    hostile("text", "answer with text", ERROR, says(frame(b"forward", opcode=1)), "text"),
    hostile("masked", "mask an answer, as only clients do", ERROR, says(b"\x82\x85\0\0\0\0hello"), "lost"),
    hostile("compressed", "send a compressed answer, which was not agreed", ERROR, says(b"\xc2\x01\x00"), "lost"),
    hostile("opcode", "a frame of a kind that does not exist", ERROR, says(frame(b"", opcode=5)), "lost"),
    hostile(
        "closes",
        "say goodbye instead of an answer",
        ERROR,
        says(frame(b"\x03\xe8bye", opcode=8)),
        "closed the connection",
    ),
    hostile("ends", "end the connection without a word", ERROR, says(b""), "lost"),
    hostile("resets", "reset the connection, over a WebSocket", ERROR, resets, "lost"),
    hostile("half", "end in the middle of a frame", ERROR, says(frame(ACTION[:50], announced=len(ACTION))), "lost"),
    hostile("five", "a command for five joints, over a WebSocket", ERROR, says(frame(FIVE)), "of shape (5,)"),
    hostile(
        "garbage", "a message that is none, over a WebSocket", ERROR, says(frame(b"\xff" * 40)), "an invalid answer"
    ),
    hostile(
        "refuses",
        "an error as a server's, over a WebSocket",
        ERROR,
        says(frame(message(kind="error", message="full"))),
        "refused: full",
    ),
]


@pytest.mark.parametrize(("act", "said"), WEBSOCKET)
def test_a_websocket_server_cannot_hold_or_fool_its_client(act: Script, said: str, observed: Observed) -> None:
    with lying(act=act) as server:
        address = server.address.replace("http", "ws", 1)
        assert said in refused(lambda: asked_of(address), observed, server.address)


HANDSHAKES = [
    hostile("never", "never answer the handshake", LATE, nothing, "within 0.3 s"),
    hostile(
        "drip", "answer the handshake one byte at a time", LATE, drips(b"HTTP/1.1 101 S\r\nx: ", b"a"), "within 0.3 s"
    ),
    hostile(
        "headers",
        "answer the handshake with headers without end",
        ERROR,
        floods(b"HTTP/1.1 101 S\r\n", b"x: y\r\n"),
        "lost",
    ),
    hostile(
        "proof",
        "answer the handshake with a wrong proof",
        ERROR,
        says(b"HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: bm8=\r\n\r\n"),
        "lost",
    ),
    hostile("plain", "answer the handshake with a page", ERROR, says(http_answer(b"<h1>Hello</h1>")), "lost"),
    hostile("garbage", "answer the handshake with garbage", ERROR, says(b"\0\xff" * 100 + b"\r\n\r\n"), "lost"),
    hostile("token", "answer the handshake with 401", ERROR, says(http_answer(b"", "401 No")), "401"),
]


@pytest.mark.parametrize(("shake", "said"), HANDSHAKES)
def test_a_handshake_cannot_hold_or_fool_its_client(shake: Script, said: str, observed: Observed) -> None:
    with lying(shake=shake) as server:
        address = server.address.replace("http", "ws", 1)
        assert said in refused(lambda: asked_of(address), observed, server.address)


def policy(**changes: Any) -> dict[str, Any]:
    contract = {**POLICY["contract"], **{key: value for key, value in changes.items() if key in POLICY["contract"]}}
    return {**POLICY, **{key: value for key, value in changes.items() if key in POLICY}, "contract": contract}


POLICIES = [
    hostile("drip", "describe the policy one byte at a time", LATE, drips(LENGTH % 9000, b" "), "within 0.3 s"),
    hostile("2gb", "announce a description of 2 GB", ERROR, says(LENGTH % 2**31), "at most"),
    hostile("deep", "a description nested 100,000 times", ERROR, b"[" * 100_000, "invalid JSON"),
    hostile(
        "digits",
        "a description with a number of 5,000 digits",
        ERROR,
        b'{"protocol":' + b"9" * 5000 + b"}",
        "invalid JSON",
    ),
    hostile("bytes", "a description that is not UTF-8", ERROR, b"\xff\xfe\xfd", "invalid JSON"),
    hostile("list", "a list as description", ERROR, [1], "is not a policy server"),
    hostile("null", "nothing as description", ERROR, b"null", "is not a policy server"),
    hostile(
        "protocol",
        "another version, with characters that steer",
        ERROR,
        {"protocol": "\x1b[2J" * 1000},
        "uses protocol",
    ),
    hostile("no-joints", "a contract without joints", ERROR, policy(action=None), "is not a policy server"),
    hostile("joints", "a contract whose joints are a number", ERROR, policy(action=7), "is not a policy server"),
    hostile("no-size", "a camera without a size", ERROR, policy(cameras={"front": []}), "is not a policy server"),
    hostile(
        "infinite",
        "a camera of infinite size",
        ERROR,
        policy(cameras={"front": [float("inf"), 1]}),
        "is not a policy server",
    ),
    hostile(
        "nan",
        "a camera whose size is not a number",
        ERROR,
        policy(cameras={"front": [float("nan"), 1]}),
        "is not a policy server",
    ),
    hostile("rate", "a rate that is text", ERROR, policy(control_hz="fast"), "is not a policy server"),
    hostile("cameras", "cameras that are a number", ERROR, policy(cameras=3), "is not a policy server"),
    hostile("hash", "a hash that is a path", ERROR, policy(hash="../../etc/passwd"), "is not a policy server"),
    hostile("hash-number", "a hash that is a number", ERROR, policy(hash=7), "is not a policy server"),
    hostile(
        "redirect",
        "send the client to another server",
        "not followed",
        says(http_answer(b"", "302 Found", "Location: http://127.0.0.1:1/")),
        "refused (302)",
    ),
]


@pytest.mark.parametrize(("answer", "said"), POLICIES)
def test_a_wrong_description_is_no_policy_server(answer: Any, said: str, observed: Observed) -> None:
    with lying(policy=answer) as server:
        begin = lambda: PolicyClient(server.address, timeout_s=TIMEOUT_S)  # noqa: E731
        assert said in refused(begin, observed, server.address)


@pytest.mark.attack("a policy whose name steers a terminal, 100,000 characters long", expected="shown without, and cut")
def test_the_name_of_a_policy_is_shown_plainly(observed: Observed) -> None:
    with lying(policy=policy(policy="\x1b[2Jgood\n" + "a" * 100_000)) as server:
        name = PolicyClient(server.address, timeout_s=TIMEOUT_S).name
    observed(name)
    assert name.startswith("[2Jgood aaa")
    assert len(name) <= 500


SESSIONS = [
    hostile("path", "name a session by a path", "refused", {"session": "../../admin"}),
    hostile("line", "name a session with a line's end, to add headers", "refused", {"session": "a HTTP/1.1\r\nX: y"}),
    hostile("unicode", "name a session in digits of another script", "refused", {"session": "٣٤"}),
    hostile("long", "name a session with 10,000 characters", "refused", {"session": "a" * 10_000}),
    hostile("none", "give no session", "refused", {}),
    hostile("number", "give a number as session", "refused", {"session": 7}),
    hostile("list", "give a list", "refused", ["session"]),
]


@pytest.mark.parametrize("answer", SESSIONS)
def test_a_wrong_session_is_refused(answer: Any, observed: Observed) -> None:
    with lying(session=answer) as server:
        assert "opened no session" in refused(lambda: asked_of(server.address), observed, server.address)
        assert not any(b"admin" in request or b"X: y" in request for request in server.requests)


@pytest.mark.attack(
    "answer with random bytes, as HTTP and as frames", expected="an error that names the server, or a command"
)
def test_random_answers(observed: Observed) -> None:
    answers: list[bytes] = []
    seen, said = set(), list[str]()

    def act(line: socket.socket) -> None:
        line.sendall(answers[-1])

    begins = (b"", OK, OK + b"Content-Length: 40\r\n\r\n", chunked(), b"\x82\x20", b"\x81", b"\x88\x02")

    with lying(act=act) as server:

        @given(begin=st.sampled_from(begins), tail=st.binary(max_size=60), over=st.sampled_from(["http", "ws"]))
        @settings(max_examples=60, deadline=None, derandomize=True)
        def answered(begin: bytes, tail: bytes, over: str) -> None:
            answers.append(begin + tail)
            client = PolicyClient(server.address.replace("http", over, 1), timeout_s=TIMEOUT_S)
            try:
                client.restart(0)
                client.act(observation())
                seen.add("a command")
            except PolicyServerError as error:
                seen.add("an error")
                said.append(str(error))
            finally:
                client.close()

        answered()
    observed(", ".join(sorted(seen)))
    assert "an error" in seen
    assert all(text.isprintable() for text in said)


# --- answers to other requests, sending, closing ---


@pytest.mark.parametrize(
    "scheme",
    [
        hostile(
            "http",
            "send two answers to one observation, over HTTP",
            "the second is not taken for the next one's",
            "http",
        ),
        hostile(
            "ws",
            "send two answers to one observation, over a WebSocket",
            "the second is not taken for the next one's",
            "ws",
        ),
    ],
)
def test_an_unasked_answer_is_not_taken(scheme: str, observed: Observed) -> None:
    sent = threading.Event()

    def twice(line: socket.socket) -> None:
        one = frame(ACTION) if scheme == "ws" else http_answer(ACTION)
        line.sendall(one)
        time.sleep(0.05)
        line.sendall(one)
        sent.set()
        nothing(line)

    with lying(act=twice) as server:
        client = PolicyClient(server.address.replace("http", scheme, 1), timeout_s=5.0)
        client.restart(0)
        client.act(observation())
        assert sent.wait(5.0)
        with pytest.raises(PolicyServerError, match="not requested|than requested") as caught:
            client.act(observation())
        client.close()
    observed(str(caught.value).replace(server.address, "SERVER"))


@pytest.mark.parametrize(
    "scheme",
    [
        hostile("http", "never read the pictures that a robot sends, over HTTP", LATE, "http"),
        hostile("ws", "never read the pictures that a robot sends, over a WebSocket", LATE, "ws"),
    ],
)
def test_a_server_that_does_not_read(scheme: str, observed: Observed) -> None:
    size = (1500, 1500)
    large = policy(cameras={"front": list(size)})
    image = {f"{IMAGES}front": np.zeros((*size, 3), dtype=np.uint8)}
    with lying(policy=large, act=refuses_to_read, receive_bytes=4096) as server:
        client = PolicyClient(server.address.replace("http", scheme, 1), timeout_s=TIMEOUT_S)
        client.restart(0)
        said = refused(lambda: client.act(observation() | image), observed, server.address)
        client.close()
    assert "within 0.3 s" in said or "timed out" in said


@pytest.mark.attack("never answer the end of a session", expected="the client waits 1 s at most, and raises nothing")
def test_closing_never_waits_long(observed: Observed) -> None:
    with lying(act=lambda line: line.sendall(http_answer(ACTION)) or nothing(line)) as server:
        client = PolicyClient(server.address, timeout_s=60.0)
        client.restart(0)
        client.act(observation())
        begin = time.monotonic()
        client.close()
        took = time.monotonic() - begin
    observed("closed")
    assert took < 1.0 + SLACK_S


@pytest.mark.attack(
    "lie to a robot in one episode", expected="the next episode gets a new connection and a new session"
)
def test_a_client_recovers_at_the_next_episode(observed: Observed) -> None:
    scripts = iter([nothing, says(http_answer(ACTION))])
    with lying(act=lambda line: next(scripts)(line)) as server:
        client = PolicyClient(server.address, timeout_s=TIMEOUT_S)
        client.restart(0)
        with pytest.raises(PolicyServerError, match="no complete answer"):
            client.act(observation())
        client._line = None  # as after an episode whose connection was given up
        client.restart(1)
        command = client.act(observation())
        client.close()
    observed(command)
    np.testing.assert_array_equal(command, np.full(6, 3.0))


# --- names, addresses and TLS ---


@pytest.mark.attack("a name server that never answers", expected="an error after the time to connect")
def test_a_slow_name_server(observed: Observed, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: release.wait(30.0))
    try:
        said = refused(lambda: PolicyClient("http://robot.example:1", timeout_s=TIMEOUT_S), observed, "none")
    finally:
        release.set()
    assert "no address of robot.example was found within" in said


NAMES = [
    hostile("unknown", "a host that does not exist", ERROR, "http://nobody.invalid:1"),
    hostile("label", "a host whose name is too long", ERROR, f"http://{'a' * 64}.example:1"),
    hostile("dots", "a host of dots", ERROR, "http://..:1"),
    hostile("unicode", "a host in letters that no host has", ERROR, "http://\u2764\u2764..x:1"),
    hostile("closed", "a port where nobody listens", ERROR, "http://127.0.0.1:1"),
]


@pytest.mark.parametrize("address", NAMES)
def test_a_server_that_is_not_there(address: str, observed: Observed) -> None:
    begin = lambda: PolicyClient(address, timeout_s=TIMEOUT_S)  # noqa: E731
    assert "cannot be reached" in refused(begin, observed, "none")


@pytest.mark.attack("a host of which the first address never answers", expected="the second is tried in time")
def test_the_second_address_is_tried(observed: Observed, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as full, lying() as server:
        full.bind(("127.0.0.1", 0))
        full.listen(0)  # the system answers no more connections than this one's queue holds
        lines = [socket.socket() for _ in range(3)]
        for line in lines:
            line.setblocking(False)
            line.connect_ex(full.getsockname())
        good = urlsplit(server.address)
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))
            for host, port in (full.getsockname(), (good.hostname, good.port))
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        client = PolicyClient(server.address, timeout_s=2.0)
        for line in lines:
            line.close()
    observed("connected")
    assert client.name == "lying"


ADDRESSES = [
    hostile(
        "password",
        "an address with a name and a password",
        "refused without showing them",
        "http://me:secret-word@host:1",
    ),
    hostile(
        "query", "an address with the token in it", "refused without showing it", "http://host:1/?token=secret-word"
    ),
    hostile("fragment", "an address with a fragment", "refused", "http://host:1/#x"),
    hostile("bracket", "an address with half a bracket", "refused", "http://[::1:8400"),
    hostile("port-zero", "port 0", "refused", "http://host:0"),
    hostile("port-text", "a port that is text", "refused", "http://host:secret-word@"),
    hostile("no-host", "no host", "refused", "http://:8400"),
    hostile("space", "a host with a space", "refused", "http://a b:8400"),
    hostile("newline", "a host with a line's end, to add headers", "refused or unknown", "http://a\r\nX: y:8400"),
    hostile("file", "a file", "refused", "file:///etc/passwd"),
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_addresses_are_checked(address: str, observed: Observed) -> None:
    with pytest.raises(InputError) as caught:
        PolicyClient(address, timeout_s=TIMEOUT_S)
    observed(caught.value)
    assert "secret-word" not in str(caught.value)
    assert "\r" not in str(caught.value)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A self-signed certificate with its key."""
    folder = tmp_path_factory.mktemp("tls")
    key, pem = folder / "key.pem", folder / "cert.pem"
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost"
    try:
        subprocess.run([*words.split(), "-keyout", key, "-out", pem], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("openssl is not here")
    return str(pem), str(key)


@pytest.mark.parametrize(
    "scheme",
    [
        hostile("https", "a server whose certificate nobody signed", "an error; the token is not sent", "https"),
        hostile("wss", "the same over a WebSocket", "an error; the token is not sent", "wss"),
    ],
)
def test_certificates_are_checked(scheme: str, certificate: tuple[str, str], observed: Observed) -> None:
    import ssl

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    received: list[bytes] = []

    def serve() -> None:
        line, _ = listener.accept()
        with line:
            line.settimeout(5.0)
            try:
                with context.wrap_socket(line, server_side=True) as secure:
                    received.append(secure.recv(65536))
            except OSError:
                received.append(b"")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        address = f"{scheme}://localhost:{listener.getsockname()[1]}"
        with pytest.raises(PolicyServerError, match="CERTIFICATE_VERIFY_FAILED") as caught:
            PolicyClient(address, token=TOKEN, timeout_s=5.0)
        thread.join(10.0)
    observed(str(caught.value).replace(address, "SERVER"))
    assert received == [b""]


TLS = [
    hostile("plain", "speak no TLS where it is asked for", ERROR, says(b"HTTP/1.1 200 OK\r\n\r\n"), "SSLError"),
    hostile("drip", "answer the TLS handshake one byte at a time", LATE, drips(b"\x16\x03\x03\x40\x00", b"\0"), "lost"),
]


@pytest.mark.parametrize(("script", "said"), TLS)
def test_a_tls_handshake_cannot_hold_its_client(script: Script, said: str, observed: Observed) -> None:
    def serve() -> None:
        line, _ = listener.accept()
        with line:
            try:
                line.recv(65536)
                script(line)
                nothing(line)
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        address = f"https://127.0.0.1:{listener.getsockname()[1]}"
        text = refused(lambda: PolicyClient(address, timeout_s=TIMEOUT_S), observed, address)
        thread.join(10.0)
    assert said in text


# --- the token ---


@pytest.mark.parametrize(
    ("scheme", "status"),
    [
        hostile(
            f"{scheme}-{status[:3]}",
            f"send the client with its token to another server by {status}, over {scheme}",
            "not followed: the token stays here",
            scheme,
            status,
        )
        for scheme in ("http", "ws")
        for status in ("301 Moved", "307 Temporary", "308 Permanent")
    ],
)
def test_a_token_follows_no_redirect(scheme: str, status: str, observed: Observed) -> None:
    with lying() as other:
        there = http_answer(b"", status, f"Location: {other.address}/v1/policy")
        with lying(shake=says(there), policy=POLICY if scheme == "ws" else says(there)) as server:
            with pytest.raises(PolicyServerError) as caught:
                PolicyClient(server.address.replace("http", scheme, 1), token=TOKEN, timeout_s=TIMEOUT_S).restart(0)
            assert any(TOKEN.encode() in request for request in server.requests)
        assert other.requests == []
    observed(str(caught.value).replace(server.address.replace("http", scheme, 1), "SERVER"))


TOKENS = [
    hostile(
        "line", "a token with a line's end, to add headers", "refused without showing it", "secret-word\r\nX-Admin: yes"
    ),
    hostile("unicode", "a token that is not ASCII", "refused without showing it", "secret-word-ü"),
    hostile("nul", "a token with a zero byte", "refused without showing it", "secret-word\0"),
    hostile("escape", "a token that steers a terminal", "refused without showing it", "\x1b[2Jsecret-word"),
]


@pytest.mark.parametrize("token", TOKENS)
def test_a_wrong_token_is_refused_and_not_shown(token: str, observed: Observed) -> None:
    with lying() as server:
        with pytest.raises(InputError, match="The token cannot be sent") as caught:
            PolicyClient(server.address, token=token)
        assert server.requests == []
    observed(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "scheme",
    [
        hostile(scheme, f"turn on all logs of a client over {scheme}", "the token is in none, and in no error", scheme)
        for scheme in ("http", "ws")
    ],
)
def test_the_token_is_in_no_log_and_no_error(scheme: str, observed: Observed, caplog: Any, capfd: Any) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("websockets", "websockets.client", "twinloop"):
        caplog.set_level(logging.DEBUG, logger=name)
    said = []
    for act in (nothing, says(b"garbage"), resets):
        with lying(act=act) as server:
            client = PolicyClient(server.address.replace("http", scheme, 1), token=TOKEN, timeout_s=TIMEOUT_S)
            client.restart(0)
            with pytest.raises(PolicyServerError) as caught:
                client.act(observation())
            client.close()
            said += [str(caught.value), repr(client), repr(caught.value.__cause__)]
    everything = caplog.text + "".join(said) + "".join(capfd.readouterr())
    observed("in none")
    assert TOKEN not in everything


# --- the robot ---


@pytest.mark.parametrize(
    ("act", "trip"),
    [
        hostile(
            "drip",
            "send a running robot its command one byte at a time",
            "the robot brakes and holds",
            drips(LENGTH % 150, b"a"),
            {"stopped", "policy"},
        ),
        hostile(
            "nan",
            "send a running robot NaN",
            "the robot brakes and holds",
            says(http_answer(encode(Message(kind="action", arrays={"action": np.full(6, np.nan)})))),
            {"stopped", "policy"},
            slow=True,
        ),
        hostile(
            "huge",
            "send a running robot a command for 16,384 joints",
            "the robot brakes and holds",
            says(http_answer(LONG)),
            {"policy"},
            slow=True,
        ),
    ],
)
def test_a_running_robot_comes_to_rest(act: Script, trip: set[str], observed: Observed) -> None:
    from support.run_faults import CONTRACT, ROBOT, assert_came_to_rest, ran_with

    with lying(policy={**POLICY, "contract": CONTRACT.to_json()}, act=act) as server:
        client = PolicyClient(server.address, timeout_s=TIMEOUT_S)
        begin = time.monotonic()
        ran = ran_with(client, robot=ROBOT, steps=40, patience_s=0.05)
        took = time.monotonic() - begin
        client.close()
    observed(f"{ran.end_kind}: {ran.reason.replace(server.address, 'SERVER')}")
    assert ran.end_kind in trip
    assert_came_to_rest(ran, by=-1)
    assert took < 10.0


@pytest.mark.attack("connect 50 times to servers that fail", expected="no socket and no thread is left")
def test_a_client_leaks_nothing(observed: Observed) -> None:
    from _policy_server import open_files

    with lying(session={"session": 7}, shake=says(b"garbage\r\n\r\n")) as server:
        with pytest.raises(PolicyServerError):
            asked_of(server.address)
        files = open_files()
        for index in range(50):
            with pytest.raises(PolicyServerError):
                asked_of(server.address if index % 2 else server.address.replace("http", "ws", 1))
        wait_for(lambda: open_files() <= files + 4, "sockets were lost")
    wait_for(lambda: not any("look-up" in thread.name for thread in threading.enumerate()), "threads were lost")
    observed("none left")


@pytest.mark.attack("look for the time that one read may take", expected="the deadline is one of the whole exchange")
def test_the_deadline_counts_from_the_begin(observed: Observed) -> None:
    with lying() as server:
        line = TimedSocket(urlsplit(server.address), 0.2)
        time.sleep(0.25)
        for call in (line.get_remaining_s, line.recv, lambda: line.sendall(b"x")):
            with pytest.raises(TimeoutError, match=r"no complete answer within 0.2 s"):
                call()
        line.start(5.0)
        assert 4.0 < line.get_remaining_s() <= 5.0
        line.close()
    observed("TimeoutError")
