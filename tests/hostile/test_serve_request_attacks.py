"""Attacks on a policy server by wrong requests: other people's sessions, tokens, HTTP, and options."""

from __future__ import annotations

import contextlib
import itertools
import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from _policy_server import (
    ACT,
    PATIENCE_S,
    STEP_S,
    UPGRADE,
    Observed,
    answer,
    assert_no_traceback,
    assert_serves,
    connected,
    frame,
    frames_until_closed,
    gated,
    head,
    hostile,
    message_of,
    opened,
    post,
    read_head,
    replaced,
    sent,
    serving,
    streamed,
    wait_for,
)

from support.serve import CONTRACT, TOKEN, Adding, observation
from twinloop.core.errors import InputError
from twinloop.release.client import PolicyClient, PolicyServerError
from twinloop.release.serve import PolicyServer, ServeOptions, read_token
from twinloop.release.serve_wire import LARGEST_MESSAGE, Message, decode, encode, largest_request


@pytest.fixture(scope="module")
def server() -> Iterator[PolicyServer]:
    with serving() as running:
        yield running


# --- requests that meet, and sessions of others ---


@pytest.mark.attack(
    "two requests of one session at the same time",
    expected="409 with Retry-After for the second; the first is answered",
)
def test_a_session_has_one_request_at_a_time(observed: Observed) -> None:
    with (
        gated() as policy,
        serving(policy, limits=replaced(policy_s=60.0)) as server,
        connected(server) as first,
        connected(server) as second,
    ):
        path = opened(first)
        first.sendall(post(path, encode(Message(kind="act", arrays=observation(9.0)))))
        assert policy.waiting.wait(PATIENCE_S)
        second.sendall(post(path, ACT))
        refusal = read_head(second).lower()
        assert b"retry-after: 1" in refusal
        observed(refusal.splitlines()[0].decode())
        assert refusal.startswith(b"http/1.1 409")
        policy.release.set()
        status, body = answer(first)
        assert (status, decode(body).arrays["action"][0]) == (200, 11.0)


@pytest.mark.attack("a second session acts while the policy answers the first", expected="both get their own answers")
def test_sessions_wait_for_each_other(observed: Observed) -> None:
    with (
        gated() as policy,
        serving(policy, limits=replaced(policy_s=60.0)) as server,
        connected(server) as first,
        connected(server) as second,
    ):
        slow, quick = opened(first), opened(second)
        first.sendall(post(slow, encode(Message(kind="act", arrays=observation(9.0)))))
        assert policy.waiting.wait(PATIENCE_S)
        second.sendall(post(quick, ACT))
        time.sleep(STEP_S)
        policy.release.set()
        answers = [decode(answer(line)[1]).arrays["action"][0] for line in (first, second)]
    observed(answers)
    assert answers == [11.0, 3.0]


GUESSES = [
    hostile("zeros", "name a session of zeros", "404", "0" * 32),
    hostile("empty-hex", "name a session of one character", "404", "a"),
    hostile("upper", "name another client's session in capitals", "404", None),
    hostile("long", "name a session of 20,000 characters", "404", "a" * 20_000),
    hostile("dots", "leave the folder of sessions by dots", "404", "..%2F..%2Fetc%2Fpasswd"),
    hostile("nul", "name a session with a zero byte", "404", "%00"),
    hostile("bytes", "name a session that is not UTF-8", "404", "%ff%fe"),
    hostile("percent", "name a session by a broken escape", "404", "%zz"),
]


@pytest.mark.parametrize("name", GUESSES)
def test_a_session_cannot_be_guessed(server: PolicyServer, name: str | None, observed: Observed) -> None:
    with connected(server) as line:
        path = opened(line)
        guess = path.upper().rpartition("/")[2] if name is None else name
        if name is None and guess == path.rpartition("/")[2]:
            pytest.skip("a name of digits alone")
        status, body = sent(server, post(f"/v1/sessions/{guess}", ACT))
        observed(status)
        assert status == 404, body
        assert_no_traceback(body)


