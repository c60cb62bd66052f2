"""Conditions on a run's figures, such as ``skill < 0.5``, which make a command exit with 1."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.headline import Headline, path_word

_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_PATTERN = re.compile(r"^\s*(?P<name>[^<>]+?)(?:\.(?P<end>low|high))?\s*(?P<sign><=|>=|<|>)\s*(?P<number>\S+)\s*$")


@dataclass(frozen=True, kw_only=True)
class Condition:
    """``text`` as it was given; it compares the estimate of figures ``name``, or an ``end`` of their intervals.

    What a figure's own name cannot hold (spaces, =) may be written, and stands for the underscore there.
    """

    text: str
    name: str
    end: str
    sign: str
    number: float

    def matches(self, figures: Mapping[str, Headline]) -> list[Headline]:
        """The figures that the condition speaks of.

        Raises:
            UnknownNameError: there is none.
        """
        found = [figure for name, figure in figures.items() if name == self.name or fnmatchcase(name, self.name)]
        if not found:
            raise UnknownNameError("figure", self.name, list(figures), where=f"--fail-if '{self.text}'")
        return found

    def holds(self, figure: Headline) -> bool:
        """Whether the condition is true of a figure.

        Raises:
            InputError: the figure is not known, or has no interval where an end of it is asked for.
        """
        value = getattr(figure, self.end or "estimate")
        if math.isnan(value):
            reason = f" ({figure.method})" if figure.method else ""
            what = f"The interval of {figure.name}" if self.end else figure.name
            raise InputError(f"--fail-if '{self.text}' cannot be decided: {what} is not known{reason}.")
        return _COMPARE[self.sign](value, self.number)


def parse_conditions(texts: Sequence[str]) -> tuple[Condition, ...]:
    """Read conditions before the work begins.

    Raises:
        InputError: one that is not NAME < NUMBER, NAME.low < NUMBER or the like.
    """
    return tuple(_parse(text) for text in texts)


def _parse(text: str) -> Condition:
    found = _PATTERN.match(text)
    number = _number(found["number"]) if found else math.nan
    if found is None or math.isnan(number):
        raise InputError(
            f"--fail-if '{text}' is no condition. Write NAME < NUMBER, with <, <=, > or >=, such as 'skill < 0.5', or "
            "an end of the interval: 'skill.low < 0.5'."
        )
    return Condition(
        text=text, name=path_word(found["name"]), end=found["end"] or "", sign=found["sign"], number=number
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def check_names(conditions: Sequence[Condition], figures: Sequence[str]) -> None:
    """Refuse a condition on what a command never tells, before the work begins.

    Args:
        conditions: what was asked.
        figures: names of figures; ``*`` stands for what only the data say, such as a joint's name.

    Raises:
        UnknownNameError: a condition names none of them.
    """
    names = [path_word(name) for name in figures]
    for condition in conditions:
        if not any(_meets(condition.name, name) for name in names):
            raise UnknownNameError("figure", condition.name, names, where=f"--fail-if '{condition.text}'")


def _meets(asked: str, told: str) -> bool:
    """Whether two patterns may mean one name: as far as both are spelt out, from the beginning on, where both are."""
    if asked == told or fnmatchcase(asked, told) or fnmatchcase(told, asked):
        return True
    both = [re.split(r"[*?\[]", text, maxsplit=1) for text in (asked, told)]
    begins = [parts[0] for parts in both]
    return all(len(parts) > 1 for parts in both) and (
        begins[0].startswith(begins[1]) or begins[1].startswith(begins[0])
    )


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Which figures made which condition true; none where the run passed."""

    failed: tuple[tuple[Condition, Headline], ...]

    @property
    def code(self) -> int:
        """The exit code: 1 where any condition is true."""
        return 1 if self.failed else 0

    def lines(self) -> list[str]:
        """A line for each true condition."""
        return [
            f"FAILED {condition.text}: {figure.name} is {figure.estimate:.4g}{_interval(figure)}{_unit(figure)}"
            for condition, figure in self.failed
        ]

    def to_json(self) -> list[dict[str, Any]]:
        """A plain form for files."""
        return [{"condition": condition.text, "figure": figure.name} for condition, figure in self.failed]


def judge(conditions: Sequence[Condition], figures: Mapping[str, Headline]) -> Verdict:
    """Try every condition on every figure that it names."""
    tried = [(condition, figure) for condition in conditions for figure in condition.matches(figures)]
    return Verdict(failed=tuple((condition, figure) for condition, figure in tried if condition.holds(figure)))


def _interval(figure: Headline) -> str:
    return "" if math.isnan(figure.low) else f" [{figure.low:.4g}, {figure.high:.4g}]"


def _unit(figure: Headline) -> str:
    return f" {figure.unit}" if figure.unit else ""
