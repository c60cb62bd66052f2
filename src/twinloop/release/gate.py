"""Apply the gate: check every rule, and pass a candidate only if all rules are fulfilled.

A candidate that does not fulfil a rule passes only if the statistical test of that rule is wrong. Each test has the
error level α, so this has a probability of at most α for any number of rules, metrics and slices. This is an
intersection-union test (Berger, Technometrics 24, 1982). Of the effects in ``improves`` one suffices; therefore their
tests divide α among themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from twinloop.core.decision import GateDecision, RuleVerdict
from twinloop.core.evaluation import Evaluation
from twinloop.release.evidence import GateEvidence
from twinloop.release.gate_config import GateConfig, RobotRule, SuccessRule, WaivedRule
from twinloop.release.rules_conditions import context_rule, invariant_rule, latency_rule, regression_rule
from twinloop.release.rules_effect import floor_rule, improvement_rule, robot_rule, success_rules
from twinloop.release.version import TrainingRecord


@dataclass(frozen=True, kw_only=True)
class GateContext:
    """Facts about the policies, in addition to their trials, that the gate's rules need.

    Attributes:
        candidate_hash: hash of the candidate; empty if unknown.
        champion_hash: hash of the champion; empty if unknown.
        contract: contract from the candidate's ``config.json``; None if unknown.
        folder: folder of the candidate, whose own twin and task are used if the rule ``context`` gives none; None if
            unknown.
        training: training data of the candidate; None if unknown.
        stored_scenarios: names of the scenarios that are stored because a policy failed in them; None if unknown.
        look_used: error message if the gate allows only one evaluation (``looks: once``), and these trials were already
            evaluated; else empty.
    """

    candidate_hash: str = ""
    champion_hash: str = ""
    contract: Any = None
    folder: Path | None = None
    training: TrainingRecord | None = None
    stored_scenarios: Sequence[str] | None = None
    look_used: str = ""


def gate(
    config: GateConfig,
    candidate: Evaluation | Sequence[Evaluation],
    champion: Evaluation | Sequence[Evaluation] = (),
    *,
    context: GateContext | None = None,
) -> GateDecision:
    """Decide whether a candidate passes the gate.

    Missing evidence raises no error; it gives the verdict ``missing``. If the gate's ``looks`` is ``once`` (trials may
    be evaluated only once), evidence that does not fit the gate gives this verdict only. The trials are then not
    evaluated, so the one planned evaluation is still available.

    Args:
        config: rules of the gate.
        candidate: evaluations of the candidate, one for each suite and domain.
        champion: evaluations of the policy that it would replace; empty if there is no champion yet.
        context: further facts about the policies.

    Returns:
        Decision with a verdict for every rule.
    """
    about = context or GateContext()
    mine, theirs = ([one] if isinstance(one, Evaluation) else list(one) for one in (candidate, champion))
    evidence = GateEvidence.of(
        mine,
        theirs,
        candidate_hash=about.candidate_hash,
        champion_hash=about.champion_hash if config.champion else "",
        names=(config.candidate, config.champion),
    )
    first = _evidence_rule(config, evidence, about)
    # Unsuitable trials are not evaluated, so that the one planned evaluation is still available.
    rest = [] if config.looks == "once" and not first.passed else _judge_rules(config, evidence, about)
    return GateDecision(
        candidate=config.candidate,
        candidate_hash=about.candidate_hash or (mine[0].policy_hash if mine else ""),
        champion=config.champion or "",
        champion_hash=about.champion_hash or (theirs[0].policy_hash if theirs else ""),
        alpha=config.alpha,
        looks=config.looks,
        rules=(first, *rest),
        evidence=evidence.hashes,
        robot_trials=len(evidence.select_robot_trials(_robot_suites(config), config.regression_suites).candidate),
        plan=config.plan.to_json(),
        made=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _judge_rules(config: GateConfig, evidence: GateEvidence, context: GateContext) -> list[RuleVerdict]:
    """Return the verdicts of all rules except the rule ``evidence``, which `gate` checks first.

    Their order, also in the decision, is: success, slices (if required), improves (if required), robot, floor,
    invariants, regressions, latency, context. Waived rules are not evaluated.
    """
    first = config.champion is None
    verdicts = list[RuleVerdict]()
    if first:
        reason = "there is no champion yet; the floor decides"
        verdicts.append(RuleVerdict(rule="success", verdict="none", requirement="nothing", reason=reason))
    elif isinstance(config.success, SuccessRule):
        verdicts += success_rules(config.success, config, evidence)
    else:
        verdicts.append(_make_waived_verdict("success", config.success))
    if config.improves and not first:
        verdicts.append(improvement_rule(config, evidence))
    checks: dict[str, Callable[[Any], RuleVerdict]] = {
        "robot": lambda rule: robot_rule(rule, config, evidence),
        "floor": lambda rule: floor_rule(rule, config, evidence),
        "invariants": lambda rule: invariant_rule(rule, config, evidence),
        "regressions": lambda rule: regression_rule(rule, evidence, context.stored_scenarios, first=first),
        "latency": lambda rule: latency_rule(rule, config, evidence),
        "context": lambda rule: context_rule(rule, context.contract, context.training, context.folder),
    }
    for name, check in checks.items():
        rule = getattr(config, name)
        verdicts.append(_make_waived_verdict(name, rule) if isinstance(rule, WaivedRule) else check(rule))
    return verdicts


def _robot_suites(config: GateConfig) -> tuple[str, ...]:
    """Return the names of the suites that were run on a robot; if the robot rule is waived, its default suites."""
    return (config.robot if isinstance(config.robot, RobotRule) else RobotRule()).suites


def _evidence_rule(config: GateConfig, evidence: GateEvidence, context: GateContext) -> RuleVerdict:
    """Check that the trials are from these two policies and all paired, and that this evaluation is still allowed.

    A pair is one trial of the candidate and one of the champion with the same suite, slice and number. The evaluation
    is not allowed if the only planned evaluation (``looks: once``) was already made.
    """
    requirement = "trials of this candidate and this champion under the same conditions, each with its partner"
    problems = list(evidence.problems)
    if not evidence.candidate:
        problems.insert(0, "there are no trials of the candidate")
    if config.champion is not None and not evidence.champion:
        problems.append(f"there are no trials of the champion {config.champion}")
    if context.look_used:
        problems.append(context.look_used)
    metrics = {"candidate": len(evidence.candidate), "champion": len(evidence.champion)}
    if problems and config.looks == "once":
        problems.append(
            "no rule was evaluated" + ("" if context.look_used else ", and the one look is still available")
        )
    fit = f"{len(evidence.candidate)} trials" + (", all with their partner" if evidence.champion else "")
    return RuleVerdict(
        rule="evidence",
        verdict="missing" if problems else "yes",
        requirement=requirement,
        reason="; ".join(problems) or fit,
        evidence=metrics,
    )


def _make_waived_verdict(rule: str, waived: WaivedRule) -> RuleVerdict:
    return RuleVerdict(rule=rule, verdict="waived", requirement="nothing", reason=waived.waived)
