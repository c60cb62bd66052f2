"""Rules of the gate about success rates: compared with the champion in the same trials, and in each slice."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.decision import RuleVerdict, Verdict
from twinloop.core.plain import JsonRecord
from twinloop.release.evidence import EvidenceTrial, GateEvidence, interleave_slices, select_trials
from twinloop.release.gate_config import FloorRule, GateConfig, ImprovementRule, Looks, RobotRule, SuccessRule
from twinloop.stats import MOST_PAIRS, PairedCounts, clopper_pearson, log_e_mean, mcnemar, paired_p_value

Answer = Literal["shown", "against", "open"]
_HALVINGS = 12  # of the range in which a confidence limit is searched: to 0.05 points


@dataclass(frozen=True, kw_only=True)
class PairedEffect(JsonRecord):
    """Test of mean(candidate) − mean(champion) of pairs against a margin.

    ``p_value`` tests "the difference is at most the margin", ``p_against`` tests "it is at least the margin". ``low``
    is a lower confidence limit of the difference at level 1 − α. ``further`` is the estimated number of additional
    pairs for a decision if the results continue as before.
    """

    margin: float
    alpha: float
    pairs: int
    wins: int
    losses: int
    difference: float
    low: float
    p_value: float
    p_against: float
    method: str
    further: int | None

    @property
    def answer(self) -> Answer:
        """Result of the test: ``shown``, ``against`` (the contrary is shown) or ``open``."""
        if self.p_value <= self.alpha:
            return "shown"
        return "against" if self.p_against <= self.alpha else "open"


def compare_pairs(
    candidate: ArrayLike,
    champion: ArrayLike,
    slices: Sequence[str],
    *,
    margin: float,
    alpha: float,
    looks: Looks,
) -> PairedEffect:
    """Test mean(candidate) − mean(champion) > ``margin`` on pairs.

    For any number of looks: betting with constant fractions on the differences (`stats.betting`), with the slices
    interleaved. For one look: McNemar's exact test against 0, the exact unconditional test against a margin. The
    betting test is also used for scores that are not binary and for more pairs than the exact test can handle.

    Args:
        candidate: successes or scores in [0, 1], ``(n,)``.
        champion: those of the same trials.
        slices: slice of each trial.
        margin: margin of the hypothesis; negative for "not worse by so much".
        alpha: level.
        looks: ``any`` or ``once``.
    """
    order, at = interleave_slices(slices)
    a, b = np.asarray(candidate, dtype=np.float64)[order], np.asarray(champion, dtype=np.float64)[order]
    off = a - b
    p_value, p_against = (
        _compute_p_value(log_wealth(off, margin, at, alternative=side)) for side in ("greater", "less")
    )
    method = "e-process of paired differences, valid at every look"
    binary = bool(np.isin(a, (0, 1)).all() and np.isin(b, (0, 1)).all())
    if looks == "once" and binary and len(off) <= MOST_PAIRS:
        p_value, p_against = _compute_exact_p_values(a, b, margin)
        method = "McNemar's exact test" if margin == 0 else "exact unconditional test of pairs (Tango's statistic)"
    return PairedEffect(
        margin=margin,
        alpha=alpha,
        pairs=len(off),
        wins=int((off > 0).sum()),
        losses=int((off < 0).sum()),
        difference=float(off.mean()),
        low=_compute_lower_limit(off, at, alpha),
        p_value=p_value,
        p_against=p_against,
        method=method,
        further=_estimate_further_pairs(off, margin, alpha),
    )


def log_wealth(
    difference: ArrayLike,
    margin: float,
    looks: NDArray[np.intp],
    *,
    alternative: Literal["greater", "less"] = "greater",
) -> NDArray[np.float64]:
    """Return the logarithm of the wealth at each look, ``(…, nlook)``, against mean(difference) ≤ ``margin``.

    Args:
        difference: candidate minus champion of each pair, in the order of `interleave_slices`, ``(…, n)``.
        margin: margin of the hypothesis.
        looks: number of pairs at each look, ``(nlook,)``.
        alternative: ``less`` bets against mean(difference) ≥ ``margin``.
    """
    return log_e_mean(difference, margin, low=-1.0, high=1.0, alternative=alternative, bets="even")[..., looks - 1]


def compute_rate_limit(won: ArrayLike, alpha: float) -> float:
    """Return a lower confidence limit of the rate of outcomes ``(n,)`` with error at most α, valid at every look."""
    return _search_largest_rejected(
        lambda rate: float(log_e_mean(won, rate, alternative="greater", bets="even").max()), 0.0, 1.0, alpha
    )


def compute_below_p_value(won: ArrayLike, rate: float) -> float:
    """Return the anytime-valid p-value of the hypothesis that the rate is at least ``rate``."""
    return _compute_p_value(log_e_mean(won, rate, alternative="less", bets="even"))


def _compute_p_value(log_e: NDArray[np.float64]) -> float:
    return float(np.exp(-max(float(log_e.max()), 0.0)))


def _compute_exact_p_values(a: NDArray[np.float64], b: NDArray[np.float64], margin: float) -> tuple[float, float]:
    only_a, only_b = int((a > b).sum()), int((b > a).sum())
    both = int(((a == 1) & (b == 1)).sum())
    counts = PairedCounts(both=both, only_a=only_a, only_b=only_b, neither=len(a) - both - only_a - only_b)
    turned = PairedCounts(both=both, only_a=only_b, only_b=only_a, neither=counts.neither)
    if margin == 0:
        return mcnemar(counts, alternative="greater"), mcnemar(turned, alternative="greater")
    return paired_p_value(counts, difference=margin), paired_p_value(turned, difference=-margin)


def _compute_lower_limit(off: NDArray[np.float64], looks: NDArray[np.intp], alpha: float) -> float:
    """Return the largest margin that is rejected, together with all smaller ones."""
    return _search_largest_rejected(lambda margin: float(log_wealth(off, margin, looks).max()), -1.0, 1.0, alpha)


def _search_largest_rejected(wealth: Callable[[float], float], low: float, high: float, alpha: float) -> float:
    """Return the largest rejected value if the wealth decreases with the value; ``low`` if none is rejected."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if wealth(middle) >= -math.log(alpha) else (low, middle)
    return low


