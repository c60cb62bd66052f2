"""Retrain a policy from a failure: targeted demonstrations, training, trials before and after, and the gate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from twinloop.core.decision import GateDecision
from twinloop.core.documents import read_json
from twinloop.core.errors import InputError
from twinloop.core.evaluation import Evaluation
from twinloop.report import KeyMetric, ReportPage
from twinloop.rollout.pinned import PinnedWorld
from twinloop.rollout.pinned_files import list_scenarios
from twinloop.simulate import open_backend
from twinloop.stats import Interval, clopper_pearson
from twinloop.stats.matched_trials import PairedCounts, mcnemar, paired_difference_interval
from twinloop.workflows.run.results import MeasuredRun
from twinloop.workflows.scenario import places
from twinloop.workflows.scenario.augment import run_augment
from twinloop.workflows.scenario.requests import AugmentRequest, LoopRequest


@dataclass(frozen=True, kw_only=True)
class ScenarioChange:
    """Success in one suite or scenario before and after retraining, on the same trials."""

    name: str
    before: Interval
    after: Interval
    pairs: PairedCounts

    @classmethod
    def of(cls, name: str, before: Evaluation, after: Evaluation) -> ScenarioChange:
        """Return the change in the slice ``name``, over the trials that both evaluations have."""
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
        """Success after less success before, with Tango's interval."""
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


def changes_table(changes: Sequence[ScenarioChange], pinned: PinnedWorld) -> Table:
    """Return a table with a row for each slice that both policies were tried in."""
    table = Table("trials", "before", "after", "gained", "lost", "difference", "95% interval", "p")
    for one in changes:
        table.add_row(
            f"{one.name} (this one)" if one.name == pinned.name else one.name,
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
    pinned: PinnedWorld,
    changes: Sequence[ScenarioChange],
    decision: GateDecision,
    augmented: Mapping[str, Any],
) -> None:
    """Write success before and after, the changes, and whether the failure is fixed."""
    page.section(pinned.name, pinned.meaning or pinned.reason)
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
    page.text(
        f"{augmented['episodes']} of {augmented['attempted']} demonstrations around the failure succeeded and were "
        "mixed with what the policy was trained on before; training went on from its weights."
    )
    page.section("What changed", "Both policies were tried in the same worlds with the same chance.")
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
        caption="p is McNemar's exact one.",
    )
    page.section(
        f"Failure fixed, nothing else lost: {'yes' if decision.passed else 'no'}",
        "This decides on the scenario alone and is no release gate.",
    )
    page.table(["rule", "verdict", "asked", "found"], [[r.rule, r.verdict, r.asked, r.reason] for r in decision.rules])


# Training continues from the champion at a tenth of its learning rate: the preset of fine-tuning without forgetting
# (docs/guides/training.md).
_SLOWER = 0.1
_RESULT, _NOMINAL, _THIS = "result.json", "nominal", "this failure"
_KEPT = ("batch", "task", "weight_decay", "ema", "clip")  # of the configuration that the champion was trained with


