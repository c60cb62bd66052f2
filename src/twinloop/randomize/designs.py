"""Sampling designs: position of an episode's independent draws in the unit cube, as a function of its number alone.

A design places the first draw of an episode. A repeated draw, for a second attempt or after a constraint refused the
first, is independent: it has the declared distribution, but not the even spacing.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.randomize.sequences import MOST_AXES, permute, scrambled_sobol

Axes: TypeAlias = Sequence[tuple[str, ...]]
"""One entry per independent number of an episode: the parameters that it decides."""

Numbers: TypeAlias = NDArray[np.float64]
_MOST_CELLS = 2**31  # cells are permuted as 32-bit words; one bit is spare


class Design(Protocol):
    """Positions of episodes in the unit cube."""

    kind: ClassVar[str]

    @property
    def names(self) -> tuple[str, ...]:
        """Patterns of the parameters that are placed; empty: all."""
        ...

    def check(self, axes: Axes) -> None:
        """Refuse axes that the design cannot place.

        Raises:
            InputError, UnknownNameError: see the message.
        """
        ...

    def place(self, u: Numbers, axes: Axes, run_seed: int, episodes: NDArray[np.int64], /) -> Numbers:
        """Placed numbers ``(n, k)`` in (0, 1), from independent uniforms of the same shape."""
        ...


@dataclass(frozen=True, kw_only=True)
class Independent:
    """Every draw on its own."""

    kind: ClassVar[str] = "independent"
    names: tuple[str, ...] = ()

    def check(self, axes: Axes) -> None:
        """Everything can be drawn independently."""

    def place(self, u: Numbers, *_: object) -> Numbers:
        """The uniforms as they are."""
        return u


INDEPENDENT = Independent()


@dataclass(frozen=True, kw_only=True)
class Sobol:
    """Scrambled Sobol' points: episode number is point index, so any 2^k aligned episodes are spread evenly.

    That holds for each axis and for the first ones together. With many axes and few points some pairs of late axes
    line up (Joe and Kuo, SIAM J. Sci. Comput. 30, 2008, choose directions that keep this rare), which coverage shows.
    ``names`` then puts the parameters that matter on the sequence and leaves the others independent.
    """

    kind: ClassVar[str] = "sobol"
    names: tuple[str, ...] = ()

    def check(self, axes: Axes) -> None:
        """Refuse names that nothing draws, and more axes than there are direction numbers."""
        if len(_chosen(axes, self.names or ("*",))) > MOST_AXES:
            raise InputError(f"A Sobol' design has at most {MOST_AXES} axes; {len(axes)} are drawn. Draw fewer.")

    def place(self, u: Numbers, axes: Axes, run_seed: int, episodes: NDArray[np.int64]) -> Numbers:
        """``u`` with the axes of the sequence at its points."""
        chosen = _chosen(axes, self.names or ("*",))
        placed = u.copy()
        placed[:, chosen] = scrambled_sobol(episodes, len(chosen), run_seed=run_seed)
        return placed


@dataclass(frozen=True, kw_only=True)
class Stratified:
    """``strata`` equally probable strata of each parameter, each visited once per ``strata`` episodes.

    With ``names``, their strata are crossed: each of ``strata ** k`` cells is visited once per as many episodes, in
    random order, and the other parameters are independent. The position within a stratum is random.
    """

    kind: ClassVar[str] = "stratified"
    strata: int
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _whole("strata", self.strata)

    def check(self, axes: Axes) -> None:
        """Refuse names that nothing draws, and more cells than can be numbered."""
        if self.names:
            _cells([self.strata] * len(_chosen(axes, self.names)), self.kind)

    def place(self, u: Numbers, axes: Axes, run_seed: int, episodes: NDArray[np.int64]) -> Numbers:
        """``u`` moved into its stratum."""
        return self._crossed(u, axes, run_seed, episodes) if self.names else self._each(u, axes, run_seed, episodes)

    def _each(self, u: Numbers, axes: Axes, run_seed: int, episodes: NDArray[np.int64]) -> Numbers:
        cycle, index = np.divmod(episodes, self.strata)
        labels = ["+".join(axis) for axis in axes]
        return (permute(index, self.strata, run_seed=run_seed, labels=labels, cycle=cycle) + u) / self.strata

    def _crossed(self, u: Numbers, axes: Axes, run_seed: int, episodes: NDArray[np.int64]) -> Numbers:
        chosen = _chosen(axes, self.names)
        levels = [self.strata] * len(chosen)
        cycle, index = np.divmod(episodes, math.prod(levels))
        labels = ["+".join(self.names)]
        cell = permute(index, math.prod(levels), run_seed=run_seed, labels=labels, cycle=cycle)[:, 0]
        placed = u.copy()
        placed[:, chosen] = (_digits(cell, levels) + u[:, chosen]) / self.strata
        return placed


@dataclass(frozen=True, kw_only=True)
class LatinHypercube(Stratified):
    """As many strata as the run has episodes: each parameter has exactly one value in each.

    McKay, Beckman and Conover, Technometrics 21, 1979.
    """

    kind: ClassVar[str] = "latin_hypercube"


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A full-factorial grid over named parameters, gone through in order and again; the others are independent.

    A level is the middle of one of ``levels`` equally probable parts; ``levels`` is one number or one per pattern.
    """

    kind: ClassVar[str] = "grid"
    names: tuple[str, ...]
    levels: int | Mapping[str, int]

    def __post_init__(self) -> None:
        for value in self.levels.values() if isinstance(self.levels, Mapping) else [self.levels]:
            _whole("levels", value)
        if isinstance(self.levels, Mapping) and set(self.levels) != set(self.names):
            raise InputError("A grid's levels are one number, or one for each of its names.")
        if not self.names:
            raise InputError("A grid needs names: the parameters whose combinations it goes through.")

    def check(self, axes: Axes) -> None:
        """Refuse names that nothing draws, and more cells than can be numbered."""
        _cells(self.counts(axes), self.kind)

    def counts(self, axes: Axes) -> list[int]:
        """Levels of each axis that is on the grid."""
        if not isinstance(self.levels, Mapping):
            return [self.levels] * len(_chosen(axes, self.names))
        found = {i: count for name, count in self.levels.items() for i in _chosen(axes, (name,))}
        return [found[i] for i in _chosen(axes, self.names)]

    def place(self, u: Numbers, axes: Axes, run_seed: int, episodes: NDArray[np.int64]) -> Numbers:
        """``u`` with the grid's axes at their levels."""
        del run_seed  # a grid has no chance in it
        levels = self.counts(axes)
        placed = u.copy()
        placed[:, _chosen(axes, self.names)] = (_digits(episodes % math.prod(levels), levels) + 0.5) / np.array(levels)
        return placed


