"""Measure the noise floor: the difference between repeated real recordings of one motion, in the twin's windows.

Two runs of one motion have the mean squared difference D(real, real′)², twice the variance of a run about their mean. A
prediction that does not depend on the run has at least that variance as its mean squared error. Therefore the floor is
D(real, real′) / √2 and the gap ratio is RMSE / floor: 1 for a perfect twin, for any noise of the sensors and of the
motion. (With D(real, real′) itself as the floor a perfect twin would score 0.71.) A twin begins every window at the
measured state of its run, but another run does not. If runs diverge, the ratio may therefore be below 1.
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
    """Find groups of episodes that repeat one motion.

    Args:
        episodes: Episodes of the log; read once.
        rule: How repeats are found. ``auto``: commands are equal within a hundredth of their standard deviation,
            lengths are equal within a hundredth, and conditions are equal. ``task``: the log gives the same task.
            ``none``: no groups. Otherwise groups of episode numbers, such as ``0-9,12/20-24``: commas separate
            episodes, slashes separate groups.

    Returns:
        Episode numbers of each group, and a text that describes the rule.

    Raises:
        InputError: If the rule is not valid, a group has one episode only, or a number is not an episode.
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
    """Commands of the first episode with a motion, and the episodes that repeat it.

    Attributes:
        length: Number of frames of the first episode.
        conditions: Conditions of the first episode.
        commands: Its commands at 64 frames spread evenly over the episode, shape ``(64, n)``; repeats are recognized by
            them.
        mean: Mean of these commands, shape ``(n,)``, for a fast comparison.
        episodes: Numbers of all episodes with this motion.
    """

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
        """Return whether another motion has the same conditions and, within 1 %, the same length and commands.

        Commands are compared in every channel: their root mean square difference may be at most 1 % of ``spread``, the
        standard deviation of the commands, shape ``(n,)``. For a channel that hardly changes, at least 1 % of the
        largest spread is used instead.
        """
        most = TOLERANCE * np.maximum(spread, spread.max() * TOLERANCE)
        if abs(self.length - other.length) > TOLERANCE * self.length or self.conditions != other.conditions:
            return False
        if self.mean.shape != other.mean.shape or np.any(np.abs(self.mean - other.mean) > most):
            return False  # a difference of means is a lower bound of the root mean square difference
        return bool(np.all(np.sqrt(np.mean((self.commands - other.commands) ** 2, axis=0)) <= most))


def _group_equal_commands(episodes: Iterable[Episode]) -> Groups:
    """Return groups of episodes with equal conditions and, within 1 %, equal length and commands.

    `_RepeatedMotion.matches` defines the tolerances. Episodes without commands or with constant commands are left out.
    """
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
        unknown = [number for number in group if number not in known]
        if unknown:
            raise InputError(
                f"--repeats {rule}: episode {unknown[0]} is not among the measured episodes, "
                f"which are {_format_numbers(known)}."
            )
        if len(set(group)) < 2 or len(set(group)) < len(group):
            raise InputError(f"--repeats {rule}: a group needs two different episodes or more; this one has {group}.")
    return _select_groups(groups)


def _parse_range(word: str) -> range:
    low, _, high = word.partition("-")
    return range(int(low), int(high or low) + 1)


def _format_numbers(numbers: set[int]) -> str:
    texts = [str(number) for number in sorted(numbers)]
    return ", ".join(texts[:12]) + (", …" if len(texts) > 12 else "")


_PARTNERS = 10  # per episode: more pairs add little information about it
_MANY_GROUPS = 8  # with so many groups, groups are resampled instead of episodes
_NO_PAIR = 1e-9  # weight of every pair: a resample of a single episode, which has no pair, then uses all pairs


@dataclass(frozen=True, kw_only=True)
class NoiseFloor(JsonRecord):
    """Noise floor of a log, and the error of each twin divided by it.

    The noise floor is the smallest error that any prediction can have, because real repeats of a motion differ.

    Attributes:
        channels: The compared channels.
        groups: Numbers of the episodes that repeat one motion.
        floor: Noise floor D / √2 by channel, in its unit, shape ``(nchannel,)``; D is the root mean square difference
            of two repeats of a motion.
        curve: Noise floor by horizon bin (interval of the time since the beginning of a window), shape ``(nbin,
            nchannel)``.
        ratios: RMSE of each twin on the same episodes divided by the floor, by name of the twin, shape ``(nchannel,)``.
        overall: Ratio of the mean RMSE to the mean floor over channels, each channel in units of its scale, by name of
            the twin.
        rule_text: Text that describes how repeats were found.
    """

    json_names: ClassVar[Mapping[str, str | None]] = {"channels": None, "rule_text": "how"}

    channels: tuple[MeasuredChannel, ...]
    groups: Groups
    floor: Interval
    curve: Interval
    ratios: Mapping[str, Interval]
    overall: Mapping[str, Interval]
    rule_text: str


@dataclass(frozen=True, kw_only=True)
class RepeatPairs:
    """Pairs of episodes that repeat one motion, with half their squared differences.

    Attributes:
        episodes: Numbers of the episodes.
        group: Group number of each episode, shape ``(nepisode,)``.
        first: Index into ``episodes`` of the first episode of each pair, shape ``(npair,)``.
        second: Index into ``episodes`` of the second episode of each pair, shape ``(npair,)``.
        squared: Half the squared differences, summed over the frames of each horizon bin (interval of the time since
            the beginning of a window), shape ``(npair, nbin, nchannel)``.
        count: Number of compared frames, same shape.
    """

    episodes: tuple[int, ...]
    group: NDArray[np.intp]
    first: NDArray[np.intp]
    second: NDArray[np.intp]
    squared: Array
    count: Array

    def weights(self, weights: Array) -> Array:
        """Return the weight of each pair in k resamples of episodes, shape ``(k, npair)``.

        The weight is the product of both episodes' counts in ``weights``, shape ``(k, nepisode)``. Two copies of the
        same episode are not a pair.
        """
        return weights[:, self.first] * weights[:, self.second] + _NO_PAIR


