"""Attacks on a policy server by messages with false headers or sizes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from _policy_server import (
    ACT,
    Observed,
    answer,
    assert_no_traceback,
    connected,
    frame,
    hostile,
    message_of,
    opened,
    post,
    replaced,
    serving,
    streamed,
    unframed,
)

from support.serve import observation
from twinloop.release.serve import PolicyServer
from twinloop.release.serve_wire import Message, encode


@pytest.fixture(scope="module")
def server() -> Iterator[PolicyServer]:
    with serving() as running:
        yield running


# --- messages with false content ---


def framed(header: bytes | dict[str, Any], data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<I", len(text) if length is None else length) + text + data


def one_array(
    dtype: Any = "float64", shape: Any = (6,), data: bytes = b"\0" * 48, name: Any = "observation.state"
) -> bytes:
    rows = [{"name": name, "dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape}]
    return framed({"protocol": 1, "kind": "act", "arrays": rows}, data)


def acting(**changes: Any) -> bytes:
    arrays = observation() | {key.replace("_", "."): value for key, value in changes.items()}
    return encode(Message(kind="act", arrays={key: value for key, value in arrays.items() if value is not None}))


STATE, FRONT = "observation_state", "observation_images_front"
LIES = [
    hostile("empty", "an empty message", "400", b"", "0 bytes are not a message"),
    hostile("three", "a message of three bytes", "400", b"\0\0\0", "3 bytes are not a message"),
    hostile(
        "huge-header",
        "a header of 2^32 - 1 bytes is announced",
        "400",
        b"\xff" * 8,
        "header is announced with 4294967295",
    ),
    hostile(
        "long-header",
        "a header that is longer than the message",
        "400",
        framed(b"{}", length=9),
        "header is announced with 9 bytes",
    ),
    hostile("no-header", "a header of no bytes", "400", framed(b""), "is not JSON"),
    hostile("deep", "a header nested 30,000 times", "400", framed(b"[" * 30_000), "is not JSON"),
    hostile(
        "digits",
        "a header with a number of 5,000 digits",
        "400",
        framed(b'{"protocol":' + b"9" * 5000 + b"}"),
        "is not JSON",
    ),
    hostile("nan", "NaN in the header", "400", framed(b'{"protocol":NaN}'), "NaN is not a valid JSON number"),
    hostile(
        "infinity",
        "a shape of Infinity",
        "400",
        framed(b'{"protocol":1,"kind":"act","arrays":[{"name":"x","dtype":"uint8","shape":[Infinity]}]}'),
        "not JSON",
    ),
    hostile(
        "twice",
        "the same key twice in the header",
        "400",
        framed(b'{"protocol":1,"kind":"act","kind":"restart"}'),
        "same key twice",
    ),
    hostile("utf16", "a header in UTF-16", "400", framed('{"protocol":1}'.encode("utf-16")), "is not JSON"),
    hostile(
        "pickle", "a pickle instead of a header", "400", framed(b"\x80\x04cos\nsystem\n(S'id'\ntR."), "is not JSON"
    ),
    hostile("list", "a list instead of a header", "400", framed(b"[1]"), "of protocol None"),
    hostile("protocol", "another version", "400", framed({"protocol": 2, "kind": "act"}), "of protocol 2"),
    hostile("true", "true as the version", "400", framed({"protocol": True, "kind": "act"}), "protocol"),
    hostile("kind", "a kind of message that does not exist", "400", framed({"protocol": 1, "kind": "exec"}), "kind"),
    hostile(
        "server-kind",
        "a server's kind of message",
        "400",
        framed({"protocol": 1, "kind": "ready"}),
        "must send act or restart",
    ),
    hostile(
        "unknown-key", "a key that does not exist", "400", framed({"protocol": 1, "kind": "act", "code": "1"}), "code"
    ),
    hostile("negative", "a negative dimension", "400", one_array(shape=(-1, -6)), "greater than or equal to 0"),
    hostile(
        "overflow", "dimensions whose product is 2^56", "400", one_array(shape=(16384,) * 4), "its header announces"
    ),
    hostile(
        "gigapixel",
        "a picture of 10^9 pixels is announced",
        "400",
        one_array("uint8", (16384, 16384, 4), b"", "observation.images.front"),
        "its header announces",
    ),
    hostile("dimension", "a dimension of 2^63", "400", one_array(shape=(2**63,)), "less than or equal to 16384"),
    hostile("zero", "an array without elements", "400", one_array(shape=(0,), data=b""), "has shape"),
    hostile("dims", "an array of five dimensions", "400", one_array(shape=(1, 1, 1, 1, 6)), "at most 4"),
    hostile("fraction", "a dimension of 1.5", "400", one_array(shape=(1.5, 4)), "shape"),
    hostile("shape", "a shape that is text", "400", one_array(shape="6"), "shape"),
    hostile("flag", "a dimension that is true", "400", one_array(shape=(True, 6)), "shape"),
    *(
        hostile(f"dtype-{index}", f"numbers of type {dtype!r}", "400", one_array(dtype), "dtype")
        for index, dtype in enumerate(
            [
                "object",
                "O",
                ">f8",
                "float16",
                "complex128",
                "datetime64[s]",
                "S8",
                "V8",
                "i8",
                ["f8"],
                None,
                {"names": ["a"]},
            ]
        )
    ),
    hostile(
        "arrays",
        "a hundred arrays",
        "400",
        framed({"protocol": 1, "kind": "act", "arrays": 100 * [{"name": "a", "dtype": "uint8", "shape": [0]}]}),
        "at most 64",
    ),
    hostile("name", "an array without a name", "400", one_array(name=""), "name"),
    hostile("long-name", "an array whose name has 10,000 characters", "400", one_array(name="a" * 10_000), "name"),
    hostile("surrogate", "a name that UTF-8 cannot hold", "400", one_array(name="\ud800"), "unicode"),
    hostile("escape", "a name that steers a terminal", "400", one_array(name="\x1b[2Jobservation.state"), "printable"),
    hostile(
        "same-array",
        "the same array twice",
        "400",
        framed({"protocol": 1, "kind": "act", "arrays": 2 * [{"name": "a", "dtype": "uint8", "shape": [1]}]}, b"ab"),
        "has a twice",
    ),
    hostile("short", "a message without its last byte", "400", ACT[:-1], "its header announces"),
    hostile("long", "a message with one byte more", "400", ACT + b"x", "its header announces"),
    hostile(
        "more",
        "an array that the policy does not want",
        "400",
        acting(extra=np.zeros(3)),
        "has extra; the policy expects only",
    ),
    hostile(
        "less", "an observation without its pictures", "400", acting(**{FRONT: None}), "has no observation.images.front"
    ),
    hostile("wide", "seven joints instead of six", "400", acting(**{STATE: np.zeros(7)}), "has shape"),
    hostile("column", "joints as a column", "400", acting(**{STATE: np.zeros((6, 1))}), "has shape"),
    hostile("type", "joints as bytes", "400", acting(**{STATE: np.zeros(6, dtype=np.uint8)}), "is uint8"),
    hostile(
        "picture",
        "a picture as fractions",
        "400",
        acting(**{FRONT: np.zeros((24, 32, 3), dtype=np.float32)}),
        "is float32",
    ),
    hostile(
        "not-a-number", "a joint at NaN", "400", acting(**{STATE: np.full(6, np.nan)}), "is not a number at index 0"
    ),
    hostile(
        "infinite",
        "a joint at minus infinity",
        "400",
        acting(**{STATE: np.array([0, 0, 0, 0, 0, -np.inf])}),
        "is not a number at index 5",
    ),
    hostile("sent-nan", "a command sent before of NaN", "400", acting(sent=np.full(6, np.nan)), "sent is not a number"),
    hostile("sent-shape", "a command sent before for two joints", "400", acting(sent=np.zeros(2)), "sent has shape"),
]


@pytest.mark.parametrize(("data", "said"), LIES)
def test_a_wrong_message_is_refused_by_name(
    server: PolicyServer, data: bytes, said: str, observed: Observed, capfd: Any
) -> None:
    with connected(server) as line:
        path = opened(line)
        line.sendall(post(path, data))
        status, body = answer(line)
        observed(f"{status}: {message_of(body)}")
        assert status == 400, body
        assert said in message_of(body)
        assert_no_traceback(body)
        line.sendall(post(path, ACT))
        assert answer(line)[0] == 200  # the session and the connection go on
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.attack(
    "all wrong messages of this page over one WebSocket, and text instead of bytes",
    expected="an error for each, and the session goes on",
)
def test_a_stream_survives_wrong_messages(observed: Observed, capfd: Any) -> None:
    wrong = [frame(case.values[0]) for case in LIES]
    wrong += [frame(b"text", opcode=1), frame(b"\xff\xfe\xfd", opcode=1)]
    patient = dict.fromkeys(("body_s", "write_s", "rest_s", "first_s", "idle_s", "policy_s"), 60.0)  # a busy machine
    with serving(limits=replaced(**patient)) as server, streamed(server) as line:
        for data in wrong:
            line.sendall(data)
            assert unframed(line.recv(65536)).kind == "error"
        line.sendall(frame(ACT))
        assert unframed(line.recv(65536)).kind == "action"
    observed(f"{len(wrong)} errors, and then an answer")
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.attack("random changes to the bytes of a message", expected="400, or 200 where they change only numbers")
def test_damaged_messages_never_lead_to_500(server: PolicyServer, observed: Observed) -> None:
    seen = set()
    with connected(server) as line:
        path = opened(line)

        @given(
            flips=st.lists(st.tuples(st.integers(0, 250), st.integers(0, 255)), min_size=1, max_size=5),
            cut=st.integers(0, 250) | st.none(),
        )
        @settings(max_examples=60, deadline=None, derandomize=True)
        def damaged(flips: list[tuple[int, int]], cut: int | None) -> None:
            data = bytearray(ACT[:cut])
            for place, value in flips:
                if data:
                    data[place % len(data)] = value
            line.sendall(post(path, bytes(data)))
            status, body = answer(line)
            seen.add(status)
            assert status in (200, 400), body
            assert_no_traceback(body)

        damaged()
    observed(sorted(seen))
