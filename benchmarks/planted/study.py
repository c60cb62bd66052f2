"""Fit planted logs with the product's defaults, and store one line per fit, so that the study can be resumed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.planted.logs import EFFECTS, KINDS, TWINS, make_log
from twinloop.core.pool import LocalProcesses
from twinloop.identify import FitConfig, HoldoutSpec, identify
from twinloop.simulate import open_backend

HELD_OUT = "last:2"


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
    """Return ``count`` fits without and ``missing`` fits with an effect that the twin lacks, spread over all robots."""
    robots = list(TWINS)
    rows = [
        Case(robot=robots[i % len(robots)], kind=KINDS[(i // len(robots)) % len(KINDS)], seed=seed + i)
        for i in range(count)
    ]
    rows += [
        Case(
            robot=robots[i % len(robots)],
            kind=KINDS[(i // len(robots)) % len(KINDS)],
            effect=EFFECTS[(i // (len(robots) * len(KINDS)) + i) % len(EFFECTS)],
            seed=seed + i,
        )
        for i in range(missing)
    ]
    return rows


def run_case(case: Case) -> dict[str, Any]:
    """Record one log, fit it with the defaults, and return planted and fitted values of every parameter."""
    log = make_log(case.robot, case.kind, case.seed, case.effect)
    began, cpu = time.perf_counter(), time.process_time()
    result = identify(
        log.twin, log.episodes, backend=open_backend("threads", nthread=1), holdout=HoldoutSpec.parse(HELD_OUT),
        config=FitConfig(),
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
            "prior_sd": float(spread[e.name]),
            "log": log.twin.params[e.name].transform == "log",
            "side": e.side,
            "reason": e.reason,
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
