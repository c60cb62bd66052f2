"""The study of the monitor in small: planted faults of a virtual robot alarm more often than its successes."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

pytest.importorskip("torch")


@pytest.mark.slow
def test_planted_faults_are_seen_and_successes_mostly_pass() -> None:
    from benchmarks.error_rates.monitor.run import run_bench_monitor

    made = run_bench_monitor(Console(file=io.StringIO()), small=True, workers=1)["tables"]
    successes = next(row for row in made["alarms"]["metrics"] if row["group"] == "successes")
    assert successes["alarmed"] <= 0.5 * successes["episodes"]
    power = {row["fault"]: row["alarmed"] / row["episodes"] for row in made["faults"]["metrics"]}
    for fault in ("friction doubled", "80 ms more latency", "backlash grown threefold", "tracker moved 3 cm"):
        assert power[fault] >= 0.75, fault
