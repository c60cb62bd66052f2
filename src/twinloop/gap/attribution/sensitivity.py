"""Find the groups of parameters whose uncertainty changes a twin's predictions and its error most.

Sobol' indices of groups (`stats.sobol_indices`): parameters of one group are drawn together, those of different groups
independently; correlations between groups, which a fit may have found, are ignored. Two outputs are analysed on the
same worlds: every reading of the predicted trajectories, weighted by its variance, and the mean squared error of every
episode.
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
        over: distribution of the draws: the ``identified`` one, or the twin's default ``ranges``.
        replay: how the log is divided into windows, and which channels are compared.
        physics_hz: rate of the physics, at most the twin's own.
        base: rows of the design, a power of two; it has (groups + 2) worlds per row.
        steps: limit of the physics steps of all worlds together; of a longer log an evenly spread part is replayed.
        level: confidence level of the intervals.
        seed: seed of the design and the resamples.
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
    """Sobol' indices of groups of parameters, ``(ngroup, nchannel)``.

    ``motion`` are those of predicted readings, ``error`` those of the episodes' mean squared errors; NaN for a channel
    on which no group has an effect. ``spread`` ``(nchannel,)`` is the root mean square difference of predictions from
    their mean over the draws, in the channel's unit. ``fixed`` has the parameters of the groups that were not drawn
    because their uncertainty is unknown. ``part`` is the replayed part of the log, "" for all of it.
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
    part: str = ""

    def sentence(self, channel: int) -> str:
        """Return the groups that change a channel's predictions most, as text: total order, with half widths."""
        total = self.motion.total
        if np.isnan(total.estimate[:, channel]).all():
            return f"No drawn parameter changes {self.channels[channel]}."
        order = np.argsort(-total.estimate[:, channel])
        told = [row for row in order if total.low[row, channel] > 0.01][:3]
        half = 50 * (total.high - total.low)[:, channel]
        listed = ", ".join(
            f"{self.groups[row].name} {100 * total.estimate[row, channel]:.0f} % ± {half[row]:.0f}" for row in told
        )
        what = "the identified distribution" if self.over == "identified" else "the default ranges"
        return (
            f"Over {what}, predictions of {self.channels[channel].removeprefix('position/')} spread by "
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
            "part": self.part,
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
    """Compute Sobol' indices of groups of parameters.

    Args:
        backend: the backend that runs the worlds.
        twin: the twin.
        episodes: the episodes whose commands are replayed and with which errors are measured.
        params: the identified distribution; parameters that are not drawn stay at its estimates.
        groups: the factors; groups without any parameter that can be drawn are left out.
        options: see `SensitivityOptions`.

    Raises:
        UnknownNameError: ``over`` has another value.
        InputError: no parameter can be drawn, or a world diverges.
    """
    asked, coarse = (
        options or SensitivityOptions(),
        change_physics_rate(twin, (options or SensitivityOptions()).physics_hz),
    )
    drawn = select_drawable_groups(twin, params, groups, asked.over)
    if not drawn:
        raise InputError(
            f"None of these parameters can be drawn over '{asked.over}'. Give the result of an identify run "
            "that determined some, or default ranges in the twin."
        )
    points = sobol_rows(len(drawn), asked.base, seed=asked.seed, sizes=[len(group.params) for group in drawn])
    flat = points.reshape(-1, points.shape[-1])
    values = {**params.estimate, **_transform_points(twin, params, drawn, flat, asked.over)}
    table = coarse.table(len(flat), {name: value for name, value in values.items() if name in coarse.params})
    part = thin_log(coarse, episodes, asked.replay, worlds=len(flat), steps=asked.steps)
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
    outputs = mean_squares.reshape(len(drawn) + 2, asked.base, *mean_squares.shape[1:])
    spread = sums.spread()
    outputs = np.where(spread > _ROUNDING, outputs, 0.0)
    shown = {"clusters": True, "level": asked.level, "seed": asked.seed}
    taken = {name for group in drawn for name in group.params}
    return Sensitivity(
        groups=drawn,
        channels=tuple(channel.name for channel in channels),
        units=tuple(channel.unit for channel in channels),
        motion=sobol_indices(sums.terms(), **shown),
        error=sobol_indices(sobol_terms(outputs), **shown),
        spread=spread,
        over=asked.over,
        worlds=len(flat),
        episodes=tuple(number for numbers in count for number in numbers),
        fixed=tuple(name for group in groups for name in group.params if name not in taken),
        part=part.why,
    )


def select_drawable_groups(
    twin: Twin, params: ParamDistribution, groups: Sequence[ParameterGroup], over: Over
) -> tuple[ParameterGroup, ...]:
    """Return the groups with the parameters that can be drawn: determined ones, or those with a default range."""
    if over not in get_args(Over):
        raise UnknownNameError("kind of range", over, get_args(Over))
    told = {name for name, known in zip(params.names, params.determined, strict=True) if known}
    ranged = {name for name, param in twin.params.items() if param.default_range is not None}
    may = told if over == "identified" else ranged
    kept = (replace(group, params=tuple(name for name in group.params if name in may)) for group in groups)
    return tuple(group for group in kept if group.params)


def _transform_points(
    twin: Twin, params: ParamDistribution, groups: Sequence[ParameterGroup], points: Array, over: Over
) -> Mapping[str, Array]:
    """Return values ``(n,)`` by name at points ``(n, naxis)`` of the unit cube."""
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
    """Sobol' terms of the predicted readings, summed over the frames of each episode."""

    def __init__(self) -> None:
        self._parts: list[SobolTerms] = []
        self._count: list[Array] = []

    def add(self, logs: ReplayLogs, readings: Array, blocks: int) -> None:
        """Add readings ``(nworld, nwindow, nframe, nchannel)`` of one portion; the first frame is given and ignored."""
        seen = ~np.isnan(logs.measured[:, 1:])
        for row in range(len(logs.episodes)):
            rows = np.flatnonzero(logs.clusters == row)
            values = np.where(seen[rows], readings[:, rows, 1:], 0.0)
            terms = sobol_terms(values.reshape(blocks, -1, *values.shape[1:]))
            self._parts.append(terms.sum_outputs(-2).sum_outputs(-2))
            self._count.append(seen[rows].sum(axis=(0, 1)).astype(np.float64))

    def terms(self) -> SobolTerms:
        """Return terms with the episodes as an axis, ``(…, nepisode, nchannel)``; 0 without any effect."""
        moves = (self.spread() > _ROUNDING).astype(np.float64)
        return SobolTerms(
            first=np.stack([part.first for part in self._parts], axis=2) * moves,
            total=np.stack([part.total for part in self._parts], axis=2) * moves,
            variance=np.stack([part.variance for part in self._parts], axis=1) * moves,
        )

    def spread(self) -> Array:
        """Return the spread of predictions, see `Sensitivity`."""
        squares = sum(part.variance.mean(axis=0) for part in self._parts)
        count = np.sum(self._count, axis=0)
        return np.sqrt(np.divide(squares, count, out=np.full(np.shape(squares), np.nan), where=count > 0))
