"""What would be different: a parameter, or several by a pattern, set, scaled or shifted, over a grid of doses."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.twin import Twin

Op = Literal["set", "scale", "shift"]
_SIGNS: dict[str, Op] = {"=": "set", "*=": "scale", "+=": "shift"}
_MARKS: dict[Op, str] = {op: sign for sign, op in _SIGNS.items()}
_MOST_DOSES = 64


@dataclass(frozen=True, kw_only=True)
class What:
    """One question: these parameters, changed in this way, by each of these doses."""

    pattern: str
    names: tuple[str, ...]
    op: Op
    doses: tuple[float, ...]

    @property
    def text(self) -> str:
        """As it was asked, without doses."""
        return f"{self.pattern}{_MARKS[self.op]}"

    @property
    def unit(self) -> str:
        """Of a dose, as a suffix of its number."""
        return {"set": "", "scale": "×", "shift": ""}[self.op]

    def values(self, table: ParamTable, dose: float) -> dict[str, NDArray[np.float64]]:
        """The changed parameters of worlds, ``(nworld,)`` each, from their own values."""
        change = {
            "set": lambda own: np.full_like(own, dose),
            "scale": lambda own: own * dose,
            "shift": lambda own: own + dose,
        }[self.op]
        return {name: change(table[name]) for name in self.names}


def parse_what(text: str, twin: Twin) -> What:
    """``PATTERN=DOSES`` sets, ``PATTERN*=DOSES`` scales, ``PATTERN+=DOSES`` shifts, in SI units.

    Doses are numbers with commas between, or ``LOW..HIGH:COUNT``, evenly spaced (by ratio where the parameter is
    declared on a logarithmic scale, and for factors). A pattern may hold ``*``.

    Raises:
        InputError: it is not of this form.
        UnknownNameError: no parameter of the twin matches; lists the nearest.
    """
    found = _split(text)
    if found is None:
        raise InputError(
            f"--what {text!r} is not understood. Write PARAMETER=0.05,0.1 to set it, PARAMETER*=2 to scale it, "
            "PARAMETER+=0.01 to shift it, or PARAMETER=0.02..0.2:7 for seven values; * stands for any name."
        )
    pattern, sign, doses = found
    names = tuple(fnmatch.filter(twin.params, pattern))
    if not names:
        raise UnknownNameError("parameter", pattern, twin.params, where=f"twin {twin.name}")
    op = _SIGNS[sign]
    by_ratio = op == "scale" or all(twin.params[name].transform == "log" for name in names)
    return What(pattern=pattern, names=names, op=op, doses=_doses(doses, text, by_ratio=by_ratio))


def _split(text: str) -> tuple[str, str, str] | None:
    """Pattern, sign and doses; the first ``=`` ends the pattern, with the ``*`` or ``+`` before it."""
    head, equals, doses = text.partition("=")
    head, doses = head.strip(), doses.strip()
    if not equals or not head or not doses:
        return None
    if head[-1] == "+" or (head[-1] == "*" and not head.endswith("/*")):
        return (head[:-1].strip(), f"{head[-1]}=", doses) if head[:-1].strip() else None
    return head, "=", doses


def _doses(text: str, whole: str, *, by_ratio: bool) -> tuple[float, ...]:
    try:
        ends, colon, count = text.partition(":")
        if colon:
            low, high = (float(end) for end in ends.split(".."))
            if not 2 <= int(count) <= _MOST_DOSES:
                raise InputError(f"--what {whole!r}: give 2 to {_MOST_DOSES} values, not {count}.")
            spaced = np.geomspace if by_ratio and min(low, high) > 0 else np.linspace
            return tuple(float(value) for value in spaced(low, high, int(count)))
        doses = tuple(dict.fromkeys(float(item) for item in text.split(",")))
    except ValueError:
        raise InputError(
            f"--what {whole!r}: {text!r} are no doses. Write numbers with commas between, or LOW..HIGH:COUNT."
        ) from None
    if not np.isfinite(doses).all() or len(doses) > _MOST_DOSES:
        raise InputError(f"--what {whole!r}: give up to {_MOST_DOSES} finite numbers.")
    return doses


def label(what: What, dose: float) -> str:
    """One dose of a question, in words."""
    return f"{what.text}{dose:.4g}"
