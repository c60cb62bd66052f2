"""Identify a twin's parameters from logs of commands and positions."""

from __future__ import annotations

import fnmatch
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import UnknownNameError
from twinloop.core.files import sha256_bytes, sha256_json
from twinloop.core.records import Episode
from twinloop.identify.assembly import FitSpace, FreeParam, fit_space, narrow_bounds
from twinloop.identify.config import FitConfig, HoldoutSpec
from twinloop.identify.considered import (
    find_hidden_inertias,
    given_responses,
    inertia_responses,
    tracker_responses,
    undeclared_responses,
)
from twinloop.identify.model_error import find_model_error
from twinloop.identify.notes import (
    collect_notes,
    note_dominant_episode,
    note_kept_values,
    note_resting_channels,
    warn_of_worse_channels,
)
from twinloop.identify.optimization import FitProgress, optimize_fit, refit_at_prior, return_undetermined
from twinloop.identify.problem import FitProblem
from twinloop.identify.result import Estimate, FitResiduals, IdentifyResult, IntervalEvidence
from twinloop.identify.solver import FitCheckpoint
from twinloop.identify.uncertainty import Uncertainty, choose_fit_clusters, compute_uncertainty
from twinloop.identify.uncertainty_scores import FrameTimes
from twinloop.identify.variants import ParameterProfile, profile_likelihood, refit_bootstrap
from twinloop.simulate import Backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayLogs, prepare_replay
from twinloop.stats import Interval, bootstrap_mean, effective_size, ljung_box, mae, pooled_autocorrelation
from twinloop.twin import Twin

# Standard error of a scale from quantization: the log rounds to five digits, the step is known more precisely.
_QUANTUM_ERROR = 1e-4
_LJUNG_BOX_LAGS = 10
# Standard deviations of an estimate from the end of its range, beyond which the log refutes the range: our choice, more
# than the three of a normal distribution, because the estimate's own error also comes from missing physics.
_REFUTED = 4.0
_PRIOR_QUANTILE = 1.96  # standard deviations around the mean contain 95 % of a normal distribution
_NORMAL_MAD = 1.4826  # of a normal distribution: standard deviation over median absolute deviation


def build_distribution(
    space: FitSpace,
    point: NDArray[np.float64],
    centred: NDArray[np.float64],
    uncertainty: Uncertainty,
    scales: Mapping[str, float],
    logs: ReplayLogs,
) -> ParamDistribution:
    """Build the joint distribution of the fitted parameters and the encoder scales, for randomization.

    Args:
        space: The free parameters.
        point: Their estimate in solver coordinates (ln or SI), ``(p,)``.
        centred: Mean of the worlds that are drawn from the fit, ``(p,)``; see `ParamDistribution`.
        uncertainty: Uncertainty of the estimate.
        scales: Encoder scales that are computed from the quantization of the log, by parameter name.
        logs: The training windows.
    """
    params = [space.twin.params[name] for name in (*space.names, *scales)]
    count, counted = len(space.names), [_transform_value(value, space, name) for name, value in scales.items()]
    covariance = np.zeros((len(params), len(params)))
    covariance[:count, :count] = uncertainty.covariance
    np.fill_diagonal(covariance[count:, count:], _QUANTUM_ERROR**2)
    return ParamDistribution(
        names=tuple(param.name for param in params),
        transforms=tuple(param.transform for param in params),
        mean=np.concatenate([point, counted]),
        covariance=covariance,
        low=np.array([param.low for param in params]),
        high=np.array([param.high for param in params]),
        determined=(*(not reason for reason in uncertainty.reasons), *(True for _ in scales)),
        clusters=len(set(logs.episode_numbers)),
        twin_hash=space.twin.hash,
        data_hash=sha256_bytes(logs.commands.tobytes(), logs.measured.tobytes()),
        prior_mean=np.concatenate([space.column("centre"), np.full(len(scales), np.nan)]),
        prior_sd=np.concatenate([space.column("sd"), np.full(len(scales), np.nan)]),
        centred=np.concatenate([centred, counted]),
    )