_KINDS: dict[str, type[Any]] = {kind.kind: kind for kind in (Independent, Sobol, LatinHypercube, Stratified, Grid)}


def make_design(value: Any, *, episodes: int, where: str) -> Design:
    """A design as written in YAML: its kind, or a mapping with ``kind`` and its options.

    Args:
        episodes: attempts of the run, which a Latin hypercube is divided by.

    Raises:
        UnknownNameError: no design of that kind.
        InputError: options that it does not take, or of the wrong type.
    """
    options = dict(value) if isinstance(value, Mapping) else {"kind": value}
    kind = str(options.pop("kind", None))
    if kind not in _KINDS:
        raise UnknownNameError("design", kind, _KINDS, where=where)
    if "names" in options:
        options["names"] = _patterns(options["names"], where)
    taken = {"sobol": ("names",), "independent": (), "latin_hypercube": ()}.get(kind, ("strata", "names", "levels"))
    wrong = [key for key in options if key not in taken or key not in _KINDS[kind].__dataclass_fields__]
    if wrong:
        raise InputError(f"{where}: {kind} does not take {', '.join(wrong)}. {_usage(kind)}")
    if kind == "latin_hypercube":
        options["strata"] = episodes
    try:
        return _KINDS[kind](**options)
    except TypeError:
        raise InputError(f"{where}: {kind} lacks an option. {_usage(kind)}") from None
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def is_named(design: Design, name: str) -> bool:
    """Whether a parameter is one of those that a design names."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in design.names)


def design_json(design: Design) -> dict[str, Any]:
    """A plain form for files and hashes."""
    return {"kind": design.kind, **asdict(design)}  # pyright: ignore[reportArgumentType]


def _usage(kind: str) -> str:
    return {
        "stratified": "Write {kind: stratified, strata: 8}, and names: [...] to cross the strata of some.",
        "sobol": "Write design: sobol, or {kind: sobol, names: [...]} to spread some and draw the rest independently.",
        "grid": "Write {kind: grid, levels: 5, names: [...]}.",
    }.get(kind, f"Write design: {kind}.")


def _patterns(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise InputError(f"{where}: names is a list of parameter paths; given {value!r}.")
    return tuple(value)


def _whole(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} is a whole number from 1; given {value!r}.")


def _chosen(axes: Axes, patterns: Sequence[str]) -> list[int]:
    """Axes that decide a parameter matching a pattern, in the order of the axes.

    Raises:
        UnknownNameError: a pattern that matches nothing that is drawn.
    """
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for axis in axes for name in axis):
            drawn = [name for axis in axes for name in axis]
            raise UnknownNameError("drawn parameter", pattern, drawn, where="randomization.design.names")
    return [i for i, axis in enumerate(axes) if any(fnmatch.fnmatchcase(n, p) for n in axis for p in patterns)]


def _cells(levels: Sequence[int], kind: str) -> None:
    if math.prod(levels) > _MOST_CELLS:
        shown = " × ".join(map(str, levels[:4])) + (f" × … ({len(levels)} parameters)" if len(levels) > 4 else "")
        raise InputError(
            f"A {kind} design of {shown} cells has more than can be visited. Name fewer "
            "parameters, take fewer levels, or spread them with design: sobol."
        )


def _digits(number: NDArray[np.int64], levels: Sequence[int]) -> NDArray[np.int64]:
    """Mixed-radix digits of cell numbers ``(n,)``, the first axis fastest: ``(n, k)``."""
    digits = []
    for level in levels:
        number, digit = np.divmod(number, level)
        digits.append(digit)
    return np.stack(digits, axis=-1)
