"""The policy server and its client: the same commands, separate sessions, and refusal of invalid input."""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.policies import observation as seen_by
from support.policies import small
from support.serve import CONTRACT, TOKEN, Adding, observation
from twinloop.core.contract import ENVIRONMENT, IMAGES, STATE
from twinloop.core.errors import InputError
from twinloop.policies import PolicyLoop
from twinloop.release.client import PolicyClient, PolicyServerError, is_address
from twinloop.release.running_policy import LocalDecider
from twinloop.release.serve import PolicyServer, ServeOptions, read_token
from twinloop.release.serve_sessions import FullError, Sessions
from twinloop.release.serve_wire import Message, WireError, check_observation, decode, encode

ONE_QUICKLY = [pytest.param(0, id="http"), pytest.param(1, id="websocket", marks=pytest.mark.slow)]


class Raising(Adding):
    def act(self, observation) -> np.ndarray:
        raise ZeroDivisionError("no way out")


@contextlib.contextmanager
def serving(make: Callable[[], Adding] = Adding, **options) -> Iterator[PolicyServer]:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    server = PolicyServer(make, ServeOptions(**{"port": 0, **options}))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.is_running:
            assert thread.is_alive()
            time.sleep(0.005)
        yield server
    finally:
        server.stop(at_once=True)
        thread.join(10.0)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def server() -> Iterator[PolicyServer]:
    with serving() as running:
        yield running


def addresses(server: PolicyServer) -> list[str]:
    return [server.address, server.address.replace("http", "ws", 1)]


@pytest.mark.parametrize("way", [0, 1], ids=["http", "websocket"])
def test_a_served_policy_gives_the_same_commands_and_keeps_clients_apart(server, way):
    first, second = (PolicyClient(addresses(server)[way]) for _ in range(2))
    here = Adding()
    assert (first.name, first.hash, first.contract) == (here.name, here.hash, CONTRACT)
    first.restart(0)
    second.restart(0)
    for value in (0.1, 1e-9, -3.7):
        np.testing.assert_array_equal(first.act(observation(value)), here.act(observation(value)))
    np.testing.assert_array_equal(second.act(observation(0.5)), np.full(6, 2.5))
    first.restart(1)
    here.restart(1)
    np.testing.assert_array_equal(first.act(observation(0.5)), here.act(observation(0.5)))
    first.report_sent(np.arange(6.0))
    np.testing.assert_array_equal(first.act(observation(0.5)), np.arange(6.0) + 2.5)
    sessions = len(server.sessions)
    first.close()
    second.close()
    deadline = time.monotonic() + 5.0
    while len(server.sessions) > sessions - 2:
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("way", ONE_QUICKLY)
def test_a_served_memory_is_that_of_its_episode(way):
    pytest.importorskip("torch")
    policy = small("adaptive", n_action_steps=1)
    seen = [{key: row[0] for key, row in seen_by(policy, 1, step, history=False).items()} for step in range(9)]
    alone = PolicyLoop(policy, 1)
    wanted = [alone.act({key: row[None] for key, row in step.items()})[0] for step in seen]
    assert not np.allclose(wanted[8], PolicyLoop(policy, 1).act({key: row[None] for key, row in seen[8].items()})[0])
    with serving(lambda: LocalDecider(policy, name="remembering")) as server:
        client = PolicyClient(addresses(server)[way])
        for episode in range(2):
            client.restart(episode)
            np.testing.assert_array_equal([client.act(step) for step in seen], wanted)
        client.close()


def test_answers_are_sent_at_once(server):
    assert (
        server._socket.proto == socket.IPPROTO_TCP
    )  # else asyncio leaves Nagle's algorithm on, and answers take 40 ms


@pytest.mark.parametrize("way", [0, 1], ids=["http", "websocket"])
def test_a_wrong_observation_is_refused_with_its_reason_and_the_session_goes_on(server, way):
    client = PolicyClient(addresses(server)[way])
    client.restart(0)
    for change, said in (
        ({STATE: np.zeros(5)}, r"observation.state has shape \(5,\); the policy expects \(6,\)"),
        ({STATE: np.array([0, 1, np.nan, 3, 4, 5.0])}, "observation.state is not a number at index 2"),
        ({f"{IMAGES}front": np.zeros((24, 32, 3))}, "front is float64; the policy expects uint8"),
        ({f"{IMAGES}front": np.zeros((32, 24, 3), dtype=np.uint8)}, "front has shape"),
    ):
        with pytest.raises(PolicyServerError, match=said):
            client.act(observation() | change)
    short = observation()
    del short[ENVIRONMENT]
    with pytest.raises(PolicyServerError, match=r"The observation has no observation.environment_state"):
        client.act(short)
    np.testing.assert_array_equal(client.act(observation(1.0)), np.full(6, 3.0))
    client.close()