@pytest.mark.attack("guess the name of a session from those before", expected="128 random bits each")
def test_names_of_sessions_are_random(server: PolicyServer, observed: Observed) -> None:
    names = []
    for _ in range(20):
        name = server.sessions.open()
        server.sessions.close(name)
        names.append(int(name, 16))
    differing = [(one ^ other).bit_count() for one, other in itertools.pairwise(names)]
    observed(f"{np.mean(differing):.0f} of 128 bits differ")
    assert 50 < np.mean(differing) < 78
    assert len(set(names)) == 20


SECRETS = [
    hostile("none", "send no token", "401", "GET", "/v1/policy", []),
    hostile("query", "send the token in the address", "401", "GET", f"/v1/policy?token={TOKEN}", []),
    hostile("basic", "send the token as Basic", "401", "GET", "/v1/policy", [f"Authorization: Basic {TOKEN}"]),
    hostile("cookie", "send the token as a cookie", "401", "GET", "/v1/policy", [f"Cookie: token={TOKEN}"]),
    hostile(
        "prefix", "send a prefix of the token", "401", "GET", "/v1/policy", [f"Authorization: Bearer {TOKEN[:-1]}"]
    ),
    hostile(
        "case", "send the token in capitals", "401", "GET", "/v1/policy", [f"Authorization: Bearer {TOKEN.upper()}"]
    ),
    hostile(
        "twice",
        "send a wrong token before the right one",
        "401",
        "GET",
        "/v1/policy",
        ["Authorization: Bearer x", f"Authorization: Bearer {TOKEN}"],
    ),
    hostile("bytes", "send a token that is not ASCII", "401", "GET", "/v1/policy", ["Authorization: Bearer \xff\xfe"]),
    hostile("session", "open a session without the token", "401", "POST", "/v1/sessions", []),
    hostile("delete", "end a session without the token", "401", "DELETE", "/v1/sessions/x", []),
    hostile("unknown", "look for addresses without the token", "401, not 404", "GET", "/admin", []),
    hostile(
        "stream", "open a WebSocket without the token", "401", "GET", "/v1/stream", UPGRADE.decode().splitlines()[2:]
    ),
    hostile("health", "reach more by a path that begins like /health", "401", "GET", "/health/../v1/policy", []),
]


@pytest.mark.parametrize(("method", "path", "fields"), SECRETS)
def test_the_token_is_asked_for(
    guarded: PolicyServer, method: str, path: str, fields: list[str], observed: Observed, capfd: Any
) -> None:
    status, body = sent(guarded, head(method, path, *fields) + b"\r\n")
    observed(status)
    assert status == 401, body
    assert TOKEN.encode() not in body
    assert TOKEN not in "".join(capfd.readouterr())


@pytest.fixture(scope="module")
def guarded() -> Iterator[PolicyServer]:
    with serving(token=TOKEN) as running:
        yield running


@pytest.mark.attack("measure how long the comparison of the token takes", expected="compared in constant time")
def test_tokens_are_compared_in_constant_time(
    guarded: PolicyServer, observed: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hmac

    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: compared.append((a, b)) or real(a, b))
    assert sent(guarded, head("GET", "/v1/policy", f"Authorization: Bearer {TOKEN}") + b"\r\n")[0] == 200
    observed("hmac.compare_digest")
    assert compared == [(TOKEN.encode(), TOKEN.encode())]


# --- HTTP ---

