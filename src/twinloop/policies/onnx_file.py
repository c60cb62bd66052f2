"""Read and check a policy's ONNX file without torch: the network, and the content of ``config.json`` in its metadata.

Only the file itself is read: a network with data in other files, or with operators outside the ONNX standard (which
would need code), is refused. The hash covers the network, the kind, the settings and the contract, so that a damaged
network is recognized.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from twinloop.core.contract import IMAGES
from twinloop.core.documents import parse_json, read_bytes
from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.core.files import dumps, sha256_bytes
from twinloop.policies.config import check_config
from twinloop.policies.observations import ObservationLayout
from twinloop.policies.statistics import action_size

METADATA = "twinloop"  # key of the metadata whose value is the content of config.json
NOISE, DOMAIN = "noise", "domain"  # inputs: standard normal numbers (n, noise_size), indices of domains (n,)
OUTPUTS = ("action", "features")
REMEDY = "pip install 'twinloop[onnx]'"
_RESTORE = "Export the policy again: `twinloop policies export`."
_MOST_BYTES = 2 << 30  # protobuf's own limit
_STANDARD = ("", "ai.onnx")  # domains of the operators of the ONNX standard

ArrayType = tuple[str, tuple[int | str, ...]]
"""Type and shape of an input or output, such as ``("float32", ("n", 6))``; ``n`` is an axis of any length."""


@dataclass(frozen=True, kw_only=True)
class OnnxFile:
    """A policy's ONNX file.

    Attributes:
        where: name of the file, for messages.
        data: content of the file.
        config: kind, settings, contract, hash and more, as in ``config.json``. ``source_hash`` is the hash of the
            policy from which the file was made.
        inputs: type and shape of each input, by name.
        outputs: type and shape of each output, by name.
    """

    where: str
    data: bytes
    config: Mapping[str, Any]
    inputs: Mapping[str, ArrayType]
    outputs: Mapping[str, ArrayType]


def require_onnx() -> ModuleType:
    """Import and return the package ``onnx``.

    Raises:
        MissingDependencyError: If it is not installed.
    """
    try:
        import onnx  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        what = f"A policy's ONNX file needs the package onnx ({error})."
        raise MissingDependencyError(what, remedy=REMEDY) from error
    return onnx


def read_onnx(path: Path) -> OnnxFile:
    """Read a policy's ONNX file; raises the errors of `parse_onnx`, and InputError if the file cannot be read."""
    if not path.is_file():
        raise InputError(f"{path} does not exist. `twinloop policies export` writes a policy's ONNX file.")
    return parse_onnx(read_bytes(path, _MOST_BYTES), where=str(path))


def parse_onnx(data: bytes, *, where: str) -> OnnxFile:
    """Parse and check the content of a policy's ONNX file.

    Args:
        data: the content.
        where: name of the file, for messages.

    Raises:
        InputError: If the content is damaged, is not a policy of twinloop or one of a newer version, differs from its
            hash, or has data in other files or operators that are not standard.
        MissingDependencyError: If the package onnx is not installed.
    """
    onnx = require_onnx()
    try:
        model = onnx.ModelProto.FromString(data)
    except Exception as error:  # google.protobuf.message.DecodeError; protobuf is not a dependency of ours
        raise InputError(f"{where} ({len(data):,} bytes) is not a complete ONNX file ({error}). {_RESTORE}") from error
    stored = {row.key: row.value for row in model.metadata_props}.get(METADATA)
    if stored is None:
        raise InputError(
            f"{where} is not a policy of twinloop: its metadata have no {METADATA!r}, with the contract of the policy. "
            f"{_RESTORE}"
        )
    _require_self_contained(model, where)
    config = check_config(parse_json(stored, where=f"{where}, metadata {METADATA!r}"), where=where)
    found = network_hash(model, config)
    if found != config["hash"]:
        raise InputError(
            f"{where} was exported with the hash {config['hash']}, but its content has {found}: network, settings or "
            f"contract were changed, or the file is damaged. {_RESTORE}"
        )
    inputs, outputs = ({one.name: _read_type(one) for one in rows} for rows in (model.graph.input, model.graph.output))
    return OnnxFile(where=where, data=data, config=config, inputs=inputs, outputs=outputs)


