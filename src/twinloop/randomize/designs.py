"""Choose the random numbers of episodes by a sampling design, such as Sobol' points or a grid.

The position of an episode in the unit cube depends only on the run's seed and the episode number. A design places the
first draw of an episode. A repeated draw, for a second attempt or after a constraint rejected the first draw, is
independent: it has the declared distribution, but not the even spacing.
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
"""Parameters that each independent uniform random number of an episode determines, one tuple of names per number."""

Numbers: TypeAlias = NDArray[np.float64]
_MOST_CELLS = 2**31  # cells are permuted as 32-bit words; one bit stays free


class Design(Protocol):
    """Interface of a sampling design: it assigns each episode a position in the unit cube."""

    kind: ClassVar[str]

    @property
    def names(self) -> tuple[str, ...]:
        """Name patterns of the parameters to which the design applies; empty for all parameters."""
        ...

    def check(self, axes: Axes) -> None:
        """Check that the design can spread episodes over these axes (uniform random numbers of an episode).

        Raises:
            InputError: If there are too many axes, or too many cells of a grid.
            UnknownNameError: If a pattern matches no drawn parameter.
        """
        ...

    def place(self, u: Numbers, axes: Axes, run_seed: int, episodes: NDArray[np.int64], /) -> Numbers:
        """Return where the design puts n episodes on k axes (cumulative probabilities), ``(n, k)`` in (0, 1).

        Args:
            u: Independent uniform random numbers, ``(n, k)``.
            axes: The k axes.
            run_seed: Seed of the run.
            episodes: Episode numbers, ``(n,)``.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Independent:
    """Design of independent random draws: it uses the uniform random numbers as drawn, without stratification."""

    kind: ClassVar[str] = "independent"
    names: tuple[str, ...] = ()

    def check(self, axes: Axes) -> None:
        """Accept all axes, because independent draws have no requirements.

        Args:
            axes: The axes; each is one uniform random number per episode.
        """

    def place(self, u: Numbers, *_: object) -> Numbers:
        """Return the uniform random numbers ``u`` unchanged."""
        return u


INDEPENDENT = Independent()


@dataclass(frozen=True, kw_only=True)
class Sobol:
    """Scrambled Sobol' points: the episode number is the index of the point.

    Any 2^k consecutive episodes whose first number is a multiple of 2^k are spread evenly over each axis, and over the
    first axes together. With many axes and few points some pairs of later axes are correlated (Joe and Kuo, SIAM J.
    Sci. Comput. 30, 2008, choose directions that make this rare); coverage reports it. In that case, select the
    important parameters with ``names``; the other parameters are then independent.

    Attributes:
        names: Name patterns of the parameters that the sequence places; empty for all parameters.
    """

    kind: ClassVar[str] = "sobol"
    names: tuple[str, ...] = ()

    def check(self, axes: Axes) -> None:
        """Check the names and the number of axes.

        Raises:
            UnknownNameError: If a pattern matches no drawn parameter.
            InputError: If there are more axes than the table of direction numbers has.
        """
        if len(_select_axes(axes, self.names or ("*",))) > MOST_AXES:
            raise InputError(f"A Sobol' design has at most {MOST_AXES} axes; {len(axes)} are drawn. Draw fewer.")

    def place(self, u: Numbers, axes: Axes, run_seed: int, episodes: NDArray[np.int64]) -> Numbers:
        """Return ``u`` with the columns of the selected axes replaced by Sobol' points, ``(n, k)``.

        Args:
            u: Independent uniform random numbers of n episodes on k axes, ``(n, k)``.
            axes: The k axes.
            run_seed: Seed of the run.
            episodes: Episode numbers, ``(n,)``.
        """
        chosen = _select_axes(axes, self.names or ("*",))
        placed = u.copy()
        placed[:, chosen] = scrambled_sobol(episodes, len(chosen), run_seed=run_seed)
        return placed


