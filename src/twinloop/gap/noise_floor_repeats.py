"""Which episodes of a log repeat one motion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.records import Episode

Array = NDArray[np.float64]
Groups = tuple[tuple[int, ...], ...]
# Scripts come back from a log rounded to float32 or to a servo's step, 1/4096 of a turn: a thousandth of half a turn.
TOLERANCE = 0.01  # of the commands' standard deviation
_PROBES = 64  # moments at which commands are compared


def find_repeats(episodes: Iterable[Episode], rule: str = "auto") -> tuple[Groups, str]:
    """Groups of episodes that repeat one motion, and how they were found.

    Args:
        episodes: read once.
        rule: ``auto``: equal commands, within a hundredth of their standard deviation, equal length within a hundredth
            and equal conditions; ``task``: episodes whose log gives them the same task; ``none``; or groups of
            numbers, such as ``0-9,12/20-24``: commas join, slashes part.

    Raises:
        InputError: another rule, a group of one, or a number that is no episode.
    """
    if rule == "none":
        return (), "not looked for"
    if rule == "task":
        tasks: dict[str, list[int]] = {}
        for episode in episodes:
            tasks.setdefault(episode.task, []).append(episode.index)
        return _several(tasks.values()), "episodes of one task"
    if rule == "auto":
        return _alike(episodes), f"equal commands, within {TOLERANCE:.0%} of their standard deviation"
    return _named(rule, {episode.index for episode in episodes}), "as named"


def _several(groups: Iterable[Sequence[int]]) -> Groups:
    return tuple(tuple(group) for group in groups if len(group) > 1)


@dataclass(frozen=True)
class _Script:
    """What tells one motion from others, of the first episode that has it, and the episodes that repeat it."""

    length: int
    conditions: Mapping[str, float]
    commands: Array
    mean: Array
    episodes: list[int]

    @classmethod
    def of(cls, episode: Episode) -> _Script:
        probed = episode.action[np.linspace(0, len(episode) - 1, _PROBES).astype(np.intp)]
        return cls(len(episode), dict(episode.conditions), probed, probed.mean(axis=0), [episode.index])

    def repeats(self, other: _Script, spread: Array) -> bool:
        """Whether commands differ by less than the tolerance, root mean square over moments, in every channel."""
        most = TOLERANCE * np.maximum(spread, spread.max() * TOLERANCE)
        if abs(self.length - other.length) > TOLERANCE * self.length or self.conditions != other.conditions:
            return False
        if self.mean.shape != other.mean.shape or np.any(np.abs(self.mean - other.mean) > most):
            return False  # means differ by no more than root mean squares do
        return bool(np.all(np.sqrt(np.mean((self.commands - other.commands) ** 2, axis=0)) <= most))


def _alike(episodes: Iterable[Episode]) -> Groups:
    """Episodes of about one length whose commands agree at every moment that is probed."""
    scripts: list[_Script] = []
    for episode in episodes:
        spread = episode.action.std(axis=0)
        if episode.command == "none" or not spread.any():
            continue
        script = _Script.of(episode)
        known = next((one for one in scripts if one.repeats(script, spread)), None)
        if known is None:
            scripts.append(script)
        else:
            known.episodes.append(episode.index)
    return _several(script.episodes for script in scripts)


def _named(rule: str, known: set[int]) -> Groups:
    try:
        groups = [[n for word in part.split(",") for n in _range(word)] for part in rule.split("/")]
    except ValueError:
        raise InputError(
            f"--repeats {rule}: say auto, task, none, or numbers of episodes such as 0-9,12/20-24; slashes part groups."
        ) from None
    for group in groups:
        strange = [number for number in group if number not in known]
        if strange:
            raise InputError(f"--repeats {rule}: episode {strange[0]} is not measured. There are: {_short(known)}.")
        if len(set(group)) < 2 or len(set(group)) < len(group):
            raise InputError(f"--repeats {rule}: a group needs two different episodes or more; this one has {group}.")
    return _several(groups)


def _range(word: str) -> range:
    low, _, high = word.partition("-")
    return range(int(low), int(high or low) + 1)


def _short(numbers: set[int]) -> str:
    shown = [str(number) for number in sorted(numbers)]
    return ", ".join(shown[:12]) + (", …" if len(shown) > 12 else "")
