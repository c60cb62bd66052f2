"""Run loops on several virtual robots, and tabulate what each step found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.loops.loop import RobotLoop
from benchmarks.loops.settings import LOOPS, TRIALS
from benchmarks.studies import StudyTable, printed, write_between
from benchmarks.transfer.means import RobotMean
from twinloop.core.documents import read_json
from twinloop.core.errors import UnknownNameError
from twinloop.core.evaluation import Evaluation
from twinloop.core.files import write_json
from twinloop.stats import clopper_pearson
from twinloop.stats.matched_trials import PairedCounts, paired_difference_interval

POLICIES = {
    "expert": "scripted expert, which knows the true state",
    "ranges": "taught in the twin's ranges, without a log",
    "identified": "taught around the identified twin",
    "retrained": "and retrained from the failure that the search found",
}
PAGE = "evidence/loops.md"


def run_bench_loop(
    console: Console, *, name: str, robots: int, first: int, output: Path, docs: Path | None
) -> dict[str, Any]:
    """Run a loop on numbered virtual robots, print its tables, and write them to the documentation.

    Args:
        console: output for people.
        name: name of the loop.
        robots: number of robots.
        first: seed of the first one.
        output: folder of all results; an interrupted run continues there.
        docs: folder of the documentation; None to write nothing there.

    Raises:
        UnknownNameError: If there is no such loop.
    """
    if name not in LOOPS:
        raise UnknownNameError("loop", name, LOOPS)
    loops = [
        RobotLoop(settings=LOOPS[name], seed=seed, folder=output / name, console=console)
        for seed in range(first, first + robots)
    ]
    for loop in loops:
        loop.run()
    tables = [identified_table(loops), policies_table(loops), slices_table(loops), failures_table(loops)]
    for table in tables:
        console.print(printed(table))
        console.print(table.note, soft_wrap=True)
    if docs is not None:
        write_between(docs / PAGE, f"benchmarks loop {name}", "\n\n".join(table.markdown() for table in tables))
    metrics = {"loop": name, "robots": [loop.seed for loop in loops], "tables": [table.to_json() for table in tables]}
    write_json(output / name / "result.json", metrics)
    return metrics


def identified_table(loops: Sequence[RobotLoop]) -> StudyTable:
    """Tabulate the true and the identified parameters of the scene, and the gap before and after, by robot."""
    rows, followed = [], loops[0].settings.followed
    for loop in loops:
        estimates = {one["name"]: one for one in loop.result("identified")["estimates"]}
        arm = [one for one in read_json(loop.arm / "result.json")["estimates"] if one["low"] is not None]
        held = sum(one["low"] <= loop.truth(one["name"]) <= one["high"] for one in arm)
        gap = loop.result("gap")["nrmse"]
        before, after = (100 * gap[key]["estimate"] for key in ("nominal", "identified"))
        scene = [_format_estimate(loop.truth(key), estimates[key]) for key in followed]
        rows.append((str(loop.seed), *scene, f"{held} of {len(arm)}", f"{before:.2f} → {after:.2f}"))
    head = ("robot", *(f"{key}: true; identified" for key in followed), "arm: intervals that hold the truth", "gap, %")
    note = (
        "Nominal 95 % intervals; *not determined* where a log says less than the prior. The arm is identified from a "
        "log without contact, and its errors are part of the scene's intervals. Gap: root mean square error over all "
        "compared channels on held-out episodes of the task, as a share of each channel's spread, with nominal and "
        "with identified parameters."
    )
    return StudyTable(title="From logs to a twin", head=head, rows=tuple(rows), note=note)


def _format_estimate(truth: float, one: dict[str, Any]) -> str:
    if one["low"] is None:
        return f"{truth:.3g}; not determined"
    mark = "" if one["low"] <= truth <= one["high"] else " (misses)"
    return f"{truth:.3g}; {one['value']:.3g} [{one['low']:.3g}, {one['high']:.3g}]{mark}"


def policies_table(loops: Sequence[RobotLoop]) -> StudyTable:
    """Tabulate the success of the policies on the robots, and differences between them."""
    won = {name: [loop.success(name) for loop in loops] for name in POLICIES}
    rows = []
    for name, label in POLICIES.items():
        tried = [outcomes for outcomes in won[name] if len(outcomes)]
        if tried:
            rows.append((label, *_format_mean(tried), _format_each(won[name])))
    for later, earlier in (("identified", "ranges"), ("retrained", "identified")):
        pairs = [(a, b) for a, b in zip(won[later], won[earlier], strict=True) if len(a)]
        if pairs:
            rows.append((f"difference: {later} − {earlier}", *_format_difference(pairs)))
    head = ("policy", "success on the robots", "95 % over robots", "per robot, %")
    note = (
        f"{TRIALS} trials of each policy on each robot, from the same places. Intervals: Student's over robots, at "
        "least as wide as that of all trials (exact; Tango's for differences). A robot whose search found no failure "
        "has no retrained policy."
    )
    return StudyTable(title="Policies on the robots", head=head, rows=tuple(rows), note=note)


def _format_mean(tried: Sequence[NDArray[np.bool_]]) -> tuple[str, str]:
    each = np.array([outcomes.mean() for outcomes in tried])
    mean = RobotMean(each=each, between_seeds=float("nan"), trials=sum(map(len, tried)))
    low, high = mean.interval
    interval = "—" if np.isnan(low) else f"[{100 * max(low, 0.0):.1f}, {100 * min(high, 1.0):.1f}]"
    return f"{100 * mean.mean:.1f} %", interval


def _format_difference(pairs: Sequence[tuple[NDArray[np.bool_], NDArray[np.bool_]]]) -> tuple[str, str, str]:
    """Return mean, interval and values by robot of the difference of two policies in the same trials."""
    changes = np.array([later.mean() - earlier.mean() for later, earlier in pairs])
    later, earlier = (np.concatenate(each) for each in zip(*pairs, strict=True))
    exact = paired_difference_interval(PairedCounts.of_outcomes(later, earlier))
    student = RobotMean(each=changes, between_seeds=float("nan")).interval
    low, high = np.fmin(student[0], float(exact.low)), np.fmax(student[1], float(exact.high))
    each = ", ".join(f"{100 * change:+.0f}" for change in changes)
    return f"{100 * changes.mean():+.1f} points", f"[{100 * low:+.1f}, {100 * high:+.1f}]", each


def _format_each(outcomes: Sequence[NDArray[np.bool_]]) -> str:
    return ", ".join(f"{100 * each.mean():.0f}" if len(each) else "–" for each in outcomes)


def slices_table(loops: Sequence[RobotLoop]) -> StudyTable:
    """Tabulate success in slices of the twin's default ranges, before and after the retraining."""
    kinds = [kind for kind in ("identified", "retrained") if any(loop.result(f"slices-{kind}") for loop in loops)]
    found = {kind: [_read_slices(loop, kind) for loop in loops if loop.result(f"slices-{kind}")] for kind in kinds}
    rows = [
        (name, *(_format_rate(np.concatenate([one[name] for one in found[kind]])) for kind in kinds))
        for name in found["identified"][0]
    ]
    ends = [f"{name}: {_format_values(values)}" for name, values in loops[0].settings.slices.items()]
    note = (
        "Success in %, exact 95 % intervals over the trials of all robots' policies. All worlds are drawn from the "
        f"twin's default ranges, which are wider than what is known of a robot. Ends of the ranges: {'; '.join(ends)}."
    )
    return StudyTable(title="Slices in simulation", head=("slice", *kinds), rows=tuple(rows), note=note)


