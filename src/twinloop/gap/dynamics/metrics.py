"""Compute the metrics of a gap with their intervals, from a summary of the log and the sums over it."""

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
    """Summary of a log that the metrics need in advance.

    Attributes:
        channels: the compared channels.
        episodes: numbers of the episodes, in the order of processing.
        windows: number of windows.
        frames: number of frames of the longest window.
        hz: frames per second of the replay.
        mean: mean of the measured values, ``(nchannel,)``.
        scale: divisor of a channel's error when channels are averaged, in its unit: the standard deviation of its
            measured values; for the distance of a pose error the size of the object; for an angle 1 rad. NaN if nothing
            moves.
        sizes: m, largest extent of each object whose pose is compared, by body.
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
        """Seconds from the first to the last frame of the longest window."""
        return (self.frames - 1) / self.hz


def summarize_log(portions: Iterable[ReplayLogs]) -> LogSummary:
    """Summarize a log; every window is read once."""
    source = iter(portions)
    first = next(source)  # exists: `stream_logs` refuses a log without episodes
    centre = np.nan_to_num(np.nanmean(_flatten_frames(first), axis=0))
    episodes, windows, frames, sums = list[int](), 0, 0, np.zeros((3, len(centre)))
    for logs in itertools.chain([first], source):
        values = _flatten_frames(logs) - centre
        sums += [np.sum(~np.isnan(values), axis=0), np.nansum(values, axis=0), np.nansum(values**2, axis=0)]
        episodes += dict.fromkeys(logs.numbers)
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
    """Return the largest extent in m of each body whose pose is compared, from its geoms' boxes in the body's axes."""
    names = [channel.name.split("/") for channel in logs.channels]
    bodies = dict.fromkeys(name[1] for name in names if name[0] in ("pose", "pose_error"))
    return {body: _measure_extent(logs.twin.model, body) for body in bodies}


def _flatten_frames(logs: ReplayLogs) -> Array:
    return logs.measured.reshape(-1, logs.measured.shape[-1])


def _compute_scale(channel: MeasuredChannel, spread: float, sizes: dict[str, float]) -> float:
    """Return the scale of one channel, see `LogSummary.scale`."""
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
    """Result of one pass over a log: the rows of ``errors`` are ``twins``, then the baselines of ``meanings``.

    Rows of sums are episodes, several if there are many (see `find_row`), or windows if there are fewer than four
    episodes; ``owners`` and ``begins`` are then each window's episode and its beginning in s. ``each`` has the errors
    of every episode over all horizons, ``lengths`` the number of frames. ``phases`` has the twins alone, ``lags`` one
    record for each of them.
    """

    twins: tuple[str, ...]
    meanings: Mapping[str, str]
    errors: WindowErrors
    each: WindowErrors
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
            each=join_errors([self.each, other.each]),
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
        """Names of the rows of ``errors``."""
        return (*self.twins, *self.meanings)


def build_report(
    sums: ErrorSums, seen: LogSummary, pairs: RepeatPairs | None, *, how: str, source: str, level: float, seed: int
) -> GapReport:
    """Return the metrics with their intervals.

    Args:
        sums: sums of the log.
        seen: summary of the log.
        pairs: pairs of repeats; None without repeats.
        how: how repeats were looked for.
        source: source of the episodes.
        level: confidence level of the intervals.
        seed: seed of the bootstrap.
    """
    errors, best = sums.errors, len(sums.twins) - 1
    drawn = _choose_resampling(sums, seen, level, seed)
    rows = dict(enumerate(sums.names))
    rivals = list(range(len(sums.twins), len(rows)))
    return GapReport(
        channels=seen.channels,
        episodes=seen.episodes,
        windows=seen.windows,
        length=seen.length,
        hz=seen.hz,
        scale=seen.scale,
        sizes=seen.sizes,
        source=source,
        meanings=sums.meanings,
        names=sums.twins,
        rmse={name: drawn.interval(rmse_statistic(errors, row)) for row, name in rows.items()},
        mae={name: drawn.interval(mae_statistic(errors, row)) for row, name in rows.items()},
        edges=errors.edges,
        curves={name: drawn.interval(rmse_by_horizon_statistic(errors, row)) for row, name in rows.items()},
        nrmse={
            name: drawn.interval(_scaled_statistic(rmse_statistic(errors, row), seen.scale))
            for row, name in rows.items()
        },
        skills={
            **{rows[row]: drawn.interval(skill_statistic(errors, best, [row])) for row in rivals},
            "best": drawn.interval(skill_statistic(errors, best, rivals)),
        },
        overall_skill=drawn.interval(_overall_skill_statistic(errors, best, rivals, seen.scale)),
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
        floor=pairs and noise_floor(pairs, sums.each, sums.twins, seen.scale, how=how, level=level, seed=seed),
        repeats=how,
        worst=sums.worst,
        episode_errors={
            name: ratio(sums.each.absolute[row].sum(axis=1), sums.each.count.sum(axis=1)) for row, name in rows.items()
        },
        lengths=sums.lengths,
        drawn=drawn.reason or f"bca bootstrap over {int(drawn.labels.max()) + 1} {drawn.unit}",
    )


def _choose_resampling(sums: ErrorSums, seen: LogSummary, level: float, seed: int) -> Resampling:
    """Resample episodes if there are enough of them, otherwise blocks of time."""
    if len(seen.episodes) >= FEWEST or seen.windows == len(seen.episodes):
        return resample_episodes(len(seen.episodes), level=level, seed=seed)
    stride = float(np.median(np.diff(sums.begins)[np.diff(sums.begins) > 0]))
    return resample_time_blocks(sums.errors, sums.owners, sums.begins, stride, level=level, seed=seed)


def _scaled_statistic(statistic: Statistic, scales: Array) -> Statistic:
    return lambda weights: average_scaled(statistic(weights), scales)


def _best_rmse_statistic(errors: WindowErrors, rows: list[int]) -> Statistic:
    """Return the RMSE of the best of some rows in each channel; rows that do not predict a channel are ignored."""
    parts = [rmse_statistic(errors, row) for row in rows]
    return lambda weights: np.fmin.reduce([part(weights) for part in parts])


def skill_statistic(errors: WindowErrors, twin: int, rivals: list[int]) -> Statistic:
    """Return 1 − RMSE / RMSE of the best baseline, by channel; NaN if the baseline is perfect."""
    own, other = rmse_statistic(errors, twin), _best_rmse_statistic(errors, rivals)
    return lambda weights: 1.0 - ratio(own(weights), other(weights))


def _overall_skill_statistic(errors: WindowErrors, twin: int, rivals: list[int], scales: Array) -> Statistic:
    """Return 1 − a / b of means over channels of RMSE / scale: a of the twin, b of each channel's best baseline."""
    own, other = (
        _scaled_statistic(rmse_statistic(errors, twin), scales),
        _scaled_statistic(_best_rmse_statistic(errors, rivals), scales),
    )
    return lambda weights: 1.0 - ratio(own(weights), other(weights))


def _mae_change_statistic(errors: WindowErrors) -> Statistic:
    """Return the MAE of the identified twin minus that of the nominal one."""
    before, after = mae_statistic(errors, 0), mae_statistic(errors, 1)
    return lambda weights: after(weights) - before(weights)
