"""Compile loops over pixels to machine code with numba if it is installed; only this module imports numba.

A kernel is a plain function of numbers and arrays that computes the image rows from ``first`` to ``last - 1``.
Compiled kernels release Python's global interpreter lock, so that `run_over_rows` can use every core with
threads. Numba's own parallel loops are not used, because they abort a process that forks or that calls them
from two threads.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from importlib.util import find_spec
from itertools import pairwise
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from twinloop.core.pool import count_cores

_LEAST_ROWS = 16  # per thread; starting a thread costs about as much as computing these


@cache
def has_numba() -> bool:
    """Return whether numba is installed (``pip install 'twinloop[fast]'``).

    If it is missing, callers compute the same results with NumPy, more slowly.
    """
    return find_spec("numba") is not None


class CompiledFunction:
    """Function that numba compiles to machine code at its first call; the machine code is cached on disk.

    The function may call other compiled functions.

    Attributes:
        plain: the original Python function.
    """

    def __init__(self, function: FunctionType) -> None:
        self.plain = function
        self._machine: Callable[..., Any] | None = None
        self.__doc__ = function.__doc__

    def __call__(self, *arguments: Any) -> Any:
        """Call the compiled function and return its result."""
        return self.get_machine_code()(*arguments)

    @cached_property
    def stamp(self) -> str:
        """Hash of the function's bytecode, its constants and globals, and the compiled functions that it calls.

        The disk cache uses it to detect that the machine code is out of date.
        """
        code, known = self.plain.__code__, self.plain.__globals__
        parts = [code.co_code, repr([value for value in code.co_consts if not isinstance(value, CodeType)])]
        for name in code.co_names:
            value = known.get(name)
            if isinstance(value, CompiledFunction):
                parts.append(value.stamp)
            elif isinstance(value, np.ndarray):
                parts += [str(value.dtype), str(value.shape), value.tobytes()]
            elif isinstance(value, int | float | complex | str | tuple | np.generic):
                parts.append(f"{name}={value!r}")
        whole = b"\x00".join(part if isinstance(part, bytes) else part.encode() for part in parts)
        return hashlib.blake2b(whole, digest_size=8).hexdigest()

    def get_machine_code(self) -> Callable[..., Any]:
        """Return the function as compiled by numba; compile it at the first call."""
        if self._machine is None:
            self._machine = _compile(self.plain, self.stamp)
        return self._machine


def compile_lazily(function: FunctionType) -> CompiledFunction:
    """Mark a function of numbers and arrays for compilation at its first call (decorator).

    Numba is imported at that first call only, because its import is slow.
    """
    return CompiledFunction(function)


def _compile(plain: FunctionType, stamp: str) -> Callable[..., Any]:
    from numba import njit  # pyright: ignore[reportMissingImports]

    names = dict(plain.__globals__)
    for name in plain.__code__.co_names:
        if isinstance(names.get(name), CompiledFunction):
            names[name] = names[name].get_machine_code()
    function = FunctionType(plain.__code__, names, plain.__name__, plain.__defaults__, plain.__closure__)
    # Numba finds cached code by this name and by the time of this file alone; the stamp also covers other files.
    function.__qualname__ = f"{plain.__qualname__}_{stamp}"
    try:
        return njit(nogil=True, error_model="numpy", cache=True)(function)
    except RuntimeError:  # no folder is writable for its cache
        return njit(nogil=True, error_model="numpy")(function)


def run_over_rows(kernel: CompiledFunction, rows: int, *arguments: Any) -> None:
    """Run a kernel on all rows of an image, in one band of rows per core.

    Args:
        kernel: called as ``kernel(first, last, *arguments)`` for the rows ``first`` to ``last - 1``; writes its
            results into arrays among the arguments.
        rows: number of rows.
        arguments: further arguments of the kernel, the same for every band.

    The environment variable ``OMP_NUM_THREADS`` limits the number of threads.
    """
    machine = kernel.get_machine_code()
    limit = os.environ.get("OMP_NUM_THREADS", "")
    bands = min(int(limit) if limit.isdecimal() else count_cores(), count_cores(), max(1, rows // _LEAST_ROWS))
    if bands <= 1:
        machine(0, rows, *arguments)
        return
    edges = [rows * band // bands for band in range(bands + 1)]
    pairs = list(pairwise(edges))
    waiting = [_threads(os.getpid()).submit(machine, first, last, *arguments) for first, last in pairs[1:]]
    machine(*pairs[0], *arguments)
    for band in waiting:
        band.result()


@cache
def _threads(process: int) -> ThreadPoolExecutor:  # noqa: ARG001  (a forked process has none of its parent's threads)
    return ThreadPoolExecutor(max_workers=count_cores(), thread_name_prefix="twinloop-rows")
