"""All benchmarks, as one table: ``make bench``."""

from __future__ import annotations

import platform
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import generate, writer
from twinloop.core.files import write_json


def main() -> None:
    """Run everything, print the table, keep the figures in ``bench-output/result.json``."""
    figures = {
        "machine": f"{platform.processor() or platform.machine()}",
        "generate": generate.run(),
        "writer": writer.run(),
    }
    made, wrote = figures["generate"], figures["writer"]
    table = Table("benchmark", "figure", "spread", "target", title="twinloop benchmarks")
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
    Console().print(table)
    write_json(Path("bench-output") / "result.json", figures)


if __name__ == "__main__":
    main()