@dataclass(frozen=True, kw_only=True)
class Stratified:
    """Stratified sampling: each parameter visits each of its equally probable strata once per ``strata`` episodes.

    If ``names`` is given, the strata of these k parameters are crossed: each of the ``strata ** k`` cells is visited
    once per ``strata ** k`` episodes, in random order, and the other parameters are independent. Positions in a stratum
    are random.

    Attributes:
        strata: Number of strata of each parameter.
        names: Name patterns of the parameters to cross; empty to stratify every parameter separately.
    """

    kind: ClassVar[str] = "stratified"
    strata: int
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _require_positive_integer("strata", self.strata)

    def check(self, axes: Axes) -> None:
        """Check the names and the number of cells.

        Raises:
            UnknownNameError: If a pattern matches no drawn parameter.
            InputError: If there are more than 2^31 cells.
        """
        if self.names:
            _check_cell_count([self.strata] * len(_select_axes(axes, self.names)), self.kind)

    def place(self, u: Numbers, axes: Axes, run_seed: int, episodes: NDArray[np.int64]) -> Numbers:
        """Return ``u`` after mapping each number from (0, 1) into the stratum of its episode, ``(n, k)``.

        If the design has ``names``, only the columns of these parameters change.

        Args:
            u: Independent uniform random numbers of n episodes on k axes, ``(n, k)``.
            axes: The k axes.
            run_seed: Seed of the run.
            episodes: Episode numbers, ``(n,)``.
        """
        return (
            self._place_crossed(u, axes, run_seed, episodes)
            if self.names
            else self._place_separately(u, axes, run_seed, episodes)
        )

    def _place_separately(self, u: Numbers, axes: Axes, run_seed: int, episodes: NDArray[np.int64]) -> Numbers:
        cycle, index = np.divmod(episodes, self.strata)
        labels = ["+".join(axis) for axis in axes]
        return (permute(index, self.strata, run_seed=run_seed, labels=labels, cycle=cycle) + u) / self.strata

    def _place_crossed(self, u: Numbers, axes: Axes, run_seed: int, episodes: NDArray[np.int64]) -> Numbers:
        chosen = _select_axes(axes, self.names)
        levels = [self.strata] * len(chosen)
        cycle, index = np.divmod(episodes, math.prod(levels))
        labels = ["+".join(self.names)]
        cell = permute(index, math.prod(levels), run_seed=run_seed, labels=labels, cycle=cycle)[:, 0]
        placed = u.copy()
        placed[:, chosen] = (_digits(cell, levels) + u[:, chosen]) / self.strata
        return placed


@dataclass(frozen=True, kw_only=True)
class LatinHypercube(Stratified):
    """Latin hypercube: as many strata as episodes, with exactly one value of each parameter in each stratum.

    McKay, Beckman and Conover, Technometrics 21, 1979.
    """

    kind: ClassVar[str] = "latin_hypercube"


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Full-factorial grid over named parameters, visited in order and repeatedly.

    The other parameters are drawn at random, independently of the grid. A level is the middle of one of several equally
    probable parts of a parameter's distribution.

    Attributes:
        names: Name patterns of the parameters on the grid.
        levels: Number of levels, one for all parameters or one per pattern.
    """

    kind: ClassVar[str] = "grid"
    names: tuple[str, ...]
    levels: int | Mapping[str, int]

    def __post_init__(self) -> None:
        for value in self.levels.values() if isinstance(self.levels, Mapping) else [self.levels]:
            _require_positive_integer("levels", value)
        if isinstance(self.levels, Mapping) and set(self.levels) != set(self.names):
            raise InputError("A grid's levels are one number, or one for each of its names.")
        if not self.names:
            raise InputError("A grid needs names: the parameters whose combinations it goes through.")

    def check(self, axes: Axes) -> None:
        """Check the names and the number of cells.

        Raises:
            UnknownNameError: If a pattern matches no drawn parameter.
            InputError: If there are more than 2^31 cells.
        """
        _check_cell_count(self.level_counts(axes), self.kind)

    def level_counts(self, axes: Axes) -> list[int]:
        """Return the number of levels of each axis that is on the grid."""
        if not isinstance(self.levels, Mapping):
            return [self.levels] * len(_select_axes(axes, self.names))
        counts = {i: count for name, count in self.levels.items() for i in _select_axes(axes, (name,))}
        return [counts[i] for i in _select_axes(axes, self.names)]

    def place(self, u: Numbers, axes: Axes, run_seed: int, episodes: NDArray[np.int64]) -> Numbers:
        """Return ``u`` with the columns of the grid's axes set to their levels; arguments as in `Design.place`."""
        del run_seed  # a grid is not random
        levels = self.level_counts(axes)
        placed = u.copy()
        placed[:, _select_axes(axes, self.names)] = (_digits(episodes % math.prod(levels), levels) + 0.5) / np.array(
            levels
        )
        return placed


