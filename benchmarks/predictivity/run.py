"""Measure how well twins of a real arm predict the results of its controllers: ``python -m benchmarks policies``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.predictivity.clone_check import clone_errors
from benchmarks.predictivity.compensation import Compensation
from benchmarks.predictivity.measures import (
    ControllerTrials,
    motion_error,
    motion_spread,
    published_trials,
    real_trials,
    scores,
    simulate,
    simulated_trials,
)
from benchmarks.predictivity.policies import MCPILCO, SAC_LQR, TVLQR, McPilco, SacLqr, TvLqr, of_controller
from benchmarks.predictivity.twins import Guess, guesses, identify_arm
from benchmarks.predictivity.wiring import measured_wiring, torque_reading
from benchmarks.studies import around, markdown_table, write_between
from twinloop.core.errors import InputError
from twinloop.core.records import Episode
from twinloop.dataset.logs.sets.registry import load
from twinloop.simulate import open_backend
from twinloop.stats import Interval
from twinloop.stats.predictivity import PredictivityMetrics, predictivity
from twinloop.twin import load_twin

PLACE = "benchmarks policies"
WORLDS = 40
_CONTROLLERS = (MCPILCO, SAC_LQR, TVLQR)
_METRICS = ("pearson", "spearman", "kendall", "mmrv", "bias")


@dataclass(frozen=True, kw_only=True)
class Row:
    """Predictions of one twin.

    Attributes:
        guess: The twin.
        tried: Trials by controller.
        successes: Predictivity metrics of the success rates.
        scores: Predictivity metrics of the scores (version 1).
        motions: RMS difference of the angles over the first second, rad, by controller.
    """

    guess: Guess
    tried: dict[str, ControllerTrials]
    successes: PredictivityMetrics
    scores: PredictivityMetrics
    motions: dict[str, Interval]

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain JSON types."""
        return {
            "twin": self.guess.name,
            "meaning": self.guess.meaning,
            "controllers": {name: each.to_json() for name, each in self.tried.items()},
            "predictivity": {"success": self.successes.to_json(), "score": self.scores.to_json()},
            "motion_error": {name: each.to_json() for name, each in self.motions.items()},
        }


def run_bench_policies(
    console: Console, *, worlds: int = WORLDS, seed: int = 0, nthread: int = 1, page: Path | None = None
) -> dict[str, Any]:
    """Identify the arm, re-implement its controllers, score them in every twin, and compare with the robot.

    Args:
        console: Where to print the tables.
        worlds: Number of worlds per twin.
        seed: Run seed of noise, encoder offsets, draws and stochastic policies.
        nthread: Number of C threads; 0 uses every core.
        page: Markdown page with the marker comments of this command.

    Raises:
        InputError: If ``worlds`` is below 1 or the page has no markers; raised before anything runs.
        RealDataUnavailableError: If a data set is neither stored nor downloadable.
    """
    if worlds < 1:
        raise InputError(f"--worlds {worlds}: give at least 1.")
    if page is not None:
        around(page, PLACE)
    began = time.perf_counter()
    runs, rollouts = load("dfki_double_pendulum")[0], load("dfki_double_pendulum_rollouts")[0]
    backend, twin = open_backend("threads", nthread=nthread), load_twin("double_pendulum")
    recorded = {name: of_controller(rollouts, name) for name in (MCPILCO, SAC_LQR)}
    compensation, wiring = Compensation.of_logs(rollouts), measured_wiring(rollouts)
    policies = {
        MCPILCO: McPilco.of(recorded[MCPILCO]),
        SAC_LQR: SacLqr.of(recorded[SAC_LQR], compensation),
        TVLQR: TvLqr.of(compensation),
    }
    checks = clone_errors(recorded[MCPILCO], recorded[SAC_LQR], compensation)
    found = {torque: identify_arm(runs, backend, torque=torque) for torque in ("measured", "command")}
    console.print(f"Two fits of the arm and three controllers: {time.perf_counter() - began:.0f} s")
    real = {name: real_trials(each) for name, each in recorded.items()} | {TVLQR: published_trials(TVLQR)}
    rows = []
    for guess in guesses(wiring, found["measured"], found["command"], worlds, seed, twin):
        simulated = {name: simulate(backend, twin, guess, policies[name], seed) for name in _CONTROLLERS}
        rows.append(_row(guess, simulated, recorded, real))
        console.print(f"{guess.name}: {_counts(rows[-1].tried)}")
    spread = {name: motion_spread(each, policies[name].hz) for name, each in recorded.items()}
    tables = _tables(real, rows, spread)
    for title, head, lines in tables:
        printed_table = Table(*head, title=title, title_justify="left")
        for line in lines:
            printed_table.add_row(*line)
        console.print(printed_table)
    reading = torque_reading(rollouts)
    notes = _notes(checks, wiring.noise, reading.lag, reading.gain, compensation, found["command"].zero_spread)
    for note in notes:
        console.print(note)
    if page is not None:
        text = "\n\n".join(f"**{title}**\n\n{markdown_table(head, lines)}" for title, head, lines in tables)
        write_between(page, PLACE, text + "\n\n" + "\n".join(f"- {note}" for note in notes))
    return {
        "verb": "bench policies",
        "worlds": worlds,
        "seed": seed,
        "real": {name: each.to_json() for name, each in real.items()},
        "twins": [row.to_json() for row in rows],
        "real_motion_spread": spread,
        "clones": checks,
        "identified": {torque: dict(each.values) for torque, each in found.items()},
        "seconds": time.perf_counter() - began,
    }


