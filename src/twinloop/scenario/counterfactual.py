"""What if it had been different: success with and without a change, in the same worlds with the same chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.scenario.trials import Tried
from twinloop.scenario.what import What, label
from twinloop.stats import Interval, holm
from twinloop.stats.matched import PairedCounts, mcnemar, paired_difference_interval
from twinloop.stats.two_by_two import Alternative

Attempt = Callable[[Mapping[str, Any]], Tried]
"""Tries all worlds with these parameters set, ``(n,)`` each; the same worlds and chance every time."""


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """One change against none, over worlds that differ in nothing else.

    ``difference`` is the success rate with the change minus that without, with Tango's interval; ``p_value`` is
    McNemar's exact one, and ``p_adjusted`` Holm's over all changes that were asked for.
    """

    what: str
    names: tuple[str, ...]
    dose: float
    tried: Tried
    pairs: PairedCounts
    difference: Interval
    p_value: float
    p_adjusted: float = 1.0

    def to_json(self, level: float) -> dict[str, Any]:
        """A plain form for results."""
        rate = self.tried.success_rate(level)
        return {
            "what": self.what,
            "dose": self.dose,
            "parameters": list(self.names),
            "trials": self.tried.trials,
            "success_rate": float(rate.estimate),
            "low": float(rate.low),
            "high": float(rate.high),
            "gained": self.pairs.only_a,
            "lost": self.pairs.only_b,
            "difference": float(self.difference.estimate),
            "difference_low": float(self.difference.low),
            "difference_high": float(self.difference.high),
            "p_value": self.p_value,
            "p_adjusted": self.p_adjusted,
            "outcomes": self.tried.outcomes,
        }


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Where success in half of the worlds is passed: between two neighbouring doses, the first of them ``low``."""

    what: str
    low: float
    high: float
    rates: tuple[float, float]


def contrast(
    what: str,
    names: Sequence[str],
    dose: float,
    base: Tried,
    tried: Tried,
    *,
    level: float,
    alternative: Alternative = "two-sided",
) -> Contrast:
    """A change against none, over worlds that the simulation lost in neither.

    Raises:
        InputError: it lost one of the two in every world.
    """
    both = base.valid & tried.valid
    if not both.any():
        raise InputError(
            f"{what}{dose:g}: the simulation lost every world with or without it, so there is nothing to compare. Try "
            "a smaller change."
        )
    a, b = tried.success[both], base.success[both]
    counts = PairedCounts(
        both=int((a & b).sum()), only_a=int((a & ~b).sum()), only_b=int((~a & b).sum()), neither=int((~a & ~b).sum())
    )
    return Contrast(
        what=what,
        names=tuple(names),
        dose=dose,
        tried=tried,
        pairs=counts,
        difference=paired_difference_interval(counts, level=level),
        p_value=mcnemar(counts, alternative=alternative),
    )


def adjusted(contrasts: Sequence[Contrast]) -> list[Contrast]:
    """The same contrasts with p-values adjusted for how many there are."""
    values = holm([one.p_value for one in contrasts]) if contrasts else []
    return [replace(one, p_adjusted=float(p)) for one, p in zip(contrasts, values, strict=True)]


def counterfactual(
    attempt: Attempt, base: Tried, own: ParamTable, whats: Sequence[What], *, refine: int = 0, level: float = 0.95
) -> tuple[list[Contrast], list[Crossing]]:
    """Every dose of every question against none.

    Args:
        attempt: tries the worlds with parameters set.
        base: the worlds as they are.
        own: their parameters.
        whats: the questions.
        refine: how many times the doses between which half of the worlds turn are halved.
        level: of intervals.

    Returns:
        The contrasts, by question and dose, and where each question's success rate passes one half.
    """
    found: list[Contrast] = []
    crossings: list[Crossing] = []
    for what in whats:
        rows = {dose: _at(attempt, base, own, what, dose, level) for dose in what.doses}
        crossing = _crossing(what, rows)
        for _ in range(refine if crossing else 0):
            assert crossing is not None  # noqa: S101 - refining begins with one and keeps one
            between = _between(what, crossing)
            rows[between] = _at(attempt, base, own, what, between, level)
            crossing = _crossing(what, rows)
        found += [rows[dose] for dose in sorted(rows)]
        crossings += [crossing] if crossing else []
    return adjusted(found), crossings


def _at(attempt: Attempt, base: Tried, own: ParamTable, what: What, dose: float, level: float) -> Contrast:
    try:
        tried = attempt(what.values(own, dose))
    except InputError as error:
        raise InputError(f"--what {label(what, dose)}: {error}") from error
    return contrast(what.text, what.names, dose, base, tried, level=level)


def _crossing(what: What, rows: Mapping[float, Contrast]) -> Crossing | None:
    """The first two neighbouring doses on either side of success in half of the worlds."""
    doses = sorted(rows)
    rates = np.array([rows[dose].tried.successes / max(rows[dose].tried.trials, 1) for dose in doses])
    turns = np.flatnonzero((rates[:-1] >= 0.5) != (rates[1:] >= 0.5))
    if not len(turns):
        return None
    at = int(turns[0])
    return Crossing(what=what.text, low=doses[at], high=doses[at + 1], rates=(float(rates[at]), float(rates[at + 1])))


def _between(what: What, crossing: Crossing) -> float:
    by_ratio = what.op == "scale" and min(crossing.low, crossing.high) > 0
    return float(np.sqrt(crossing.low * crossing.high)) if by_ratio else (crossing.low + crossing.high) / 2


def series(contrasts: Sequence[Contrast], what: str, level: float) -> NDArray[np.float64]:
    """Dose, success rate and its interval's ends of one question, a row each."""
    chosen = [one for one in contrasts if one.what == what]
    rates = [one.tried.success_rate(level) for one in chosen]
    return np.array([[one.dose, rate.estimate, rate.low, rate.high] for one, rate in zip(chosen, rates, strict=True)])