REQUESTS = [
    hostile(
        "too-long",
        "announce a body of 10^15 bytes",
        "413 before any of it is read",
        413,
        head("POST", "{path}", f"Content-Length: {10**15}") + b"\r\n",
        "announces 1000000000000000",
    ),
    hostile(
        "too-many-chunks",
        "send more than a message may have, in chunks",
        "413",
        413,
        head("POST", "{path}", "Transfer-Encoding: chunked")
        + b"\r\n"
        + b"fffff\r\n"
        + b"a" * 0xFFFFF
        + b"\r\n0\r\n\r\n",
        "at most",
    ),
    hostile(
        "gzip",
        "send a compressed body",
        "415",
        415,
        post("{path}", b"\x1f\x8b\x08" + b"\0" * 20, "Content-Encoding: gzip"),
        "not compressed",
    ),
    hostile(
        "form",
        "send a form, as a web page would",
        "415",
        415,
        post("{path}", ACT, "Content-Type: application/x-www-form-urlencoded"),
        "application/octet-stream",
    ),
    hostile(
        "plain",
        "send text, as a web page may without asking",
        "415",
        415,
        post("{path}", ACT, "Content-Type: text/plain"),
        "text/plain",
    ),
    hostile("get", "read a session with GET", "405", 405, head("GET", "{path}") + b"\r\n", ""),
    hostile("head", "ask for the head of the policy", "405", 405, head("HEAD", "/v1/policy") + b"\r\n", ""),
    hostile(
        "options",
        "ask for the options, as a web page does first",
        "405",
        405,
        head("OPTIONS", "/v1/sessions") + b"\r\n",
        "",
    ),
    hostile("trace", "have the request sent back", "405", 405, head("TRACE", "/v1/policy") + b"\r\n", ""),
    hostile("put", "write a session with PUT", "405", 405, head("PUT", "{path}", "Content-Length: 0") + b"\r\n", ""),
    hostile("unknown", "ask for an address that does not exist", "404", 404, head("GET", "/v2/policy") + b"\r\n", ""),
    hostile(
        "slash",
        "have the server redirect to a host of one's choice",
        "404, no redirect",
        404,
        head("GET", "/v1/policy/") + b"\r\n",
        "",
    ),
    hostile(
        "docs", "ask for pages that describe the addresses", "404", 404, head("GET", "/openapi.json") + b"\r\n", ""
    ),
    hostile(
        "rebinding",
        "call the server by a name that leads here (DNS rebinding)",
        "401",
        401,
        b"GET /v1/policy HTTP/1.1\r\nHost: evil.example:8400\r\n\r\n",
        "name",
    ),
    hostile(
        "host-health",
        "read even /health by such a name",
        "401",
        401,
        b"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        "name",
    ),
    hostile(
        "host-user",
        "call the server by 127.0.0.1:x@evil",
        "401",
        401,
        b"GET /v1/policy HTTP/1.1\r\nHost: 127.0.0.1:x@evil\r\n\r\n",
        "name",
    ),
    hostile("no-host", "call the server by no name at all", "401", 401, b"GET /v1/policy HTTP/1.0\r\n\r\n", "name"),
    hostile(
        "two-hosts",
        "call the server by two names",
        "400",
        400,
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
        "Host",
    ),
    hostile(
        "origin",
        "open a session from a web page",
        "401",
        401,
        post("/v1/sessions", b"", "Origin: https://evil.example"),
        "Web pages",
    ),
    hostile(
        "null-origin",
        "open a session from a page in a sandbox",
        "401",
        401,
        post("/v1/sessions", b"", "Origin: null"),
        "Web pages",
    ),
    hostile(
        "image",
        "have a web page load an address as a picture",
        "401",
        401,
        head("GET", "/v1/policy", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors") + b"\r\n",
        "Web pages",
    ),
    hostile(
        "stream-origin",
        "open a WebSocket from a web page",
        "401",
        401,
        UPGRADE + b"Origin: https://evil.example\r\n\r\n",
        "Web pages",
    ),
    hostile("garbage", "speak another protocol", "400", 400, b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "illegal request line"),
    hostile(
        "tls",
        "speak TLS to a server without it",
        "400",
        400,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        "illegal request line",
    ),
    hostile(
        "chunk",
        "a chunk whose length is none",
        "400",
        400,
        head("POST", "{path}", "Transfer-Encoding: chunked") + b"\r\nzz\r\n",
        "illegal chunk header",
    ),
    hostile(
        "negative-length",
        "a body of -1 bytes",
        "400",
        400,
        head("POST", "{path}", "Content-Length: -1") + b"\r\n",
        "Content-Length",
    ),
    hostile(
        "two-lengths",
        "a body of two lengths",
        "400",
        400,
        head("POST", "{path}", "Content-Length: 1", "Content-Length: 2") + b"\r\nab",
        "Content-Length",
    ),
    hostile(
        "folded", "a header with a zero byte", "400", 400, head("GET", "/health", "a: b\0c") + b"\r\n", "illegal header"
    ),
    hostile(
        "upgrade-post",
        "ask for a WebSocket by POST",
        "refused",
        (400, 405),
        UPGRADE.replace(b"GET", b"POST") + b"\r\n",
        "",
    ),
    hostile(
        "upgrade-body", "ask for a WebSocket with a body", "400", 400, UPGRADE + b"Content-Length: 3\r\n\r\nabc", "body"
    ),
    hostile(
        "upgrade-key",
        "ask for a WebSocket without a key",
        "400",
        400,
        UPGRADE.replace(b"Sec-WebSocket-Key", b"X-Key") + b"\r\n",
        "",
    ),
    hostile(
        "upgrade-many",
        "ask for a WebSocket with 200 headers",
        "400",
        400,
        UPGRADE + b"".join(b"a%d: b\r\n" % i for i in range(200)) + b"\r\n",
        "",
    ),
    hostile(
        "upgrade-path",
        "ask for a WebSocket where there is none",
        "403",
        403,
        UPGRADE.replace(b"/v1/stream", b"/v1/policy") + b"\r\n",
        "",
    ),
]


@pytest.mark.parametrize(("expected", "data", "said"), REQUESTS)
def test_a_wrong_request_is_refused_by_name(
    server: PolicyServer, expected: int | tuple[int, int], data: bytes, said: str, observed: Observed, capfd: Any
) -> None:
    with connected(server) as line:
        path = opened(line) if b"{path}" in data else ""
        with contextlib.suppress(ConnectionError):
            line.sendall(data.replace(b"{path}", path.encode()))
        if data.startswith(b"HEAD"):
            assert read_head(line).startswith(b"HTTP/1.1 405")
            return
        status, body = answer(line)
    observed(f"{status}: {message_of(body) if body.startswith(b'{' + bytes([34]) + b'error') else body.decode()}")
    assert status in (expected if isinstance(expected, tuple) else (expected,)), body
    assert said in body.decode()
    assert_no_traceback(body)
    assert "Traceback" not in "".join(capfd.readouterr())
    assert_serves(server)


@pytest.mark.attack("send headers of 300,000 bytes, in many pieces", expected="431 after 32 KiB")
def test_headers_are_limited(server: PolicyServer, observed: Observed) -> None:
    with connected(server) as line:
        line.sendall(head("GET", "/health"))
        with contextlib.suppress(ConnectionError):
            for _ in range(75):
                line.sendall(b"x: " + b"y" * 4000 + b"\r\n")
                time.sleep(0.001)
        status, _ = answer(line)
    observed(status)
    assert status in (0, 431)  # 0 where the reset overtakes the answer
    assert_serves(server)


@pytest.mark.attack(
    "send a wrong request while the answer to the one before is under way", expected="dropped, nothing in the log"
)
def test_garbage_during_an_answer(observed: Observed, capfd: Any) -> None:
    with gated() as policy, serving(policy) as server, connected(server) as line:
        late = encode(Message(kind="act", arrays=observation(9.0)))
        line.sendall(post(opened(line), late) + b"\0\0garbage\r\n\r\n")
        assert policy.waiting.wait(PATIENCE_S)
        policy.release.set()
        first = answer(line)[0]
        observed(f"{first}, then dropped")
        assert_serves(server)
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.attack("offer compression, to send a WebSocket message that unpacks to gigabytes", expected="not accepted")
def test_streams_are_not_compressed(server: PolicyServer, observed: Observed) -> None:
    with connected(server) as line:
        line.sendall(UPGRADE + b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n")
        begin = read_head(line)
        assert b"permessage-deflate" not in begin
        line.sendall(bytes([0x82 | 0x40]) + frame(b"\0" * 10)[1:])  # a frame that claims to be compressed
        frames_until_closed(line)
    observed("not accepted, and such a frame ends the connection")
    assert_serves(server)


@pytest.mark.attack("announce a WebSocket frame of 2^62 bytes", expected="closed at once, nothing is reserved for it")
def test_a_frame_that_is_too_long_is_closed(observed: Observed) -> None:
    with serving(limits=replaced(body_s=60.0)) as server, streamed(server) as line:
        line.sendall(frame(b"", announced=2**62))
        data = frames_until_closed(line)
        wait_for(lambda: len(server.sessions) == 0, "the slot was not given back")
    observed("closed with 1009")
    assert struct.pack("!H", 1009) in data


@pytest.mark.attack(
    "send a policy of two numbers the 64 MiB that another policy may need", expected="at most what its contract needs"
)
def test_messages_are_limited_by_the_contract(server: PolicyServer, observed: Observed) -> None:
    status, body = sent(server, head("GET", "/v1/policy") + b"\r\n")
    largest = json.loads(body)["largest_message"]
    observed(f"{largest} bytes")
    assert status == 200
    assert largest == largest_request(CONTRACT) < 80_000 < LARGEST_MESSAGE
    with pytest.raises(InputError, match=r"One observation of adding has 2416 bytes, but at most 2000 are read"):
        PolicyServer(Adding, ServeOptions(port=0, largest=2000))


@pytest.mark.attack("claim another address by X-Forwarded-For", expected="not looked at")
def test_forwarded_addresses_are_not_believed(observed: Observed) -> None:
    with serving(limits=replaced(connections_per_address=1)) as server, connected(server), connected(server) as line:
        with contextlib.suppress(ConnectionError):
            line.sendall(head("GET", "/health", "X-Forwarded-For: 10.0.0.1") + b"\r\n")
        status, _ = answer(line)
    observed(status)
    assert status == 503


# --- options ---


@pytest.mark.parametrize(
    "host",
    [
        hostile(f"host-{index}", f"listen at {host!r} without a token", "refused, with the next step", host)
        for index, host in enumerate(
            ["0.0.0.0", "::", "", "0", "0x7f000001", "127.1.evil.example", "::ffff:10.0.0.1", "*"]
        )
    ],
)
def test_other_machines_need_a_token(host: str, observed: Observed) -> None:
    with pytest.raises(InputError) as refused:
        ServeOptions(host=host)
    observed(refused.value)
    assert "Give --token-file" in str(refused.value)


TOKEN_FILES = [
    hostile("endless", "a token file without end", "refused, read to 4 KiB", Path("/dev/zero"), None),
    hostile(
        "binary", "a token file that is not text", "refused without showing it", None, b"\xffsecret-of-some-length"
    ),
    hostile("lines", "a token file of two lines", "refused", None, b"one-token-of-length\nanother-of-length\n"),
    hostile("escape", "a token that steers a terminal", "refused", None, b"\x1b[2Jsecret-of-some-length"),
    hostile("empty", "an empty token file", "refused", None, b" \n"),
]


@pytest.mark.parametrize(("path", "content"), TOKEN_FILES)
def test_token_files_are_checked(path: Path | None, content: bytes | None, tmp_path: Path, observed: Observed) -> None:
    if content is not None:
        path = tmp_path / "token.txt"
        path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        read_token(path)
    observed(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.attack(
    "two clients of ours on a server with a token, one with another's token", expected="only one is let in"
)
def test_our_client_with_the_wrong_token(guarded: PolicyServer, observed: Observed) -> None:
    client = PolicyClient(guarded.address, token=TOKEN)
    client.restart(0)
    assert client.act(observation()).shape == (6,)
    client.close()
    with pytest.raises(PolicyServerError, match=r"refused \(401\): The token is missing or wrong") as refused:
        PolicyClient(guarded.address, token="z" * 22)
    observed(refused.value)
    assert "zzz" not in str(refused.value)
