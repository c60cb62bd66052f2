"""Define the identified distribution: estimates of parameters with their uncertainty, from which later steps draw."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.plain import JsonRecord
from twinloop.core.records import freeze_fields

Status = Literal["calibrated", "capped", "uncalibrated"]


def _make_empty_array() -> NDArray[np.float64]:
    return np.zeros(0)


@dataclass(frozen=True, kw_only=True)
class ResidualNoise(JsonRecord):
    """Residual noise of the identified twin per channel, ``(nchannel,)`` each.

    ``sd`` is the standard deviation in the channel's unit, ``rho`` the autocorrelation from one frame to the next at
    ``hz``. ``structured`` is the part of the residuals' variance that repeats with the motion from clip to clip. That
    part is not noise but unmodelled physics, and ``sd`` excludes it.
    """

    channels: tuple[str, ...]
    units: tuple[str, ...]
    sd: NDArray[np.float64]
    rho: NDArray[np.float64]
    structured: NDArray[np.float64]
    hz: float

    def __post_init__(self) -> None:
        freeze_fields(self, "sd", "rho", "structured")

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ResidualNoise:
        """Create the object from the dictionary that `to_json` returns."""
        return cls(
            channels=tuple(value["channels"]),
            units=tuple(value["units"]),
            sd=np.array(value["sd"], dtype=np.float64),
            rho=np.array(value["rho"], dtype=np.float64),
            structured=np.array(value["structured"], dtype=np.float64),
            hz=float(value["hz"]),
        )


@dataclass(frozen=True, kw_only=True)
class RangeCalibration(JsonRecord):
    """Calibration of the ranges: the factor on the covariance with which draws cover real clips.

    ``kappa`` is the factor in use. ``needed`` is the factor that ``clips`` calibration clips require at ``level``
    (infinity if there were too few), ``cap`` the largest allowed factor and ``cap_reason`` the reason for it.
    ``model_error`` ``(nchannel,)`` is the distance of clips outside the calibrated ranges, in the channels' units:
    missing physics, not spread.
    """

    kappa: float
    status: Status
    level: float
    clips: int
    needed: float
    cap: float
    cap_reason: str
    model_error: NDArray[np.float64]

    def __post_init__(self) -> None:
        freeze_fields(self, "model_error")

    @property
    def label(self) -> str:
        """Short text on the calibration for reports and messages."""
        if self.status == "uncalibrated":
            least = math.ceil(self.level / (1 - self.level) - 1e-9)
            return f"UNCALIBRATED: {self.clips} calibration clips, {self.level:.0%} needs at least {least}"
        if self.status == "capped":
            needed = f"{self.needed:.3g}" if math.isfinite(self.needed) else "an unlimited one"
            return f"capped at kappa {self.cap:.3g} ({self.cap_reason}); {self.clips} clips need {needed}"
        return f"calibrated on {self.clips} clips for {self.level:.0%}"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary; an infinite ``needed`` becomes null."""
        return super().to_json() | {"needed": self.needed if math.isfinite(self.needed) else None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RangeCalibration:
        """Create the object from the dictionary that `to_json` returns."""
        return cls(
            kappa=float(value["kappa"]),
            status=value["status"],
            level=float(value["level"]),
            clips=int(value["clips"]),
            needed=math.inf if value["needed"] is None else float(value["needed"]),
            cap=float(value["cap"]),
            cap_reason=str(value["cap_reason"]),
            model_error=np.array(value["model_error"], dtype=np.float64),
        )


@dataclass(frozen=True, kw_only=True)
class ParamDistribution(JsonRecord):
    """Identified distribution: a normal distribution over transformed parameters.

    ``mean`` and ``covariance`` are in the space of ``transforms`` (``"identity"`` or ``"log"``, one per name); ``low``
    and ``high`` are physical bounds in SI. ``determined[i]`` is False if the data do not identify the parameter: its
    interval must not be printed, and its range is that of the prior. ``prior_mean`` and ``prior_sd`` (transformed, NaN
    without a prior) describe the prior; they are empty if a file does not state it. ``noise`` is the residual noise of
    the fit, ``calibration`` the factor on the covariance from separate calibration clips.
    """

    json_schema = 1

    names: tuple[str, ...]
    transforms: tuple[str, ...]
    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    determined: tuple[bool, ...]
    clusters: int
    twin_hash: str = ""
    data_hash: str = ""
    prior_mean: NDArray[np.float64] = field(default_factory=_make_empty_array)
    prior_sd: NDArray[np.float64] = field(default_factory=_make_empty_array)
    noise: ResidualNoise | None = None
    calibration: RangeCalibration | None = None

    def __post_init__(self) -> None:
        freeze_fields(self, "mean", "covariance", "low", "high", "prior_mean", "prior_sd")

    @property
    def estimate(self) -> dict[str, float]:
        """Point estimates by name, in SI units."""
        rows = zip(self.transforms, self.mean, strict=True)
        values = [np.exp(value) if kind == "log" else value for kind, value in rows]
        within = np.clip(values, self.low, self.high)  # exp(log(bound)) may exceed the bound by rounding
        return dict(zip(self.names, within.tolist(), strict=True))

    @property
    def kappa(self) -> float:
        """Calibrated factor on the covariance; 1 (the estimate's own uncertainty) without calibration."""
        return 1.0 if self.calibration is None else self.calibration.kappa

    @property
    def unidentified_parameters(self) -> tuple[str, ...]:
        """Names of the parameters that the data do not identify."""
        return tuple(name for name, known in zip(self.names, self.determined, strict=True) if not known)

    @property
    def model_error(self) -> str:
        """Text with the distance of real clips outside the calibrated ranges, by channel; "" if there is none."""
        if self.calibration is None or self.noise is None:
            return ""
        rows = zip(self.noise.channels, self.noise.units, self.calibration.model_error, strict=True)
        return ", ".join(f"{name} {error:.3g} {unit}" for name, unit, error in rows if error > 0)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary (schema 1)."""
        prior = {"prior_mean": self.prior_mean, "prior_sd": self.prior_sd}
        return super().to_json() | {
            name: [value if math.isfinite(value) else None for value in values.tolist()]
            for name, values in prior.items()
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ParamDistribution:
        """Create the object from the dictionary that `to_json` returns.

        Raises:
            InputError: a key is missing or a value does not have the form that `to_json` writes; names it.
        """
        wanted = ("names", "transforms", "mean", "covariance", "low", "high", "determined", "clusters")
        missing = [key for key in wanted if key not in value]
        if missing:
            raise InputError(
                f"The identified distribution lacks {', '.join(missing)}. "
                "Give the result that `identify` wrote, unchanged."
            )
        try:
            return cls._parse_json(value)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise InputError(
                f"The identified distribution is damaged ({error}). Give the result that `identify` wrote, unchanged."
            ) from error

    @classmethod
    def _parse_json(cls, value: Mapping[str, Any]) -> ParamDistribution:
        noise, calibration = value.get("noise"), value.get("calibration")
        return cls(
            names=tuple(value["names"]),
            transforms=tuple(value["transforms"]),
            mean=np.array(value["mean"]),
            covariance=np.array(value["covariance"]),
            low=np.array(value["low"]),
            high=np.array(value["high"]),
            determined=tuple(bool(flag) for flag in value["determined"]),
            clusters=int(value["clusters"]),
            twin_hash=value.get("twin_hash", ""),
            data_hash=value.get("data_hash", ""),
            prior_mean=np.array(value.get("prior_mean", []), dtype=np.float64),
            prior_sd=np.array(value.get("prior_sd", []), dtype=np.float64),
            noise=None if noise is None else ResidualNoise.from_json(noise),
            calibration=None if calibration is None else RangeCalibration.from_json(calibration),
        )
