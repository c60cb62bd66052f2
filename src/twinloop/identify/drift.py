"""Test whether a system changed during the recording (wear, heat), and which parameter changed.

The null hypothesis is one fit to all episodes. From its estimate every single episode and every group of episodes is
fitted, with a weak prior at the common estimate. If nothing changes, the episodes' estimates are exchangeable.
Permutation tests check them for differences between groups and for a trend along their order, so neither correlation
within episodes nor curvature of the model counts as evidence. A change of one parameter is not attributed to another,
as far as single episodes can distinguish the two. Holm's method adjusts over parameters and both tests. (The classical
form tests parameter stability by scores, one Newton step: Zeileis & Hornik, Statistica Neerlandica 61, 2007. With dry
friction one step is not accurate enough.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, LogError
from twinloop.core.plain import JsonRecord
from twinloop.core.records import Episode
from twinloop.identify.assembly import FitSpace, fit_problem, fit_space, limit_physics_rate
from twinloop.identify.config import FitConfig
from twinloop.identify.fit import identify
from twinloop.identify.solver import solve
from twinloop.simulate import Backend
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.stats import GroupTest, group_test, holm
from twinloop.twin import Twin

Array = NDArray[np.float64]

# Chance of any false alarm among all parameters and both tests together.
ALPHA = 0.05
_PERIODS = {"hour": 3600.0, "day": 86400.0}
_UNIX = 1e8  # s: larger times (1973 and later) are Unix times, smaller ones have another origin
_STEPS = 6  # maximum steps of a fit that starts at the common estimate (our choice)


@dataclass(frozen=True, kw_only=True)
class DriftParam:
    """One parameter over the groups, SI: the fit of each group, the standard error within it, and both tests.

    ``p_change`` and ``p_trend`` are adjusted by Holm's method over all parameters and both tests.
    """

    name: str
    unit: str
    common: float
    estimates: tuple[float, ...]
    errors: tuple[float, ...]
    q: float
    p_change: float
    trend: float
    p_trend: float

    @property
    def is_drifting(self) -> bool:
        """Whether the parameter changed, at level `ALPHA`."""
        return min(self.p_change, self.p_trend) <= ALPHA


@dataclass(frozen=True, kw_only=True)
class Drift(JsonRecord):
    """Drift tests of all determined parameters over groups of episodes."""

    groups: tuple[str, ...]
    sizes: tuple[int, ...]
    params: tuple[DriftParam, ...]
    alpha = ALPHA
    json_schema = 1
    json_also = ("alpha", "drifting")

    @property
    def drifting(self) -> tuple[str, ...]:
        """Names of the parameters that changed, smallest p-value first."""
        found = [param for param in self.params if param.is_drifting]
        return tuple(p.name for p in sorted(found, key=lambda p: (min(p.p_change, p.p_trend), -p.q)))

    def text(self) -> str:
        """Return lines for a terminal: the parameters that changed, or that none did."""
        if not self.drifting:
            least = min((min(p.p_change, p.p_trend) for p in self.params), default=1.0)
            return (
                f"Drift: none of {len(self.params)} parameters changes over {len(self.groups)} groups of episodes "
                f"(smallest adjusted p {least:.2g})."
            )
        lines = [f"DRIFT over {len(self.groups)} groups of episodes ({', '.join(self.groups)}):"]
        table = {param.name: param for param in self.params}
        for name in self.drifting:
            row = table[name]
            steps = " → ".join(f"{value:.4g}" for value in row.estimates)
            lines.append(
                f"  {name}: {steps} {row.unit}; change p {row.p_change:.2g}, trend {row.trend:+.2f} p {row.p_trend:.2g}"
            )
        return "\n".join(lines)


def group_episodes(episodes: Sequence[Episode], by: str) -> list[str]:
    """Return the group of each episode: ``by`` is a number of consecutive groups, ``hour``, ``day``, or a condition.

    Raises:
        InputError: ``by`` gives fewer than two groups, or more groups than half the episodes.
        LogError: the log has no clock times, or not the requested condition.
    """
    if by.isdigit():
        count = int(by)
        if not 2 <= count <= len(episodes) // 2:
            raise InputError(
                f"--drift {by}: {len(episodes)} episodes make from 2 to {len(episodes) // 2} groups of two or more."
            )
        parts = np.array_split(np.arange(len(episodes)), count)
        names = [f"{episodes[part[0]].index}–{episodes[part[-1]].index}" for part in parts]
        return [name for name, part in zip(names, parts, strict=True) for _ in part]
    if by in _PERIODS:
        begins = np.array([episode.time[0] for episode in episodes])
        if begins.min() < _UNIX:
            raise LogError(
                f"--drift {by}: the log's times begin at {begins.min():g} s, which is no clock time. Give a number of "
                "groups, or the name of a condition."
            )
        number = np.floor(begins / _PERIODS[by]).astype(int)
        labels = [f"{by} {n - number.min()}" for n in number]
    else:
        for episode in episodes:
            if by not in episode.conditions:
                has = ", ".join(episode.conditions) or "none"
                raise LogError(f"--drift {by}: episode {episode.index} does not state {by}. Its conditions are: {has}.")
        labels = [f"{by} {episode.conditions[by]:g}" for episode in episodes]
    if len(set(labels)) == 1:
        raise InputError(f"--drift {by}: all episodes fall into one group, {labels[0]}. Choose another division.")
    return labels


def detect_drift(
    twin: Twin,
    episodes: Sequence[Episode],
    groups: Sequence[str],
    *,
    backend: Backend,
    config: FitConfig | None = None,
) -> Drift:
    """Test every determined parameter for differences between groups of episodes, and for a trend along their order.

    Args:
        twin: the twin.
        episodes: the log; the trend is tested along their order.
        groups: group of each episode, see `group_episodes`.
        backend: the backend that simulates the replays.
        config: configuration of the fits.

    Raises:
        InputError: too few episodes or groups, or the log determines no parameter.
    """
    config = config or FitConfig()
    whole = identify(twin, episodes, backend=backend, config=config).distribution
    known = [n for n, told, sd in zip(whole.names, whole.determined, whole.prior_sd, strict=True) if told and sd > 0]
    if not known:
        raise InputError("The log determines no parameter, so drift cannot be tested. See the fit's report.")
    rest = {name: value for name, value in whole.estimate.items() if name not in known}
    narrow = replace(
        config,
        free=tuple(known),
        quantities=None,
        fixed={**config.fixed, **rest},
        start={name: whole.estimate[name] for name in known},
        checkpoint=None,
    )
    local = _GroupFits(twin, episodes, backend, narrow)
    each = np.array([local.fit_episodes([episode.index]) for episode in episodes])
    test = group_test(each, np.asarray(groups), np.arange(len(episodes)))
    labels = sorted(set(groups), key=list(groups).index)
    members = [[e.index for e, group in zip(episodes, groups, strict=True) if group == label] for label in labels]
    fits = np.array([local.fit_episodes(numbers) for numbers in members])
    rows = [sorted(set(groups)).index(label) for label in labels]
    return Drift(
        groups=tuple(labels),
        sizes=tuple(map(len, members)),
        params=_summarize_parameters(local.space, whole.estimate, fits, test.errors[rows], test),
    )


class _GroupFits:
    """Fits to subsets of the episodes from the common estimate, with the loss width of the whole log."""

    def __init__(self, twin: Twin, episodes: Sequence[Episode], backend: Backend, config: FitConfig) -> None:
        self._logs = limit_physics_rate(prepare_replay(twin, episodes, config.replay), config.physics_hz)
        self._backend, self._config = backend, config
        self.space, _ = fit_space(self._logs, config)
        self._point = self.space.column("start")
        self._width = fit_problem(backend, self._logs, self.space, self._point, config).width

    def fit_episodes(self, numbers: Sequence[int]) -> Array:
        """Return the estimate from some episodes, ``(p,)`` transformed."""
        problem = fit_problem(self._backend, self._logs.select_episodes(numbers), self.space, self._point, self._config)
        here = replace(problem, width=self._width, centre=self._point)
        return solve(here, self._point, iterations=_STEPS).point


def _summarize_parameters(
    space: FitSpace, common: Mapping[str, float], fits: Array, errors: Array, test: GroupTest
) -> tuple[DriftParam, ...]:
    """Return the results in SI units; the standard error of a logarithm is taken as a relative error."""
    adjusted = holm(np.concatenate([test.p_change, test.p_trend]))
    values, found = space.values(fits), []
    for i, free in enumerate(space.free):
        size = np.abs(values[free.name]) if free.is_logarithmic else np.ones(len(fits))
        found.append(
            DriftParam(
                name=free.name,
                unit=free.param.unit,
                common=common[free.name],
                estimates=tuple(values[free.name].tolist()),
                errors=tuple((errors[:, i] * size).tolist()),
                q=float(test.q[i]),
                p_change=float(adjusted[i]),
                trend=float(test.correlation[i]),
                p_trend=float(adjusted[len(space.free) + i]),
            )
        )
    return tuple(found)