def run_loop(request: LoopRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Generate data, retrain, evaluate, apply the gate; ``OUTPUT/policy`` gets the new policy for any decision.

    Returns:
        The result, and exit code 1 if the gate decided no.

    Raises:
        InputError: the scenario or the policy cannot be opened, or the policy's training data are unknown.
    """
    output, scenarios = request.output, request.scenarios
    run = MeasuredRun.begin("scenario", "loop", output, (), console)
    _, pinned = places.open_scenario(request.name, scenarios)
    folder = places.policy_folder(request.policy)
    sources = _training_sources(request, folder)
    console.print(f"1. Demonstrations around {pinned.name}", soft_wrap=True)
    augmented = run_augment(
        AugmentRequest(
            name=request.name,
            output=output / "targeted",
            episodes=request.episodes,
            width=request.width,
            only=request.only,
            seed=request.seed,
            scenarios=scenarios,
            workers=request.workers,
        ),
        console=console,
    )
    console.print(f"2. Training on from {request.policy}: {request.share:.0%} of every batch around the failure")
    trained = _train(request, folder, sources, Path(augmented["data"]), output / "policy")
    console.print(f"3. Trials of both: {request.trials} nominal, {request.tries} of each stored scenario")
    home = places.scenarios_folder(scenarios)
    before, after = (_evaluate_policy(request, pinned, one, home, output) for one in (folder, output / "policy"))
    changes = [
        ScenarioChange.of(name, old, new)
        for old, new in zip(before, after, strict=True)
        for name in dict.fromkeys(old.trials["slice"].to_pylist())
    ]
    console.print(changes_table(changes, pinned))
    here = scenario_slice(request.name)
    decision = _decide_gate(
        request,
        _add_scenario_suite(after, here),
        _add_scenario_suite(before, here),
        [path.name for path in list_scenarios(home)],
    )
    console.print(f"4. Failure fixed, nothing else lost: {'yes' if decision.passed else 'no'}. It is no release gate.")
    for rule in decision.rules:
        console.print(f"  {rule.format_line()}", soft_wrap=True, markup=False)
    if decision.passed:
        console.print(f"For the champion's place: `twinloop policies add {output / 'policy'}`, then `twinloop gate`.")
    figures = {
        "scenario": pinned.name,
        "champion": request.policy,
        "policy": str(output / "policy"),
        "augmented": augmented,
        "trained": {key: trained[key] for key in ("hash", "steps", "seconds", "sources")},
        "changes": [one.to_json() for one in changes],
        "gate": {"passed": decision.passed, "rules": [rule.to_json() for rule in decision.rules]},
    }
    result, _ = run.end(
        figures,
        [one.difference.headline(one.name, better="higher", meaning="success gained") for one in changes],
        title=f"From a failure: {pinned.name}",
        subtitle=f"{request.policy} trained on for {request.steps} steps",
        fill=lambda page: changes_section(page, pinned, changes, decision, augmented),
    )
    return result, int(not decision.passed)


def _training_sources(request: LoopRequest, folder: Path) -> list[dict[str, Any]]:
    """Return the policy's training data: the given ones, or those in its result."""
    if not 0 < request.share < 1:
        raise InputError(f"--share {request.share:g}: give a part of every batch, between 0 and 1.")
    if request.data:
        return [{"data": one, "kind": "sim"} for one in request.data]
    sources = _read_training_config(folder).get("sources")
    if not sources:
        raise InputError(
            f"{folder} does not record the policy's training data. Give them with --data, to train on them again."
        )
    return list(sources)


def _read_training_config(folder: Path) -> dict[str, Any]:
    """Return the training configuration of a policy; empty if its folder has none."""
    file = folder / _RESULT
    said = read_json(file) if file.is_file() else {}
    return said.get("config", {}) if isinstance(said, dict) else {}


def _train(
    request: LoopRequest, folder: Path, sources: Sequence[Mapping[str, Any]], targeted: Path, output: Path
) -> dict[str, Any]:
    """Continue training from the champion's weights with old and targeted data in the given shares."""
    from twinloop.policies import open_policy
    from twinloop.train import TrainConfig
    from twinloop.train.run import train

    champion = open_policy(folder)
    said = _read_training_config(folder)
    kept = {key: said[key] for key in _KEPT if key in said}
    old = [{**one, "weight": (1.0 - request.share) / len(sources)} for one in sources]
    contract = champion.contract
    inputs = [name for name in ("state", "environment") if getattr(contract, name)]
    config = TrainConfig.of(
        {
            **kept,
            "policy": champion.settings.kind,
            "settings": champion.settings.model_dump(mode="json", exclude={"kind"}),
            "inputs": [*inputs, *contract.cameras],
            "sources": [*old, {"data": str(targeted), "name": "targeted", "weight": request.share}],
            "steps": request.steps,
            "lr": request.lr or _SLOWER * float(said.get("lr", 1e-3)),
            "seed": request.seed,
        },
        where="the training of scenario loop",
    )
    return train(config, output, base=champion).figures


def _evaluate_policy(
    request: LoopRequest, pinned: PinnedWorld, policy: Path, home: Path, output: Path
) -> list[Evaluation]:
    """Evaluate a policy in the nominal suite and in every stored scenario, on the same trials; store the results."""
    from twinloop.evaluate.candidates import make_candidate
    from twinloop.evaluate.run import evaluate
    from twinloop.policies import open_policy

    who, made = make_candidate(open_policy(policy), name=str(policy)), list[Evaluation]()
    twin, _ = pinned.open()
    for suite, episodes in ((_NOMINAL, request.trials), ("failures", request.tries)):
        one = evaluate(
            who,
            twin,
            pinned.task,
            suite,
            episodes=episodes,
            run_seed=request.seed,
            backend=open_backend(),
            scenarios=home,
        )
        one.write(output / "evaluations" / f"{policy.name}-{who.hash[:8]}-{suite}")
        made.append(one)
    return made


def _add_scenario_suite(made: Sequence[Evaluation], name: str) -> list[Evaluation]:
    """Return the evaluations plus one with the trials of one scenario, for a rule on its effect besides regressions."""
    failures = made[-1]
    chosen = pc.equal(failures.trials["slice"], name)  # pyright: ignore[reportAttributeAccessIssue]
    return [*made, replace(failures, suite=_THIS, trials=failures.trials.filter(chosen))]


def _decide_gate(
    request: LoopRequest, after: Sequence[Evaluation], before: Sequence[Evaluation], names: Sequence[str]
) -> GateDecision:
    """Decide: not worse nominally, better at the failure, and no other stored failure lost.

    Nothing is promoted. The release gate checks floor, invariants, latency, context and trials on a robot, without any
    exception for a policy from here.
    """
    from twinloop.release.gate import GateContext, gate
    from twinloop.release.gate_config import parse_gate

    config = parse_gate(
        {
            "candidate": after[0].policy,
            "champion": before[0].policy,
            "alpha": request.alpha,
            "looks": "once",
            "success": {"within": request.within, "suites": [_NOMINAL]},
            "improves": [{"metric": "success", "slice": scenario_slice(request.name)}],
            "floor": {"waived": "a failure that is being worked on has no floor yet"},
            "invariants": {"waived": "trials here compare policies; safety is the envelope's and the release gate's"},
            "regressions": {"suites": ["failures"]},
            "latency": {"waived": "the network is the champion's"},
            "context": {"waived": "tried on the twin of the scenario only; the release gate tests the deployment's"},
        },
        where="the gate of scenario loop",
    )
    known = GateContext(candidate_hash=after[0].policy_hash, champion_hash=before[0].policy_hash, stored=tuple(names))
    return gate(config, list(after), list(before), known=known)


def scenario_slice(name: str) -> str:
    """Return the slice of a scenario in the suite of failures: the name of its folder."""
    return Path(name).name
