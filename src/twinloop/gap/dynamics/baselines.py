"""Non-physics baselines that a twin must beat: hold, constant velocity, command, delayed command."""

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
    """Prediction of every reading, ``(nwindow, nframe, nchannel)``; NaN in channels that it does not predict."""

    name: str
    meaning: str
    readings: Array


def predict_baselines(logs: ReplayLogs, lags: Array, *, moving: bool = False) -> tuple[BaselinePrediction, ...]:
    """Predict by hold, by constant velocity, by the command taken as position, and by the command with its best delay.

    The last two exist only if positions are commanded.

    Args:
        logs: the windows to predict.
        lags: delay of each joint in frames, as `find_best_lags` returns it.
        moving: windows begin with the measured speed, which constant velocity keeps.
    """
    found = [BaselinePrediction(name="hold", meaning="the first frame held to the end", readings=logs.hold_baseline)]
    if moving:
        meaning = "the first frame's speed kept to the end"
        found.append(
            BaselinePrediction(name="constant velocity", meaning=meaning, readings=_predict_constant_speed(logs))
        )
    columns = _find_commanded_columns(logs)
    if not len(columns) or not len(lags):
        return tuple(found)
    commands, before = _prepend_history(logs)
    shifts = ", ".join(f"{value / logs.twin.control_hz * 1e3:.0f}" for value in lags)
    late = f"the command {shifts} ms late, joint by joint"
    for name, meaning, lag in (("command", "the command taken as position", 0 * lags), ("delay", late, lags)):
        readings = np.full(logs.measured.shape, np.nan)
        readings[..., columns] = delay_series(commands, lag)[:, before:]
        found.append(BaselinePrediction(name=name, meaning=meaning, readings=readings))
    return tuple(found)


def find_best_lags(portions: Iterable[ReplayLogs]) -> tuple[Array, int]:
    """Return each joint's command delay in frames that predicts its position best, and the number of episodes used.

    The delay minimizes the squared error over all portions; of equally good delays the shortest is taken. Empty if
    commands are not positions.
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
    """Return the columns of the joint positions if commands are positions."""
    if logs.twin.spec.robot is None or logs.twin.robot.control != "position":
        return np.zeros(0, dtype=np.intp)
    names = [channel.name for channel in logs.channels]
    return np.array([row for row, name in enumerate(names) if name.startswith(_POSITION)], dtype=np.intp)


def _prepend_history(logs: ReplayLogs) -> tuple[Array, int]:
    """Return commands in the log's units, ``(nwindow, frames, n)``, and how many of them precede each window."""
    rest = logs.start.rest
    earlier = np.concatenate([rest.command[:, None], rest.earlier], axis=1)
    return logs.units.from_si(np.concatenate([earlier, logs.commands], axis=1)), earlier.shape[1]


def _predict_constant_speed(logs: ReplayLogs) -> Array:
    """Return the readings at constant initial speed; readings of force sensors are held."""
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
    for measure, kept in zip(logs.measures, logs.kept, strict=True):
        width = len(measure.channels)
        columns.append(held[..., at : at + width] if measure.records else measure.predict_columns(run, table, kept))
        at += width
    return np.concatenate(columns, axis=-1)
