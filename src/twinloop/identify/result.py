"""What a fit found, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.distribution import ParamDistribution
from twinloop.stats import Interval


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One parameter in SI: nominal, identified value, and its interval unless it is not determined (``reason``)."""

    name: str
    unit: str
    nominal: float
    value: float
    low: float | None
    high: float | None
    reason: str = ""

    @property
    def determined(self) -> bool:
        """Whether the data tell it."""
        return not self.reason

    def to_json(self) -> dict[str, Any]:
        """A plain form for files; no interval where there is none to be had."""
        return {
            "name": self.name,
            "unit": self.unit,
            "nominal": self.nominal,
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "determined": self.determined,
            "reason": self.reason,
        }


@dataclass(frozen=True, kw_only=True)
class Residuals:
    """How correlated what the fit leaves over is, per joint: lag-1 autocorrelation, effective of all frames, p-value.

    ``p_value`` is the smallest Ljung–Box p-value over the training episodes.
    """

    rho: NDArray[np.float64]
    n_eff: NDArray[np.float64]
    frames: int
    p_value: NDArray[np.float64]

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        return {
            "lag1_autocorrelation": self.rho.tolist(),
            "n_eff": self.n_eff.tolist(),
            "frames": self.frames,
            "ljung_box_p": self.p_value.tolist(),
        }


@dataclass(frozen=True, kw_only=True)
class IdentifyResult:
    """An identified twin.

    Errors are mean absolute errors per joint in the log's units, open loop from the first frame; ``holdout_error`` is
    None where nothing was held out, and the fit is then labelled so. ``condition`` and ``directions`` say what the data
    cannot tell, see `identify.uncertainty`.
    """

    distribution: ParamDistribution
    estimates: tuple[Estimate, ...]
    joints: tuple[str, ...]
    log_units: tuple[str, ...]
    training: tuple[int, ...]
    holdout: tuple[int, ...]
    training_error: NDArray[np.float64]
    nominal_training_error: NDArray[np.float64]
    holdout_error: Interval | None
    condition: tuple[float, ...]
    directions: tuple[str, ...]
    residuals: Residuals
    converged: bool
    worlds_replayed: int
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def values(self) -> Mapping[str, float]:
        """Identified values by name, SI: what `Twin.table` takes."""
        return self.distribution.estimate

    def to_json(self) -> dict[str, Any]:
        """A plain form for files (schema 1)."""
        return {
            "schema": 1,
            "distribution": self.distribution.to_json(),
            "estimates": [estimate.to_json() for estimate in self.estimates],
            "joints": list(self.joints),
            "log_units": list(self.log_units),
            "training": list(self.training),
            "holdout": list(self.holdout),
            "training_error": self.training_error.tolist(),
            "nominal_training_error": self.nominal_training_error.tolist(),
            "holdout_error": None if self.holdout_error is None else self.holdout_error.to_json(),
            "condition": list(self.condition),
            "not_determined_directions": list(self.directions),
            "residuals": self.residuals.to_json(),
            "converged": self.converged,
            "worlds_replayed": self.worlds_replayed,
            "seconds": self.seconds,
            "notes": list(self.notes),
        }

    def text(self) -> str:
        """The result as a table for a terminal."""
        held = f"held out {len(self.holdout)}" if self.holdout else "NOTHING HELD OUT: training error only"
        lines = [f"Identified on {len(self.training)} episodes, {held}; intervals 95 %, clustered by episode.", ""]
        lines.append(f"{'parameter':<36}{'unit':<12}{'nominal':>10}{'identified':>12}  interval")
        for row in self.estimates:
            interval = f"[{row.low:.4g}, {row.high:.4g}]" if row.determined else f"not determined: {row.reason}"
            lines.append(f"{row.name:<36}{row.unit:<12}{row.nominal:>10.4g}{row.value:>12.4g}  {interval}")
        lines += ["", *self._error_lines(), *self.notes]
        if self.directions:
            lines += ["", "Not determined by these data:", *(f"  {direction}" for direction in self.directions)]
        return "\n".join(lines)

    def _error_lines(self) -> list[str]:
        lines = [f"{'mean absolute error':<24}{'unit':<18}{'nominal':>10}{'training':>10}  held-out"]
        for i, joint in enumerate(self.joints):
            held = "none"
            if self.holdout_error is not None:
                interval = self.holdout_error
                held = f"{interval.estimate[i]:.3f} {_bounds(interval.low[i], interval.high[i])}"
            before, after = self.nominal_training_error[i], self.training_error[i]
            lines.append(f"{joint:<24}{self.log_units[i]:<18}{before:>10.3f}{after:>10.3f}  {held}")
        return lines


def _bounds(low: float, high: float) -> str:
    return "(one episode, no interval)" if np.isnan(low) else f"[{low:.3f}, {high:.3f}]"
