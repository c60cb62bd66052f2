"""Change one parameter of a scenario, and compare success with and without the change in the same worlds."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.scenario.trials import TrialOutcomes
from twinloop.stats import Interval, holm
from twinloop.stats.matched_trials import PairedCounts, mcnemar, paired_difference_interval
from twinloop.stats.two_by_two import Alternative
from twinloop.twin import Twin

Op = Literal["set", "scale", "shift"]
_SIGNS: dict[str, Op] = {"=": "set", "*=": "scale", "+=": "shift"}
_MARKS: dict[Op, str] = {op: sign for sign, op in _SIGNS.items()}
_MOST_DOSES = 64


@dataclass(frozen=True, kw_only=True)
class ParameterChange:
    """One counterfactual: a change of some parameters by each of several doses."""

    pattern: str
    names: tuple[str, ...]
    op: Op
    doses: tuple[float, ...]

    @property
    def text(self) -> str:
        """The change in the form of `parse_change`, without doses."""
        return f"{self.pattern}{_MARKS[self.op]}"

    @property
    def dose_suffix(self) -> str:
        """Suffix of a dose in text: × for a factor, otherwise empty."""
        return {"set": "", "scale": "×", "shift": ""}[self.op]

    def values(self, table: ParamTable, dose: float) -> dict[str, NDArray[np.float64]]:
        """Return the changed parameters of worlds, ``(nworld,)`` each, from their own values."""
        change = {
            "set": lambda own: np.full_like(own, dose),
            "scale": lambda own: own * dose,
            "shift": lambda own: own + dose,
        }[self.op]
        return {name: change(table[name]) for name in self.names}


def parse_change(text: str, twin: Twin) -> ParameterChange:
    """Parse a change: ``PATTERN=DOSES`` sets, ``PATTERN*=DOSES`` scales, ``PATTERN+=DOSES`` shifts, in SI units.

    Doses are numbers separated by commas, or ``LOW..HIGH:COUNT``, evenly spaced (by ratio for factors and for
    parameters with a logarithmic scale). A pattern may contain ``*``.

    Raises:
        InputError: the text does not have this form.
        UnknownNameError: no parameter of the twin matches; the message has the nearest names.
    """
    found = _split_change(text)
    if found is None:
        raise InputError(
            f"--change {text!r} is not understood. Write PARAMETER=0.05,0.1 to set it, PARAMETER*=2 to scale it, "
            "PARAMETER+=0.01 to shift it, or PARAMETER=0.02..0.2:7 for seven values; * matches any name."
        )
    pattern, sign, doses = found
    names = tuple(fnmatch.filter(twin.params, pattern))
    if not names:
        raise UnknownNameError("parameter", pattern, twin.params, where=f"twin {twin.name}")
    op = _SIGNS[sign]
    by_ratio = op == "scale" or all(twin.params[name].transform == "log" for name in names)
    return ParameterChange(pattern=pattern, names=names, op=op, doses=_parse_doses(doses, text, by_ratio=by_ratio))


def _split_change(text: str) -> tuple[str, str, str] | None:
    """Return pattern, sign and doses; the first ``=``, with a ``*`` or ``+`` before it, ends the pattern."""
    head, equals, doses = text.partition("=")
    head, doses = head.strip(), doses.strip()
    if not equals or not head or not doses:
        return None
    if head[-1] == "+" or (head[-1] == "*" and not head.endswith("/*")):
        return (head[:-1].strip(), f"{head[-1]}=", doses) if head[:-1].strip() else None
    return head, "=", doses


def _parse_doses(text: str, whole: str, *, by_ratio: bool) -> tuple[float, ...]:
    try:
        ends, colon, count = text.partition(":")
        if colon:
            low, high = (float(end) for end in ends.split(".."))
            if not 2 <= int(count) <= _MOST_DOSES:
                raise InputError(f"--change {whole!r}: give 2 to {_MOST_DOSES} values, not {count}.")
            spaced = np.geomspace if by_ratio and min(low, high) > 0 else np.linspace
            return tuple(float(value) for value in spaced(low, high, int(count)))
        doses = tuple(dict.fromkeys(float(item) for item in text.split(",")))
    except ValueError:
        raise InputError(
            f"--change {whole!r}: {text!r} are not doses. Write numbers separated by commas, or LOW..HIGH:COUNT."
        ) from None
    if not np.isfinite(doses).all() or len(doses) > _MOST_DOSES:
        raise InputError(f"--change {whole!r}: give up to {_MOST_DOSES} finite numbers.")
    return doses


Attempt = Callable[[Mapping[str, Any]], TrialOutcomes]
"""Function that tries all worlds with these parameters, ``(n,)`` each; the same worlds and random draws every time."""


@dataclass(frozen=True, kw_only=True)
class CounterfactualEffect:
    """Effect of one change, from worlds that differ in nothing else.

    ``difference`` is the success rate with the change minus that without, with Tango's interval; ``p_value`` is
    McNemar's exact one, and ``p_adjusted`` is adjusted by Holm over all changes.
    """

    what: str
    names: tuple[str, ...]
    dose: float
    tried: TrialOutcomes
    pairs: PairedCounts
    difference: Interval
    p_value: float
    p_adjusted: float = 1.0

    def to_json(self, level: float) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
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
class HalfSuccessDose:
    """Dose at which half of the worlds succeed: between two neighbouring doses, ``low`` first."""

    what: str
    low: float
    high: float
    rates: tuple[float, float]


def compare_outcomes(
    what: str,
    names: Sequence[str],
    dose: float,
    base: TrialOutcomes,
    tried: TrialOutcomes,
    *,
    level: float,
    alternative: Alternative = "two-sided",
) -> CounterfactualEffect:
    """Compare outcomes with and without a change, over worlds that are valid in both.

    Raises:
        InputError: no world is valid in both.
    """
    counts = tried.pair_with(base)
    if counts is None:
        raise InputError(
            f"{what}{dose:g}: no world is valid with and without it, so there is nothing to compare. Try "
            "a smaller change."
        )
    return CounterfactualEffect(
        what=what,
        names=tuple(names),
        dose=dose,
        tried=tried,
        pairs=counts,
        difference=paired_difference_interval(counts, level=level),
        p_value=mcnemar(counts, alternative=alternative),
    )


def adjust_p_values(contrasts: Sequence[CounterfactualEffect]) -> list[CounterfactualEffect]:
    """Return the effects with p-values adjusted for their number by Holm's method."""
    values = holm([one.p_value for one in contrasts]) if contrasts else []
    return [replace(one, p_adjusted=float(p)) for one, p in zip(contrasts, values, strict=True)]