def sum_pairs(logs: ReplayLogs, members: Sequence[int], edges: Array) -> list[tuple[int, int, Array, Array]]:
    """Sum half the squared differences between pairs of episodes of one group.

    Windows are paired by their number in the episode. Only values that were measured in both episodes count.

    Args:
        logs: Windows of the group's episodes.
        members: Numbers of the episodes.
        edges: Edges of the horizon bins in s.

    Returns:
        For each pair both episode numbers, sums and counts; the last two have the shape ``(nbin, nchannel)``.
    """
    rows = {number: np.flatnonzero(np.array(logs.episode_numbers) == number) for number in members}
    found = []
    for a, b in _choose_pairs(members):
        common = min(len(rows[a]), len(rows[b]))
        mine, other = logs.take(rows[a][:common]), logs.take(rows[b][:common])
        guess = mine.substitute_data(other.channel_data)
        both = ~np.isnan(guess) & ~np.isnan(mine.measured)
        errors = sum_errors(mine, guess[None], edges, mask=both)
        found.append((a, b, 0.5 * errors.squared[0, 0], errors.count[0]))
    return found


def join_pairs(parts: Iterable[tuple[Sequence[int], Sequence[tuple[int, int, Array, Array]]]]) -> RepeatPairs:
    """Join the pairs of repeats of several motions into one record.

    ``parts`` has, for each motion, the numbers of the episodes that repeat it and their result of `sum_pairs`.
    """
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
    """Return the clusters of a bootstrap: the groups of episodes that repeat one motion, or single episodes.

    Groups are resampled if there are eight or more, otherwise episodes. In a resample of episodes, the weight of a pair
    is the product of the counts of its two episodes. Therefore all pairs that share an episode change together, as
    their errors do (Arcones & Giné, "On the bootstrap of U and V statistics", Annals of Statistics 20, 1992).
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
    rule_text: str,
    level: float,
    seed: int,
) -> NoiseFloor:
    """Compute the noise floor and the ratio of every twin's error to it.

    The noise floor is D / √2, where D is the root mean square difference of two real repeats of a motion. The result
    has the floor by channel and by horizon, and the RMSE of each twin on the same episodes divided by the floor, by
    channel and overall.

    Args:
        pairs: Pairs of episodes that repeat one motion.
        errors: Errors of all episodes, including those of the pairs.
        twins: Names of the first rows of ``errors``.
        scales: Scale of each channel, in its unit, shape ``(nchannel,)``; NaN if it has none.
        rule_text: Text that describes how repeats were found.
        level: Confidence level of the intervals.
        seed: Seed of the bootstrap.
    """
    own = _select_episodes(errors, pairs.episodes)
    resampling = floor_resampling(pairs, level=level, seed=seed)
    by_group = resampling.unit.startswith("groups")

    def pair_weights(weights: Array) -> Array:
        return weights[:, pairs.first] if by_group else pairs.weights(weights)

    def root_mean_square(squared: Array, count: Array) -> Statistic:
        return lambda weights: np.sqrt(
            ratio(sum_weighted(pair_weights(weights), squared), sum_weighted(pair_weights(weights), count))
        )

    floor = root_mean_square(pairs.squared.sum(axis=1), pairs.count.sum(axis=1))

    def compute_ratios(row: int) -> tuple[Interval, Interval]:
        error = rmse_statistic(own, row)
        return (
            resampling.interval(lambda weights: ratio(error(weights), floor(weights))),
            resampling.interval(
                lambda weights: ratio(average_scaled(error(weights), scales), average_scaled(floor(weights), scales))
            ),
        )

    ratios = {name: compute_ratios(row) for row, name in enumerate(twins)}
    numbers = np.array(pairs.episodes)
    return NoiseFloor(
        channels=errors.channels,
        groups=tuple(tuple(numbers[pairs.group == g].tolist()) for g in range(int(pairs.group.max()) + 1)),
        floor=resampling.interval(floor),
        curve=resampling.interval(root_mean_square(pairs.squared, pairs.count)),
        ratios={name: pair[0] for name, pair in ratios.items()},
        overall={name: pair[1] for name, pair in ratios.items()},
        rule_text=rule_text,
    )


def _select_episodes(errors: WindowErrors, numbers: Sequence[int]) -> WindowErrors:
    """Return the errors of the episodes with these numbers, in the given order."""
    rows = [errors.episodes.index(number) for number in numbers]
    return replace(
        errors,
        squared=errors.squared[:, rows],
        absolute=errors.absolute[:, rows],
        count=errors.count[rows],
        episodes=tuple(numbers),
    )


def _choose_pairs(members: Sequence[int]) -> list[tuple[int, int]]:
    """Return the pairs of a group's episodes that are compared.

    These are all pairs; in groups of more than 11 episodes, each episode is paired with the next five, cyclically.
    """
    n = len(members)
    if n <= _PARTNERS + 1:
        return [(members[i], members[j]) for i in range(n) for j in range(i + 1, n)]
    return [(members[i], members[(i + step) % n]) for i in range(n) for step in range(1, 1 + _PARTNERS // 2)]
