"""Generate the random numbers of camera images as functions of run seed, episode, sensor, image number and purpose.

Each image is therefore reproducible by itself, in any order and on any machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from twinloop.core.params import SeedPath
from twinloop.core.seeds import philox4x32, stream_key
from twinloop.sensors.compiled import compile_lazily

POISSON_BELOW = 12.0
"""Mean electrons below which exact Poisson numbers are used; see `sensor.add_noise` for larger means."""

_BINS = 2048  # of a half of the normal distribution; the last bin is divided into as many again
_GRID = 8  # values per unit of the table of exp(-x)


@dataclass(frozen=True, kw_only=True)
class CameraSeeds:
    """Seeds of the random numbers of one camera's images.

    Attributes:
        path: seeds of one world: run seed, episode number, and number of the attempt to simulate this episode.
        sensor: name of the camera.
        serial: serial number of the physical camera. If given, the camera's fixed pixel pattern depends on it alone,
            not on run and episode. A new `CameraPipeline` always uses the serial number of its camera model instead.
    """

    path: SeedPath
    sensor: str
    serial: str = ""

    def key(self, stage: str, *, unit: bool = False) -> tuple[int, int]:
        """Return the key of the Philox generator for one stage of the camera.

        Args:
            stage: name of the stage.
            unit: True for values that are constant for one physical camera, such as its fixed pixel pattern.
        """
        if unit and self.serial:
            return stream_key(0, f"camera/{self.serial}/{stage}")
        return stream_key(self.path.run_seed, f"sensor/{self.sensor}/{stage}")

    def counter_prefix(self, *, unit: bool = False) -> tuple[int, int]:
        """Return the two numbers, episode and attempt, with which the counter of the random generator begins.

        If ``unit`` is true, the random numbers are constants of one physical camera, such as its pixel pattern. Then
        the attempt is 0. The episode is 0 too if the camera has a serial number; otherwise every episode has a new
        camera.
        """
        if unit:
            return (0 if self.serial else int(self.path.episodes[0])), 0
        return int(self.path.episodes[0]), int(self.path.attempts[0])

    def words(self, stage: str, size: int, *, number: int = 0, unit: bool = False) -> NDArray[np.uint32]:
        """Return random 32-bit words, shape ``(size,)``.

        Args:
            stage: name of the camera's processing stage.
            size: number of words.
            number: number of the image.
            unit: True for values that are constant for one physical camera, such as its fixed pixel pattern.
        """
        counter = np.empty(((size + 3) // 4, 4), dtype=np.uint64)
        counter[:, 0] = np.arange(len(counter), dtype=np.uint64)
        counter[:, 1:] = np.array([*self.counter_prefix(unit=unit), number], dtype=np.uint64)
        return philox4x32(counter, self.key(stage, unit=unit)).astype(np.uint32).ravel()[:size]

    def normals(self, stage: str, size: int, *, number: int = 0, unit: bool = False) -> NDArray[np.float64]:
        """Return standard normal numbers, shape ``(size,)``.

        Args:
            stage: name of the camera's processing stage.
            size: number of values.
            number: number of the image.
            unit: True for values that are constant for one physical camera, such as its fixed pixel pattern.
        """
        return normal_of_words(self.words(stage, size, number=number, unit=unit))

    def uniforms(self, stage: str, size: int, *, number: int = 0, unit: bool = False) -> NDArray[np.float64]:
        """Return numbers uniform between 0 and 1, shape ``(size,)``.

        Args:
            stage: name of the camera's processing stage.
            size: number of values.
            number: number of the image.
            unit: True for values that are constant for one physical camera, such as its fixed pixel pattern.
        """
        return np.float64(2.0**-32) * (self.words(stage, size, number=number, unit=unit) + np.float64(0.5))


def normal_of_words(words: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Convert random 32-bit integers (words) to standard normal numbers; bit for bit equal to the compiled `normal`.

    The quantile function (inverse CDF) is interpolated linearly in the table `NORMAL_BODY` up to 3.5 standard
    deviations, and in the finer table `NORMAL_TAIL` beyond. The mean is exactly 0 and the variance exactly 1.
    """
    half = (words & np.uint32(0x7FFFFFFF)).astype(np.int64)
    index = half >> 20
    body = np.minimum(index, _BINS - 2)
    part = ((half & 0xFFFFF) + 0.5) * 2.0**-20
    size = NORMAL_BODY[body] + (NORMAL_BODY[body + 1] - NORMAL_BODY[body]) * part
    tail = index == _BINS - 1
    if tail.any():
        rest = half[tail]
        index, part = (rest >> 9) & (_BINS - 1), ((rest & 0x1FF) + 0.5) * 2.0**-9
        size[tail] = NORMAL_TAIL[index] + (NORMAL_TAIL[index + 1] - NORMAL_TAIL[index]) * part
    return np.where(words >> np.uint32(31), -size, size)


