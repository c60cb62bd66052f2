"""Compare the sensors of a real log with those of a simulated one: figures, result.json, report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from twinloop.core.errors import InputError
from twinloop.gap.sensors import SensorGap, measure_sensors
from twinloop.loop.gap_sides import require_two_sides
from twinloop.loop.logs import Log
from twinloop.loop.measured_run import MeasuredRun, Outcome
from twinloop.loop.pages_gap_sensors import remedy_text, sensors_section
from twinloop.twin import load_twin


def run_gap_sensors(
    real: Log,
    sim: Log,
    output: Path | None,
    *,
    twin: str | None,
    same: Sequence[str],
    fail_if: Sequence[str],
    console: Console,
) -> Outcome:
    """Print and store how far the simulated sensors are from the real ones.

    Args:
        real: the real log.
        sim: the simulated one.
        output: folder for result.json and report.html; None stores nothing.
        twin: what the simulated log was made with; its nominal values make remedies exact.
        same: ``REAL=SIM``, names of one signal that differ.
        fail_if: conditions on which to exit with 1.
        console: for people.
    """
    run = MeasuredRun.begin("gap", "sensors", output, fail_if, console)
    require_two_sides(real, sim)
    nominal = {} if twin is None else {name: param.nominal for name, param in load_twin(twin).params.items()}
    gap = measure_sensors(real.episodes, sim.episodes, same=_names(same), nominal=nominal)
    console.print(f"real: {real.label}\nsimulated: {sim.label}", soft_wrap=True)
    _print(console, gap)
    return run.end(
        {**gap.to_json(), "data": real.describe(), "sim": sim.describe()},
        gap.headline(),
        title="Real and simulated sensors",
        subtitle=f"{real.label}; {sim.label}",
        fill=lambda page: sensors_section(page, gap),
    )


def _names(words: Sequence[str]) -> Mapping[str, str]:
    pairs = [word.partition("=") for word in words]
    for word, (name, sign, other) in zip(words, pairs, strict=True):
        if not (name and sign and other):
            raise InputError(f"--same {word}: write REAL=SIM, such as acceleration/imu=acceleration/tool_imu.")
    return {name: other for name, _, other in pairs}


def _print(console: Console, gap: SensorGap) -> None:
    tested = [row for row in gap.differences if not math.isnan(row.p_value)]
    console.print(
        f"{len(gap.found)} of {len(tested)} figures of {len(gap.figures)} channels differ beyond chance "
        f"({gap.episodes[0]} real, {gap.episodes[1]} simulated episodes)."
    )
    if gap.found:
        table = Table(
            Column("channel", no_wrap=True), "figure", "real", "simulated", "unit", "real − simulated", "p (Holm)"
        )
        for row in gap.found:
            ends = f"{float(row.difference.estimate):.3g} [{float(row.difference.low):.3g}, "
            table.add_row(
                row.channel, row.quantity, f"{row.real:.4g}", f"{row.sim:.4g}", row.unit,
                f"{ends}{float(row.difference.high):.3g}]", f"{row.p_value:.2g}",
            )  # fmt: skip
        console.print(table)
        for row in gap.found:
            if row.remedy is not None:
                console.print(f"{row.quantity} of {row.channel}: {remedy_text(row)}", soft_wrap=True)
    unknown = [row for row in gap.differences if math.isnan(row.p_value)]
    if unknown:
        console.print(
            f"{len(unknown)} figures were not tested, such as {unknown[0].quantity} of {unknown[0].channel}: "
            f"{unknown[0].reason}.",
            soft_wrap=True,
        )
    if gap.lacking:
        console.print(f"Not in the simulated log: {', '.join(gap.lacking)}.", soft_wrap=True)