def join_distributions(fitted: ParamDistribution, given: ParamDistribution | None, twin: Twin) -> ParamDistribution:
    """Return a fit's distribution with the parameters of an earlier one that it lacks, as independent of its own.

    Args:
        fitted: Distribution of the fit.
        given: Distribution of the earlier identification; None for none.
        twin: The twin; parameters that it lacks are left out.
    """
    if given is None:
        return fitted
    rows = [i for i, name in enumerate(given.names) if name in twin.params and name not in fitted.names]
    size, total = len(fitted.names), len(fitted.names) + len(rows)
    covariance = np.zeros((total, total))
    covariance[:size, :size], covariance[size:, size:] = fitted.covariance, given.covariance[np.ix_(rows, rows)]

    def join(name: str, absent: NDArray[np.float64]) -> NDArray[np.float64]:
        values = getattr(given, name)
        return np.concatenate([getattr(fitted, name), (values if values.size else absent)[rows]])

    unknown = np.full(len(given.names), np.nan)
    return replace(
        fitted,
        names=(*fitted.names, *(given.names[i] for i in rows)),
        transforms=(*fitted.transforms, *(given.transforms[i] for i in rows)),
        determined=(*fitted.determined, *(given.determined[i] for i in rows)),
        covariance=covariance,
        **{name: join(name, unknown) for name in ("mean", "low", "high", "prior_mean", "prior_sd")},
        centred=join("centred", given.mean),
        warning=fitted.warning or given.warning,
    )


def fix_given(twin: Twin, config: FitConfig, given: ParamDistribution | None) -> FitConfig:
    """Return a configuration that fixes the estimates of an earlier identification, unless it frees or fixes them.

    Args:
        twin: The twin; parameters that it lacks are left out.
        config: The configuration.
        given: Distribution of the earlier identification; None changes nothing.
    """
    if given is None:
        return config
    values = {
        name: value
        for name, value in given.estimate.items()
        if name in twin.params and not any(fnmatch.fnmatchcase(name, pattern) for pattern in config.free or ())
    }
    return replace(config, fixed={**values, **config.fixed})


def find_wide_estimates(space: FitSpace, point: NDArray[np.float64], uncertainty: Uncertainty) -> NDArray[np.bool_]:
    """Return which parameters have a larger standard deviation than a uniform draw from their default range, ``(p,)``.

    An estimate that is far outside of the range is not among them, because the log refutes the range.

    Args:
        space: The free parameters.
        point: Their estimate in solver coordinates (ln or SI), ``(p,)``.
        uncertainty: Uncertainty of the estimate.
    """
    wide = np.zeros(len(point), dtype=bool)
    for i, (name, sd) in enumerate(zip(space.names, np.sqrt(np.diag(uncertainty.covariance)), strict=True)):
        param = space.twin.params[name]
        if param.default_range is not None:
            ends = np.clip(param.absolute(param.default_range, param.op), param.low, param.high)
            with np.errstate(divide="ignore"):  # a range that begins at 0 has no lower end in logarithms
                low, high = np.log(ends) if param.transform == "log" else ends
            outside = max(low - point[i], point[i] - high)
            wide[i] = sd > (high - low) / math.sqrt(12) and outside < _REFUTED * sd
    return wide


def _transform_value(value: float, space: FitSpace, name: str) -> float:
    return float(np.log(value)) if space.twin.params[name].transform == "log" else value


