"""Where the time of a run went, for people and for programs."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from twinloop.core.profile import Profile

# In the order of an episode's life, with what each step covers.
STEPS = {
    "start": "loading the twin and the task, starting processes",
    "draw": "parameters of every world",
    "reset": "where the worlds begin",
    "expert": "deciding the commands",
    "command path": "encoder map, bias and delay of the commands",
    "physics": "MuJoCo",
    "recording": "copying states, watching for lost worlds",
    "sensing and success": "readings in the dataset's units, the predicate",
    "provenance": "records of the kept episodes",
    "idle": "worker processes without work, results on their way",
    "waiting": "the writing process without results",
    "encode parquet": "tables, hashes and statistics of the episodes",
    "statistics": "the dataset's metadata and quantiles",
    "commit": "links, syncing to the disk, the swap",
}


def profile_figures(profile: Profile, *, seconds: float, workers: int, attempted: int) -> dict[str, Any]:
    """Seconds, share of all processes' time and milliseconds per attempted episode, by step.

    Args:
        profile: of the process that wrote, with what the workers measured.
        seconds: the wall clock.
        workers: processes beside the writing one.
        attempted: episodes attempted in this time.
    """
    elsewhere = dict(profile.elsewhere)
    if workers:
        elsewhere["idle"] = max(0.0, seconds * workers - sum(elsewhere.values()))
    total = sum(profile.seconds.values()) + sum(elsewhere.values())
    rows: list[dict[str, Any]] = []
    for step in dict.fromkeys([*STEPS, *profile.seconds, *elsewhere]):
        here, there = profile.seconds.get(step, 0.0), elsewhere.get(step, 0.0)
        if here + there > 0:
            rows.append(
                {
                    "step": step,
                    "what": STEPS.get(step, ""),
                    "writer_s": here,
                    "workers_s": there,
                    "share": (here + there) / total,
                    "ms_per_episode": 1e3 * (here + there) / attempted,
                }
            )
    return {"seconds": seconds, "processes": workers + 1, "episodes": attempted, "steps": rows}


def profile_table(figures: dict[str, Any]) -> Table:
    """The figures as a table, the largest shares visible at a glance."""
    title = f"{figures['seconds']:.1f} s on {figures['processes']} processes, {figures['episodes']} episodes attempted"
    table = Table("step", title=title)
    for name in ("writer, s", "workers, s", "share", "ms per episode"):
        table.add_column(name, justify="right")
    for row in figures["steps"]:
        style = "bold" if row["share"] >= 0.1 else ""
        table.add_row(
            row["step"],
            f"{row['writer_s']:.2f}",
            f"{row['workers_s']:.2f}",
            f"{row['share']:.1%}",
            f"{row['ms_per_episode']:.3f}",
            style=style,
        )
    return table
