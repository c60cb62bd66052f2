"""Calibrate the width of identified parameter ranges, so that simulated worlds cover held-out real episodes.

The covariance of the parameters is multiplied by a factor κ, up to a cap. κ is chosen as follows. An episode is called
a clip here.

- The replay at the estimate predicts a clip. σ is the standard deviation of the prediction in every frame and channel.
- σ² = σ_θ² + σ_e²: the variance of replays at parameters drawn from the distribution, plus that of the residual noise.
- The score of a clip is its largest |measured − predicted| / σ.
- q is the quantile, at the nominal level, of the scores of clips that are simulated from the prediction.
- κ = (t / q)² with the conformal threshold t of the calibration clips' scores. A correct distribution gives κ = 1.
- The band around the prediction has the half width q √κ σ.

Guarantee (`stats.conformal`): a new clip is inside the band as a whole with at least the nominal probability, even if
the twin is wrong. Conditions: the clip is exchangeable with the calibration clips (same robot, load, tasks and wear, in
no order), and κ is not capped. The guarantee holds on average over draws of the calibration clips; not for each set of
calibration clips, and not for a single kind of clip. Such bands: Diquigiovanni, Fontana & Vantini, "Conformal
prediction bands for multivariate functional data", J. Multivariate Analysis 189, 2022.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from twinloop.core.console import fit_column
from twinloop.core.distribution import ParamDistribution, RangeCalibration, ResidualNoise, Status
from twinloop.core.errors import InputError
from twinloop.core.plain import JsonRecord
from twinloop.core.records import Episode
from twinloop.identify.bands import BandPrediction, PredictedClips, max_by_episode, residual_noise
from twinloop.identify.config import FitConfig
from twinloop.simulate import Backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.stats import conformal_band, conformal_threshold, min_clip_count
from twinloop.twin import Twin

Array = NDArray[np.float64]

LEVEL = 0.9  # needs nine clips; 95 % would need 19
# At most three times the estimate's standard deviations count as uncertainty of parameters; our choice. Nor may the
# range of any parameter become wider than its prior.
MOST_KAPPA = 9.0
_CALIBRATED: Status = "calibrated"
_CAPPED: Status = "capped"
_UNCALIBRATED: Status = "uncalibrated"
_LEVELS = np.round(np.arange(0.1, 0.96, 0.05), 2)


@dataclass(frozen=True, kw_only=True)
class CoverageCurve(JsonRecord):
    """Share of test episodes inside the prediction band at several nominal levels, each array of shape ``(k,)``.

    The calibration multiplies the covariance of the parameters by a factor κ, up to a largest allowed value.

    Attributes:
        levels: The k nominal levels.
        plain: Share inside the band of the distribution as fitted (κ = 1).
        calibrated: Share inside the band if κ is calibrated for each level.
        low: Lower limit of the range that contains 95 % of such shares if the calibration is correct.
        high: Upper limit of that range.
        clips: Number of test episodes.
    """

    levels: Array
    plain: Array
    calibrated: Array
    low: Array
    high: Array
    clips: int


@dataclass(frozen=True, kw_only=True)
class CalibratedRanges(JsonRecord):
    """Identified distribution with its residual noise and calibration.

    The score of an episode is its largest |measured − predicted|, in standard deviations of the prediction.

    Attributes:
        distribution: The distribution, with noise and calibration.
        curve: Coverage of test episodes; None if there are no test episodes.
        parameter_share: Part of the predicted variance that comes from parameters, ``(nchannel,)``; the rest is
            residual noise. NaN without calibration episodes.
        scores: Scores of the calibration episodes by episode number.
        within: Quantile, at the nominal level, of the scores of episodes that are simulated from the prediction.
    """

    distribution: ParamDistribution
    curve: CoverageCurve | None
    parameter_share: Array
    scores: dict[int, float]
    within: float = math.nan
    json_names: ClassVar = {"distribution": None}  # stored separately

    def text(self) -> str:
        """Return noise, calibration and coverage as text for a terminal."""
        calibration, noise = self.distribution.calibration, self.distribution.noise
        assert calibration is not None  # noqa: S101 - `calibrate` has filled both in
        assert noise is not None  # noqa: S101
        wide = fit_column(28, noise.channels)
        lines = [f"Ranges: kappa {calibration.kappa:.3g}, {calibration.label}."]
        if calibration.status == "capped":
            lines.append(
                "MODEL ERROR that no range of parameters covers, outside the predicted band: "
                f"{self.distribution.model_error}."
            )
        lines.append(
            f"{'residual noise':<{wide}}{'sd':>10} {'unit':<14}{'lag-1 r':>8}{'repeats with motion':>21}"
            f"{'from parameters':>17}"
        )
        for i, name in enumerate(noise.channels):
            parts = (noise.structured[i], self.parameter_share[i])
            part, share = ("not known" if math.isnan(value) else f"{value:.0%}" for value in parts)
            lines.append(
                f"{name:<{wide}}{noise.sd[i]:>10.3g} {noise.units[i]:<14}{noise.rho[i]:>8.3f}{part:>21}{share:>17}"
            )
        if self.curve is not None:
            at = int(np.argmin(np.abs(self.curve.levels - calibration.level)))
            lines.append(
                f"Coverage of {self.curve.clips} test clips at {self.curve.levels[at]:.0%}: {self.curve.plain[at]:.0%} "
                f"as fitted, {self.curve.calibrated[at]:.0%} calibrated (95 % of such tests would show "
                f"{self.curve.low[at]:.0%} to {self.curve.high[at]:.0%})."
            )
        return "\n".join(lines)


def calibrate(
    twin: Twin,
    distribution: ParamDistribution,
    *,
    backend: Backend,
    training: Sequence[Episode],
    calibration: Sequence[Episode],
    test: Sequence[Episode] = (),
    config: FitConfig | None = None,
    level: float = LEVEL,
) -> CalibratedRanges:
    """Calibrate an identified distribution: residual noise, covariance factor κ, and coverage of test episodes.

    The noise is estimated from ``training``, κ from ``calibration``, and the coverage curve from ``test``. Undetermined
    parameters are fixed at their estimate, because draws from their prior range would only widen the predictions. If
    there are too few calibration episodes for the level (fewer than 19 for 95 %), κ is 1 and the status of the
    calibration is ``uncalibrated``.

    Args:
        twin: The identified twin.
        distribution: The distribution from the fit.
        backend: The backend that simulates the replays.
        training: The episodes that the fit was trained on.
        calibration: Episodes that are neither in the fit nor in the test; may be empty.
        test: Episodes for the coverage curve.
        config: Configuration of the fit.
        level: Nominal probability that an episode is inside its band.

    Raises:
        InputError: If an episode is in two of the three lists, or the fit determined no parameter.
    """
    config = config or FitConfig()
    _check_disjoint(training, calibration, test)
    fitted = prepare_replay(twin, training, config.replay)
    point = {**config.fixed, **distribution.estimate}
    residual = replay(backend, fitted, fitted.twin.table(1, point))[0] - fitted.measured
    noise = residual_noise(fitted, residual)
    if not calibration:
        kappa_result = _calibrate_kappa(distribution, None, noise, level)
        unknown = np.full(len(noise.channels), np.nan)
        known = replace(distribution, noise=noise, calibration=kappa_result)
        return CalibratedRanges(distribution=known, curve=None, parameter_share=unknown, scores={})
    prediction = BandPrediction(backend, distribution, noise, point, config)
    clips = prediction.clips(twin, calibration)
    kappa_result = _calibrate_kappa(distribution, clips, noise, level)
    return CalibratedRanges(
        distribution=replace(distribution, noise=noise, calibration=kappa_result),
        curve=_coverage_curve(clips, prediction.clips(twin, test), kappa_result.cap) if test else None,
        parameter_share=clips.share,
        scores=dict(zip(clips.numbers, clips.scores.tolist(), strict=True)),
        within=clips.score_quantile(level),
    )


def _check_disjoint(*parts: Sequence[Episode]) -> None:
    seen: set[int] = set()
    for part in parts:
        again = sorted(seen & {episode.index for episode in part})
        if again:
            raise InputError(
                f"Episode {again[0]} is in two of training, calibration and test. Calibration needs "
                "episodes that are used neither in the fit nor in the test."
            )
        seen |= {episode.index for episode in part}


def kappa_cap(distribution: ParamDistribution) -> tuple[float, str]:
    """Return the largest allowed κ (factor on the covariance), and the reason for this limit in words.

    It is `MOST_KAPPA` = 9, or less if the range of a parameter would become wider than its prior.
    """
    known = np.flatnonzero(distribution.determined)
    cap, reason = MOST_KAPPA, "three standard deviations in place of one"
    if len(distribution.prior_sd):
        variance = np.diag(distribution.covariance)[known]
        ratio = distribution.prior_sd[known] ** 2 / np.where(variance > 0, variance, np.nan)
        if np.isfinite(ratio).any() and np.nanmin(ratio) < cap:
            name = distribution.names[known[int(np.nanargmin(ratio))]]
            cap, reason = float(np.nanmin(ratio)), f"beyond it the range of {name} would be wider than its prior"
    return cap, reason


def _calibrate_kappa(
    distribution: ParamDistribution, clips: PredictedClips | None, noise: ResidualNoise, level: float
) -> RangeCalibration:
    """Compute κ (factor on the covariance) from calibration episodes; if ``clips`` is None, κ is 1 and uncalibrated."""
    cap, reason = kappa_cap(distribution)
    kappa, status, count, needed = 1.0, _UNCALIBRATED, 0, math.inf
    model_error = np.zeros(len(noise.channels))
    if clips is not None:
        count, needed = (
            len(clips.numbers),
            (conformal_threshold(clips.scores, level) / clips.score_quantile(level)) ** 2,
        )
        if count >= min_clip_count(level):
            kappa, status = (cap, _CAPPED) if needed > cap else (needed, _CALIBRATED)
        if status == _CAPPED:
            model_error = _excess_outside_band(clips, kappa, level)
    return RangeCalibration(
        kappa=kappa,
        status=status,
        level=level,
        clips=count,
        needed=needed,
        cap=cap,
        cap_reason=reason,
        model_error=model_error,
    )


def _excess_outside_band(clips: PredictedClips, kappa: float, level: float) -> Array:
    """Return a limit on how far readings are outside the band, ``(nchannel,)``, in the channels' units.

    A fraction ``level`` of episodes have no reading farther outside. The distance is 0 inside the band. The band around
    a prediction has the half width q √κ σ, with the quantile q of the simulated episodes' scores and the standard
    deviation σ of the prediction.

    Args:
        clips: Prediction errors of the calibration episodes.
        kappa: Factor κ on the covariance of the parameters.
        level: Nominal probability that an episode is inside its band.
    """
    beyond = np.maximum(np.abs(clips.error) - clips.score_quantile(level) * math.sqrt(kappa) * clips.sd, 0.0)
    largest = [max_by_episode(beyond[..., [channel]], clips.clusters) for channel in range(beyond.shape[-1])]
    return np.array([conformal_threshold(each, level) for each in largest])


def _coverage_curve(calibration: PredictedClips, test: PredictedClips, cap: float) -> CoverageCurve:
    levels = _LEVELS[[min_clip_count(level) <= len(calibration.numbers) for level in _LEVELS]]
    within = np.array([calibration.score_quantile(level) for level in levels])
    thresholds = np.array([conformal_threshold(calibration.scores, level) for level in levels])
    low, high = conformal_band(levels, len(calibration.numbers), len(test.numbers))
    scores = test.scores[:, None]
    return CoverageCurve(
        levels=levels,
        plain=np.mean(scores <= within, axis=0),
        calibrated=np.mean(scores <= np.minimum(thresholds, math.sqrt(cap) * within), axis=0),
        low=low,
        high=high,
        clips=len(test.numbers),
    )