def network_hash(model: Any, config: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a network (an ``onnx.ModelProto``, without its metadata), kind, settings and contract."""
    bare = type(model)()
    bare.CopyFrom(model)
    del bare.metadata_props[:]
    identity = {key: config[key] for key in ("kind", "settings", "contract")}
    text = json.dumps(json.loads(dumps(identity)), sort_keys=True)
    return sha256_bytes(text.encode(), bare.SerializeToString(deterministic=True))


def list_inputs(layout: ObservationLayout, noise_size: int) -> dict[str, ArrayType]:
    """Return type and shape of each input of a policy's network, by name, in their order."""
    wanted: dict[str, ArrayType] = {
        key: ("uint8" if key.startswith(IMAGES) else "float32", ("n", *layout.shape(key))) for key in layout.keys
    }
    if noise_size:
        wanted[NOISE] = ("float32", ("n", noise_size))
    if layout.settings.domains:
        wanted[DOMAIN] = ("int64", ("n",))
    return wanted


def require_matching_network(file: OnnxFile, layout: ObservationLayout) -> int:
    """Return the number of standard normal draws per prediction, if a network fits the contract in its metadata.

    Raises:
        InputError: If an input or output is missing, unexpected, or has another type or shape.
    """
    noise, features = (_last_axis(file.inputs.get(NOISE)), _last_axis(file.outputs.get(OUTPUTS[1])))
    chunk: ArrayType = ("float32", ("n", layout.settings.chunk_size, action_size(layout.contract)))
    faults = _list_faults("input", file.inputs, list_inputs(layout, noise))
    faults += _list_faults("output", file.outputs, {OUTPUTS[0]: chunk, OUTPUTS[1]: ("float32", ("n", features))})
    if faults:
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise InputError(f"{file.where} does not fit its own contract: {'; '.join(faults[:3])}{more}. {_RESTORE}")
    return noise


def _last_axis(array: ArrayType | None) -> int:
    """Return the length of the last axis, of which a contract does not say the length; 0 if it is not a number."""
    last = 0 if array is None or not array[1] else array[1][-1]
    return last if isinstance(last, int) else 0


def _list_faults(what: str, found: Mapping[str, ArrayType], wanted: Mapping[str, ArrayType]) -> list[str]:
    faults = [f"{what} {name} is missing" for name in wanted if name not in found]
    faults += [f"{what} {name} is not part of it" for name in found if name not in wanted]
    return faults + [
        f"{what} {name} is {_format(found[name])}, but must be {_format(wanted[name])}"
        for name in wanted
        if name in found and found[name] != wanted[name]
    ]


def _format(array: ArrayType) -> str:
    return f"{array[0]} ({', '.join(map(str, array[1]))})"


def _read_type(value: Any) -> ArrayType:
    """Return type and shape of an input or output (an ``onnx.ValueInfoProto``)."""
    tensor = value.type.tensor_type
    names = {number: name.lower() for name, number in require_onnx().TensorProto.DataType.items()}
    names |= {number: f"{name}32" for number, name in names.items() if name == "float"}
    shape = tuple(axis.dim_value if axis.HasField("dim_value") else "n" for axis in tensor.shape.dim)
    return names.get(tensor.elem_type, "unknown"), shape


def _require_self_contained(model: Any, where: str) -> None:
    """Raise an error if a network has data in other files, or operators that are not of the ONNX standard."""
    parts = list(walk_messages(model))
    nodes = [part for part in parts if part.DESCRIPTOR.name == "NodeProto"]
    other = sorted({f"{node.domain}.{node.op_type}" for node in nodes if node.domain not in _STANDARD})
    if other:
        raise InputError(
            f"{where} has operators that are not of the ONNX standard: {', '.join(other[:3])}. They may need code, so "
            f"it was not opened. {_RESTORE}"
        )
    tensors = [part for part in parts if part.DESCRIPTOR.name == "TensorProto"]
    outside = [one.name for one in tensors if one.data_location or one.external_data]
    if outside:
        raise InputError(
            f"{where} has data in other files ({', '.join(outside[:3])}), which are not read: a policy is one file. "
            f"{_RESTORE}"
        )


def walk_messages(message: Any) -> Iterator[Any]:
    """Yield all messages below a protobuf message, such as the nodes and tensors of a network and its subgraphs."""
    for field, value in message.ListFields():
        for part in (value if field.is_repeated else [value]) if field.message_type else ():
            yield part
            yield from walk_messages(part)
