"""Retrain a policy from a failure: train in worlds near it, and evaluate the policy before and after.

A gate then decides whether the failure is fixed and nothing else got worse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from twinloop.core.decision import GateDecision
from twinloop.core.evaluation import Evaluation
from twinloop.evaluate.worlds import Suite
from twinloop.report import KeyMetric, ReportPage
from twinloop.rollout.scenario import Scenario
from twinloop.rollout.scenario_files import list_scenarios
from twinloop.simulate import open_backend
from twinloop.stats import Interval, clopper_pearson
from twinloop.stats.matched_trials import PairedCounts, mcnemar, paired_difference_interval
from twinloop.workflows.evaluate.evaluate import record_trials
from twinloop.workflows.run.results import MeasuredRun
from twinloop.workflows.run.taught_worlds import has_worlds, read_worlds, taught_suite
from twinloop.workflows.scenario import references
from twinloop.workflows.scenario.continued_training import ContinuedTraining, continue_training
from twinloop.workflows.scenario.requests import RetrainRequest


@dataclass(frozen=True, kw_only=True)
class ScenarioChange:
    """Success in one slice (suite condition or stored scenario) before and after retraining, in the same trials.

    Attributes:
        name: name of the slice.
        before: success rate before, with its exact interval.
        after: success rate after, with its exact interval.
        pairs: counts of the trials by both outcomes. ``only_a`` counts successes only after retraining, ``only_b``
            successes only before it.
    """

    name: str
    before: Interval
    after: Interval
    pairs: PairedCounts

    @classmethod
    def of(cls, name: str, before: Evaluation, after: Evaluation) -> ScenarioChange:
        """Return the change of the success rate in one slice, from the trials that both evaluations have.

        Args:
            name: name of the slice (suite condition or stored scenario).
            before: evaluation of the old policy.
            after: evaluation of the new policy.
        """
        old, new = _outcomes(before, name), _outcomes(after, name)
        counts = Counter((new[trial], old[trial]) for trial in old if trial in new)
        pairs = PairedCounts(
            both=counts[True, True],
            only_a=counts[True, False],
            only_b=counts[False, True],
            neither=counts[False, False],
        )
        return cls(
            name=name,
            before=clopper_pearson(pairs.both + pairs.only_b, pairs.pairs),
            after=clopper_pearson(pairs.both + pairs.only_a, pairs.pairs),
            pairs=pairs,
        )

    @property
    def difference(self) -> Interval:
        """Success rate after retraining minus success rate before, with Tango's interval for paired trials."""
        return paired_difference_interval(self.pairs)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary for results."""
        return {
            "name": self.name,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "difference": self.difference.to_json(),
            "gained": self.pairs.only_a,
            "lost": self.pairs.only_b,
            "p_value": mcnemar(self.pairs),
        }


def _outcomes(made: Evaluation, name: str) -> dict[str, bool]:
    columns = (made.trials[key].to_pylist() for key in ("slice", "trial", "success", "valid"))
    rows = zip(*columns, strict=True)
    return {trial: bool(success and valid) for part, trial, success, valid in rows if part == name}


def changes_table(changes: Sequence[ScenarioChange], scenario: Scenario) -> Table:
    """Return a table of success before and after retraining, with one row for each slice (condition or scenario).

    Args:
        changes: the changes.
        scenario: the scenario that was trained for; its row is marked.
    """
    table = Table("trials", "before", "after", "gained", "lost", "difference", "95% interval", "p")
    for one in changes:
        table.add_row(
            f"{one.name} (this one)" if one.name == scenario.name else one.name,
            one.before.percent(),
            one.after.percent(),
            str(one.pairs.only_a),
            str(one.pairs.only_b),
            f"{float(one.difference.estimate):+.2f}",
            f"{float(one.difference.low):+.2f} to {float(one.difference.high):+.2f}",
            f"{mcnemar(one.pairs):.2g}",
        )
    return table


def changes_section(
    page: ReportPage,
    scenario: Scenario,
    changes: Sequence[ScenarioChange],
    decision: GateDecision,
    continued: ContinuedTraining,
) -> None:
    """Add a retraining to a report: success before and after, and the gate's decision.

    Args:
        page: the report page.
        scenario: the scenario that the policy was retrained for; the new demonstrations are from worlds near it.
        changes: success before and after, for each suite condition and stored scenario.
        decision: decision of the gate.
        continued: the training.
    """
    page.section(scenario.name, scenario.meaning or scenario.reason)
    page.key_metrics(
        [
            KeyMetric(
                label=one.name,
                value=f"{one.before.percent()} → {one.after.percent()}",
                source=f"{one.pairs.pairs} trials in the same worlds",
                tone="good" if float(one.difference.low) > 0 else "bad" if float(one.difference.high) < 0 else None,
            )
            for one in changes[:4]
        ]
    )
    page.section("What was done")
    page.text(continued.summary)
    page.section("What changed", "Both policies were tried in the same worlds with the same random numbers.")
    page.table(
        ["trials", "before", "after", "gained", "lost", "difference", "p"],
        [
            [
                one.name,
                one.before.percent(),
                one.after.percent(),
                one.pairs.only_a,
                one.pairs.only_b,
                float(one.difference.estimate),
                mcnemar(one.pairs),
            ]
            for one in changes
        ],
        caption="p is the p-value of McNemar's exact test.",
    )
    page.section(
        f"Failure fixed, nothing else lost: {'yes' if decision.passed else 'no'}",
        "This decides on the scenario alone and is not the release gate.",
    )
    page.table(
        ["rule", "verdict", "requirement", "result"],
        [[r.rule, r.verdict, r.requirement, r.reason] for r in decision.rules],
    )


_NOMINAL, _THIS = "nominal", "this failure"


def run_retrain(request: RetrainRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Retrain a policy in worlds near a failure, evaluate both policies, and apply the gate.

    The new policy is in ``OUTPUT/policy``, also if the gate's decision is no.

    Returns:
        The result, and exit code 1 if the gate's decision is no, else 0.

    Raises:
        InputError: If the scenario or the policy cannot be opened, or the policy's training data are unknown.
    """
    output, scenarios = request.output, request.scenarios
    run = MeasuredRun.begin("scenario", "loop", output, (), console)
    _, scenario = references.open_scenario(request.name, scenarios)
    folder = references.policy_folder(request.policy)
    continued = continue_training(request, scenario, folder, console)
    console.print(f"3. Trials of both: {request.trials} in one suite, {request.tries} of each stored scenario")
    home, tried = references.scenarios_folder(scenarios), datetime.now(UTC)
    suite = _NOMINAL
    if has_worlds(output / "policy"):
        suite = taught_suite(read_worlds(output / "policy"), request.trials)
    before, after = (
        _evaluate_policy(request, scenario, one, home, output, suite) for one in (folder, output / "policy")
    )
    facts = {"policies": [one[0].policy for one in (before, after)], "suites": [one.suite for one in before]}
    record_trials(output, [*before, *after], facts, tried, verb="evaluate")
    changes = [
        ScenarioChange.of(name, old, new)
        for old, new in zip(before, after, strict=True)
        for name in dict.fromkeys(old.trials["slice"].to_pylist())
    ]
    console.print(changes_table(changes, scenario))
    here = scenario_slice(request.name)
    decision = _decide_gate(
        request,
        _add_scenario_suite(after, here),
        _add_scenario_suite(before, here),
        [path.name for path in list_scenarios(home)],
    )
    console.print(
        f"4. Failure fixed, nothing else lost: {'yes' if decision.passed else 'no'}. This is not the release gate."
    )
    for rule in decision.rules:
        console.print(f"  {rule.format_line()}", soft_wrap=True, markup=False)
    if decision.passed:
        console.print(f"To propose it as champion: `twinloop policies add {output / 'policy'}`, then `twinloop gate`.")
    metrics = {
        "scenario": scenario.name,
        "champion": request.policy,
        "policy": str(output / "policy"),
        "augmented": dict(continued.targeted),
        "trained": dict(continued.trained),
        "changes": [one.to_json() for one in changes],
        "gate": {"passed": decision.passed, "rules": [rule.to_json() for rule in decision.rules]},
    }
    result, _ = run.end(
        metrics,
        [one.difference.headline(one.name, better="higher", meaning="success gained") for one in changes],
        title=f"From a failure: {scenario.name}",
        subtitle=f"{request.policy} trained for {continued.trained['steps']} more steps",
        fill=lambda page: changes_section(page, scenario, changes, decision, continued),
    )
    return result, int(not decision.passed)