@pytest.mark.parametrize("way", ONE_QUICKLY)
def test_a_policy_that_raises_is_told_of_and_the_server_lives_on(way):
    with serving(Raising) as server:
        client = PolicyClient(addresses(server)[way])
        client.restart(0)
        for _ in range(2):
            with pytest.raises(PolicyServerError, match="The policy failed: ZeroDivisionError: no way out"):
                client.act(observation())
        client.close()


@pytest.mark.parametrize("way", ONE_QUICKLY)
def test_without_the_token_nobody_is_let_in(way):
    with serving(token=TOKEN) as server:
        for wrong in (None, TOKEN + "x", TOKEN[:-1], "Bearer " + TOKEN):
            with pytest.raises(PolicyServerError, match="The token is missing or wrong"):
                PolicyClient(addresses(server)[way], token=wrong)
        client = PolicyClient(addresses(server)[way], token=TOKEN)
        client.restart(0)
        assert client.act(observation()).shape == (6,)
        client.close()
        assert asked(server, "GET", "/health")[0] == 200


def asked(server: PolicyServer, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    host, port = server.address.removeprefix("http://").split(":")
    line = http.client.HTTPConnection(host, int(port), timeout=5)
    line.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = line.getresponse()
    data = answer.read()
    line.close()
    return answer.status, data


def test_web_pages_and_false_names_are_refused(server):
    assert asked(server, "POST", "/v1/sessions", Origin="http://evil.example")[0] == 401
    assert asked(server, "GET", "/v1/policy", Host="evil.example:80")[0] == 401
    status, said = asked(server, "POST", f"/v1/sessions/{'0' * 32}", encode(Message(kind="restart")))
    assert status == 404
    assert b"There is no such session" in said


@pytest.mark.slow
def test_too_much_is_not_read():
    with serving(largest=50_000) as server:
        session = server.sessions.open()
        status, said = asked(server, "POST", f"/v1/sessions/{session}", b"\0" * 60_000)
        assert status == 413
        assert b"at most 50000 bytes" in said
        client = PolicyClient(addresses(server)[1])
        client.restart(0)
        with pytest.raises(PolicyServerError, match="was lost"):
            client._line._socket.send(b"\0" * 60_000)
            client.act(observation())
        client.close()


def test_a_full_server_says_so_and_gives_away_what_has_gone_silent():
    full = Sessions(Adding, most=2)
    full.open()
    full.open()
    with pytest.raises(FullError, match="2 clients are served already, and none has been silent for 600 s"):
        full.open()
    quick = Sessions(Adding, most=1, idle_s=0.0)
    first = quick.open()
    quick.open()
    with pytest.raises(InputError, match="There is no such session"):
        quick.act(first, observation())


@pytest.mark.slow
@pytest.mark.parametrize("way", [0, 1], ids=["http", "websocket"])
def test_a_server_that_dies_is_a_clear_error_and_a_new_one_is_found_at_the_next_episode(way):
    with serving() as server:
        port = int(server.address.rpartition(":")[2])
        client = PolicyClient(addresses(server)[way])
        client.restart(0)
        client.act(observation())
    with pytest.raises(
        PolicyServerError,
        match=rf"at \w+://[\w.]+:{port}\S* cannot be reached, or the connection was lost .* Check that it is running",
    ):
        client.act(observation())
    with pytest.raises(PolicyServerError, match="cannot be reached"):
        client.restart(1)
    with serving(port=port):
        client.restart(2)
        np.testing.assert_array_equal(client.act(observation()), np.full(6, 3.0))
        client.close()


@contextlib.contextmanager
def talking_nonsense(answer: bytes) -> Iterator[str]:
    """A server that sends the same bytes to every request."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(5.0)

    def talk() -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = listener.accept()
                with line:
                    line.recv(65536)
                    line.sendall(answer)

    thread = threading.Thread(target=talk)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10.0)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "cannot be reached, or the connection was lost"),
        (b"", "cannot be reached, or the connection was lost"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{]x", "answered with invalid JSON"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "is not a policy server"),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"protocol":9}', "uses protocol 9, but this client uses 1"),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", r"refused \(500\): no reason is given"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}", "cannot be reached, or the connection was lost"),
    ],
)
def test_what_is_no_policy_server_is_named_so(answer, said):
    with talking_nonsense(answer) as address, pytest.raises(PolicyServerError, match=said):
        PolicyClient(address, timeout_s=2.0)


def test_nobody_there_and_what_is_no_address():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(PolicyServerError, match=f"at http://127.0.0.1:{port} cannot be reached"):
        PolicyClient(f"http://127.0.0.1:{port}", timeout_s=1.0)
    for wrong in ("http://host", "ftp://host:1", "http://host:99999999", "http://host:1/policies"):
        with pytest.raises(InputError, match="is not an address of a policy server. Write it as http://HOST:PORT"):
            PolicyClient(wrong)
    assert is_address("ws://host:1")
    assert not is_address("champion")


ARRAYS = st.dictionaries(
    st.sampled_from(["observation.state", "x", "ü", "a b"]),
    st.tuples(
        st.sampled_from(["float32", "float64", "uint8"]), st.lists(st.integers(0, 4), max_size=4), st.integers(0, 9)
    ),
    max_size=4,
)


@given(described=ARRAYS)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_what_is_encoded_comes_back_bit_for_bit(described):
    arrays = {
        name: np.random.default_rng(seed).uniform(0, 255, shape).astype(kind)
        for name, (kind, shape, seed) in described.items()
    }
    back = decode(encode(Message(kind="act", arrays=arrays))).arrays
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
        assert back[name].tobytes() == array.tobytes()


@given(cut=st.integers(0, 400), flips=st.lists(st.tuples(st.integers(0, 399), st.integers(0, 255)), max_size=4))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_damaged_bytes_are_an_error_of_the_wire_or_a_message(cut, flips):
    data = bytearray(encode(Message(kind="act", arrays={"observation.state": np.zeros(6)})))
    for place, value in flips:
        data[place % len(data)] = value
    try:
        message = decode(bytes(data[:cut]))
    except WireError:
        return
    assert all(isinstance(array, np.ndarray) for array in message.arrays.values())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "0 bytes are not a message"),
        (struct.pack("<I", 2**31), "header is announced with 2147483648 bytes"),
        (struct.pack("<I", 2) + b"[]", "of protocol None, but 1 is used here"),
        (struct.pack("<I", 14) + b'{"protocol":2}', "of protocol 2, but 1 is used here"),
        (struct.pack("<I", 3) + b"\x80\x04K", "is not JSON"),
        (encode(Message(kind="act", arrays={"a": np.zeros(3)}))[:-1], "its header announces"),
        (encode(Message(kind="act")) + b"more", "its header announces"),
    ],
)
def test_what_is_no_message_is_refused_by_name(data, said):
    with pytest.raises(WireError, match=said):
        decode(data)


def test_headers_are_checked_and_pickles_do_not_travel():
    text = b'{"protocol":1,"kind":"act","arrays":[{"name":"x","dtype":"object","shape":[1]}]}'
    with pytest.raises(WireError, match=r"arrays.0.dtype: Input should be 'float32', 'float64' or 'uint8'"):
        decode(struct.pack("<I", len(text)) + text + b"\0" * 8)
    with pytest.raises(WireError, match="x is object; only float32, float64 and uint8 can be sent"):
        encode(Message(kind="act", arrays={"x": np.array([{}])}))
    twice = encode(Message(kind="act", arrays={"aa": np.zeros(1), "bb": np.zeros(1)})).replace(b'"bb"', b'"aa"')
    with pytest.raises(WireError, match="has aa twice"):
        decode(twice)
    with pytest.raises(WireError, match="is too large: at most 10 are read"):
        decode(b"\0" * 11, largest=10)


def test_an_observation_is_what_the_contract_says():
    check_observation(observation(), CONTRACT)
    with pytest.raises(WireError, match="has no observation.state. It has: no arrays"):
        check_observation({}, CONTRACT)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "robot.local", "192.168.1.5"])
def test_beyond_this_machine_a_token_is_needed(host):
    with pytest.raises(InputError, match=r"admits other machines.*Give --token-file, or.*ssh -L"):
        ServeOptions(host=host)
    assert ServeOptions(host=host, token=TOKEN).allowed_hosts is None


def test_options_and_token_files_are_checked(tmp_path):
    with pytest.raises(InputError, match="The token has 5 characters and is too easy to guess"):
        ServeOptions(token="short")
    for wrong, said in (({"port": 70000}, "--port 70000 is not a port"), ({"sessions": 0}, "allows no client")):
        with pytest.raises(InputError, match=said):
            ServeOptions(**wrong)
    path = tmp_path / "token.txt"
    with pytest.raises(InputError, match=r"token.txt cannot be read"):
        read_token(path)
    path.write_text("two words\n")
    with pytest.raises(InputError, match="has no valid token"):
        read_token(path)
    path.write_text(f"{TOKEN}\n")
    assert read_token(path) == TOKEN
    assert read_token(None) is None


def test_a_port_that_is_taken_is_named():
    pytest.importorskip("fastapi")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(InputError, match=rf"Port {port} of 127.0.0.1 is not available"):
            PolicyServer(Adding, ServeOptions(port=port))
