"""Measure the share of a twin's error that no parameter explains, and find the events and states in which it occurs.

The result suggests the physical effect that is missing in the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.distribution import ResidualNoise
from twinloop.core.errors import InputError
from twinloop.gap.dynamics.events import event_masks
from twinloop.gap.dynamics.motion import EventThresholds, compute_kinematics, estimate_reading_noise
from twinloop.gap.dynamics.unexplained_events import EventClassError, compare_event_errors, compute_new_errors
from twinloop.gap.dynamics.unexplained_result import (
    ALPHA,
    ErrorMoment,
    StateShare,
    UnexplainedResult,
    format_event,
    format_percent,
)
from twinloop.gap.dynamics.unexplained_rules import Hint, find_hints
from twinloop.gap.dynamics.unexplained_states import MEANINGS as STATES
from twinloop.gap.dynamics.unexplained_states import fit_states
from twinloop.simulate.replay_logs import ReplayLogs
from twinloop.stats import Interval, bootstrap, holm, paired_test

Array = NDArray[np.float64]

_MOMENTS = 5  # moments reported per channel, worst first
_LEAST_DISTANCE = 0.5  # s between two of these moments
_TINY = np.finfo(float).tiny


def measure_unexplained(
    logs: ReplayLogs,
    readings: Array,
    *,
    values: Mapping[str, float] | None = None,
    nominal: Array | None = None,
    noise: ResidualNoise | None = None,
    floor: Array | None = None,
    tangents: Array | None = None,
    level: float = 0.95,
    seed: int = 0,
    thresholds: EventThresholds | None = None,
) -> UnexplainedResult:
    """Measure the error that no parameter explains, its events, and the states (such as speed) on which it depends.

    Args:
        logs: Windows of held-out episodes; whole episodes, or windows as short as the required time resolution.
        readings: Readings that the twin predicts with its best parameters, shape ``(nwindow, nframe, nchannel)``.
        values: The best parameters in SI units; events are detected with their encoder, gain and limit values.
        nominal: Prediction of the nominal twin, same shape, the reference of all shares; by default ``readings``.
        noise: Noise that identification estimated; by default the part of the residual that no state predicts.
        floor: Half the mean squared difference between real repeats of the same motion, shape ``(nchannel,)``; takes
            precedence over ``noise``.
        tangents: Derivative of the readings with respect to each parameter, shape ``(nparam, nwindow, nframe,
            nchannel)``; each may have any scale. The part of the residual that the derivatives predict on other
            episodes is no evidence of missing physics, because a better fit could remove it.
        level: Confidence level of the intervals, which are over episodes.
        seed: Seed of the resamples.
        thresholds: Thresholds that define the events.

    Raises:
        InputError: If the readings have another shape, or a replay diverged.
    """
    residual = _compute_residual(logs, readings, "identified")
    given = thresholds or EventThresholds()
    states, predicted, unpredicted, base = _analyse_states(logs, residual, values, given, tangents, level, seed)
    source, power = _estimate_noise(logs, noise, floor, unpredicted)
    reference = residual if nominal is None else _compute_residual(logs, nominal, "nominal")
    names = tuple(channel.name for channel in logs.channels)
    shares = _compute_shares(logs, residual, reference, power, level, seed)
    masks = event_masks(logs, values, thresholds=given)
    errors = compute_new_errors(base, logs.twin.control_hz)
    where = compare_event_errors(errors, masks, logs.episode_index, names, level=level, alpha=ALPHA, seed=seed)
    where, states = _adjust_p_values(where, states)
    found = UnexplainedResult(
        channels=names,
        units=tuple(channel.unit for channel in logs.channels),
        reference="identified" if nominal is None else "nominal",
        rmse=shares.at(0),
        explained=shares.at(1),
        unexplained=shares.at(2),
        noise=shares.at(3),
        noise_source=source,
        predicted=predicted,
        events=tuple(where),
        states=tuple(states),
        moments=tuple(_find_worst_moments(logs, errors, masks)),
        hints=(),
        episodes=len(logs.episodes),
        needed_episodes_text=_format_needed_episodes(len(logs.episodes), len(where) + len(states)),
    )
    return _add_hints(found, logs)


def _compute_residual(logs: ReplayLogs, readings: Array, what: str) -> Array:
    if readings.shape != logs.measured.shape:
        raise InputError(
            f"The {what} readings have shape {readings.shape}, the log's windows {logs.measured.shape} (windows, "
            "frames, channels). Replay the same windows."
        )
    residual = readings - logs.measured
    if np.isinf(residual).any():
        diverged = logs.episode_numbers[int(np.argwhere(np.isinf(residual))[0, 0])]
        raise InputError(
            f"The {what} twin diverges in episode {diverged}, so its error cannot be divided. "
            "Use more substeps in the twin's YAML, or less extreme parameters."
        )
    return residual


def _estimate_noise(
    logs: ReplayLogs, noise: ResidualNoise | None, floor: Array | None, unpredicted: Array
) -> tuple[str, Array]:
    """Return a text with the source of the noise, and the mean square of the noise, shape ``(nchannel,)``.

    Args:
        logs: Windows of the log.
        noise: Noise that identification estimated, if any.
        floor: Half the mean squared difference between real repeats, shape ``(nchannel,)``, if any.
        unpredicted: Mean square of the part of the residual that regression on the states (such as speed) does not
            predict, shape ``(nchannel,)``; NaN if unknown.
    """
    names = [channel.name for channel in logs.channels]
    if floor is not None:
        return "repeats of the same motion on the real system", np.asarray(floor, dtype=np.float64)
    if noise is not None and set(names) <= set(noise.channels):
        return "the noise of the identification", noise.sd[[noise.channels.index(name) for name in names]] ** 2
    sensor = estimate_reading_noise(logs.measured) ** 2
    if np.isnan(unpredicted).all():
        return "differences from frame to frame (noise of the sensors alone)", sensor
    left = np.where(np.isnan(unpredicted), sensor, unpredicted)
    return "the part that no state predicts on held-out episodes", np.maximum(sensor, left)


def _sum_by_episode(logs: ReplayLogs, squares: Array) -> tuple[Array, Array]:
    """Return sums and numbers of the measured squared residuals by episode, shape ``(nepisode, nchannel)`` each.

    ``squares`` are squared residuals of shape ``(nwindow, nframe, nchannel)``, NaN if not measured.
    """
    shape = (len(logs.episodes), squares.shape[-1])
    total, count = np.zeros(shape), np.zeros(shape)
    np.add.at(total, logs.episode_index, np.nansum(squares, axis=1))
    np.add.at(count, logs.episode_index, np.sum(~np.isnan(squares), axis=1))
    return total, count


def _compute_shares(
    logs: ReplayLogs, residual: Array, reference: Array, power: Array, level: float, seed: int
) -> Interval:
    """Return RMSE and three shares of the squared error with intervals over episodes, shape ``(4, nchannel)``.

    The shares are, in this order: the part that identification explains, the part beyond the noise that it does not
    explain, and the noise.

    Args:
        logs: Windows of the log.
        residual: Residual of the identified twin, shape ``(nwindow, nframe, nchannel)``.
        reference: Residual of the twin whose mean squared error is divided into shares, same shape.
        power: Mean square of the noise, shape ``(nchannel,)``.
        level: Confidence level.
        seed: Seed of the resamples.
    """
    squares = [_sum_by_episode(logs, errors**2) for errors in (residual, reference)]

    def metrics(rows: NDArray[np.intp]) -> Array:
        best, whole = (sums[rows].sum(axis=1) / np.maximum(counts[rows].sum(axis=1), 1) for sums, counts in squares)
        left, quiet = (part / np.maximum(whole, _TINY) for part in (best, np.minimum(power, best)))
        return np.stack([np.sqrt(best), 1.0 - left, left - quiet, quiet], axis=1)

    return _bootstrap_interval(metrics, len(logs.episodes), level, seed)


def _bootstrap_interval(metric: Callable[[NDArray[np.intp]], Array], count: int, level: float, seed: int) -> Interval:
    if count > 1:
        return bootstrap(metric, count, level=level, seed=seed)
    estimate = metric(np.zeros((1, 1), dtype=np.intp))[0]
    nothing = np.full(np.shape(estimate), math.nan)
    return Interval(estimate=estimate, low=nothing, high=nothing, level=level, method="one episode, no interval")


def _analyse_states(
    logs: ReplayLogs,
    residual: Array,
    values: Mapping[str, float] | None,
    given: EventThresholds,
    tangents: Array | None,
    level: float,
    seed: int,
) -> tuple[list[StateShare], Interval, Array, Array]:
    """Predict the residual of held-out episodes by regression on states such as speed and load.

    Args:
        logs: Windows of the log.
        residual: Residual of the identified twin, shape ``(nwindow, nframe, nchannel)``.
        values: Identified parameters in SI units.
        given: Thresholds of motion.
        tangents: Derivative of the readings with respect to each parameter, see `measure_unexplained`.
        level: Confidence level.
        seed: Seed of the resamples.

    Returns:
        - Share of the residual that each state predicts.
        - Share that all states together predict, by channel.
        - Mean square of the residual that remains after all states, shape ``(nchannel,)``; NaN if no state was tried.
        - Residual that remains after the linear model, in the shape of ``residual``. This model of commands, motion and
            ``tangents`` represents parameter errors.
    """
    seen, rows = compute_kinematics(logs, values, given), []
    total, count = _sum_by_episode(logs, residual**2)
    left_over, base = np.full(total.shape, math.nan), residual.copy()
    for i, channel in enumerate(logs.channels):
        fits = fit_states(logs, seen, residual, i, tangents)
        if not fits.families:
            continue
        base[..., i] = fits.residual_after_linear
        left_over[:, i] = _sum_by_episode(logs, fits.residual_after_states[..., None] ** 2)[0][:, 0]
        for fit in fits.families:
            gain = fit.before - fit.errors
            # The square root keeps episodes with large errors from dominating the mean and its spread.
            steady = gain / np.sqrt(np.maximum(fit.before, _TINY))
            test = paired_test(steady, level=level, seed=seed, stream=f"states/{fit.family}/{channel.name}")
            interval = bootstrap(_ratio_statistic(gain, fit.before), len(gain), level=level, draws=500, seed=seed)
            rows.append(StateShare(state=fit.family, channel=channel.name, share=interval, p_value=test.p_value))

    left = _ratio_statistic(left_over, total)
    every = _bootstrap_interval(lambda at: 1.0 - left(at), len(logs.episodes), level, seed)
    return rows, every, left_over.sum(axis=0) / np.maximum(count.sum(axis=0), 1), base


def _ratio_statistic(part: Array, whole: Array) -> Callable[[NDArray[np.intp]], Array]:
    """Return a function that computes the ratio of two sums in resampled episodes.

    The function gets the indices of the episodes in each resample, shape ``(k, nepisode)``.

    Args:
        part: Sum of the numerator in each episode, shape ``(nepisode, …)``.
        whole: Sum of the denominator in each episode, same shape.
    """
    return lambda at: part[at].sum(axis=1) / np.maximum(whole[at].sum(axis=1), _TINY)


def _adjust_p_values(
    where: Sequence[EventClassError], states: Sequence[StateShare]
) -> tuple[list[EventClassError], list[StateShare]]:
    """Return the events and states with p-values adjusted by Holm's method over all tests of the analysis."""
    tested = [*(place for place in where if not place.reason), *states]
    p = iter(holm([row.p_value for row in tested]).tolist())
    rows = [place if place.reason else replace(place, p_value=next(p)) for place in where]
    return rows, [replace(state, p_value=next(p)) for state in states]


