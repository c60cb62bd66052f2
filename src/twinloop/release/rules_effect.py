"""Check the gate's rules about success rates: difference from the champion in the same trials, and smallest rates."""

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
from twinloop.stats import MAX_PAIRS, PairedCounts, clopper_pearson, log_e_mean, mcnemar, paired_p_value

Answer = Literal["shown", "against", "open"]
_HALVINGS = 12  # bisection steps in the search of a confidence limit, which give it to 0.05 percentage points


@dataclass(frozen=True, kw_only=True)
class PairedEffect(JsonRecord):
    """Result of testing whether the mean difference of pairs of trials, candidate minus champion, exceeds a margin.

    Attributes:
        margin: margin, as a share; negative for "not worse by so much".
        alpha: level of the test.
        pairs: number of pairs.
        wins: number of pairs in which the candidate is better.
        losses: number of pairs in which the champion is better.
        difference: observed mean difference.
        low: lower confidence limit of the difference at level 1 − α.
        p_value: p-value of the hypothesis that the difference is at most the margin.
        p_against: p-value of the hypothesis that the difference is at least the margin.
        method: name of the test.
        further: estimated number of additional pairs until a decision if the results continue as before; None if more
            pairs are not expected to decide.
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
        """Result of the test: ``shown`` (above the margin), ``against`` (below the margin) or ``open`` (undecided)."""
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
    """Test whether the mean of pairs of trials, candidate minus champion, exceeds a margin.

    For repeated evaluation (``looks="any"``) the test is a betting test (`stats.betting`). It bets constant fractions
    of its money on the difference of each next pair, and rejects the hypothesis when the money has grown to 1/α of its
    start. It may be evaluated after any number of pairs. The pairs of the slices are interleaved.

    For one evaluation (``looks="once"``), the test is McNemar's exact test if the margin is 0, else the exact
    unconditional test. The betting test is also used for scores that are not binary, and for more pairs than the exact
    test can handle.

    Args:
        candidate: successes or scores of the candidate in [0, 1], shape ``(n,)``.
        champion: successes or scores of the champion in the same trials, shape ``(n,)``.
        slices: name of the evaluation slice (condition of a suite) of each trial.
        margin: margin, as a share; negative for "not worse by so much".
        alpha: level of the test.
        looks: ``any`` if the trials may be evaluated repeatedly while trials are added, ``once`` for one planned
            evaluation.
    """
    order, at = interleave_slices(slices)
    a, b = np.asarray(candidate, dtype=np.float64)[order], np.asarray(champion, dtype=np.float64)[order]
    differences = a - b
    p_value, p_against = (
        _compute_p_value(log_wealth(differences, margin, at, alternative=side)) for side in ("greater", "less")
    )
    method = "e-process of paired differences, valid at every look"
    binary = bool(np.isin(a, (0, 1)).all() and np.isin(b, (0, 1)).all())
    if looks == "once" and binary and len(differences) <= MAX_PAIRS:
        p_value, p_against = _compute_exact_p_values(a, b, margin)
        method = "McNemar's exact test" if margin == 0 else "exact unconditional test of pairs (Tango's statistic)"
    return PairedEffect(
        margin=margin,
        alpha=alpha,
        pairs=len(differences),
        wins=int((differences > 0).sum()),
        losses=int((differences < 0).sum()),
        difference=float(differences.mean()),
        low=_compute_lower_limit(differences, at, alpha),
        p_value=p_value,
        p_against=p_against,
        method=method,
        further=_estimate_further_pairs(differences, margin, alpha),
    )


def log_wealth(
    difference: ArrayLike,
    margin: float,
    looks: NDArray[np.intp],
    *,
    alternative: Literal["greater", "less"] = "greater",
) -> NDArray[np.float64]:
    """Return the logarithm of the evidence value (wealth of a betting test) against mean(difference) ≤ ``margin``.

    The hypothesis is rejected at the level α as soon as the result reaches log(1/α), at any number of pairs (see
    `stats.betting`).

    Args:
        difference: candidate minus champion of each pair, in the order of `interleave_slices`, shape ``(…, n)``.
        margin: margin of the hypothesis.
        looks: number of pairs at each evaluation of the test, shape ``(nlook,)``.
        alternative: ``greater`` for this hypothesis; ``less`` tests against mean(difference) ≥ ``margin``.

    Returns:
        Logarithm of the wealth at each evaluation, shape ``(…, nlook)``.
    """
    return log_e_mean(difference, margin, low=-1.0, high=1.0, alternative=alternative, bets="even")[..., looks - 1]


def compute_rate_limit(won: ArrayLike, alpha: float) -> float:
    """Return a lower confidence bound of a success rate that stays valid if it is evaluated repeatedly.

    Args:
        won: outcomes, 0 or 1, shape ``(n,)``.
        alpha: probability that the bound ever exceeds the true rate.
    """
    return _search_largest_rejected(
        lambda rate: float(log_e_mean(won, rate, alternative="greater", bets="even").max()), 0.0, 1.0, alpha
    )


def compute_below_p_value(won: ArrayLike, rate: float) -> float:
    """Return the p-value of the hypothesis that a success rate is at least ``rate``, valid after any number of trials.

    Args:
        won: outcomes, 0 or 1, shape ``(n,)``.
        rate: hypothetical success rate.
    """
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


def _compute_lower_limit(differences: NDArray[np.float64], looks: NDArray[np.intp], alpha: float) -> float:
    """Return a lower confidence bound of the mean difference: the largest margin that a betting test rejects.

    Args:
        differences: candidate minus champion of each pair, shape ``(n,)``.
        looks: number of pairs at each evaluation of the test, shape ``(nlook,)``.
        alpha: level of the test.
    """
    return _search_largest_rejected(
        lambda margin: float(log_wealth(differences, margin, looks).max()), -1.0, 1.0, alpha
    )


def _search_largest_rejected(wealth: Callable[[float], float], low: float, high: float, alpha: float) -> float:
    """Return the largest value that a betting test rejects, by bisection; ``low`` if none is rejected.

    Args:
        wealth: function of a hypothetical value. It returns the largest logarithm of the evidence (wealth) against that
            value, and must decrease with it.
        low: lower end of the searched interval.
        high: upper end of the searched interval.
        alpha: level of the test; a value is rejected if the logarithm is at least log(1/α).
    """
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if wealth(middle) >= -math.log(alpha) else (low, middle)
    return low


def _estimate_further_pairs(differences: NDArray[np.float64], margin: float, alpha: float) -> int | None:
    """Estimate the number of additional pairs until a betting test decides.

    The test bets a constant fraction of its money on every pair. The estimate assumes the fraction that would have
    gained most so far, and that the money keeps growing at the same rate.

    Args:
        differences: candidate minus champion of each pair so far, shape ``(n,)``.
        margin: margin of the hypothesis.
        alpha: level of the test, which decides when the money has grown to 1/α of its start.

    Returns:
        Number of pairs, at least 0; None if the money does not grow with any fraction, so that no decision is expected.
    """
    bets = np.linspace(0.01, 0.99, 99)[:, None] / (1 + margin)
    growth = float(np.log1p(bets * (differences - margin)).mean(axis=1).max())
    if growth <= 0:
        return None
    needed = -math.log(alpha) / growth
    # The best bet is unknown, which costs about half the logarithm of the number of pairs (Cover & Ordentlich, 1996).
    needed += 0.5 * math.log(max(needed, 2.0)) / growth
    return max(math.ceil(needed) - len(differences), 0)


Pairs = Sequence[tuple[EvidenceTrial, EvidenceTrial]]


def success_rules(rule: SuccessRule, config: GateConfig, evidence: GateEvidence) -> list[RuleVerdict]:
    """Compare the success rates of candidate and champion over all trials and, if required, in every slice.

    A slice is one condition of a suite.
    """
    pairs = evidence.pair_trials(rule.suites, rule.domain, config.regression_suites)
    requirement = f"better than {config.champion} by more than {_format_points(rule.margin)}"
    if rule.within is not None:
        requirement = f"not worse than {config.champion} by {_format_points(rule.within)} or more"
    verdicts = [
        _make_verdict(
            "success", requirement, _compare_metric(pairs, "success", rule.margin, config.alpha, config), config
        )
    ]
    if rule.slices is not None:
        verdicts.append(_check_every_slice(rule, config, pairs))
    return verdicts


def robot_rule(rule: RobotRule, config: GateConfig, evidence: GateEvidence) -> RuleVerdict:
    """Check that the candidate's success rate on a robot is not lower than the champion's by ``rule.within``.

    The verdict is ``yes`` if this is shown and ``no`` if the contrary is shown. If the test is undecided, it is
    ``missing``, or ``no`` if the gate allows only one evaluation (``looks: once``). If the trials have no pairs, it is
    ``missing``. If there are no trials on a robot or no champion, it is ``none``, which does not refuse the candidate.
    """
    requirement = f"on a robot not worse than {config.champion} by {_format_points(rule.within)} or more"
    robot_evidence = evidence.select_robot_trials(rule.suites, config.regression_suites)
    if not robot_evidence.candidate:
        reason = "no trials on a robot: this decision is based on simulated trials only"
        return RuleVerdict(rule="robot", verdict="none", requirement=requirement, reason=reason)
    if config.champion is None:
        reason = (
            f"there is no champion yet; the floor also applies to the {len(robot_evidence.candidate)} trials on a robot"
        )
        return RuleVerdict(rule="robot", verdict="none", requirement="nothing", reason=reason)
    compared = _compare_metric(
        robot_evidence.pair_trials(None, None, ()), "success", -rule.within, config.alpha, config
    )
    return _make_verdict("robot", requirement, compared, config)


def improvement_rule(config: GateConfig, evidence: GateEvidence) -> RuleVerdict:
    """Check that at least one of several improvements is shown; each is tested at an equal share of α (Bonferroni)."""
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
        requirement=f"at least one of {len(rows)} effects, each at α = {alpha:.2g}",
        reason=reason,
        evidence={"effects": rows},
    )


def floor_rule(rule: FloorRule, config: GateConfig, evidence: GateEvidence) -> RuleVerdict:
    """Check that the lower confidence limit of the success rate reaches the floor in every evaluation slice.

    A slice is one condition of a suite. An observed rate above the floor does not suffice.
    """
    requirement = f"every slice succeeds in at least {rule.success:.0%} of trials ({1 - config.alpha:.0%} confidence)"
    verdict = partial(RuleVerdict, rule="floor", requirement=requirement)
    trials = select_trials(evidence.candidate, None, None, config.regression_suites)
    slices = list(dict.fromkeys(trial.slice for trial in trials))
    if not slices:
        return verdict(verdict="missing", reason="there are no trials")
    rows = [_rate_slice(name, [t.won for t in trials if t.slice == name], rule.success, config) for name in slices]
    rows.sort(key=lambda row: (row["low"], row["rate"]))
    low = [row for row in rows if row["low"] < rule.success]
    worst = rows[0]
    summary = (
        f"the worst of {len(rows)} slices, {worst['slice']}: {worst['successes']} of {worst['trials']}, "
        f"at least {worst['low']:.0%}"
    )
    if not low:
        return verdict(verdict="yes", reason=summary, evidence={"slices": rows})
    below = any(row["below"] for row in low)
    return verdict(
        verdict="no" if below else _get_undecided_verdict(config),
        reason=f"not shown for {len(low)} slices; {summary}{'' if below else '; more trials may show it'}",
        evidence={"slices": rows},
    )


def _rate_slice(name: str, won: Sequence[bool], floor: float, config: GateConfig) -> dict[str, Any]:
    """Return the successes of an evaluation slice (condition of a suite) and the lower confidence limit of its rate.

    Args:
        won: outcome of each trial.
        floor: required success rate.
        config: gate, which determines level and kind of the test.

    Returns:
        Values by name; ``below`` is true if the rate is shown to be below the floor.
    """
    wins, n = int(sum(won)), len(won)
    if config.looks == "once":
        interval = clopper_pearson(wins, n, level=1 - 2 * config.alpha)
        low, below = float(interval.low), float(interval.high) < floor
    else:
        low, below = compute_rate_limit(won, config.alpha), compute_below_p_value(won, floor) <= config.alpha
    return {"slice": name, "successes": wins, "trials": n, "rate": wins / n, "low": low, "below": below}


def _check_every_slice(rule: SuccessRule, config: GateConfig, pairs: Pairs) -> RuleVerdict:
    """Check that the candidate is not worse by the margin in any evaluation slice (condition of a suite).

    All slices must pass, so each is tested at the full α.
    """
    margin = float(rule.slices or 0.0)
    verdict = partial(
        RuleVerdict,
        rule="slices",
        requirement=f"in no slice worse than {config.champion} by {_format_points(margin)} or more",
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
    result: Verdict = "no" if "against" in answers else _get_undecided_verdict(config) if "open" in answers else "yes"
    return verdict(verdict=result, reason=reason, evidence={"slices": rows})


def _compare_metric(pairs: Pairs, metric: str, margin: float, alpha: float, config: GateConfig) -> PairedEffect | str:
    """Test whether a metric of pairs improves by more than a margin; return a message instead if data are missing.

    Args:
        pairs: trials of candidate and champion with the same key.
        metric: ``success`` or ``progress``; the progress of an invalid trial counts as 0.
        margin: margin, as a share.
        config: gate, which determines the kind of test.
    """
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


def _make_verdict(rule: str, requirement: str, effect: PairedEffect | str, config: GateConfig) -> RuleVerdict:
    if isinstance(effect, str):
        return RuleVerdict(rule=rule, verdict="missing", requirement=requirement, reason=effect)
    reason = (
        f"difference {effect.difference:+.3f}, at least {effect.low:+.3f} ({1 - effect.alpha:.0%}), "
        f"p = {effect.p_value:.2g}: {effect.wins} pairs won, {effect.losses} lost of {effect.pairs}"
    )
    verdict: Verdict = "yes"
    if effect.answer == "against":
        verdict, reason = "no", f"the contrary is shown (p = {effect.p_against:.2g}); {reason}"
    elif effect.answer == "open":
        verdict = _get_undecided_verdict(config)
        more = f"; about {effect.further} more pairs would show it if the results continue" if effect.further else ""
        reason = f"not shown; {reason}{more if config.looks == 'any' else ''}"
    return RuleVerdict(rule=rule, verdict=verdict, requirement=requirement, reason=reason, evidence=effect.to_json())


def _get_undecided_verdict(config: GateConfig) -> Verdict:
    """Return the verdict for an undecided test: ``missing`` if more trials may decide it, else ``no``.

    More trials may decide it if the trials may be evaluated repeatedly (``looks: any``).
    """
    return "missing" if config.looks == "any" else "no"


def _format_effect(item: ImprovementRule) -> str:
    where = f" in {item.slice}" if item.slice else ""
    return f"{item.metric}{where} better{f' by {_format_points(item.better)}' if item.better else ''}"


def _format_points(share: float) -> str:
    return f"{100 * share:g} points" if share else "nothing"
