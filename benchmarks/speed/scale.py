"""Measure `generate` over time: its rate from the first thousand episodes to the last, and memory of every process.

``python -m benchmarks.speed.scale`` measures the table of docs/evidence/performance.md: a very cheap task (`swing`),
for which the cost outside the physics is visible, at 10³, 10⁴ and 10⁵ episodes on 1 and 2 workers; and SO-101 pick and
place at 10³. ``python -m benchmarks.speed.scale swing 1000 2`` is one run: task, episodes, workers.

Each run is the command itself in its own process. Committed episodes and peak memory are read from outside, from
``twinloop/progress.json`` and ``/proc``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml
from rich.console import Console
from rich.table import Table

from twinloop.core.documents import read_json
from twinloop.core.files import write_json
from twinloop.dataset.lerobot import layout

TASKS = {
    "swing": {"twin": "double_pendulum", "task": f"{Path(__file__).parent / 'swing.py'}:Swing"},
    "so101": {"robot": "so101", "task": "pick_and_place"},
}
RUNS = [
    *(("swing", episodes, workers) for episodes in (1000, 10_000, 100_000) for workers in (1, 2)),
    *(("so101", 1000, workers) for workers in (1, 2)),
]
MEMORY_TARGET_MB = 2000
THOUSAND = 1000
_EVERY_S = 0.2


@dataclass
class Watch:
    """Measurements of a running command from outside.

    Attributes:
        commits: For each commit: attempts committed, wall-clock seconds, CPU seconds of all processes.
        memory: Peak memory by process id, MB.
        processor: CPU seconds by process id.
    """

    commits: list[tuple[int, float, float]] = field(default_factory=list)
    memory: dict[int, float] = field(default_factory=dict)
    processor: dict[int, float] = field(default_factory=dict)

    def record(self, seconds: float, output: Path, pid: int) -> None:
        """Record memory, CPU time and committed attempts at time ``seconds``."""
        for process in [pid, *_children(pid)]:
            self.memory[process] = max(self.memory.get(process, 0.0), _peak_mb(process))
            self.processor[process] = max(self.processor.get(process, 0.0), _processor_s(process))
        progress = output / layout.PROGRESS
        if progress.is_file():
            attempted = sum(block["outcome"]["attempted"] for block in read_json(progress)["blocks"])
            if not self.commits or attempted > self.commits[-1][0]:
                self.commits.append((attempted, seconds, sum(self.processor.values())))


def measure(task: str, episodes: int, workers: int) -> dict:
    """Run the command once and return its metrics."""
    with tempfile.TemporaryDirectory() as folder:
        file, output = Path(folder) / "generate.yaml", Path(folder) / "batch"
        file.write_text(yaml.safe_dump({"scene": TASKS[task]}))
        command = [sys.executable, "-m", "twinloop", "generate", str(file), "--output", str(output), "--json"]
        command += ["--episodes", str(episodes), "--workers", str(workers), "--profile"]
        watch, began = Watch(), time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            while process.poll() is None:
                watch.record(time.perf_counter() - began, output, process.pid)
                time.sleep(_EVERY_S)
            seconds = time.perf_counter() - began
            assert process.stdout is not None
            result = json.loads(process.stdout.read().splitlines()[-1])
        size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
        files = sum(path.is_file() for path in output.rglob("*"))
        shutil.rmtree(output)
    writer, *others = watch.memory.values()
    return {
        "task": task,
        "episodes": episodes,
        "workers": workers,
        "seconds": seconds,
        "episodes_per_s": episodes / seconds,
        **per_thousand(watch.commits),
        "peak_writer_mb": writer,
        "peak_worker_mb": max(others, default=0.0),
        "files": files,
        "bytes": size,
        "yield": result["yield"],
        "profile": result["profile"],
    }


def per_thousand(commits: list[tuple[int, float, float]]) -> dict[str, list[float]]:
    """Return episodes per second and CPU time per episode for each thousand episodes, from the first commit on.

    Values between commits are interpolated linearly. CPU time depends little on other work on the machine.
    """
    attempted, seconds, processor = np.array(commits, dtype=float).T
    marks = np.arange(0.0, attempted[-1] + 1, THOUSAND)
    marks[0] = attempted[0]
    count, keep = np.diff(marks), np.diff(marks) > 0
    clock, busy = (np.diff(np.interp(marks, attempted, values)) for values in (seconds, processor))
    return {
        "rates": (count[keep] / clock[keep]).tolist(),
        "processor_ms": (1e3 * busy[keep] / count[keep]).tolist(),
    }


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _peak_mb(pid: int) -> float:
    """Return the peak memory of a process, MB."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def _processor_s(pid: int) -> float:
    """Return the CPU time of a process so far, s."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(runs: list[tuple[str, int, int]] | None = None) -> list[dict]:
    """Measure several runs, one after the other."""
    return [measure(*item) for item in runs or RUNS]


def show(metrics: list[dict]) -> Table:
    """Return the metrics as a table: episodes per second and CPU ms per episode for the first and last thousand."""
    title = f"generate at scale (memory: below {MEMORY_TARGET_MB} MB)"
    table = Table("run", "eps/s", title=title)
    for name in ("first", "last", "min", "CPU first", "last", "max", "MB writer", "worker", "files"):
        table.add_column(name, justify="right")
    for row in metrics:
        rates, busy = (row[name] or [float("nan")] for name in ("rates", "processor_ms"))
        table.add_row(
            f"{row['task']} {row['episodes']} on {row['workers']}",
            f"{row['episodes_per_s']:.0f}",
            *(f"{value:.0f}" for value in (rates[0], rates[-1], min(rates))),
            *(f"{value:.1f}" for value in (busy[0], busy[-1], max(busy))),
            f"{row['peak_writer_mb']:.0f}",
            f"{row['peak_worker_mb']:.0f}",
            f"{row['files']}",
        )
    return table


def main() -> None:
    """Measure, print, and write the metrics to ``bench-output/scale.json``."""
    given = sys.argv[1:]
    metrics = run([(given[0], int(given[1]), int(given[2]))] if given else None)
    Console().print(show(metrics))
    write_json(Path("bench-output") / "scale.json", {"runs": metrics})


if __name__ == "__main__":
    main()
