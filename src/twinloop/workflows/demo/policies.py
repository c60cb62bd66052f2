"""Run the policy part of the demo: teach a policy for a virtual robot, try it there, and retrain it from a failure."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from rich.console import Console

from twinloop.catalog import Workspace
from twinloop.core.files import write_text
from twinloop.release.promotion import promote
from twinloop.release.registry import PolicyRegistry
from twinloop.report import KeyMetric, ReportPage
from twinloop.report.gap_policies import plot_interval_rows
from twinloop.stats import clopper_pearson
from twinloop.twin import load_twin
from twinloop.workflows.demo.virtual_robot import VirtualRobot
from twinloop.workflows.deploy.gate import run_gate
from twinloop.workflows.deploy.requests import GateRequest, RunRequest
from twinloop.workflows.deploy.run import run_policy
from twinloop.workflows.evaluate.evaluate import record_trials
from twinloop.workflows.run.taught_worlds import TAUGHT
from twinloop.workflows.scenario.failure import run_from_failure
from twinloop.workflows.scenario.requests import FromFailureRequest, RetrainRequest
from twinloop.workflows.scenario.retrain import run_retrain
from twinloop.workflows.train.distill import run_distill
from twinloop.workflows.train.requests import DistillRequest

TWIN, TASK = "so101_tabletop", "pick_and_place"
FIRST_ROBOT = 2000  # the robot of seed 0; the trials of seeds 0 to 3 were looked at, those of later seeds not
LOG = 4  # episodes from which the robot is identified
IDENTIFIED = "robot/identified/result.json"  # the identified distribution
# Sizes of the teaching, smaller than the defaults of `twinloop distill`; docs/guides/training.md has their success.
TEACHING: dict[str, Any] = {"rounds": 5, "steps": 2000, "final_steps": 6000, "lr": 0.006}
RETRAINING: dict[str, Any] = {"episodes": 32, "steps": 4000, "tries": 16}
# Largest decrease of success in simulation that the gate allows, as in the first file of docs/guides/release.md; on
# the robot 10 points, the rule's default. The numbers of trials prove this for an equal policy with a power of 80 % if
# one pair in twelve has different outcomes: (z(0.95) + z(0.8))^2 / 12 / margin^2 = 206 and 52, and more for the exact
# test.
WITHIN, TRIALS, ROBOT_TRIALS = 0.05, 240, 73
_TRIED = 4  # failures to reconstruct at most, until one happens again in the twin
_NAME = "demo-failure"
LABELS = {"taught": "taught around the identified twin", "after": "and retrained from a failure"}

Step = Callable[[str], AbstractContextManager[None]]


@dataclass(kw_only=True)
class PolicyLoopResult:
    """Result of the demo's part with policies. Its fields are filled step by step.

    Attributes:
        output: the workspace with all files.
        robot: the virtual robot.
        success: outcomes ``(ntrial,)`` of the policy ``taught`` and, after retraining, ``after``, from the same initial
            conditions.
        teaching: result of `twinloop distill`.
        scenario: result of reconstructing a failure in the twin; empty if there was no failure.
        trial: number of the trial whose failure was reconstructed; -1 if there is none.
        loop: result of `twinloop scenario loop`; empty if there was none.
        gate: decision of the release gate as a JSON-compatible dictionary; empty if there was none.
        champion: the released policy at the end.
    """

    output: Path
    robot: VirtualRobot
    success: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    teaching: Mapping[str, Any] = field(default_factory=dict)
    scenario: Mapping[str, Any] = field(default_factory=dict)
    trial: int = -1
    loop: Mapping[str, Any] = field(default_factory=dict)
    gate: Mapping[str, Any] = field(default_factory=dict)
    champion: str = ""

    @property
    def policy(self) -> Path:
        """Folder of the taught policy."""
        return self.output / "policies" / "taught"

    @property
    def new_policy(self) -> Path:
        """Folder of the policy that was retrained from a failure."""
        return self.output / "retrained" / "policy"

    @property
    def identified(self) -> Path:
        """Folder of the robot's identified distribution."""
        return (self.output / IDENTIFIED).parent

    @property
    def scenarios(self) -> Path:
        """Folder of the stored scenarios."""
        return self.output / "scenarios"

    def rates(self) -> dict[str, dict[str, Any]]:
        """Return the success rate of each policy on the robot, with its exact 95 % interval."""
        return {name: _success_rate(won) for name, won in self.success.items()}

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        parts = {"scenario": self.scenario, "loop": self.loop, "gate": self.gate, "champion": self.champion}
        return {"robot": self.robot.seed, "success": self.rates(), "teaching": dict(self.teaching), **parts}


