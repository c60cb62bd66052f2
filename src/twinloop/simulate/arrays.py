"""Create arrays on the host with NumPy, or on a device with a library that has NumPy's names."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from array_api_compat import array_namespace, to_device
from array_api_compat import device as device_of
from numpy.typing import ArrayLike, NDArray

Array = Any  # an array of an `ArrayLibrary`, on its device


@dataclass(frozen=True)
class ArrayLibrary:
    """An array library and one of its devices, in float64 like the host."""

    xp: ModuleType
    device: Any

    @classmethod
    def of(cls, array: Array) -> ArrayLibrary:
        """Return the library and device of an array."""
        return cls(array_namespace(array), device_of(array))

    @property
    def on_host(self) -> bool:
        """Return whether the library is NumPy."""
        return self.xp is HOST.xp

    def asarray(self, values: ArrayLike) -> Array:
        """Return a host array as an array of this library, of the same type; a copy unless the library is NumPy."""
        return np.asarray(values) if self.on_host else self.xp.asarray(np.array(values), device=self.device)

    def constant(self, values: ArrayLike) -> Array:
        """Return a small host array on the device, read-only and cached, because copying one makes a device wait."""
        host = np.asarray(values)
        return host if self.on_host else _cache_array(self, host.dtype.str, host.shape, host.tobytes())

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """Return zeros in float64."""
        return self.xp.zeros(shape, dtype=self.xp.float64, device=self.device)


@functools.lru_cache(maxsize=1024)
def _cache_array(arrays: ArrayLibrary, dtype: str, shape: tuple[int, ...], data: bytes) -> Array:
    return arrays.asarray(np.frombuffer(data, dtype=dtype).reshape(shape))


HOST = ArrayLibrary.of(np.zeros(0))


def to_host(array: Array) -> NDArray[Any]:
    """Return an array of any library as a NumPy array; a copy unless it is one already."""
    return np.asarray(to_device(array, "cpu"))
