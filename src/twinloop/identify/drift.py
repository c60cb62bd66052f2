"""Test whether a robot's parameters changed during a recording (wear, heat), and which parameters changed.

The null hypothesis is one fit to all episodes. Starting at its estimate, every single episode and every group of
episodes is fitted, with a weak prior at this common estimate. If nothing changes, the episodes' estimates are
exchangeable. Permutation tests check them for differences between groups and for a trend along their order, so neither
correlation within episodes nor curvature of the model counts as evidence. A change of one parameter is attributed to
another parameter only if a single episode cannot distinguish the two. Holm's method adjusts the p-values over
parameters and both tests. (The classical form tests parameter stability by scores, one Newton step: Zeileis & Hornik,
Statistica Neerlandica 61, 2007. With dry friction one step is not accurate enough.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, LogError
from twinloop.core.plain import JsonRecord
from twinloop.core.progress import track
from twinloop.core.records import Episode
from twinloop.identify.assembly import FitSpace, fit_problem, fit_space
from twinloop.identify.config import FitConfig
from twinloop.identify.fit import identify
from twinloop.identify.physics_rate import limit_physics_rate
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
    """Drift tests of one parameter over groups of episodes; values are in SI units.

    Attributes:
        name: Name of the parameter.
        unit: Its SI unit.
        common: Estimate from all episodes.
        estimates: Estimate from each group.
        errors: Standard error of each group's estimate, from the differences between episodes of the same group, pooled
            over all groups.
        q: Test statistic of the difference between groups.
        p_change: P-value of that difference, adjusted by Holm's method over all parameters and both tests.
        trend: Correlation of the episodes' estimates with their order.
        p_trend: P-value of the trend, adjusted in the same way.
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
        """Whether at least one of the two adjusted p-values (difference between groups, trend) is at most 0.05."""
        return min(self.p_change, self.p_trend) <= ALPHA


@dataclass(frozen=True, kw_only=True)
class Drift(JsonRecord):
    """Drift tests of all determined parameters over groups of episodes.

    Attributes:
        groups: Labels of the groups.
        sizes: Number of episodes in each group.
        params: One test result per parameter.
    """

    groups: tuple[str, ...]
    sizes: tuple[int, ...]
    params: tuple[DriftParam, ...]
    alpha = ALPHA
    json_schema = 1
    json_also = ("alpha", "drifting")

    @property
    def drifting(self) -> tuple[str, ...]:
        """Names of the parameters that changed, smallest p-value first."""
        changed = [param for param in self.params if param.is_drifting]
        return tuple(p.name for p in sorted(changed, key=lambda p: (min(p.p_change, p.p_trend), -p.q)))

    def text(self) -> str:
        """Return text for a terminal: the parameters that changed, or a sentence that no parameter changed."""
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
    """Return the group label of each episode.

    Args:
        episodes: The episodes in order of time.
        by: A number of groups of consecutive episodes, ``hour`` or ``day`` of the recording, or the name of a condition
            that the episodes record.

    Raises:
        InputError: If ``by`` gives fewer than two groups, or more groups than half the episodes.
        LogError: If the log has no clock times, or an episode does not record the condition.
    """
    if by.isdigit():
        count = int(by)
        if not 2 <= count <= len(episodes) // 2:
            raise InputError(
                f"--drift {by}: {len(episodes)} episodes can be divided into at least 2 and at most "
                f"{len(episodes) // 2} groups of two or more episodes. Give a number in this range."
            )
        parts = np.array_split(np.arange(len(episodes)), count)
        names = [f"{episodes[part[0]].index}–{episodes[part[-1]].index}" for part in parts]
        return [name for name, part in zip(names, parts, strict=True) for _ in part]
    if by in _PERIODS:
        begins = np.array([episode.time[0] for episode in episodes])
        if begins.min() < _UNIX:
            raise LogError(
                f"--drift {by}: the log's times begin at {begins.min():g} s, which is not a clock time. Give a number "
                "of groups, or the name of a condition."
            )
        number = np.floor(begins / _PERIODS[by]).astype(int)
        labels = [f"{by} {n - number.min()}" for n in number]
    else:
        for episode in episodes:
            if by not in episode.conditions:
                has = ", ".join(episode.conditions) or "none"
                raise LogError(
                    f"--drift {by}: episode {episode.index} does not record the condition {by}. Its "
                    f"conditions are: {has}."
                )
        labels = [f"{by} {episode.conditions[by]:g}" for episode in episodes]
    if len(set(labels)) == 1:
        raise InputError(f"--drift {by}: all episodes are in one group, {labels[0]}. Choose another way to group them.")
    return labels


def detect_drift(
    twin: Twin,
    episodes: Sequence[Episode],
    groups: Sequence[str],
    *,
    backend: Backend,
    config: FitConfig | None = None,
) -> Drift:
    """Test every determined parameter for differences between groups of episodes, and for a trend over the episodes.

    Args:
        twin: The twin to fit.
        episodes: The episodes of the log, in the order in which a trend is tested.
        groups: Group label of each episode, see `group_episodes`.
        backend: The backend that simulates the replays.
        config: Configuration of the fits.

    Raises:
        InputError: If there are too few episodes or groups, or the log determines no parameter.
    """
    config = config or FitConfig()
    whole = identify(twin, episodes, backend=backend, config=config).distribution
    known = [
        n
        for n, determined, sd in zip(whole.names, whole.determined, whole.prior_sd, strict=True)
        if determined and sd > 0
    ]
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
    each = np.array([local.fit_episodes([episode.index]) for episode in track(episodes, label="drift")])
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
    """Fits to groups of episodes. Each fit starts at the estimate from all episodes.

    The Huber widths (residuals at which the robust loss becomes linear) are also computed from all episodes.
    """

    def __init__(self, twin: Twin, episodes: Sequence[Episode], backend: Backend, config: FitConfig) -> None:
        self._logs = limit_physics_rate(prepare_replay(twin, episodes, config.replay), config.replay_hz)
        self._backend, self._config = backend, config
        self.space, _ = fit_space(self._logs, config)
        self._point = self.space.column("start")
        self._width = fit_problem(backend, self._logs, self.space, self._point, config).width

    def fit_episodes(self, numbers: Sequence[int]) -> Array:
        """Fit the episodes with these numbers, and return the estimate ``(p,)`` in solver coordinates (ln or SI)."""
        problem = fit_problem(self._backend, self._logs.select_episodes(numbers), self.space, self._point, self._config)
        here = replace(problem, width=self._width, centre=self._point)
        return solve(here, self._point, iterations=_STEPS).point


def _summarize_parameters(
    space: FitSpace, common: Mapping[str, float], fits: Array, errors: Array, test: GroupTest
) -> tuple[DriftParam, ...]:
    """Return the test results in SI units; the standard error of a logarithm is converted to a relative error.

    Args:
        space: The free parameters.
        common: Estimates from all episodes by name, SI.
        fits: Estimates of the groups in solver coordinates, ``(ngroup, p)``.
        errors: Standard errors of ``fits``, same shape.
        test: Results of the permutation tests.
    """
    adjusted = holm(np.concatenate([test.p_change, test.p_trend]))
    values, results = space.values(fits), []
    for i, free in enumerate(space.free):
        size = np.abs(values[free.name]) if free.is_logarithmic else np.ones(len(fits))
        results.append(
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
    return tuple(results)
