"""Rules that ask for no rate: what must never happen, what must not be unlearned, how long a command may take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twinloop.core.decision import RuleVerdict, Verdict
from twinloop.release.evidence import Evidence, Trial, of_suites
from twinloop.release.gate_config import GateConfig, InvariantRule, LatencyRule, RegressionRule
from twinloop.stats import clopper_pearson, least_values, quantile_upper

_SHOWN = 3


def invariant_rule(rule: InvariantRule, config: GateConfig, evidence: Evidence) -> RuleVerdict:
    """No violation in any trial, few lost worlds, and success wherever there must be."""
    asked = "no safety limit broken in any trial"
    trials = evidence.candidate
    if rule.must_succeed:
        asked += f", success in every trial of {', '.join(rule.must_succeed)}"
    unknown = [trial for trial in trials if trial.violations is None]
    missing = [name for name in rule.must_succeed if name not in {t.key[2] for t in trials} | {t.slice for t in trials}]
    broken = [trial for trial in trials if trial.violations]
    lost = [trial for trial in trials if not trial.valid]
    failed = [t for t in trials if not t.won and (t.key[2] in rule.must_succeed or t.slice in rule.must_succeed)]
    found = [
        *([f"{len(broken)} of {len(trials)} trials broke a limit ({_named(broken)})"] if broken else []),
        *([f"{len(failed)} trials that must succeed failed ({_named(failed)})"] if failed else []),
        *([f"{len(lost)} worlds were lost ({_named(lost)})"] if len(lost) > rule.invalid * len(trials) else []),
    ]
    lacking = [
        *(["there are no trials"] if not trials else []),
        *([f"{len(unknown)} trials do not say whether a limit was broken ({_named(unknown)})"] if unknown else []),
        *([f"no trial of {', '.join(missing)}"] if missing else []),
    ]
    figures = {"trials": len(trials), "broken": len(broken), "lost": len(lost), "failed": len(failed)}
    if found or lacking:
        verdict: Verdict = "no" if found else "missing"
        return RuleVerdict(
            rule="invariants", verdict=verdict, asked=asked, reason="; ".join(found + lacking), evidence=figures
        )
    high = float(clopper_pearson(0, len(trials), level=1 - 2 * config.alpha).high)
    reason = f"none in {len(trials)} trials, which shows a rate below {high:.2%} ({1 - config.alpha:.0%})"
    return RuleVerdict(
        rule="invariants", verdict="yes", asked=asked, reason=reason, evidence={**figures, "rate_below": high}
    )


def regression_rule(
    rule: RegressionRule, evidence: Evidence, stored: Sequence[str] | None, *, first: bool
) -> RuleVerdict:
    """No stored scenario that the champion handles and the candidate does not.

    Args:
        rule: what is asked.
        evidence: of both.
        stored: names of the stored scenarios; None where nobody knows.
        first: there is no champion; then nothing that is handled can be lost, but it must be tried.
    """
    asked = f"no stored failure that the champion handles (in {rule.handled:.0%} of trials) and the candidate does not"
    sides = (of_suites(side, rule.suites, None, ()) for side in (evidence.candidate, evidence.champion))
    mine, theirs = (_handled(side, rule.handled) for side in sides)
    if stored is None and not mine:
        reason = f"there are no trials of {', '.join(rule.suites)}, and no workspace that says what is stored"
        return RuleVerdict(rule="regressions", verdict="missing", asked=asked, reason=reason, evidence={})
    untried = [name for name in stored or () if name not in mine or (not first and name not in theirs)]
    untried += [name for name in theirs if name not in mine and name not in untried]
    lost = [name for name, ok in mine.items() if not ok and theirs.get(name, False)]
    figures: dict[str, Any] = {"scenarios": len(mine), "handled": sum(mine.values()), "lost": lost, "untried": untried}
    if lost:
        reason = f"{len(lost)} of {len(mine)} stored failures came back: {_some(lost)}"
        return RuleVerdict(rule="regressions", verdict="no", asked=asked, reason=reason, evidence=figures)
    if untried:
        reason = f"{len(untried)} stored failures were not tried by both: {_some(untried)}"
        return RuleVerdict(rule="regressions", verdict="missing", asked=asked, reason=reason, evidence=figures)
    won = [name for name, ok in mine.items() if ok and not theirs.get(name, False)]
    reason = f"{sum(mine.values())} of {len(mine)} handled, {len(won)} of them new" if mine else "no failure is stored"
    return RuleVerdict(rule="regressions", verdict="yes", asked=asked, reason=reason, evidence=figures)


def latency_rule(rule: LatencyRule, config: GateConfig, evidence: Evidence) -> RuleVerdict:
    """An upper limit of confidence of the quantile stays within the budget."""
    asked = f"the {rule.quantile:g} quantile of latency is at most {1e3 * rule.budget_s:g} ms"
    known = [trial.latency_s for trial in evidence.candidate if trial.latency_s is not None]
    unknown = len(evidence.candidate) - len(known)
    if not known or unknown:
        reason = f"{unknown} of {len(evidence.candidate)} trials do not say how long commands took"
        return RuleVerdict(rule="latency", verdict="missing", asked=asked, reason=reason, evidence={"unknown": unknown})
    high = quantile_upper(known, rule.quantile, level=1 - config.alpha)
    figures = {"trials": len(known), "largest_s": max(known), "high_s": high}
    if high is None:
        needed = least_values(rule.quantile, level=1 - config.alpha)
        reason = f"{len(known)} trials do not bound that quantile; {needed} do"
        return RuleVerdict(rule="latency", verdict="missing", asked=asked, reason=reason, evidence=figures)
    reason = f"at most {1e3 * high:.3g} ms ({1 - config.alpha:.0%}), the slowest of {len(known)} trials "
    reason += f"{1e3 * max(known):.3g} ms"
    verdict: Verdict = "yes" if high <= rule.budget_s else "no"
    return RuleVerdict(rule="latency", verdict=verdict, asked=asked, reason=reason, evidence=figures)


def _handled(trials: Sequence[Trial], share: float) -> dict[str, bool]:
    """Which scenarios, one a slice, are handled."""
    outcomes: dict[str, list[bool]] = {}
    for trial in trials:
        outcomes.setdefault(trial.key[2], []).append(trial.won)
    return {name: sum(won) >= share * len(won) for name, won in outcomes.items()}


def _named(trials: Sequence[Trial]) -> str:
    return _some([f"{trial.slice}/{trial.key[3]}" + (f": {trial.reason}" if trial.reason else "") for trial in trials])


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
