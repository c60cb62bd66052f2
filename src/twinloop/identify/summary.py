"""From where the walk ended to a record: distribution, estimates with intervals, residuals, what must be said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.core.distribution import ParamDistribution
from twinloop.core.files import sha256_bytes
from twinloop.identify.problem import Problem
from twinloop.identify.result import Estimate, Evidence, Residuals
from twinloop.identify.space import Space
from twinloop.identify.uncertainty import Uncertainty
from twinloop.simulate.replay_logs import ReplayLogs
from twinloop.stats import effective_size, ljung_box, pooled_autocorrelation

# Standard error of a scale read off the quantization: the log rounds to five digits, its step is known to more.
_QUANTUM_ERROR = 1e-4
_LJUNG_BOX_LAGS = 10
_NORMAL_MAD = 1.4826  # of a normal distribution: standard deviation over median absolute deviation
# Standard errors that a walk may end short of its optimum before it is said.
_UNFINISHED = 0.3
_FEW_DF = 3.0
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
        clusters=len(set(logs.numbers)),
        twin_hash=space.twin.hash,
        data_hash=sha256_bytes(logs.commands.tobytes(), logs.measured.tobytes()),
        prior_mean=np.concatenate([space.column("centre"), np.full(len(scales), np.nan)]),
        prior_sd=np.concatenate([space.column("sd"), np.full(len(scales), np.nan)]),
    )


def _transformed(value: float, space: Space, name: str) -> float:
    return float(np.log(value)) if space.twin.params[name].transform == "log" else value


def estimates(
    space: Space, point: NDArray[np.float64], found: Uncertainty, scales: Mapping[str, float]
) -> tuple[Estimate, ...]:
    """Every identified parameter in SI; limits are those where the solver walks, transformed back."""
    centre, low, high = (space.values(each) for each in (point, found.low, found.high))
    rows = []
    for i, (name, reason) in enumerate(zip(space.names, found.reasons, strict=True)):
        param = space.twin.params[name]
        rows.append(
            Estimate(
                name=name,
                unit=param.unit,
                nominal=param.nominal,
                value=float(centre[name]),
                low=None if reason else max(float(low[name]), param.low),
                high=None if reason else min(float(high[name]), param.high),
                reason=reason,
                side=found.sides[i],
                df=None if np.isnan(found.df[i]) else float(found.df[i]),
            )
        )
    for name, value in scales.items():
        param, error = space.twin.params[name], 2 * _QUANTUM_ERROR
        row = Estimate(
            name=name, unit=param.unit, nominal=param.nominal, value=value, low=value - error, high=value + error
        )
        rows.append(row)
    return tuple(rows)


def evidence(problem: Problem, found: Uncertainty) -> Evidence:
    """What the intervals rest on."""
    clusters = found.clusters
    return Evidence(
        clusters="none" if clusters is None else clusters.kind,
        count=0 if clusters is None else clusters.count,
        length_s=0.0 if clusters is None else clusters.length,
        correlated_s=float("nan") if clusters is None else clusters.correlated,
        independent=float("nan") if clusters is None else clusters.independent,
        parameters=max(len(block.columns) for block in problem.blocks),
        rank=found.rank,
        method=found.method,
        draws=found.draws,
        level=found.level,
    )


def residual_summary(residual: NDArray[np.float64]) -> Residuals:
    """How large and how correlated residuals ``(nwindow, nframe, nchannel)`` are; NaN where nothing was measured."""
    channels = range(residual.shape[-1])
    clips = [[window[~np.isnan(window[:, j]), j] for window in residual] for j in channels]
    rho = [pooled_autocorrelation(column) for column in clips]
    frames = [sum(len(clip) for clip in column) for column in clips]
    tested = [[clip for clip in column if len(clip) > _LJUNG_BOX_LAGS] for column in clips]
    return Residuals(
        rho=np.array(rho),
        n_eff=np.array([effective_size(n, r) for n, r in zip(frames, rho, strict=True)]),
        frames=max(frames),
        p_value=np.array([ljung_box(c, lags=_LJUNG_BOX_LAGS).p_value if c else np.nan for c in tested]),
        noise=_NORMAL_MAD * np.nanmedian(np.abs(residual - np.nanmedian(residual, axis=(0, 1))), axis=(0, 1)),
    )


def notes(
    logs: ReplayLogs, scales: Mapping[str, float], holdout: Sequence[int], names: Sequence[str], found: Uncertainty
) -> tuple[str, ...]:
    """What a reader must know beside the figures."""
    said = []
    if not logs.calibrated:
        said.append(_NO_CALIBRATION)
    if scales:
        said.append(f"Scale of {len(scales)} joints read off the encoder's steps in the log, not fitted.")
    if not holdout:
        said.append(_NOT_HELD_OUT)
    short = np.nan_to_num(found.unfinished)
    if short.max(initial=0.0) > _UNFINISHED:
        worst = int(np.argmax(short))
        said.append(
            f"The walk ended {short[worst]:.1f} standard errors short of its optimum in {names[worst]}: give it more "
            "iterations."
        )
    thin = [n for n, df, why in zip(names, found.df, found.reasons, strict=True) if not why and df < _FEW_DF]
    if thin and found.clusters is not None and found.clusters.count > 2 * _FEW_DF:
        many = found.clusters.count
        said.append(f"Two or three of {many} clusters decide {', '.join(thin)}: excite it in more of them.")
    return tuple(said)
