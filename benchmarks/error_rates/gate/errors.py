"""Measure how often the release gate passes a candidate that it should reject, on simulated releases.

A simulated release contains the same data as a real one: an evaluation of both policies in simulation and, in some
cases, on a robot. `release.gate` decides it by all rules except the context rule, because a simulated release has no
deployment site. With ``looks: any`` the final decision is a pass if the decision at any earlier look was one, because
the tests use the largest wealth of all looks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from benchmarks.error_rates.gate.worlds import Truth, Won, rate
from benchmarks.studies import Study, StudyTable
from twinloop.core.evaluation import Evaluation
from twinloop.core.trials import Domain
from twinloop.release.gate import GateContext, gate
from twinloop.release.gate_config import Looks, parse_gate

Yes = Literal["wrong", "wrong and harmful", "harmful, within the margin", "harmful, not seen", "right"]
_PAGE = "evidence/release.md"
_PAIRS, _MARGIN = 200, 0.1
_LOOKS: tuple[Looks, ...] = get_args(Looks)
_RULES = {
    "candidate": "candidate",
    "champion": "champion",
    "success": {"within": _MARGIN, "domain": "sim"},
    "floor": {"success": 0.5},
    "regressions": {},
    "latency": {"budget_s": 0.03},
    "context": {"waived": "a planted release has no place where it will run"},
}
_CONTEXT = GateContext(stored_scenarios=())


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A simulated release with known success rates.

    Attributes:
        simulated: Success rates in simulation.
        robot: Success rates on the robot; None if the release has no robot trials.
        pairs: Number of pairs of robot trials.
        rules: Gate rules that replace the default ones.
        yes: Classification of a pass of this release.
    """

    simulated: Truth
    robot: Truth | None = None
    pairs: int = 0
    rules: Mapping[str, Any] = field(default_factory=dict)
    yes: Yes

    def evidence(self, random: np.random.Generator) -> tuple[list[Evaluation], list[Evaluation]]:
        """Simulate the evaluations of the candidate and of the champion."""
        sides: tuple[list[Evaluation], list[Evaluation]] = ([], [])
        domains: list[tuple[Domain, Truth, int]] = [("sim", self.simulated, _PAIRS)]
        if self.robot is not None:
            domains.append(("real", self.robot, self.pairs))
        for domain, truth, pairs in domains:
            for name, won, side in zip(("candidate", "champion"), truth.draw(random, 1, pairs), sides, strict=True):
                side.append(_evaluation(name, domain, won[0], len(truth.candidate)))
        return sides


def _evaluation(name: str, domain: Domain, won: Won, slices: int) -> Evaluation:
    n = len(won)
    columns = {
        "slice": [f"slice {number % slices}" for number in range(n)],
        "trial": [str(number) for number in range(n)],
        "success": won,
        "valid": np.ones(n, dtype=bool),
        "violations": np.zeros(n, dtype=np.int64),
        "latency_s": np.full(n, 0.01),
    }
    return Evaluation(policy=name, policy_hash=name, suite=domain, domain=domain, trials=pa.table(columns))


def _both(candidate: float, champion: float, together: float = 0.5) -> Truth:
    return Truth(name="", candidate=(candidate,), champion=(champion,), together=together)


_BETTER = _both(0.9, 0.75)  # in simulation
_CASES = {
    "equal, with the rule `better: 0`": Planted(
        simulated=_both(0.8, 0.8), rules={"success": {"better": 0.0, "domain": "sim"}}, yes="wrong"
    ),
    "the same, four slices from 0.65 to 0.95": Planted(
        simulated=Truth(name="", candidate=(0.65, 0.75, 0.85, 0.95), champion=(0.65, 0.75, 0.85, 0.95)),
        rules={"success": {"better": 0.0, "domain": "sim"}},
        yes="wrong",
    ),
    "worse by 10 points in simulation": Planted(simulated=_both(0.75, 0.85), yes="wrong and harmful"),
    "as good, but 50 % in one of four slices": Planted(
        simulated=Truth(name="", candidate=(0.9, 0.9, 0.9, 0.5), champion=(0.9, 0.9, 0.9, 0.5)), yes="wrong"
    ),
    "better in simulation, worse by 10 points on the robot": Planted(
        simulated=_BETTER, robot=_both(0.75, 0.85), pairs=60, yes="wrong and harmful"
    ),
    "the same, nothing in common": Planted(
        simulated=_BETTER, robot=_both(0.75, 0.85, 0.0), pairs=60, yes="wrong and harmful"
    ),
    "the same, 0.85 against 0.95, nearly all in common": Planted(
        simulated=_BETTER, robot=_both(0.85, 0.95, 0.9), pairs=125, yes="wrong and harmful"
    ),
    "better in simulation, worse by 20 points on the robot": Planted(
        simulated=_BETTER, robot=_both(0.65, 0.85), pairs=30, yes="wrong and harmful"
    ),
    "better in simulation, worse by 5 points on the robot": Planted(
        simulated=_BETTER, robot=_both(0.8, 0.85), pairs=125, yes="harmful, within the margin"
    ),
    "better in simulation, worse by 10 points on a robot without trials": Planted(
        simulated=_BETTER, yes="harmful, not seen"
    ),
    "better in simulation, as good on the robot": Planted(
        simulated=_BETTER, robot=_both(0.85, 0.85), pairs=60, yes="right"
    ),
    "the same, 125 pairs": Planted(simulated=_BETTER, robot=_both(0.85, 0.85), pairs=125, yes="right"),
    "better in simulation, better by 10 points on the robot": Planted(
        simulated=_BETTER, robot=_both(0.9, 0.8), pairs=60, yes="right"
    ),
}


