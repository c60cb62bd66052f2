"""Kernels: equal to the plain function, by bands of rows, and never from outdated code."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from twinloop.sensors import compiled as door
from twinloop.sensors.compiled import compile_lazily, run_over_rows

STEP = 3.0


@compile_lazily
def double(value):
    return 2.0 * value


@compile_lazily
def fill(first, last, out):
    for r in range(first, last):
        for c in range(out.shape[1]):
            out[r, c] = double(STEP * r) + c


def test_bands_together_are_all_rows(monkeypatch):
    pytest.importorskip("numba")
    for rows in (1, 7, 64, 333):
        for threads in ("1", "3"):
            monkeypatch.setenv("OMP_NUM_THREADS", threads)
            monkeypatch.setattr(door, "count_cores", lambda: 3)
            out = np.full((rows, 4), np.nan)
            run_over_rows(fill, rows, out)
            np.testing.assert_array_equal(out, 6.0 * np.arange(rows)[:, None] + np.arange(4))


MODULES = {
    "inner_kernels": "from twinloop.sensors.compiled import compile_lazily\n"
    "@compile_lazily\ndef inner(x):\n    return x + {}\n",
    "outer_kernels": "from twinloop.sensors.compiled import compile_lazily\n"
    "from inner_kernels import inner\nSCALE = {}\n"
    "@compile_lazily\ndef outer(x):\n    return SCALE * inner(x)\n",
}


def outer_of(folder, added, scale, monkeypatch):
    """The value at 1 of a kernel that is kept on disk and calls one of another file, whose text has since changed."""
    for (name, text), number in zip(MODULES.items(), (added, scale), strict=True):
        file = folder / f"{name}.py"
        if not file.exists() or file.read_text() != text.format(number):
            file.write_text(text.format(number))
        sys.modules.pop(name, None)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(folder))
    module = __import__("outer_kernels")
    return module.outer(1.0)


def test_code_of_another_file_is_not_taken_from_before(tmp_path, monkeypatch):
    """The outer file stays as it was, so that numba by itself would take the code that has the old inner one in it."""
    pytest.importorskip("numba")
    assert outer_of(tmp_path, 1.0, 2.0, monkeypatch) == 4.0
    kept = set(tmp_path.glob("__pycache__/outer*.nbi"))
    assert kept
    assert outer_of(tmp_path, 5.0, 2.0, monkeypatch) == 12.0
    assert outer_of(tmp_path, 5.0, 2.0, monkeypatch) == 12.0
    assert len(set(tmp_path.glob("__pycache__/outer*.nbi")) - kept) == 1  # kept again, once


def test_a_stamp_is_of_code_and_numbers():
    assert double.stamp != fill.stamp
    assert double.stamp == compile_lazily(double.plain).stamp
    assert double.plain(2.0) == 4.0
