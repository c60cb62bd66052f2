"""Physics terms that can be switched off, and what their parameters are then; see ``terms.yaml``."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.core.yaml_documents import load_yaml
from twinloop.twin import Twin

_FILE = Path(__file__).with_name("terms.yaml")


class _Term(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    meaning: str
    neutral: dict[str, float | Literal["nominal"]]
    looks: bool = False


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


@cache
def _declared() -> dict[str, _Term]:
    return TypeAdapter(dict[str, _Term]).validate_python(load_yaml(_FILE))


def term_names() -> list[str]:
    """Terms that can be switched off."""
    return list(_declared())


def terms_of(twin: Twin, chosen: Sequence[str] = (), *, pictures: bool = True) -> list[Term]:
    """The terms that a twin has parameters for; an earlier pattern of the table has a parameter before a later one.

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
    taken: set[str] = set()
    found: list[Term] = []
    for name, row in declared.items():
        neutral = _neutral(twin, row, taken)
        taken |= set(neutral)
        if neutral and (name in chosen if chosen else pictures or not row.looks):
            found.append(Term(name=name, meaning=row.meaning, neutral=neutral))
    if not found:
        raise InputError(f"The twin {twin.name} has no parameter of {', '.join(chosen) or 'any term'}.")
    return found


def _neutral(twin: Twin, row: _Term, taken: set[str]) -> dict[str, float]:
    values: dict[str, float] = {}
    for pattern, neutral in row.neutral.items():
        for name in fnmatch.filter(twin.params, pattern):
            param = twin.params[name]
            value = param.nominal if neutral == "nominal" else float(neutral)
            if name not in taken and param.low <= value <= param.high:
                values[name] = value
    return values


def terms_table() -> str:
    """The terms as Markdown, from the table: what docs/scenarios.md shows."""
    rows = [
        f"| {name} | {row.meaning} | {', '.join(f'`{key}` {_said(value)}' for key, value in _few(row.neutral))} |"
        for name, row in _declared().items()
    ]
    return "\n".join(["| term | meaning | switched off |", "|---|---|---|", *rows])


def _said(value: float | str) -> str:
    return "nominal" if isinstance(value, str) else f"{value:g}"


def _few(neutral: Mapping[str, float | str]) -> list[tuple[str, float | str]]:
    """The first patterns of a term; the rest stands in the table."""
    return list(neutral.items())[:3]
