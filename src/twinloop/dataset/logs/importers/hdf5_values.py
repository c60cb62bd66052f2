"""Read arrays, texts and simulations from an untrusted HDF5 file.

Links to other files are refused, nothing is unpickled, and arrays or texts over a size limit are refused before
memory is allocated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.documents import DocumentError, parse_json
from twinloop.core.errors import LogError
from twinloop.core.records import StoredSimulation
from twinloop.dataset import robomimic_layout as names

Array = NDArray[np.float64]
_MOST_VALUES = 1 << 28  # numbers of one array: 2 GiB as float64
_MOST_TEXT = 1 << 26  # characters of one attribute: 64 MiB, a thousand times the MJCF of a kitchen
_PLAIN = "fiub"  # numeric kinds of dtype; other kinds may refer to other objects


def get_member(group: Any, key: str, where: str) -> Any:
    """Return the member ``key`` of an HDF5 group, if it is in the same file.

    Args:
        group: HDF5 group.
        key: Name of the member.
        where: File and group, for error messages.

    Raises:
        LogError: If there is no such member, or it is a link to another file.
    """
    link = group.get(key, getlink=True)
    if link is None:
        raise LogError(f"{where} has no {key}. It has: {', '.join(group) or 'nothing'}.")
    if hasattr(link, "filename"):
        raise LogError(f"{where}/{key} is a link to another file, and links are not followed.")
    found = group[key]
    if found.file.filename != group.file.filename:
        raise LogError(f"{where}/{key} is a link to another file, and links are not followed.")
    return found


def read_array(group: Any, key: str, where: str) -> Array:
    """Read a numeric array of an HDF5 group as float64, shape ``(T, …)`` for T frames.

    Args:
        group: HDF5 group.
        key: Name of the array.
        where: File and group, for error messages.

    Raises:
        LogError: If the array is missing, a link to another file, too large, or not numeric.
    """
    return np.asarray(_require_plain_array(group, key, where)[()], dtype=np.float64)


def read_matrix(group: Any, key: str, where: str) -> Array:
    """Read a numeric array like `read_array` and flatten each of its T frames, shape ``(T, k)``.

    Args:
        group: HDF5 group.
        key: Name of the array.
        where: File and group, for error messages.

    Raises:
        LogError: As in `read_array`.
    """
    values = read_array(group, key, where)
    return values.reshape(len(values), int(np.prod(values.shape[1:])))


def read_text_attribute(owner: Any, key: str, where: str) -> str:
    """Return a text attribute of an HDF5 group; "" if it is missing.

    Args:
        owner: HDF5 group.
        key: Name of the attribute.
        where: File and group, for error messages.

    Raises:
        LogError: If the attribute is not text, or is too long.
    """
    if key not in owner.attrs:
        return ""
    value = owner.attrs[key]
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if not isinstance(value, str) or len(value) > _MOST_TEXT:
        raise LogError(f"{where}: the attribute {key} is not text, or longer than {_MOST_TEXT:,} characters.")
    return value


def read_json_attribute(owner: Any, key: str, where: str) -> dict[str, Any]:
    """Return an attribute of an HDF5 group that is a JSON object; an empty dictionary if it is missing.

    Args:
        owner: HDF5 group.
        key: Name of the attribute.
        where: File and group, for error messages.

    Raises:
        LogError: If the attribute is not a JSON object.
    """
    try:
        value = parse_json(read_text_attribute(owner, key, where) or "{}", where=f"{where}: the attribute {key}")
    except DocumentError as error:
        raise LogError(str(error)) from error
    if not isinstance(value, dict):
        raise LogError(f"{where}: the attribute {key} is not a JSON object.")
    return value


def read_simulation(demo: Any, where: str) -> StoredSimulation | None:
    """Return the simulation (model and states) of a demonstration; None if model or states are missing.

    Args:
        demo: HDF5 group of the demonstration.
        where: File and group, for error messages.

    Raises:
        LogError: If an array or text cannot be read, or the last state has another shape than the other states.
    """
    model = read_text_attribute(demo, "model_file", where)
    if not model or "states" not in demo:
        return None
    states = read_matrix(demo, "states", where)
    if not states.size:
        return None
    if names.OURS not in demo:
        return StoredSimulation(model=model, states=states)
    ours, inside = get_member(demo, names.OURS, where), f"{where}/{names.OURS}"
    if names.LAST_STATE in ours:
        last = read_array(ours, names.LAST_STATE, inside)
        if last.shape != states.shape[1:]:
            raise LogError(f"{inside}/{names.LAST_STATE} has shape {last.shape}; states have {states.shape}.")
        states = np.concatenate([states, last[None]])
    notes = ours.attrs.get("notes", "[]")
    return StoredSimulation(
        model=model,
        states=states,
        spec=int(ours.attrs.get("spec", 0)),
        controls=read_array(ours, names.CONTROLS, inside) if names.CONTROLS in ours else None,
        assets=_read_assets(ours, inside),
        notes=tuple(map(str, json.loads(notes))),
    )


def _read_assets(ours: Any, where: str) -> Mapping[str, bytes]:
    if names.ASSETS not in ours:
        return {}
    group = get_member(ours, names.ASSETS, where)
    return {name: _read_bytes(group, name, f"{where}/{names.ASSETS}") for name in group}


def _read_bytes(group: Any, name: str, where: str) -> bytes:
    stored = _require_plain_array(group, name, where)
    if stored.dtype != np.uint8 or stored.ndim != 1:
        raise LogError(f"{where}/{name} is {stored.dtype} of shape {stored.shape}; a model's file is bytes.")
    return stored[()].tobytes()


def _require_plain_array(group: Any, key: str, where: str) -> Any:
    """Return a numeric HDF5 dataset after checking that its values are in this file and not too many."""
    stored = get_member(group, key, where)
    if not hasattr(stored, "dtype"):
        raise LogError(f"{where}/{key} is a group where an array should be.")
    if stored.dtype.kind not in _PLAIN:
        raise LogError(f"{where}/{key} holds {stored.dtype} values where numbers should be.")
    if stored.is_virtual or stored.external:
        raise LogError(f"{where}/{key} is a link to another file, and links are not followed.")
    if not stored.ndim:
        raise LogError(f"{where}/{key} is a single number where an array should be.")
    if stored.size > _MOST_VALUES:
        raise LogError(f"{where}/{key} has {stored.size:,} numbers, more than the {_MOST_VALUES:,} that are read.")
    return stored
