"""Read the sensor channels of a real and a simulated log, and match them by name and unit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import LogError, UnitsError
from twinloop.core.records import Episode
from twinloop.dataset.signals import column_units

Array = NDArray[np.float64]

# Commands of a motor or a switch, which are not sensor readings.
_COMMANDS = ("motor", "enabled")
_POSITION_COLUMNS = 3  # of a pose; the numbers of an orientation are one reading and cannot be compared singly
_LISTED = 8  # channels in the message if logs have none in common
_STILL_PART = 0.005  # of a joint's whole travel: less motion counts as rest, as in the checks of logs
_STILL_SHORTEST = 0.5  # s


@dataclass(frozen=True, kw_only=True)
class SensorChannel:
    """One sensor channel over the episodes of a log.

    Attributes:
        name: Name, for example ``position/elbow_flex``.
        unit: Unit of the values.
        time: Times in s, an array per episode.
        values: Readings, an array per episode.
        reference: Signal that the channel follows with a lag, at the same times, an array per episode: a joint's
            command for its position, and the slope of its position for its speed. None if there is no such signal.
        rest: Longest part of each episode without joint motion, as its first row and the row after its last; None if
            there is no such part.
    """

    name: str
    unit: str
    time: tuple[Array, ...]
    values: tuple[Array, ...]
    reference: tuple[Array | None, ...]
    rest: tuple[tuple[int, int] | None, ...]


def sensor_channels(episodes: Sequence[Episode], *, si: bool) -> dict[str, SensorChannel]:
    """Return every channel that all episodes have, by name: ``position/JOINT`` and ``SIGNAL/COLUMN``.

    Args:
        episodes: Episodes of one log.
        si: Whether joint positions are converted to rad or m; otherwise they are in the log's own units.

    Raises:
        LogError: If there are no episodes, or their units differ.
    """
    if not episodes:
        raise LogError("There is no episode to compare. Give a log with at least one.")
    if any(episode.units != episodes[0].units for episode in episodes):
        raise LogError("The episodes of a log have different units or joints. Compare such episodes separately.")
    still = [_find_longest_rest(episode) for episode in episodes]
    parts = [dict(_readings(episode, si=si)) for episode in episodes]
    names = [name for name in parts[0] if all(name in part for part in parts)]
    return {
        name: SensorChannel(
            name=name,
            unit=parts[0][name].unit,
            time=tuple(part[name].time for part in parts),
            values=tuple(part[name].values for part in parts),
            reference=tuple(part[name].reference for part in parts),
            rest=tuple(_find_rows(part[name].time, span) for part, span in zip(parts, still, strict=True)),
        )
        for name in names
    }


def match_channels(
    real: Sequence[Episode], sim: Sequence[Episode], same: Mapping[str, str]
) -> tuple[list[tuple[SensorChannel, SensorChannel]], list[str]]:
    """Match the channels of a real and a simulated log.

    Joint positions are compared in SI if both logs have SI units, otherwise in the logs' unit, which must be the same.

    Args:
        real: Episodes of the real log.
        sim: Episodes of the simulated log.
        same: Names of signals that differ between the logs, ``{real: simulated}``, such as ``{"acceleration/imu":
            "acceleration/tool_imu"}``.

    Returns:
        Pairs of real and simulated channels, and the names of real channels that the simulated log does not have.

    Raises:
        LogError: If no channel is in both logs, or a name in ``same`` is in neither; the message lists the channels.
        UnitsError: If a channel has different units in the two logs.
    """
    si = real[0].units.known and sim[0].units.known if real and sim else False
    ours, theirs = sensor_channels(real, si=si), sensor_channels(sim, si=si)
    for name in same:
        if not any(channel.rpartition("/")[0] == name for channel in ours):
            raise LogError(f"The real log has no signal {name}. It has: {_format_families(ours)}.")
        if not any(channel.rpartition("/")[0] == same[name] for channel in theirs):
            raise LogError(f"The simulated log has no signal {same[name]}. It has: {_format_families(theirs)}.")
    pairs: list[tuple[SensorChannel, SensorChannel]] = []
    for name, channel in ours.items():
        family, _, column = name.rpartition("/")
        other = theirs.get(f"{same.get(family, family)}/{column}")
        if other is None:
            continue
        if other.unit != channel.unit:
            raise UnitsError(
                f"{name} is in {channel.unit} in the real log and in {other.unit} in the simulated one. Give both in "
                "one unit: --units or --calibration converts a log's unit to radians."
            )
        pairs.append((channel, other))
    if not pairs:
        raise LogError(
            f"The logs share no channel. The real one has {_format_channels(ours)}, the simulated one "
            f"{_format_channels(theirs)}. Use --same "
            "REAL=SIM if one signal has two names, and --joints to give joints the same names."
        )
    paired = {channel.name for channel, _ in pairs}
    return pairs, [name for name in ours if name not in paired]


@dataclass(frozen=True, kw_only=True)
class _ChannelReading:
    unit: str
    time: Array
    values: Array
    reference: Array | None


def _readings(episode: Episode, *, si: bool) -> Iterator[tuple[str, _ChannelReading]]:
    """Yield the name and the readings of each channel of one episode; ``si`` converts joint positions to rad or m."""
    state = episode.units.to_si(episode.state) if si and episode.joints else episode.state
    action = episode.units.to_si(episode.action) if si and episode.joints else episode.action
    slope = np.gradient(state, episode.time, axis=0) if len(episode) > 1 and episode.joints else None
    for column, unit in enumerate(episode.units.joints):
        yield (
            f"position/{unit.joint}",
            _ChannelReading(
                unit=("m" if unit.unit == "m" else "rad") if si else unit.unit,
                time=episode.time,
                values=state[:, column],
                reference=action[:, column] if episode.command == "position" else None,
            ),
        )
    for name, signal in episode.signals.items():
        if name in _COMMANDS or not len(signal):
            continue
        width = _POSITION_COLUMNS if name.startswith("pose/") else len(signal.columns)
        for column in range(width):
            reference = None
            if name == "joint_velocity" and slope is not None and signal.columns[column] in episode.joints:
                joint = episode.joints.index(signal.columns[column])
                reference = np.interp(signal.time, episode.time, slope[:, joint])
            unit = column_units(name, signal)[column]
            reading = _ChannelReading(unit=unit, time=signal.time, values=signal.values[:, column], reference=reference)
            yield f"{name}/{signal.columns[column]}", reading


def _find_longest_rest(episode: Episode) -> tuple[float, float] | None:
    """Return begin and end in s of the longest interval without joint motion; None if it is shorter than 0.5 s.

    A joint is at rest if it stays within 0.5 % of its travel in the episode.
    """
    if not episode.joints or len(episode) < 2:
        return None
    width = _STILL_PART * np.ptp(episode.state, axis=0)
    shortest, longest = 1, len(episode)
    while shortest < longest:  # bisection works: every part of a still interval is still
        middle = (shortest + longest + 1) // 2
        if _find_still_rows(episode.state, middle, width).any():
            shortest = middle
        else:
            longest = middle - 1
    first = int(np.argmax(_find_still_rows(episode.state, shortest, width)))
    begin, end = float(episode.time[first]), float(episode.time[first + shortest - 1])
    return (begin, end) if end - begin >= _STILL_SHORTEST else None


def _find_still_rows(state: Array, length: int, width: Array) -> NDArray[np.bool_]:
    """Return for each row whether all joints stay within ``width`` during ``length`` rows from that row on.

    Args:
        state: Joint positions, shape ``(n, njoint)``.
        length: Number of rows.
        width: Largest range of each joint's positions, shape ``(njoint,)``.

    Returns:
        Shape ``(n - length + 1,)``.
    """
    from scipy.ndimage import maximum_filter1d, minimum_filter1d  # slow to load

    inside = slice(length // 2, length // 2 + len(state) - length + 1)
    high, low = (np.asarray(pick(state, length, axis=0))[inside] for pick in (maximum_filter1d, minimum_filter1d))
    return np.all(high - low <= width, axis=1)


def _find_rows(time: Array, span: tuple[float, float] | None) -> tuple[int, int] | None:
    if span is None:
        return None
    rows = np.searchsorted(time, span[0], side="left"), np.searchsorted(time, span[1], side="right")
    return (int(rows[0]), int(rows[1])) if rows[1] > rows[0] else None


def _format_channels(channels: Mapping[str, SensorChannel]) -> str:
    more = len(channels) - _LISTED
    return (", ".join(list(channels)[:_LISTED]) or "none") + (f" and {more} more" if more > 0 else "")


def _format_families(channels: Mapping[str, SensorChannel]) -> str:
    return ", ".join(dict.fromkeys(name.rpartition("/")[0] for name in channels)) or "none"