def run_policy_loop(output: Path, seed: int, *, console: Console, step: Step) -> PolicyLoopResult:
    """Identify a virtual robot, teach a policy for it, try the policy there, and retrain it from a failure.

    Args:
        output: the workspace, for all files.
        seed: seed of the demo, which draws the robot and the worlds of the teaching.
        console: output for people.
        step: context manager for each step, which is called with the step's name.
    """
    half = PolicyLoopResult(output=output.absolute(), robot=VirtualRobot(TWIN, TASK, FIRST_ROBOT + seed))
    with step(f"A virtual robot (seed {half.robot.seed}), and the twin identified from its log"):
        half.robot.identify(LOG, half.identified)
    with step("A policy, taught in worlds around this twin, and its trials on the robot"):
        half.teaching = run_distill(_teaching_request(half, seed), console)
        half.success["taught"] = _try_on_robot(half, half.policy, "taught")
        console.print(format_success_rates(half), soft_wrap=True)
    with step("A failure on the robot, stored as a scenario"):
        half.scenario = _find_scenario(half, console)
    if not half.scenario:
        console.print("The policy never failed in these trials, so there is nothing to retrain it from.")
        return half
    with step("Retraining from that failure: worlds near it, training, trials, gate"):
        half.loop, _ = run_retrain(_retrain_request(half), console)
        half.success["after"] = _try_on_robot(half, half.new_policy, "after")
        half.gate, half.champion = _release_policy(half, console)
        console.print(f"{format_success_rates(half)} {format_decision(half)}", soft_wrap=True)
    return half


def _teaching_request(half: PolicyLoopResult, seed: int) -> DistillRequest:
    file = half.output / "worlds.yaml"
    write_text(file, yaml.safe_dump({"scene": {"twin": TWIN, "task": TASK}, "randomization": "default"}))
    return DistillRequest(file=file, output=half.policy, randomize_from=half.identified, seed=seed, **TEACHING)


def _try_on_robot(half: PolicyLoopResult, policy: Path, name: str) -> NDArray[np.bool_]:
    folder, started = half.output / "robot" / name, datetime.now(UTC)
    made = half.robot.evaluate(policy, ROBOT_TRIALS, folder)
    won = np.asarray(made.trials["success"])
    record_trials(folder, [made], {"robot": half.robot.seed, "success": _success_rate(won)}, started, verb="evaluate")
    return won


def _find_scenario(half: PolicyLoopResult, console: Console) -> Mapping[str, Any]:
    """Reconstruct failures on the robot in the twin until one of them fails in the twin too; return the last result.

    At most four failures are tried. Sets ``half.trial`` to the number of the reconstructed trial. The result is empty
    if no trial fails.
    """
    found = dict[str, Any]()
    for number in np.flatnonzero(~half.success["taught"])[:_TRIED].tolist():
        folder = half.output / "runs" / f"episode-{number}"
        request = RunRequest(robot=half.robot.address(number), policy=str(half.policy), output=folder)
        trial, _ = run_policy(request, console=console)
        with Workspace.open(half.output) as held:
            held.add(folder)
        if trial["successes"]:
            continue
        again = FromFailureRequest(
            episode=f"{folder}:0",
            name=f"{_NAME}-{number}",
            policy=str(half.policy),
            twin=TWIN,
            task=TASK,
            identified=half.output / IDENTIFIED,
            tries=RETRAINING["tries"],
            reason="failed on the virtual robot",
            force=True,
            scenarios=half.scenarios,
        )
        found, _ = run_from_failure(again, console)
        half.trial = number
        if found["again"]:
            return found
    return found


