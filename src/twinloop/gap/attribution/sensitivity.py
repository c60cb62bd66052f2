"""Find the groups of parameters whose uncertainty changes a twin's predictions and its error most.

The measure is the Sobol' index of a group (`stats.sobol_indices`). Parameters of one group are drawn together, and
different groups are drawn independently. Correlations between groups, which a fit may have found, are ignored. Two
outputs are analysed on the same worlds: every reading of the predicted trajectories, weighted by its variance, and the
mean squared error of every episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.records import Episode
from twinloop.gap.attribution.design import convert_normal_to_values
from twinloop.gap.attribution.groups import ParameterGroup
from twinloop.gap.attribution.thinning import thin_log
from twinloop.gap.dynamics.errors import stream_logs, sum_errors
from twinloop.simulate import Backend
from twinloop.simulate.replay import change_physics_rate, replay
from twinloop.simulate.replay_logs import ReplayLogs, ReplayOptions
from twinloop.stats import SobolIndices, SobolTerms, sobol_indices, sobol_rows, sobol_terms
from twinloop.twin import Twin

Array = NDArray[np.float64]
Over = Literal["identified", "ranges"]
_TAIL = 1e-4  # probability of each tail of a normal distribution that is cut off: 3.7 standard deviations
_ROUNDING = 1e-9  # spread of predictions, in a channel's unit, that is rounding error
_BATCH = 2  # episodes replayed at once: all worlds of a design are in memory together


@dataclass(frozen=True, kw_only=True)
class SensitivityOptions:
    """Options of a sensitivity analysis.

    Attributes:
        over: Distribution of the draws: the ``identified`` one, or the twin's default ``ranges``.
        replay: Division of the log into windows, and the compared channels.
        physics_hz: Rate of the physics in Hz, at most the twin's own.
        base: Number of base points of the Sobol' design, a power of two; each one needs (number of groups + 2) worlds.
        steps: Limit of the physics steps of all worlds together. If the log needs more, an evenly spread part of it is
            replayed.
        level: Confidence level of the intervals.
        seed: Seed of the design and the resamples.
    """

    over: Over = "identified"
    replay: ReplayOptions = field(default_factory=ReplayOptions)
    physics_hz: float = 240.0
    base: int = 32
    steps: float = 1e6
    level: float = 0.95
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """Sobol' indices of groups of parameters, for the twin's predictions and for its error.

    Attributes:
        groups: Groups of the drawn parameters.
        channels: Names of the channels.
        units: Units of the channels.
        motion: Indices of the predicted readings, shape ``(ngroup, nchannel)``; NaN for a channel on which no group has
            an effect.
        error: Indices of the episodes' mean squared errors, same shape.
        spread: Root mean square difference of predictions from their mean over the draws, in the channel's unit, shape
            ``(nchannel,)``.
        over: Distribution of the draws: ``identified`` or ``ranges``.
        worlds: Number of replayed worlds.
        episodes: Numbers of the replayed episodes.
        fixed: Parameters of the groups that were not drawn, because their uncertainty is unknown.
        replayed_part: Text with the replayed part of the log; "" for the whole log.
    """

    groups: tuple[ParameterGroup, ...]
    channels: tuple[str, ...]
    units: tuple[str, ...]
    motion: SobolIndices
    error: SobolIndices
    spread: Array
    over: Over
    worlds: int
    episodes: tuple[int, ...]
    fixed: tuple[str, ...]
    replayed_part: str = ""

    def sentence(self, channel: int) -> str:
        """Return a sentence with up to three groups of parameters that change a channel's predictions most.

        The numbers are total-order Sobol' indices ± half the width of their intervals. ``channel`` is the channel's
        index.
        """
        total = self.motion.total
        if np.isnan(total.estimate[:, channel]).all():
            return f"No drawn parameter changes {self.channels[channel]}."
        order = np.argsort(-total.estimate[:, channel])
        listed_rows = [row for row in order if total.low[row, channel] > 0.01][:3]
        half = 50 * (total.high - total.low)[:, channel]
        listed = ", ".join(
            f"{self.groups[row].name} {100 * total.estimate[row, channel]:.0f} % ± {half[row]:.0f}"
            for row in listed_rows
        )
        distribution = "the identified distribution" if self.over == "identified" else "the default ranges"
        return (
            f"Over {distribution}, predictions of {self.channels[channel].removeprefix('position/')} spread by "
            f"{self.spread[channel]:.3g} {self.units[channel]}: {listed or 'no important group'} (total Sobol' index)."
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary (schema 1)."""
        indices = {"motion": self.motion, "error": self.error}
        return {
            "schema": 1,
            "groups": [{"name": group.name, "parameters": list(group.params)} for group in self.groups],
            "channels": list(self.channels),
            "units": list(self.units),
            **{name: {"first": of.first.to_json(), "total": of.total.to_json()} for name, of in indices.items()},
            "spread": self.spread.tolist(),
            "over": self.over,
            "worlds": self.worlds,
            "episodes": list(self.episodes),
            "not_drawn": list(self.fixed),
            "part": self.replayed_part,
        }


