"""Gate: check every rule; a candidate passes only if every rule passes.

All rules must pass, so a candidate that breaks any one tested rule passes only if the test of that rule errs. The
probability of this is at most α, however many rules, metrics and slices there are: an intersection-union test (Berger,
Technometrics 24, 1982). Only the effects of ``improves``, of which one suffices, share α between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
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
    """Facts for the gate besides trials: hashes and contract of the policies, training record, stored failures.

    ``spent`` is a message if this candidate was already examined where only one look was planned. None means unknown.
    """

    candidate_hash: str = ""
    champion_hash: str = ""
    contract: Any = None
    trained: TrainingRecord | None = None
    stored: Sequence[str] | None = None
    spent: str = ""


def gate(
    config: GateConfig,
    candidate: Evaluation | Sequence[Evaluation],
    champion: Evaluation | Sequence[Evaluation] = (),
    *,
    known: GateContext | None = None,
) -> GateDecision:
    """Decide whether a candidate passes the gate.

    Args:
        config: the rules.
        candidate: evaluations of the candidate, one for each suite and domain.
        champion: evaluations of the policy that it would replace; none if there is no champion yet.
        known: further facts.

    Returns:
        The decision, with a verdict for every rule. Missing evidence raises no error; it is a verdict. With
        ``looks: once``, unsuitable evidence gets this verdict alone, and the look is not used.
    """
    about = known or GateContext()
    mine, theirs = ([one] if isinstance(one, Evaluation) else list(one) for one in (candidate, champion))
    evidence = GateEvidence.of(
        mine,
        theirs,
        candidate_hash=about.candidate_hash,
        champion_hash=about.champion_hash if config.champion else "",
        names=(config.candidate, config.champion),
    )
    first = _evidence_rule(config, evidence, about)
    # The one look is used for suitable evidence only: unsuitable trials are not evaluated.
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


def _judge_rules(config: GateConfig, evidence: GateEvidence, known: GateContext) -> list[RuleVerdict]:
    """Return the verdict of every rule in the order of a decision; waived rules are not evaluated."""
    first = config.champion is None
    found = list[RuleVerdict]()
    if first:
        reason = "there is no champion yet; the floor decides"
        found.append(RuleVerdict(rule="success", verdict="none", asked="nothing", reason=reason))
    elif isinstance(config.success, SuccessRule):
        found += success_rules(config.success, config, evidence)
    else:
        found.append(_make_waived_verdict("success", config.success))
    if config.improves and not first:
        found.append(improvement_rule(config, evidence))
    asked: dict[str, Callable[[Any], RuleVerdict]] = {
        "robot": lambda rule: robot_rule(rule, config, evidence),
        "floor": lambda rule: floor_rule(rule, config, evidence),
        "invariants": lambda rule: invariant_rule(rule, config, evidence),
        "regressions": lambda rule: regression_rule(rule, evidence, known.stored, first=first),
        "latency": lambda rule: latency_rule(rule, config, evidence),
        "context": lambda rule: context_rule(rule, known.contract, known.trained),
    }
    for name, ask in asked.items():
        rule = getattr(config, name)
        found.append(_make_waived_verdict(name, rule) if isinstance(rule, WaivedRule) else ask(rule))
    return found


def _robot_suites(config: GateConfig) -> tuple[str, ...]:
    """Return the suites that were run on a robot; if the rule is waived, its default suites."""
    return (config.robot if isinstance(config.robot, RobotRule) else RobotRule()).suites


def _evidence_rule(config: GateConfig, evidence: GateEvidence, known: GateContext) -> RuleVerdict:
    """Check that the trials are of these policies, are paired, and may be examined."""
    asked = "trials of this candidate and this champion under the same conditions, each with its partner"
    problems = list(evidence.problems)
    if not evidence.candidate:
        problems.insert(0, "there are no trials of the candidate")
    if config.champion is not None and not evidence.champion:
        problems.append(f"there are no trials of the champion {config.champion}")
    if known.spent:
        problems.append(known.spent)
    figures = {"candidate": len(evidence.candidate), "champion": len(evidence.champion)}
    if problems and config.looks == "once":
        problems.append("no rule was evaluated" + ("" if known.spent else ", and the one look is still available"))
    fit = f"{len(evidence.candidate)} trials" + (", all with their partner" if evidence.champion else "")
    return RuleVerdict(
        rule="evidence",
        verdict="missing" if problems else "yes",
        asked=asked,
        reason="; ".join(problems) or fit,
        evidence=figures,
    )


def _make_waived_verdict(rule: str, waived: WaivedRule) -> RuleVerdict:
    return RuleVerdict(rule=rule, verdict="waived", asked="nothing", reason=waived.waived)