def _retrain_request(half: PolicyLoopResult) -> RetrainRequest:
    return RetrainRequest(
        output=half.output / "retrained",
        scenarios=half.scenarios,
        name=half.scenario["scenario"],
        policy=str(half.policy),
        trials=TRIALS,
        **RETRAINING,
    )


def _release_policy(half: PolicyLoopResult, console: Console) -> tuple[dict[str, Any], str]:
    """Register the taught policy as champion, and replace it by the new policy if the gate accepts that one.

    Returns:
        The decision of the gate, and the reference of the champion after it.
    """
    root, output = half.output, half.output
    with Workspace.open(root) as held:
        registry = PolicyRegistry(held)
        first = registry.add(half.policy, name="pick-and-place")
        promote(registry, first, force=True, reason="the first policy of the demo")
        candidate = registry.add(half.new_policy, name="pick-and-place")
    made = output / "retrained" / "evaluations"
    folders = {
        "candidate": [*sorted(made.glob(f"{half.new_policy.name}-*")), output / "robot" / "after"],
        "champion": [*sorted(made.glob(f"{half.policy.name}-*")), output / "robot" / "taught"],
    }
    # Paths in a gate file are relative to its folder.
    evidence = {side: [os.path.relpath(path, root) for path in paths] for side, paths in folders.items()}
    file = root / "candidate.yaml"
    content = gate_file(candidate, evidence, os.path.relpath(half.identified, root))
    write_text(file, yaml.safe_dump(content, sort_keys=False))
    request = GateRequest(file=file, output=output / "gate", workspace=root, deployment="main")
    decision, code = run_gate(request, console=console)
    if code:
        return decision, first
    with Workspace.open(root) as held:
        promote(PolicyRegistry(held), candidate)
    return decision, candidate


def gate_file(candidate: str, evidence: Mapping[str, Sequence[str]], identified: str) -> dict[str, Any]:
    """Return the content of a gate file like that of docs/guides/release.md.

    ``looks: once`` declares that the trials are tested only once. The rules `robot` (not worse in trials on a robot)
    and `invariants` (conditions on every trial) are not in the file, because they apply by default.

    Args:
        candidate: reference of the candidate policy.
        evidence: folders of evaluations, by ``candidate`` and ``champion``.
        identified: folder of the identified distribution.
    """
    return {
        "candidate": candidate,
        "champion": "champion",
        "evidence": dict(evidence),
        "looks": "once",
        "success": {"within": WITHIN, "suites": [TAUGHT]},
        "floor": {"success": 0.5},
        "regressions": {"suites": ["failures"]},
        "latency": {"budget_s": 1 / load_twin(TWIN).control_hz},
        "context": {"twin": TWIN, "task": TASK, "distribution": identified},
        "stages": {"canary": None},
    }


def policy_metric(half: PolicyLoopResult) -> KeyMetric:
    """Return the success rates of the policies on the virtual robot as one key metric of the report."""
    rates = half.rates()
    return KeyMetric(
        label="success on a virtual robot",
        value=" → ".join(f"{rate['rate']:.0%}" for rate in rates.values()),
        unit="before → after retraining" if len(rates) > 1 else "",
        source=f"virtual robot {half.robot.seed}, the same {ROBOT_TRIALS} initial conditions",
    )