def _row(
    guess: Guess, simulated: dict[str, Any], recorded: dict[str, list[Episode]], real: dict[str, ControllerTrials]
) -> Row:
    tried = {name: simulated_trials(each) for name, each in simulated.items()}
    order = list(tried)
    ours, theirs = [tried[name] for name in order], [real[name] for name in order]
    return Row(
        guess=guess,
        tried=tried,
        successes=predictivity(real=scores(theirs, None), sim=scores(ours, None)),
        scores=predictivity(real=scores(theirs, "v1"), sim=scores(ours, "v1")),
        motions={name: motion_error(simulated[name], each) for name, each in recorded.items()},
    )


def _tables(
    real: dict[str, ControllerTrials], rows: Sequence[Row], spread: dict[str, float]
) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    successes = [("the robot", *(_rate(real[name]) for name in _CONTROLLERS))]
    successes += [(row.guess.name, *(_rate(row.tried[name]) for name in _CONTROLLERS)) for row in rows]
    points = [("the robot", *(_score(real[name]) for name in _CONTROLLERS))]
    points += [(row.guess.name, *(_score(row.tried[name]) for name in _CONTROLLERS)) for row in rows]
    metrics = [
        (row.guess.name, what, *(_metric(measured, name) for name in _METRICS))
        for row in rows
        for what, measured in (("success", row.successes), ("score", row.scores))
    ]
    motions = [("other rollouts of the robot", *(f"{spread[name]:.3f}" for name in spread))]
    motions += [(row.guess.name, *(_interval(row.motions[name]) for name in spread)) for row in rows]
    return [
        ("Success rate, 95 % Wilson interval", ("twin", *_CONTROLLERS), successes),
        ("Mean score of version 1, and median time of a successful swing-up", ("twin", *_CONTROLLERS), points),
        ("Predictivity over the three controllers", ("twin", "of", *_METRICS), metrics),
        ("Angles over the first second, RMS difference from the robot's in rad", ("twin", *spread), motions),
    ]


def _notes(
    checks: dict[str, float], noise: float, lag: float, gain: float, compensation: Compensation, zeros: Any
) -> list[str]:
    first, second = compensation.coulomb
    clones = (
        "RMS error of the clones' commands on held-out rollouts: mcpilco "
        f"{checks['mcpilco_shoulder']:.3f} N·m of 5 N·m and {checks['mcpilco_elbow']:.4f} N·m of 0.5 N·m; "
        f"median of sac_lqr's swing-up {checks['sac']:.2f} N·m of 5 N·m, of which the randomness of the policy is "
        f"about {checks['sac_chance']:.2f} N·m; its regulator {checks['regulator']:.1e} N·m."
    )
    wiring_note = (
        f"Wiring: readings one period old, noise {1e3 * noise:.2f} mrad, speeds from differences; compensation of "
        f"friction {first:.4f} and {second:.4f} N·m. Measured torque follows commands with a lag of {1e3 * lag:.1f} "
        f"ms and a gain of {gain:.3f}."
    )
    zero = f"Zeros of the encoders differ between excitation runs by {zeros[0]:.3f} and {zeros[1]:.3f} rad."
    return [clones, wiring_note, zero]


def _counts(tried: dict[str, ControllerTrials]) -> str:
    return ", ".join("{} {}/{}".format(name, *each.counts) for name, each in tried.items())


def _rate(tried: ControllerTrials) -> str:
    wins, trials = tried.counts
    return f"{wins}/{trials} ({float(tried.rate.low):.2f} to {float(tried.rate.high):.2f})"


def _score(tried: ControllerTrials) -> str:
    late = "" if np.isnan(tried.swingup_time) else f", {tried.swingup_time:.2f} s"
    return f"{tried.mean('v1'):.3f}{late}"


def _metric(measured: PredictivityMetrics, name: str) -> str:
    metric = measured[name]
    if np.isnan(metric.estimate):
        return "none: all equal"
    low, high = float(metric.evaluated.low), float(metric.evaluated.high)
    ends = "" if np.isnan(low) else f" ({low:.2f} to {high:.2f})"
    return f"{metric.estimate:.2f}{ends}"


def _interval(interval: Interval) -> str:
    return f"{float(interval.estimate):.3f} ({float(interval.low):.3f} to {float(interval.high):.3f})"
