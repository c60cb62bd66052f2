"""Write the report of an identification: estimates, correlations, residuals, ranges, model structures, drift."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.core.distribution import ParamDistribution
from twinloop.core.records import Episode
from twinloop.identify import FitConfig, IdentifyResult
from twinloop.identify.bands import BandPrediction
from twinloop.identify.compare import StructureComparison
from twinloop.identify.conformal import CalibratedRanges
from twinloop.identify.drift import Drift
from twinloop.identify.residual import ResidualFit
from twinloop.report import ReportPage
from twinloop.report.identification import (
    plot_correlation_map,
    plot_coverage_curve,
    plot_drift_panels,
    plot_predicted_band,
    plot_prior_and_posterior,
    plot_profile_curves,
    plot_residual_correlation,
    plot_structure_gains,
)
from twinloop.report.plots import plot_parameter_forest
from twinloop.simulate import open_backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.stats import autocorrelation
from twinloop.twin import Twin

_CLIPS = 2  # plotted held-out clips
_LAG_SECONDS = 1.0
_MOST_LAGS = 200
_DRIFTS = 8  # plotted parameters, the most significant changes first


def identify_section(
    page: ReportPage, result: IdentifyResult, twin: Twin, training: Sequence[Episode], config: FitConfig
) -> None:
    """Add to a report the estimates with intervals and nominal values, their correlations, and the residuals.

    Args:
        page: the report.
        result: the fit.
        twin: the twin.
        training: episodes of the fit, which are replayed to compute residuals.
        config: configuration of the fit.
    """
    known = sum(estimate.determined for estimate in result.estimates)
    page.section(
        "Parameters identified from the log",
        f"{known} of {len(result.estimates)} parameters are determined by {len(result.training)} training episodes; "
        "unidentifiable parameters are printed without an interval. "
        f"{result.evidence.text()} Residuals are correlated in time, and intervals that ignore it are far too narrow.",
    )
    rows = result.estimates
    nan = float("nan")
    figure = plot_parameter_forest(
        [row.name for row in rows],
        [row.value for row in rows],
        [nan if row.low is None else row.low for row in rows],
        [nan if row.high is None else row.high for row in rows],
        nominal=[row.nominal for row in rows],
        units=[row.unit for row in rows],
        determined=[row.determined for row in rows],
    )
    page.plot(figure, "Dots are estimates with their intervals, diamonds the nominal values of the twin.")
    page.table(
        ["parameter", "unit", "nominal", "95 % of the prior", "identified", f"{result.evidence.level:.0%} interval"],
        [
            [row.name, unit, f"{factor * row.nominal:.4g}", row.prior, f"{factor * row.value:.4g}", row.interval]
            for row in rows
            for factor, unit in [row.scale]
        ],
    )
    for note in result.notes:
        page.text(note)
    _identifiability(page, result)
    _residuals(page, result, twin, training, config)


def _identifiability(page: ReportPage, result: IdentifyResult) -> None:
    """Add prior and estimate of each parameter, correlations, and combinations that the data do not determine."""
    found = result.distribution
    rows = np.flatnonzero(np.isfinite(found.prior_sd)) if len(found.prior_sd) else np.zeros(0, dtype=int)
    worst = max(result.condition, default=math.nan)
    page.section(
        "Priors, correlation, identifiability",
        f"Condition number of the scaled normal equations: {worst:.3g}. Directions that the data do not determine: "
        f"{len(result.directions)}.",
    )
    if len(rows):
        rows = np.array(sorted(rows, key=lambda row: found.names[row].split("/")[::2]))  # by class, as in the twin
        sd, error = found.prior_sd[rows], np.sqrt(np.diag(found.covariance)[rows])
        figure = plot_prior_and_posterior(
            [found.names[i] for i in rows],
            (found.mean[rows] - found.prior_mean[rows]) / sd,
            error / sd,
            [found.determined[i] for i in rows],
            (_nominal_coordinates(result)[rows] - found.prior_mean[rows]) / sd,
        )
        page.plot(
            figure,
            "Grey: the prior. Black line: the twin's nominal value. Blue: estimate and 95 % interval, in the prior's "
            "standard deviations. Orange cross: not determined by the data. Parameters are sorted by class.",
        )
    _correlations(page, found)
    _profiles(page, result)
    if result.directions:
        page.table(["not determined by these data"], [[direction] for direction in result.directions])


def _nominal_coordinates(result: IdentifyResult) -> NDArray[np.float64]:
    """Return the nominal values of the distribution's parameters in its coordinates; NaN for 0 on a logarithm."""
    nominal = {row.name: row.nominal for row in result.estimates}
    found = result.distribution
    values = np.array([nominal.get(name, math.nan) for name in found.names])
    logarithmic = np.array([transform == "log" for transform in found.transforms])
    values[logarithmic & (values <= 0)] = math.nan
    return np.where(logarithmic, np.log(np.where(logarithmic, values, 1.0)), values)