def _evaluate_policy(
    request: RetrainRequest, scenario: Scenario, policy: Path, home: Path, output: Path, suite: Suite | str
) -> list[Evaluation]:
    """Evaluate a policy in a suite and in every stored scenario, and store the evaluations.

    The trials are the same for every policy.

    Args:
        request: flags of the command.
        scenario: the scenario, which names twin and task.
        policy: folder of the policy.
        home: folder of the stored scenarios.
        output: folder for the evaluations.
        suite: the suite in which the policy must not become worse.
    """
    from twinloop.evaluate.candidates import make_candidate
    from twinloop.evaluate.run import evaluate
    from twinloop.policies import open_policy

    who, made = make_candidate(open_policy(policy), name=str(policy)), list[Evaluation]()
    twin, _ = scenario.open()
    for tried, episodes in ((suite, request.trials), ("failures", request.tries)):
        one = evaluate(
            who,
            twin,
            scenario.task_reference,
            tried,
            episodes=episodes,
            run_seed=request.seed,
            backend=open_backend(),
            scenarios=home,
        )
        one.write(output / "evaluations" / f"{policy.name}-{who.hash[:8]}-{one.suite}")
        made.append(one)
    return made


def _add_scenario_suite(made: Sequence[Evaluation], name: str) -> list[Evaluation]:
    """Return the evaluations and an additional one, which has only the trials of the retrained scenario.

    The gate's rule on the improvement uses the additional evaluation; its rule on regressions uses all scenarios.

    Args:
        made: evaluations of a policy, the last one in all scenarios.
        name: name of the scenario's slice.
    """
    failures = made[-1]
    chosen = pc.equal(failures.trials["slice"], name)  # pyright: ignore[reportAttributeAccessIssue]
    return [*made, replace(failures, suite=_THIS, trials=failures.trials.filter(chosen))]