def _format_needed_episodes(episodes: int, tests: int) -> str:
    """Return a message if the episodes are too few for any test to be significant, else "".

    The p-value of a test with n episodes is at least 2⁻ⁿ, and Holm's method multiplies the smallest one by ``tests``,
    the number of tests.
    """
    least = math.ceil(math.log2(max(tests, 1) / ALPHA))
    if episodes >= least:
        return ""
    return (
        f"{episodes} episodes are too few: {tests} tests together need at least {least} "
        "(give more episodes, or compare fewer channels)."
    )


def _find_worst_moments(logs: ReplayLogs, errors: Array, masks: Mapping[str, NDArray[np.bool_]]) -> list[ErrorMoment]:
    """Return the five moments of each channel at which the error grows most, at least 0.5 s from each other.

    Args:
        logs: Windows of the log.
        errors: Squared change of the residual within a short span, see `compute_new_errors`, shape ``(nwindow, nframe,
            nchannel)``.
        masks: Frames of each event, same shape.
    """
    hz, found = logs.twin.control_hz, []
    for i, channel in enumerate(logs.channels):
        taken: list[tuple[int, float]] = []
        order = np.argsort(-np.nan_to_num(errors[..., i], nan=-1.0), axis=None)
        for flat in order[: 50 * _MOMENTS]:
            window, frame = divmod(int(flat), errors.shape[1])
            time = float(logs.start_times[window] + frame / hz)
            if any(logs.episode_numbers[window] == w and abs(time - t) < _LEAST_DISTANCE for w, t in taken):
                continue
            taken.append((logs.episode_numbers[window], time))
            events = tuple(name for name, mask in masks.items() if mask[window, frame, i])
            size = math.sqrt(max(0.0, float(np.nan_to_num(errors[window, frame, i]))))
            found.append(
                ErrorMoment(
                    channel=channel.name, episode=logs.episode_numbers[window], time=time, error=size, events=events
                )
            )
            if len(taken) == _MOMENTS:
                break
    return found


def _add_hints(found: UnexplainedResult, logs: ReplayLogs) -> UnexplainedResult:
    rows: list[Hint] = []
    for channel in found.channels:
        states = [
            (
                s.state,
                float(s.share.estimate),
                f"{STATES[s.state]} predicts {format_percent(s.share, 0)} of the residual after parameters",
            )
            for s in found.significant_states(channel)
        ]
        events = [
            (p.event, float(p.share.estimate), format_event(p))
            for p in found.significant_events(channel)
            if p.share is not None
        ]
        states_tried = any(s.channel == channel for s in found.states)
        rows += find_hints(channel, states, events, logs.twin.params, states_tried=states_tried)
    return replace(found, hints=tuple(rows))
