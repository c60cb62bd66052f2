"""Generate random numbers that depend only on seed, purpose, episode and step, not on the order of calls.

This makes results independent of the number of processes. The generator is the counter-based Philox4x32-10 (Salmon et
al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), vectorized over episodes. Its key is (run seed, stream
name), its counter is (index of the number, episode, attempt, step).
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW32 = np.uint64(0xFFFFFFFF)
_ROUNDS = 10
MAX_EPISODES = 2**32  # episode numbers are one 32-bit word of the counter


def philox4x32(counter: NDArray[np.uint64], key: tuple[int, int]) -> NDArray[np.uint64]:
    """Apply ten rounds of the Philox4x32 generator to counters.

    Args:
        counter: Four 32-bit words per counter, stored as uint64, shape ``(..., 4)``.
        key: Two 32-bit words.

    Returns:
        Four random 32-bit words per counter, stored as uint64, shape ``(..., 4)``.
    """
    c0, c1, c2, c3 = (counter[..., i] for i in range(4))
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            product1 & _LOW32,
            (product0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            product0 & _LOW32,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1)


def stream_key(run_seed: int, stream: str) -> tuple[int, int]:
    """Return the 64-bit Philox key of one random stream of a run, as two 32-bit words.

    Args:
        run_seed: Seed of the run.
        stream: Name of the stream, for example the purpose of the numbers.
    """
    digest = hashlib.blake2b(f"{run_seed}\x00{stream}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def uniforms(
    run_seed: int,
    stream: str,
    episodes: ArrayLike,
    *,
    size: int = 1,
    attempt: ArrayLike = 0,
    step: ArrayLike = 0,
) -> NDArray[np.float64]:
    """Return uniform random numbers in the open interval (0, 1), shape ``(nepisode, size)``.

    Row ``i`` depends only on ``run_seed``, ``stream``, ``episodes[i]``, ``attempt[i]`` and ``step[i]``. If ``size`` is
    increased, the first numbers of each row stay the same.

    Args:
        run_seed: Seed of the run.
        stream: Name of the stream, for example the purpose of the numbers.
        episodes: One episode number per row.
        size: Random numbers per row.
        attempt: Attempt number, one for all rows or one per row.
        step: Control step, one for all rows or one per row.
    """
    episode = np.atleast_1d(np.asarray(episodes, dtype=np.uint64))
    n, blocks = len(episode), (size + 1) // 2
    counter = np.empty((n, blocks, 4), dtype=np.uint64)
    counter[..., 0] = np.arange(blocks, dtype=np.uint64)
    counter[..., 1] = episode[:, None]
    counter[..., 2] = np.broadcast_to(np.asarray(attempt, dtype=np.uint64), (n,))[:, None]
    counter[..., 3] = np.broadcast_to(np.asarray(step, dtype=np.uint64), (n,))[:, None]
    words = philox4x32(counter, stream_key(run_seed, stream)).reshape(n, blocks, 2, 2)
    bits53 = ((words[..., 0] << np.uint64(32)) | words[..., 1]) >> np.uint64(11)
    return ((bits53.astype(np.float64) + 0.5) * 2.0**-53).reshape(n, blocks * 2)[:, :size]


def generator(run_seed: int, stream: str, episode: int = 0) -> np.random.Generator:
    """Return a numpy generator for one stream of one episode, for library functions that need a generator.

    Args:
        run_seed: Seed of the run.
        stream: Name of the stream, for example the purpose of the numbers.
        episode: Episode number.
    """
    low, high = stream_key(run_seed, stream)
    return np.random.Generator(np.random.Philox(key=[low | (high << 32), episode]))
