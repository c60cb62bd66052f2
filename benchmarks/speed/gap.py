"""Measure time and memory of the dynamics gap of the SO-101's 40 real episodes, repeated to larger sizes.

``python -m benchmarks.speed.gap [EPISODES …]``. Every size runs in its own process, because a process's peak memory
only grows.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from twinloop.core.records import Episode
from twinloop.dataset.logs.sets.registry import load
from twinloop.gap import measure_gap
from twinloop.simulate import open_backend
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.twin import load_twin

SIZES = (40, 400)
TARGET_S = 20.0  # of the 60 s for dynamics and attribution together
_SET, _TWIN = "so101_pick_place_tape", "so101_tabletop"
_OTHER = {
    "actuator/elbow_flex/kp": 12.0,
    "joint/shoulder_pan/damping": 0.8,
}  # a second parameter row, as for an identified twin
_OPTIONS = ReplayOptions(window=1.0, start="measured")


@dataclass(frozen=True)
class Repeated:
    """An iterable of ``count`` episodes, which repeats given ones under new numbers and makes each on demand."""

    episodes: tuple[Episode, ...]
    count: int

    def __iter__(self) -> Iterator[Episode]:
        for number in range(self.count):
            yield replace(self.episodes[number % len(self.episodes)], index=number)


def measure(count: int) -> dict[str, float]:
    """Measure the gap of the nominal twin and a second parameter row over ``count`` episodes, in this process."""
    twin, episodes = load_twin(_TWIN), load(_SET)[0]
    before = _peak_mb()
    began, cpu = time.perf_counter(), time.process_time()
    report = measure_gap(
        twin,
        Repeated(tuple(episodes), count),
        backend=open_backend("threads"),
        params=_OTHER,
        options=_OPTIONS,
        repeats="none",
    )
    return {
        "episodes": count,
        "windows": report.windows,
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
        "peak_mb": _peak_mb(),
        "peak_before_mb": before,
        "skill": float(report.overall_skill.estimate),
    }


def run(sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    """Run every size in its own process."""
    rows = []
    for count in sizes:
        words = [sys.executable, "-m", "benchmarks.speed.gap", "--only", str(count)]
        made = subprocess.run(words, check=True, capture_output=True, text=True)
        rows.append(json.loads(made.stdout.splitlines()[-1]))
    return {"target_s": TARGET_S, "rows": rows}


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def main() -> None:
    """Print the table."""
    if "--only" in sys.argv:
        print(json.dumps(measure(int(sys.argv[-1]))))
        return
    table = Table("episodes", "windows", "s", "CPU s", "peak MB", "of which before", "skill", title="dynamics gap")
    for row in run(tuple(map(int, sys.argv[1:])) or SIZES)["rows"]:
        metrics = [f"{row[key]:.1f}" for key in ("seconds", "cpu_seconds", "peak_mb", "peak_before_mb")]
        table.add_row(f"{row['episodes']:.0f}", f"{row['windows']:.0f}", *metrics, f"{row['skill']:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
