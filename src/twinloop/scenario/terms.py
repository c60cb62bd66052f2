"""Physics terms that can be switched off, and what their parameters are then; see `twin.quantities.effects`.

A term's parameters are set to their neutral values: numbers at which the effect is absent, or the twin's own value
where nothing can be without it (a mass, a gain, a size): switching off then means that this world had been like the
twin. A term none of whose parameters differs from neutral in a world is not tried there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.twin import Twin
from twinloop.twin.quantities import QUANTITIES, Quantity, path_patterns
from twinloop.twin.quantities.effects import TERMS


@dataclass(frozen=True, kw_only=True)
class Term:
    """One term on one twin: ``neutral`` values of the parameters that make it up, ``(nworld,)`` or one number each."""

    name: str
    meaning: str
    neutral: Mapping[str, float]

    def acts(self, table: ParamTable) -> list[str]:
        """Its parameters that differ from neutral in some world."""
        values = {name: table.steps.get(name, table[name]) for name in self.neutral}
        return [name for name, found in values.items() if (found != self.neutral[name]).any()]


def _declared() -> dict[str, list[Quantity]]:
    """The quantities of every term."""
    kinds: dict[str, list[Quantity]] = {name: [] for name in TERMS}
    for kind in QUANTITIES:
        if kind.term:
            kinds.setdefault(kind.term, []).append(kind)
    return kinds


def _meaning(name: str, kinds: Sequence[Quantity]) -> str:
    return TERMS.get(name) or kinds[0].meaning


def _pictured(kinds: Sequence[Quantity]) -> bool:
    """Whether a term is noticed by an actor with cameras only."""
    return all(kind.visual or kind.stage == "sensing" for kind in kinds)


def term_names() -> list[str]:
    """Terms that can be switched off."""
    return list(_declared())


def terms_of(twin: Twin, chosen: Sequence[str] = (), *, pictures: bool = True) -> list[Term]:
    """The terms that a twin has parameters for.

    Args:
        chosen: names of terms; all by default.
        pictures: whether what is only seen in pictures counts; a term that was chosen does.

    Raises:
        UnknownNameError: there is no term of that name.
        InputError: the twin has no parameter of any of them.
    """
    declared = _declared()
    for name in chosen:
        if name not in declared:
            raise UnknownNameError("term", name, declared, where="the terms that can be switched off")
    found: list[Term] = []
    for name, kinds in declared.items():
        neutral = _neutral(twin, name)
        if neutral and (name in chosen if chosen else pictures or not _pictured(kinds)):
            found.append(Term(name=name, meaning=_meaning(name, kinds), neutral=neutral))
    if not found:
        raise InputError(f"The twin {twin.name} has no parameter of {', '.join(chosen) or 'any term'}.")
    return found


def _neutral(twin: Twin, term: str) -> dict[str, float]:
    values: dict[str, float] = {}
    for param in twin.params.values():
        value = param.nominal if param.quantity.neutral is None else param.quantity.neutral
        if param.quantity.term == term and param.low <= value <= param.high:
            values[param.name] = value
    return values


def terms_table() -> str:
    """The terms as Markdown: what docs/scenarios.md shows."""
    rows = [f"| {name} | {_meaning(name, kinds)} | {_few(kinds)} |" for name, kinds in _declared().items()]
    return "\n".join(["| term | meaning | switched off |", "|---|---|---|", *rows])


def _few(kinds: Sequence[Quantity]) -> str:
    """The first patterns of a term; the declarations have the rest."""
    said: list[str] = []
    for value in dict.fromkeys(kind.neutral for kind in kinds):
        shown = "nominal" if value is None else f"{value:g}"
        alike = [kind for kind in kinds if kind.neutral == value]
        said += [f"`{pattern}` {shown}" for pattern in path_patterns(alike)]
    return ", ".join(said[:3])
