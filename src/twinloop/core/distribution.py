"""What identification knows of parameters, and how far it can be trusted: the record that later steps draw from."""

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


def _nothing() -> NDArray[np.float64]:
    return np.zeros(0)


@dataclass(frozen=True, kw_only=True)
class ResidualNoise(JsonRecord):
    """What the identified twin leaves unexplained in each channel, ``(nchannel,)`` each.

    ``sd`` is in the channel's unit, ``rho`` the autocorrelation from one frame to the next at ``hz``. ``structured`` is
    the part of the residuals' variance that repeats with the motion from clip to clip: that part is no noise but
    physics that the twin lacks, and ``sd`` is without it.
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
        """The inverse of `to_json`."""
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
    """The factor on the covariance with which draws cover real clips, and what it could not do.

    ``kappa`` is in force, ``needed`` what ``clips`` calibration clips asked for at ``level`` (infinity where there were
    too few), ``cap`` the most that is allowed and ``cap_reason`` why. ``model_error`` ``(nchannel,)`` is how far
    clips lie outside the ranges even so, in the channels' units: physics that is missing, not spread.
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
        """In words, for everybody who draws from it."""
        if self.status == "uncalibrated":
            least = math.ceil(self.level / (1 - self.level) - 1e-9)
            return f"UNCALIBRATED: {self.clips} calibration clips, {self.level:.0%} needs at least {least}"
        if self.status == "capped":
            needed = f"{self.needed:.3g}" if math.isfinite(self.needed) else "more than any"
            return f"capped at kappa {self.cap:.3g} ({self.cap_reason}), {self.clips} clips ask for {needed}"
        return f"calibrated on {self.clips} clips for {self.level:.0%}"

    def to_json(self) -> dict[str, Any]:
        """A plain form for files; an infinite ``needed`` is null."""
        return super().to_json() | {"needed": self.needed if math.isfinite(self.needed) else None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RangeCalibration:
        """The inverse of `to_json`."""
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
    """What identification knows: a normal distribution over transformed parameters.

    ``mean`` and ``covariance`` live in the space of ``transforms`` (``"identity"`` or ``"log"``, one per name);
    ``low`` and ``high`` are physical bounds in SI. ``determined[i]`` is False where the data do not tell the
    parameter: its interval must not be printed, and its range is the prior one. ``prior_mean`` and ``prior_sd``
    (transformed, NaN where there was none) are what was believed beforehand; empty where a file does not say. ``noise``
    is what the fit leaves over, ``calibration`` the factor on the covariance that clips of their own ask for.
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
    prior_mean: NDArray[np.float64] = field(default_factory=_nothing)
    prior_sd: NDArray[np.float64] = field(default_factory=_nothing)
    noise: ResidualNoise | None = None
    calibration: RangeCalibration | None = None

    def __post_init__(self) -> None:
        freeze_fields(self, "mean", "covariance", "low", "high", "prior_mean", "prior_sd")

    @property
    def estimate(self) -> dict[str, float]:
        """Point estimates by name, in SI units."""
        rows = zip(self.transforms, self.mean, strict=True)
        values = [np.exp(value) if kind == "log" else value for kind, value in rows]
        within = np.clip(values, self.low, self.high)  # exp(log(bound)) may round to beyond it
        return dict(zip(self.names, within.tolist(), strict=True))

    @property
    def kappa(self) -> float:
        """The factor on the covariance that was calibrated; 1, the estimate's own uncertainty, where none was."""
        return 1.0 if self.calibration is None else self.calibration.kappa

    @property
    def undetermined(self) -> tuple[str, ...]:
        """Names that the data do not tell."""
        return tuple(name for name, known in zip(self.names, self.determined, strict=True) if not known)

    @property
    def model_error(self) -> str:
        """How far real clips lie outside the calibrated ranges, by channel, in words; "" where they do not."""
        if self.calibration is None or self.noise is None:
            return ""
        rows = zip(self.noise.channels, self.noise.units, self.calibration.model_error, strict=True)
        return ", ".join(f"{name} {error:.3g} {unit}" for name, unit, error in rows if error > 0)

    def to_json(self) -> dict[str, Any]:
        """A plain form for files (schema 1)."""
        prior = {"prior_mean": self.prior_mean, "prior_sd": self.prior_sd}
        return super().to_json() | {
            name: [value if math.isfinite(value) else None for value in values.tolist()]
            for name, values in prior.items()
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ParamDistribution:
        """The inverse of `to_json`.

        Raises:
            InputError: something is missing or is not what `to_json` wrote; names it.
        """
        wanted = ("names", "transforms", "mean", "covariance", "low", "high", "determined", "clusters")
        missing = [key for key in wanted if key not in value]
        if missing:
            raise InputError(
                f"The identified distribution lacks {', '.join(missing)}. "
                "Give the result that `identify` wrote, unchanged."
            )
        try:
            return cls._of(value)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise InputError(
                f"The identified distribution is damaged ({error}). Give the result that `identify` wrote, unchanged."
            ) from error

    @classmethod
    def _of(cls, value: Mapping[str, Any]) -> ParamDistribution:
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