def sensitivity(
    backend: Backend,
    twin: Twin,
    episodes: Sequence[Episode],
    params: ParamDistribution,
    groups: Sequence[ParameterGroup],
    *,
    options: SensitivityOptions | None = None,
) -> Sensitivity:
    """Compute Sobol' indices of groups of parameters by replaying a log with drawn parameters.

    Args:
        backend: The backend that runs the worlds.
        twin: The twin.
        episodes: The episodes whose commands are replayed and with which errors are measured.
        params: The identified distribution; parameters that are not drawn stay at its estimates.
        groups: Groups of parameters; groups without any parameter that can be drawn are left out.
        options: Limits and settings of the computation.

    Raises:
        UnknownNameError: If ``over`` of the options has another value.
        InputError: If no parameter can be drawn, or a world diverges.
    """
    settings = options or SensitivityOptions()
    coarse = change_physics_rate(twin, settings.physics_hz)
    drawn = select_drawable_groups(twin, params, groups, settings.over)
    if not drawn:
        raise InputError(
            f"None of these parameters can be drawn over '{settings.over}'. Give the result of an identify run "
            "that determined some, or default ranges in the twin."
        )
    points = sobol_rows(len(drawn), settings.base, seed=settings.seed, sizes=[len(group.params) for group in drawn])
    flat = points.reshape(-1, points.shape[-1])
    values = {**params.estimate, **_transform_points(twin, params, drawn, flat, settings.over)}
    table = coarse.table(len(flat), {name: value for name, value in values.items() if name in coarse.params})
    part = thin_log(coarse, episodes, settings.replay, worlds=len(flat), steps=settings.steps)
    sums, squares, count, channels = _ReadingTerms(), [], [], ()
    for logs in stream_logs(coarse, part.episodes, part.options, batch=_BATCH):
        readings = replay(backend, logs, table)
        errors = sum_errors(logs, readings, np.array([0.0, np.inf]))
        errors.require_finite(twin, [f"drawn (row {row})" for row in range(len(flat))])
        sums.add(logs, readings, len(drawn) + 2)
        squares.append(errors.squared.sum(axis=2) / errors.count.sum(axis=1))
        count.append(logs.episodes)
        channels = logs.channels
    mean_squares = np.concatenate(squares, axis=1)
    outputs = mean_squares.reshape(len(drawn) + 2, settings.base, *mean_squares.shape[1:])
    spread = sums.spread()
    outputs = np.where(spread > _ROUNDING, outputs, 0.0)
    interval_options = {"clusters": True, "level": settings.level, "seed": settings.seed}
    taken = {name for group in drawn for name in group.params}
    return Sensitivity(
        groups=drawn,
        channels=tuple(channel.name for channel in channels),
        units=tuple(channel.unit for channel in channels),
        motion=sobol_indices(sums.terms(), **interval_options),
        error=sobol_indices(sobol_terms(outputs), **interval_options),
        spread=spread,
        over=settings.over,
        worlds=len(flat),
        episodes=tuple(number for numbers in count for number in numbers),
        fixed=tuple(name for group in groups for name in group.params if name not in taken),
        replayed_part=part.description,
    )


