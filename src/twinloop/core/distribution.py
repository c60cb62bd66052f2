"""Define the identified distribution: estimated parameters with their uncertainty, and the noise of the residuals.

Identification writes it. Randomization draws the parameters of worlds from it.
"""

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
    """Noise model of the identified twin's residuals (measured minus predicted values), one entry per channel.

    Attributes:
        channels: Names of the measured channels, for example ``position/elbow_flex``.
        units: Unit of each channel.
        sd: Standard deviation in the channel's unit, shape ``(nchannel,)``; excludes the part that ``structured``
            describes.
        rho: Autocorrelation from one frame of the log to the next, shape ``(nchannel,)``.
        structured: Share of the residuals' variance, shape ``(nchannel,)``, that repeats whenever the motion repeats.
            It is unmodelled physics rather than noise.
        hz: Frame rate in Hz to which ``rho`` applies.
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
        """Create the noise model from the dictionary that `to_json` returns."""
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
    """Factor on the identified covariance of the parameters, chosen so that simulations cover real motion.

    Calibration clips are real recordings that the fit did not use. A clip is covered if its measured values are within
    the range of simulations with parameters drawn from the widened distribution.

    Attributes:
        kappa: Factor in use.
        status: ``calibrated``, ``capped`` (``kappa`` is limited to ``cap``) or ``uncalibrated`` (too few clips).
        level: Share of real clips that must be covered.
        clips: Number of calibration clips.
        needed: Factor that these clips require at ``level``; infinite if there are too few clips.
        cap: Largest allowed factor.
        cap_reason: Reason for ``cap``.
        model_error: Distance by which measured values remain outside the simulated range although ``kappa`` is applied,
            shape ``(nchannel,)``, in the channels' units; 0 if the clips are covered. Its cause is missing physics, not
            too small a spread of the parameters.
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
        """Short text about the calibration of the parameter ranges, for example "calibrated on 40 clips for 90%"."""
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
        """Create the calibration from the dictionary that `to_json` returns."""
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
    """Identified distribution: a multivariate normal distribution over transformed parameters.

    Attributes:
        names: Names of the parameters.
        transforms: ``"identity"`` or ``"log"`` for each parameter.
        mean: Mean of the transformed parameters, shape ``(nparam,)``.
        covariance: Covariance of the transformed parameters, shape ``(nparam, nparam)``.
        low: Physical lower bounds in SI units, shape ``(nparam,)``.
        high: Physical upper bounds in SI units, shape ``(nparam,)``.
        determined: Whether the data identify each parameter. If False, its confidence interval must not be printed, and
            its range is that of the prior.
        clusters: Number of episodes that the fit used; each is one cluster of dependent frames.
        twin_hash: Hash of the twin.
        data_hash: Hash of the data.
        prior_mean: Mean of the prior per transformed parameter, NaN for a parameter that has no prior; an empty array
            if the priors are unknown.
        prior_sd: Standard deviation of the prior, in the same form as ``prior_mean``.
        centred: Mean of the transformed parameters in worlds that are drawn from the fit, ``(nparam,)``; an empty array
            if it is unknown. It is NaN for a parameter that the fit knows less well than the twin's range does, which
            is therefore drawn from this range, and the fit of the others with those at the mean of their prior: a fit
            may move an undetermined gain and a determined damping together, and this damping is wrong with every other
            gain.
        noise: Noise of the residuals after the fit.
        calibration: Factor on the covariance, computed from separate calibration clips.
        warning: Why the fit must not be trusted; "" if nothing speaks against it.
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
    centred: NDArray[np.float64] = field(default_factory=_make_empty_array)
    noise: ResidualNoise | None = None
    calibration: RangeCalibration | None = None
    warning: str = ""

    def __post_init__(self) -> None:
        freeze_fields(self, "mean", "covariance", "low", "high", "prior_mean", "prior_sd", "centred")

    @property
    def estimate(self) -> dict[str, float]:
        """Point estimates by name, in SI units."""
        rows = zip(self.transforms, self.mean, strict=True)
        values = [np.exp(value) if kind == "log" else value for kind, value in rows]
        within = np.clip(values, self.low, self.high)  # exp(log(bound)) may exceed the bound by rounding
        return dict(zip(self.names, within.tolist(), strict=True))

    @property
    def kappa(self) -> float:
        """Calibrated factor on the covariance, so that the ranges cover real clips; 1 if they were not calibrated."""
        return 1.0 if self.calibration is None else self.calibration.kappa

    @property
    def unidentified_parameters(self) -> tuple[str, ...]:
        """Names of the parameters that the data do not identify."""
        return tuple(name for name, known in zip(self.names, self.determined, strict=True) if not known)

    @property
    def centre(self) -> NDArray[np.float64]:
        """Mean of the transformed parameters that worlds have from the fit, ``(nparam,)``; see ``centred``."""
        return self.centred if self.centred.size else self.mean

    @property
    def drawn(self) -> NDArray[np.bool_]:
        """Whether worlds have each parameter from the fit, ``(nparam,)``: otherwise from its range in the twin."""
        known = np.array(self.determined, dtype=bool)
        return known & np.isfinite(self.centre)

    @property
    def model_error(self) -> str:
        """Each channel's error that remains outside the simulated range (missing physics), as text; "" if it is 0."""
        if self.calibration is None or self.noise is None:
            return ""
        rows = zip(self.noise.channels, self.noise.units, self.calibration.model_error, strict=True)
        return ", ".join(f"{name} {error:.3g} {unit}" for name, unit, error in rows if error > 0)

    def to_json(self) -> dict[str, Any]:
        """Return the distribution as a JSON-compatible dictionary of schema version 1."""
        partial = {"prior_mean": self.prior_mean, "prior_sd": self.prior_sd, "centred": self.centred}
        return super().to_json() | {
            name: [value if math.isfinite(value) else None for value in values.tolist()]
            for name, values in partial.items()
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ParamDistribution:
        """Create the distribution from the dictionary that `to_json` returns.

        Raises:
            InputError: If a key is missing, or a value does not have the form that `to_json` writes.
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
            centred=np.array(value.get("centred", []), dtype=np.float64),
            noise=None if noise is None else ResidualNoise.from_json(noise),
            calibration=None if calibration is None else RangeCalibration.from_json(calibration),
            warning=str(value.get("warning", "")),
        )
