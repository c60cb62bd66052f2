"""Which states residuals depend on: small models of each, judged on episodes that they have not seen.

A residual is predicted by ridge regression on a few functions of a state, each as it is and as low-passes remember it,
because what a force does to a position lasts as long as the loop that holds it. The linear model of commands, motion
and demand comes first: it stands for parameters that are a little off. A family counts with what it explains beyond
that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from twinloop.gap.dynamics.motion import LoggedKinematics, directions, reversals
from twinloop.simulate.replay_logs import ReplayLogs
from twinloop.stats import ridge_predictions

Array = NDArray[np.float64]

MEANINGS: Mapping[str, str] = {
    "linear": "commands, positions and speeds, linearly: parameters that are a little off",
    "speed": "the square of speed",
    "slow": "direction of slow motion: friction at rest above friction in motion",
    "position": "position, by a curve of it",
    "load": "friction that grows with the load",
    "load_side": "the side on which the gear carries its load",
    "turn": "the time since motion or load last turned round",
    "limit": "demand beyond what drives usually give",
    "time": "time within the episode, by what is commanded and moves",
    "order": "the number of the episode, by what is commanded and moves",
}
_MEMORY = (0.05, 0.2)  # s: a servo's loop and the swing of what it carries
_FOLDS = 5
_FEWEST = 4  # episodes: fewer cannot be told apart by fits that saw the others
_HATS = 8  # pieces of a curve of position
_TURN = 0.1  # s after which half of a turn's effect is forgotten, about; a servo's loop
_SLOW = 0.1  # part of the fastest speed (95th percentile) below which Stribeck friction shows; our choice
_LIMITS = (0.5, 0.8, 0.95)  # parts of the frames in which a demand is below a knee


@dataclass(frozen=True, kw_only=True)
class StateFit:
    """What one family of functions predicts of a channel's residual, beyond the linear model.

    ``errors`` ``(nepisode,)`` are mean squared residuals that it leaves, ``before`` those without it.
    """

    family: str
    before: Array
    errors: Array


@dataclass(frozen=True, kw_only=True)
class StateFits:
    """Every family for one channel; the residual that parameters leave (``base``), and that all leave (``left``).

    Residuals are ``(nwindow, nframe)``, predicted by fits to other episodes. Without families both are the residual.
    """

    families: tuple[StateFit, ...]
    base: Array
    left: Array


def state_fits(
    logs: ReplayLogs, seen: LoggedKinematics, residual: Array, channel: int, tangents: Array | None = None
) -> StateFits:
    """What states say of one channel's residual.

    No family is tried where the channel belongs to nothing that moves, or there are fewer than four episodes.

    Args:
        logs: the windows.
        seen: what moves in them.
        residual: ``(nwindow, nframe, nchannel)``.
        channel: which.
        tangents: how the readings change with each parameter, ``(nparam, nwindow, nframe, nchannel)``: what belongs to
            parameters exactly, beside the linear model that stands for it approximately.
    """
    things = np.flatnonzero(seen.channel[:, channel])
    target = np.where(np.isfinite(residual[..., channel]), residual[..., channel], np.nan)
    if len(logs.episodes) < _FEWEST or len(things) != 1:
        return StateFits(families=(), base=target, left=target)
    families = {
        name: _scaled(rows, logs.twin.control_hz) for name, rows in _families(logs, seen, int(things[0])).items()
    }
    fold = logs.clusters % min(_FOLDS, len(logs.episodes))
    linear = families.pop("linear")
    if tangents is not None:
        linear = np.concatenate([linear, _unit(np.moveaxis(np.nan_to_num(tangents[..., channel]), 0, -1))], axis=-1)
    base = target - ridge_predictions(linear, target, fold)
    fits = [StateFit(family="linear", before=_by_episode(logs, target), errors=_by_episode(logs, base))]
    for name, rows in families.items():
        left = target - ridge_predictions(np.concatenate([linear, rows], axis=-1), target, fold)
        fits.append(StateFit(family=name, before=fits[0].errors, errors=_by_episode(logs, left)))
    every = np.concatenate([linear, *families.values()], axis=-1)
    return StateFits(families=tuple(fits), base=base, left=target - ridge_predictions(every, target, fold))


def _by_episode(logs: ReplayLogs, left: Array) -> Array:
    sums = np.bincount(logs.clusters, weights=np.nansum(left**2, axis=1))
    return sums / np.maximum(np.bincount(logs.clusters, weights=np.sum(~np.isnan(left), axis=1)), 1)


def _families(logs: ReplayLogs, seen: LoggedKinematics, thing: int) -> dict[str, Array]:
    """Functions of states by family, ``(nwindow, nframe, k)`` each, of any spread."""
    hz, nframe = logs.twin.control_hz, seen.speed.shape[1]
    speed = np.nan_to_num(seen.speed[..., thing])
    moving = np.tanh(speed / max(float(seen.threshold[thing]), 1e-12))
    fastest = _usual(speed)
    at = np.arange(nframe) / hz + (logs.begins - _first(logs))[:, None]
    found = {
        "speed": _stack(speed * np.abs(speed)),
        "slow": _stack(moving * np.exp(-((speed / (_SLOW * fastest)) ** 2))),
    }
    common = [speed, moving]
    if thing < seen.load.shape[-1]:
        position = np.nan_to_num(seen.position[..., thing] - np.nanmean(seen.position[..., thing]))
        demand, load = (np.nan_to_num(values[..., thing]) for values in (seen.demand, seen.load))
        side = np.tanh(load / (0.1 * _usual(load)))
        found |= {
            "position": _hats(position),
            "load": _stack(moving * np.abs(load), moving * np.abs(demand)),
            "load_side": _stack(side),
            "turn": _stack(
                _since_turn(speed, float(seen.threshold[thing]), hz), _since_turn(load, 0.05 * _usual(load), hz)
            ),
            "limit": _stack(*_beyond(demand)),
        }
        common += [position, demand, logs.commands[..., thing] - logs.commands[:, :1, thing]]
    linear = _stack(*common)
    number = np.asarray(logs.numbers, dtype=np.float64)[:, None, None]
    number = (number - number.mean()) / max(float(number.std()), 1e-12)
    return {"linear": linear, **found, "time": linear * at[..., None], "order": linear * number}


def _first(logs: ReplayLogs) -> Array:
    """The first moment of each window's episode, ``(nwindow,)``."""
    first = np.full(len(logs.episodes), np.inf)
    np.minimum.at(first, logs.clusters, logs.begins)
    return first[logs.clusters]


