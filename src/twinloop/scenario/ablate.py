"""Find the physical effects that a failure needs: switch off each alone, and all but each.

Switching off a term sets its parameters to neutral values: values at which the effect is absent, or the twin's nominal
value if nothing works without the parameter (a mass, a gain, a size); the latter compares the world with the twin. A
term whose parameters are all neutral in a world is not tried there.
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
    """One term on one twin: ``neutral`` values of its parameters, ``(nworld,)`` or one number each."""

    name: str
    meaning: str
    neutral: Mapping[str, float]

    def active_parameters(self, table: ParamTable) -> list[str]:
        """Return the parameters of the term that differ from their neutral values in some world."""
        values = {name: table.steps.get(name, table[name]) for name in self.neutral}
        return [name for name, found in values.items() if (found != self.neutral[name]).any()]


def _quantities_by_term() -> dict[str, list[Quantity]]:
    """Return the quantities of every term."""
    kinds: dict[str, list[Quantity]] = {name: [] for name in TERMS}
    for kind in QUANTITIES:
        if kind.term:
            kinds.setdefault(kind.term, []).append(kind)
    return kinds


def _meaning(name: str, kinds: Sequence[Quantity]) -> str:
    return TERMS.get(name) or kinds[0].meaning


def term_names() -> list[str]:
    """Return the terms that can be switched off."""
    return list(_quantities_by_term())


def find_terms(twin: Twin, chosen: Sequence[str] = (), *, pictures: bool = True) -> list[AblationTerm]:
    """Return the terms for which a twin has parameters.

    Args:
        chosen: names of terms; all by default.
        pictures: whether terms that affect only images are included; terms in ``chosen`` always are.

    Raises:
        UnknownNameError: there is no term with that name.
        InputError: the twin has no parameter of any of them.
    """
    declared = _quantities_by_term()
    for name in chosen:
        if name not in declared:
            raise UnknownNameError("term", name, declared, where="the terms that can be switched off")
    found: list[AblationTerm] = []
    for name, kinds in declared.items():
        neutral, unseen = _neutral_values(twin, name), all(kind.visual or kind.stage == "sensing" for kind in kinds)
        if neutral and (name in chosen if chosen else pictures or not unseen):
            found.append(AblationTerm(name=name, meaning=_meaning(name, kinds), neutral=neutral))
    if not found:
        raise InputError(f"The twin {twin.name} has no parameter of {', '.join(chosen) or 'any term'}.")
    return found


def _neutral_values(twin: Twin, term: str) -> dict[str, float]:
    values: dict[str, float] = {}
    for param in twin.params.values():
        value = param.nominal if param.quantity.neutral is None else param.quantity.neutral
        if param.quantity.term == term and param.low <= value <= param.high:
            values[param.name] = value
    return values


def terms_table() -> str:
    """Return the terms as a Markdown table for docs/guides/scenarios.md."""
    rows = [
        f"| {name} | {_meaning(name, kinds)} | {_format_patterns(kinds)} |"
        for name, kinds in _quantities_by_term().items()
    ]
    return "\n".join(["| term | meaning | switched off |", "|---|---|---|", *rows])


def _format_patterns(kinds: Sequence[Quantity]) -> str:
    """Return up to three patterns of a term with their neutral values, as Markdown text."""
    said: list[str] = []
    for value in dict.fromkeys(kind.neutral for kind in kinds):
        shown = "nominal" if value is None else f"{value:g}"
        alike = [kind for kind in kinds if kind.neutral == value]
        said += [f"`{pattern}` {shown}" for pattern in path_patterns(alike)]
    return ", ".join(said[:3])


@dataclass(frozen=True, kw_only=True)
class TermEffect:
    """Effect of one term: success without it, and with it alone.

    ``without`` compares worlds without the term with unchanged worlds: a gain of success means that the failure needs
    it. ``alone`` compares worlds in which all other terms are switched off with worlds in which all terms are: a loss
    of success means that it is enough.
    """

    term: AblationTerm
    parameters: tuple[str, ...]
    without: CounterfactualEffect
    alone: CounterfactualEffect

    @property
    def gain_without(self) -> float:
        """Success rate of worlds without the term minus that with it."""
        return float(self.without.difference.estimate)

    @property
    def loss_alone(self) -> float:
        """Failure rate of worlds with the term alone minus that without any term."""
        return 0.0 - float(self.alone.difference.estimate)

    def verdict(self, alpha: float = 0.05) -> str:
        """Return as text whether the failure needs the term and whether it is enough, with an error rate over terms."""
        needed = self.without.p_adjusted <= alpha and self.gain_without > 0
        enough = self.alone.p_adjusted <= alpha and self.loss_alone > 0
        if needed:
            return "needed and enough" if enough else "needed, with others"
        return "enough, not needed" if enough else "no effect shown"

    def to_json(self, level: float) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return {
            "term": self.term.name,
            "meaning": self.term.meaning,
            "parameters": list(self.parameters),
            "needed": self.gain_without,
            "enough": self.loss_alone,
            "verdict": self.verdict(),
            "without": self.without.to_json(level),
            "alone": self.alone.to_json(level),
        }


@dataclass(frozen=True, kw_only=True)
class AblationResult:
    """Result of an ablation: unchanged worlds, worlds with every term off, and each term, the most needed first."""

    base: TrialOutcomes
    bare: TrialOutcomes
    terms: tuple[TermEffect, ...]
    idle: tuple[str, ...]


def ablate(
    attempt: Attempt, base: TrialOutcomes, own: ParamTable, terms: Sequence[AblationTerm], *, level: float = 0.95
) -> AblationResult:
    """Switch terms off one by one, and all but one.

    Terms are ranked by the gain of success without them, then by the loss with them alone.

    Args:
        attempt: function that tries the worlds with given parameters; worlds and random draws are always the same.
        base: outcomes of the unchanged worlds.
        own: parameters of the unchanged worlds.
        terms: terms to switch off; those that are neutral in every world are skipped.
        level: confidence level of the intervals.

    Raises:
        InputError: every term is neutral in every world.
    """
    acts = {term.name: tuple(term.active_parameters(own)) for term in terms}
    acting = [term for term in terms if acts[term.name]]
    if not acting:
        raise InputError(
            "Every term is neutral in this world, so there is nothing to switch off. Use `twinloop scenario "
            "counterfactual` to change parameters instead."
        )
    off = {term.name: dict(term.neutral) for term in acting}
    bare = attempt(_merge_neutral_values(off, ()))

    def compare_term(
        term: AblationTerm, what: str, before: TrialOutcomes, after: TrialOutcomes, side: Alternative
    ) -> CounterfactualEffect:
        return compare_outcomes(
            f"{term.name} {what}", [*term.neutral], 0.0, before, after, level=level, alternative=side
        )

    # One-sided tests: success gained without a term, and success lost with it alone.
    without = [compare_term(term, "without", base, attempt(off[term.name]), "greater") for term in acting]
    alone = [
        compare_term(term, "alone", bare, attempt(_merge_neutral_values(off, (term.name,))), "less") for term in acting
    ]
    rows = [
        TermEffect(term=term, parameters=acts[term.name], without=one, alone=other)
        for term, one, other in zip(acting, adjust_p_values(without), adjust_p_values(alone), strict=True)
    ]
    ranked = sorted(rows, key=lambda row: (-row.gain_without, -row.loss_alone))
    idle = tuple(name for name, names in acts.items() if not names)
    return AblationResult(base=base, bare=bare, terms=tuple(ranked), idle=idle)


def _merge_neutral_values(off: Mapping[str, Mapping[str, float]], kept: Sequence[str]) -> dict[str, float]:
    """Return the neutral values of every term except those in ``kept``."""
    return {name: value for term, values in off.items() if term not in kept for name, value in values.items()}
