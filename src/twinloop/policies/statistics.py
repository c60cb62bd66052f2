"""Compute statistics of the columns that a policy reads and predicts, as LeRobot does, for their normalization."""

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
MEMORY = "policy.memory"  # key of what a policy remembers, (n, 1 + memory_size); see `policy_loop.PolicyLoop`
PARAMETERS = "world_parameters"  # key of the true values of the parameters that a policy estimates, (n, m)
Normalization = Literal["mean_std", "min_max", "quantile"]
_MEASURES = ("mean", "std", "min", "max", "q01", "q99")
_CONSTANT = 1e-6  # relative to a column's largest value: float32 on disk has a precision of 1.2e-7


@dataclass(frozen=True, kw_only=True)
class ColumnStatistics:
    """Statistics of k columns, each of shape ``(k,)`` and in the dataset's units.

    Attributes:
        mean: mean values.
        std: standard deviations.
        min: smallest values.
        max: largest values.
        q01: 1 % quantiles.
        q99: 99 % quantiles.

    Raises:
        InputError: If a number is not finite, or the numbers of columns differ.
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
        """Return the offset and the scale of each column, ``(k,)`` each, for ``(value - offset) / scale``.

        A constant column has scale 0: as an input its normalized value is always 0, as an output it is always its
        constant.

        Args:
            mode: ``mean_std`` gives mean 0 and standard deviation 1. ``min_max`` maps the range of a column to [-1, 1].
                ``quantile`` maps the interval from the 1 % to the 99 % quantile to [-1, 1], or the range if both are
                equal.
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
    """Statistics of a policy's inputs and commands, with the data on which they were measured.

    Attributes:
        source: the data on which the statistics were measured.
        columns: statistics by key, such as ``observation.state`` or ``action``. ``action`` has the statistics of the
            predicted values, which are differences if the policy predicts relative commands.
    """

    source: str
    columns: Mapping[str, ColumnStatistics]

    @classmethod
    def measure(cls, samples: Mapping[str, ArrayLike], *, source: str) -> Statistics:
        """Compute the statistics of samples.

        Args:
            samples: samples by key, ``(…, k)`` with k columns each.
            source: name of the data.

        Raises:
            InputError: If a key has no samples, or a value is not finite.
        """
        return cls(
            columns={key: _measure_columns(key, np.asarray(values)) for key, values in samples.items()}, source=source
        )

    def require(self, key: str, size: int) -> ColumnStatistics:
        """Return the statistics of a key after checking that they have ``size`` columns.

        Raises:
            UnknownNameError: If the key does not exist.
            InputError: If the key has another number of columns.
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
        """Create statistics from their JSON value, the inverse of `to_json`."""
        rows = value["columns"].items()
        columns = {key: ColumnStatistics(**{name: found[name] for name in _MEASURES}) for key, found in rows}
        return cls(columns=columns, source=value["source"])


def vector_sizes(contract: Contract, *, last_command: bool) -> dict[str, int]:
    """Return the number of columns of each input vector of a policy, by key; images are not included.

    Args:
        contract: contract of the policy.
        last_command: whether the last command is an input.
    """
    sizes = {
        STATE: 0 if contract.state is None else len(contract.state.joints),
        ENVIRONMENT: len(contract.environment),
        LAST_COMMAND: len(contract.action.joints) if last_command else 0,
    }
    return {key: size for key, size in sizes.items() if size}


def action_size(contract: Contract) -> int:
    """Return the number of commands per control step, one per joint."""
    return len(contract.action.joints)


def relative_actions(action: ArrayLike, base: ArrayLike) -> NDArray[np.float64]:
    """Return commands relative to the newest joint readings or to the last command; see ``action_space`` of policies.

    Args:
        action: commands ``(…, chunk_size, k)`` of k joints.
        base: readings or last command ``(…, k)``, in the same units.
    """
    return np.asarray(action, dtype=np.float64) - np.asarray(base, dtype=np.float64)[..., None, :]


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