def _estimate_further_pairs(off: NDArray[np.float64], margin: float, alpha: float) -> int | None:
    """Estimate the missing pairs if the wealth grows as with the best constant bet; None if it does not grow."""
    bets = np.linspace(0.01, 0.99, 99)[:, None] / (1 + margin)
    growth = float(np.log1p(bets * (off - margin)).mean(axis=1).max())
    if growth <= 0:
        return None
    needed = -math.log(alpha) / growth
    # Not knowing the best bet costs about half a logarithm of the number of pairs (Cover & Ordentlich, 1996).
    needed += 0.5 * math.log(max(needed, 2.0)) / growth
    return max(math.ceil(needed) - len(off), 0)


Pairs = Sequence[tuple[EvidenceTrial, EvidenceTrial]]


def success_rules(rule: SuccessRule, config: GateConfig, evidence: GateEvidence) -> list[RuleVerdict]:
    """Compare the candidate with the champion over all trials and, if requested, in every slice."""
    pairs = evidence.pair_trials(rule.suites, rule.domain, config.regression_suites)
    asked = f"better than {config.champion} by more than {_format_points(rule.margin)}"
    if rule.within is not None:
        asked = f"not worse than {config.champion} by {_format_points(rule.within)} or more"
    found = [
        _make_verdict("success", asked, _compare_metric(pairs, "success", rule.margin, config.alpha, config), config)
    ]
    if rule.slices is not None:
        found.append(_check_every_slice(rule, config, pairs))
    return found


