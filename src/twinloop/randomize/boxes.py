"""Draw some parameters of worlds uniformly from several boxes of the parameter space, in given shares.

A plan for new data has one box per hole in the coverage. The box of an episode depends only on its number, so every
``sum(shares)`` consecutive episodes have exactly the share of each box. A candidate rejected by a constraint is drawn
again in the same box.
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
    """Entry of the ``boxes:`` list: its share of the episodes, and a range in SI units per parameter."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    episodes: int = Field(ge=1)
    params: dict[str, tuple[float, float]] = Field(min_length=1)


@dataclass(frozen=True, kw_only=True)
class BoxesDraw:
    """Uniform draws of ``names`` within one of several boxes.

    ``low`` and ``high`` have a row per box and a column per name, in SI; ``shares`` are the numbers of episodes in each
    box of every ``sum(shares)`` episodes.
    """

    names: tuple[str, ...]
    low: tuple[tuple[float, ...], ...]
    high: tuple[tuple[float, ...], ...]
    shares: tuple[int, ...]
    source: str = ""
    scope: Scope = "episode"

    def check(self, twin: Twin) -> None:
        """Raise an error for unknown names and for boxes beyond the physical bounds.

        Raises:
            UnknownNameError, BoundsError: the message names the parameter.
        """
        for column, name in enumerate(self.names):
            ends = [row[column] for row in (*self.low, *self.high)]
            twin.find_param(name).check(ends, where=self.source)

    @property
    def size(self) -> int:
        """Number of independent uniforms per episode."""
        return len(self.names)

    @property
    def axes(self) -> list[tuple[str, ...]]:
        """Names of the parameters that each uniform determines."""
        return [(name,) for name in self.names]

    def find_box(self, run_seed: int, episodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of each episode's box, ``(n,)``."""
        total = sum(self.shares)
        cycle, index = np.divmod(episodes, total)
        place = permute(index, total, run_seed=run_seed, labels=["boxes"], cycle=cycle)[:, 0]
        return np.searchsorted(np.cumsum(self.shares), place, side="right").astype(np.int64)

    def values(self, u: Array, run_seed: int, episodes: NDArray[np.int64]) -> dict[str, Array]:
        """Return values ``(n,)`` in SI units by name, from uniforms ``(n, size)``."""
        which = self.find_box(run_seed, episodes)
        low, high = np.array(self.low)[which], np.array(self.high)[which]
        values = low + (high - low) * u
        return dict(zip(self.names, values.T, strict=True))

    def cdf(self, column: int, values: Array) -> Array:
        """Return the cumulative probability of one parameter over all boxes; at a step, the middle of the step."""
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
        """Return the values of one parameter at cumulative probability ``u``; inverse of `cdf`."""
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
    """Return the draw of a ``boxes:`` list.

    Raises:
        InputError: a key or value is wrong, a range is empty, or boxes name different parameters.
        UnknownNameError: a parameter does not exist.
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
