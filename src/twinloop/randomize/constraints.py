"""Parse and check constraints between drawn parameters, written as arithmetic in SI units.

Worlds that violate a constraint are rejected and drawn again; rejected candidates are counted. Example::

    hypot(object/cube/position/x - object/target/position/x, object/cube/position/y - object/target/position/y) > 0.06

A path such as ``object/cube/position/x`` is a parameter's full name; put spaces around a division. The text is parsed
into a tree of known operations, never executed as code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import ParamTable

Holds: TypeAlias = Callable[[ParamTable], NDArray[np.bool_]]
_Term: TypeAlias = Callable[[ParamTable], Any]

_LONGEST = 1000  # characters; limits the cost of parsing; our choice
_PATH = re.compile(r"[A-Za-z_]\w*(?:/[\w.]+)+")
_BINARY: dict[type[ast.operator], Any] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
}
_COMPARE: dict[type[ast.cmpop], Any] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}
_FUNCTIONS: dict[str, tuple[Any, int]] = {
    "abs": (np.abs, 1),
    "sqrt": (np.sqrt, 1),
    "exp": (np.exp, 1),
    "log": (np.log, 1),
    "sin": (np.sin, 1),
    "cos": (np.cos, 1),
    "tan": (np.tan, 1),
    "hypot": (np.hypot, 2),
    "min": (np.minimum, 2),
    "max": (np.maximum, 2),
}
_CONSTANTS = {"pi": np.pi}


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """Condition that every world must meet; worlds that violate it are drawn again.

    Attributes:
        name: Text of the condition, or the name that a task gives to it.
        names: Parameters in the condition.
        holds: Function from a parameter table to a mask ``(nworld,)`` of the worlds that meet the condition.
    """

    name: str
    names: tuple[str, ...]
    holds: Holds = field(compare=False, repr=False)


def parse_constraint(
    text: Any, params: Iterable[str], *, named: Mapping[str, Constraint] | None = None, where: str
) -> Constraint:
    """Parse a constraint, which is a comparison or the name of a constraint of the task.

    Args:
        text: The YAML value.
        params: Names of the twin's parameters.
        named: Constraints of the task by name.
        where: Place of the text, for error messages.

    Raises:
        UnknownNameError: If a parameter, function or named constraint does not exist.
        InputError: If the text is not a comparison, or not arithmetic.
    """
    named = named or {}
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise InputError(f"{where}: a constraint is a text of at most {_LONGEST} characters; given {text!r:.60}.")
    if text in named:
        return named[text]
    if re.fullmatch(r"[A-Za-z][\w -]*", text):
        raise UnknownNameError("constraint", text, named, where=where)
    reader = _ConstraintParser(text, params, where)
    return Constraint(name=text, names=reader.names, holds=reader.holds)


class _ConstraintParser:
    """Parser of the text of one constraint.

    A constraint consists of comparisons (<, <=, >, >=, ==, !=), which ``and``, ``or`` and ``not`` may combine. Both
    sides are arithmetic: + - * / **, numbers, ``pi``, full parameter names, and functions such as ``hypot`` or ``max``.

    Attributes:
        names: Parameters in the constraint.
        holds: Function from a parameter table to a mask ``(nworld,)`` of the worlds that meet the constraint.
    """

    def __init__(self, text: str, params: Iterable[str], where: str) -> None:
        self._text, self._where, self._known = text, where, tuple(params)
        self._places: dict[str, str] = {}
        marked = self._replace_paths(text)
        try:
            tree = ast.parse(marked.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise self._make_error("cannot be read as arithmetic") from None
        if not isinstance(tree, ast.Compare | ast.BoolOp) and not _is_not(tree):
            raise self._make_error("is not a comparison")
        term = self._parse_boolean(tree)
        self.names = tuple(self._places.values())

        def holds(table: ParamTable) -> NDArray[np.bool_]:
            with np.errstate(all="ignore"):  # undefined values compare as false, so the world is drawn again
                return np.broadcast_to(np.asarray(term(table), dtype=bool), (table.nworld,))

        self.holds = holds

    def _replace_paths(self, text: str) -> str:
        """Replace every parameter path in the text by a Python identifier, so that Python can parse the text."""
        longest_first = sorted(self._known, key=len, reverse=True)
        known = re.compile("|".join(rf"(?<![\w/]){re.escape(name)}(?![\w/])" for name in longest_first) or r"(?!)")
        marked = known.sub(self._replace_path, text)
        unknown = _PATH.search(marked)
        if unknown:
            raise UnknownNameError("parameter", unknown.group(), self._known, where=f"{self._where}: {text!r}")
        return marked

    def _replace_path(self, match: re.Match[str]) -> str:
        name = match.group()
        place = next((key for key, value in self._places.items() if value == name), f"_p{len(self._places)}")
        self._places[place] = name
        return f" {place} "

    def _parse_boolean(self, node: ast.expr) -> _Term:
        if isinstance(node, ast.BoolOp):
            parts = [self._parse_boolean(part) for part in node.values]
            join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
            return lambda table: join.reduce([np.broadcast_to(part(table), (table.nworld,)) for part in parts])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self._parse_boolean(node.operand)
            return lambda table: np.logical_not(inner(table))
        if isinstance(node, ast.Compare) and all(type(op) in _COMPARE for op in node.ops):
            return self._parse_comparison(node)
        raise self._make_error("combines something that is not a comparison")

    def _parse_comparison(self, node: ast.Compare) -> _Term:
        terms = [self._parse_number(part) for part in (node.left, *node.comparators)]
        tests = [_COMPARE[type(op)] for op in node.ops]

        def compare(table: ParamTable) -> Any:
            values = [term(table) for term in terms]
            pairs = zip(tests, values, values[1:], strict=False)
            defined = [np.isfinite(value) for value in values]
            return np.logical_and.reduce(
                [
                    np.broadcast_to(part, (table.nworld,))
                    for part in (*defined, *(test(left, right) for test, left, right in pairs))
                ]
            )

        return compare

    def _parse_number(self, node: ast.expr) -> _Term:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
            value = np.float64(node.value)
            return lambda _: value
        if isinstance(node, ast.Name):
            return self._parse_name(node.id)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            inner, sign = self._parse_number(node.operand), -1.0 if isinstance(node.op, ast.USub) else 1.0
            return lambda table: sign * inner(table)
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            left, right, operation = (
                self._parse_number(node.left),
                self._parse_number(node.right),
                _BINARY[type(node.op)],
            )
            return lambda table: operation(left(table), right(table))
        if isinstance(node, ast.Call):
            return self._parse_call(node)
        raise self._make_error(f"contains {type(node).__name__}, which is not arithmetic")

    def _parse_name(self, name: str) -> _Term:
        if name in self._places:
            path = self._places[name]
            return lambda table: table[path]
        if name in _CONSTANTS:
            return lambda _: _CONSTANTS[name]
        raise UnknownNameError("parameter", name, [*self._known, *_CONSTANTS], where=f"{self._where}: {self._text!r}")

    def _parse_call(self, node: ast.Call) -> _Term:
        name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
        if name not in _FUNCTIONS:
            raise UnknownNameError("function", name, _FUNCTIONS, where=f"{self._where}: {self._text!r}")
        function, count = _FUNCTIONS[name]
        if len(node.args) != count or node.keywords:
            raise self._make_error(f"calls {name} with {len(node.args)} arguments, but it takes {count}")
        arguments = [self._parse_number(part) for part in node.args]
        return lambda table: function(*(argument(table) for argument in arguments))

    def _make_error(self, what: str) -> InputError:
        return InputError(
            f"{self._where}: the constraint {self._text!r:.120} {what}. Compare parameters with <, <=, > or >=, in SI "
            f"units, using + - * / ** and {', '.join(_FUNCTIONS)}; spaces around a division."
        )


def _is_not(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


# Number of candidates from which a plan's acceptance is estimated when it is made.
PROBE = 2000
# A plan with a smaller acceptance probably has wrong ranges; our choice.
LEAST_ACCEPTED = 0.01
# A plan that passes the probe practically always has an acceptance above 0.5 % (at 0.5 % one in 300 passes), and then
# one episode in 10^21 needs more candidates than this.
MOST_REDRAWS = 10_000


class RejectionCounter:
    """Counter of candidates that constraints reject in one batch of worlds.

    The attribute ``redraws`` ``(nworld,)`` is the number of rejected candidates of each world, ``names`` are the
    parameters of all constraints.
    """

    def __init__(self, constraints: Sequence[Constraint], nworld: int) -> None:
        self.names = {name for constraint in constraints for name in constraint.names}
        self.redraws = np.zeros(nworld, dtype=np.int64)
        self._constraints = constraints
        self._candidates = self._accepted = self._redraw = 0
        self._held = np.zeros(len(constraints), dtype=np.int64)

    def find_rejected(self, table: ParamTable, worlds: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the worlds whose candidate violates a constraint, and add all candidates to the counts of this object.

        Args:
            table: The candidates; row i is the candidate of ``worlds[i]``.
            worlds: Indices of worlds.
        """
        held = np.array([constraint.holds(table) for constraint in self._constraints])
        accepted = held.all(axis=0)
        self._candidates += len(worlds)
        self._held += held.sum(axis=1)
        self._accepted += int(accepted.sum())
        self.redraws[worlds[~accepted]] += 1
        return worlds[~accepted]

    def next_redraw(self) -> int:
        """Count one more redraw of the rejected worlds, and return its number from 1.

        Raises:
            InputError: If the number exceeds `MOST_REDRAWS` (10,000).
        """
        if self._redraw >= MOST_REDRAWS:
            raise self._make_rate_error()
        self._redraw += 1
        return self._redraw

    def check_rate(self) -> None:
        """Check that constraints accept enough of the candidates.

        Raises:
            InputError: If less than `LEAST_ACCEPTED` (1 %) of the candidates were accepted.
        """
        if self._accepted < LEAST_ACCEPTED * self._candidates:
            raise self._make_rate_error()

    def _make_rate_error(self) -> InputError:
        worst = int(np.argmin(self._held))
        together = f", all {len(self._held)} constraints together for {self._accepted}" if len(self._held) > 1 else ""
        return InputError(
            f"The constraint {self._constraints[worst].name!r} held for {self._held[worst]} of {self._candidates} "
            f"candidates ({self._held[worst] / self._candidates:.2%}){together}. At least {LEAST_ACCEPTED:.0%} must be "
            f"accepted. Change its numbers, or narrow the ranges of {', '.join(sorted(self.names))}."
        )