def policy_section(page: ReportPage, half: PolicyLoopResult) -> None:
    """Add the policy's success on the robot to a report, with images of trials."""
    rates = half.rates()
    page.section(
        "A policy on a virtual robot",
        f"Virtual robot {half.robot.seed} has hidden parameters and effects that the twin does not model; the seed of "
        "the demo draws it. The policy was taught in worlds around the twin that was identified from the robot's log, "
        f"and tried from {ROBOT_TRIALS} initial conditions. Intervals are exact, 95 %. docs/evidence/transfer.md "
        "compares training conditions on many robots.",
    )
    won = half.success["taught"]
    rows = [("taught", int(number), half.policy) for number in np.flatnonzero(won)[:2]]
    if half.trial >= 0 and half.loop:
        rows += [("before", half.trial, half.policy), ("after", half.trial, half.new_policy)]
    if rows:
        page.image(half.robot.render_trials(rows), "Trials on the virtual robot, each at six moments.")
    page.plot(
        plot_interval_rows(
            [LABELS[name] for name in rates],
            *([100 * rate[key] for rate in rates.values()] for key in ("rate", "low", "high")),
            title="success on the robot, %",
        )
    )


def retraining_section(page: ReportPage, half: PolicyLoopResult) -> None:
    """Add the failure, the retraining from it, and the gate's decision to a report."""
    if not half.scenario:
        page.section("Failures", f"The policy did not fail in {ROBOT_TRIALS} trials, so it was not retrained.")
        return
    closed = half.scenario.get("expected") or half.scenario["open_loop"]
    page.section(
        "A failure, and the retraining from it",
        f"Trial {half.trial} on the robot was reconstructed in the twin with identified parameters, where it fails "
        f"again in {closed['failures']} of {closed['trials']} similar worlds. It is stored as "
        f"{half.scenario['scenario']}; the policy was taught on, in worlds around it and in those of before.",
    )
    page.table(
        ["the same trials in the twin", "before, %", "after, %", "gained", "lost"],
        [_change_row(one) for one in half.loop.get("changes", ())],
    )
    page.text(format_effect(half))
    page.table(
        ["gate", "verdict", "reason"],
        [[one["rule"], one["verdict"], one["reason"]] for one in half.gate.get("rules", ())],
        caption=format_decision(half),
    )


def _change_row(one: Mapping[str, Any]) -> list[Any]:
    rates = [round(100 * float(one[side]["estimate"])) for side in ("before", "after")]
    return [one["name"], *rates, one["gained"], one["lost"]]


def format_effect(half: PolicyLoopResult) -> str:
    """Return a sentence that says whether retraining helped on the robot."""
    before, after = (int(half.success[name].sum()) for name in ("taught", "after"))
    verb = "helped" if after > before else "changed nothing" if after == before else "did not help"
    return f"Retraining {verb} on the robot: {before} successes of {ROBOT_TRIALS} before, {after} after."


def format_success_rates(half: PolicyLoopResult) -> str:
    """Return a sentence with the success rate of each policy on the robot, with exact 95 % intervals."""
    parts = [
        f"{LABELS[name]} {rate['rate']:.0%} ({rate['low']:.0%} to {rate['high']:.0%})"
        for name, rate in half.rates().items()
    ]
    return f"On the virtual robot, {ROBOT_TRIALS} trials each, 95 % intervals: {'; '.join(parts)}."


def format_decision(half: PolicyLoopResult) -> str:
    """Return a sentence with the gate's decision, the rules that were not met, and the champion."""
    refused = [one["rule"] for one in half.gate["rules"] if one["verdict"] in ("no", "missing")]
    answer = f"no, by {' and '.join(refused)}" if refused else "yes"
    return f"The decision of the release gate is {answer}; the champion is {half.champion}."


def _success_rate(won: NDArray[np.bool_]) -> dict[str, Any]:
    interval = clopper_pearson(int(won.sum()), len(won))
    return {
        "successes": int(won.sum()),
        "trials": len(won),
        "rate": float(interval.estimate),
        "low": float(interval.low),
        "high": float(interval.high),
    }
