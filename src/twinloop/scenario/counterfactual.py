"""Change parameters of a scenario, and compare the success rates with and without the change in the same worlds."""

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
    """A counterfactual change of some parameters, tried with one or several doses (sizes of the change).

    Attributes:
        pattern: Pattern of parameter names, which may contain ``*``.
        names: Names of the parameters that match the pattern.
        op: How a dose changes a parameter: ``set`` replaces its value, ``scale`` multiplies it, ``shift`` is added to
            it.
        doses: The doses, in SI units or as factors.
    """

    pattern: str
    names: tuple[str, ...]
    op: Op
    doses: tuple[float, ...]

    @property
    def text(self) -> str:
        """Pattern and operator in the format of `parse_change`, for example ``joint/*/damping*=``."""
        return f"{self.pattern}{_MARKS[self.op]}"

    @property
    def dose_suffix(self) -> str:
        """Text after a dose in reports: "×" if doses are factors (``2×``), otherwise empty."""
        return {"set": "", "scale": "×", "shift": ""}[self.op]

    def values(self, table: ParamTable, dose: float) -> dict[str, NDArray[np.float64]]:
        """Return the changed parameter values for one dose by parameter name, each of shape ``(nworld,)``.

        Args:
            table: Parameter table of the unchanged worlds.
            dose: Size of the change: the new value (``set``) or the added value (``shift``) in SI units, or the factor
                (``scale``).
        """
        apply = {
            "set": lambda column: np.full_like(column, dose),
            "scale": lambda column: column * dose,
            "shift": lambda column: column + dose,
        }[self.op]
        return {name: apply(table[name]) for name in self.names}


def parse_change(text: str, twin: Twin) -> ParameterChange:
    """Parse a change of parameters: ``PATTERN=DOSES`` sets, ``PATTERN*=DOSES`` scales, ``PATTERN+=DOSES`` shifts.

    Doses are numbers in SI units separated by commas, or ``LOW..HIGH:COUNT`` for evenly spaced numbers. The latter are
    spaced geometrically for ``*=`` and for parameters with a logarithmic scale. A pattern may contain ``*``.

    Args:
        text: Text of the change.
        twin: Twin with the parameters.

    Raises:
        InputError: If the text does not have this format.
        UnknownNameError: If no parameter of the twin matches; the message lists the nearest names.
    """
    parts = _split_change(text)
    if parts is None:
        raise InputError(
            f"--change {text!r} is not understood. Write PARAMETER=0.05,0.1 to set it, PARAMETER*=2 to scale it, "
            "PARAMETER+=0.01 to shift it, or PARAMETER=0.02..0.2:7 for seven values; * matches any name."
        )
    pattern, sign, doses = parts
    names = tuple(fnmatch.filter(twin.params, pattern))
    if not names:
        raise UnknownNameError("parameter", pattern, twin.params, where=f"twin {twin.name}")
    op = _SIGNS[sign]
    by_ratio = op == "scale" or all(twin.params[name].transform == "log" for name in names)
    return ParameterChange(pattern=pattern, names=names, op=op, doses=_parse_doses(doses, text, by_ratio=by_ratio))


def _split_change(text: str) -> tuple[str, str, str] | None:
    """Split the text of a change into pattern, operator and doses (sizes); return None if a part is missing.

    For example, ``joint/*/damping*=0.5,2`` gives ``joint/*/damping``, ``*=`` and ``0.5,2``. The operator is the first
    ``=``, with a ``*`` or ``+`` if one is directly before it. However, a ``*`` after ``/`` belongs to the pattern.
    """
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
            f"--change {whole!r}: {text!r} is not a list of doses. Write numbers separated by commas, or "
            "LOW..HIGH:COUNT."
        ) from None
    if not np.isfinite(doses).all() or len(doses) > _MOST_DOSES:
        raise InputError(f"--change {whole!r}: give up to {_MOST_DOSES} finite numbers.")
    return doses


Attempt = Callable[[Mapping[str, Any]], TrialOutcomes]
"""Function that runs a fixed set of worlds with some parameters replaced, and returns the outcomes.

The values, by parameter name, are numbers or arrays of shape ``(nworld,)``. Worlds and random effects are the same in
every call.
"""


@dataclass(frozen=True, kw_only=True)
class CounterfactualEffect:
    """Effect of one change on the success rate, from pairs of worlds that differ only in this change.

    Attributes:
        change: The change as text.
        names: Names of the changed parameters.
        dose: Size of the change.
        changed_outcomes: Outcomes of the changed worlds.
        pairs: Counts of pairs of a changed world (a) and the unchanged world (b), by their outcomes.
        difference: Success rate with the change minus success rate without it, with Tango's interval.
        p_value: P-value of McNemar's exact test.
        p_adjusted: P-value adjusted for all changes by Holm's method.
    """

    change: str
    names: tuple[str, ...]
    dose: float
    changed_outcomes: TrialOutcomes
    pairs: PairedCounts
    difference: Interval
    p_value: float
    p_adjusted: float = 1.0

    def to_json(self, level: float) -> dict[str, Any]:
        """Return the effect as a JSON-compatible dictionary.

        Args:
            level: Confidence level of the success rate.
        """
        rate = self.changed_outcomes.success_rate(level)
        return {
            "change": self.change,
            "dose": self.dose,
            "parameters": list(self.names),
            "trials": self.changed_outcomes.trials,
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
            "outcomes": self.changed_outcomes.outcomes,
        }


