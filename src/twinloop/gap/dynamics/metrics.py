"""Compute the metrics of the gap between replay and log, with intervals, from a summary of the log and error sums."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.gap.dynamics.clips import ErrorClip, select_worst_clips
from twinloop.gap.dynamics.delay import LagSums
from twinloop.gap.dynamics.errors import WindowErrors, add_errors, join_errors, ratio
from twinloop.gap.dynamics.intervals import (
    FEWEST,
    Resampling,
    Statistic,
    average_scaled,
    mae_statistic,
    resample_episodes,
    resample_time_blocks,
    rmse_by_horizon_statistic,
    rmse_statistic,
)
from twinloop.gap.dynamics.noise_floor import RepeatPairs, noise_floor
from twinloop.gap.dynamics.report import GapReport, PhaseError
from twinloop.simulate.channels import MeasuredChannel
from twinloop.simulate.replay_logs import ReplayLogs

Array = NDArray[np.float64]
_ANGLE = 1.0  # rad, the scale of angles whose measured value is zero by definition


@dataclass(frozen=True, kw_only=True)
class LogSummary:
    """Summary of a log that is needed before errors are summed.

    Attributes:
        channels: The compared channels.
        episodes: Numbers of the episodes, in the order of processing.
        windows: Number of windows.
        frames: Number of frames of the longest window.
        hz: Frames per second of the replay.
        mean: Mean of the measured values, shape ``(nchannel,)``.
        scale: Divisor of a channel's error when channels are averaged, in its unit, shape ``(nchannel,)``: the standard
            deviation of its measured values; for the distance of a pose error the size of the object; for an angle 1
            rad. NaN if nothing moves.
        sizes: Largest extent in m of each object whose pose is compared, by body.
    """

    channels: tuple[MeasuredChannel, ...]
    episodes: tuple[int, ...]
    windows: int
    frames: int
    hz: float
    mean: Array
    scale: Array
    sizes: dict[str, float]

    @property
    def length(self) -> float:
        """Duration from the first to the last frame of the longest window, in s."""
        return (self.frames - 1) / self.hz


def summarize_log(portions: Iterable[ReplayLogs]) -> LogSummary:
    """Summarize a log in one pass over its windows."""
    source = iter(portions)
    first = next(source)  # exists: `stream_logs` refuses a log without episodes
    centre = np.nan_to_num(np.nanmean(_flatten_frames(first), axis=0))
    episodes, windows, frames, sums = list[int](), 0, 0, np.zeros((3, len(centre)))
    for logs in itertools.chain([first], source):
        values = _flatten_frames(logs) - centre
        sums += [np.sum(~np.isnan(values), axis=0), np.nansum(values, axis=0), np.nansum(values**2, axis=0)]
        episodes += dict.fromkeys(logs.episode_numbers)
        windows, frames = windows + len(logs), max(frames, int(logs.ends.max()))
    count = np.maximum(sums[0], 1.0)
    spread = np.sqrt(np.maximum(sums[2] / count - (sums[1] / count) ** 2, 0.0))
    sizes = object_sizes(first)
    return LogSummary(
        channels=first.channels,
        episodes=tuple(episodes),
        windows=windows,
        frames=frames,
        hz=first.twin.control_hz,
        mean=centre + sums[1] / count,
        scale=np.array([_compute_scale(c, s, sizes) for c, s in zip(first.channels, spread.tolist(), strict=True)]),
        sizes=sizes,
    )


def object_sizes(logs: ReplayLogs) -> dict[str, float]:
    """Return the largest extent in m of each body whose pose is compared, by name of the body.

    The extent is measured along the body's axes, from the bounding boxes of its geoms.
    """
    names = [channel.name.split("/") for channel in logs.channels]
    bodies = dict.fromkeys(name[1] for name in names if name[0] in ("pose", "pose_error"))
    return {body: _measure_extent(logs.twin.model, body) for body in bodies}


def _flatten_frames(logs: ReplayLogs) -> Array:
    return logs.measured.reshape(-1, logs.measured.shape[-1])


def _compute_scale(channel: MeasuredChannel, spread: float, sizes: dict[str, float]) -> float:
    """Return the divisor that makes the errors of one channel comparable with those of other channels.

    It is the size of the object for the distance of a pose error, 1 rad for an angle, and otherwise ``spread``; NaN if
    this is not positive.

    Args:
        channel: The channel.
        spread: Standard deviation of its measured values, in its unit.
        sizes: Largest extent of each object in m, by body.
    """
    family, _, rest = channel.name.partition("/")
    if family == "pose_error":
        return sizes[rest.split("/")[0]] or np.nan if channel.unit == "m" else _ANGLE
    if family == "pose" and channel.unit == "rad":
        return _ANGLE
    return spread if spread > 0 else np.nan


def _measure_extent(model: mujoco.MjModel, body: str) -> float:
    corners = []
    for geom in np.flatnonzero(model.geom_bodyid == model.body(body).id):
        centre, half = model.geom_aabb[geom, :3], model.geom_aabb[geom, 3:]
        turn = np.zeros(9)
        mujoco.mju_quat2Mat(turn, model.geom_quat[geom])
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=3)))
        corners.append((centre + signs * half) @ turn.reshape(3, 3).T + model.geom_pos[geom])
    return float(np.ptp(np.concatenate(corners), axis=0).max()) if corners else 0.0


@dataclass(frozen=True, kw_only=True)
class ErrorSums:
    """Error sums over a log, from which all metrics of the gap are computed.

    The sums have one row for each episode, or for each group of episodes if there are many (see `find_row`). If there
    are fewer than four episodes, they have one row for each window.

    Attributes:
        twins: Names of the twins: ``nominal``, and ``identified`` if parameters were given.
        meanings: Descriptions of the baselines, by name.
        errors: Errors of the twins, then of the baselines, by row and horizon bin.
        episode_errors: Errors of the twins and baselines by episode, over all horizons.
        phases: Errors of the twins alone, by name of the contact phase.
        lags: Sums for the estimation of the delay, one record for each twin.
        worst: Clips with the largest errors of the last twin.
        owners: Number of each window's episode, if rows are windows; else empty.
        begins: Beginning of each window in s, if rows are windows; else empty.
        lengths: Number of frames of each episode.
    """

    twins: tuple[str, ...]
    meanings: Mapping[str, str]
    errors: WindowErrors
    episode_errors: WindowErrors
    phases: Mapping[str, WindowErrors]
    lags: tuple[LagSums, ...]
    worst: tuple[ErrorClip, ...]
    owners: NDArray[np.intp]
    begins: Array
    lengths: Array

    def __add__(self, other: ErrorSums) -> ErrorSums:
        """Add the sums of two portions of one log."""
        return replace(
            self,
            errors=add_errors(self.errors, other.errors),
            episode_errors=join_errors([self.episode_errors, other.episode_errors]),
            phases={
                name: add_errors(part, other.phases[name]) for name, part in self.phases.items() if name in other.phases
            },
            lags=tuple(mine.add_portion(theirs) for mine, theirs in zip(self.lags, other.lags, strict=True)),
            worst=tuple(select_worst_clips([*self.worst, *other.worst])),
            owners=np.concatenate([self.owners, other.owners]),
            begins=np.concatenate([self.begins, other.begins]),
            lengths=np.concatenate([self.lengths, other.lengths]),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the twins, then of the baselines (such as ``hold``: the first reading held), as in ``errors``."""
        return (*self.twins, *self.meanings)


