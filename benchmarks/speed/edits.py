"""Compare the cost of dataset edits that link or copy video packets with that of re-encoding every frame.

``python -m benchmarks.speed.edits``. Two datasets with two 240×320 cameras of rendered-like frames
(`benchmarks.speed.writer`) are merged, which links whole video files. Half of their episodes are selected, which copies
packets. Both are also merged with every frame re-encoded, as a tool must that reads only frames. All three run in one
process; the metric is CPU time of all its threads.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.speed.writer import EPISODES, STEPS, write_video
from twinloop.dataset.edit.operations import merge
from twinloop.dataset.edit.videos import PixelEdits
from twinloop.dataset.edit.writing import EditSettings, write_selection
from twinloop.dataset.media.video_copy import Encoding


def run(rounds: int = 3) -> dict[str, Any]:
    """Return CPU milliseconds per episode of each method, the minimum over rounds, and their ratios."""
    reencoded = EditSettings(pixels=PixelEdits(encoding=Encoding(codec="h264"), reencode_all=True))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for run, name in enumerate(("one", "two")):
            write_video(root / name, run=run)
        both = [root / "one", root / "two"]
        half = [(path, index) for path in both for index in range(1, EPISODES, 2)]
        ways: dict[str, tuple[int, Callable[[Path], object]]] = {
            "linked": (2 * EPISODES, lambda output: merge(both, output)),
            "copied": (len(half), lambda output: write_selection(half, output)),
            "encoded": (2 * EPISODES, lambda output: merge(both, output, settings=reencoded)),
        }
        cost = {
            name: [_cost(do, root / f"{name}-{number}") / count for number in range(rounds)]
            for name, (count, do) in ways.items()
        }
    best = {name: min(times) for name, times in cost.items()}
    return {
        "edits_ms_per_episode": {name: 1e3 * value for name, value in best.items()},
        "edits_spread_ms": {name: [1e3 * min(times), 1e3 * max(times)] for name, times in cost.items()},
        "edits_linked_ratio": best["encoded"] / best["linked"],
        "edits_copied_ratio": best["encoded"] / best["copied"],
        "frames_per_episode": STEPS,
        "rounds": rounds,
    }


def add_rows(table: Table, metrics: Mapping[str, Any]) -> None:
    """Add the metrics of `run` to the table of all benchmarks."""
    for way, what in (("linked", "merge, files linked"), ("copied", "select, packets copied")):
        low, high = metrics["edits_spread_ms"][way]
        table.add_row(
            f"{what}, CPU of an episode with two cameras, times cheaper than encoding it",
            f"{metrics[f'edits_{way}_ratio']:.1f}",
            f"{low:.0f} to {high:.0f} ms in {metrics['rounds']} rounds",
            "",
        )


def _cost(do: Callable[[Path], object], output: Path) -> float:
    start = time.process_time()
    do(output)
    return time.process_time() - start


if __name__ == "__main__":
    for name, value in run().items():
        print(name, value)