_KINDS: dict[str, type[Any]] = {kind.kind: kind for kind in (Independent, Sobol, LatinHypercube, Stratified, Grid)}


def make_design(value: Any, *, episodes: int, where: str) -> Design:
    """Make a design from its YAML value: a kind, or a mapping with ``kind`` and options.

    Args:
        value: The YAML value.
        episodes: Number of attempts of the run; a Latin hypercube has as many strata.
        where: Place of the value, for error messages.

    Raises:
        UnknownNameError: If the kind does not exist.
        InputError: If the design lacks an option, or a value has the wrong type.
    """
    options = dict(value) if isinstance(value, Mapping) else {"kind": value}
    kind = str(options.pop("kind", None))
    if kind not in _KINDS:
        raise UnknownNameError("design", kind, _KINDS, where=where)
    if "names" in options:
        options["names"] = _parse_patterns(options["names"], where)
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
    """Return whether a parameter matches one of the design's name patterns."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in design.names)


def design_json(design: Design) -> dict[str, Any]:
    """Return a JSON-compatible dictionary for files and hashes."""
    return {"kind": design.kind, **asdict(design)}  # pyright: ignore[reportArgumentType]


def _usage(kind: str) -> str:
    return {
        "stratified": "Write {kind: stratified, strata: 8}, and names: [...] to cross the strata of some.",
        "sobol": "Write design: sobol, or {kind: sobol, names: [...]} to spread some and draw the rest independently.",
        "grid": "Write {kind: grid, levels: 5, names: [...]}.",
    }.get(kind, f"Write design: {kind}.")


def _parse_patterns(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise InputError(f"{where}: names is a list of parameter paths; given {value!r}.")
    return tuple(value)


def _require_positive_integer(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} is a whole number from 1; given {value!r}.")


def _select_axes(axes: Axes, patterns: Sequence[str]) -> list[int]:
    """Return the indices of the axes with a parameter that matches a pattern, in ascending order.

    Raises:
        UnknownNameError: If a pattern matches no drawn parameter.
    """
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for axis in axes for name in axis):
            drawn = [name for axis in axes for name in axis]
            raise UnknownNameError("drawn parameter", pattern, drawn, where="randomization.design.names")
    return [i for i, axis in enumerate(axes) if any(fnmatch.fnmatchcase(n, p) for n in axis for p in patterns)]


def _check_cell_count(levels: Sequence[int], kind: str) -> None:
    if math.prod(levels) > _MOST_CELLS:
        shown = " × ".join(map(str, levels[:4])) + (f" × … ({len(levels)} parameters)" if len(levels) > 4 else "")
        raise InputError(
            f"A {kind} design of {shown} cells has more cells than can be visited. Name fewer "
            "parameters, use fewer levels or strata, or use design: sobol."
        )


def _digits(number: NDArray[np.int64], levels: Sequence[int]) -> NDArray[np.int64]:
    """Return the mixed-radix digits ``(n, k)`` of cell numbers ``(n,)``; the first digit changes fastest.

    Args:
        number: Cell numbers.
        levels: Number of levels of each of the k axes.
    """
    digits = []
    for level in levels:
        number, digit = np.divmod(number, level)
        digits.append(digit)
    return np.stack(digits, axis=-1)
