"""Find the states on which residuals depend, by small regression models that are tested on held-out episodes.

A residual is predicted by ridge regression on a few functions of a state (such as speed) and on their low-pass filtered
values, because a force acts on a position for as long as the control loop takes to correct it. A linear model of
commands, motion and demand (the force that the control law demands) is fitted first: it represents small parameter
errors. The functions of each other state form a family. The share of a family is the part of the remaining residual
that it predicts in addition to the linear model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from twinloop.gap.dynamics.motion import LoggedKinematics, compute_directions, find_reversals
from twinloop.simulate.replay_logs import ReplayLogs
from twinloop.stats import ridge_predictions

Array = NDArray[np.float64]

MEANINGS: Mapping[str, str] = {
    "linear": "commands, positions and speeds, linearly: small parameter errors",
    "speed": "the square of speed",
    "slow": "direction of slow motion: friction at rest above friction in motion",
    "position": "a curve over position",
    "load": "friction that grows with the load",
    "load_side": "the side on which the gear carries its load",
    "turn": "the time since the last reversal of motion or load",
    "limit": "demand above the usual output of the drive",
    "time": "time within the episode, in proportion to commands and motion",
    "order": "the number of the episode, in proportion to commands and motion",
}
_MEMORY = (0.05, 0.2)  # s: time constants of a servo's loop and of the swing of its load
_FOLDS = 5
_FEWEST = 4  # episodes: with fewer, cross-validation has too little data
_HATS = 8  # pieces of a curve of position
_TURN = 0.1  # s, time constant with which the effect of a reversal decays, about that of a servo's loop
_SLOW = 0.1  # part of the fastest speed (95th percentile) below which Stribeck friction shows; our choice
_LIMITS = (0.5, 0.8, 0.95)  # quantiles of the demand at which the knees are


@dataclass(frozen=True, kw_only=True)
class StateFit:
    """Prediction of a channel's residual by functions of one state, such as speed.

    The functions are used in addition to a linear model of commands and motion, which represents parameter errors.

    Attributes:
        family: Name of the state, a key of `MEANINGS`.
        before: Mean squared residual of each episode before these functions are used, shape ``(nepisode,)``.
        errors: Mean squared residual of each episode with these functions, same shape.
    """

    family: str
    before: Array
    errors: Array


@dataclass(frozen=True, kw_only=True)
class StateFits:
    """Fits of functions of every state (such as speed or load) to one channel's residual.

    Residuals have the shape ``(nwindow, nframe)`` and are predicted by fits to other episodes.

    Attributes:
        families: Fit of the functions (family) of each state, first a linear model of commands and motion; empty if no
            state was tried.
        residual_after_linear: Residual that remains after this linear model; the residual itself if no state was tried.
        residual_after_states: Residual that remains after all states together; the residual itself if no state was
            tried.
    """

    families: tuple[StateFit, ...]
    residual_after_linear: Array
    residual_after_states: Array


def fit_states(
    logs: ReplayLogs, kinematics: LoggedKinematics, residual: Array, channel: int, tangents: Array | None = None
) -> StateFits:
    """Fit functions of states (such as speed, load or time) to one channel's residual.

    No state is tried if the channel does not belong to exactly one joint or body, or if there are fewer than four
    episodes.

    Args:
        logs: Windows of the log.
        kinematics: Motion in the windows.
        residual: Residual of all channels, shape ``(nwindow, nframe, nchannel)``.
        channel: Index of the channel.
        tangents: Derivative of the readings with respect to each parameter, shape ``(nparam, nwindow, nframe,
            nchannel)``. It is added to the linear model of commands and motion, which only approximates the effect of
            parameter errors.
    """
    things = np.flatnonzero(kinematics.channel[:, channel])
    target = np.where(np.isfinite(residual[..., channel]), residual[..., channel], np.nan)
    if len(logs.episodes) < _FEWEST or len(things) != 1:
        return StateFits(families=(), residual_after_linear=target, residual_after_states=target)
    families = {
        name: _scale_functions(rows, logs.twin.control_hz)
        for name, rows in _compute_families(logs, kinematics, int(things[0])).items()
    }
    fold = logs.episode_index % min(_FOLDS, len(logs.episodes))
    linear = families.pop("linear")
    if tangents is not None:
        linear = np.concatenate(
            [linear, _scale_to_unit_spread(np.moveaxis(np.nan_to_num(tangents[..., channel]), 0, -1))], axis=-1
        )
    base = target - ridge_predictions(linear, target, fold)
    fits = [StateFit(family="linear", before=_average_by_episode(logs, target), errors=_average_by_episode(logs, base))]
    for name, rows in families.items():
        left = target - ridge_predictions(np.concatenate([linear, rows], axis=-1), target, fold)
        fits.append(StateFit(family=name, before=fits[0].errors, errors=_average_by_episode(logs, left)))
    every = np.concatenate([linear, *families.values()], axis=-1)
    return StateFits(
        families=tuple(fits),
        residual_after_linear=base,
        residual_after_states=target - ridge_predictions(every, target, fold),
    )


def _average_by_episode(logs: ReplayLogs, left: Array) -> Array:
    sums = np.bincount(logs.episode_index, weights=np.nansum(left**2, axis=1))
    return sums / np.maximum(np.bincount(logs.episode_index, weights=np.sum(~np.isnan(left), axis=1)), 1)


def _compute_families(logs: ReplayLogs, kinematics: LoggedKinematics, thing: int) -> dict[str, Array]:
    """Return regressors (functions of each state, such as speed or load) by name of the state, not normalized.

    `MEANINGS` describes the functions of each state, for example the signed square of speed for ``speed``. A body
    without a joint has only ``linear``, ``speed``, ``slow``, ``time`` and ``order``. Each array has the shape
    ``(nwindow, nframe, k)`` for k functions.

    Args:
        logs: Windows of the log.
        kinematics: Motion in the windows.
        thing: Index of the channel's joint or body in ``kinematics``.
    """
    hz, nframe = logs.twin.control_hz, kinematics.speed.shape[1]
    speed = np.nan_to_num(kinematics.speed[..., thing])
    moving = np.tanh(speed / max(float(kinematics.threshold[thing]), 1e-12))
    fastest = _typical_magnitude(speed)
    at = np.arange(nframe) / hz + (logs.start_times - _find_episode_starts(logs))[:, None]
    found = {
        "speed": _stack(speed * np.abs(speed)),
        "slow": _stack(moving * np.exp(-((speed / (_SLOW * fastest)) ** 2))),
    }
    common = [speed, moving]
    if thing < kinematics.load.shape[-1]:
        position = np.nan_to_num(kinematics.position[..., thing] - np.nanmean(kinematics.position[..., thing]))
        demand, load = (np.nan_to_num(values[..., thing]) for values in (kinematics.demand, kinematics.load))
        side = np.tanh(load / (0.1 * _typical_magnitude(load)))
        found |= {
            "position": _hat_functions(position),
            "load": _stack(moving * np.abs(load), moving * np.abs(demand)),
            "load_side": _stack(side),
            "turn": _stack(
                _reversal_response(speed, float(kinematics.threshold[thing]), hz),
                _reversal_response(load, 0.05 * _typical_magnitude(load), hz),
            ),
            "limit": _stack(*_split_at_knees(demand)),
        }
        common += [position, demand, logs.commands[..., thing] - logs.commands[:, :1, thing]]
    linear = _stack(*common)
    number = np.asarray(logs.episode_numbers, dtype=np.float64)[:, None, None]
    number = (number - number.mean()) / max(float(number.std()), 1e-12)
    return {"linear": linear, **found, "time": linear * at[..., None], "order": linear * number}


def _find_episode_starts(logs: ReplayLogs) -> Array:
    """Return the time in s at which each window's episode begins (its first window), shape ``(nwindow,)``."""
    first = np.full(len(logs.episodes), np.inf)
    np.minimum.at(first, logs.episode_index, logs.start_times)
    return first[logs.episode_index]


