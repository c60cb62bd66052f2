"""Checks of failure classes on scored trials: failing conditions, weak policies, simulation easier than reality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import binom

from twinloop.core.errors import InputError
from twinloop.core.trials import Trials
from twinloop.gap.classes_result import ALPHA, Check
from twinloop.stats import TwoByTwo, clopper_pearson, difference_interval, fisher, trials_for_rates

_POWER = 0.8  # with which the number of trials that is asked for would find a difference as large as the one seen


def failing_conditions(trials: Trials, *, remedy: Mapping[str, Sequence[str]] | None = None) -> list[Check]:
    """Whether real success in one condition is lower than in the others, by Fisher's exact test.

    Raises:
        InputError: fewer than two conditions with real trials; names what there is.
    """
    real = trials.real
    names = [name for name in real.conditions if name]
    if len(names) < 2:
        raise InputError(
            f"{len(real)} real trials in {len(names)} named conditions: environments can be compared from two on. Name "
            "the condition of each trial."
        )
    won, found = real.values("success") > 0, []
    for name in names:
        inside = np.array([condition == name for condition in real.condition])
        table = TwoByTwo(
            successes_a=int(won[inside].sum()),
            trials_a=int(inside.sum()),
            successes_b=int(won[~inside].sum()),
            trials_b=int((~inside).sum()),
        )
        rates = table.successes_a / table.trials_a, table.successes_b / table.trials_b
        here, elsewhere = f"{table.successes_a} of {table.trials_a}", f"{table.successes_b} of {table.trials_b}"
        p_value = fisher(table, alternative="less")
        found.append(
            Check(
                kind="other_environment",
                subject=name,
                fired=rates[0] < rates[1],
                evidence=f"{here} succeed in {name}, {elsewhere} elsewhere",
                figure=difference_interval(table),
                p_value=p_value,
                needed=_trials_needed(*rates, tests=len(names)) if rates[0] < rates[1] and p_value > ALPHA else "",
                remedy=tuple((remedy or {}).get(name, ())),
            )
        )
    return found


def _trials_needed(worse: float, better: float, *, tests: int) -> str:
    try:
        count = trials_for_rates(worse, better, power=_POWER, alpha=ALPHA / tests, alternative="less")
    except InputError:
        return "the rates are too alike for any affordable number of trials"
    return f"rates like these need {count.trials_a} trials of each to be told apart ({_POWER:.0%} power)"


def weak_policies(trials: Trials, wanted: float, *, remedy: Sequence[str] = ()) -> list[Check]:
    """Whether a policy fails in simulation too: so few successes there are unlikely at the wanted rate."""
    found = []
    for policy in trials.sim.policies:
        won = trials.sim.where(policy=policy).values("success")
        rate = clopper_pearson(int(won.sum()), len(won))
        low, high = 100 * float(rate.low), 100 * float(rate.high)
        words = (
            f"{policy} succeeds in {100 * float(rate.estimate):.0f} % ({low:.0f} to {high:.0f}) of {len(won)} "
            f"simulated trials, {wanted:.0%} are wanted"
        )
        needed = ""
        if float(rate.estimate) < wanted <= float(rate.high):
            needed = _trials_needed(float(rate.estimate), wanted, tests=1)
        found.append(
            Check(
                kind="weak_in_simulation",
                subject=policy,
                fired=float(rate.estimate) < wanted,
                evidence=words,
                figure=rate,
                p_value=float(binom.cdf(int(won.sum()), len(won), wanted)),
                needed=needed,
                remedy=tuple(remedy),
            )
        )
    return found


def easier_in_simulation(trials: Trials, *, remedy: Sequence[str] = ()) -> list[Check]:
    """Whether a policy succeeds more often simulated than real, by Fisher's exact test."""
    found = []
    for policy in (name for name in trials.real.policies if name in trials.sim.policies):
        sim, real = (side.where(policy=policy).values("success") for side in (trials.sim, trials.real))
        table = TwoByTwo(successes_a=int(sim.sum()), trials_a=len(sim), successes_b=int(real.sum()), trials_b=len(real))
        found.append(
            Check(
                kind="beyond_what_is_modelled",
                subject=policy,
                fired=table.difference > 0,
                evidence=f"{policy} succeeds in {table.successes_a} of {table.trials_a} simulated and "
                f"{table.successes_b} of {table.trials_b} real trials",
                figure=difference_interval(table),
                p_value=fisher(table, alternative="greater"),
                remedy=tuple(remedy),
            )
        )
    return found