@dataclass(frozen=True, kw_only=True)
class HalfSuccessDose:
    """Two neighbouring doses (sizes of a parameter change) between which the success rate crosses one half.

    Attributes:
        change: The change as text.
        low: The lower dose, in SI units or as a factor.
        high: The higher dose, in SI units or as a factor.
        rates: Success rates at the lower and at the higher dose.
    """

    change: str
    low: float
    high: float
    rates: tuple[float, float]


def compare_outcomes(
    change: str,
    names: Sequence[str],
    dose: float,
    base: TrialOutcomes,
    changed_outcomes: TrialOutcomes,
    *,
    level: float,
    alternative: Alternative = "two-sided",
) -> CounterfactualEffect:
    """Compare the outcomes with and without a change, over the worlds that are valid in both cases.

    Args:
        change: The change as text.
        names: Names of the changed parameters.
        dose: Size of the change.
        base: Outcomes of the unchanged worlds.
        changed_outcomes: Outcomes of the changed worlds.
        level: Confidence level of the interval.
        alternative: Alternative hypothesis of the test, for the success rate with the change.

    Raises:
        InputError: If no world is valid in both cases.
    """
    counts = changed_outcomes.pair_with(base)
    if counts is None:
        raise InputError(
            f"{change}{dose:g}: no world is valid both with and without this change, so there is nothing to compare. "
            "Try a smaller change."
        )
    return CounterfactualEffect(
        change=change,
        names=tuple(names),
        dose=dose,
        changed_outcomes=changed_outcomes,
        pairs=counts,
        difference=paired_difference_interval(counts, level=level),
        p_value=mcnemar(counts, alternative=alternative),
    )


def adjust_p_values(effects: Sequence[CounterfactualEffect]) -> list[CounterfactualEffect]:
    """Return the effects with ``p_adjusted``: p-values adjusted for the number of effects by Holm's method."""
    values = holm([one.p_value for one in effects]) if effects else []
    return [replace(one, p_adjusted=float(p)) for one, p in zip(effects, values, strict=True)]


def compare_doses(
    attempt: Attempt,
    base: TrialOutcomes,
    params: ParamTable,
    changes: Sequence[ParameterChange],
    *,
    refine: int = 0,
    level: float = 0.95,
) -> tuple[list[CounterfactualEffect], list[HalfSuccessDose]]:
    """Compare the worlds changed by every dose (size) of every parameter change with the unchanged worlds.

    Args:
        attempt: Function that runs the worlds with given parameter values.
        base: Outcomes of the unchanged worlds.
        params: Parameter table of the unchanged worlds.
        changes: The changes.
        refine: Number of bisections between the two doses between which the success rate crosses one half.
        level: Confidence level of the intervals.

    Returns:
        Two lists:

        - the effects, in the order of changes and doses;
        - for each change whose success rate crosses one half: the two neighbouring doses of the crossing.
    """
    effects: list[CounterfactualEffect] = []
    crossings: list[HalfSuccessDose] = []
    for change in changes:
        rows = {dose: _evaluate_dose(attempt, base, params, change, dose, level) for dose in change.doses}
        crossing = _find_crossing(change, rows)
        for _ in range(refine if crossing else 0):
            assert crossing is not None  # noqa: S101 - a crossing exists before and after every bisection
            between = _middle_dose(change, crossing)
            rows[between] = _evaluate_dose(attempt, base, params, change, between, level)
            crossing = _find_crossing(change, rows)
        effects += [rows[dose] for dose in sorted(rows)]
        crossings += [crossing] if crossing else []
    return adjust_p_values(effects), crossings


def _evaluate_dose(
    attempt: Attempt, base: TrialOutcomes, params: ParamTable, change: ParameterChange, dose: float, level: float
) -> CounterfactualEffect:
    try:
        changed_outcomes = attempt(change.values(params, dose))
    except InputError as error:
        raise InputError(f"--change {change.text}{dose:.4g}: {error}") from error
    return compare_outcomes(change.text, change.names, dose, base, changed_outcomes, level=level)


def _find_crossing(change: ParameterChange, rows: Mapping[float, CounterfactualEffect]) -> HalfSuccessDose | None:
    """Return the first two neighbouring doses between which the success rate crosses one half; None if none do.

    Args:
        change: The change.
        rows: Effect by dose (size of the change).
    """
    doses = sorted(rows)
    rates = np.array(
        [rows[dose].changed_outcomes.successes / max(rows[dose].changed_outcomes.trials, 1) for dose in doses]
    )
    turns = np.flatnonzero((rates[:-1] >= 0.5) != (rates[1:] >= 0.5))
    if not len(turns):
        return None
    at = int(turns[0])
    return HalfSuccessDose(
        change=change.text, low=doses[at], high=doses[at + 1], rates=(float(rates[at]), float(rates[at + 1]))
    )


def _middle_dose(change: ParameterChange, crossing: HalfSuccessDose) -> float:
    by_ratio = change.op == "scale" and min(crossing.low, crossing.high) > 0
    return float(np.sqrt(crossing.low * crossing.high)) if by_ratio else (crossing.low + crossing.high) / 2


def effect_series(effects: Sequence[CounterfactualEffect], change: str, level: float) -> NDArray[np.float64]:
    """Return dose, success rate and both limits of its interval for one change, shape ``(ndose, 4)``.

    A dose is the size of the change. There is one row per dose.

    Args:
        effects: Effects of all changes.
        change: The change as text.
        level: Confidence level of the interval.
    """
    chosen = [one for one in effects if one.change == change]
    rates = [one.changed_outcomes.success_rate(level) for one in chosen]
    return np.array([[one.dose, rate.estimate, rate.low, rate.high] for one, rate in zip(chosen, rates, strict=True)])
