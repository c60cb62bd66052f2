"""Rules about how often the candidate succeeds: against the champion, in each slice, and from the floor up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twinloop.core.decision import RuleVerdict, Verdict
from twinloop.release.evidence import Evidence, Trial, of_suites
from twinloop.release.gate_config import FloorRule, GateConfig, Improvement, RobotRule, SuccessRule
from twinloop.release.paired_rule import Paired, below_rate, compare, rate_low
from twinloop.stats import clopper_pearson

Pairs = Sequence[tuple[Trial, Trial]]


def success_rules(rule: SuccessRule, config: GateConfig, evidence: Evidence) -> list[RuleVerdict]:
    """The candidate against the champion, over all trials and, where asked, in every slice."""
    pairs = evidence.pairs(rule.suites, rule.domain, config.regression_suites)
    asked = f"better than {config.champion} by more than {_points(rule.margin)}"
    if rule.within is not None:
        asked = f"not worse than {config.champion} by {_points(rule.within)} or more"
    found = [_verdict("success", asked, _compared(pairs, "success", rule.margin, config.alpha, config), config)]
    if rule.slices is not None:
        found.append(_every_slice(rule, config, pairs))
    return found


def robot_rule(rule: RobotRule, config: GateConfig, evidence: Evidence) -> RuleVerdict:
    """Not worse by the margin in the trials on a robot alone; ``none`` where there are no such trials."""
    asked = f"on a robot not worse than {config.champion} by {_points(rule.within)} or more"
    there = evidence.on_robot(rule.suites, config.regression_suites)
    if not there.candidate:
        reason = "no trials on a robot: this decision rests on simulated trials alone"
        return RuleVerdict(rule="robot", verdict="none", asked=asked, reason=reason)
    if config.champion is None:
        reason = f"there is no champion yet; the floor is asked of the {len(there.candidate)} trials on a robot as well"
        return RuleVerdict(rule="robot", verdict="none", asked="nothing", reason=reason)
    pairs = there.pairs(None, None, ())
    return _verdict("robot", asked, _compared(pairs, "success", -rule.within, config.alpha, config), config)


def improvement_rule(config: GateConfig, evidence: Evidence) -> RuleVerdict:
    """At least one of several effects, each tested at an equal part of α (Bonferroni)."""
    rows: list[dict[str, Any]] = []
    alpha = config.alpha / len(config.improves)
    for item in config.improves:
        pairs = evidence.pairs(None, None, config.regression_suites)
        pairs = [pair for pair in pairs if item.slice in (None, pair[0].slice, pair[0].key[2])]
        found = _compared(pairs, item.metric, item.better, alpha, config)
        rows.append({"effect": _effect(item), **(found.to_json() if isinstance(found, Paired) else {"missing": found})})
    shown = [row for row in rows if row.get("p_value", 1.0) <= alpha]
    reason = "; ".join(
        f"{row['effect']}: {row['missing']}"
        if "missing" in row
        else f"{row['effect']}: {row['difference']:+.3f}, p = {row['p_value']:.2g}"
        for row in rows
    )
    return RuleVerdict(
        rule="improves",
        verdict="yes" if shown else _undecided(config),
        asked=f"one of {len(rows)} effects at least, each at α = {alpha:.2g}",
        reason=reason,
        evidence={"effects": rows},
    )


def floor_rule(rule: FloorRule, config: GateConfig, evidence: Evidence) -> RuleVerdict:
    """Every slice is shown to reach the floor: a limit of confidence does, not the share that was seen."""
    asked = f"every slice succeeds in {rule.success:.0%} of trials at least ({1 - config.alpha:.0%} confidence)"
    trials = of_suites(evidence.candidate, None, None, config.regression_suites)
    slices = list(dict.fromkeys(trial.slice for trial in trials))
    if not slices:
        return RuleVerdict(rule="floor", verdict="missing", asked=asked, reason="there are no trials", evidence={})
    rows = [_slice_rate(name, [t.won for t in trials if t.slice == name], rule.success, config) for name in slices]
    rows.sort(key=lambda row: (row["low"], row["rate"]))
    low = [row for row in rows if row["low"] < rule.success]
    worst = rows[0]
    said = f"the worst of {len(rows)} slices, {worst['slice']}: {worst['successes']} of {worst['trials']}, "
    said += f"at least {worst['low']:.0%}"
    reason = f"{len(low)} slices are not shown to; {said}"
    if not low:
        return RuleVerdict(rule="floor", verdict="yes", asked=asked, reason=said, evidence={"slices": rows})
    below = any(row["below"] for row in low)
    more = "" if below else "; more trials may show it"
    verdict: Verdict = "no" if below else _undecided(config)
    return RuleVerdict(rule="floor", verdict=verdict, asked=asked, reason=reason + more, evidence={"slices": rows})


def _slice_rate(name: str, won: Sequence[bool], floor: float, config: GateConfig) -> dict[str, Any]:
    """A slice's successes, and between which limits its rate lies."""
    wins, n = int(sum(won)), len(won)
    if config.looks == "once":
        interval = clopper_pearson(wins, n, level=1 - 2 * config.alpha)
        low, below = float(interval.low), float(interval.high) < floor
    else:
        low, below = rate_low(won, config.alpha), below_rate(won, floor) <= config.alpha
    return {"slice": name, "successes": wins, "trials": n, "rate": wins / n, "low": low, "below": below}