def _format_rate(outcomes: NDArray[np.bool_]) -> str:
    interval = clopper_pearson(int(outcomes.sum()), len(outcomes))
    return f"{100 * outcomes.mean():.1f} [{100 * float(interval.low):.1f}, {100 * float(interval.high):.1f}]"


def _format_values(values: Mapping[str, str]) -> str:
    return ", ".join(f"`{name}` {end}" for name, end in values.items())


def _read_slices(loop: RobotLoop, kind: str) -> dict[str, NDArray[np.bool_]]:
    trials = Evaluation.read(loop.path / f"slices-{kind}").trials
    names, won = np.array(trials["slice"].to_pylist()), np.asarray(trials["success"]) & np.asarray(trials["valid"])
    return {name: won[names == name] for name in dict.fromkeys(names.tolist())}


def failures_table(loops: Sequence[RobotLoop]) -> StudyTable:
    """Tabulate the failure rate and the failure that the search found, and the retraining from it, by robot."""
    rows = []
    for loop in loops:
        search, again = loop.result("search"), loop.result("retrained")
        rate = search["rate"]
        text = f"{100 * rate['rate']:.2g} [{100 * rate['low']:.2g}, {100 * rate['high']:.2g}]"
        if not again:
            rows.append((str(loop.seed), text, "none found", "–", "–", "–"))
            continue
        known = {one["name"]: one for one in again["changes"]}
        changes = [_format_change(known[name]) for name in (Path(search["kept"][0]).name, "taught")]
        far = search["failures"][0]["deviations"]
        said = ", ".join(f"{name} {value:+.1f}" for name, value in list(far.items())[:3]) or "nothing beyond 1"
        rows.append((str(loop.seed), text, said, *changes, "yes" if again["gate"]["passed"] else "no"))
    head = (
        "robot", "failure rate around the identified twin, %", "most probable failure, in standard deviations",
        "this failure: before → after, %", "other worlds: before → after, %", "gate",
    )  # fmt: skip
    note = (
        "Failure rate from `scenario search`, 95 %. The retraining is `scenario loop`, its gate is that of the command."
    )
    return StudyTable(
        title="A failure found by search, and the retraining from it", head=head, rows=tuple(rows), note=note
    )


def _format_change(one: dict[str, Any]) -> str:
    return f"{100 * one['before']['estimate']:.0f} → {100 * one['after']['estimate']:.0f}"
