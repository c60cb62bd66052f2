"""Make real and simulated episodes comparable: give both the same channels, the same units and the same rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from twinloop.core.errors import InputError, LogError, UnitsError
from twinloop.core.records import Episode
from twinloop.core.units import UnitMap
from twinloop.dataset.logs.resampling import resample
from twinloop.encoders.trajectory import ClipArrays, cut_clips
from twinloop.stats.interval import check_level

_SAME_RATE = 0.02  # as for a replay


@dataclass(frozen=True, kw_only=True)
class MatchedClips:
    """Clips (pieces of equal duration) of real and of simulated episodes.

    Attributes:
        real: Clips of the real episodes.
        sim: Clips of the simulated episodes.
        notes: The changes that made both sets comparable, such as omitted channels or resampling.
    """

    real: ClipArrays
    sim: ClipArrays
    notes: tuple[str, ...]


def match_clips(real: Sequence[Episode], sim: Sequence[Episode], *, clip_s: float) -> MatchedClips:
    """Cut real and simulated episodes into clips with the same channels, units and rate.

    Positions are in rad or m if the units of every episode can be converted to SI; otherwise they stay in the unit of
    the logs, which must then be the same. If the rates differ, the faster set is resampled to the slower rate. A
    channel that only one set has is omitted, with a note.

    Args:
        real: Real episodes.
        sim: Simulated episodes.
        clip_s: Duration of a clip in seconds.

    Raises:
        LogError: If there are no episodes, there is no common channel, the kinds of command differ, or episodes are
            shorter than one clip.
        UnitsError: If units differ and cannot be converted; the message names the channel and both units.
    """
    for name, episodes in (("real", real), ("simulated", sim)):
        if not episodes:
            raise LogError(f"There is no {name} episode to compare. Give at least four.")
    channels, notes = _match_channels(real, sim)
    _require_same_command(real, sim)
    si = _can_convert_to_si(real, sim, channels, notes)
    rate, (real, sim) = _match_rates(real, sim, notes)
    sides = []
    for episodes in (real, sim):
        maps = [select_units(episode.units, channels) if si else None for episode in episodes]
        ordered = [select_channels(episode, channels) for episode in episodes]
        sides.append(cut_clips(ordered, maps, rate_hz=rate, clip_s=clip_s, names=channels))
    return MatchedClips(real=sides[0], sim=sides[1], notes=tuple(notes))


def _match_channels(real: Sequence[Episode], sim: Sequence[Episode]) -> tuple[list[str], list[str]]:
    mine, theirs = (
        [name for name in episodes[0].joints if all(name in e.joints for e in episodes)] for episodes in (real, sim)
    )
    for which, names, episodes in (("real", mine, real), ("simulated", theirs, sim)):
        if not names:
            raise LogError(
                f"The {which} log has no joint that is in all its episodes, and only joints are compared (its signals: "
                f"{_format_names(list(episodes[0].signals))}). Measure such a log with 'twinloop gap dynamics'."
            )
    common = [name for name in mine if name in theirs]
    if not common:
        raise LogError(
            f"The real log has {_format_names(mine)}, the simulated one {_format_names(theirs)}: no channel in "
            "common. Give the "
            "columns the same names (--joints)."
        )
    notes = [
        f"Left out, because only the {name} set has it: {_format_names(alone)}."
        for name, alone in (
            ("real", [n for n in mine if n not in common]),
            ("simulated", [n for n in theirs if n not in common]),
        )
        if alone
    ]
    return common, notes


def _require_same_command(real: Sequence[Episode], sim: Sequence[Episode]) -> None:
    kinds = [sorted({episode.command for episode in episodes}) for episodes in (real, sim)]
    if len(kinds[0]) > 1 or kinds[0] != kinds[1]:
        raise LogError(
            f"Commands are {_format_names(kinds[0])} in the real log and {_format_names(kinds[1])} in the simulated "
            "one. Compare "
            "logs of one kind of command."
        )


def _can_convert_to_si(
    real: Sequence[Episode], sim: Sequence[Episode], channels: Sequence[str], notes: list[str]
) -> bool:
    """Return whether all units of both sets can be converted to SI; append a note to ``notes`` if not.

    Args:
        real: Real episodes.
        sim: Simulated episodes.
        channels: Names of the compared channels.
        notes: List of notes, extended in place.

    Raises:
        UnitsError: If units cannot be converted and differ between episodes.
    """
    maps = [select_units(episode.units, channels) for episode in (*real, *sim)]
    if all(map_.known for map_ in maps):
        return True
    for column, channel in enumerate(channels):
        units = [map_.joints[column].unit for map_ in maps]
        mine, theirs = set(units[: len(real)]), set(units[len(real) :])
        if len(mine | theirs) > 1:
            raise UnitsError(
                f"{channel} is in {_format_names(sorted(mine))} in the real log and in "
                f"{_format_names(sorted(theirs))} in the "
                "simulated one, and not every log's unit can be converted to SI. Give the calibration (--calibration), "
                "or a twin whose joint ranges replace it (--ranges)."
            )
    own = [f"{unit.joint} in {unit.unit}" for unit in maps[0].joints]
    notes.append(
        f"Compared in the logs' units (u: {_format_names(own)}), which mean the same only with the same calibration."
    )
    return False


def _match_rates(
    real: Sequence[Episode], sim: Sequence[Episode], notes: list[str]
) -> tuple[float, tuple[Sequence[Episode], Sequence[Episode]]]:
    rates = [float(np.median([_compute_rate(episode) for episode in episodes])) for episodes in (real, sim)]
    slower = min(rates)
    made = []
    for name, episodes, rate in zip(("real", "simulated"), (real, sim), rates, strict=True):
        if all(has_even_rate(episode, slower) for episode in episodes):
            made.append(episodes)
            continue
        made.append([piece for episode in episodes for piece in resample(episode, slower)])
        notes.append(f"The {name} set was resampled from {rate:.4g} to {slower:.4g} Hz.")
    return slower, (made[0], made[1])


def _compute_rate(episode: Episode) -> float:
    if len(episode) < 2:
        raise LogError(f"Episode {episode.index} of {episode.origin or 'the log'} has a single frame. Leave it out.")
    return (len(episode) - 1) / float(episode.time[-1] - episode.time[0])


def has_even_rate(episode: Episode, rate: float) -> bool:
    """Return whether an episode has the given rate in Hz (within 2 %) and no missing frame."""
    return abs(_compute_rate(episode) / rate - 1) <= _SAME_RATE and float(np.diff(episode.time).max()) * rate < 1.5


def select_units(units: UnitMap, channels: Sequence[str]) -> UnitMap:
    """Return a unit map with only the given channels, in the given order."""
    by_name = {unit.joint: unit for unit in units.joints}
    return UnitMap(joints=tuple(by_name[name] for name in channels), source=units.source)


def select_channels(episode: Episode, channels: Sequence[str]) -> Episode:
    """Return an episode with only the given channels (joints), in the given order.

    The episode is returned unchanged if these are its channels already. Otherwise its further measurements
    (``Episode.signals``) are removed.
    """
    if list(episode.joints) == list(channels):
        return episode
    columns = [episode.joints.index(name) for name in channels]
    return replace(
        episode,
        units=select_units(episode.units, channels),
        action=episode.action[:, columns],
        state=episode.state[:, columns],
        signals={},
    )


def _format_names(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"


def require_positive_length(clip_s: float) -> None:
    """Check that the clip length in seconds is a positive finite number.

    Raises:
        InputError: If it is not.
    """
    if not 0 < clip_s < np.inf:
        raise InputError(f"Clips of {clip_s:g} s are not possible. Give a positive length in seconds, such as 2.")


def require_enough_draws(draws: int, level: float) -> None:
    """Check that a permutation test has enough draws for p-values down to 1 − ``level``.

    Args:
        draws: Number of random relabellings of episodes; 0 means that no test is made.
        level: Confidence level.

    Raises:
        InputError: If the number is negative or too small, or ``level`` is not a confidence level.
    """
    check_level(level)
    least = math.ceil(1 / (1 - level) - 1e-9) - 1
    if draws < 0 or 0 < draws < least:
        raise InputError(
            f"{draws} relabellings cannot give a p-value of {1 - level:.3g} or less; at least {least} are needed, and "
            "999 are usual. 0 leaves the tests out."
        )


def require_enough_clips(clips: ClipArrays, neighbours: int, *, side: str) -> None:
    """Check that every clip has at least ``neighbours`` clips in other episodes.

    Args:
        clips: Clips of one set.
        neighbours: Number of nearest neighbours that the comparison uses.
        side: Name of the set for messages.

    Raises:
        InputError: If there are too few clips; the message gives the number of clips.
    """
    most = int(np.unique(clips.clusters, return_counts=True)[1].max())
    if len(clips) - most < neighbours:
        raise InputError(
            f"The {side} set has {len(clips)} clips, {most} of one episode, and its nearest neighbours need "
            f"{neighbours} clips in other episodes. Use shorter clips (--clip), or give more episodes."
        )