def _every_slice(rule: SuccessRule, config: GateConfig, pairs: Pairs) -> RuleVerdict:
    """Not worse in any slice: all must be shown, so each is tested at the whole of α."""
    margin = float(rule.slices or 0.0)
    asked = f"in no slice worse than {config.champion} by {_points(margin)} or more"
    names = list(dict.fromkeys(mine.slice for mine, _ in pairs))
    rows: list[dict[str, Any]] = []
    for name in names:
        found = _compared([pair for pair in pairs if pair[0].slice == name], "success", -margin, config.alpha, config)
        assert isinstance(found, Paired)  # noqa: S101 - a slice that is named has trials, and success is never missing
        rows.append({"slice": name, "answer": found.answer, **found.to_json()})
    rows.sort(key=lambda row: row["low"])
    left = [row for row in rows if row["answer"] != "shown"]
    if not rows:
        return RuleVerdict(rule="slices", verdict="missing", asked=asked, reason="there are no pairs", evidence={})
    worst = rows[0]
    reason = (
        f"shown in {len(rows) - len(left)} of {len(rows)}; the worst, {worst['slice']}: {worst['difference']:+.3f}, "
        f"at least {worst['low']:+.3f}, p = {worst['p_value']:.2g}"
    )
    against = any(row["answer"] == "against" for row in left)
    verdict: Verdict = "yes" if not left else "no" if against else _undecided(config)
    return RuleVerdict(rule="slices", verdict=verdict, asked=asked, reason=reason, evidence={"slices": rows})


def _compared(pairs: Pairs, metric: str, margin: float, alpha: float, config: GateConfig) -> Paired | str:
    """The test of some pairs, or what they lack."""
    if not pairs:
        return "there are no pairs of trials"
    if metric == "success":
        a, b = ([float(pair[side].won) for pair in pairs] for side in (0, 1))
    else:
        lacking = sum(trial.progress is None for pair in pairs for trial in pair)
        if lacking:
            return f"{lacking} trials do not say {metric}"
        a, b = ([float((pair[side].progress or 0.0) * pair[side].valid) for pair in pairs] for side in (0, 1))
    names = [mine.slice for mine, _ in pairs]
    return compare(a, b, names, margin=margin, alpha=alpha, looks=config.looks)


def _verdict(rule: str, asked: str, found: Paired | str, config: GateConfig) -> RuleVerdict:
    if isinstance(found, str):
        return RuleVerdict(rule=rule, verdict="missing", asked=asked, reason=found, evidence={})
    reason = (
        f"difference {found.difference:+.3f}, at least {found.low:+.3f} ({1 - found.alpha:.0%}), "
        f"p = {found.p_value:.2g}: {found.wins} pairs won, {found.losses} lost of {found.pairs}"
    )
    verdict: Verdict = "yes"
    if found.answer == "against":
        verdict, reason = "no", f"the contrary is shown (p = {found.p_against:.2g}); {reason}"
    elif found.answer == "open":
        verdict = _undecided(config)
        more = f"; about {found.further} more pairs would show it if all goes on as seen" if found.further else ""
        reason = f"not shown; {reason}{more if config.looks == 'any' else ''}"
    return RuleVerdict(rule=rule, verdict=verdict, asked=asked, reason=reason, evidence=found.to_json())


def _undecided(config: GateConfig) -> Verdict:
    """More trials may decide, unless the one look has been taken."""
    return "missing" if config.looks == "any" else "no"


def _effect(item: Improvement) -> str:
    where = f" in {item.slice}" if item.slice else ""
    return f"{item.metric}{where} better{f' by {_points(item.better)}' if item.better else ''}"


def _points(share: float) -> str:
    return f"{100 * share:g} points" if share else "nothing"
