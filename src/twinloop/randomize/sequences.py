"""Evaluate random permutations and scrambled Sobol' points at single indices, without computing the others.

The direction numbers are those of Joe and Kuo (SIAM J. Sci. Comput. 30, 2008), as in SciPy; the scramble is
Matoušek's random linear one with a digital shift (J. Complexity 14, 1998), with random bits from the run's seed.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.seeds import philox4x32, stream_key, uniforms

# Smaller permutations are computed by sorting, because a Feistel network of a few bits is no random permutation.
_SORTED = 128
# Luby and Rackoff (SIAM J. Comput. 17, 1988) prove four rounds with random functions; narrow halves need more.
_ROUNDS = 8


def permute(
    index: NDArray[np.int64], size: int, *, run_seed: int, labels: Sequence[str], cycle: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Permute ``index`` ``(n,)`` in ``[0, size)`` by one random permutation per label and cycle: ``(n, len(labels))``.

    The cost of one index does not grow with ``size``.
    """
    if size <= _SORTED:
        cycles, turn = np.unique(cycle, return_inverse=True)
        return np.stack([_permute_by_sorting(label, size, run_seed, cycles)[turn, index] for label in labels], axis=-1)
    return _permute_by_cycle_walking(index, size, run_seed, labels, cycle)


def _permute_by_sorting(label: str, size: int, run_seed: int, cycles: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return whole permutations ``(len(cycles), size)``, by sorting uniform numbers."""
    return np.argsort(uniforms(run_seed, f"design/permutation/{label}", cycles, size=size), axis=1)


def _permute_by_cycle_walking(
    index: NDArray[np.int64], size: int, run_seed: int, labels: Sequence[str], cycle: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Permute indices with a Feistel network over the next power of two, applied until the result is within the domain.

    This is cycle walking (Black and Rogaway, CT-RSA 2002): values outside the domain are skipped in the permutation's
    cycles.
    """
    shape = (len(index), len(labels))
    digests = [hashlib.blake2b(label.encode(), digest_size=4).digest() for label in labels]
    key = np.broadcast_to(np.array([int.from_bytes(d, "little") for d in digests], dtype=np.uint64), shape)
    turn = np.broadcast_to(cycle.astype(np.uint64)[:, None], shape)
    value = np.array(np.broadcast_to(index.astype(np.uint64)[:, None], shape))
    outside = np.ones(shape, dtype=bool)
    while outside.any():
        value[outside] = _apply_feistel(value[outside], key[outside], turn[outside], size, run_seed)
        outside = value >= size
    return value.astype(np.int64)


def _apply_feistel(
    value: NDArray[np.uint64], key: NDArray[np.uint64], turn: NDArray[np.uint64], size: int, run_seed: int
) -> NDArray[np.uint64]:
    """Apply the network once: a bijection of the integers with as many bits as ``size - 1`` needs."""
    bits = (size - 1).bit_length()
    low_bits = bits // 2
    low_mask, high_mask = np.uint64((1 << low_bits) - 1), np.uint64((1 << (bits - low_bits)) - 1)
    low, high = value & low_mask, value >> np.uint64(low_bits)
    stream = stream_key(run_seed, "design/permutation")
    for number in range(_ROUNDS):
        known = low if number % 2 else high
        counter = np.stack([known, np.full_like(known, number), turn, key], axis=-1)
        word = philox4x32(counter, stream)[..., 0]
        if number % 2:
            high = high ^ (word & high_mask)
        else:
            low = low ^ (word & low_mask)
    return (high << np.uint64(low_bits)) | low


MOST_AXES = 21_201  # rows in Joe and Kuo's table
_BITS = 30  # binary digits of a point, as in SciPy


def scrambled_sobol(index: NDArray[np.int64], axes: int, *, run_seed: int) -> NDArray[np.float64]:
    """Return points ``(n, axes)`` in (0, 1) of a run's scrambled sequence.

    Within 2^k points from a multiple of 2^k, each axis has exactly one point in each of 2^k equal parts.

    Raises:
        InputError: an index is beyond the sequence's 2^30 points.
    """
    if not len(index) or not axes:
        return np.empty((len(index), axes))
    bits = max(1, int(index.max()).bit_length())
    if bits > _BITS:
        raise InputError(f"A Sobol' design has 2^{_BITS} episodes; number {index.max()} is beyond. Draw another seed.")
    directions, shift = _scramble_directions(axes, bits, run_seed)
    point = np.tile(shift, (len(index), 1))
    for bit in range(bits):
        chosen = (index >> bit) & 1 == 1
        point[chosen] ^= directions[:, bit]
    return (point.astype(np.float64) + 0.5) / 2.0**_BITS


@functools.lru_cache(maxsize=4)
def _scramble_directions(axes: int, bits: int, run_seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return scrambled direction numbers ``(axes, bits)`` (times a lower triangular matrix) and shifts ``(axes,)``."""
    numbers = np.arange(axes)
    matrix = uniforms(run_seed, "design/sobol/matrix", numbers, size=_BITS**2).reshape(axes, _BITS, _BITS) < 0.5
    lower = np.tril(matrix, -1) | np.eye(_BITS, dtype=bool)
    places = np.arange(_BITS - 1, -1, -1)  # the first binary digit is the most significant bit
    digits = (_sobol_directions(axes, bits)[:, None, :] >> places[:, None]) & 1
    mixed = np.einsum("aij,ajk->aik", lower.astype(np.int64), digits) & 1
    shift = uniforms(run_seed, "design/sobol/shift", numbers)[:, 0]
    return (mixed << places[:, None]).sum(axis=1), (shift * 2.0**_BITS).astype(np.int64)


@functools.lru_cache(maxsize=4)
def _sobol_directions(axes: int, bits: int) -> NDArray[np.int64]:
    """Return direction numbers ``(axes, bits)``, computed from SciPy's unscrambled sequence.

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
