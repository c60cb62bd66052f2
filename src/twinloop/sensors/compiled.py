"""Loops over pixels, compiled by numba where it is installed: the one door to it.

A kernel is a plain function of numbers and arrays that works on the rows ``first`` to ``last`` of a picture. It holds
no lock while it runs, so that `over_rows` keeps every core busy with threads of our own; numba's parallel loops would
abort a process that forks, or that calls them from two threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from types import FunctionType
from typing import Any

from twinloop.core.pool import cores

_LEAST_ROWS = 16  # to a thread; starting one costs about as much as these


@cache
def has_numba() -> bool:
    """Whether kernels can be compiled here (``pip install 'twinloop[fast]'``); without it callers go another way."""
    return find_spec("numba") is not None


class Compiled:
    """A function that becomes machine code when it is first called; the code is kept on disk.

    It may call other compiled functions of its module. ``plain`` is the function as written.
    """

    def __init__(self, function: FunctionType) -> None:
        self.plain = function
        self._machine: Callable[..., Any] | None = None
        self.__doc__ = function.__doc__

    def __call__(self, *arguments: Any) -> Any:
        """The function's value."""
        return self.machine()(*arguments)

    def machine(self) -> Callable[..., Any]:
        """What numba makes of it."""
        if self._machine is None:
            self._machine = _compile(self.plain)
        return self._machine


def compiled(function: FunctionType) -> Compiled:
    """Mark a function of numbers and arrays for compilation; numba is imported when it is first called."""
    return Compiled(function)


def _compile(plain: FunctionType) -> Callable[..., Any]:
    from numba import njit  # pyright: ignore[reportMissingImports]

    names = dict(plain.__globals__)
    for name in plain.__code__.co_names:
        if isinstance(names.get(name), Compiled):
            names[name] = names[name].machine()
    function = FunctionType(plain.__code__, names, plain.__name__, plain.__defaults__, plain.__closure__)
    function.__qualname__ = plain.__qualname__
    try:
        return njit(nogil=True, error_model="numpy", cache=True)(function)
    except RuntimeError:  # there is no folder that it may keep code in
        return njit(nogil=True, error_model="numpy")(function)


def over_rows(kernel: Compiled, rows: int, *arguments: Any) -> None:
    """``kernel(first, last, *arguments)`` for bands that together are all ``rows``, on this process's cores.

    ``OMP_NUM_THREADS`` bounds how many, as it does for libraries with threads of their own.
    """
    machine = kernel.machine()
    limit = os.environ.get("OMP_NUM_THREADS", "")
    bands = min(int(limit) if limit.isdecimal() else cores(), cores(), max(1, rows // _LEAST_ROWS))
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
    return ThreadPoolExecutor(max_workers=cores(), thread_name_prefix="twinloop-rows")
