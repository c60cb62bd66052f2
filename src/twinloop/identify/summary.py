"""From where the walk ended to a record: distribution, estimates with intervals, residuals, what must be said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.core.distribution import ParamDistribution
from twinloop.core.files import sha256_bytes
from twinloop.identify.result import Estimate, Residuals
from twinloop.identify.space import Space
from twinloop.identify.uncertainty import Uncertainty
from twinloop.simulate.replay_logs import ReplayLogs
from twinloop.stats import autocorrelation, effective_size, ljung_box, t_halfwidth

# Standard error of a scale read off the quantization: the log rounds to five digits, its step is known to more.
_QUANTUM_ERROR = 1e-4
_LJUNG_BOX_LAGS = 10
_NO_CALIBRATION = (
    "The log gives no calibration: the twin's joint ranges stand in for it, and sensor offset and scale are identified."
)
_NOT_HELD_OUT = "Nothing was held out: the errors are those of the episodes that were fitted."


def distribution(
    space: Space, point: NDArray[np.float64], found: Uncertainty, scales: Mapping[str, float], logs: ReplayLogs
) -> ParamDistribution:
    """The identified parameters and the scales read off the quantization, for randomization."""
    params = [space.twin.params[name] for name in (*space.names, *scales)]
    count = len(space.names)
    covariance = np.zeros((len(params), len(params)))
    covariance[:count, :count] = found.covariance
    np.fill_diagonal(covariance[count:, count:], _QUANTUM_ERROR**2)
    return ParamDistribution(
        names=tuple(param.name for param in params),
        transforms=tuple(param.transform for param in params),
        mean=np.concatenate([point, [_transformed(value, space, name) for name, value in scales.items()]]),
        covariance=covariance,
        low=np.array([param.low for param in params]),
        high=np.array([param.high for param in params]),
        determined=(*(not reason for reason in found.reasons), *(True for _ in scales)),
        clusters=len(logs),
        twin_hash=space.twin.hash,
        data_hash=sha256_bytes(logs.commands.tobytes(), logs.measured.tobytes()),
        prior_mean=np.concatenate([space.column("centre"), np.full(len(scales), np.nan)]),
        prior_sd=np.concatenate([space.column("sd"), np.full(len(scales), np.nan)]),
    )


def _transformed(value: float, space: Space, name: str) -> float:
    return float(np.log(value)) if space.twin.params[name].transform == "log" else value


def estimates(
    space: Space,
    point: NDArray[np.float64],
    found: Uncertainty,
    scales: Mapping[str, float],
    clusters: int,
    level: float,
) -> tuple[Estimate, ...]:
    """Every identified parameter in SI; intervals are symmetric where the solver walks, then transformed back."""
    half = t_halfwidth(found.covariance, max(clusters, 2), level=level)
    centre, low, high = (space.values(point + shift) for shift in (0.0, -half, half))
    rows = []
    for name, reason in zip(space.names, found.reasons, strict=True):
        param = space.twin.params[name]
        limits = (max(float(low[name]), param.low), min(float(high[name]), param.high))
        rows.append(
            Estimate(
                name=name,
                unit=param.unit,
                nominal=param.nominal,
                value=float(centre[name]),
                low=None if reason else limits[0],
                high=None if reason else limits[1],
                reason=reason,
            )
        )
    for name, value in scales.items():
        param, error = space.twin.params[name], 2 * _QUANTUM_ERROR
        row = Estimate(
            name=name, unit=param.unit, nominal=param.nominal, value=value, low=value - error, high=value + error
        )
        rows.append(row)
    return tuple(rows)


def residual_summary(residual: NDArray[np.float64]) -> Residuals:
    """How correlated residuals ``(nepisode, nframe, n)`` are in time; NaN past each episode's end."""
    channels = range(residual.shape[-1])
    clips = [[episode[~np.isnan(episode[:, j]), j] for episode in residual] for j in channels]
    long_enough = [[clip for clip in column if len(clip) > _LJUNG_BOX_LAGS] for column in clips]
    return Residuals(
        rho=np.array([float(np.mean([autocorrelation(clip)[1] for clip in column])) for column in clips]),
        n_eff=np.array([sum(effective_size(clip) for clip in column) for column in clips]),
        frames=int(sum(len(clip) for clip in clips[0])),
        p_value=np.array(
            [
                min((ljung_box(clip, lags=_LJUNG_BOX_LAGS).p_value for clip in column), default=np.nan)
                for column in long_enough
            ]
        ),
    )


def notes(logs: ReplayLogs, scales: Mapping[str, float], holdout: Sequence[int]) -> tuple[str, ...]:
    """What a reader must know beside the figures."""
    said = []
    if not logs.calibrated:
        said.append(_NO_CALIBRATION)
    if scales:
        said.append(f"Scale of {len(scales)} joints read off the encoder's steps in the log, not fitted.")
    if not holdout:
        said.append(_NOT_HELD_OUT)
    return tuple(said)