def _stack(*columns: Array) -> Array:
    return np.stack(columns, axis=-1)


def _typical_magnitude(values: Array) -> float:
    """Return the 95th percentile of the absolute values; never zero."""
    return max(float(np.quantile(np.abs(values), 0.95)), 1e-12)


def _hat_functions(position: Array) -> Array:
    """Return piecewise linear basis functions of a position, shape ``(nwindow, nframe, k)``.

    The k + 1 knots are the different values among nine evenly spaced quantiles of the position, so that all pieces have
    about equally many frames. k is therefore at most 8. A constant position gives one function that is 0.

    Args:
        position: Position, shape ``(nwindow, nframe)``.
    """
    knots = np.unique(np.quantile(position, np.linspace(0.0, 1.0, _HATS + 1)))
    if len(knots) < 2:
        return np.zeros((*position.shape, 1))
    return np.stack([np.interp(position, knots, row) for row in np.eye(len(knots))[1:]], axis=-1)


def _split_at_knees(demand: Array) -> list[Array]:
    """Return the parts of a demanded force beyond several thresholds (both signs), as regressors for saturation.

    The thresholds are quantiles of the absolute demand, because the force at which a drive saturates is unknown.
    """
    knees = np.quantile(np.abs(demand), _LIMITS).tolist()
    return [part for knee in knees for part in (np.maximum(demand - knee, 0.0), np.minimum(demand + knee, 0.0))]


def _reversal_response(values: Array, threshold: float, hz: float) -> Array:
    """Return a signal that jumps by 1 or −1, the new direction, at each reversal and decays exponentially.

    The time constant is 0.1 s.

    Args:
        values: Speeds or loads, shape ``(nwindow, nframe)``.
        threshold: Absolute value above which ``values`` has a direction.
        hz: Frames per second.
    """
    direction = compute_directions(values[..., None], threshold)
    pulse = np.where(find_reversals(direction), direction, 0)[..., 0].astype(np.float64)
    return np.asarray(lfilter([1.0], [1.0, -np.exp(-1.0 / (_TURN * hz))], pulse, axis=1))


def _scale_functions(rows: Array, hz: float) -> Array:
    """Return regressors, their low-pass filtered values and a constant, scaled to a root mean square of 1.

    ``rows`` are the regressors (values of functions of a state), shape ``(nwindow, nframe, k)`` for k functions.
    """
    poles = [float(np.exp(-1.0 / (seconds * hz))) for seconds in _MEMORY]
    remembered = [np.asarray(lfilter([1.0 - pole], [1.0, -pole], rows, axis=1)) for pole in poles]
    every = _scale_to_unit_spread(np.concatenate([rows, *remembered], axis=-1))
    return np.concatenate([every, np.ones((*every.shape[:-1], 1))], axis=-1)


def _scale_to_unit_spread(rows: Array) -> Array:
    """Return the columns that are not zero, scaled to a root mean square of 1."""
    spread = np.sqrt(np.mean(rows**2, axis=(0, 1)))
    return rows[..., spread > 0] / spread[spread > 0]