def _correlations(page: ReportPage, found: ParamDistribution) -> None:
    variance = np.diag(found.covariance)
    known = np.flatnonzero(np.asarray(found.determined) & (variance > 0))
    if len(known) < 2:  # a single parameter has no correlation
        return
    size = np.sqrt(variance[known])
    correlation = found.covariance[np.ix_(known, known)] / np.outer(size, size)
    page.plot(
        plot_correlation_map([found.names[i] for i in known], correlation),
        "Correlation of the estimates that the data determine.",
    )


def _profiles(page: ReportPage, result: IdentifyResult) -> None:
    profiles = result.profiles
    if not profiles:
        return
    figure = plot_profile_curves(
        *([getattr(profile, key) for profile in profiles] for key in ("name", "unit", "values", "rise", "limit"))
    )
    page.plot(figure, "Profile likelihood: each parameter is fixed at several values, and the others are fitted again.")
    for profile in profiles:
        page.text(f"{profile.text()}.")


def _residuals(
    page: ReportPage, result: IdentifyResult, twin: Twin, training: Sequence[Episode], config: FitConfig
) -> None:
    """Replay the training episodes, and add a plot of the residuals' autocorrelation to the page."""
    logs = prepare_replay(twin, training, config.replay)
    table = logs.twin.table(1, {**config.fixed, **result.values})
    residual = replay(open_backend(), logs, table)[0] - logs.measured
    longest = int(logs.lengths.min()) - 2
    lags = min(longest, _MOST_LAGS, max(2, round(_LAG_SECONDS * logs.twin.control_hz)))
    if lags < 2:  # a curve needs two points
        return
    curves = [
        np.mean(
            [autocorrelation(clip[~np.isnan(clip)], lags) for clip in residual[..., i] if _is_long_enough(clip, lags)],
            axis=0,
        )
        for i in range(residual.shape[-1])
    ]
    frames = int(np.mean(logs.lengths))
    page.section(
        "Residuals",
        "Autocorrelation of training residuals. White noise would be in the grey band; longer correlation "
        "is physics that the twin lacks, or a disturbance that the log does not record.",
    )
    figure = plot_residual_correlation(
        np.arange(lags + 1) / logs.twin.control_hz,
        np.stack(curves, axis=-1),
        [channel.name for channel in logs.channels],
        1.96 / math.sqrt(frames),
    )
    page.plot(figure)


def _is_long_enough(clip: np.ndarray, lags: int) -> bool:
    return int(np.isfinite(clip).sum()) > lags + 1


def note_on_held_out_clips(ranges: CalibratedRanges | None, held_out: Sequence[Episode]) -> str:
    """Return a note if the held-out episodes have calibrated the ranges, so that nothing tests the ranges; else ""."""
    if ranges is None or not any(episode.index in ranges.scores for episode in held_out):
        return ""
    return (
        f"The {len(held_out)} held-out episodes have calibrated the ranges (kappa), so that no episode tests the "
        "ranges. To test them, calibrate with other episodes (--calibrate every:3)."
    )


def ranges_section(
    page: ReportPage, ranges: CalibratedRanges, twin: Twin, held_out: Sequence[Episode], config: FitConfig
) -> None:
    """Add to a report the calibrated ranges for randomization, residual noise, and held-out clips with their ranges.

    The ranges are the identified distribution with its covariance multiplied by kappa, a factor chosen so that the
    ranges cover real clips as often as stated.
    """
    found = ranges.distribution
    calibration, noise = found.calibration, found.noise
    assert calibration is not None  # noqa: S101 - the calibration has set both
    assert noise is not None  # noqa: S101
    page.section(
        "Ranges for randomization",
        f"Factor on the covariance kappa = {calibration.kappa:.3g}: {calibration.label}."
        + (f" MODEL ERROR beyond these ranges: {found.model_error}." if found.model_error else "")
        + (
            f" Not determined, prior ranges: {', '.join(found.unidentified_parameters)}."
            if found.unidentified_parameters
            else ""
        )
        + f" {note_on_held_out_clips(ranges, held_out)}".rstrip(),
    )
    page.table(
        ["channel", "residual noise", "unit", "lag-1 correlation", "repeats with motion", "from parameters"],
        [
            [name, float(sd), unit, float(rho), float(part), float(share)]
            for name, sd, unit, rho, part, share in zip(
                noise.channels, noise.sd, noise.units, noise.rho, noise.structured, ranges.parameter_share, strict=True
            )
        ],
        caption="Residual noise of the training clips; error that repeats with the motion is missing physics.",
    )
    if ranges.curve is not None:
        curve = ranges.curve
        page.plot(
            plot_coverage_curve(curve.levels, curve.plain, curve.calibrated, curve.low, curve.high),
            f"Share of {curve.clips} test clips that are completely inside the ranges.",
        )
    if held_out and not math.isnan(ranges.within):
        _held_out_clips(page, ranges, twin, held_out[:_CLIPS], config)