def build_report(
    sums: ErrorSums,
    summary: LogSummary,
    pairs: RepeatPairs | None,
    *,
    rule_text: str,
    source: str,
    level: float,
    seed: int,
) -> GapReport:
    """Compute all metrics with their intervals from the error sums over a log.

    Args:
        sums: Sums of absolute and squared errors over the log.
        summary: Summary of the log.
        pairs: Pairs of episodes that repeat one motion; None if no motion was repeated.
        rule_text: Text that describes how repeats were searched.
        source: Text with the origin of the episodes.
        level: Confidence level of the intervals.
        seed: Seed of the bootstrap.
    """
    errors, best = sums.errors, len(sums.twins) - 1
    drawn = _choose_resampling(sums, summary, level, seed)
    rows = dict(enumerate(sums.names))
    baselines = list(range(len(sums.twins), len(rows)))
    return GapReport(
        channels=summary.channels,
        episodes=summary.episodes,
        windows=summary.windows,
        length=summary.length,
        hz=summary.hz,
        scale=summary.scale,
        sizes=summary.sizes,
        source=source,
        meanings=sums.meanings,
        names=sums.twins,
        rmse={name: drawn.interval(rmse_statistic(errors, row)) for row, name in rows.items()},
        mae={name: drawn.interval(mae_statistic(errors, row)) for row, name in rows.items()},
        edges=errors.edges,
        curves={name: drawn.interval(rmse_by_horizon_statistic(errors, row)) for row, name in rows.items()},
        nrmse={
            name: drawn.interval(_scaled_statistic(rmse_statistic(errors, row), summary.scale))
            for row, name in rows.items()
        },
        skills={
            **{rows[row]: drawn.interval(skill_statistic(errors, best, [row])) for row in baselines},
            "best": drawn.interval(skill_statistic(errors, best, baselines)),
        },
        overall_skill=drawn.interval(_overall_skill_statistic(errors, best, baselines, summary.scale)),
        improvement=drawn.interval(_mae_change_statistic(errors)) if best else None,
        phases=tuple(
            PhaseError(
                name=name,
                frames=part.count.sum(axis=(0, 1)),
                rmse={twin: drawn.interval(rmse_statistic(part, row)) for row, twin in enumerate(sums.twins)},
            )
            for name, part in sums.phases.items()
        ),
        delays={
            name: found
            for name, part in zip(sums.twins, sums.lags, strict=True)
            if (found := part.estimate_delays(drawn))
        },
        floor=pairs
        and noise_floor(
            pairs, sums.episode_errors, sums.twins, summary.scale, rule_text=rule_text, level=level, seed=seed
        ),
        repeats=rule_text,
        worst=sums.worst,
        episode_errors={
            name: ratio(sums.episode_errors.absolute[row].sum(axis=1), sums.episode_errors.count.sum(axis=1))
            for row, name in rows.items()
        },
        lengths=sums.lengths,
        interval_method=drawn.reason or f"bca bootstrap over {int(drawn.labels.max()) + 1} {drawn.unit}",
    )


