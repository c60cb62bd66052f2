"""Run the policy part of the demo: train policies, evaluate them on a virtual robot, and retrain one from a failure."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from rich.console import Console

from twinloop.catalog import Workspace
from twinloop.core.documents import read_json
from twinloop.core.files import write_json, write_text
from twinloop.hardware.hidden import HiddenCell, make_hidden_cell
from twinloop.release.promotion import promote
from twinloop.release.registry import PolicyRegistry
from twinloop.render import contact_sheet
from twinloop.report import KeyMetric, ReportPage
from twinloop.report.gap_policies import plot_interval_rows
from twinloop.rollout.world_camera import WorldCamera
from twinloop.stats import clopper_pearson
from twinloop.twin import load_twin
from twinloop.workflows.demo.virtual_robots.comparison import compare_on_robots
from twinloop.workflows.demo.virtual_robots.parts import StudyPart, demonstrations_part, policy_part, read_outcomes
from twinloop.workflows.demo.virtual_robots.settings import (
    CAMERA,
    CONDITIONS,
    FIRST_ROBOT,
    PLACES,
    TASK,
    TWIN,
    TransferSettings,
)
from twinloop.workflows.demo.virtual_robots.trials import evaluate_on_robot, policy_actor, run_trials
from twinloop.workflows.deploy.gate import run_gate
from twinloop.workflows.deploy.requests import GateRequest, RunRequest
from twinloop.workflows.deploy.run import run_policy
from twinloop.workflows.run.results import write_result
from twinloop.workflows.scenario.failure import run_from_failure
from twinloop.workflows.scenario.requests import FromFailureRequest, RetrainRequest
from twinloop.workflows.scenario.retrain import run_retrain

TRAINED_ON = {
    "nominal": "the nominal twin",
    "posterior": "the distribution identified from a log",
    "after": "that, and worlds around a failure",
}
_MOMENTS, _SIZE = 6, (180, 240)


def transfer_metric(half: FailureLoopResult) -> KeyMetric | None:
    """Return the success rates of all policies on the virtual robot as one key metric of the report.

    Args:
        half: result of the policies' training, evaluation and retraining.

    Returns:
        The success rates with their label and source; None if there are no trials.
    """
    rates = half.to_json()["success"]
    if not rates:
        return None
    trials = next(iter(rates.values()))["trials"]
    return KeyMetric(
        label="success on a virtual robot",
        value=" → ".join(f"{rate['rate']:.0%}" for rate in rates.values()),
        unit="trained on: nominal twin → identified → failure",
        source=f"virtual robot {FIRST_ROBOT}, the same {trials} initial conditions",
    )


def retraining_section(page: ReportPage, half: FailureLoopResult, images: NDArray[np.uint8] | None) -> None:
    """Add the policy part of the demo to a report: success rates, one failure, the retraining from it, and the gate.

    Args:
        page: the report.
        half: result of the policies' training, evaluation and retraining.
        images: images of the failed trial before and after the retraining, ``(h, w, 3)``; None to leave them out.
    """
    rates = half.to_json()["success"]
    trials = next(iter(rates.values()))["trials"]
    page.section(
        "Retraining from a failure, on a virtual robot",
        f"Virtual robot {FIRST_ROBOT} has hidden parameters and effects that the twin does not model. Of ten such "
        "robots it is the one with the lowest success after training on the nominal twin; docs/evidence/transfer.md "
        f"has the others. Each policy started from the same {trials} initial conditions; intervals are exact, 95 %.",
    )
    page.plot(
        plot_interval_rows(
            [f"trained on {TRAINED_ON[name]}" for name in rates],
            *([100 * rate[key] for rate in rates.values()] for key in ("rate", "low", "high")),
            title="success on the robot, %",
        )
    )
    if not half.scenario:
        page.text("The policy did not fail in these trials, so it was not retrained.")
        return
    closed = half.scenario.get("expected") or half.scenario["open_loop"]
    page.section(
        "A failure, and the retraining from it",
        "One failed trial on the robot was reconstructed in the twin with identified parameters, where it fails again "
        f"in {closed['failures']} of {closed['trials']} similar worlds. It is stored as {half.scenario['scenario']}; "
        "demonstrations around it were generated, and the training of the policy was continued with them.",
    )
    if images is not None:
        page.image(images, "That trial on the virtual robot, before and after.")
    page.table(
        ["the same trials in the twin", "before, %", "after, %", "gained", "lost"],
        [_change_row(one) for one in half.loop.get("changes", ())],
    )
    page.table(
        ["gate", "verdict", "reason"],
        [[one["rule"], one["verdict"], one["reason"]] for one in half.gate.get("rules", ())],
        caption=format_decision(half),
    )


def render_before_after(number: int, policies: dict[str, Path]) -> NDArray[np.uint8]:
    """Render one trial on the virtual robot with each policy; return one image ``(h, w, 3)`` with a row per policy.

    Args:
        number: number of the trial's initial condition.
        policies: folder of each policy, by the label of its row.
    """
    cell, sheet, labels = make_hidden_cell(load_twin(TWIN), FIRST_ROBOT), list[NDArray[np.uint8]](), list[str]()
    for name, folder in policies.items():
        frames, times, success = _render_trial(cell, number, folder)
        sheet += list(frames)
        labels += [f"{name}, {time:.1f} s" for time in times]
        labels[-1] = f"{name}: {'success' if success else 'failure'}"
    return contact_sheet(sheet, labels, columns=_MOMENTS)


def _render_trial(cell: HiddenCell, number: int, folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.float64], bool]:
    batch = run_trials(cell, [number], policy_actor(cell, folder))
    states = batch.trajectories.states[0]
    at = np.linspace(0, len(states) - 1, _MOMENTS).round().astype(int)
    photographer = WorldCamera(cell.twin, CAMERA[:1], height=_SIZE[0], width=_SIZE[1])
    try:
        images = photographer.take_images(states[at], batch.params.take([0] * _MOMENTS))
    finally:
        photographer.close()
    return images[CAMERA[0]], at / batch.twin.control_hz, bool(batch.success[0])


def _change_row(one: Mapping[str, Any]) -> list[Any]:
    rates = [round(100 * float(one[side]["estimate"])) for side in ("before", "after")]
    return [one["name"], *rates, one["gained"], one["lost"]]


# Largest decrease of success in simulation that the gate allows, as in the first file of docs/guides/release.md; on
# the robot 10 points, the rule's default. The numbers of trials prove this for an equal policy with a power of 80 % if
# one pair in five has different outcomes: (z(0.95) + z(0.8))^2 * 0.2 / margin^2 = 495 and 124.
_WITHIN, _TRIALS, _ROBOT_TRIALS = 0.05, 500, 125
# Sizes that need a few minutes on two cores; docs/evidence/transfer.md compares their success
# rates with those of the study.
SETTINGS = TransferSettings(robots=1, seeds=1, episodes=_ROBOT_TRIALS, demos=240, steps=1500, log=3, conditions=(1, 4))
_TRIED = 4  # failures to reconstruct at most, until one happens again in the twin
_TRIES, _TARGETED, _STEPS = 16, 64, 1000
_NAME = "demo-failure"

Step = Callable[[str], AbstractContextManager[None]]


@dataclass(kw_only=True)
class FailureLoopResult:
    """Result of the demo's part that trains policies, reconstructs a failure, retrains from it and decides on release.

    Its fields are filled step by step.

    Attributes:
        output: folder of all files.
        success: outcomes ``(ntrial,)`` of each policy on the robot, from the same initial conditions; the policies are
            ``nominal``, ``posterior`` and, after retraining, ``after``.
        transfer: stored result of the training and evaluation of the first two policies.
        scenario: result of reconstructing a failure in the twin; empty if there was no failure.
        trial: number of the trial whose failure was reconstructed; -1 if there is none.
        loop: result of the retraining, as ``twinloop scenario loop`` returns it; empty if there was none.
        gate: decision of the release gate as a JSON-compatible dictionary; empty if there was none.
        champion: the released policy at the end.
    """

    output: Path
    success: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    transfer: Mapping[str, Any] = field(default_factory=dict)
    scenario: Mapping[str, Any] = field(default_factory=dict)
    trial: int = -1
    loop: Mapping[str, Any] = field(default_factory=dict)
    gate: Mapping[str, Any] = field(default_factory=dict)
    champion: str = ""

    @property
    def old_policy(self) -> Path:
        """Folder of the policy before retraining, trained on the identified distribution of the parameters."""
        return policy_part(_study_part("trials", "posterior", self.output)).path

    @property
    def new_policy(self) -> Path:
        """Folder of the policy that was retrained from a failure."""
        return self.output / "loop" / "policy"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        rates = {name: _success_rate(won) for name, won in self.success.items()}
        parts = {"scenario": self.scenario, "loop": self.loop, "gate": self.gate, "champion": self.champion}
        return {"robot": FIRST_ROBOT, "success": rates, "transfer": dict(self.transfer), **parts}


def run_failure_loop(output: Path, *, workers: int, console: Console, step: Step) -> FailureLoopResult:
    """Train on the nominal twin and on the identified distribution, evaluate both policies, and retrain from a failure.

    Args:
        output: folder for all files: the trained policies, a workspace with its registry, the failure, the retraining.
        workers: number of processes; 0 uses every core.
        console: output for people.
        step: context manager for each step, which is called with the step's name.
    """
    half = FailureLoopResult(output=output)
    with step("Policies: does identification improve success on a robot with other physics than the twin?"):
        folder = output / "transfer"
        compared = compare_on_robots(SETTINGS, folder, workers=workers, console=console)
        half.transfer = write_result(folder, compared.to_json())
        for name in ("nominal", "posterior"):
            half.success[name] = np.array(read_outcomes(_study_part("trials", name, output)))
        console.print(format_success_rates(half), soft_wrap=True)
    old = half.old_policy
    with step("A failure on that robot, stored as a scenario"):
        half.scenario = _find_scenario(half, old, console)
    if not half.scenario:
        console.print(
            "The policy never failed here: there is no failure to retrain from, and the demo ends with this policy."
        )
        return half
    with step("Retraining from that failure: data, training, trials, gate"):
        half.loop, _ = run_retrain(_build_loop_request(old, output), console)
        for name, policy in (("posterior", old), ("after", half.new_policy)):
            made = evaluate_on_robot(policy, SETTINGS.episodes, output / "robot" / name)
            half.success[name] = np.asarray(made.trials["success"])
        half.gate, half.champion = _release_policy(half, console)
        console.print(f"{format_success_rates(half)} {format_decision(half)}", soft_wrap=True)
    return half


def _find_scenario(half: FailureLoopResult, policy: Path, console: Console) -> Mapping[str, Any]:
    """Reconstruct failures on the robot in the twin until one of them fails in the twin too; return the last result.

    At most four failures are tried. Sets ``half.trial`` to the number of the reconstructed trial. The result is empty
    if no trial fails.

    Args:
        half: result of this part of the demo so far, with the outcomes of the trials.
        policy: folder of the policy that failed.
        console: output for people.
    """
    output, found = half.output, dict[str, Any]()
    identified = output / "identified"
    write_json(
        identified / "result.json",
        {"distribution": read_json(_study_part("log", "", output).path / "distribution.json")},
    )
    for number in np.flatnonzero(~half.success["posterior"])[:_TRIED].tolist():
        folder = output / "runs" / f"episode-{number}"
        address = f"virtual:{TWIN}?seed={FIRST_ROBOT}&task={TASK}&run_seed={PLACES}&session={number}"
        trial, _ = run_policy(RunRequest(robot=address, policy=str(policy), output=folder), console=console)
        if trial["successes"]:
            continue
        request = FromFailureRequest(
            episode=f"{folder}:0",
            name=f"{_NAME}-{number}",
            policy=str(policy),
            twin=TWIN,
            task=TASK,
            identified=identified / "result.json",
            tries=_TRIES,
            reason="failed on the virtual robot",
            force=True,
            scenarios=_scenarios(output),
        )
        found, _ = run_from_failure(request, console)
        half.trial = number
        if found["again"]:
            return found
    return found


def _build_loop_request(policy: Path, output: Path) -> RetrainRequest:
    return RetrainRequest(
        output=output / "loop",
        scenarios=_scenarios(output),
        name=next(path.name for path in sorted(_scenarios(policy.parents[2]).iterdir(), reverse=True)),
        policy=str(policy),
        episodes=_TARGETED,
        steps=_STEPS,
        tries=_TRIES,
        trials=_TRIALS,
    )


def _release_policy(half: FailureLoopResult, console: Console) -> tuple[dict[str, Any], str]:
    """Register the old policy as champion, and replace it by the new policy if the gate accepts that one.

    Returns:
        The decision of the gate, and the reference of the champion after it.
    """
    root, output = _workspace(half.output), half.output
    demos = demonstrations_part(_study_part("policy", "posterior", output), "posterior").path
    with Workspace.create(root, twin=TWIN) as held:
        base = _record_policy(held, half.old_policy, demos)
        _record_policy(held, half.new_policy, Path(half.loop["augmented"]["data"]), base=base)
        registry = PolicyRegistry(held)
        first = registry.add(half.old_policy, name="pick-and-place")
        promote(registry, first, force=True, reason="the first policy of the demo")
        candidate = registry.add(half.new_policy, name="pick-and-place")
    made = output / "loop" / "evaluations"
    folders = {
        "candidate": [*sorted(made.glob("policy-*")), output / "robot" / "after"],
        "champion": [*sorted(made.glob(f"{half.old_policy.name}-*")), output / "robot" / "posterior"],
    }
    # Paths in a gate file are relative to its folder.
    evidence = {side: [os.path.relpath(path, root) for path in paths] for side, paths in folders.items()}
    file = root / "candidate.yaml"
    identified = os.path.relpath(output / "identified", root)
    write_text(file, yaml.safe_dump(gate_file(candidate, evidence, identified), sort_keys=False))
    decision, code = run_gate(
        GateRequest(file=file, output=output / "gate", workspace=root, deployment="main"), console=console
    )
    if code:
        return decision, first
    with Workspace.open(root) as held:
        promote(PolicyRegistry(held), candidate)
    return decision, candidate


def _record_policy(held: Workspace, policy: Path, data: Path, *, base: str | None = None) -> str:
    """Record in the workspace which episodes trained a policy, as `twinloop train` does; return the policy's hash.

    Args:
        held: the workspace.
        policy: folder of the policy.
        data: folder of the dataset that trained it.
        base: hash of the policy whose training was continued; None if there is none.
    """
    batch, digest = held.add(data).batch, str(read_json(policy / "config.json")["hash"])
    frozen = held.freeze(policy.name, f"SELECT episode_id FROM places WHERE batch = '{batch}'")  # noqa: S608
    held.record_policy(digest, policy.name, frozen.reference, base=base)
    return digest


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
        "success": {"within": _WITHIN, "suites": ["nominal"]},
        "floor": {"success": 0.5},
        "regressions": {"suites": ["failures"]},
        "latency": {"budget_s": 1 / load_twin(TWIN).control_hz},
        "context": {"twin": TWIN, "task": TASK, "distribution": identified},
        "stages": {"canary": None},
    }


def format_success_rates(half: FailureLoopResult) -> str:
    """Return a sentence with the success rate of each policy on the robot, with exact 95 % intervals."""
    rates = half.to_json()["success"]
    parts = [f"{name} {rate['rate']:.0%} ({rate['low']:.0%} to {rate['high']:.0%})" for name, rate in rates.items()]
    return f"On the virtual robot, {SETTINGS.episodes} trials each, 95 % intervals: {', '.join(parts)}."


def format_decision(half: FailureLoopResult) -> str:
    """Return a sentence with the gate's decision, the rules that were not met, and the champion.

    Args:
        half: result of the policies' training, evaluation and retraining.
    """
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


def _study_part(kind: str, condition: str, output: Path) -> StudyPart:
    """Return one part (a step with its own folder) of the demo's comparison of policies on one virtual robot.

    A virtual robot is a simulated robot with hidden true parameters.

    Args:
        kind: kind of the part, such as ``log``, ``policy`` or ``trials``; see `StudyPart`.
        condition: name of the training condition, such as ``nominal``; empty for a part that has none.
        output: folder of all files of the demo's policy part, as in `FailureLoopResult`.
    """
    number = next((one.number for one in CONDITIONS if one.name == condition), 0)
    folder = str(output / "transfer")
    return StudyPart(kind=kind, folder=folder, settings=SETTINGS, robot=FIRST_ROBOT, condition=number)


def _workspace(output: Path) -> Path:
    return output / "workspace"


def _scenarios(output: Path) -> Path:
    return _workspace(output) / "scenarios"
