"""Compute single elements of random permutations and of scrambled Sobol' sequences, without computing the others.

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

# Smaller permutations are computed by sorting, because a Feistel network of a few bits is not a random permutation.
_SORTED = 128
# Luby and Rackoff (SIAM J. Comput. 17, 1988) prove four rounds with random functions; narrow halves need more.
_ROUNDS = 8


def permute(
    index: NDArray[np.int64], size: int, *, run_seed: int, labels: Sequence[str], cycle: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Permute integers by random permutations of ``[0, size)``, a different one for every pair of label and cycle.

    The cost of one index does not grow with ``size``.

    Args:
        index: The integers to permute, ``(n,)``.
        size: Length of a permutation; an integer is at most ``size - 1``.
        run_seed: Seed of the run.
        labels: Names of the permutations; different labels give independent permutations.
        cycle: For each integer the cycle in which it is used, ``(n,)``. A cycle is one use of all integers below
            ``size``.

    Returns:
        The permuted integers, ``(n, len(labels))``.
    """
    if size <= _SORTED:
        cycles, turn = np.unique(cycle, return_inverse=True)
        return np.stack([_permute_by_sorting(label, size, run_seed, cycles)[turn, index] for label in labels], axis=-1)
    return _permute_by_cycle_walking(index, size, run_seed, labels, cycle)


def _permute_by_sorting(label: str, size: int, run_seed: int, cycles: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the complete permutation of each cycle, ``(len(cycles), size)``, by sorting uniform random numbers.

    Args:
        label: Name of the permutation; different names give independent permutations.
        size: Length of a permutation of 0 to ``size - 1``.
        run_seed: Seed of the run.
        cycles: Numbers of the cycles; a cycle is one use of all integers below ``size``.
    """
    return np.argsort(uniforms(run_seed, f"design/permutation/{label}", cycles, size=size), axis=1)


def _permute_by_cycle_walking(
    index: NDArray[np.int64], size: int, run_seed: int, labels: Sequence[str], cycle: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Permute integers with a Feistel network over the next power of two, for large ``size``.

    The network permutes more integers than ``size``. It is applied again to a result of ``size`` or more until the
    result is below ``size``, which gives a permutation of the integers below ``size``: cycle walking (Black and
    Rogaway, CT-RSA 2002).

    Args:
        index: The integers to permute, ``(n,)``.
        size: Length of a permutation; an integer is at most ``size - 1``.
        run_seed: Seed of the run.
        labels: Names of the permutations; different labels give independent permutations.
        cycle: For each integer the number of the pass through all integers below ``size``, ``(n,)``; each pass has
            another permutation.

    Returns:
        The permuted integers, ``(n, len(labels))``.
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
    value: NDArray[np.uint64], key: NDArray[np.uint64], cycle: NDArray[np.uint64], size: int, run_seed: int
) -> NDArray[np.uint64]:
    """Apply the Feistel network once: a bijection of the integers with as many bits as ``size - 1`` needs.

    Args:
        value: Integers to permute.
        key: Hash of the name of the permutation that each integer uses.
        cycle: For each integer the number of the pass through all integers below ``size``; each pass has another
            permutation.
        size: Number of integers that the permutation is for; all are below ``size``.
        run_seed: Seed of the run.
    """
    bits = (size - 1).bit_length()
    low_bits = bits // 2
    low_mask, high_mask = np.uint64((1 << low_bits) - 1), np.uint64((1 << (bits - low_bits)) - 1)
    low, high = value & low_mask, value >> np.uint64(low_bits)
    stream = stream_key(run_seed, "design/permutation")
    for number in range(_ROUNDS):
        known = low if number % 2 else high
        counter = np.stack([known, np.full_like(known, number), cycle, key], axis=-1)
        word = philox4x32(counter, stream)[..., 0]
        if number % 2:
            high = high ^ (word & high_mask)
        else:
            low = low ^ (word & low_mask)
    return (high << np.uint64(low_bits)) | low


MOST_AXES = 21_201  # rows in Joe and Kuo's table
_BITS = 30  # binary digits of a point, as in SciPy


def scrambled_sobol(index: NDArray[np.int64], axes: int, *, run_seed: int) -> NDArray[np.float64]:
    """Return points of the run's scrambled Sobol' sequence, ``(n, axes)`` in (0, 1).

    Among 2^k consecutive points whose first index is a multiple of 2^k, each axis has exactly one point in each of 2^k
    equal parts.

    Args:
        index: Indices of the points, ``(n,)``.
        axes: Number of axes.
        run_seed: Seed of the run, which determines the scramble.

    Raises:
        InputError: If an index is beyond the sequence's 2^30 points.
    """
    if not len(index) or not axes:
        return np.empty((len(index), axes))
    bits = max(1, int(index.max()).bit_length())
    if bits > _BITS:
        raise InputError(
            f"A Sobol' design has at most 2^{_BITS} episodes, but the run needs number {index.max()}. Use another seed."
        )
    directions, shift = _scramble_directions(axes, bits, run_seed)
    point = np.tile(shift, (len(index), 1))
    for bit in range(bits):
        chosen = (index >> bit) & 1 == 1
        point[chosen] ^= directions[:, bit]
    return (point.astype(np.float64) + 0.5) / 2.0**_BITS


@functools.lru_cache(maxsize=4)
def _scramble_directions(axes: int, bits: int, run_seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the scrambled direction numbers of a Sobol' sequence ``(axes, bits)`` and its digital shifts ``(axes,)``.

    Both are integers in units of 2^-30 of the unit interval. The direction numbers are multiplied by a random lower
    triangular matrix over the bits.
    """
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
    """Return the direction numbers of a Sobol' sequence ``(axes, bits)``, computed from SciPy's unscrambled sequence.

    SciPy orders points by Gray code, in which point 2^j is the bitwise XOR of directions j and j-1.
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
