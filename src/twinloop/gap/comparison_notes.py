"""What else is said of a comparison: how many further trials it takes, and what is amiss with those there are."""

from __future__ import annotations

import numpy as np

from twinloop.core.errors import InputError
from twinloop.gap.comparison_trials import Arms
from twinloop.stats import TwoByTwo, barnard, trials_for_equivalence, trials_for_rates

_POWER = 0.8  # of the further trials that are named


def further_trials(arms: Arms, within: float | None, alpha: float) -> int | None:
    """Further trials of each until a power of 80 %, if the rates are as seen; None where that cannot be told."""
    if arms.measure != "success" or arms.paired:
        return None
    p_a, p_b = float(arms.a.mean()), float(arms.b.mean())
    try:
        if within is not None and abs(p_a - p_b) < within / 2:
            wanted = trials_for_equivalence(p_a, p_b, margin=within, power=_POWER, alpha=alpha)
        else:
            wanted = trials_for_rates(p_a, p_b, power=_POWER, alpha=alpha)
    except InputError:  # equal rates, or more trials than can be added up
        return None
    more = wanted.trials_a - min(len(arms.a), len(arms.b))
    return more if more > 0 else None


def notes_on(arms: Arms, alpha: float, *, sequential: bool) -> tuple[str, ...]:
    """What a reader must know of the trials: all alike, too few, or without an order."""
    notes = []
    n_a, n_b = len(arms.a), len(arms.b)
    if np.ptp(np.concatenate([arms.a, arms.b])) == 0:
        notes.append(
            f"All trials of both ended at {arms.a[0]:g}: no test can tell them apart, and only the intervals say how "
            "different they may still be."
        )
    if arms.measure == "success" and not arms.paired:
        best = barnard(TwoByTwo(successes_a=n_a, trials_a=n_a, successes_b=0, trials_b=n_b))
        if best > alpha:
            notes.append(
                f"{n_a} and {n_b} trials are too few: even {n_a} of {n_a} against 0 of {n_b} has p = {best:.2g}. "
                f"At least {_fewest(alpha)} trials of each can reach {alpha:.2g}."
            )
    if arms.shared and not arms.paired:
        notes.append(
            f"Starts that both were tried at once: {arms.shared}, of {n_a} and {n_b} trials. Because that is not all, "
            "trials are compared without pairs; a table of those starts alone is compared in pairs, which tells more."
        )
    if sequential and arms.listed:
        notes.append(
            "Successes stand before failures, as where only their number is known, so the trials were put into a "
            "random order. To look at them one by one, give them as they were run."
        )
    return tuple(notes)


def _fewest(alpha: float) -> int:
    n = 1
    while barnard(TwoByTwo(successes_a=n, trials_a=n, successes_b=0, trials_b=n)) > alpha:
        n += 1
    return n
