"""Compute features of motion clips: positions, speeds, jerk, tracking, spectrum, lag and gripper events.

The name of a feature consists of channel and kind (``elbow_flex/speed_rms``). Units are based on rad or m if the units
of the logs can be converted to SI, otherwise on ``u``, the log's own unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import LogError
from twinloop.core.records import Episode
from twinloop.core.units import UnitMap

Array = NDArray[np.float64]
# Bands in Hz: motion that a person or a planner commands, motion that a servo still follows, and faster motion. Hand
# tremor has 8 to 12 Hz; the bandwidth of small arms with position servos is 1 to 4 Hz (our choice).
BANDS = {"slow": (0.0, 1.0), "middle": (1.0, 4.0), "fast": (4.0, np.inf)}
_LONGEST_LAG_S = 0.5  # a longer lag cannot be distinguished from the period of the motion in a clip of a few seconds
# A clip has a lag if its command moves by at least this fraction of the channel's range over all clips.
_MOVING = 0.05
# A gripper closes below the first fraction of its range and opens above the second (our choice).
_CLOSED, _OPEN = 0.35, 0.65
MIN_FRAMES = 8  # jerk needs third differences, and the spectrum at least a few frequencies


@dataclass(frozen=True, kw_only=True)
class ClipFeature:
    """Description of one feature of motion clips.

    Attributes:
        channel: Joint of the feature.
        family: Group of related features, such as ``speed``.
        kind: Computed statistic, such as ``speed_rms``.
        unit: Unit of the values.
        meaning: Description for people.
    """

    channel: str
    family: str
    kind: str
    unit: str
    meaning: str

    @property
    def name(self) -> str:
        """Name of the feature, ``CHANNEL/KIND``."""
        return f"{self.channel}/{self.kind}"


# family, kind, unit (u stands for the channel's unit), meaning
_MEASURED = (
    ("position", "position_mean", "u", "mean position"),
    ("position", "position_range", "u", "range of positions"),
    ("speed", "speed_rms", "u/s", "speed, root mean square"),
    ("speed", "speed_peak", "u/s", "95th percentile of speed"),
    ("speed", "at_rest", "1", "share of time at less than a fiftieth of the channel's fastest clip's speed"),
    ("acceleration", "acceleration_rms", "u/s²", "acceleration, root mean square"),
    ("acceleration", "jerk_rms", "u/s³", "jerk, root mean square"),
    ("spectrum", "slow_rms", "u", "movement below 1 Hz, root mean square"),
    ("spectrum", "middle_rms", "u", "movement between 1 and 4 Hz, root mean square"),
    ("spectrum", "fast_rms", "u", "movement above 4 Hz, root mean square"),
)
_COMMANDED = (
    ("command", "command_mean", "u", "mean command"),
    ("command", "command_speed_rms", "u/s", "speed of the command, root mean square"),
)
_TRACKING = (
    ("tracking", "tracking_mean", "u", "mean of command − position"),
    ("tracking", "tracking_rms", "u", "command − position, root mean square"),
    ("lag", "lag", "s", "time by which the position follows the command"),
)
_GRIPPER = (
    ("gripper", "closings", "1/s", "closings per second"),
    ("gripper", "closed_share", "1", "share of time closed"),
)
_AT_REST = 0.02


@dataclass(frozen=True, kw_only=True)
class ClipArrays:
    """Motion of clips that all have the same number of frames.

    Attributes:
        position: Joint positions in the channel's unit, shape ``(nclip, nframe, n)`` for n channels (joints).
        action: Commands, same shape.
        clusters: Number of the episode that contains each clip, shape ``(nclip,)``; clips of one episode are one
            cluster.
        rate_hz: Frames per second.
        channels: Names of the joints.
        units: Unit of each channel: ``rad``, ``m``, or ``u`` for the log's own unit.
        command: Kind of the commands, as in `Episode`. Torque commands have another unit than positions.
    """

    position: Array
    action: Array
    clusters: NDArray[np.int64]
    rate_hz: float
    channels: tuple[str, ...]
    units: tuple[str, ...]
    command: str

    def __len__(self) -> int:
        return len(self.position)


def cut_clips(
    episodes: Sequence[Episode], units: Sequence[UnitMap | None], *, rate_hz: float, clip_s: float, names: Sequence[str]
) -> ClipArrays:
    """Cut episodes into consecutive clips without overlap; an incomplete clip at the end of an episode is omitted.

    Args:
        episodes: Episodes that have the channels ``names``, in any order.
        units: Unit map to SI for each episode; None to keep the episode's own units.
        rate_hz: Frames per second of all episodes.
        clip_s: Length of a clip in s.
        names: Channels (joints) in the order of the result.

    Raises:
        LogError: If no episode is as long as a clip, or a clip has fewer than 8 frames.
    """
    nframe = round(clip_s * rate_hz)
    if nframe < MIN_FRAMES:
        raise LogError(
            f"Clips of {clip_s:g} s have {nframe} frames at {rate_hz:g} Hz, but {MIN_FRAMES} are needed. "
            "Choose longer clips."
        )
    positions, actions, clusters = [], [], []
    for episode, map_ in zip(episodes, units, strict=True):
        columns = [episode.joints.index(name) for name in names]
        convert = (lambda values: values) if map_ is None else map_.to_si
        state = convert(episode.state)[:, columns]
        action = (convert(episode.action) if episode.command == "position" else episode.action)[:, columns]
        for begin in range(0, len(episode) - nframe + 1, nframe):
            positions.append(state[begin : begin + nframe])
            actions.append(action[begin : begin + nframe])
            clusters.append(episode.index)
    if not positions:
        longest = max(float(e.time[-1] - e.time[0]) for e in episodes)
        raise LogError(f"No episode is {clip_s:g} s long; the longest lasts {longest:.3g} s. Choose shorter clips.")
    first = episodes[0]
    by_name = {unit.joint: unit.unit for unit in first.units.joints}
    si = {name: "m" if by_name[name] in ("m", "cm", "mm") else "rad" for name in names}
    return ClipArrays(
        position=np.stack(positions),
        action=np.stack(actions),
        clusters=np.array(clusters, dtype=np.int64),
        rate_hz=rate_hz,
        channels=tuple(names),
        units=tuple("u" if units[0] is None else si[name] for name in names),
        command=first.command,
    )


def trajectory_features(real: ClipArrays, sim: ClipArrays) -> tuple[tuple[ClipFeature, ...], Array, Array]:
    """Return all features of real and simulated clips.

    Time at rest, lag and gripper events need thresholds. These are relative to the ranges and highest speeds of all
    clips, real and simulated, so that both sets are measured in the same way. A clip whose command moves too little
    gets the median lag of all clips. Features that are constant or not finite are omitted.

    Args:
        real: Clips of real episodes.
        sim: Clips of simulated episodes with the same channels and rate.

    Returns:
        The descriptions of the features, the values of the real clips and those of the simulated clips, shape ``(nclip,
        nfeature)`` each.
    """
    features: list[ClipFeature] = []
    columns: list[tuple[Array, Array]] = []
    for column, channel in enumerate(real.channels):
        both = [(clips.position[..., column], clips.action[..., column]) for clips in (real, sim)]
        rate, unit = real.rate_hz, real.units[column]
        tracked = real.command == "position"
        made = _motion_features(both, rate)
        kinds = list(_MEASURED)
        if tracked:
            made += _command_features(both, rate) + _tracking_features(both, rate)
            kinds += [*_COMMANDED, *_TRACKING]
        if "grip" in channel or "finger" in channel:
            made += _gripper_features(both, rate)
            kinds += list(_GRIPPER)
        for (family, kind, of, meaning), values in zip(kinds, made, strict=True):
            features.append(
                ClipFeature(channel=channel, family=family, kind=kind, unit=_format_unit(of, unit), meaning=meaning)
            )
            columns.append(values)
    kept = [i for i, pair in enumerate(columns) if np.isfinite(pair[0]).all() and _varies(pair)]
    tables = [np.stack([columns[i][side] for i in kept], axis=1) for side in (0, 1)]
    return tuple(features[i] for i in kept), tables[0], tables[1]


# Without the features whose thresholds depend on other clips: time at rest, lag, gripper events.
_ALONE = tuple(row for row in _MEASURED if row[1] != "at_rest")


def clip_features(clips: ClipArrays) -> tuple[tuple[ClipFeature, ...], Array]:
    """Return the features of clips that do not depend on other clips, and their values.

    These are all features of `trajectory_features` except time at rest, lag and gripper events.

    Returns:
        The descriptions of the features, and the values, shape ``(nclip, nfeature)``.
    """
    features: list[ClipFeature] = []
    columns: list[Array] = []
    for column, channel in enumerate(clips.channels):
        side = [(clips.position[..., column], clips.action[..., column])]
        found = dict(zip(_MEASURED, (values[0] for values in _motion_features(side, clips.rate_hz)), strict=True))
        made = [(row, found[row]) for row in _ALONE]
        if clips.command == "position":
            ((position, action),) = side
            commanded = [values[0] for values in _command_features(side, clips.rate_hz)]
            made += zip(_COMMANDED, commanded, strict=True)
            made += zip(_TRACKING[:2], [(action - position).mean(axis=1), _rms(action - position)], strict=True)
        for (family, kind, of, meaning), values in made:
            unit = _format_unit(of, clips.units[column])
            features.append(ClipFeature(channel=channel, family=family, kind=kind, unit=unit, meaning=meaning))
            columns.append(values)
    return tuple(features), np.stack(columns, axis=1)


Pairs = list[tuple[Array, Array]]


def _motion_features(both: Pairs, rate: float) -> Pairs:
    sides = []
    speeds = [np.diff(position, axis=1) * rate for position, _ in both]
    fastest = max(float(_rms(speed).max()) for speed in speeds)
    for (position, _), speed in zip(both, speeds, strict=True):
        acceleration = np.diff(speed, axis=1) * rate
        sides.append(
            [
                position.mean(axis=1),
                np.ptp(position, axis=1),
                _rms(speed),
                np.quantile(np.abs(speed), 0.95, axis=1),
                (np.abs(speed) <= _AT_REST * fastest).mean(axis=1),
                _rms(acceleration),
                _rms(np.diff(acceleration, axis=1) * rate),
                *_band_rms(position, rate),
            ]
        )
    return list(zip(*sides, strict=True))


def _command_features(both: Pairs, rate: float) -> Pairs:
    sides = [[action.mean(axis=1), _rms(np.diff(action, axis=1) * rate)] for _, action in both]
    return list(zip(*sides, strict=True))


def _tracking_features(both: Pairs, rate: float) -> Pairs:
    least = _MOVING * max(float(np.ptp(np.concatenate([action.ravel() for _, action in both]))), 1e-12)
    lags = [_estimate_lags(action, position, rate, least) for position, action in both]
    known = np.concatenate(lags)
    middle = float(np.median(known[~np.isnan(known)])) if not np.isnan(known).all() else np.nan
    sides = [
        [(action - position).mean(axis=1), _rms(action - position), np.where(np.isnan(lag), middle, lag)]
        for (position, action), lag in zip(both, lags, strict=True)
    ]
    return list(zip(*sides, strict=True))


def _estimate_lags(action: Array, position: Array, rate: float, least: float) -> Array:
    """Return the lag of each clip's position behind its command in s, shape ``(nclip,)``; NaN if the clip barely moves.

    The lag is the delay of the command for which position − command has the smallest variance, refined between frames
    by a parabola. All delays are compared over the same frames of the position, because fewer frames would bias the
    variance of large delays.

    Args:
        action: Position commands of one channel, shape ``(nclip, nframe)``.
        position: Positions of the channel, shape ``(nclip, nframe)``.
        rate: Frames per second.
        least: Smallest range of the commands for which a lag is estimated.
    """
    longest = min(round(_LONGEST_LAG_S * rate), action.shape[1] // 2)
    stretch = action.shape[1] - longest
    delayed = np.lib.stride_tricks.sliding_window_view(action, stretch, axis=1)[:, ::-1]  # (nclip, delay, stretch)
    spread = (position[:, None, longest:] - delayed).var(axis=2)
    best = np.argmin(spread, axis=1)
    inner = np.clip(best, 1, longest - 1)[:, None] + np.arange(-1, 2)
    before, middle, after = np.take_along_axis(spread, inner, axis=1).T
    curvature = before - 2 * middle + after
    shift = np.divide(
        0.5 * (before - after), curvature, out=np.zeros_like(curvature), where=(curvature > 0) & (inner[:, 1] == best)
    )
    moves = np.ptp(action[:, : stretch + 1], axis=1) >= least
    return np.where(moves & (np.ptp(position, axis=1) > 0), (best + shift) / rate, np.nan)


def _gripper_features(both: Pairs, rate: float) -> Pairs:
    every = np.concatenate([position.ravel() for position, _ in both])
    low, span = float(every.min()), max(float(np.ptp(every)), 1e-12)
    sides = []
    for position, _ in both:
        closed = np.array([_find_closed_frames((clip - low) / span) for clip in position])
        closings = np.sum(closed[:, 1:] & ~closed[:, :-1], axis=1) * rate / position.shape[1]
        sides.append([closings, closed.mean(axis=1)])
    return list(zip(*sides, strict=True))


def _find_closed_frames(share: Array) -> NDArray[np.bool_]:
    """Return for each frame whether a gripper is closed, with hysteresis, shape ``(nframe,)``.

    The gripper closes when its opening falls to 0.35 and opens when it rises to 0.65.

    Args:
        share: Opening of the gripper as a share of its range, shape ``(nframe,)``.
    """
    state = np.where(share <= _CLOSED, 1, np.where(share >= _OPEN, 0, -1))
    last = np.maximum.accumulate(np.where(state >= 0, np.arange(len(state)), -1))
    return np.where(last >= 0, state[np.maximum(last, 0)] == 1, share < 0.5)


def _band_rms(position: Array, rate: float) -> list[Array]:
    """Return the root mean square of the positions in each frequency band, shape ``(nclip,)`` per band.

    The bands are those of `BANDS`: below 1 Hz, 1 to 4 Hz, and from 4 Hz. A linear trend is removed from every clip
    first.

    Args:
        position: Positions of one channel, shape ``(nclip, nframe)``.
        rate: Frames per second.
    """
    nframe = position.shape[1]
    time = np.linspace(-1.0, 1.0, nframe)
    level = position.mean(axis=1, keepdims=True)
    straight = position - level - ((position @ time) / (time @ time))[:, None] * time
    power = 2 * np.abs(np.fft.rfft(straight, axis=1)) ** 2 / nframe**2
    frequency = np.fft.rfftfreq(nframe, 1 / rate)
    return [np.sqrt(power[:, (frequency >= low) & (frequency < high)].sum(axis=1)) for low, high in BANDS.values()]


def _rms(values: Array) -> Array:
    return np.sqrt(np.mean(values**2, axis=1))


def _varies(pair: tuple[Array, Array]) -> bool:
    both = np.concatenate(pair)
    return bool(np.ptp(both) > 1e-9 * max(1e-12, float(np.abs(both).max())))


def _format_unit(of: str, unit: str) -> str:
    return unit + of[1:] if of.startswith("u") else of
