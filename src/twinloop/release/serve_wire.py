"""Encode and decode the messages between a policy server and its clients, without pickles.

A message is the header's length (4 bytes, little-endian), the header (UTF-8 JSON), and the bytes of the arrays in the
header's order, C order, little-endian, without gaps. The header contains the protocol's version, the kind of message,
and each array with its type and shape::

    {"protocol": 1, "kind": "act", "arrays": [{"name": "observation.state", "dtype": "float64", "shape": [6]}]}
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from twinloop.core.contract import ENVIRONMENT, IMAGES, STATE, Contract
from twinloop.core.errors import InputError
from twinloop.twin.spec import describe_errors

PROTOCOL = 1
SENT = "sent"  # an additional array: the last command sent to the robot, if it differs from the policy's
Kind = Literal["act", "action", "restart", "ready", "error"]
_LENGTH = struct.Struct("<I")
_LONGEST_HEADER = 65536
# Far more than an arm's joints and cameras need: 64 MiB are 22 images of 1280x720.
LARGEST_MESSAGE = 64 * 2**20


class WireError(InputError):
    """Error for bytes that are not a message of this protocol, or are a message of another protocol version."""


class TooLargeError(WireError):
    """Error for a message with more bytes than the receiver allows."""


def _check_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("a name must have printable characters only")
    return text


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ArrayHeader(_Strict):
    """Name, type and shape of one array of a message."""

    name: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_check_printable)]
    dtype: Literal["float32", "float64", "uint8"]
    shape: Annotated[list[Annotated[int, Field(ge=0, le=16384)]], Field(max_length=4)]

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Header(_Strict):
    """JSON header of a message.

    Attributes:
        protocol: version of the protocol.
        kind: kind of the message: ``act`` (an observation), ``action`` (its answer), ``restart``, ``ready`` (its
            answer) or ``error``.
        arrays: names, types and shapes of the arrays, in the order of their bytes.
        error: type of the error, for the kind ``error``.
        message: text of the error, for the kind ``error``.
    """

    protocol: int
    kind: Kind
    arrays: Annotated[list[ArrayHeader], Field(max_length=64)] = []
    error: Annotated[str, Field(max_length=200)] = ""
    message: Annotated[str, Field(max_length=8192)] = ""


@dataclass(frozen=True, kw_only=True)
class Message:
    """Decoded message between policy server and client.

    Attributes:
        kind: kind of the message, see `Header`.
        arrays: arrays by name.
        error: type of the error, for the kind ``error``.
        message: text of the error, for the kind ``error``.
    """

    kind: Kind
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    error: str = ""
    message: str = ""


def encode(message: Message) -> bytes:
    """Return the bytes of a message.

    Raises:
        WireError: If an array is not float32, float64 or uint8.
    """
    arrays = {name: np.asarray(array) for name, array in message.arrays.items()}
    rows = []
    for name, array in arrays.items():
        if array.dtype.name not in ("float32", "float64", "uint8"):
            raise WireError(f"{name} is {array.dtype}; only float32, float64 and uint8 can be sent. Convert it.")
        rows.append({"name": name, "dtype": array.dtype.name, "shape": list(array.shape)})
    header = {"protocol": PROTOCOL, "kind": message.kind, "arrays": rows}
    if message.kind == "error":
        header |= {"error": message.error[:200], "message": message.message[:8000]}
    text = json.dumps(header, allow_nan=False).encode()
    little = (array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes() for array in arrays.values())
    return b"".join((_LENGTH.pack(len(text)), text, *little))


def decode(data: bytes, *, largest: int = LARGEST_MESSAGE) -> Message:
    """Return the message that ``data`` encodes; its arrays are read-only views of ``data``.

    Args:
        largest: largest allowed size in bytes.

    Raises:
        TooLargeError: If there are more bytes than allowed.
        WireError: If the bytes are not a message, have a wrong length, or use another protocol version.
    """
    if len(data) > largest:
        raise TooLargeError(f"A message of {len(data)} bytes is too large: at most {largest} are read.")
    if len(data) < _LENGTH.size:
        raise WireError(f"{len(data)} bytes are not a message: the length of its header alone takes {_LENGTH.size}.")
    (length,) = _LENGTH.unpack_from(data)
    if length > min(_LONGEST_HEADER, len(data) - _LENGTH.size):
        raise WireError(
            f"The message's header is announced with {length} bytes, but the message has {len(data)} in all."
        )
    header = _parse_header(data[_LENGTH.size : _LENGTH.size + length])
    start, arrays = _LENGTH.size + length, dict[str, NDArray[Any]]()
    wanted = start + sum(row.nbytes for row in header.arrays)
    if wanted != len(data):
        raise WireError(f"The message has {len(data)} bytes; its header announces {wanted}.")
    for row in header.arrays:
        if row.name in arrays:
            raise WireError(f"The message has {row.name} twice.")
        kind = np.dtype(row.dtype).newbyteorder("<")
        count = math.prod(row.shape)
        arrays[row.name] = np.frombuffer(data, kind, count=count, offset=start).reshape(row.shape)
        start += row.nbytes
    return Message(kind=header.kind, arrays=arrays, error=header.error, message=header.message)


def _parse_header(text: bytes) -> Header:
    try:
        value = json.loads(text.decode(), object_pairs_hook=_reject_duplicate_keys, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:  # ValueError: not UTF-8, not JSON, or a number of 5,000 digits
        raise WireError(f"The message's header is not JSON ({error}).") from error
    given = value.get("protocol") if isinstance(value, dict) else None
    if given != PROTOCOL:
        raise WireError(f"The message is of protocol {given!r:.80}, but {PROTOCOL} is used here. Use the same version.")
    try:
        return Header.model_validate(value)
    except ValidationError as error:
        raise WireError(describe_errors(error, where="The message's header", model=Header)) from error


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the dictionary of a JSON object's keys and values.

    Raises:
        ValueError: If a key occurs twice, because two readers may interpret it differently.
    """
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("an object has the same key twice")
    return value


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a valid JSON number")


