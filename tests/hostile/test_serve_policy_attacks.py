"""A policy server whose policy raises, exits, answers nonsense, or never returns."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from _policy_server import (
    ACT,
    PATIENCE_S,
    SLACK_S,
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
    unframed,
    wait_for,
)

from support.serve import CONTRACT, TOKEN, Adding, observation
from twinloop.release.serve import PolicyServer
from twinloop.release.serve_wire import Message, encode


@pytest.fixture(scope="module")
def server() -> Iterator[PolicyServer]:
    with serving() as running:
        yield running


# --- policies that fail ---


def failing(act: Callable[[], Any], *, at: str = "act") -> Callable[[], Adding]:
    """A policy that does something else at its third call of a method."""

    class Failing(Adding):
        def __getattribute__(self, name: str) -> Any:
            return (lambda *_: act()) if name == at else super().__getattribute__(name)

    return Failing


def raising(error: BaseException) -> Callable[[], Any]:
    def act() -> Any:
        raise error

    return act


def endless() -> Any:
    return endless()


class Unprintable(Exception):
    pass


FAILURES = [
    hostile(
        "exit",
        "the policy calls sys.exit",
        "500 with its message; the server lives",
        raising(SystemExit(3)),
        "SystemExit: 3",
    ),
    hostile(
        "interrupt",
        "the policy raises KeyboardInterrupt",
        "500; the server lives",
        raising(KeyboardInterrupt()),
        "KeyboardInterrupt",
    ),
    hostile(
        "stop", "the policy raises StopIteration", "500; the server lives", raising(StopIteration(1)), "StopIteration"
    ),
    hostile(
        "generator",
        "the policy raises GeneratorExit",
        "500; the server lives",
        raising(GeneratorExit()),
        "GeneratorExit",
    ),
    hostile("memory", "the policy runs out of memory", "500; the server lives", raising(MemoryError()), "MemoryError"),
    hostile("recursion", "the policy never stops calling itself", "500; the server lives", endless, "RecursionError"),
    hostile(
        "surrogate",
        "the policy raises a message that UTF-8 cannot hold",
        "500",
        raising(ValueError("\ud800")),
        "ValueError",
    ),
    hostile(
        "long",
        "the policy raises a message of a million characters",
        "500, cut",
        raising(ValueError("a" * 10**6)),
        "ValueError: aaa",
    ),
    hostile(
        "nan",
        "the policy answers NaN",
        "500, naming the joint",
        lambda: np.array([0, 0, np.nan, 0, 0, 0]),
        "not a number, for elbow_flex",
    ),
    hostile(
        "shape",
        "the policy answers five numbers for six joints",
        "500",
        lambda: np.zeros(5),
        "of shape (5,) instead of (6,)",
    ),
    hostile("none", "the policy answers nothing", "500", lambda: None, "instead of (6,)"),
    hostile("text", "the policy answers text", "500", lambda: "forward", "ValueError"),
    hostile("object", "the policy answers an object", "500", lambda: object(), "TypeError"),
    hostile(
        "ragged", "the policy answers lists of different lengths", "500", lambda: [[1.0], [1.0, 2.0]], "ValueError"
    ),
]


@pytest.mark.parametrize(("act", "said"), FAILURES)
def test_a_policy_that_fails_is_an_error_for_its_client(act: Callable, said: str, observed: Observed) -> None:
    with serving(failing(act)) as server, connected(server) as line:
        path, status, body = opened(line), 0, b""
        for _ in range(2):  # the session continues
            line.sendall(post(path, ACT))
            status, body = answer(line)
            assert status == 500
            assert said in message_of(body)
            assert len(body) < 1000
            assert_no_traceback(body)
        observed(f"{status}: {message_of(body)}")
        with streamed(server) as stream:
            stream.sendall(frame(ACT))
            assert said in unframed(stream.recv(65536)).message


@pytest.mark.parametrize(
    ("at", "act"),
    [
        hostile(
            "restart",
            "the policy raises when a session begins",
            "500, and the slot is given back",
            "restart",
            raising(OSError("no weights")),
        ),
        hostile(
            "exit",
            "the policy calls sys.exit when a session begins",
            "500, and the slot is given back",
            "restart",
            raising(SystemExit(1)),
        ),
    ],
)
def test_a_session_that_cannot_begin_takes_no_slot(at: str, act: Callable, observed: Observed) -> None:
    with serving(failing(act, at=at), sessions=2) as server:
        body = b""
        for _ in range(3):
            status, body = sent(server, post("/v1/sessions"))
            assert status == 500
            assert len(server.sessions) == 0
        with connected(server) as line:
            line.sendall(UPGRADE + b"\r\n")
            read_head(line)
            assert unframed(frames_until_closed(line)).kind == "error"
        wait_for(lambda: len(server.sessions) == 0, "the slot was not given back")
    observed(message_of(body))


@pytest.mark.parametrize(
    ("at", "kind"),
    [
        hostile(
            "act-http",
            "the policy never returns from an observation, over HTTP",
            "503 after 30 s (here 0.4 s), slot given back",
            "act",
            "http",
        ),
        hostile(
            "act-stream",
            "the policy never returns from an observation, over a WebSocket",
            "an error after 30 s (here 0.4 s), slot given back",
            "act",
            "ws",
        ),
        hostile(
            "restart-http",
            "the policy never returns from the begin of a session",
            "503 after 30 s (here 0.4 s), slot given back",
            "restart",
            "http",
        ),
    ],
)
def test_a_policy_that_never_returns_is_left_behind(at: str, kind: str, observed: Observed) -> None:
    release = threading.Event()
    stuck = iter([True])

    class Sleeping(Adding):
        def __getattribute__(self, name: str) -> Any:
            if name == at and next(stuck, False):
                return lambda *_: release.wait(60.0)
            return super().__getattribute__(name)

    try:
        with serving(Sleeping, sessions=1, limits=replaced(idle_s=600.0)) as server:
            said = stuck_message(server, at, kind)
            wait_for(lambda: len(server.sessions) == 0, "the slot was not given back")
            observed(said)
            assert "did not return within 0.4 s" in said
            assert_serves(server)  # in another thread
    finally:
        release.set()


def stuck_message(server: PolicyServer, at: str, kind: str) -> str:
    if kind == "ws":
        with streamed(server) as line:
            line.sendall(frame(ACT))
            return unframed(frames_until_closed(line)).message
    with connected(server) as line:
        line.sendall(post(opened(line), ACT) if at == "act" else post("/v1/sessions"))
        status, body = answer(line)
        assert status == 503
        assert len(server.sessions) == 0  # while the client is still connected
        return message_of(body)


@pytest.mark.attack(
    "the policy never returns, again and again", expected="503 from the fifth time on, without one more thread"
)
def test_a_policy_that_never_returns_takes_few_threads(observed: Observed) -> None:
    release = threading.Event()
    quick = replaced(policy_s=0.05, stuck_threads=3, connections_per_address=14)
    try:
        with serving(failing(lambda: release.wait(60.0)), limits=quick) as server:
            assert_serves_health(server)
            before = threading.active_count()
            said = [stuck_message(server, "act", "http") for _ in range(3)]
            status, body = sent(server, post("/v1/sessions"))
            observed(message_of(body))
            assert status == 503
            assert "did not return 3 times and is not called again" in message_of(body)
            assert all("did not return within" in text for text in said)
            assert threading.active_count() - before <= 3
            assert_serves_health(server)
    finally:
        release.set()


def assert_serves_health(server: PolicyServer) -> None:
    assert sent(server, head("GET", "/health") + b"\r\n")[0] == 200


@pytest.mark.attack(
    "a policy takes all the time with others while a request waits", expected="503 that names the wait, not a hang"
)
def test_a_request_that_waits_too_long_is_answered(observed: Observed) -> None:
    late = encode(Message(kind="act", arrays=observation(9.0)))
    with (
        gated() as policy,
        serving(policy, limits=replaced(policy_s=0.6)) as server,
        connected(server) as first,
        connected(server) as second,
    ):
        slow, waiting = opened(first), opened(second)
        first.sendall(post(slow, late))
        assert policy.waiting.wait(PATIENCE_S)
        second.sendall(post(waiting, ACT))
        answers = [answer(line)[0] for line in (first, second)]
        observed(answers)
        assert answers[0] == 503
        assert answers[1] in (200, 503)  # served by the next thread, unless its time was over first
        assert_serves(server)


SERVER = """
import sys, threading, time
sys.path[:0] = {paths!r}
import numpy as np
from twinloop.core.contract import STATE, Contract
from twinloop.core.units import UnitMap
from twinloop.release.serve import PolicyServer, ServeOptions
from twinloop.release.serve_worker import ServeLimits

