"""Compute statistics of each column of a policy's inputs and outputs, as in LeRobot, with their source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.contract import ENVIRONMENT, STATE, Contract
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.plain import JsonRecord
from twinloop.core.records import freeze_array

LAST_COMMAND = "observation.last_command"
Normalization = Literal["mean_std", "min_max", "quantile"]
_MEASURES = ("mean", "std", "min", "max", "q01", "q99")
_CONSTANT = 1e-6  # relative to a column's largest value: float32 on disk has a precision of 1.2e-7


@dataclass(frozen=True, kw_only=True)
class ColumnStatistics:
    """Statistics of k columns: ``mean``, ``std``, ``min``, ``max`` and the 1 % and 99 % quantiles, ``(k,)`` each.

    Raises:
        InputError: a number is not finite, or the numbers of columns differ.
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    min: NDArray[np.float64]
    max: NDArray[np.float64]
    q01: NDArray[np.float64]
    q99: NDArray[np.float64]

    def __post_init__(self) -> None:
        for name in _MEASURES:
            values = freeze_array(getattr(self, name))
            object.__setattr__(self, name, values)
            if values.shape != (len(self),) or not np.isfinite(values).all():
                raise InputError(
                    f"{name} of the statistics must be {len(self)} finite numbers, but is {values.tolist()!r:.80}. "
                    "Measure them again, without frames that are not finite."
                )

    def __len__(self) -> int:
        return np.asarray(self.mean).size

    def affine(self, mode: Normalization) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return offset and scale ``(k,)``: the normalized value is ``(value - offset) / scale``.

        ``mean_std`` gives mean 0 and standard deviation 1. ``min_max`` maps the range of a column to [-1, 1],
        ``quantile`` the interval between its quantiles. If the quantiles are equal, the range is used. A constant
        column has scale 0: as an input it is always 0, as an output always its constant.
        """
        size = np.maximum(np.abs(self.min), np.abs(self.max))
        constant = self.max - self.min <= _CONSTANT * size
        if mode == "mean_std":
            return np.where(constant, self.min, self.mean), np.where(constant, 0.0, self.std)
        low, high = (self.q01, self.q99) if mode == "quantile" else (self.min, self.max)
        narrow = high - low <= _CONSTANT * size
        low, high = np.where(narrow, self.min, low), np.where(narrow, self.max, high)
        return np.where(constant, self.min, (low + high) / 2), np.where(constant, 0.0, (high - low) / 2)


@dataclass(frozen=True, kw_only=True)
class Statistics(JsonRecord):
    """Statistics by key (``observation.state``, ``action``, …), and ``source``: the data they were measured on.

    ``action`` has the statistics of the predicted values: differences if the actions are relative.
    """

    source: str
    columns: Mapping[str, ColumnStatistics]

    @classmethod
    def measure(cls, samples: Mapping[str, ArrayLike], *, source: str) -> Statistics:
        """Return the statistics of samples ``(…, k)`` by key.

        Raises:
            InputError: there are no samples, or one is not finite; the message names the key and the column.
        """
        return cls(
            columns={key: _measure_columns(key, np.asarray(values)) for key, values in samples.items()}, source=source
        )

    def require(self, key: str, size: int) -> ColumnStatistics:
        """Return the statistics of a key with ``size`` columns.

        Raises:
            UnknownNameError: there is no such key.
            InputError: the key has another number of columns.
        """
        if key not in self.columns:
            raise UnknownNameError("statistic", key, self.columns, where=f"the statistics of {self.source}")
        found = self.columns[key]
        if len(found) != size:
            raise InputError(
                f"The statistics of {self.source} have {len(found)} columns of {key}, but the policy's contract has "
                f"{size}. Measure them on data with the contract's columns."
            )
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Statistics:
        """Return statistics from their JSON value; the inverse of `to_json`."""
        rows = value["columns"].items()
        columns = {key: ColumnStatistics(**{name: found[name] for name in _MEASURES}) for key, found in rows}
        return cls(columns=columns, source=value["source"])


def vector_sizes(contract: Contract, *, last_command: bool) -> dict[str, int]:
    """Return the number of columns of each input of a policy that is a row of numbers, by key."""
    sizes = {
        STATE: 0 if contract.state is None else len(contract.state.joints),
        ENVIRONMENT: len(contract.environment),
        LAST_COMMAND: len(contract.action.joints) if last_command else 0,
    }
    return {key: size for key, size in sizes.items() if size}


def action_size(contract: Contract) -> int:
    """Return the number of commands per step."""
    return len(contract.action.joints)


def relative_actions(action: ArrayLike, state: ArrayLike) -> NDArray[np.float64]:
    """Return commands ``(…, chunk, k)`` relative to the newest readings ``(…, k)``, as for ``delta_to_state``."""
    return np.asarray(action, dtype=np.float64) - np.asarray(state, dtype=np.float64)[..., None, :]


def _measure_columns(key: str, values: NDArray) -> ColumnStatistics:
    rows = values.reshape(-1, values.shape[-1]).astype(np.float64) if values.ndim > 1 else np.empty((0, 0))
    if not rows.size:
        raise InputError(f"{key} has no samples ({values.shape}): statistics need at least one row of columns.")
    bad = ~np.isfinite(rows)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise InputError(
            f"{key} has {int(bad.sum())} values that are not finite, the first in row {row}, column {column}. "
            "Leave these frames out."
        )
    low, high = np.quantile(rows, [0.01, 0.99], axis=0)
    return ColumnStatistics(
        mean=rows.mean(axis=0), std=rows.std(axis=0), min=rows.min(axis=0), max=rows.max(axis=0), q01=low, q99=high
    )