def select_drawable_groups(
    twin: Twin, params: ParamDistribution, groups: Sequence[ParameterGroup], over: Over
) -> tuple[ParameterGroup, ...]:
    """Return the groups reduced to the parameters that can be drawn; groups without such parameters are left out.

    If ``over`` is ``identified``, these are the determined parameters. If it is ``ranges``, these are the parameters
    with a default range.

    Raises:
        UnknownNameError: If ``over`` has another value.
    """
    if over not in get_args(Over):
        raise UnknownNameError("kind of range", over, get_args(Over))
    determined = {name for name, known in zip(params.names, params.determined, strict=True) if known}
    ranged = {name for name, param in twin.params.items() if param.default_range is not None}
    drawable = determined if over == "identified" else ranged
    reduced = (replace(group, params=tuple(name for name in group.params if name in drawable)) for group in groups)
    return tuple(group for group in reduced if group.params)


def _transform_points(
    twin: Twin, params: ParamDistribution, groups: Sequence[ParameterGroup], points: Array, over: Over
) -> Mapping[str, Array]:
    """Transform points of the unit cube to parameter values by name, shape ``(n,)``.

    Args:
        twin: The twin with the default ranges.
        params: The identified distribution.
        groups: Groups of drawn parameters; their parameters are the axes of the cube.
        points: Points from 0 to 1, shape ``(n, naxis)``.
        over: Distribution of the values: ``identified`` or ``ranges``.
    """
    values = {}
    ends = np.cumsum([len(group.params) for group in groups])[:-1]
    for group, axes in zip(groups, np.split(points, ends, axis=1), strict=True):
        if over == "ranges":
            values |= _map_to_ranges(twin, group, axes)
        else:  # jointly, by the group's block of the covariance
            rows = [params.names.index(name) for name in group.params]
            values |= convert_normal_to_values(params, rows, ndtri(np.clip(axes, _TAIL, 1 - _TAIL)))
    return values


def _map_to_ranges(twin: Twin, group: ParameterGroup, axes: Array) -> dict[str, Array]:
    values = {}
    for name, axis in zip(group.params, axes.T, strict=True):
        param = twin.params[name]
        low, high = param.absolute(param.default_range or (0.0, 0.0), param.op)
        values[name] = low + axis * (high - low)
    return values


class _ReadingTerms:
    """Sums, for each episode, from which the Sobol' indices of predicted readings are estimated.

    An episode has one `SobolTerms`, summed over its windows and frames: ``first`` and ``total`` ``(ngroup, base,
    nchannel)`` and ``variance`` ``(base, nchannel)``, for ``base`` worlds per block of the design. It also has the
    number of measured frames ``(nchannel,)``.
    """

    def __init__(self) -> None:
        self._parts: list[SobolTerms] = []
        self._count: list[Array] = []

    def add(self, logs: ReplayLogs, readings: Array, blocks: int) -> None:
        """Add the predicted readings of some episodes to the sums of the Sobol' estimators.

        The first frame of a window is left out, because it is the initial state of the simulation.

        Args:
            logs: Windows of these episodes.
            readings: Predicted readings, shape ``(nworld, nwindow, nframe, nchannel)``. Worlds are ordered by block of
                the Sobol' design.
            blocks: Number of blocks of equal size: the number of groups + 2.
        """
        seen = ~np.isnan(logs.measured[:, 1:])
        for row in range(len(logs.episodes)):
            rows = np.flatnonzero(logs.episode_index == row)
            values = np.where(seen[rows], readings[:, rows, 1:], 0.0)
            terms = sobol_terms(values.reshape(blocks, -1, *values.shape[1:]))
            self._parts.append(terms.sum_outputs(-2).sum_outputs(-2))
            self._count.append(seen[rows].sum(axis=(0, 1)).astype(np.float64))

    def terms(self) -> SobolTerms:
        """Return the terms from which the Sobol' indices are computed, for all episodes.

        They are 0 for a channel on which no group of parameters has an effect. The outputs of the `SobolTerms` have the
        shape ``(nepisode, nchannel)``.
        """
        moves = (self.spread() > _ROUNDING).astype(np.float64)
        return SobolTerms(
            first=np.stack([part.first for part in self._parts], axis=2) * moves,
            total=np.stack([part.total for part in self._parts], axis=2) * moves,
            variance=np.stack([part.variance for part in self._parts], axis=1) * moves,
        )

    def spread(self) -> Array:
        """Return the standard deviation of the predicted readings over worlds, shape ``(nchannel,)``.

        The values are in the channels' units.
        """
        squares = sum(part.variance.mean(axis=0) for part in self._parts)
        count = np.sum(self._count, axis=0)
        return np.sqrt(np.divide(squares, count, out=np.full(np.shape(squares), np.nan), where=count > 0))