units = UnitMap.from_json({units!r})

class Blocking:
    name, hash = "blocking", "0" * 64
    contract = Contract(robot_type="arm", control_hz=30.0, action=units, state=units)
    def restart(self, episode): pass
    def report_sent(self, command): pass
    def close(self): pass
    def act(self, observation):
        if observation[STATE][0] == 9.0:
            print("blocked", flush=True)
            while True:
                time.sleep(1)
        return np.zeros(6)

server = PolicyServer(Blocking, ServeOptions(port=0, token="{token}", limits=ServeLimits(stop_s=1)))
print(server.address, flush=True)
server.run()
"""


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        hostile(
            "term-http",
            "SIGTERM while the policy never returns and a client waits, over HTTP",
            "ends within 5 s (here 1 s)",
            signal.SIGTERM,
            "http",
        ),
        hostile(
            "int-stream",
            "Ctrl-C while the policy never returns and a client waits, over a WebSocket",
            "ends within 5 s (here 1 s)",
            signal.SIGINT,
            "ws",
            slow=True,
        ),
        hostile(
            "term-slow",
            "SIGTERM while clients are in the middle of headers and bodies",
            "ends within 5 s (here 1 s)",
            signal.SIGTERM,
            "slow",
            slow=True,
        ),
    ],
)
def test_a_server_ends_when_it_is_asked_to(number: signal.Signals, kind: str, observed: Observed) -> None:
    import twinloop

    paths = [str(Path(twinloop.__file__).parents[1])]
    script = SERVER.format(paths=paths, units=CONTRACT.action.to_json(), token=TOKEN)
    words = [sys.executable, "-c", script]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            host, _, port = process.stdout.readline().strip().removeprefix("http://").partition(":")
            bearer = f"Authorization: Bearer {TOKEN}"
            state = encode(Message(kind="act", arrays={"observation.state": np.full(6, 9.0)}))
            with contextlib.ExitStack() as held:
                line = held.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE_S))
                if kind == "http":
                    line.sendall(head("POST", "/v1/sessions", bearer) + b"\r\n")
                    name = json.loads(answer(line)[1])["session"]
                    line.sendall(post(f"/v1/sessions/{name}", state, bearer))
                    assert process.stdout.readline() == "blocked\n"
                elif kind == "ws":
                    line.sendall(UPGRADE + bearer.encode() + b"\r\n\r\n" + b"")
                    read_head(line)
                    line.sendall(frame(state))
                    assert process.stdout.readline() == "blocked\n"
                else:
                    line.sendall(head("GET", "/health"))
                    other = held.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE_S))
                    other.sendall(head("POST", "/v1/sessions/x", bearer, "Content-Length: 500") + b"\r\nabc")
                    time.sleep(0.1)
                begin = time.monotonic()
                process.send_signal(number)
                process.wait(PATIENCE_S)
                took = time.monotonic() - begin
            assert process.stderr is not None
            errors = process.stderr.read()
        finally:
            process.kill()
    observed(f"ended with {process.returncode}")
    assert took < 1.0 + SLACK_S
    assert TOKEN not in errors
    if number is signal.SIGTERM:
        assert "Traceback" not in errors