def check_observation(arrays: Mapping[str, NDArray[Any]], contract: Contract) -> None:
    """Check that an observation has exactly the arrays of a policy's contract, and only finite values.

    Raises:
        WireError: If an array is missing, unexpected, not finite, or has a wrong shape or type.
    """
    shapes = observation_shapes(contract)
    if SENT in arrays:
        shapes[SENT] = (len(contract.action.names),)
    unknown = sorted(set(arrays) - set(shapes))
    if unknown:
        raise WireError(f"The observation has {', '.join(unknown)[:200]}; the policy expects only {', '.join(shapes)}.")
    for key, shape in shapes.items():
        if key not in arrays:
            raise WireError(f"The observation has no {key}. It has: {', '.join(arrays) or 'no arrays'}.")
        array, wanted = arrays[key], "uint8" if key.startswith(IMAGES) else "float32 or float64"
        if array.shape != shape:
            raise WireError(f"{key} has shape {array.shape}; the policy expects {shape}.")
        if (array.dtype == np.uint8) != (wanted == "uint8"):
            raise WireError(f"{key} is {array.dtype.name}; the policy expects {wanted}.")
        if array.dtype != np.uint8 and not np.isfinite(array).all():
            raise WireError(f"{key} is not a number at index {int(np.argmin(np.isfinite(array).ravel()))}.")


def observation_shapes(contract: Contract) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array of one observation, by its LeRobot name, as a policy's contract requires it."""
    shapes: dict[str, tuple[int, ...]] = {}
    if contract.state is not None:
        shapes[STATE] = (len(contract.state.names),)
    if contract.environment:
        shapes[ENVIRONMENT] = (len(contract.environment),)
    return shapes | {f"{IMAGES}{name}": (*size, 3) for name, size in contract.cameras.items()}


def observation_bytes(contract: Contract) -> int:
    """Return the size in bytes of the largest observation that a contract allows, excluding the header.

    Numbers count as float64, images as uint8.
    """
    shapes = [*observation_shapes(contract).items(), (SENT, (len(contract.action.names),))]
    return sum(math.prod(shape) * (1 if key.startswith(IMAGES) else 8) for key, shape in shapes)


def largest_request(contract: Contract) -> int:
    """Return the size in bytes of the largest message that a client of a policy with this contract may send."""
    return _LENGTH.size + _LONGEST_HEADER + observation_bytes(contract)


def largest_answer(contract: Contract) -> int:
    """Return the size in bytes of the largest answer of a server whose policy has this contract."""
    return _LENGTH.size + _LONGEST_HEADER + 8 * len(contract.action.names)
