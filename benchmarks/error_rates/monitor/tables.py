"""Make the tables of the monitor study."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from benchmarks.error_rates.monitor.settings import FAULTS, WITH_IMAGES, MonitorSettings
from benchmarks.error_rates.monitor.trials import Robot
from benchmarks.studies import StudyTable
from twinloop.stats import wilson

_HZ = 30.0  # of the SO-101's twin


def tables(robots: Sequence[Robot], images: Sequence[Robot], settings: MonitorSettings) -> dict[str, StudyTable]:
    """Return all tables by name; tables without rows are omitted."""
    made = {
        "alarms": alarms_table(robots, images),
        "faults": faults_table([*robots, *images]),
        "causes": causes_table([*robots, *images]),
        "unlikeness": outlier_table(robots, settings),
    }
    return {name: table for name, table in made.items() if table.rows}


def alarms_table(robots: Sequence[Robot], images: Sequence[Robot]) -> StudyTable:
    """Count false alarms: alarms in episodes without a planted fault."""
    rows, metrics = [], []
    for name, held, group_name in (
        ("successes", robots, "success"),
        ("successes, with images", images, "success, with images"),
        ("failures", robots, "failure"),
    ):
        matching = [group for robot in held for group in robot.groups if group.name == group_name]
        groups = [one for group in matching for one in group.verdicts]
        if not groups:
            continue
        count = sum(bool(one.alarms) for one in groups)
        signals = Counter(alarm.signal for one in groups for alarm in one.alarms[:1]).most_common(3)
        drifts = sum(bool(group.verdicts and group.verdicts[-1].drifts) for group in matching)
        promised = f"{100 * held[0].rate:g}" if group_name != "failure" else "–"
        rows.append((
            name, str(len(groups)), promised, _share(count, len(groups)),
            "; ".join(f"{signal} {times}" for signal, times in signals) or "–", f"{drifts} of {len(matching)}",
        ))  # fmt: skip
        metrics.append({"group": name, "episodes": len(groups), "alarmed": count, "drifts": drifts})
    head = (
        "held-out episodes without a fault",
        "n",
        "nominal, %",
        "alarm, % [95 %]",
        "first signal",
        "alarms over episodes",
    )
    costs = ", ".join(f"{robot.evaluation_ms:.2f} ms" for robot in [*robots, *images])
    note = (
        f"{len(robots)} virtual robots; thresholds set by {', '.join(str(robot.count) for robot in robots)} successes. "
        f"One evaluation of one robot takes {costs} of CPU time (median), without the policy"
        f"{' (the last with images)' if images else ''}. A calibration takes "
        f"{', '.join(f'{robot.calibration_s:.0f} s' for robot in [*robots, *images])}."
    )
    return StudyTable(title="False alarms", head=head, rows=tuple(rows), note=note, metrics=tuple(metrics))


def faults_table(robots: Sequence[Robot]) -> StudyTable:
    """Measure power and delay of detection for every fault."""
    rows, metrics = [], []
    for fault in (*FAULTS, *WITH_IMAGES):
        groups = [
            group.verdicts for robot in robots for group in robot.groups if group.name == fault.name and group.verdicts
        ]
        verdicts = [one for group in groups for one in group]
        if not verdicts:
            continue
        alarmed = [one for one in verdicts if one.alarms]
        steps = np.array([one.alarms[0].step for one in alarmed])
        delay = "–" if not len(steps) else "{:.0f} [{:.0f}, {:.0f}]".format(*np.quantile(steps, [0.5, 0.1, 0.9]))
        firsts = [next((i for i, one in enumerate(group, start=1) if one.alarms), None) for group in groups]
        course = [next((i for i, one in enumerate(group, start=1) if one.drifts), None) for group in groups]
        signals = Counter(alarm.signal for one in verdicts for alarm in one.alarms[:1]).most_common(2)
        success = sum(bool(one.success) for one in verdicts)
        rows.append((
            fault.name, str(len(verdicts)), _share(success, len(verdicts)), _share(len(alarmed), len(verdicts)), delay,
            _counts(firsts), _counts(course), ", ".join(f"{signal} {times}" for signal, times in signals) or "–",
        ))  # fmt: skip
        metrics.append({
            "fault": fault.name, "episodes": len(verdicts), "alarmed": len(alarmed), "success": success / len(verdicts),
            "steps": steps.tolist(), "first_episode": firsts, "course": course,
        })  # fmt: skip
    head = (
        "planted fault", "n", "success, % [95 %]", "power per episode, % [95 %]", "delay, steps [10, 90 %]",
        "first episode with an alarm", "alarm over episodes at", "first signal",
    )  # fmt: skip
    note = (
        f"Delay: steps of {1000 / _HZ:.0f} ms from the beginning of an episode, which has the fault throughout. The "
        "two columns before the last have, for each robot, the number of the first episode with an alarm, and of the "
        "first one at which a CUSUM over episodes or the test of the success rate alarms."
    )
    return StudyTable(title="Planted faults", head=head, rows=tuple(rows), note=note, metrics=tuple(metrics))


def causes_table(robots: Sequence[Robot]) -> StudyTable:
    """Count the causes that alarms name, for every planted fault."""
    found = {
        fault.name: Counter(
            one.cause for robot in robots for group in robot.groups if group.name == fault.name
            for one in group.verdicts if one.alarms
        )
        for fault in (*FAULTS, *WITH_IMAGES)
    }  # fmt: skip
    causes = [cause for cause, _ in sum(found.values(), Counter[str]()).most_common()]
    rows, metrics, right, total = [], [], 0, 0
    for fault in (*FAULTS, *WITH_IMAGES):
        counts = found[fault.name]
        if not counts:
            continue
        right, total = right + counts[fault.cause], total + counts.total()
        cells = [f"**{counts[cause]}**" if cause == fault.cause else str(counts[cause] or "·") for cause in causes]
        rows.append((fault.name, fault.cause, *cells))
        metrics.append({"fault": fault.name, "correct cause": fault.cause, "named": dict(counts)})
    wrong = total - right - sum(counts["unknown"] for counts in found.values())
    note = (
        f"Of {total} episodes with an alarm, {_share(right, total)} have the correct cause and {_share(wrong, total)} "
        "a wrong one."
    )
    head = ("planted fault", "correct cause", *causes)
    return StudyTable(title="Named causes", head=head, rows=tuple(rows), note=note, metrics=tuple(metrics))


def outlier_table(robots: Sequence[Robot], settings: MonitorSettings) -> StudyTable:
    """Measure the power of each outlier measure alone, at the same rate of false alarms."""
    ways = list(next((group.outlier_alarms for robot in robots for group in robot.groups if group.outlier_alarms), {}))
    names = ["success", "failure", *(fault.name for fault in FAULTS)]
    rows = []
    for way in ways:
        cells = []
        for name in names:
            seen = [flag for robot in robots for group in robot.groups if group.name == name and group.outlier_alarms
                    for flag in group.outlier_alarms[way]]  # fmt: skip
            cells.append(_share(int(sum(seen)), len(seen)))
        rows.append((way, *cells))
    note = (
        f"Episodes with an alarm, % [95 %], for each measure alone, at {100 * settings.rate:g} % of successes; one "
        "threshold without a band over time."
    )
    return StudyTable(
        title="Measures of the distance from normal data", head=("stream, measure", *names), rows=tuple(rows), note=note
    )


def _share(count: int, total: int) -> str:
    if not total:
        return "–"
    share = wilson(count, total)
    return f"{100 * count / total:.0f} [{100 * float(share.low):.0f}, {100 * float(share.high):.0f}]"


def _counts(values: Sequence[int | None]) -> str:
    return ", ".join("never" if value is None else str(value) for value in values)