def _decide_gate(
    request: RetrainRequest, after: Sequence[Evaluation], before: Sequence[Evaluation], names: Sequence[str]
) -> GateDecision:
    """Decide whether the failure is fixed and nothing else got worse.

    The new policy must be better in the scenario, must not be worse in nominal trials, and must not regress in any
    other stored scenario. Nothing is promoted. The release gate makes no exception for a retrained policy: it also
    checks minimum success, invariants, latency, the environment of the deployment and trials on a robot.

    Args:
        request: flags of the command.
        after: evaluations of the new policy.
        before: evaluations of the old policy.
        names: names of the stored scenarios.
    """
    from twinloop.release.gate import GateContext, gate
    from twinloop.release.gate_config import parse_gate

    config = parse_gate(
        {
            "candidate": after[0].policy,
            "champion": before[0].policy,
            "alpha": request.alpha,
            "looks": "once",
            "success": {"within": request.within, "suites": [after[0].suite]},
            "improves": [{"metric": "success", "slice": scenario_slice(request.name)}],
            "floor": {"waived": "a failure that is being worked on has no floor yet"},
            "invariants": {"waived": "trials here compare policies; safety is the envelope's and the release gate's"},
            "regressions": {"suites": ["failures"]},
            "latency": {"waived": "the network is the champion's"},
            "context": {"waived": "tried on the twin of the scenario only; the release gate tests the deployment's"},
        },
        where="the gate of scenario loop",
    )
    known = GateContext(
        candidate_hash=after[0].policy_hash, champion_hash=before[0].policy_hash, stored_scenarios=tuple(names)
    )
    return gate(config, list(after), list(before), context=known)


def scenario_slice(name: str) -> str:
    """Return the name of a scenario's slice in the suite ``failures``, which is the name of its folder."""
    return Path(name).name
