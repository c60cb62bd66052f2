"""Run `twinloop gap compare`, `gap power` and `gap estimate`.

They compare two policies, compute the number of trials that a comparison needs, and estimate real scores from few real
and many simulated trials.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from twinloop.core.errors import InputError
from twinloop.core.headline import HeadlineMetric
from twinloop.dataset.trials import read_trials
from twinloop.gap.policies.comparison import PolicyComparison, TaskComparison, compare_policies
from twinloop.gap.policies.comparison_sequential import SequentialComparison
from twinloop.gap.policies.estimate import RealEstimate, estimate_real
from twinloop.stats import (
    Interval,
    TrialsNeeded,
    power_of_equivalence,
    power_of_pairs,
    power_of_rates,
    sequential_power,
    trials_for_equivalence,
    trials_for_pairs,
    trials_for_rates,
)
from twinloop.workflows.gap.comparison_page import comparison_section, estimate_section, power_section
from twinloop.workflows.gap.requests import GapCompareRequest, GapEstimateRequest, GapPowerRequest
from twinloop.workflows.run.results import MeasuredRun, Outcome


def run_gap_estimate(request: GapEstimateRequest, console: Console) -> Outcome:
    """Estimate the real score of every policy from real and simulated trials; print and store the result."""
    run = MeasuredRun.begin("gap", "estimate", request.output, request.fail_if, console)
    found = estimate_real(read_trials(request.trials), measure=request.measure, level=request.level, seed=request.seed)
    _print_estimate(console, found)
    return run.end(
        {**found.to_json(), "trials": str(request.trials), "data": str(request.trials)},
        found.headline(),
        title="Real scores with simulation's help",
        subtitle=str(request.trials),
        fill=lambda page: estimate_section(page, found),
    )


def _print_estimate(console: Console, found: RealEstimate) -> None:
    table = Table("policy", "pairs", "sim only", "real alone", "with simulation", "correlation", "trials saved")
    for row in found.policies:
        table.add_row(
            row.policy, str(row.pairs), str(row.more), _format_interval(row.alone), _format_interval(row.combined),
            "–" if math.isnan(row.correlation) else f"{row.correlation:.2f}", _format_interval(row.saved, digits=0),
        )  # fmt: skip
    console.print(table)
    console.print(
        f"Real {found.measure} and {100 * found.level:g} % intervals that hold for any number of trials. Trials saved: "
        "number of real trials that the simulated ones replace in large samples.",
        soft_wrap=True,
    )
    for row in found.policies:
        if row.narrower <= 0:
            console.print(
                f"{row.policy}: with so few pairs simulation does not narrow the interval; rely on the real trials "
                "alone.",
                soft_wrap=True,
            )
        for note in row.notes:
            console.print(f"{row.policy}: {note}", soft_wrap=True)
    for policy, why in found.left_out.items():
        console.print(f"Left out: {policy} {why}.", soft_wrap=True)


def _format_interval(interval: Interval, *, digits: int = 3) -> str:
    low, high = float(interval.low), float(interval.high)
    ends = "" if low != low else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{float(interval.estimate):.{digits}f}{ends}"


_POINTS = 16  # numbers of trials at which the power is plotted
_SURELY = 0.9  # if fewer sequences are decided, their mean length is not reported


def run_gap_compare(request: GapCompareRequest, console: Console) -> Outcome:
    """Compare two policies on stored trials; print and store the result."""
    run = MeasuredRun.begin("gap", "compare", request.output, request.fail_if, console)
    found = compare_policies(
        read_trials(request.trials),
        request.a,
        request.b,
        domain=request.domain,
        measure=request.measure,
        margin=request.within,
        paired=request.paired or None,
        sequential=request.sequential,
        level=request.level,
        seed=request.seed,
    )
    words = {task.arms.task: describe_comparison(found, task) for task in found.tasks}
    for task in found.tasks:
        console.print((f"{task.arms.task}: " if task.arms.task else "") + words[task.arms.task], soft_wrap=True)
        for note in task.notes:
            console.print(note, soft_wrap=True)
    return run.end(
        {**found.to_json(), "trials": str(request.trials), "data": str(request.trials), "words": words},
        found.headline(),
        title=f"{request.a} against {request.b}",
        subtitle=f"{request.domain} trials of {request.trials}",
        fill=lambda page: comparison_section(page, found, words),
    )


def describe_comparison(found: PolicyComparison, task: TaskComparison) -> str:
    """Return the result on one task as a sentence: scores of both policies, and which is better (or undecided)."""
    arms = task.arms
    scores = ", ".join(
        f"{name} " + (f"{int(x.sum())} of {len(x)}" if arms.measure == "success" else f"{x.mean():.3f} in {len(x)}")
        for name, x in ((found.a, arms.a), (found.b, arms.b))
    )
    run = task.sequential
    answer = _describe_fixed(found, task) if run is None else _describe_sequential(found, run)
    return f"{scores}{' on the same starts' if arms.paired else ''}: {answer}"


def _describe_fixed(found: PolicyComparison, task: TaskComparison) -> str:
    i = task.difference
    ends = f"difference {float(i.estimate):+.3f} [{float(i.low):+.3f}, {float(i.high):+.3f}]"
    p = f"p = {task.adjusted:.2g} ({task.test}{'; Holm over tasks' if len(found.tasks) > 1 else ''})"
    if task.answer == "differs":
        return f"{_better_policy(found, float(i.estimate))} is better, {p}; {ends}."
    if task.answer == "equivalent":
        return f"equivalent within {found.margin:g}, p = {task.p_equivalent:.2g}; {ends}."
    margin = found.margin
    nothing = "no difference" if margin is None else f"neither a difference nor equivalence within {margin:g}"
    more = (
        f" About {task.further} more trials of each would decide with a chance of 80 % if the observed "
        "rates are the true ones."
        if task.further
        else ""
    )
    if found.margin is None:
        more += " This does not show that they are equal; to test that, give a margin with --within."
    equal = "" if task.p_equivalent is None else f", equivalence p = {task.p_equivalent:.2g}"
    return f"undecided: {nothing} is shown, {p}{equal}; {ends}.{more}"


def _describe_sequential(found: PolicyComparison, run: SequentialComparison) -> str:
    i = run.test.interval
    ends = f"difference {i.estimate:+.3f} [{float(i.low):+.3f}, {float(i.high):+.3f}] at every look"
    p = float(run.test.p_value[-1])
    waiting = f" {run.leftover} trials have no pair yet." if run.leftover else ""
    if run.answer == "differs":
        at = run.test.stopped
        better = _better_policy(found, (float(i.low) + float(i.high)) / 2)
        return f"stop: {better} is better, p ≤ {p:.2g} however often one looked; decided at pair {at}; {ends}.{waiting}"
    if run.answer == "equivalent":
        return f"stop: equivalent within {found.margin:g}, p ≤ {run.p_equivalent:.2g}; {ends}.{waiting}"
    expected = (
        f"{run.further} more pairs expected if the observed rates are the true ones (median)"
        if run.further is not None
        else "more than 1000 further pairs expected if the observed rates are the true ones"
    )
    return f"undecided after {run.pairs} pairs, p = {p:.2g}: {expected}; {ends}.{waiting}"


def _better_policy(found: PolicyComparison, difference: float) -> str:
    return found.a if difference > 0 else found.b


def run_gap_power(request: GapPowerRequest, console: Console) -> Outcome:
    """Compute, print and store the number of trials that a comparison of two success rates needs.

    Raises:
        InputError: If options contradict each other, or too many trials are needed.
    """
    run = MeasuredRun.begin("gap", "power", request.output, (), console)
    p, alpha, margin, ratio, paired = request.p, request.alpha, request.within, request.ratio, request.paired
    if paired and margin is not None:
        raise InputError("Equivalence on shared starts is not offered by --paired; give the rates and --within alone.")
    if paired and ratio != 1:
        raise InputError(
            f"With --paired every start is tried by both, so --ratio {ratio:g} has no effect. Leave it out."
        )
    needed, at = _compute_trials_needed(p, request.power, alpha, margin, ratio, paired, request.test)
    result: dict[str, Any] = {"p": list(p), "within": margin, "needed": needed.to_json()}
    numbers = np.unique(np.linspace(2, 1.4 * needed.trials_a, _POINTS).astype(int))
    result["curve"] = sorted({int(n): at(int(n)) for n in (*numbers, needed.trials_a)}.items())
    if not paired and margin is None:
        timed = sequential_power(*p, most=request.max_pairs, alpha=alpha, seed=request.seed)
        result["sequential"] = {
            "pairs, mean": timed.mean,
            "pairs, median": timed.quantile(0.5),
            "pairs, nine of ten end by": timed.quantile(0.9),
            "pairs, at most": request.max_pairs,
            "decided, share": timed.decided,
        }
    result["text"] = _describe_power(p, needed, margin, paired, result.get("sequential"))
    console.print(result["text"], soft_wrap=True)
    headline = [
        HeadlineMetric(
            name="trials_needed",
            estimate=float(needed.trials_a),
            unit="trials",
            method="none: added up exactly",
            meaning=f"trials of a for a power of {request.power:g}",
        )
    ]
    return run.end(
        result,
        headline,
        title="Trials needed",
        subtitle=f"for {'chances' if paired else 'success rates'} of {p[0]:g} and {p[1]:g}",
        fill=lambda page: power_section(page, result),
    )


def _compute_trials_needed(
    p: tuple[float, float], power: float, alpha: float, margin: float | None, ratio: float, paired: bool, test: Any
) -> tuple[TrialsNeeded, Callable[[int], float]]:
    """Return the required trials, and a function that computes the power from the number of trials of policy a.

    Args:
        p: success rates of policies a and b; if ``paired``, the probabilities that only a, and only b, succeeds.
        power: required probability of detecting the difference or equivalence.
        alpha: significance level of the test.
        margin: margin of equivalence; None to test for a difference.
        ratio: number of trials of b for each trial of a.
        paired: whether both policies are tried from the same initial conditions (McNemar's test).
        test: exact test of the difference, ``barnard`` or ``fisher``.
    """
    if paired:
        needed = trials_for_pairs(*p, power=power, alpha=alpha)
        return needed, lambda n: power_of_pairs(*p, n, alpha=alpha)
    if margin is not None:
        needed = trials_for_equivalence(*p, margin=margin, power=power, alpha=alpha, ratio=ratio)
        return needed, lambda n: power_of_equivalence(*p, n, max(1, round(n * ratio)), margin=margin, alpha=alpha)
    needed = trials_for_rates(*p, power=power, alpha=alpha, ratio=ratio, test=test)
    return needed, lambda n: power_of_rates(*p, n, max(1, round(n * ratio)), alpha=alpha, test=test)


def _describe_power(
    p: tuple[float, float],
    needed: TrialsNeeded,
    margin: float | None,
    paired: bool,
    sequential: dict[str, float] | None,
) -> str:
    many = f"{needed.trials_a} and {needed.trials_b} trials"
    if paired:
        what = f"{needed.trials_a} pairs show that chances of {p[0]:g} and {p[1]:g} that only one succeeds differ"
    elif margin is not None:
        what = f"{many} show that rates of {p[0]:g} and {p[1]:g} are within {margin:g}"
    else:
        what = f"{many} show that rates of {p[0]:g} and {p[1]:g} differ"
    words = f"{what}, with a power of {needed.power:.3f} at α = {needed.alpha:g} ({needed.test})."
    if sequential is not None:
        mean, ninth = sequential["pairs, mean"], sequential["pairs, nine of ten end by"]
        most, decided = sequential["pairs, at most"], sequential["decided, share"]
        if decided < _SURELY:
            early = f"decides by pair {most:.0f} in {decided:.0%} of cases"
            return f"{words} Looked at after every pair, the e-test {early}."
        words += (
            f" Looked at after every pair, the e-test ends after {mean:.0f} pairs on average, and nine times of ten "
            f"by {ninth:.0f}."
        )
    return words
