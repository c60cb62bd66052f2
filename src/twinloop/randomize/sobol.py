"""Scrambled Sobol' points by index: point 731 is the same alone as in the sequence.

The direction numbers are those of Joe and Kuo (SIAM J. Sci. Comput. 30, 2008), as SciPy ships them; the scramble is
Matoušek's random linear one with a digital shift (J. Complexity 14, 1998), its bits from the run's own seeds.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.seeds import uniforms

MOST_AXES = 21_201  # rows in Joe and Kuo's table
_BITS = 30  # as SciPy's; a point has so many binary digits


def scrambled_sobol(index: NDArray[np.int64], axes: int, *, run_seed: int) -> NDArray[np.float64]:
    """Points ``(n, axes)`` in (0, 1) of a run's scrambled sequence.

    Within 2^k points from a multiple of 2^k, each axis has exactly one point in each of 2^k equal parts.

    Raises:
        InputError: an index beyond the sequence's 2^30 points.
    """
    if not len(index) or not axes:
        return np.empty((len(index), axes))
    bits = max(1, int(index.max()).bit_length())
    if bits > _BITS:
        raise InputError(f"A Sobol' design has 2^{_BITS} episodes; number {index.max()} is beyond. Draw another seed.")
    directions, shift = _scrambled(axes, bits, run_seed)
    point = np.tile(shift, (len(index), 1))
    for bit in range(bits):
        chosen = (index >> bit) & 1 == 1
        point[chosen] ^= directions[:, bit]
    return (point.astype(np.float64) + 0.5) / 2.0**_BITS


@functools.lru_cache(maxsize=4)
def _scrambled(axes: int, bits: int, run_seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Direction numbers ``(axes, bits)`` times a random lower triangular matrix per axis, and the shift ``(axes,)``."""
    numbers = np.arange(axes)
    matrix = uniforms(run_seed, "design/sobol/matrix", numbers, size=_BITS**2).reshape(axes, _BITS, _BITS) < 0.5
    lower = np.tril(matrix, -1) | np.eye(_BITS, dtype=bool)
    places = np.arange(_BITS - 1, -1, -1)  # the first binary digit is the most significant bit
    digits = (_directions(axes, bits)[:, None, :] >> places[:, None]) & 1
    mixed = np.einsum("aij,ajk->aik", lower.astype(np.int64), digits) & 1
    shift = uniforms(run_seed, "design/sobol/shift", numbers)[:, 0]
    return (mixed << places[:, None]).sum(axis=1), (shift * 2.0**_BITS).astype(np.int64)


@functools.lru_cache(maxsize=4)
def _directions(axes: int, bits: int) -> NDArray[np.int64]:
    """Direction numbers ``(axes, bits)``, read off the unscrambled sequence.

    SciPy orders points by Gray code, in which point 2^j is the sum (without carry) of directions j and j-1.
    """
    from scipy.stats import qmc

    engine = qmc.Sobol(axes, scramble=False, bits=_BITS)
    columns = [np.zeros(axes, dtype=np.int64)]
    for bit in range(bits):
        engine.reset()
        engine.fast_forward(1 << bit)
        point = (engine.random(1)[0] * 2.0**_BITS).astype(np.int64)
        columns.append(point ^ columns[-1])
    return np.stack(columns[1:], axis=-1)