def build_estimates(
    space: FitSpace,
    point: NDArray[np.float64],
    uncertainty: Uncertainty,
    scales: Mapping[str, float],
    conditional: NDArray[np.bool_],
) -> tuple[Estimate, ...]:
    """Return value and interval of every identified parameter in SI units.

    Interval limits are converted from solver coordinates (ln or SI).

    Args:
        space: The free parameters.
        point: Their estimate in solver coordinates, ``(p,)``.
        uncertainty: Uncertainty of the estimate.
        scales: Encoder scales that are computed from the quantization of the log, by parameter name.
        conditional: Whether each parameter is conditional on the twin's physics, see `model_error`, ``(p,)``.
    """
    centre, low, high = (space.scalar_values(each) for each in (point, uncertainty.low, uncertainty.high))
    reach = _PRIOR_QUANTILE * space.column("sd")
    prior_low, prior_high = (space.scalar_values(space.column("centre") + sign * reach) for sign in (-1, 1))
    rows = []
    for i, (name, reason) in enumerate(zip(space.names, uncertainty.reasons, strict=True)):
        param = space.twin.params[name]
        rows.append(
            Estimate(
                name=name,
                unit=param.unit,
                nominal=param.nominal,
                value=centre[name],
                low=None if reason else max(low[name], param.low),
                high=None if reason else min(high[name], param.high),
                reason=reason,
                side=uncertainty.sides[i],
                conditional=bool(conditional[i]) and not reason,
                prior_low=max(prior_low[name], param.low),
                prior_high=min(prior_high[name], param.high),
                prior_source=space.free[i].prior_source,
                df=None if np.isnan(uncertainty.df[i]) else float(uncertainty.df[i]),
            )
        )
    for name, value in scales.items():
        param, error = space.twin.params[name], 2 * _QUANTUM_ERROR
        row = Estimate(
            name=name, unit=param.unit, nominal=param.nominal, value=value, low=value - error, high=value + error
        )
        rows.append(row)
    return tuple(rows)


def _hidden_estimate(free: FreeParam) -> Estimate:
    """Return the estimate of a rotor inertia that the physics step of the fit hides: its prior."""
    reach = _PRIOR_QUANTILE * free.sd
    low, high = (np.exp(edge) if free.is_logarithmic else edge for edge in (free.centre - reach, free.centre + reach))
    return Estimate(
        name=free.name,
        unit=free.param.unit,
        nominal=free.param.nominal,
        value=free.param.nominal,
        low=None,
        high=None,
        reason="its joint settles within one physics step of the fit, where it acts as a delay",
        prior_low=max(float(low), free.param.low),
        prior_high=min(float(high), free.param.high),
        prior_source=free.prior_source,
    )


def build_evidence(problem: FitProblem, uncertainty: Uncertainty) -> IntervalEvidence:
    """Return the numbers and the method behind the confidence intervals, for the report of the fit.

    The numbers are those of clusters (independent groups of frames), parameters and bootstrap draws.

    Args:
        problem: Least-squares problem of the fit.
        uncertainty: Uncertainty of its estimate.
    """
    clusters = uncertainty.clusters
    return IntervalEvidence(
        clusters="none" if clusters is None else clusters.kind,
        count=0 if clusters is None else clusters.count,
        length_s=0.0 if clusters is None else clusters.length,
        correlated_s=float("nan") if clusters is None else clusters.correlated,
        independent=float("nan") if clusters is None else clusters.independent,
        parameters=max(len(block.columns) for block in problem.blocks),
        rank=uncertainty.rank,
        method=uncertainty.method,
        draws=uncertainty.draws,
        level=uncertainty.level,
    )


def summarize_residuals(residual: NDArray[np.float64]) -> FitResiduals:
    """Compute size, autocorrelation and whiteness test of residuals.

    Args:
        residual: Residuals ``(nwindow, nframe, nchannel)``; NaN marks missing measurements.
    """
    channels = range(residual.shape[-1])
    clips = [[window[~np.isnan(window[:, j]), j] for window in residual] for j in channels]
    rho = [pooled_autocorrelation(column) for column in clips]
    frames = [sum(len(clip) for clip in column) for column in clips]
    tested = [[clip for clip in column if len(clip) > _LJUNG_BOX_LAGS] for column in clips]
    return FitResiduals(
        rho=np.array(rho),
        n_eff=np.array([effective_size(n, r) for n, r in zip(frames, rho, strict=True)]),
        frames=max(frames),
        p_value=np.array([ljung_box(c, lags=_LJUNG_BOX_LAGS).p_value if c else np.nan for c in tested]),
        noise=_NORMAL_MAD * np.nanmedian(np.abs(residual - np.nanmedian(residual, axis=(0, 1))), axis=(0, 1)),
    )