def _held_out_clips(
    page: ReportPage, ranges: CalibratedRanges, twin: Twin, episodes: Sequence[Episode], config: FitConfig
) -> None:
    found = ranges.distribution
    assert found.noise is not None  # noqa: S101 - see `ranges_section`
    ahead = BandPrediction(open_backend(), found, found.noise, {**config.fixed, **found.estimate}, config)
    for episode in episodes:
        logs = prepare_replay(twin, [episode], config.replay)
        clips = ahead.clips(twin, [episode])
        frames = int(logs.lengths[0])
        measured = logs.measured[0, :frames]
        figure = plot_predicted_band(
            np.arange(frames) / logs.twin.control_hz,
            [channel.name for channel in logs.channels],
            measured,
            measured + clips.error[0, :frames],
            ranges.within * math.sqrt(found.kappa) * clips.sd[0, :frames],
            units=[channel.unit for channel in logs.channels],
        )
        page.plot(figure, f"Episode {episode.index}, held out: measured against simulated, and the calibrated range.")


def residual_section(page: ReportPage, residual: ResidualFit) -> None:
    """Add to a report the residual: decisions, held-out errors, and the offsets and disturbances of each joint."""
    page.section(
        "Residual",
        "Motion that no parameter explains, fitted as bounded offsets of the commands and as a random disturbance to "
        f"{len(residual.training)} training episodes; {len(residual.holdout)} held-out episodes decide. Intervals 95%, "
        "by paired bootstrap over episodes.",
    )
    page.text(f"Action: {residual.action.text()}.")
    page.text(f"Disturbance: {residual.disturbance.text()}.")
    unit, found = residual.command_unit, residual.fitted.joints if residual.fitted else {}
    rows = zip(
        residual.joints,
        residual.units,
        residual.action.before.tolist(),
        residual.action.after.tolist(),
        residual.disturbance.before.tolist(),
        residual.disturbance.after.tolist(),
        strict=True,
    )
    head = ["joint", "unit", "error before", "with action", "CRPS before", "with disturbance"]
    page.table(
        [*head, f"bound in {unit}", f"disturbance sd in {unit}", "correlation time in s"],
        [
            [joint, *row, *((fit.bound, fit.sd, fit.time) if (fit := found.get(joint)) else (None,) * 3)]
            for joint, *row in rows
        ],
    )


def structures_section(page: ReportPage, compared: StructureComparison) -> None:
    """Add to a report the comparison of model structures: physical effects that the twin lacks or does not need."""
    rows = [row for row in compared.results if row.improvement is not None and row.error is not None]
    how = f"cross-fitted over {compared.folds} folds" if compared.folds > 1 else "on the held-out part"
    page.section(
        "Missing physics",
        f"Every model structure is compared with the same fit without it, on {compared.episodes} episodes that neither "
        f"fit used, {how}. Intervals and p-values by paired bootstrap over episodes, p-values adjusted by Holm.",
    )
    if rows:
        gains = [row.improvement for row in rows if row.improvement is not None]
        figure = plot_structure_gains(
            [row.name for row in rows],
            [float(gain.estimate) for gain in gains],
            [float(gain.low) for gain in gains],
            [float(gain.high) for gain in gains],
            ["MISSING" in row.verdict or row.verdict.startswith("needed") for row in rows],
        )
        page.plot(figure, "Part of the held-out error that a model structure removes, with its 95 % interval.")
    page.table(
        ["structure", "physics", "added parameters", "improvement each", "p (Holm)", "verdict"],
        [
            [
                row.name,
                row.meaning,
                row.added or None,
                row.per_parameter,
                None if row.reason else row.p_value,
                row.verdict or f"not compared: {row.reason}",
            ]
            for row in compared.results
        ],
    )


def drift_section(page: ReportPage, found: Drift) -> None:
    """Add to a report the parameters that changed while the log was recorded."""
    order = {name: place for place, name in enumerate(found.drifting)}
    shown = sorted(found.params, key=lambda p: (order.get(p.name, len(order)), p.p_change))[:_DRIFTS]
    summary = f"{', '.join(found.drifting)} changed." if found.drifting else "These data show no change of a parameter."
    page.section(
        "Drift",
        f"{summary} Tested for change between {len(found.groups)} groups of episodes and for a trend along their "
        "order, by permutation of episodes, adjusted by Holm over parameters and both tests.",
    )
    figure = plot_drift_panels(
        found.groups, *([getattr(param, key) for param in shown] for key in ("name", "estimates", "errors", "unit"))
    )
    page.plot(figure, "Estimates of each group with 95 % intervals from the spread of episodes within groups.")
    page.table(
        ["parameter", "unit", "p of change", "trend", "p of trend"],
        [[param.name, param.unit, param.p_change, param.trend, param.p_trend] for param in shown],
    )