def poisson_of_words(words: NDArray[np.uint32], mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """Convert random 32-bit integers (words) to Poisson-distributed counts by the inverse CDF.

    Args:
        words: random integers, any shape.
        mean: mean of each count, same shape; up to 12 (`POISSON_BELOW`).

    Returns:
        Counts, same shape.
    """
    uniform = (words + 0.5) * 2.0**-32
    index = (mean * _GRID).astype(np.int64)
    rest = mean - index / _GRID
    term = EXP_TABLE[index] * exp_minus(rest)
    total, count = term.copy(), np.zeros_like(mean)
    for step in range(1, MOST_COUNTS):
        more = uniform > total
        if not more.any():
            break
        term = term * mean / step
        total = np.where(more, total + term, total)
        count += more
    return count


def exp_minus(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return exp(−x) for x between 0 and 1/8, with an error below 10⁻¹⁰.

    It uses only sums, products and quotients, so that the result is the same on all machines.
    """
    return 1.0 - x * (1.0 - x / 2.0 * (1.0 - x / 3.0 * (1.0 - x / 4.0 * (1.0 - x / 5.0 * (1.0 - x / 6.0)))))


def _normal_tables() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    body = ndtri(0.5 + np.arange(_BINS) / (2 * _BINS))
    above = (1.0 - np.arange(_BINS) / _BINS) / (2 * _BINS)
    tail = -ndtri(np.append(above, above[-1] / 4.0))
    spread = _mean_square(body) * 2.0 * (_BINS - 1) / (2 * _BINS) + _mean_square(tail) * 2.0 / (2 * _BINS)
    return body / math.sqrt(spread), tail / math.sqrt(spread)


def _mean_square(edges: NDArray[np.float64]) -> float:
    """Return the mean square of a random number that is uniform within bins of equal probability.

    `_normal_tables` needs it to make the variance of the tabulated normal numbers exactly 1.

    Args:
        edges: borders of the bins in ascending order, ``(number of bins + 1,)``.
    """
    low, high = edges[:-1], edges[1:]
    return float(np.mean((low * low + low * high + high * high) / 3.0))


NORMAL_BODY, NORMAL_TAIL = _normal_tables()
EXP_TABLE = np.exp(-np.arange(int(POISSON_BELOW) * _GRID + 2) / _GRID)
MOST_COUNTS = 60  # a mean of 12 exceeds it with a probability below 1e-20


_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)  # `core.seeds` has their source
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_BODY = len(NORMAL_BODY) - 1


@compile_lazily
def philox(words, first, key, world):
    """Fill ``words`` with random 32-bit words of the generator Philox 4x32, as `core.seeds.philox4x32` does.

    Args:
        words: result, written in place; its length is a multiple of 4.
        first: number of the first block. Each block gives 4 words, and its number is the first of the counter's four
            integers.
        key: key of the generator, array of two integers.
        world: the other three integers of the counter: episode, attempt and image number.
    """
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


@compile_lazily
def normal(word):
    """Convert one random 32-bit word to a standard normal number; scalar version of `normal_of_words`."""
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
    """Return standard normal numbers, shape ``(size,)``, computed in compiled code; equal to `CameraSeeds.normals`.

    Args:
        seeds: seeds of the camera's images.
        stage: name of the camera's processing stage.
        size: number of values.
        number: number of the image.
        unit: True for values that are constant for one physical camera, such as its fixed pixel pattern.
    """
    words, numbers = np.empty((size + 3) // 4 * 4, dtype=np.uint32), np.empty(size)
    key, world = seeds.key(stage, unit=unit), (*seeds.counter_prefix(unit=unit), number)
    philox(words, 0, np.array(key, dtype=np.uint64), np.array(world, dtype=np.uint64))
    _normals(words, numbers)
    return numbers


@compile_lazily
def _normals(words, numbers):
    for place in range(len(numbers)):
        numbers[place] = normal(words[place])


@compile_lazily
def poisson(word, mean):
    """Convert one random 32-bit word to a Poisson number by the inverse CDF; scalar version of `poisson_of_words`.

    Args:
        word: the random number.
        mean: mean of the Poisson distribution, at most 12.
    """
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
