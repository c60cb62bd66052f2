"""Predict recorded motion by non-physics baselines: hold, constant velocity, command, delayed command.

A twin is useful only if its error is below the error of the best baseline.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.simulate.open_loop import ReplayedFrames
from twinloop.simulate.replay import apply_conditions
from twinloop.simulate.replay_logs import ReplayLogs
from twinloop.simulate.replay_start import integrate_positions
from twinloop.stats import delay_series

Array = NDArray[np.float64]
LONGEST_LAG = 0.5  # s, the longest delay on the grid; teleoperated arms lag by 0.05 to 0.2 s
_LAGS = 120  # largest number of delays on the grid
_FINEST = 0.25  # frames, the smallest step of the grid: commands are interpolated linearly between frames
_POSITION = "position/"


@dataclass(frozen=True, kw_only=True)
class BaselinePrediction:
    """Prediction of all readings by one baseline.

    Attributes:
        name: Short name, for example ``hold``.
        meaning: Description for reports.
        readings: Predicted readings in the channels' units, shape ``(nwindow, nframe, nchannel)``; NaN in channels that
            the baseline does not predict.
    """

    name: str
    meaning: str
    readings: Array


def predict_baselines(logs: ReplayLogs, lags: Array, *, moving: bool = False) -> tuple[BaselinePrediction, ...]:
    """Predict the readings of every window by each baseline that is possible in the log.

    ``hold`` keeps the first frame, and ``constant velocity`` keeps the first frame's speed. ``command`` takes each
    joint's command as its position, and ``delay`` does the same with a delayed command. The last two exist only if
    positions are commanded.

    Args:
        logs: Windows to predict.
        lags: Delay of each joint's command in frames, shape ``(njoint,)``, as `find_best_lags` returns it.
        moving: Whether windows begin with the measured speed. Only then ``constant velocity`` is included.
    """
    baselines = [
        BaselinePrediction(name="hold", meaning="the first frame held to the end", readings=logs.hold_baseline)
    ]
    if moving:
        meaning = "the first frame's speed kept to the end"
        baselines.append(
            BaselinePrediction(name="constant velocity", meaning=meaning, readings=_predict_constant_speed(logs))
        )
    columns = _find_commanded_columns(logs)
    if not len(columns) or not len(lags):
        return tuple(baselines)
    commands, before = _prepend_history(logs)
    shifts = ", ".join(f"{value / logs.twin.control_hz * 1e3:.0f}" for value in lags)
    late = f"the command {shifts} ms late, joint by joint"
    for name, meaning, lag in (("command", "the command taken as position", 0 * lags), ("delay", late, lags)):
        readings = np.full(logs.measured.shape, np.nan)
        readings[..., columns] = delay_series(commands, lag)[:, before:]
        baselines.append(BaselinePrediction(name=name, meaning=meaning, readings=readings))
    return tuple(baselines)


def find_best_lags(portions: Iterable[ReplayLogs]) -> tuple[Array, int]:
    """Find the command delay of each joint with which the command predicts the joint's position best.

    The delay minimizes the squared error over all portions. Of equally good delays the shortest is taken.

    Args:
        portions: Windows of a few episodes at a time.

    Returns:
        Delays in frames, shape ``(njoint,)``, and the number of episodes used. If commands are not positions, the array
        is empty and the number is 0.
    """
    lags, sums, episodes = np.zeros(0), np.zeros((0, 0)), 0
    for logs in portions:
        columns = _find_commanded_columns(logs)
        if not len(columns):
            return np.zeros(0), 0
        episodes += len(logs.episodes)
        if not len(lags):
            longest = LONGEST_LAG * logs.twin.control_hz
            lags = np.arange(0.0, longest, max(_FINEST, longest / _LAGS))
            sums = np.zeros((len(lags), len(columns)))
        commands, before = _prepend_history(logs)
        measured = logs.measured[:, 1:, columns]
        for row, lag in enumerate(lags):
            error = delay_series(commands, np.full(commands.shape[-1], lag))[:, before + 1 :] - measured
            sums[row] += np.nansum(error**2, axis=(0, 1))
    return lags[np.argmin(sums, axis=0)], episodes


def _find_commanded_columns(logs: ReplayLogs) -> NDArray[np.intp]:
    """Return the channel numbers of the joint positions; empty if commands are not positions."""
    if logs.twin.spec.robot is None or logs.twin.robot.control != "position":
        return np.zeros(0, dtype=np.intp)
    names = [channel.name for channel in logs.channels]
    return np.array([row for row, name in enumerate(names) if name.startswith(_POSITION)], dtype=np.intp)


def _prepend_history(logs: ReplayLogs) -> tuple[Array, int]:
    """Return the commands of each window with earlier commands in front, and the number of earlier frames.

    The commands are in the log's units and have the shape ``(nwindow, nearlier + nframe, njoint)``.
    """
    rest = logs.start.initial
    earlier = np.concatenate([rest.command[:, None], rest.earlier], axis=1)
    return logs.units.from_si(np.concatenate([earlier, logs.commands], axis=1)), earlier.shape[1]


def _predict_constant_speed(logs: ReplayLogs) -> Array:
    """Return the readings of a motion at the initial speed, shape ``(nwindow, nframe, nchannel)``.

    Readings of MuJoCo sensors and positions of sites keep their first value.
    """
    nwindow, nframe = logs.commands.shape[:2]
    table = apply_conditions(logs, logs.twin.table(1))
    first = logs.start.make_initial_states(logs.twin, table, np.zeros((nwindow, logs.nlocal)))
    time = np.tile(np.arange(nframe) / logs.twin.control_hz, nwindow)
    move = time[:, None] * np.repeat(first.qvel, nframe, axis=0)
    qpos = integrate_positions(logs.twin.model, np.repeat(first.qpos, nframe, axis=0), move)
    run = ReplayedFrames(
        qpos=qpos.reshape(nwindow, nframe, -1),
        qvel=np.repeat(first.qvel[:, None], nframe, axis=1),
        records={},
        invalid_step=np.full(nwindow, -1, dtype=np.int64),
    )
    held, columns, at = logs.hold_baseline, [], 0
    for measure, kept in zip(logs.channel_kinds, logs.channel_data, strict=True):
        width = len(measure.channels)
        columns.append(held[..., at : at + width] if measure.records else measure.predict_columns(run, table, kept))
        at += width
    return np.concatenate(columns, axis=-1)
