"""What `seeds` makes of counters and words, number by number, for machine code: the same to the last bit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinloop.sensors.camera.seeds import EXP_TABLE, MOST_COUNTS, NORMAL_BODY, NORMAL_TAIL, CameraSeeds
from twinloop.sensors.compiled import compiled

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)  # `core.seeds` says where they are from
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_BODY = len(NORMAL_BODY) - 1


@compiled
def philox(words, first, key, world):
    """Fill ``words`` (a multiple of four) with those of the counters from ``first`` on (`core.seeds.philox4x32`)."""
    for block in range(len(words) // 4):
        a, b, c, d = np.uint64(first + block), world[0], world[1], world[2]
        x, y = key[0], key[1]
        for _ in range(10):
            p, q = a * _M0, c * _M1
            a, b, c, d = (q >> _HALF) ^ b ^ x, q & _LOW, (p >> _HALF) ^ d ^ y, p & _LOW
            x, y = (x + _W0) & _LOW, (y + _W1) & _LOW
        words[4 * block] = a
        words[4 * block + 1] = b
        words[4 * block + 2] = c
        words[4 * block + 3] = d


@compiled
def normal(word):
    """A standard normal number of a word (`seeds.normal_of_words`)."""
    half = np.int64(word) & 0x7FFFFFFF
    index = half >> 20
    if index < _BODY:
        part = ((half & 0xFFFFF) + 0.5) * 2.0**-20
        size = NORMAL_BODY[index] + (NORMAL_BODY[index + 1] - NORMAL_BODY[index]) * part
    else:
        index = (half >> 9) & _BODY
        part = ((half & 0x1FF) + 0.5) * 2.0**-9
        size = NORMAL_TAIL[index] + (NORMAL_TAIL[index + 1] - NORMAL_TAIL[index]) * part
    return -size if word >> 31 else size


def normals(seeds: CameraSeeds, stage: str, size: int, *, number: int = 0, unit: bool = False) -> NDArray[np.float64]:
    """Standard normal numbers ``(size,)``: those of `CameraSeeds.normals`."""
    words, numbers = np.empty((size + 3) // 4 * 4, dtype=np.uint32), np.empty(size)
    key, world = seeds.key(stage, unit=unit), (*seeds.world(unit=unit), number)
    philox(words, 0, np.array(key, dtype=np.uint64), np.array(world, dtype=np.uint64))
    _normals(words, numbers)
    return numbers


@compiled
def _normals(words, numbers):
    for place in range(len(numbers)):
        numbers[place] = normal(words[place])


@compiled
def poisson(word, mean):
    """A Poisson number of a word (`seeds.poisson_of_words`)."""
    uniform = (np.int64(word) + 0.5) * 2.0**-32
    index = int(mean * 8)
    x = mean - index / 8
    tail = 1.0 - x * (1.0 - x / 2.0 * (1.0 - x / 3.0 * (1.0 - x / 4.0 * (1.0 - x / 5.0 * (1.0 - x / 6.0)))))
    term = EXP_TABLE[index] * tail
    total, count = term, 0
    while uniform > total and count < MOST_COUNTS - 1:
        count += 1
        term = term * mean / count
        total += term
    return float(count)
