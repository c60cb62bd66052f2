"""Estimate a policy's real score from few real and many simulated trials, and the number of real trials saved."""

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
    """Estimate of one policy. ``pairs`` initial states ("starts") were tried in both worlds, ``more`` only simulated.

    ``alone`` is the interval of the real trials only, ``combined`` the one with simulation; both are valid for any
    number of trials. ``asymptotic`` are those for large samples. ``saved`` is the number of further real trials that
    the simulated ones replace. ``narrower`` is the number of further real trials that would make ``alone`` as narrow as
    ``combined``; negative if simulation did not help.
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
    """Estimates of every policy that has paired trials."""

    measure: Measure
    level: float
    policies: tuple[PolicyEstimate, ...]
    left_out: Mapping[str, str]

    def headline(self) -> list[HeadlineMetric]:
        """Return the headline metrics for `--fail-if` and the run history."""
        combined = f"real {self.measure}, from real and simulated trials"
        saved = "number of real trials that the simulated ones replace"
        return [
            figure
            for row in self.policies
            for figure in (
                row.combined.headline(f"real/{row.policy}", better="higher", meaning=combined),
                row.saved.headline(f"trials_saved/{row.policy}", unit="trials", better="higher", meaning=saved),
            )
        ]


def estimate_real(trials: Trials, *, measure: str = "auto", level: float = 0.95, seed: int = 0) -> RealEstimate:
    """Estimate the real mean of every policy with the help of simulation.

    Args:
        trials: real and simulated trials; those of one start have the same name of pair. Many simulated trials without
            a real partner improve the estimate.
        measure: ``success``, ``score`` or ``auto``.
        level: confidence level.
        seed: seed of the resamples.

    Raises:
        InputError: no policy has enough paired and simulated trials; the message has the missing number of each.
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
    """Return real and simulated values of paired starts, and the values of starts that were only simulated."""
    rows = [i for i, name in enumerate(pairs.policy) if name == policy]
    mine = trials.where(policy=policy)
    real = {key for key, domain in zip(_list_starts(mine), mine.domain, strict=True) if domain == "real" and key[2]}
    alone = [i for i, key in enumerate(_list_starts(mine)) if mine.domain[i] == "sim" and key not in real]
    return pairs.real[rows], pairs.sim[rows], mine.values(measure)[alone]


def _list_starts(trials: Trials) -> list[tuple[str, str, str]]:
    return list(zip(trials.task, trials.condition, trials.pair, strict=True))


def _explain_missing_trials(
    trials: Trials, policy: str, real: NDArray[np.float64], _: object, more: NDArray[np.float64]
) -> str:
    if len(real) < _LEAST:
        there = [len(trials.where(policy=policy, domain=domain)) for domain in DOMAINS]
        have = f"{there[0]} real and {there[1]} sim trials, pairs of them: {len(real)}"
        return f"has {have}; it needs at least {_LEAST} pairs"
    if len(more) < len(real):
        return f"has {len(more)} sim trials of further starts for {len(real)} of both, and needs at least as many"
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
