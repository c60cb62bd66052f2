"""Run every speed benchmark and make one table: ``make bench``."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.speed import camera, catalog, coverage, edits, envs, generate, gpu, path, render, scale, scenes, writer
from benchmarks.studies import around, markdown_table, write_between
from twinloop.core.files import write_json
from twinloop.core.pool import count_cores

MARK = "make bench"


def run_bench_speed(console: Console, *, page: Path | None = None) -> dict[str, Any]:
    """Run everything, print the table, write ``bench-output/result.json``; if ``page`` is given, replace its table."""
    if page is not None:
        around(page, MARK)
    load = os.getloadavg()[2]  # load average of the machine before the benchmarks
    metrics = measure_all()
    table = table_of(metrics)
    console.print(table)
    if page is not None:
        rows = list(zip(*(column.cells for column in table.columns), strict=True))
        text = markdown_table([str(column.header) for column in table.columns], rows)
        write_between(
            page,
            MARK,
            f"{text}\n\nOn {count_cores()} cores shared with other processes (load average {load:.1f} at the start).",
        )
    write_json(Path("bench-output") / "result.json", metrics)
    return metrics


def measure_all() -> dict[str, Any]:
    """Return the metrics of every benchmark."""
    return {
        "machine": f"{platform.processor() or platform.machine()}",
        "generate": generate.run(),
        "writer": writer.run(),
        "edits": edits.run(),
        "envs": envs.run(),
        "gpu": gpu.run(),
        "render": render.run(),
        "scenes": scenes.run(),
        "camera": camera.run(),
        "path": path.run(path.AIMED, frames=1),
        "catalog": catalog.run(),
        "coverage": coverage.run(),
        "scale": scale.run([("swing", 10_000, count_cores())]),
    }


def table_of(metrics: dict[str, Any]) -> Table:
    """Return the table of ``make bench``, one row per metric."""
    made, wrote, played = metrics["generate"], metrics["writer"], metrics["envs"]
    table = Table("benchmark", "metric", "spread", "target", title="twinloop benchmarks")
    table.add_row(
        "generate, states, steps/s of written episodes against the bare Batch.step loop",
        f"{made['ratio']:.2f}",
        f"{made['ratio_min']:.2f} to {made['ratio_max']:.2f} in {len(made['rounds'])} rounds",
        f"{made['target']:.2f}",
    )
    table.add_row("generate, episodes per second", f"{made['episodes_per_s']:.1f}", f"yield {made['yield']:.1%}", "")
    table.add_row(
        "writer, two 240×320 cameras, steps/s",
        f"{wrote['writer_steps_per_s']:.0f}",
        "one run",
        f"{wrote['writer_target_steps_per_s']:.0f}",
    )
    table.add_row("writer, states only, steps/s", f"{wrote['writer_states_only_steps_per_s']:.0f}", "one run", "")
    edits.add_rows(table, metrics["edits"])
    for kind, when in (("together", "no episode ending"), ("apart", "episodes ending at steps spread evenly")):
        low, high = played[f"ratio_{kind}_spread"]
        table.add_row(
            f"vector environment of {played['worlds']}, {when}, steps/s against the bare rollout",
            f"{played[f'ratio_{kind}']:.2f}",
            f"{low:.2f} to {high:.2f} in {len(played['rounds'])} rounds",
            "",
        )
    for name, ratio in metrics["scenes"]["ratio"].items():
        if name != "plain":
            things = name.removeprefix("count ")
            table.add_row(
                f"physics with {things} objects on the table, against the plain table", f"{ratio:.2f}", "", ""
            )
    for name, row in metrics["camera"]["rows"].items():
        fast = f"{row['ratio']:.1f} times as fast as numpy" if "ratio" in row else "numpy; numba is not installed"
        cost = f"{row.get('compiled_ms', row['numpy_ms']):.1f}"
        table.add_row(f"camera {name}, 640x480, CPU ms per image", cost, fast, "")
    webcam = metrics["camera"]["webcam"]
    table.add_row(
        f"camera uvc_webcam with its lens, 640x480, wall-clock ms per image on {webcam['cores']} cores",
        f"{webcam['clock_ms']:.1f}",
        f"{webcam['processor_ms']:.1f} ms of CPU time",
        f"{metrics['camera']['target_ms']:.0f}",
    )
    for row in metrics["path"]["rows"]:
        kind = f"{row['variant']}, {row['samples']} samples{', denoised' if row['denoise'] else ''}"
        table.add_row(
            f"path-traced image, 640x480, {kind}, wall-clock s on {metrics['path']['cores']} cores",
            f"{row['wall_s']:.2f}" if "wall_s" in row else "not available",
            f"{row['processor_s']:.2f} s of CPU time" if "wall_s" in row else row["skipped"],
            f"{row['target_s']:.0f}",
        )
    for row in metrics["gpu"].get("rows", ()):
        table.add_row(
            f"episodes on a GPU, {row['worlds']} worlds, steps/s against the bare mujoco_warp loop",
            f"{row['ratio']:.2f}",
            f"median of {metrics['gpu']['rounds']}",
            f"{metrics['gpu']['target']:.2f}",
        )
    for row in metrics["gpu"].get("images", {}).get("rows", ()):
        table.add_row(
            f"images on a GPU, {row['worlds']} worlds, images/s against bare mujoco_warp",
            f"{row['ratio']:.2f}",
            f"{row['images_per_s']:,.0f} images/s",
            "",
        )
    for size, row in metrics["render"]["sizes"].items():
        low, high = row["ratio_spread"]
        table.add_row(
            f"rendering a dataset with gl at {size}, frames/s against bare loops",
            f"{row['ratio']:.2f}",
            f"{low:.2f} to {high:.2f}; {row['frames_per_s']:.0f} frames/s after {row['start_s']:.1f} s",
            f"{metrics['render']['target']:.2f}",
        )
    known = metrics["catalog"]
    slowest = max(known["queries"], key=lambda row: row["median_ms"])
    of = f"{known['episodes']:,} episodes"
    table.add_row(
        f"catalog of {of}, the slowest of ten queries ({slowest['name']}), wall-clock ms",
        f"{slowest['median_ms']:.0f}",
        f"{slowest['processor_ms']:.0f} ms of CPU time",
        f"{1e3 * known['query_target_s']:.0f}",
    )
    busy = f"{known['open_processor_s']:.2f} s of CPU time, {known['peak_mb']:.0f} MB after ten queries"
    table.add_row(f"catalog of {of}, opening, s", f"{known['open_s']:.2f}", busy, f"{known['open_target_s']:.0f}")
    small, large = known["commit_ms"]["small"], known["commit_ms"]["large"]
    table.add_row(
        f"catalog of {of}, committing a batch of 64, ms",
        f"{large['median']:.0f}",
        f"{large['least']:.0f} to {large['most']:.0f}",
        f"{small['median']:.0f} at 1,000",
    )
    streamed = known["statistics"]
    table.add_row(
        f"statistics of {streamed['frames']:,} frames, most memory, MB",
        f"{streamed['peak_mb']:.0f}",
        f"{streamed['statistics_s']:.0f} s",
        f"{known['statistics_target_mb']}",
    )
    near = metrics["coverage"]
    table.add_row(
        f"{near['k']} nearest of {near['clips']:,} clips of {near['width']} numbers, exact, wall-clock ms",
        f"{near['median_ms']:.0f}",
        f"{near['most_ms']:.0f} at most, {near['processor_ms']:.0f} ms of CPU time",
        "",
    )
    if "skipped" in metrics["gpu"]:
        table.add_row(
            "episodes on a GPU", "not available", metrics["gpu"]["skipped"], f"{metrics['gpu']['target']:.2f}"
        )
    long = metrics["scale"][0]
    busy = long["processor_ms"]
    table.add_row(
        f"generate, {long['episodes']} cheap episodes, CPU ms per episode, last thousand against the first",
        f"{busy[-1] / busy[0]:.2f}",
        f"{min(busy):.2f} to {max(busy):.2f} ms over the thousands",
        "1.0",
    )
    peak = max(long["peak_writer_mb"], long["peak_worker_mb"])
    table.add_row("the same, most memory of any process, MB", f"{peak:.0f}", "", f"{scale.MEMORY_TARGET_MB}")
    return table