def robot_rule(rule: RobotRule, config: GateConfig, evidence: GateEvidence) -> RuleVerdict:
    """Check that the candidate is not worse by the margin in trials on a robot; ``none`` without such trials."""
    asked = f"on a robot not worse than {config.champion} by {_format_points(rule.within)} or more"
    there = evidence.select_robot_trials(rule.suites, config.regression_suites)
    if not there.candidate:
        reason = "no trials on a robot: this decision is based on simulated trials only"
        return RuleVerdict(rule="robot", verdict="none", asked=asked, reason=reason)
    if config.champion is None:
        reason = f"there is no champion yet; the floor also applies to the {len(there.candidate)} trials on a robot"
        return RuleVerdict(rule="robot", verdict="none", asked="nothing", reason=reason)
    compared = _compare_metric(there.pair_trials(None, None, ()), "success", -rule.within, config.alpha, config)
    return _make_verdict("robot", asked, compared, config)


def improvement_rule(config: GateConfig, evidence: GateEvidence) -> RuleVerdict:
    """Check that at least one of several effects is shown, each tested at an equal part of α (Bonferroni)."""
    rows: list[dict[str, Any]] = []
    alpha = config.alpha / len(config.improves)
    every = evidence.pair_trials(None, None, config.regression_suites)
    for item in config.improves:
        pairs = [pair for pair in every if item.slice in (None, pair[0].slice, pair[0].key[2])]
        found = _compare_metric(pairs, item.metric, item.better, alpha, config)
        rows.append(
            {
                "effect": _format_effect(item),
                **(found.to_json() if isinstance(found, PairedEffect) else {"missing": found}),
            }
        )
    reason = "; ".join(
        f"{row['effect']}: {row['missing']}"
        if "missing" in row
        else f"{row['effect']}: {row['difference']:+.3f}, p = {row['p_value']:.2g}"
        for row in rows
    )
    return RuleVerdict(
        rule="improves",
        verdict="yes" if any(row.get("p_value", 1.0) <= alpha for row in rows) else _get_undecided_verdict(config),
        asked=f"at least one of {len(rows)} effects, each at α = {alpha:.2g}",
        reason=reason,
        evidence={"effects": rows},
    )


def floor_rule(rule: FloorRule, config: GateConfig, evidence: GateEvidence) -> RuleVerdict:
    """Check that every slice reaches the floor; the lower confidence limit must reach it, not the observed rate."""
    asked = f"every slice succeeds in at least {rule.success:.0%} of trials ({1 - config.alpha:.0%} confidence)"
    verdict = partial(RuleVerdict, rule="floor", asked=asked)
    trials = select_trials(evidence.candidate, None, None, config.regression_suites)
    slices = list(dict.fromkeys(trial.slice for trial in trials))
    if not slices:
        return verdict(verdict="missing", reason="there are no trials")
    rows = [_rate_slice(name, [t.won for t in trials if t.slice == name], rule.success, config) for name in slices]
    rows.sort(key=lambda row: (row["low"], row["rate"]))
    low = [row for row in rows if row["low"] < rule.success]
    worst = rows[0]
    said = (
        f"the worst of {len(rows)} slices, {worst['slice']}: {worst['successes']} of {worst['trials']}, "
        f"at least {worst['low']:.0%}"
    )
    if not low:
        return verdict(verdict="yes", reason=said, evidence={"slices": rows})
    below = any(row["below"] for row in low)
    return verdict(
        verdict="no" if below else _get_undecided_verdict(config),
        reason=f"not shown for {len(low)} slices; {said}{'' if below else '; more trials may show it'}",
        evidence={"slices": rows},
    )


def _rate_slice(name: str, won: Sequence[bool], floor: float, config: GateConfig) -> dict[str, Any]:
    """Return a slice's successes and the lower confidence limit of its rate."""
    wins, n = int(sum(won)), len(won)
    if config.looks == "once":
        interval = clopper_pearson(wins, n, level=1 - 2 * config.alpha)
        low, below = float(interval.low), float(interval.high) < floor
    else:
        low, below = compute_rate_limit(won, config.alpha), compute_below_p_value(won, floor) <= config.alpha
    return {"slice": name, "successes": wins, "trials": n, "rate": wins / n, "low": low, "below": below}


