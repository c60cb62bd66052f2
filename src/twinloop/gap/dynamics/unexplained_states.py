"""Find the states on which residuals depend, by small models of each that are tested on held-out episodes.

A residual is predicted by ridge regression on a few functions of a state and on their low-pass filtered values, because
a force acts on a position for as long as the control loop takes to correct it. The linear model of commands, motion and
demand comes first: it represents small parameter errors. A family counts with the share that it explains beyond it.
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
    """Prediction of a channel's residual by one family of functions, beyond the linear model.

    ``errors`` ``(nepisode,)`` are the mean squared residuals with the family, ``before`` those without it.
    """

    family: str
    before: Array
    errors: Array


@dataclass(frozen=True, kw_only=True)
class StateFits:
    """Fits of all families to one channel; residuals after parameters (``base``) and after all families (``left``).

    Residuals are ``(nwindow, nframe)``, predicted by fits to other episodes. Without families both are the residual.
    """

    families: tuple[StateFit, ...]
    base: Array
    left: Array


def fit_states(
    logs: ReplayLogs, seen: LoggedKinematics, residual: Array, channel: int, tangents: Array | None = None
) -> StateFits:
    """Fit functions of states to one channel's residual.

    No family is tried if the channel belongs to nothing that moves, or if there are fewer than four episodes.

    Args:
        logs: the windows.
        seen: motion in the windows.
        residual: ``(nwindow, nframe, nchannel)``.
        channel: index of the channel.
        tangents: change of the readings with each parameter, ``(nparam, nwindow, nframe, nchannel)``: the exact effect
            of parameters, in addition to the linear model, which approximates it.
    """
    things = np.flatnonzero(seen.channel[:, channel])
    target = np.where(np.isfinite(residual[..., channel]), residual[..., channel], np.nan)
    if len(logs.episodes) < _FEWEST or len(things) != 1:
        return StateFits(families=(), base=target, left=target)
    families = {
        name: _scale_functions(rows, logs.twin.control_hz)
        for name, rows in _compute_families(logs, seen, int(things[0])).items()
    }
    fold = logs.clusters % min(_FOLDS, len(logs.episodes))
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
    return StateFits(families=tuple(fits), base=base, left=target - ridge_predictions(every, target, fold))


def _average_by_episode(logs: ReplayLogs, left: Array) -> Array:
    sums = np.bincount(logs.clusters, weights=np.nansum(left**2, axis=1))
    return sums / np.maximum(np.bincount(logs.clusters, weights=np.sum(~np.isnan(left), axis=1)), 1)


def _compute_families(logs: ReplayLogs, seen: LoggedKinematics, thing: int) -> dict[str, Array]:
    """Return functions of states by family, ``(nwindow, nframe, k)`` each, not normalized."""
    hz, nframe = logs.twin.control_hz, seen.speed.shape[1]
    speed = np.nan_to_num(seen.speed[..., thing])
    moving = np.tanh(speed / max(float(seen.threshold[thing]), 1e-12))
    fastest = _typical_magnitude(speed)
    at = np.arange(nframe) / hz + (logs.begins - _find_episode_starts(logs))[:, None]
    found = {
        "speed": _stack(speed * np.abs(speed)),
        "slow": _stack(moving * np.exp(-((speed / (_SLOW * fastest)) ** 2))),
    }
    common = [speed, moving]
    if thing < seen.load.shape[-1]:
        position = np.nan_to_num(seen.position[..., thing] - np.nanmean(seen.position[..., thing]))
        demand, load = (np.nan_to_num(values[..., thing]) for values in (seen.demand, seen.load))
        side = np.tanh(load / (0.1 * _typical_magnitude(load)))
        found |= {
            "position": _hat_functions(position),
            "load": _stack(moving * np.abs(load), moving * np.abs(demand)),
            "load_side": _stack(side),
            "turn": _stack(
                _reversal_response(speed, float(seen.threshold[thing]), hz),
                _reversal_response(load, 0.05 * _typical_magnitude(load), hz),
            ),
            "limit": _stack(*_split_at_knees(demand)),
        }
        common += [position, demand, logs.commands[..., thing] - logs.commands[:, :1, thing]]
    linear = _stack(*common)
    number = np.asarray(logs.numbers, dtype=np.float64)[:, None, None]
    number = (number - number.mean()) / max(float(number.std()), 1e-12)
    return {"linear": linear, **found, "time": linear * at[..., None], "order": linear * number}


def _find_episode_starts(logs: ReplayLogs) -> Array:
    """Return the first moment of each window's episode, ``(nwindow,)``."""
    first = np.full(len(logs.episodes), np.inf)
    np.minimum.at(first, logs.clusters, logs.begins)
    return first[logs.clusters]


def _stack(*columns: Array) -> Array:
    return np.stack(columns, axis=-1)


def _typical_magnitude(values: Array) -> float:
    """Return the 95th percentile of the absolute values; never zero."""
    return max(float(np.quantile(np.abs(values), 0.95)), 1e-12)


def _hat_functions(position: Array) -> Array:
    """Return piecewise linear functions of a position with equally many frames in each piece, ``(…, k)``."""
    knots = np.unique(np.quantile(position, np.linspace(0.0, 1.0, _HATS + 1)))
    if len(knots) < 2:
        return np.zeros((*position.shape, 1))
    return np.stack([np.interp(position, knots, row) for row in np.eye(len(knots))[1:]], axis=-1)


def _split_at_knees(demand: Array) -> list[Array]:
    """Return the parts of a demand above and below knees; the torque at which a drive saturates is unknown."""
    knees = np.quantile(np.abs(demand), _LIMITS).tolist()
    return [part for knee in knees for part in (np.maximum(demand - knee, 0.0), np.minimum(demand + knee, 0.0))]


def _reversal_response(values: Array, threshold: float, hz: float) -> Array:
    """Return the new direction after each reversal, decaying with time."""
    direction = compute_directions(values[..., None], threshold)
    pulse = np.where(find_reversals(direction), direction, 0)[..., 0].astype(np.float64)
    return np.asarray(lfilter([1.0], [1.0, -np.exp(-1.0 / (_TURN * hz))], pulse, axis=1))


def _scale_functions(rows: Array, hz: float) -> Array:
    """Return the functions and their low-pass filtered values, of unit spread, and a constant."""
    poles = [float(np.exp(-1.0 / (seconds * hz))) for seconds in _MEMORY]
    remembered = [np.asarray(lfilter([1.0 - pole], [1.0, -pole], rows, axis=1)) for pole in poles]
    every = _scale_to_unit_spread(np.concatenate([rows, *remembered], axis=-1))
    return np.concatenate([every, np.ones((*every.shape[:-1], 1))], axis=-1)


def _scale_to_unit_spread(rows: Array) -> Array:
    """Return the columns that are not zero, scaled to unit spread."""
    spread = np.sqrt(np.mean(rows**2, axis=(0, 1)))
    return rows[..., spread > 0] / spread[spread > 0]
