"""Tensors of torch's legacy files, without torch and without running what a file says.

A legacy ``torch.save`` is five pickles and raw data: a magic number, a protocol version, a description of the
writer's system, the object, the keys of its storages; then per storage an int64 count and its values. The object names
its storages by persistent ids. Pickles can name any function; here only those that rebuild a tensor are known, and any
other name is refused before anything is called.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import LogError
from twinloop.dataset.importers.numeric import bounded

_MAGIC = 0x1950A86A20F9469CFC6C  # torch.serialization.MAGIC_NUMBER
_PROTOCOL = 1001
_MOST_BYTES = 1 << 28
_STORAGES = {"DoubleStorage": "<f8", "FloatStorage": "<f4", "LongStorage": "<i8", "IntStorage": "<i4"}


@dataclass(frozen=True)
class _Kind:
    """A class of storages, as the file names it."""

    dtype: str


@dataclass
class _Storage:
    """Values that follow the pickles; filled when they are read."""

    key: str
    dtype: str
    count: int
    values: NDArray[Any] | None = None


@dataclass(frozen=True)
class _Tensor:
    """How a tensor lies in its storage, in elements."""

    storage: _Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


def read_tensor(path: Path) -> NDArray[Any]:
    """The one tensor of a legacy torch file.

    Raises:
        LogError: not such a file, damaged, or it holds anything but one tensor of numbers.
    """
    data = bounded(path, _MOST_BYTES).read_bytes()
    try:
        return _read(io.BytesIO(data), len(data))
    except _RefusedError as error:
        raise LogError(f"{path}: {error} Only a tensor of numbers is read from such files.") from error
    except Exception as error:  # a damaged pickle raises anything
        raise LogError(f"{path} is not a legacy torch file, or damaged ({type(error).__name__}: {error}).") from error


class _RefusedError(Exception):
    """The file names something that is not part of a tensor."""


def _read(stream: BinaryIO, size: int) -> NDArray[Any]:
    if _Plain(stream).load() != _MAGIC or _Plain(stream).load() != _PROTOCOL:
        raise ValueError("the magic number is missing")
    system = _Plain(stream).load()
    if not system.get("little_endian", True):
        raise _RefusedError("It was written on a big-endian machine.")
    tensors = _Tensors(stream, size)
    found = tensors.load()
    if not isinstance(found, _Tensor):
        raise _RefusedError(f"It holds a {type(found).__name__}.")
    for key in _Plain(stream).load():
        storage = tensors.storages[key]
        (count,) = struct.unpack("<q", stream.read(8))
        if count != storage.count:
            raise ValueError(f"storage {key} has {count} values, its description says {storage.count}")
        raw = stream.read(count * np.dtype(storage.dtype).itemsize)
        storage.values = np.frombuffer(raw, dtype=storage.dtype, count=count)
    return _view(found)


def _view(tensor: _Tensor) -> NDArray[Any]:
    values = tensor.storage.values
    if values is None:
        raise ValueError("the tensor's values are missing")
    index = np.asarray(tensor.offset)
    for length, step in zip(tensor.size, tensor.stride, strict=True):
        index = index[..., None] + np.arange(length) * step
    if index.size and not (index.min() >= 0 and index.max() < len(values)):
        raise ValueError("the tensor reaches beyond its values")
    return values[index]


class _Plain(pickle.Unpickler):
    """Numbers, strings, lists and dictionaries; no name at all."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse."""
        raise _RefusedError(f"It names {module}.{name}.")


class _Tensors(_Plain):
    """What rebuilds a tensor, and nothing else."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        super().__init__(stream)
        self.storages: dict[str, _Storage] = {}
        self._size = size

    def find_class(self, module: str, name: str) -> Any:
        """The four kinds of names that a tensor of numbers needs."""
        if module == "torch" and name in _STORAGES:
            return _Kind(_STORAGES[name])
        allowed: dict[tuple[str, str], Callable[..., Any]] = {
            ("torch._utils", "_rebuild_tensor_v2"): self._rebuild,
            ("collections", "OrderedDict"): OrderedDict,
        }
        if (module, name) not in allowed:
            raise _RefusedError(f"It names {module}.{name}.")
        return allowed[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        """A storage by its id: ("storage", kind, key, device, count, view)."""
        word, kind, key, _, count, *_ = pid
        if word != "storage" or not isinstance(kind, _Kind):
            raise _RefusedError("It refers to something that is no storage.")
        if not 0 <= count * np.dtype(kind.dtype).itemsize <= self._size:
            raise ValueError(f"storage {key} is said to have {count} values, more than the file holds")
        return self.storages.setdefault(key, _Storage(key, kind.dtype, count))

    def _rebuild(self, storage: _Storage, offset: int, size: Any, stride: Any, *_: Any) -> _Tensor:
        if not isinstance(storage, _Storage):
            raise _RefusedError("It rebuilds a tensor of something that is no storage.")
        shape = tuple(map(int, size))
        if any(length < 0 for length in shape) or np.prod([float(n) for n in shape]) > storage.count:
            raise ValueError(f"a tensor of shape {shape} has more values than its storage")
        return _Tensor(storage, int(offset), shape, tuple(map(int, stride)))