def compare_doses(
    attempt: Attempt,
    base: TrialOutcomes,
    own: ParamTable,
    whats: Sequence[ParameterChange],
    *,
    refine: int = 0,
    level: float = 0.95,
) -> tuple[list[CounterfactualEffect], list[HalfSuccessDose]]:
    """Compare every dose of every change with the unchanged worlds.

    Args:
        attempt: function that tries the worlds with given parameters.
        base: outcomes of the unchanged worlds.
        own: parameters of the unchanged worlds.
        whats: the changes.
        refine: number of bisections between the doses at which the success rate passes one half.
        level: confidence level of the intervals.

    Returns:
        The effects, by change and dose, and the dose at which each change's success rate passes one half.
    """
    found: list[CounterfactualEffect] = []
    crossings: list[HalfSuccessDose] = []
    for what in whats:
        rows = {dose: _evaluate_dose(attempt, base, own, what, dose, level) for dose in what.doses}
        crossing = _find_crossing(what, rows)
        for _ in range(refine if crossing else 0):
            assert crossing is not None  # noqa: S101 - a crossing exists before and after every bisection
            between = _middle_dose(what, crossing)
            rows[between] = _evaluate_dose(attempt, base, own, what, between, level)
            crossing = _find_crossing(what, rows)
        found += [rows[dose] for dose in sorted(rows)]
        crossings += [crossing] if crossing else []
    return adjust_p_values(found), crossings


def _evaluate_dose(
    attempt: Attempt, base: TrialOutcomes, own: ParamTable, what: ParameterChange, dose: float, level: float
) -> CounterfactualEffect:
    try:
        tried = attempt(what.values(own, dose))
    except InputError as error:
        raise InputError(f"--change {what.text}{dose:.4g}: {error}") from error
    return compare_outcomes(what.text, what.names, dose, base, tried, level=level)


def _find_crossing(what: ParameterChange, rows: Mapping[float, CounterfactualEffect]) -> HalfSuccessDose | None:
    """Return the first two neighbouring doses between which the success rate passes one half."""
    doses = sorted(rows)
    rates = np.array([rows[dose].tried.successes / max(rows[dose].tried.trials, 1) for dose in doses])
    turns = np.flatnonzero((rates[:-1] >= 0.5) != (rates[1:] >= 0.5))
    if not len(turns):
        return None
    at = int(turns[0])
    return HalfSuccessDose(
        what=what.text, low=doses[at], high=doses[at + 1], rates=(float(rates[at]), float(rates[at + 1]))
    )


def _middle_dose(what: ParameterChange, crossing: HalfSuccessDose) -> float:
    by_ratio = what.op == "scale" and min(crossing.low, crossing.high) > 0
    return float(np.sqrt(crossing.low * crossing.high)) if by_ratio else (crossing.low + crossing.high) / 2


def effect_series(contrasts: Sequence[CounterfactualEffect], what: str, level: float) -> NDArray[np.float64]:
    """Return dose, success rate and the ends of its interval for one change, one row per dose."""
    chosen = [one for one in contrasts if one.what == what]
    rates = [one.tried.success_rate(level) for one in chosen]
    return np.array([[one.dose, rate.estimate, rate.low, rate.high] for one, rate in zip(chosen, rates, strict=True)])
