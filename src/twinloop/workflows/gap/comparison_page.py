"""Write the report sections of `twinloop gap compare`, `gap power` and `gap estimate`."""

from __future__ import annotations

from typing import Any

import numpy as np

from twinloop.gap.policies.comparison import PolicyComparison, TaskComparison
from twinloop.gap.policies.comparison_sequential import SequentialComparison
from twinloop.gap.policies.estimate import RealEstimate
from twinloop.report import ReportPage
from twinloop.report.gap_policies import (
    plot_confidence_sequence,
    plot_interval_rows,
    plot_power_curve,
    plot_wealth_curves,
)
from twinloop.stats import Interval


def comparison_section(page: ReportPage, found: PolicyComparison, words: dict[str, str]) -> None:
    """Add to a report for each task the answer, its intervals and tests, and the e-values of a sequential test.

    Args:
        page: the report.
        found: the comparison of two policies.
        words: answer for each task as a sentence, by name of the task.
    """
    for task in found.tasks:
        page.section(f"{found.a} against {found.b}" + (f" in {task.arms.task}" if task.arms.task else ""))
        page.text(words[task.arms.task])
        for note in task.notes:
            page.text(note)
        if task.sequential is not None:
            _sequential(page, found, task.sequential)
        _intervals(page, found, task)
    page.section(
        "How to read this",
        "A p-value is the chance of trials at least as unlike as these if both policies were equally good. Small means "
        "different. Large does not mean equal: that two policies are equal within a margin must be shown separately, "
        "by the test of equivalence; otherwise the answer is undecided.\n\n"
        "A p-value at a fixed number of trials holds if that number was planned. If you look after every pair and "
        "may stop early, only the sequential test is valid: an e-value is the wealth of a bet against equality at "
        "fair odds, and reaches 1/α times the stake by chance with a probability of at most α.",
    )


def _sequential(page: ReportPage, found: PolicyComparison, run: SequentialComparison) -> None:
    curves = {"against no difference": run.test.log_e}
    if run.above is not None and run.below is not None:
        curves[f"against a difference ≤ -{found.margin:g}"] = run.above.log_e
        curves[f"against a difference ≥ {found.margin:g}"] = run.below.log_e
    page.plot(
        plot_wealth_curves(curves, alpha=1 - found.level),
        f"E-value after each of {run.pairs} pairs of trials; the test may stop where a curve passes the dashed line.",
    )
    page.plot(
        plot_confidence_sequence(run.test.low, run.test.high, run.running_difference, margin=found.margin),
        f"Difference {found.a} − {found.b}; the band holds the true difference at all pairs at once with "
        f"{100 * found.level:g} % confidence.",
    )


def _intervals(page: ReportPage, found: PolicyComparison, task: TaskComparison) -> None:
    rows: list[tuple[str, Interval]] = [(f"{task.difference.method}", task.difference), (task.valid.method, task.valid)]
    if task.strata is not None:
        rows.append((task.strata.method, task.strata))
    if task.sequential is not None:
        rows.append((task.sequential.test.interval.method, task.sequential.test.interval))
    page.plot(
        plot_interval_rows(
            [name for name, _ in rows],
            *([float(getattr(interval, end)) for _, interval in rows] for end in ("estimate", "low", "high")),
            title=f"{task.arms.measure}: {found.a} − {found.b}",
            margin=found.margin,
            zero=True,
        ),
        f"Intervals of {100 * found.level:g} % of the difference; dotted lines are zero and the margin.",
    )
    sides = ((found.a, task.value_a, len(task.arms.a)), (found.b, task.value_b, len(task.arms.b)))
    page.table(
        ["policy", "trials", "mean", "low", "high", "interval"],
        [[name, n, float(i.estimate), float(i.low), float(i.high), i.method] for name, i, n in sides],
        caption=f"{task.arms.measure} of each policy, {found.domain}",
    )
    tests = [[task.test, task.p_value], *([name, p] for name, p in task.others.items())]
    if task.equivalence is not None:
        tests.append([f"equivalence within {found.margin:g}: {task.equivalence.method}", task.equivalence.p_value])
    page.table(["test", "p-value"], tests, caption="Tests at this number of trials, not adjusted for other tasks")


def power_section(page: ReportPage, result: dict[str, Any]) -> None:
    """Add to a report the required trials, the power curve, and the number of pairs of the sequential test.

    Args:
        page: the report.
        result: result of `run_gap_power`: ``needed`` (required trials), ``text``, ``curve`` and optionally
            ``sequential``.
    """
    needed = result["needed"]
    page.section("Trials needed", result["text"])
    curve = np.array(result["curve"])
    page.plot(
        plot_power_curve(
            curve[:, 0],
            curve[:, 1],
            required_power=needed["required_power"],
            required_trials=needed["trials_a"],
            name=needed["test"],
        ),
        "The probability that the test detects the difference, by summing over all possible outcomes. It is not "
        "monotonic because counts are integers; from the orange line on it stays above the required power.",
    )
    if result.get("sequential"):
        rows = [[name, value] for name, value in result["sequential"].items()]
        page.table(["sequential test, looked at after every pair", "value"], rows)


def estimate_section(page: ReportPage, found: RealEstimate) -> None:
    """Add to a report the real scores estimated with and without simulated trials, and the saved real trials."""
    page.section(
        "Real scores, with and without simulation",
        "The same starts were tried on the robot and in simulation, and many more in simulation only. The agreement "
        "on the common ones determines the weight of the others. Both intervals are valid for any number of trials.",
    )
    names, groups, intervals = [], [], []
    for row in found.policies:
        for word, interval in (("real trials alone", row.alone), ("with simulation", row.combined)):
            names.append(f"{row.policy}, {word}")
            groups.append(word)
            intervals.append(interval)
    page.plot(
        plot_interval_rows(
            names,
            *([float(getattr(interval, end)) for interval in intervals] for end in ("estimate", "low", "high")),
            title=f"real {found.measure}",
            groups=groups,
        ),
        f"Intervals of {100 * found.level:g} %.",
    )
    page.table(
        ["policy", "pairs", "sim only", "correlation", "β", "saved", "low", "high", "for this width"],
        [
            [
                row.policy, row.pairs, row.more, row.correlation, row.beta, float(row.saved.estimate),
                float(row.saved.low), float(row.saved.high), row.narrower,
            ]
            for row in found.policies
        ],
        caption="Saved: number of real trials that the simulated ones replace in large samples. For this width: real "
        "trials more that would make the interval without simulation as narrow as the one with it; negative where "
        "simulation did not help.",
    )  # fmt: skip
    page.table(
        ["policy", "estimate", "low", "high", "asymptotic interval"],
        [
            [row.policy, float(i.estimate), float(i.low), float(i.high), i.method]
            for row in found.policies
            for i in row.asymptotic.values()
        ],
        caption="For many trials; with few their coverage is below nominal, and they may extend below 0 or above 1.",
    )
    for row in found.policies:
        for note in row.notes:
            page.text(f"{row.policy}: {note}")
