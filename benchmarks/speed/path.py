"""Measure the cost of a path-traced image: so101_tabletop from the front at 640×480, by variant, samples and denoising.

CPU time is that of all threads; on an idle machine the wall-clock time is that divided by the number of cores. Every
row is the minimum over some frames in which the arm has moved, after a first frame for compilation and warm-up. The
rasterizer's time in the same run is printed for comparison.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from twinloop.core.errors import MissingDependencyError
from twinloop.core.pool import count_cores
from twinloop.render import Renderer, SceneStates, open_renderer
from twinloop.twin import load_twin

HEIGHT, WIDTH, FRAMES = 480, 640, 3
ROWS = (
    ("scalar", 64, False, 10.0),
    ("llvm", 64, False, None),
    ("llvm", 8, True, 2.0),
    ("llvm", 4, True, 2.0),
    ("scalar", 4, True, None),
)  # variant, samples, denoised, target in s on two cores
AIMED = (("scalar", 64, False, 10.0), ("llvm", 8, True, 2.0))  # the rows with a target, one each


def run(rows: Sequence[tuple[str, int, bool, float | None]] = ROWS, *, frames: int = FRAMES) -> dict:
    """Return seconds per frame for every row that works here, the minimum over ``frames`` frames."""
    twin = load_twin("so101_tabletop")
    qpos = np.tile(twin.model.key_qpos[0], (frames + 1, 1))
    qpos[:, -6] += np.linspace(0.0, 0.5, frames + 1)  # the shoulder turns
    states = SceneStates(qpos=qpos)
    size = {"height": HEIGHT, "width": WIDTH, "cameras": ["front"]}
    metrics: dict = {"name": "path tracing", "cores": count_cores(), "rows": []}
    try:
        with open_renderer("gl", twin.model, **size) as rasterizer:
            metrics["gl"] = _best(rasterizer, states)
    except MissingDependencyError as error:
        metrics["gl"] = str(error)
    for variant, samples, denoise, target in rows:
        quality = {"variant": variant, "samples": samples, "denoise": denoise}
        row = {**quality, "target_s": target}
        try:
            with open_renderer("mitsuba", twin.model, quality=quality, **size) as tracer:
                row |= _best(tracer, states)
        except MissingDependencyError as error:
            row["skipped"] = str(error)
        metrics["rows"].append(row)
    return metrics


def _best(renderer: Renderer, states: SceneStates) -> dict[str, float]:
    renderer.render(states.take([0]))
    walls, busy = [], []
    for frame in range(1, len(states)):
        wall, processor = time.perf_counter(), time.process_time()
        renderer.render(states.take([frame]))
        walls.append(time.perf_counter() - wall)
        busy.append(time.process_time() - processor)
    return {"wall_s": min(walls), "processor_s": min(busy)}


def main() -> None:
    """Print the table."""
    metrics = run()
    table = Table("variant", "samples", "denoised", "wall s", "CPU s", "target s", title="One image of 640×480")
    for row in metrics["rows"]:
        seconds = [f"{row[name]:.2f}" if name in row else "none" for name in ("wall_s", "processor_s")]
        target = "" if row["target_s"] is None else f"{row['target_s']:.0f}"
        table.add_row(row["variant"], str(row["samples"]), "yes" if row["denoise"] else "no", *seconds, target)
    Console().print(table, f"gl: {metrics['gl']}; {metrics['cores']} cores")


if __name__ == "__main__":
    main()
