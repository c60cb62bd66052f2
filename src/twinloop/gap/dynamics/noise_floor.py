"""Measure the difference between repeated real recordings of one motion, in the twin's windows.

Two runs of one motion have the mean squared difference D(real, real′)², twice the variance of a run about their mean. A
prediction that does not depend on the run has at least that variance as its mean squared error. Therefore the floor is
D(real, real′) / √2 and the gap ratio is RMSE / floor: 1 for a perfect twin, for any noise of the sensors and of
the motion. (With D(real, real′) itself as the floor a perfect twin would score 0.71.) A twin begins every window at the
measured state of its run, another run does not; if runs diverge, the ratio may be below 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.plain import JsonRecord
from twinloop.core.records import Episode
from twinloop.gap.dynamics.errors import WindowErrors, ratio, sum_errors
from twinloop.gap.dynamics.intervals import FEWEST, Resampling, Statistic, average_scaled, rmse_statistic, sum_weighted
from twinloop.simulate.channels import MeasuredChannel
from twinloop.simulate.replay_logs import ReplayLogs
from twinloop.stats import Interval

Array = NDArray[np.float64]
Groups = tuple[tuple[int, ...], ...]
# Logged commands are rounded to float32 or to a servo's step, 1/4096 of a turn: 0.05 % of half a turn.
TOLERANCE = 0.01  # of the commands' standard deviation
_PROBES = 64  # moments at which commands are compared


def find_repeats(episodes: Iterable[Episode], rule: str = "auto") -> tuple[Groups, str]:
    """Return groups of episodes that repeat one motion, and how they were found.

    Args:
        episodes: read once.
        rule: ``auto``: equal commands, within a hundredth of their standard deviation, equal length within a hundredth
            and equal conditions; ``task``: episodes to which the log gives the same task; ``none``; or groups of
            episode numbers, such as ``0-9,12/20-24``: commas join, slashes separate groups.

    Raises:
        InputError: another rule, a group of one, or a number that is not an episode.
    """
    if rule == "none":
        return (), "not looked for"
    if rule == "task":
        tasks: dict[str, list[int]] = {}
        for episode in episodes:
            tasks.setdefault(episode.task, []).append(episode.index)
        return _select_groups(tasks.values()), "episodes of one task"
    if rule == "auto":
        return _group_equal_commands(episodes), f"equal commands, within {TOLERANCE:.0%} of their standard deviation"
    return _parse_groups(rule, {episode.index for episode in episodes}), "as named"


def _select_groups(groups: Iterable[Sequence[int]]) -> Groups:
    return tuple(tuple(group) for group in groups if len(group) > 1)


@dataclass(frozen=True)
class _RepeatedMotion:
    """Commands of the first episode with a motion, and the numbers of all episodes that repeat it."""

    length: int
    conditions: Mapping[str, float]
    commands: Array
    mean: Array
    episodes: list[int]

    @classmethod
    def of(cls, episode: Episode) -> _RepeatedMotion:
        probed = episode.action[np.linspace(0, len(episode) - 1, _PROBES).astype(np.intp)]
        return cls(len(episode), dict(episode.conditions), probed, probed.mean(axis=0), [episode.index])

    def matches(self, other: _RepeatedMotion, spread: Array) -> bool:
        """Return whether commands differ by less than the tolerance in every channel, root mean square over moments."""
        most = TOLERANCE * np.maximum(spread, spread.max() * TOLERANCE)
        if abs(self.length - other.length) > TOLERANCE * self.length or self.conditions != other.conditions:
            return False
        if self.mean.shape != other.mean.shape or np.any(np.abs(self.mean - other.mean) > most):
            return False  # a difference of means is a lower bound of the root mean square difference
        return bool(np.all(np.sqrt(np.mean((self.commands - other.commands) ** 2, axis=0)) <= most))


def _group_equal_commands(episodes: Iterable[Episode]) -> Groups:
    """Return groups of episodes of about equal length with equal commands at every compared moment."""
    scripts: list[_RepeatedMotion] = []
    for episode in episodes:
        spread = episode.action.std(axis=0)
        if episode.command == "none" or not spread.any():
            continue
        script = _RepeatedMotion.of(episode)
        known = next((one for one in scripts if one.matches(script, spread)), None)
        if known is None:
            scripts.append(script)
        else:
            known.episodes.append(episode.index)
    return _select_groups(script.episodes for script in scripts)


def _parse_groups(rule: str, known: set[int]) -> Groups:
    try:
        groups = [[n for word in part.split(",") for n in _parse_range(word)] for part in rule.split("/")]
    except ValueError:
        raise InputError(
            f"--repeats {rule}: give auto, task, none, or episode numbers such as 0-9,12/20-24; a slash ends a group."
        ) from None
    for group in groups:
        strange = [number for number in group if number not in known]
        if strange:
            raise InputError(
                f"--repeats {rule}: episode {strange[0]} is not measured. There are: {_format_numbers(known)}."
            )
        if len(set(group)) < 2 or len(set(group)) < len(group):
            raise InputError(f"--repeats {rule}: a group needs two different episodes or more; this one has {group}.")
    return _select_groups(groups)


def _parse_range(word: str) -> range:
    low, _, high = word.partition("-")
    return range(int(low), int(high or low) + 1)


def _format_numbers(numbers: set[int]) -> str:
    shown = [str(number) for number in sorted(numbers)]
    return ", ".join(shown[:12]) + (", …" if len(shown) > 12 else "")


_PARTNERS = 10  # per episode: more pairs add little information about it
_MANY_GROUPS = 8  # with so many groups, groups are resampled instead of episodes
_NO_PAIR = 1e-9  # weight of every pair: a resample of a single episode, which has no pair, then uses all pairs


@dataclass(frozen=True, kw_only=True)
class NoiseFloor(JsonRecord):
    """Difference between real repeats: the least error of any prediction, and the twin's error divided by it.

    Attributes:
        groups: numbers of the episodes that repeat one motion.
        floor: D(real, real′) / √2 by channel, in its unit.
        curve: the same by horizon, ``(nbin, nchannel)``.
        ratios: RMSE of each twin on the same episodes divided by the floor, by channel.
        overall: the same ratio for means over channels, each channel in units of its scale; by twin.
        how: how repeats were found.
    """

    json_names: ClassVar[Mapping[str, str | None]] = {"channels": None}

    channels: tuple[MeasuredChannel, ...]
    groups: Groups
    floor: Interval
    curve: Interval
    ratios: Mapping[str, Interval]
    overall: Mapping[str, Interval]
    how: str


@dataclass(frozen=True, kw_only=True)
class RepeatPairs:
    """Half the squared differences of repeats, summed by pair, horizon bin and channel.

    ``first`` and ``second`` ``(npair,)`` are indices into ``episodes``; ``group`` ``(nepisode,)`` is the group number
    of each episode. ``squared`` and ``count`` are ``(npair, nbin, nchannel)``.
    """

    episodes: tuple[int, ...]
    group: NDArray[np.intp]
    first: NDArray[np.intp]
    second: NDArray[np.intp]
    squared: Array
    count: Array

    def weights(self, weights: Array) -> Array:
        """Return the weight of each pair from episode counts ``(k, nepisode)``; a repeated episode is not a pair."""
        return weights[:, self.first] * weights[:, self.second] + _NO_PAIR


def sum_pairs(logs: ReplayLogs, members: Sequence[int], edges: Array) -> list[tuple[int, int, Array, Array]]:
    """Return squared differences and counts ``(nbin, nchannel)`` of pairs of one group's episodes, with their numbers.

    Windows are paired by their number in the episode; values that only one of the two measured do not count.
    """
    rows = {number: np.flatnonzero(np.array(logs.numbers) == number) for number in members}
    found = []
    for a, b in _choose_pairs(members):
        common = min(len(rows[a]), len(rows[b]))
        mine, other = logs.take(rows[a][:common]), logs.take(rows[b][:common])
        guess = mine.substitute_data(other.kept)
        both = ~np.isnan(guess) & ~np.isnan(mine.measured)
        errors = sum_errors(mine, guess[None], edges, mask=both)
        found.append((a, b, 0.5 * errors.squared[0, 0], errors.count[0]))
    return found


def join_pairs(parts: Iterable[tuple[Sequence[int], Sequence[tuple[int, int, Array, Array]]]]) -> RepeatPairs:
    """Join the pairs of all groups into one record."""
    groups = list(parts)
    episodes = [number for members, _ in groups for number in members]
    rows = {number: row for row, number in enumerate(episodes)}
    pairs = [pair for _, found in groups for pair in found]
    return RepeatPairs(
        episodes=tuple(episodes),
        group=np.repeat(np.arange(len(groups)), [len(members) for members, _ in groups]),
        first=np.array([rows[a] for a, *_ in pairs], dtype=np.intp),
        second=np.array([rows[b] for _, b, *_ in pairs], dtype=np.intp),
        squared=np.stack([squared for *_, squared, _ in pairs]),
        count=np.stack([count for *_, count in pairs]),
    )


def floor_resampling(pairs: RepeatPairs, *, level: float, seed: int) -> Resampling:
    """Resample groups if there are eight or more, otherwise the episodes within them.

    The weight of a pair is the product of its episodes' counts, so that the effect of an episode enters all its pairs
    at once (Arcones & Giné, "On the bootstrap of U and V statistics", Annals of Statistics 20, 1992).
    """
    ngroup = int(pairs.group.max()) + 1
    if ngroup >= _MANY_GROUPS:
        return Resampling(labels=pairs.group, unit="groups of repeats", level=level, seed=seed)
    few = len(pairs.episodes)
    sizes = np.bincount(pairs.group)
    reason = "" if sizes.max() >= FEWEST else f"{few} repeats, no interval: at least {FEWEST} of one motion are needed"
    return Resampling(labels=np.arange(few), unit="repeats", reason=reason, level=level, seed=seed)


def noise_floor(
    pairs: RepeatPairs,
    errors: WindowErrors,
    twins: Sequence[str],
    scales: Array,
    *,
    how: str,
    level: float,
    seed: int,
) -> NoiseFloor:
    """Return the noise floor and every twin's ratio to it.

    Args:
        pairs: pairs of repeats.
        errors: errors of all episodes, including those of the pairs.
        twins: names of the first rows of ``errors``.
        scales: scale of each channel, in its unit; NaN if it has none.
        how: how repeats were found.
        level: confidence level of the intervals.
        seed: seed of the bootstrap.
    """
    own = _select_episodes(errors, pairs.episodes)
    resampling = floor_resampling(pairs, level=level, seed=seed)
    by_group = resampling.unit.startswith("groups")

    def drawn(weights: Array) -> Array:
        return weights[:, pairs.first] if by_group else pairs.weights(weights)

    def root(squared: Array, count: Array) -> Statistic:
        return lambda weights: np.sqrt(
            ratio(sum_weighted(drawn(weights), squared), sum_weighted(drawn(weights), count))
        )

    floor = root(pairs.squared.sum(axis=1), pairs.count.sum(axis=1))

    def compared(row: int) -> tuple[Interval, Interval]:
        error = rmse_statistic(own, row)
        return (
            resampling.interval(lambda weights: ratio(error(weights), floor(weights))),
            resampling.interval(
                lambda weights: ratio(average_scaled(error(weights), scales), average_scaled(floor(weights), scales))
            ),
        )

    ratios = {name: compared(row) for row, name in enumerate(twins)}
    numbers = np.array(pairs.episodes)
    return NoiseFloor(
        channels=errors.channels,
        groups=tuple(tuple(numbers[pairs.group == g].tolist()) for g in range(int(pairs.group.max()) + 1)),
        floor=resampling.interval(floor),
        curve=resampling.interval(root(pairs.squared, pairs.count)),
        ratios={name: pair[0] for name, pair in ratios.items()},
        overall={name: pair[1] for name, pair in ratios.items()},
        how=how,
    )


def _select_episodes(errors: WindowErrors, numbers: Sequence[int]) -> WindowErrors:
    """Return the errors of some episodes, in the given order."""
    rows = [errors.episodes.index(number) for number in numbers]
    return replace(
        errors,
        squared=errors.squared[:, rows],
        absolute=errors.absolute[:, rows],
        count=errors.count[rows],
        episodes=tuple(numbers),
    )


def _choose_pairs(members: Sequence[int]) -> list[tuple[int, int]]:
    """Return every pair; in large groups each member with the next few members, cyclically."""
    n = len(members)
    if n <= _PARTNERS + 1:
        return [(members[i], members[j]) for i in range(n) for j in range(i + 1, n)]
    return [(members[i], members[(i + step) % n]) for i in range(n) for step in range(1, 1 + _PARTNERS // 2)]
