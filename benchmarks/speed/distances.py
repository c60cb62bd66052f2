"""Measure MMD and KID of 10,000 embeddings per side with permutation tests: seconds, memory, ratio to plain numpy.

The plain numpy implementation computes the whole kernel matrix at once, and for every permutation of episodes the sums
over its rows and columns. It runs fewer permutations, and its time is scaled to the same number.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import numpy as np

from twinloop.core.pool import count_cores
from twinloop.stats import kid, mmd

TARGET_S = 10.0
_ROWS, _COLUMNS, _EPISODES = 10_000, 256, 100
_DRAWS, _PLAIN_DRAWS = 4999, 3


def run(rounds: int = 1, *, rows: int = _ROWS, plain_rows: int = 2_000) -> dict:
    """Return wall-clock and CPU seconds, memory beyond the embeddings, and ratios to plain numpy.

    Args:
        rounds: Number of runs of each; the minimum is returned.
        rows: Embeddings per side.
        plain_rows: Embeddings per side for the comparison with plain numpy, whose matrices would otherwise not fit.
    """
    real, sim, clusters = _embeddings(rows)
    keys = {"real_clusters": clusters, "sim_clusters": clusters, "draws": _DRAWS}
    before = _peak_mb()
    timed = {
        kind.__name__: [_seconds(lambda kind=kind: kind(real, sim, **keys)) for _ in range(rounds)]
        for kind in (mmd, kid)
    }
    peak = _peak_mb() - before
    return {
        "rows": rows,
        "columns": _COLUMNS,
        "episodes": _EPISODES,
        "draws": _DRAWS,
        "cores": count_cores(),
        "wall_s": {name: min(wall for wall, _ in pairs) for name, pairs in timed.items()},
        "processor_s": {name: min(busy for _, busy in pairs) for name, pairs in timed.items()},
        "memory_mb": peak,
        "target_s": TARGET_S,
        "plain": _against_plain(plain_rows),
    }


def _against_plain(rows: int) -> dict:
    """Compute the same MMD² and permutations with both implementations, at a size that fits in memory."""
    real, sim, clusters = _embeddings(rows)
    sigma = float(np.sqrt(2 * _COLUMNS))
    keys = {"real_clusters": clusters, "sim_clusters": clusters, "bandwidth": sigma}
    found, _, ours = _result(lambda: mmd(real, sim, draws=_DRAWS, **keys))
    (plain, made, each), _, _ = _result(lambda: _plain(real, sim, clusters, sigma))
    return {
        "rows": rows,
        "ours_processor_s": ours,
        "plain_processor_s": made + each * _DRAWS,
        "ratio": (made + each * _DRAWS) / ours,
        "difference": abs(float(found.distance.estimate) - plain),
    }


def _plain(real: np.ndarray, sim: np.ndarray, clusters: np.ndarray, sigma: float) -> tuple[float, float, float]:
    """Return MMD², and CPU seconds of the kernel matrix and of one permutation."""
    began = time.process_time()
    both = np.concatenate([real, sim])
    label = np.concatenate([clusters, clusters + _EPISODES])
    squares = np.sum(both**2, axis=1)
    kernel = np.exp(-(squares[:, None] + squares - 2 * both @ both.T) / (2 * sigma**2))
    kernel[label[:, None] == label] = 0.0
    different = (label[:, None] != label).astype(float)
    made = time.process_time() - began
    rng = np.random.default_rng(0)
    labellings = [np.arange(2 * _EPISODES) < _EPISODES] + [
        rng.permutation(2 * _EPISODES) < _EPISODES for _ in range(_PLAIN_DRAWS)
    ]
    began, values = time.process_time(), []
    for real_episode in labellings:
        a = real_episode[label]
        parts = [kernel[np.ix_(x, y)].sum() / different[np.ix_(x, y)].sum() for x, y in ((a, a), (~a, ~a), (a, ~a))]
        values.append(parts[0] + parts[1] - 2 * parts[2])
    return float(values[0]), made, (time.process_time() - began) / len(labellings)


def _embeddings(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw embeddings of 100 episodes per side whose rows share half of their variance; the second side is shifted."""
    rng = np.random.default_rng(0)
    clusters = np.arange(rows) % _EPISODES
    sides = []
    for shift in (0.0, 0.02):
        level = rng.standard_normal((_EPISODES, _COLUMNS))
        sides.append(np.sqrt(0.5) * (level[clusters] + rng.standard_normal((rows, _COLUMNS))) + shift)
    return sides[0], sides[1], clusters


def _result(work: Callable) -> tuple:
    wall, busy = time.perf_counter(), time.process_time()
    result = work()
    return result, time.perf_counter() - wall, time.process_time() - busy


def _seconds(work: Callable) -> tuple[float, float]:
    return _result(work)[1:]


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    for name, value in run().items():
        print(f"{name}: {value}")
