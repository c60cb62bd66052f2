"""Fit planted logs with the product's defaults, store one line per fit, and print how often intervals hold the truth.

A law over 300 fits of a twin with the right physics and 100 fits with an effect that the twin lacks. The robots, their
motions and their true values are in `draws`, `motions`, `chain` and `quadrotor`; nothing of them is twinloop's own
simulation. Seeds from 1000 to 5014 were used while the method was written; the published table has other seeds.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.planted.logs import KINDS, QUADROTOR, ROBOTS, effects_of, make_log
from benchmarks.real_data.crazyflie import DRAG, PRIORS, STRETCH, TURN_AND_LIFT
from twinloop.core.pool import LocalProcesses
from twinloop.identify import FitConfig, HoldoutSpec, identify
from twinloop.simulate import open_backend
from twinloop.twin.quantities import Prior

HELD_OUT = "last:2"
_MASS = "object/crazyflie/log_cholesky/alpha"  # half the logarithm of a factor on the mass, known to 5 %
_FLIGHT_FIT = FitConfig(
    replay=TURN_AND_LIFT,
    free=("rotors/all/thrust/linear", "rotors/all/thrust/quadratic", "rotors/all/lag", DRAG, _MASS, *STRETCH),
    priors={**PRIORS, _MASS: Prior(spread=0.025)},
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One fit of the study: a robot, a kind of motion, a seed, and an effect that its twin lacks (empty for none)."""

    robot: str
    kind: str
    seed: int
    effect: str = ""

    @property
    def key(self) -> str:
        """Text that identifies the fit in the results file."""
        return f"{self.robot}/{self.kind}/{self.effect or 'none'}/{self.seed}"


def cases(count: int, missing: int, seed: int) -> list[Case]:
    """Return ``count`` fits without and ``missing`` fits with an effect that the twin lacks, spread over all robots.

    A fit with an effect has the true values and the motion of the fit without it that has the same seed.
    """
    rows = [
        Case(robot=ROBOTS[i % len(ROBOTS)], kind=KINDS[i // len(ROBOTS) % len(KINDS)], seed=seed + i)
        for i in range(max(count, missing))
    ]
    lacking = [
        replace(row, effect=effects[i // len(ROBOTS) % len(effects)])
        for i, row in enumerate(rows[:missing])
        for effects in [effects_of(row.robot)]
    ]
    return rows[:count] + lacking


def run_case(case: Case) -> dict[str, Any]:
    """Record one log, fit it with the defaults, and return planted and fitted values of every parameter.

    The twin of the quadrotor has no robot joints, so that its free parameters are named, with the priors of the fit to
    the real Crazyflie.
    """
    log = make_log(case.robot, case.kind, case.seed, case.effect)
    began, cpu = time.perf_counter(), time.process_time()
    result = identify(
        log.twin, log.episodes, backend=open_backend("threads", nthread=1), holdout=HoldoutSpec.parse(HELD_OUT),
        config=_FLIGHT_FIT if case.robot == QUADROTOR else FitConfig(),
    )  # fmt: skip
    spread = dict(zip(result.distribution.names, result.distribution.prior_sd, strict=True))
    rows = [
        {
            "name": e.name,
            "planted": log.planted[e.name],
            "nominal": e.nominal,
            "value": e.value,
            "low": e.low,
            "high": e.high,
            "prior_sd": float(spread.get(e.name, math.nan)),
            "log": log.twin.params[e.name].transform == "log",
            "conditional": e.conditional,
        }
        for e in result.estimates
        if e.name in log.planted
    ]
    return {
        "key": case.key, "robot": case.robot, "kind": case.kind, "effect": case.effect, "seed": case.seed,
        "seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu, "worlds": result.worlds_replayed,
        "rho": [float(r) for r in result.residuals.rho], "noise": [float(r) for r in result.residuals.noise],
        "notes": list(result.notes), "rows": rows,
    }  # fmt: skip


def run_study(
    chosen: Sequence[Case], path: Path, *, workers: int = 2, progress: Callable[[dict[str, Any]], None] | None = None
) -> list[dict[str, Any]]:
    """Run the fits that the results file lacks, append them to it, and return the results of all chosen fits."""
    done = read_results(path)
    left = [case for case in chosen if case.key not in done]
    path.parent.mkdir(parents=True, exist_ok=True)
    with LocalProcesses(workers) as pool, path.open("a") as file:
        for _, result in pool.map(run_case, left):
            done[result["key"]] = result
            file.write(json.dumps(result) + "\n")
            file.flush()
            if progress is not None:
                progress(result)
    return [done[case.key] for case in chosen]


def read_results(path: Path) -> dict[str, dict[str, Any]]:
    """Return the stored results by key; an incomplete last line is ignored."""
    results: dict[str, dict[str, Any]] = {}
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        results[row["key"]] = row
    return results


@dataclass(frozen=True, kw_only=True)
class Summary:
    """How a group of planted parameters was identified.

    Attributes:
        fits: Number of fits.
        parameters: Number of planted parameters.
        determined: Number of those with an interval.
        held: Number of intervals that hold the planted value.
        marked: Number of intervals that are marked as conditional on the twin's physics.
        unmarked_held: Number of unmarked intervals that hold the planted value.
        width: Median width of the intervals, as a part of the width of the central 95 % of the prior.
        nearer: Number of all parameters whose estimate is nearer to the planted value than the nominal value is.
    """

    fits: int
    parameters: int
    determined: int
    held: int
    marked: int
    unmarked_held: int
    width: float
    nearer: int


def summarize(
    results: Sequence[Mapping[str, Any]], group: Callable[[Mapping[str, Any], str], str]
) -> dict[str, Summary]:
    """Summarize fits by groups of parameters.

    Args:
        results: Results of `run_case`.
        group: Function from a result and a parameter's name to the name of its group.
    """
    groups: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for result in results:
        for row in result["rows"]:
            groups.setdefault(group(result, row["name"]), []).append((result["key"], row))
    return {name: _summarize_group(groups[name]) for name in sorted(groups)}


def _summarize_group(members: Sequence[tuple[str, Mapping[str, Any]]]) -> Summary:
    rows = [row for _, row in members]
    known = [row for row in rows if row["low"] is not None]
    held = [row["low"] <= row["planted"] <= row["high"] for row in known]
    moved = [row for row in rows if row["value"] != row["nominal"]]
    return Summary(
        fits=len({key for key, _ in members}),
        parameters=len(rows),
        determined=len(known),
        held=sum(held),
        marked=sum(row["conditional"] for row in known),
        unmarked_held=sum(hold for hold, row in zip(held, known, strict=True) if not row["conditional"]),
        width=float(np.median([_relative_width(row) for row in known])) if known else math.nan,
        nearer=sum(abs(row["value"] - row["planted"]) < abs(row["nominal"] - row["planted"]) for row in moved),
    )


def _relative_width(row: Mapping[str, Any]) -> float:
    low, high = row["low"], row["high"]
    if row["log"]:
        low, high = math.log(max(low, 1e-12)), math.log(high)
    return (high - low) / (2 * 1.96 * row["prior_sd"])


def class_of(name: str) -> str:
    """Return the class of a parameter: its quantity, or ``inertia`` for the stretches of an inertia."""
    return "inertia" if "log_cholesky/d" in name else name.rpartition("/")[2]
