"""Find the physical effects that cause a failure, by switching off one effect at a time, or all other effects.

An effect is called a term and belongs to some parameters of the twin. Switching off a term sets its parameters to
neutral values. For most parameters the effect is absent at the neutral value, for example at a friction of 0. A mass, a
gain or a size cannot be absent, so its neutral value is the twin's nominal value. A term whose parameters are all
neutral in a world is not tested there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.scenario.counterfactual import Attempt, CounterfactualEffect, adjust_p_values, compare_outcomes
from twinloop.scenario.trials import TrialOutcomes
from twinloop.stats.two_by_two import Alternative
from twinloop.twin import Twin
from twinloop.twin.quantities import QUANTITIES, Quantity, path_patterns
from twinloop.twin.quantities.kinds import TERMS


@dataclass(frozen=True, kw_only=True)
class AblationTerm:
    """A physical effect of a twin that can be switched off.

    Attributes:
        name: Name of the term, for example ``backlash``.
        meaning: Description of the effect.
        neutral: Neutral value of each parameter of the term, by parameter name.
    """

    name: str
    meaning: str
    neutral: Mapping[str, float]

    def active_parameters(self, table: ParamTable) -> list[str]:
        """Return the names of the parameters of this effect that are not neutral in at least one world of a table."""
        values = {name: table.steps.get(name, table[name]) for name in self.neutral}
        return [name for name, column in values.items() if (column != self.neutral[name]).any()]


def _quantities_by_term() -> dict[str, list[Quantity]]:
    """Return the quantities of each term (physical effect that can be switched off, such as friction), by term name."""
    kinds: dict[str, list[Quantity]] = {name: [] for name in TERMS}
    for kind in QUANTITIES:
        if kind.term:
            kinds.setdefault(kind.term, []).append(kind)
    return kinds


def _meaning(name: str, kinds: Sequence[Quantity]) -> str:
    return TERMS.get(name) or kinds[0].meaning


def term_names() -> list[str]:
    """Return the names of all terms (physical effects that an ablation can switch off)."""
    return list(_quantities_by_term())


def find_terms(twin: Twin, chosen: Sequence[str] = (), *, images: bool = True) -> list[AblationTerm]:
    """Return the terms (physical effects that an ablation can switch off) of which a twin has parameters.

    Args:
        twin: The twin.
        chosen: Names of terms; all by default.
        images: Whether to include terms that affect only images or other sensor readings. Terms in ``chosen`` are
            always included.

    Raises:
        UnknownNameError: If a term in ``chosen`` does not exist.
        InputError: If the twin has no parameter of any of the terms.
    """
    declared = _quantities_by_term()
    for name in chosen:
        if name not in declared:
            raise UnknownNameError("term", name, declared, where="the terms that can be switched off")
    terms: list[AblationTerm] = []
    for name, kinds in declared.items():
        neutral, unseen = _neutral_values(twin, name), all(kind.visual or kind.stage == "sensing" for kind in kinds)
        if neutral and (name in chosen if chosen else images or not unseen):
            terms.append(AblationTerm(name=name, meaning=_meaning(name, kinds), neutral=neutral))
    if not terms:
        raise InputError(f"The twin {twin.name} has no parameter of {', '.join(chosen) or 'any term'}.")
    return terms


def _neutral_values(twin: Twin, term: str) -> dict[str, float]:
    values: dict[str, float] = {}
    for param in twin.params.values():
        value = param.nominal if param.quantity.neutral is None else param.quantity.neutral
        if param.quantity.term == term and param.low <= value <= param.high:
            values[param.name] = value
    return values


def terms_table() -> str:
    """Return all terms (physical effects that an ablation can switch off) as Markdown for docs/guides/scenarios.md."""
    rows = [
        f"| {name} | {_meaning(name, kinds)} | {_format_patterns(kinds)} |"
        for name, kinds in _quantities_by_term().items()
    ]
    return "\n".join(["| term | meaning | switched off |", "|---|---|---|", *rows])


def _format_patterns(kinds: Sequence[Quantity]) -> str:
    """Return up to three parameter patterns with their neutral values (effect switched off), as Markdown text.

    Args:
        kinds: Quantities of one term (physical effect).
    """
    parts: list[str] = []
    for value in dict.fromkeys(kind.neutral for kind in kinds):
        label = "nominal" if value is None else f"{value:g}"
        alike = [kind for kind in kinds if kind.neutral == value]
        parts += [f"`{pattern}` {label}" for pattern in path_patterns(alike)]
    return ", ".join(parts[:3])


@dataclass(frozen=True, kw_only=True)
class TermEffect:
    """Effect of one term (a physical effect that can be switched off, such as friction) on the success rate.

    It is measured with the term as the only one that is off, and as the only one that is on.

    Attributes:
        term: The term.
        parameters: Names of the term's parameters that are not neutral in the unchanged worlds.
        term_off: Comparison of worlds in which only this term is off with unchanged worlds. A higher success rate means
            that the failure needs the term.
        only_term_on: Comparison of worlds in which only this term is on with worlds in which all terms are off. A lower
            success rate means that the term alone is enough for the failure.
    """

    term: AblationTerm
    parameters: tuple[str, ...]
    term_off: CounterfactualEffect
    only_term_on: CounterfactualEffect

    @property
    def gain_without(self) -> float:
        """Success rate of worlds in which only this term is off, minus the success rate of unchanged worlds."""
        return float(self.term_off.difference.estimate)

    @property
    def loss_alone(self) -> float:
        """Failure rate of worlds in which only this term is on, minus that of worlds in which all terms are off."""
        return 0.0 - float(self.only_term_on.difference.estimate)

    def verdict(self, alpha: float = 0.05) -> str:
        """Return as text whether the failure needs the term, and whether the term alone is enough for the failure.

        The texts are ``needed and enough``, ``needed, with others``, ``enough, not needed`` and ``no effect shown``.

        Args:
            alpha: Significance level over all terms (Holm's method).
        """
        needed = self.term_off.p_adjusted <= alpha and self.gain_without > 0
        enough = self.only_term_on.p_adjusted <= alpha and self.loss_alone > 0
        if needed:
            return "needed and enough" if enough else "needed, with others"
        return "enough, not needed" if enough else "no effect shown"

    def to_json(self, level: float) -> dict[str, Any]:
        """Return the effect as a JSON-compatible dictionary.

        Args:
            level: Confidence level of the success rates.
        """
        return {
            "term": self.term.name,
            "meaning": self.term.meaning,
            "parameters": list(self.parameters),
            "needed": self.gain_without,
            "enough": self.loss_alone,
            "verdict": self.verdict(),
            "without": self.term_off.to_json(level),
            "alone": self.only_term_on.to_json(level),
        }


@dataclass(frozen=True, kw_only=True)
class AblationResult:
    """Result of an ablation.

    Attributes:
        base: Outcomes of the unchanged worlds.
        all_off: Outcomes of the worlds in which all terms are off.
        terms: Effect of each tested term; the term that the failure needs most is first.
        untested: Names of the terms that were not tested, because they are neutral in every world.
    """

    base: TrialOutcomes
    all_off: TrialOutcomes
    terms: tuple[TermEffect, ...]
    untested: tuple[str, ...]


def ablate(
    attempt: Attempt, base: TrialOutcomes, params: ParamTable, terms: Sequence[AblationTerm], *, level: float = 0.95
) -> AblationResult:
    """Switch off each term alone and all terms but one, and compare the success rates.

    Terms are sorted by the gain of success if the term is switched off, then by the loss if it is the only term that is
    on.

    Args:
        attempt: Function that runs the worlds with some parameter values replaced, see `counterfactual.Attempt`. Worlds
            and random effects are the same in every call.
        base: Outcomes of the unchanged worlds.
        params: Parameter table of the unchanged worlds.
        terms: Terms to switch off; terms that are neutral in every world are skipped.
        level: Confidence level of the intervals.

    Raises:
        InputError: If every term is neutral in every world.
    """
    active = {term.name: tuple(term.active_parameters(params)) for term in terms}
    tested = [term for term in terms if active[term.name]]
    if not tested:
        raise InputError(
            "Every term is neutral in this world, so there is nothing to switch off. Use `twinloop scenario "
            "counterfactual` to change parameters instead."
        )
    off = {term.name: dict(term.neutral) for term in tested}
    all_off = attempt(_merge_neutral_values(off, ()))

    def compare_term(
        term: AblationTerm, state: str, before: TrialOutcomes, after: TrialOutcomes, side: Alternative
    ) -> CounterfactualEffect:
        return compare_outcomes(
            f"{term.name} {state}", [*term.neutral], 0.0, before, after, level=level, alternative=side
        )

    # One-sided tests: more success if a term is off, and less success if it is the only term that is on.
    term_off = [compare_term(term, "without", base, attempt(off[term.name]), "greater") for term in tested]
    only_term_on = [
        compare_term(term, "alone", all_off, attempt(_merge_neutral_values(off, (term.name,))), "less")
        for term in tested
    ]
    rows = [
        TermEffect(term=term, parameters=active[term.name], term_off=one, only_term_on=other)
        for term, one, other in zip(tested, adjust_p_values(term_off), adjust_p_values(only_term_on), strict=True)
    ]
    ranked = sorted(rows, key=lambda row: (-row.gain_without, -row.loss_alone))
    untested = tuple(name for name, names in active.items() if not names)
    return AblationResult(base=base, all_off=all_off, terms=tuple(ranked), untested=untested)


def _merge_neutral_values(off: Mapping[str, Mapping[str, float]], excluded: Sequence[str]) -> dict[str, float]:
    """Return the neutral values of every term except the excluded ones, by parameter name.

    A term is a physical effect that can be switched off, and a neutral value is the parameter value that switches it
    off.

    Args:
        off: Neutral values by term name and parameter name.
        excluded: Names of the terms that stay on.
    """
    return {name: value for term, values in off.items() if term not in excluded for name, value in values.items()}