def _check_every_slice(rule: SuccessRule, config: GateConfig, pairs: Pairs) -> RuleVerdict:
    """Check that no slice is worse. All slices must pass, so each is tested at the full α."""
    margin = float(rule.slices or 0.0)
    verdict = partial(
        RuleVerdict,
        rule="slices",
        asked=f"in no slice worse than {config.champion} by {_format_points(margin)} or more",
    )
    rows: list[dict[str, Any]] = []
    for name in dict.fromkeys(mine.slice for mine, _ in pairs):
        found = _compare_metric(
            [pair for pair in pairs if pair[0].slice == name], "success", -margin, config.alpha, config
        )
        assert isinstance(found, PairedEffect)  # noqa: S101 - each slice here has trials, and success is never missing
        rows.append({"slice": name, "answer": found.answer, **found.to_json()})
    if not rows:
        return verdict(verdict="missing", reason="there are no pairs")
    rows.sort(key=lambda row: row["low"])
    answers = [row["answer"] for row in rows]
    worst = rows[0]
    reason = (
        f"shown in {answers.count('shown')} of {len(rows)}; the worst, {worst['slice']}: {worst['difference']:+.3f}, "
        f"at least {worst['low']:+.3f}, p = {worst['p_value']:.2g}"
    )
    said: Verdict = "no" if "against" in answers else _get_undecided_verdict(config) if "open" in answers else "yes"
    return verdict(verdict=said, reason=reason, evidence={"slices": rows})


def _compare_metric(pairs: Pairs, metric: str, margin: float, alpha: float, config: GateConfig) -> PairedEffect | str:
    """Test a metric of pairs against a margin; return a message instead if data are missing."""
    if not pairs:
        return "there are no pairs of trials"
    if metric == "success":
        a, b = ([float(pair[side].won) for pair in pairs] for side in (0, 1))
    else:
        lacking = sum(trial.progress is None for pair in pairs for trial in pair)
        if lacking:
            return f"{lacking} trials have no {metric}"
        a, b = ([float((pair[side].progress or 0.0) * pair[side].valid) for pair in pairs] for side in (0, 1))
    names = [mine.slice for mine, _ in pairs]
    return compare_pairs(a, b, names, margin=margin, alpha=alpha, looks=config.looks)


def _make_verdict(rule: str, asked: str, found: PairedEffect | str, config: GateConfig) -> RuleVerdict:
    if isinstance(found, str):
        return RuleVerdict(rule=rule, verdict="missing", asked=asked, reason=found)
    reason = (
        f"difference {found.difference:+.3f}, at least {found.low:+.3f} ({1 - found.alpha:.0%}), "
        f"p = {found.p_value:.2g}: {found.wins} pairs won, {found.losses} lost of {found.pairs}"
    )
    verdict: Verdict = "yes"
    if found.answer == "against":
        verdict, reason = "no", f"the contrary is shown (p = {found.p_against:.2g}); {reason}"
    elif found.answer == "open":
        verdict = _get_undecided_verdict(config)
        more = f"; about {found.further} more pairs would show it if the results continue" if found.further else ""
        reason = f"not shown; {reason}{more if config.looks == 'any' else ''}"
    return RuleVerdict(rule=rule, verdict=verdict, asked=asked, reason=reason, evidence=found.to_json())


def _get_undecided_verdict(config: GateConfig) -> Verdict:
    """Return the verdict for an undecided test: more trials may decide, unless only one look is allowed."""
    return "missing" if config.looks == "any" else "no"


def _format_effect(item: ImprovementRule) -> str:
    where = f" in {item.slice}" if item.slice else ""
    return f"{item.metric}{where} better{f' by {_format_points(item.better)}' if item.better else ''}"


def _format_points(share: float) -> str:
    return f"{100 * share:g} points" if share else "nothing"