def _stack(*columns: Array) -> Array:
    return np.stack(columns, axis=-1)


def _usual(values: Array) -> float:
    """The 95th percentile of a size; never zero."""
    return max(float(np.quantile(np.abs(values), 0.95)), 1e-12)


def _hats(position: Array) -> Array:
    """Piecewise linear functions of a position with equally many frames to each piece, ``(…, k)``."""
    knots = np.unique(np.quantile(position, np.linspace(0.0, 1.0, _HATS + 1)))
    if len(knots) < 2:
        return np.zeros((*position.shape, 1))
    return np.stack([np.interp(position, knots, row) for row in np.eye(len(knots))[1:]], axis=-1)


def _beyond(demand: Array) -> list[Array]:
    """What of a demand lies beyond knees, either way: a drive gives out at some torque that nobody knows."""
    knees = np.quantile(np.abs(demand), _LIMITS).tolist()
    return [part for knee in knees for part in (np.maximum(demand - knee, 0.0), np.minimum(demand + knee, 0.0))]


def _since_turn(values: Array, threshold: float, hz: float) -> Array:
    """The new direction after each turn, fading with the time since."""
    direction = directions(values[..., None], threshold)
    pulse = np.where(reversals(direction), direction, 0)[..., 0].astype(np.float64)
    return np.asarray(lfilter([1.0], [1.0, -np.exp(-1.0 / (_TURN * hz))], pulse, axis=1))


def _scaled(rows: Array, hz: float) -> Array:
    """The functions and what low-passes remember of them, of unit spread, and a constant."""
    poles = [float(np.exp(-1.0 / (seconds * hz))) for seconds in _MEMORY]
    remembered = [np.asarray(lfilter([1.0 - pole], [1.0, -pole], rows, axis=1)) for pole in poles]
    every = _unit(np.concatenate([rows, *remembered], axis=-1))
    return np.concatenate([every, np.ones((*every.shape[:-1], 1))], axis=-1)


def _unit(rows: Array) -> Array:
    """The columns that are not zero, of unit spread."""
    spread = np.sqrt(np.mean(rows**2, axis=(0, 1)))
    return rows[..., spread > 0] / spread[spread > 0]
