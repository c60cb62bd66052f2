"""Create arrays with NumPy, or on a GPU with an array library that has the same function names (Python array API).

Code written with `ArrayLibrary` runs unchanged in all backends.
"""

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
    """Array library (such as NumPy or torch) and one of its devices; new arrays are float64 there.

    Attributes:
        xp: namespace of the library's functions.
        device: device of the arrays.
    """

    xp: ModuleType
    device: Any

    @classmethod
    def of(cls, array: Array) -> ArrayLibrary:
        """Return the library and the device of an array."""
        return cls(array_namespace(array), device_of(array))

    @property
    def on_host(self) -> bool:
        """Return whether the library is NumPy, so that arrays are in the main memory."""
        return self.xp is HOST.xp

    def asarray(self, values: ArrayLike) -> Array:
        """Convert a NumPy array to an array of this library and device, with the same data type.

        The result is a copy unless the library is NumPy.
        """
        return np.asarray(values) if self.on_host else self.xp.asarray(np.array(values), device=self.device)

    def constant(self, values: ArrayLike) -> Array:
        """Convert a small NumPy array to a read-only array of this library, from a cache if it was converted before.

        The cache is needed because copying an array to a device makes the device wait.
        """
        host = np.asarray(values)
        return host if self.on_host else _cache_array(self, host.dtype.str, host.shape, host.tobytes())

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """Return a float64 array of zeros of the given shape."""
        return self.xp.zeros(shape, dtype=self.xp.float64, device=self.device)


@functools.lru_cache(maxsize=1024)
def _cache_array(arrays: ArrayLibrary, dtype: str, shape: tuple[int, ...], data: bytes) -> Array:
    return arrays.asarray(np.frombuffer(data, dtype=dtype).reshape(shape))


HOST = ArrayLibrary.of(np.zeros(0))


def to_host(array: Array) -> NDArray[Any]:
    """Convert an array of any library to NumPy; copies unless it is a NumPy array already."""
    return np.asarray(to_device(array, "cpu"))
