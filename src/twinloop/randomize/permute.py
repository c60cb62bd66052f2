"""Random permutations that are evaluated at single places: where number 731 goes needs none of the others."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.core.seeds import philox4x32, stream_key, uniforms

# Below this size a permutation is sorted whole, because a Feistel network of a few bits is no random permutation.
_SORTED = 128
# Luby and Rackoff (SIAM J. Comput. 17, 1988) prove four rounds with random functions; narrow halves want more.
_ROUNDS = 8


def permute(
    index: NDArray[np.int64], size: int, *, run_seed: int, labels: Sequence[str], cycle: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Images of ``index`` ``(n,)`` in ``[0, size)``, one random permutation per label and cycle: ``(n, len(labels))``.

    The work for one image does not grow with ``size``.
    """
    if size <= _SORTED:
        cycles, turn = np.unique(cycle, return_inverse=True)
        return np.stack([_sorted(label, size, run_seed, cycles)[turn, index] for label in labels], axis=-1)
    return _walked(index, size, run_seed, labels, cycle)


def _sorted(label: str, size: int, run_seed: int, cycles: NDArray[np.int64]) -> NDArray[np.int64]:
    """Whole permutations ``(len(cycles), size)``: the order of as many uniform numbers."""
    return np.argsort(uniforms(run_seed, f"design/permutation/{label}", cycles, size=size), axis=1)


def _walked(
    index: NDArray[np.int64], size: int, run_seed: int, labels: Sequence[str], cycle: NDArray[np.int64]
) -> NDArray[np.int64]:
    """A Feistel network over the next power of two, applied until the image lies in the domain.

    Black and Rogaway call it cycle walking (CT-RSA 2002): the permutation's cycles with the outside left out.
    """
    shape = (len(index), len(labels))
    digests = [hashlib.blake2b(label.encode(), digest_size=4).digest() for label in labels]
    key = np.broadcast_to(np.array([int.from_bytes(d, "little") for d in digests], dtype=np.uint64), shape)
    turn = np.broadcast_to(cycle.astype(np.uint64)[:, None], shape)
    value = np.array(np.broadcast_to(index.astype(np.uint64)[:, None], shape))
    outside = np.ones(shape, dtype=bool)
    while outside.any():
        value[outside] = _feistel(value[outside], key[outside], turn[outside], size, run_seed)
        outside = value >= size
    return value.astype(np.int64)


def _feistel(
    value: NDArray[np.uint64], key: NDArray[np.uint64], turn: NDArray[np.uint64], size: int, run_seed: int
) -> NDArray[np.uint64]:
    """One pass of the network: a bijection of the numbers of as many bits as ``size - 1`` needs."""
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