def passes(planted: Planted, looks: Looks, runs: int, seed: Sequence[int]) -> int:
    """Count the releases, of ``runs``, that pass the gate."""
    random, config = np.random.default_rng(seed), parse_gate({**_RULES, **planted.rules, "looks": looks})
    return sum(gate(config, *planted.evidence(random), context=_CONTEXT).passed for _ in range(runs))


def _releases(repetitions: int, seed: int) -> StudyTable:
    rows, metrics = [], []
    for number, (name, planted) in enumerate(_CASES.items()):
        counts = {looks: passes(planted, looks, repetitions, [seed, 1, number]) for looks in _LOOKS}
        rates = [rate(count, repetitions) for count in counts.values()]
        rows.append((name, str(planted.pairs or "–"), planted.yes, *rates))
        metrics.append({"truth": name, "yes": planted.yes, "repetitions": repetitions, **counts})
    return StudyTable(
        title=f"Planted releases: share of passes among {repetitions} each, {_PAIRS} pairs in simulation, α = 5 %, "
        f"margins of {100 * _MARGIN:.0f} points",
        head=("truth", "pairs on the robot", "a pass is", "`looks: any`", "`looks: once`"),
        rows=tuple(rows),
        note="Brackets have the exact 95 % interval. Wrong: the truth breaks a tested rule. Harmful: the candidate "
        "is truly worse than the champion on the robot, or in simulation if no robot is involved.",
        metrics=tuple(metrics),
    )


_ROBOT_PAIRS = (0, 30, 60, 125)


def _draw_release(random: np.random.Generator, pairs: int) -> Planted:
    """Draw a release: success rates of champion and candidate, in simulation and on the robot."""

    def truth(low: float, high: float) -> Truth:
        champion = random.uniform(0.6, 0.95)
        return _both(float(np.clip(champion + random.uniform(low, high), 0.0, 1.0)), champion)

    simulated, robot = truth(-0.15, 0.25), truth(-0.3, 0.2)
    harm = robot.champion[0] - robot.candidate[0]
    breaks = simulated.champion[0] - simulated.candidate[0] >= _MARGIN or simulated.candidate[0] < 0.5
    breaks |= pairs > 0 and (harm >= _MARGIN or robot.candidate[0] < 0.5)
    kind = ("wrong and harmful" if harm > 0 else "wrong") if breaks else "right"
    if kind == "right" and harm > 0:
        kind = "harmful, within the margin" if pairs and harm < _MARGIN else "harmful, not seen"
    return Planted(simulated=simulated, robot=robot if pairs else None, pairs=pairs, yes=kind)


def _mixed(repetitions: int, seed: int) -> StudyTable:
    rows, metrics = [], []
    decisions = {looks: _decide_releases(repetitions, seed, looks) for looks in _LOOKS}
    for looks, answers in decisions.items():
        for pairs in (None, *_ROBOT_PAIRS):
            kinds = [kind or "" for tried, kind in answers if pairs in (None, tried)]
            counts = {
                "releases": len(kinds),
                "wrong": sum(kind.startswith("wrong") for kind in kinds),
                **{kind: kinds.count(kind) for kind in get_args(Yes)[1:]},
            }
            name = "all" if pairs is None else str(pairs or "none")
            rows.append((f"`{looks}`", name, *(rate(n, len(kinds)) for n in list(counts.values())[1:])))
            metrics.append({"looks": looks, "pairs": pairs, **counts})
    return StudyTable(
        title=f"{repetitions} releases with drawn truths, equally many for each number of pairs on the robot: share "
        "of releases that pass, by their truth",
        head=("`looks`", "pairs on the robot", "wrong", "wrong and harmful", *get_args(Yes)[2:]),
        rows=tuple(rows),
        note="Champions succeed in 60 to 95 %. Candidates differ from them by −15 to +25 points in simulation and by "
        "−30 to +20 points on the robot. All are drawn uniformly and independently.",
        metrics=tuple(metrics),
    )


def _decide_releases(repetitions: int, seed: int, looks: Looks) -> list[tuple[int, Yes | None]]:
    """Return for each release its number of robot pairs and the classification of its pass; None if it is rejected."""
    random, config = np.random.default_rng([seed, 2]), parse_gate({**_RULES, "looks": looks})
    decisions: list[tuple[int, Yes | None]] = []
    for number in range(repetitions):
        planted = _draw_release(random, _ROBOT_PAIRS[number % len(_ROBOT_PAIRS)])
        passed = gate(config, *planted.evidence(random), context=_CONTEXT).passed
        decisions.append((planted.pairs, planted.yes if passed else None))
    return decisions


TABLES = (
    Study(name="gate_drawn", page=_PAGE, repetitions=2000, run=_mixed),
    Study(name="gate_releases", page=_PAGE, repetitions=2000, run=_releases),
)