def identify(
    twin: Twin,
    episodes: Sequence[Episode],
    *,
    backend: Backend,
    holdout: HoldoutSpec | None = None,
    config: FitConfig | None = None,
    given: ParamDistribution | None = None,
    progress: Callable[[FitProgress], None] | None = None,
) -> IdentifyResult:
    """Fit the twin's parameters to the training episodes, and evaluate the fit on the held-out episodes.

    Each episode, or each window of it, is replayed open loop from its first frame. Huber's loss limits the influence of
    frames that the twin cannot explain (for example a gripper closed on an object). The start value of a delay is the
    best of several values up to 0.2 s, unless ``config`` sets it. If the log is quantized by an encoder of known
    counts, ``sensor/JOINT/scale`` is computed from the quantization and not fitted. An interrupt (Ctrl-C) during the
    optimization ends it: the result then has the best values so far and a note.

    Args:
        twin: The twin to identify.
        episodes: The episodes of the log.
        backend: The backend that simulates the replays.
        holdout: The held-out episodes; by default none.
        config: Configuration of the fit.
        given: Distribution of an earlier identification, for example of the robot without its scene. Its parameters
            keep their estimates unless ``config`` frees them by name, its errors are part of the intervals, and it is
            part of the resulting distribution, as independent of the fitted parameters.
        progress: Called after every step with the progress of the optimization.

    Raises:
        LogError: If the log does not match the twin.
        UnknownNameError: If ``config`` names a parameter that is not free.
        InputError: If the hold-out leaves no training episode, the twin cannot be replayed from any start, or the
            checkpoint belongs to another fit.
    """
    started, config = time.perf_counter(), fix_given(twin, config or FitConfig(), given)
    logs = prepare_replay(twin, episodes, config.replay)
    numbers = list(dict.fromkeys(logs.episode_numbers))
    trained, held_out = ([numbers[i] for i in rows] for rows in (holdout or HoldoutSpec(kind="none")).split(numbers))
    training, held = logs.select_episodes(trained), logs.select_episodes(held_out)
    space, scales = fit_space(training, config)
    mask = find_hidden_inertias(training, space, config)
    hidden = [free for free, chosen in zip(space.free, mask, strict=True) if chosen]
    fixed = {**space.fixed, **{free.name: free.param.nominal for free in hidden}}
    space, excluded = narrow_bounds(
        replace(space.take(np.flatnonzero(~mask)), fixed=fixed), config.bounds, config.start
    )
    for name in config.profile:
        if name not in space.names:
            raise UnknownNameError("free parameter", name, space.names, where="--profile")
    checkpoint = FitCheckpoint(config.checkpoint, _fingerprint(training, space, config))
    optimization = optimize_fit(backend, training, space, config, checkpoint, progress=progress)
    problem, solution = optimization.problem, optimization.solution
    end = solution.end
    times = FrameTimes(start_times=training.start_times, dt=1.0 / training.twin.control_hz)
    clusters = choose_fit_clusters(problem, end, times=times) if config.bootstrap else None
    report = partial(_report_stage, progress, solution.loss, optimization.worlds)
    report("uncertainty", 0, 1)
    refits = refit_bootstrap(problem, end, clusters, draws=config.bootstrap) if clusters else None
    known = [episode for episode in episodes if episode.index in trained]
    model_error = find_model_error(backend, training, space, config, problem, end, known, optimization.step_errors)
    considered = [] if optimization.step_errors is None else list(optimization.step_errors)
    considered += list(inertia_responses(backend, training, space, hidden, end.point, end.local)) if hidden else []
    considered += list(tracker_responses(training))
    if given is not None:
        considered += list(given_responses(backend, training, space, config, given, end.point, end.local))
    uncertainty = compute_uncertainty(
        problem, end, space.names, times=times, level=config.level, refits=refits,
        considered=np.array(considered) if considered else None,
        nuisances=undeclared_responses(backend, training, space, config, end.point, end.local),
        effects=model_error.responses,
    )  # fmt: skip
    profiles = list[ParameterProfile]()
    for name in config.profile:
        report("profiles", len(profiles), len(config.profile))
        profiles.append(profile_likelihood(problem, end, space, uncertainty, name, checkpoint=checkpoint))
    report("predictions", 0, 1)
    undetermined = np.array([bool(reason) for reason in uncertainty.reasons])
    if uncertainty.clusters is not None:
        end = return_undetermined(problem, end, undetermined)
        uncertainty = uncertainty.including(end.point)
    ranged = undetermined | find_wide_estimates(space, end.point, uncertainty)
    centred = refit_at_prior(problem, end, np.flatnonzero(ranged).tolist()).point
    centred = np.where(ranged, np.nan, centred)
    values = space.scalar_values(end.point)
    readings = _replay_readings(backend, training, {**fixed, **values})
    names = tuple(channel.name.removeprefix("position/") for channel in logs.channels)
    estimates = build_estimates(space, end.point, uncertainty, scales, model_error.conditional)
    nominal_error = mae(_replay_readings(backend, held, {}), held.measured) if len(held) else None
    holdout_error = _holdout_error(backend, held, {**fixed, **values}, config.level)
    warning = warn_of_worse_channels(nominal_error, holdout_error, names)
    distribution = build_distribution(space, end.point, centred, uncertainty, scales, training)
    return IdentifyResult(
        distribution=join_distributions(replace(distribution, warning=warning), given, twin),
        estimates=(*estimates, *map(_hidden_estimate, hidden)),
        joints=names,
        log_units=tuple(channel.unit for channel in logs.channels),
        training=tuple(trained),
        holdout=tuple(held_out),
        training_error=mae(readings, training.measured),
        nominal_training_error=mae(_replay_readings(backend, training, {}), training.measured),
        nominal_holdout_error=nominal_error,
        holdout_error=holdout_error,
        condition=uncertainty.condition,
        directions=uncertainty.directions,
        residuals=summarize_residuals(end.residual * problem.width),
        evidence=build_evidence(problem, uncertainty),
        converged=solution.converged,
        worlds_replayed=optimization.worlds,
        seconds=time.perf_counter() - started,
        notes=(
            *([warning] if warning else ()),
            *collect_notes(logs, scales, held_out, space.names, uncertainty),
            *(note_kept_values(estimates) if uncertainty.clusters is not None else ()),
            *note_dominant_episode(training.episode_errors(readings), training.episodes, names),
            *note_resting_channels(end.residual, names),
            *model_error.describe(names),
            *excluded,
            *optimization.notes,
        ),
        profiles=tuple(profiles),
        optima=tuple(space.scalar_values(optimum.point) for optimum in optimization.optima),
    )


