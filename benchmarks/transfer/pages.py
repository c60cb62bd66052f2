"""Format the results of the transfer study for the terminal, its report and the documentation."""

from __future__ import annotations

import numpy as np

from benchmarks.studies import StudyTable
from benchmarks.transfer.means import RobotMean, average_over_robots
from benchmarks.transfer.settings import NUMBERS
from benchmarks.transfer.study import TransferResult
from twinloop.report import ReportPage

HEAD = ("", "policies taught in", "success", "95 % over robots", "per robot", "worst", "sd of runs", "commands cut")


def success_table(result: TransferResult) -> StudyTable:
    """Tabulate success and changed commands by condition."""
    settings, rows = result.settings, []
    for n, cut in result.cut.items():
        share = f"{cut.mean():.1%}, at most {cut.mean(axis=1).max():.1%}"
        rows.append((f"({n})", NUMBERS[n].label, *format_success(result.condition(n)), share))
    script = average_over_robots(result.script[:, None])
    rows.append(("", "the scripted expert, which knows the true state", *format_success(script), ""))
    note = (
        f"Robots: seeds {settings.robot_seeds[0]} to {settings.robot_seeds[-1]}; training runs: {settings.seeds}; "
        f"{settings.episodes} trials per policy and robot, the same initial positions for all policies. Intervals: "
        "Student's over robots; `sd of runs`: between training runs on one robot. `Commands cut`: share that the "
        "safety envelope would change, mean and worst robot. Settings and code were frozen in commit "
        f"{result.asked.get('commit') or 'unknown'}."
    )
    return StudyTable(title="Success on robots with hidden parameters", head=HEAD, rows=tuple(rows), note=note)


def difference_table(result: TransferResult) -> StudyTable:
    """Tabulate differences between conditions, paired by robot."""
    rows = []
    for (one, other), found in result.differences().items():
        low, high = found.interval
        each = ", ".join(f"{100 * value:+.0f}" for value in found.each)
        rows.append((f"({one}) − ({other})", f"{100 * found.mean:+.1f}", _points(low, high), each))
    head = ("difference in success, points", "mean", "95 % over robots", "per robot")
    return StudyTable(title="Differences between conditions", head=head, rows=tuple(rows), note="")


def time_table(result: TransferResult) -> StudyTable:
    """Tabulate CPU time and wall-clock time by part of the study."""
    kinds = [(kind, took["processor_s"], took["wall_s"]) for kind, took in result.seconds.items()]
    total = ("total", sum(row[1] for row in kinds), sum(row[2] for row in kinds))
    rows = [(kind, f"{processor:.0f} s", f"{wall:.0f} s") for kind, processor, wall in (*kinds, total)]
    note = "Wall-clock time is the sum over parts. With two processes on otherwise idle cores, half of it passes."
    return StudyTable(title="Time", head=("part", "CPU time", "wall-clock time"), rows=tuple(rows), note=note)


def success_tables(result: TransferResult) -> list[StudyTable]:
    """Return the tables of success and of differences that have rows."""
    return [table for table in (success_table(result), difference_table(result)) if table.rows]


def page(report: ReportPage, result: TransferResult) -> None:
    """Add plot and tables to a report."""
    report.section("Success on the robots")
    report.plot(plot_success(result), "Bars: means with 95 % intervals over robots. Points: robots.")
    for table in [*success_tables(result), time_table(result)]:
        report.section(table.title, table.note)
        report.table(table.head, table.rows)


def plot_success(result: TransferResult):
    """Plot success by condition: bars with intervals over robots, and one point per robot."""
    import plotly.graph_objects as go

    numbers = list(result.success)
    names = [f"({n}) {NUMBERS[n].label}" for n in numbers]
    found = [result.condition(n) for n in numbers]
    means = np.array([one.mean for one in found])
    ends = np.array([one.interval for one in found])
    made = go.Figure()
    made.add_bar(
        y=names,
        x=100 * means,
        orientation="h",
        error_x={"array": 100 * (ends[:, 1] - means), "arrayminus": 100 * (means - ends[:, 0]), "type": "data"},
        name="mean, 95 % over robots",
    )
    for row, robot in enumerate(result.settings.robot_seeds):
        made.add_scatter(y=names, x=[100 * one.each[row] for one in found], mode="markers", name=f"robot {robot}")
    made.update_layout(xaxis_title="success, %", xaxis_range=[0, 100], yaxis_autorange="reversed", height=420)
    return made


def format_success(found: RobotMean) -> tuple[str, ...]:
    """Return mean, interval, rate on each robot, worst robot, and spread of the training runs."""
    low, high = found.interval
    each = ", ".join(f"{100 * value:.0f}" for value in found.each)
    spread = "" if np.isnan(found.between_seeds) else f"{100 * found.between_seeds:.1f}"
    return f"{found.mean:.1%}", _range(low, high), each, f"{found.each.min():.0%}", spread


def _range(low: float, high: float) -> str:
    return "" if np.isnan(low) else f"{max(low, 0.0):.1%} to {min(high, 1.0):.1%}"


def _points(low: float, high: float) -> str:
    return "" if np.isnan(low) else f"{100 * low:+.1f} to {100 * high:+.1f}"
