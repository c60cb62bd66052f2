"""Estimate a policy's real success or score from few real and many simulated trials.

The result also contains the number of real trials that simulation saves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.headline import HeadlineMetric
from twinloop.core.plain import JsonRecord
from twinloop.core.trials import DOMAINS, Measure, Pairs, Trials, pair_trials
from twinloop.gap.policies.paired_trials import resolve_measure
from twinloop.stats import (
    Interval,
    PairedTrials,
    bounded_mean,
    clopper_pearson,
    control_variate,
    post_stratified,
    prediction_powered,
    trials_saved,
)

_LEAST = 3  # pairs that a correlation needs
_RELIABLE = 20  # with fewer pairs asymptotic intervals cover clearly too little (docs/evidence/compare_policies.md)


@dataclass(frozen=True, kw_only=True)
class PolicyEstimate(JsonRecord):
    """Estimated real success rate or mean score of one policy.

    Attributes:
        policy: Name of the policy.
        pairs: Number of initial states ("starts") with one real and one simulated trial.
        more: Number of starts that were only simulated.
        correlation: Correlation of real and simulated values over the pairs; NaN if one of them does not vary.
        alone: Interval from the real trials only, valid for every number of trials.
        combined: Interval from real and simulated trials, valid for every number of trials.
        asymptotic: Intervals from real and simulated trials that are valid for large samples only, by name of the
            method.
        beta: Coefficient β of the control variate mean(real) − β (mean(simulated pairs) − mean(simulated-only)); mean
            of each pair's β, which is fitted to all other pairs.
        saved: Number of further real trials that would reduce the variance of the estimate as much as the simulated
            trials do.
        narrower: Number of further real trials that would make the interval ``alone`` as narrow as ``combined``;
            negative if ``combined`` is wider.
        notes: Remarks for the reader.
    """

    policy: str
    pairs: int
    more: int
    correlation: float
    alone: Interval
    combined: Interval
    asymptotic: Mapping[str, Interval]
    beta: float
    saved: Interval
    narrower: float
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RealEstimate(JsonRecord):
    """Estimates for every policy that has enough paired trials.

    Attributes:
        measure: The estimated measure.
        level: Confidence level of the intervals.
        policies: One estimate per policy.
        left_out: Policies with too few trials, with the reason.
    """

    measure: Measure
    level: float
    policies: tuple[PolicyEstimate, ...]
    left_out: Mapping[str, str]

    def headline(self) -> list[HeadlineMetric]:
        """Return the headline metrics for `--fail-if` and the run history."""
        combined = f"real {self.measure}, from real and simulated trials"
        saved = "number of real trials that the simulated ones replace"
        return [
            metric
            for row in self.policies
            for metric in (
                row.combined.headline(f"real/{row.policy}", better="higher", meaning=combined),
                row.saved.headline(f"trials_saved/{row.policy}", unit="trials", better="higher", meaning=saved),
            )
        ]


def estimate_real(trials: Trials, *, measure: str = "auto", level: float = 0.95, seed: int = 0) -> RealEstimate:
    """Estimate the real mean of every policy with the help of simulated trials.

    Args:
        trials: Real and simulated trials. Trials with the same initial state must have the same pair name. Many
            simulated trials that have no real partner improve the estimate.
        measure: ``success``, ``score``, or ``auto`` (success if every trial has it, else score).
        level: Confidence level.
        seed: Seed of the bootstrap resamples.

    Raises:
        InputError: If no policy has enough paired and simulated trials; the message gives the missing number of each.
    """
    chosen = resolve_measure(trials, measure)
    pairs = pair_trials(trials, chosen)
    sides = {policy: _collect_values(trials, pairs, policy, chosen) for policy in trials.policies}
    lacking = {policy: _explain_missing_trials(trials, policy, *side) for policy, side in sides.items()}
    left_out = {policy: why for policy, why in lacking.items() if why}
    usable = {policy: side for policy, side in sides.items() if policy not in left_out}
    if not usable:
        raise InputError(
            "No policy can be estimated with the help of simulation: "
            + "; ".join(f"{policy} {why}" for policy, why in left_out.items())
            + ". Give real and simulated trials of one start the same name in the column pair, and simulate many more."
        )
    rows = [
        _estimate_policy(policy, side, {p: s for p, s in usable.items() if p != policy}, level, seed)
        for policy, side in usable.items()
    ]
    return RealEstimate(measure=chosen, level=level, policies=tuple(rows), left_out=left_out)


_Side = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


def _collect_values(trials: Trials, pairs: Pairs, policy: str, measure: Measure) -> _Side:
    """Return the values of a policy: real and simulated ones of paired trials, then those of simulated-only trials.

    Trials are paired if they start from the same initial state.
    """
    rows = [i for i, name in enumerate(pairs.policy) if name == policy]
    mine = trials.where(policy=policy)
    real = {key for key, domain in zip(_list_starts(mine), mine.domain, strict=True) if domain == "real" and key[2]}
    alone = [i for i, key in enumerate(_list_starts(mine)) if mine.domain[i] == "sim" and key not in real]
    return pairs.real[rows], pairs.sim[rows], mine.select_measure(measure)[alone]


def _list_starts(trials: Trials) -> list[tuple[str, str, str]]:
    return list(zip(trials.task, trials.condition, trials.pair, strict=True))


def _explain_missing_trials(
    trials: Trials, policy: str, real: NDArray[np.float64], _: object, more: NDArray[np.float64]
) -> str:
    if len(real) < _LEAST:
        there = [len(trials.where(policy=policy, domain=domain)) for domain in DOMAINS]
        have = f"{there[0]} real and {there[1]} simulated trials with {len(real)} pairs"
        return f"has {have}; it needs at least {_LEAST} pairs"
    if len(more) < len(real):
        return (
            f"has {len(real)} pairs but only {len(more)} simulated trials without a partner; it needs at least as many"
        )
    return ""


def _estimate_policy(policy: str, side: _Side, others: Mapping[str, _Side], level: float, seed: int) -> PolicyEstimate:
    real, sim, more = side
    trials = PairedTrials(real=real, sim=sim, more=more)
    coins = all(np.isin(values, (0.0, 1.0)).all() for values in side)
    alone = clopper_pearson(int(real.sum()), len(real), level=level) if coins else bounded_mean(real, level=level)
    rest = others.values()
    known = (np.concatenate([r for r, _, _ in rest]), np.concatenate([s for _, s, _ in rest])) if others else None
    combined = post_stratified(trials, level=level) if coins else prediction_powered(trials, level=level, known=known)
    fitted = {name: control_variate(trials, coefficient=name, level=level) for name in ("ppi", "ppi++", "cross-fitted")}
    flat = np.ptp(real) == 0 or np.ptp(sim) == 0
    widths = [float(found.high - found.low) for found in (alone, combined)]
    return PolicyEstimate(
        policy=policy,
        pairs=len(real),
        more=len(more),
        correlation=float("nan") if flat else float(np.corrcoef(real, sim)[0, 1]),
        alone=alone,
        combined=combined,
        asymptotic={name: made.mean for name, made in fitted.items()},
        beta=fitted["cross-fitted"].beta,
        saved=trials_saved(trials, level=level, seed=seed),
        narrower=len(real) * ((widths[0] / widths[1]) ** 2 - 1),
        notes=_collect_notes(len(real), flat),
    )


def _collect_notes(n: int, flat: bool) -> tuple[str, ...]:
    notes = []
    if flat:
        notes.append(
            "All paired trials had the same outcome in one of the worlds, so there is no correlation and no trial is "
            "saved yet. The width of the asymptotic intervals is meaningless."
        )
    if n < _RELIABLE:
        notes.append(f"With {n} pairs the coverage of the asymptotic intervals is too low; use {_RELIABLE} or more.")
    return tuple(notes)