def _report_stage(
    progress: Callable[[FitProgress], None] | None, loss: float, replays: int, stage: str, done: int, total: int
) -> None:
    if progress is not None:
        progress(FitProgress(stage=stage, iteration=done, max_iterations=total, loss=loss, replays=replays))


def _fingerprint(logs: ReplayLogs, space: FitSpace, config: FitConfig) -> dict[str, str]:
    """Return hashes of twin, data and settings, and the parameter names.

    They are stored in a checkpoint, so that only the same fit can resume from it.
    """
    return {
        "twin": logs.twin.hash,
        "data": sha256_bytes(logs.commands.tobytes(), logs.measured.tobytes()),
        "parameters": ", ".join(space.names),
        "settings": sha256_json(asdict(replace(config, checkpoint=None, bootstrap=0, profile=()))),
    }


def _replay_readings(backend: Backend, logs: ReplayLogs, values: Mapping[str, float]) -> NDArray[np.float64]:
    return replay(backend, logs, logs.twin.table(1, values))[0]


def _holdout_error(backend: Backend, logs: ReplayLogs, values: Mapping[str, float], level: float) -> Interval | None:
    """Return the held-out mean absolute error per channel in the log's units; None without held-out episodes.

    The confidence interval needs at least two episodes; for one episode its limits are NaN.

    Args:
        backend: The backend that simulates the replays.
        logs: The held-out windows.
        values: Parameter values by name, SI.
        level: Confidence level of the interval.
    """
    if not len(logs):
        return None
    errors = logs.episode_errors(_replay_readings(backend, logs, values))
    if len(errors) == 1:
        unknown = np.full(errors.shape[1], np.nan)
        return Interval.of(errors[0], unknown, unknown, level=level, method="one episode, no interval")
    return bootstrap_mean(errors, weights=logs.episode_lengths, level=level)
