"""Draw some parameters uniformly from several boxes (one range per parameter) with a given number of episodes each.

A plan for new data has one box per gap in the coverage. The box of an episode depends only on the episode number and
the run's seed, so that every ``sum(shares)`` consecutive episodes have exactly the share of each box. A candidate that
a constraint rejects is drawn again in the same box.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from twinloop.core.errors import InputError
from twinloop.randomize.draws import Scope
from twinloop.randomize.sequences import permute
from twinloop.twin import Twin
from twinloop.twin.spec import describe_errors

Array = NDArray[np.float64]


class BoxOptions(BaseModel):
    """One entry of the ``boxes:`` list in YAML: a box (one range per parameter) in which some episodes are drawn.

    Attributes:
        episodes: Number of episodes in this box, relative to the other boxes.
        params: Range of each parameter, SI.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    episodes: int = Field(ge=1)
    params: dict[str, tuple[float, float]] = Field(min_length=1)


@dataclass(frozen=True, kw_only=True)
class BoxesDraw:
    """Uniform draws of parameters within one of several boxes per episode.

    A box has one range per parameter.

    Attributes:
        names: Names of the parameters.
        low: Lower limits, one row per box and one column per name, SI.
        high: Upper limits, likewise.
        shares: Number of episodes in each box, among every ``sum(shares)`` episodes.
        source: Place of the definition, for error messages.
        scope: ``episode``: the values change between episodes.
    """

    names: tuple[str, ...]
    low: tuple[tuple[float, ...], ...]
    high: tuple[tuple[float, ...], ...]
    shares: tuple[int, ...]
    source: str = ""
    scope: Scope = "episode"

    def check(self, twin: Twin) -> None:
        """Check the names, and that the boxes are within the physical bounds.

        Raises:
            UnknownNameError: If the twin does not have a parameter.
            BoundsError: If a box is beyond the physical bounds.
        """
        for column, name in enumerate(self.names):
            ends = [row[column] for row in (*self.low, *self.high)]
            twin.find_param(name).check(ends, where=self.source)

    @property
    def size(self) -> int:
        """Number of independent uniform random numbers per episode, one per parameter."""
        return len(self.names)

    @property
    def axes(self) -> list[tuple[str, ...]]:
        """Names of the parameters that each uniform random number determines, one tuple of names per random number."""
        return [(name,) for name in self.names]

    def find_box(self, run_seed: int, episodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of the box (one range per parameter) in which each episode is drawn, ``(n,)``."""
        total = sum(self.shares)
        cycle, index = np.divmod(episodes, total)
        place = permute(index, total, run_seed=run_seed, labels=["boxes"], cycle=cycle)[:, 0]
        return np.searchsorted(np.cumsum(self.shares), place, side="right").astype(np.int64)

    def values(self, u: Array, run_seed: int, episodes: NDArray[np.int64]) -> dict[str, Array]:
        """Compute the values of the parameters in n episodes.

        Args:
            u: Uniform random numbers, ``(n, size)``.
            run_seed: Seed of the run.
            episodes: Episode numbers, ``(n,)``.

        Returns:
            Values in SI units by name, ``(n,)`` each.
        """
        which = self.find_box(run_seed, episodes)
        low, high = np.array(self.low)[which], np.array(self.high)[which]
        values = low + (high - low) * u
        return dict(zip(self.names, values.T, strict=True))

    def cdf(self, column: int, values: Array) -> Array:
        """Return the cumulative probability of values of one parameter over all boxes.

        If a box has zero width, one value has a positive probability, and the cumulative probability jumps there. At
        the jump, the mean of both sides is returned.

        Args:
            column: Index of the parameter.
            values: Values, SI.
        """
        total = np.zeros(np.shape(values))
        for low, high, share in zip(self.low, self.high, self.shares, strict=True):
            width = high[column] - low[column]
            if width:
                part = np.clip((values - low[column]) / width, 0.0, 1.0)
            else:
                part = 0.5 * (np.sign(values - low[column]) + 1.0)
            total += share * part
        return total / sum(self.shares)

    def ppf(self, column: int, u: Array) -> Array:
        """Return the values of one parameter at cumulative probabilities ``u``; the inverse of `cdf`."""
        ends = np.unique([row[column] for row in (*self.low, *self.high)])
        return np.interp(u, self.cdf(column, ends), ends)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary for files and hashes."""
        return {
            "names": list(self.names),
            "op": "boxes",
            "scope": self.scope,
            "low": [list(row) for row in self.low],
            "high": [list(row) for row in self.high],
            "shares": list(self.shares),
            "source": self.source,
        }


def parse_boxes(value: Any, twin: Twin, *, where: str) -> BoxesDraw:
    """Parse the ``boxes:`` list of a ``randomization:`` section; a box has one range per parameter.

    Args:
        value: The YAML value.
        twin: The twin whose parameters are drawn.
        where: Name of the file, for error messages.

    Raises:
        InputError: If a key or value is wrong, a range is empty, or boxes name different parameters.
        UnknownNameError: If a parameter does not exist.
    """
    place = f"{where}: randomization.boxes"
    if not isinstance(value, list) or not value:
        raise InputError(
            f"{place}: a list of boxes is expected; given {value!r:.60}. Write [{{episodes: 20, params: "
            "{object/cube/mass: [0.02, 0.04]}}]."
        )
    boxes = [_parse_box(item, f"{place}[{i}]") for i, item in enumerate(value)]
    names = tuple(boxes[0].params)
    for i, box in enumerate(boxes):
        if set(box.params) != set(names):
            other = sorted(set(box.params) ^ set(names))
            raise InputError(
                f"{place}[{i}]: every box names the same parameters, and {', '.join(other)} is not in all of them. "
                "Give its whole range where it does not matter."
            )
        for name, (low, high) in box.params.items():
            twin.find_param(name)
            if not low <= high:
                raise InputError(f"{place}[{i}].params.{name}: [{low:g}, {high:g}] is empty. Write [low, high].")
    return BoxesDraw(
        names=names,
        low=tuple(tuple(box.params[name][0] for name in names) for box in boxes),
        high=tuple(tuple(box.params[name][1] for name in names) for box in boxes),
        shares=tuple(box.episodes for box in boxes),
        source=place,
    )


def _parse_box(item: Any, where: str) -> BoxOptions:
    try:
        return BoxOptions.model_validate(item if isinstance(item, Mapping) else {"params": item})
    except ValidationError as error:
        raise InputError(describe_errors(error, where=where, model=BoxOptions)) from error