def _choose_resampling(sums: ErrorSums, summary: LogSummary, level: float, seed: int) -> Resampling:
    """Return a resampling of episodes if there are at least four, otherwise of blocks of time.

    Windows that are whole episodes cannot be divided into blocks. With fewer than four such episodes, the limits of all
    intervals are NaN, and ``reason`` of the result is not empty.

    Args:
        sums: Error sums over the log, with one row per window if there are fewer than four episodes.
        summary: Summary of the log, for the numbers of episodes and windows.
        level: Confidence level of the intervals.
        seed: Seed of the bootstrap.
    """
    if len(summary.episodes) >= FEWEST or summary.windows == len(summary.episodes):
        return resample_episodes(len(summary.episodes), level=level, seed=seed)
    stride = float(np.median(np.diff(sums.begins)[np.diff(sums.begins) > 0]))
    return resample_time_blocks(sums.errors, sums.owners, sums.begins, stride, level=level, seed=seed)


def _scaled_statistic(statistic: Statistic, scales: Array) -> Statistic:
    return lambda weights: average_scaled(statistic(weights), scales)


def _best_rmse_statistic(errors: WindowErrors, rows: list[int]) -> Statistic:
    """Return a function that computes the smallest RMSE in each channel among several twins or baselines.

    A twin or baseline that does not predict a channel is ignored in this channel.

    Args:
        errors: Errors of the twins and baselines.
        rows: Indices of the twins or baselines to compare.
    """
    parts = [rmse_statistic(errors, row) for row in rows]
    return lambda weights: np.fmin.reduce([part(weights) for part in parts])


def skill_statistic(errors: WindowErrors, twin: int, baselines: list[int]) -> Statistic:
    """Return a function that computes the skill: 1 − (RMSE of a twin) / (RMSE of each channel's best baseline).

    The skill is NaN if the baseline is perfect.

    Args:
        errors: Errors of the twins and baselines.
        twin: Index of the twin in ``errors``.
        baselines: Indices of the baselines in ``errors``.
    """
    own, other = rmse_statistic(errors, twin), _best_rmse_statistic(errors, baselines)
    return lambda weights: 1.0 - ratio(own(weights), other(weights))


def _overall_skill_statistic(errors: WindowErrors, twin: int, baselines: list[int], scales: Array) -> Statistic:
    """Return a function that computes the skill of a twin over all channels together.

    The skill is 1 − a / b. a is the mean over channels of the twin's RMSE divided by the channel's scale. b is the same
    mean for the best baseline of each channel. The function gets the number of times that each row (such as an episode)
    occurs in k resamples, shape ``(k, nrow)``, and returns the shape ``(k,)``.

    Args:
        errors: Errors of the twins and baselines.
        twin: Index of the twin in ``errors``.
        baselines: Indices of the baselines in ``errors``.
        scales: Scale of each channel, in its unit, shape ``(nchannel,)``; a channel with NaN is ignored.
    """
    own, other = (
        _scaled_statistic(rmse_statistic(errors, twin), scales),
        _scaled_statistic(_best_rmse_statistic(errors, baselines), scales),
    )
    return lambda weights: 1.0 - ratio(own(weights), other(weights))


def _mae_change_statistic(errors: WindowErrors) -> Statistic:
    """Return a function that computes the mean absolute error of the identified twin minus that of the nominal one."""
    before, after = mae_statistic(errors, 0), mae_statistic(errors, 1)
    return lambda weights: after(weights) - before(weights)
