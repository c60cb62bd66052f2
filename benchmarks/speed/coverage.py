"""Measure the exact search for the nearest clips: `python -m benchmarks.speed.coverage [--rows N]`.

The data are random rows of 128 numbers, memory-mapped as `curate.neighbours` does; each query compares all rows.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from twinloop.curate.neighbours import ClipIndex, open_memory_maps, write_index

WIDTH, K, QUERIES = 128, 5, 30


def run(count: int = 200_000) -> dict[str, Any]:
    """Return times of queries among ``count`` clips, in ms; each answer is compared with a plain numpy search."""
    chance = np.random.default_rng(0)
    names = [f"{number:064x}" for number in range(count)]
    first = np.zeros(count, dtype=np.int64)
    rows = chance.normal(size=(count, WIDTH)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        write_index(Path(folder) / "index", ClipIndex.of(rows, names, first, first + 59), "benchmark")
        index = open_memory_maps(Path(folder) / "index")
        index.find_nearest(0, K)
        wall, cpu = [], []
        for row in chance.integers(0, count, QUERIES).tolist():
            began, busy = time.perf_counter(), time.process_time()
            found = index.find_nearest(index.find_row(names[row], 0), K)
            wall.append(1e3 * (time.perf_counter() - began))
            cpu.append(1e3 * (time.process_time() - busy))
            distance = np.linalg.norm(rows.astype(np.float64) - rows[row], axis=1)
            distance[row] = np.inf
            if [item.episode_id for item in found] != [names[i] for i in np.argsort(distance)[:K]]:
                raise SystemExit(f"Row {row}: the search is not exact.")
    return {
        "clips": count,
        "width": WIDTH,
        "k": K,
        "queries": QUERIES,
        "median_ms": float(np.median(wall)),
        "most_ms": max(wall),
        "processor_ms": float(np.median(cpu)),
    }


def main() -> None:
    """Print median and largest time of a query."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    made = run(parser.parse_args().rows)
    print(
        f"{K} nearest of {made['clips']} clips of {WIDTH} numbers: median {made['median_ms']:.1f} ms, worst "
        f"{made['most_ms']:.1f} ms by the clock, {made['processor_ms']:.1f} ms CPU; {QUERIES} queries, all exact"
    )


if __name__ == "__main__":
    main()
