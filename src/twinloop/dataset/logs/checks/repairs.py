"""Repair defects of logs. A repair is applied only if the user requests it, never because of a finding."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.records import Episode, LoggedSignal
from twinloop.core.units import PERCENT
from twinloop.dataset.logs.checks.values import find_wraps
from twinloop.dataset.logs.importers.protocol import RawEpisode
from twinloop.dataset.logs.resampling import resample

_COMMAND = "action/"


@dataclass(frozen=True, kw_only=True)
class LogRepairs:
    """Repairs of every episode of a log, applied in the order of the attributes.

    Attributes:
        time_scale: Factor of all times to seconds.
        scale: Factor of a signal's values, by name of the signal; for poses it applies to the position only.
        quaternions_xyzw: Whether the poses in the log have their quaternions as xyzw; they are converted to wxyz.
        flip: Names whose sign is changed: a joint (its measurement), ``action/JOINT``, a signal, or
            ``SIGNAL/COLUMN``.
        shift: Time in s that is added to the times of measurements, by name of a joint or signal; "" for all
            joints.
        clock_rate: Factor that stretches the times of the commands from the beginning of the episode.
        unwrap: Joints whose angles are unwrapped.
        drop_missing: Remove frames with a value that is not a number.
        drop_duplicates: Remove frames with the time of the previous frame, and frames that repeat the previous
            frame while the robot moves.
        resample_hz: Uniform rate in Hz to which the checked episodes are resampled, split at gaps; None for no
            resampling.
    """

    time_scale: float = 1.0
    scale: Mapping[str, float] = field(default_factory=dict[str, float])
    quaternions_xyzw: bool = False
    flip: Sequence[str] = ()
    shift: Mapping[str, float] = field(default_factory=dict[str, float])
    clock_rate: float = 1.0
    unwrap: Sequence[str] = ()
    drop_missing: bool = False
    drop_duplicates: bool = False
    resample_hz: float | None = None

    def __post_init__(self) -> None:
        rates = {"--time-scale": self.time_scale, "--resample": self.resample_hz}
        for flag, value in rates.items():
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{flag} {value:g} is not a finite number above 0.")
        for flag, values in (("--shift", self.shift), ("--scale", self.scale)):
            for name, value in values.items():
                if not math.isfinite(value):
                    raise InputError(f"{flag} {name or value}: {value:g} is not a finite number.")

    def repair_episode(self, record: RawEpisode) -> RawEpisode:
        """Return an episode with all repairs that the user requested, except resampling.

        Raises:
            UnknownNameError: If the log has no joint, signal or column of a given name.
        """
        record = _rescale_time(record, self.time_scale) if self.time_scale != 1 else record
        for name, factor in self.scale.items():
            record = _change_signal(record, name, lambda values, factor=factor: values * factor)
        if self.quaternions_xyzw:
            record = _reorder_quaternions(record)
        for name in self.flip:
            record = _flip_sign(record, name)
        for name, seconds in self.shift.items():
            record = _shift_time(record, name, seconds)
        record = _stretch_clock(record, self.clock_rate) if self.clock_rate != 1 else record
        for joint in self.unwrap:
            record = _unwrap_joint(record, joint)
        record = drop_missing(record) if self.drop_missing else record
        return drop_duplicates(record) if self.drop_duplicates else record

    def repair_episodes(self, records: Sequence[RawEpisode]) -> list[Episode]:
        """Return the checked episodes of a log with all repairs, including resampling if it is requested.

        Raises:
            LogError: If an episode is still invalid.
            UnknownNameError: If the log has no joint, signal or column of a given name.
        """
        made = [self.repair_episode(record).to_episode() for record in records]
        if self.resample_hz is None:
            return made
        return [piece for episode in made for piece in resample(episode, self.resample_hz)]


def drop_missing(record: RawEpisode) -> RawEpisode:
    """Return the episode without the frames and the samples of signals that have a value that is not finite."""
    good = np.isfinite(record.time) & np.isfinite(record.state).all(axis=1)
    if record.action_time is None and record.command != "none":
        good &= np.isfinite(record.action).all(axis=1)
    signals = {}
    for name, signal in record.signals.items():
        rows = np.isfinite(signal.time) & np.isfinite(signal.values).all(axis=1)
        signals[name] = replace(signal, time=signal.time[rows], values=signal.values[rows])
    return replace(_select_rows(record, good), signals=signals)


def drop_duplicates(record: RawEpisode) -> RawEpisode:
    """Return the episode without frames that have the time of the previous frame.

    Frames that repeat the values of the previous frame while the robot moves are removed, too.
    """
    later = np.diff(record.time, prepend=-np.inf) != 0
    signals = {}
    for name, signal in record.signals.items():
        rows = np.diff(signal.time, prepend=-np.inf) != 0
        signals[name] = replace(signal, time=signal.time[rows], values=signal.values[rows])
    record = replace(_select_rows(record, later), signals=signals)
    from twinloop.dataset.logs.checks.timing import find_repeated_rows  # loads scipy.optimize, half a second

    repeats, _ = find_repeated_rows(record)
    return _select_rows(record, ~np.isin(np.arange(len(record.time)), repeats))


def _select_rows(record: RawEpisode, rows: NDArray[np.bool_]) -> RawEpisode:
    action = record.action if record.action_time is not None else record.action[rows]
    return replace(record, time=record.time[rows], state=record.state[rows], action=action)


def _rescale_time(record: RawEpisode, factor: float) -> RawEpisode:
    own = None if record.action_time is None else record.action_time * factor
    signals = {name: replace(signal, time=signal.time * factor) for name, signal in record.signals.items()}
    return replace(record, time=record.time * factor, action_time=own, signals=signals)


def _change_signal(
    record: RawEpisode, name: str, change: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> RawEpisode:
    """Apply a function to the values of one signal.

    For a pose, it is applied to the position only, because orientations have no scale.
    """
    if name not in record.signals:
        raise UnknownNameError("signal", name, record.signals, where=f"episode {record.index}")
    signal = record.signals[name]
    values = np.array(signal.values)
    columns = slice(0, 3) if name.startswith("pose/") else slice(None)
    values[:, columns] = change(values[:, columns])
    return replace(record, signals={**record.signals, name: replace(signal, values=values)})


def _reorder_quaternions(record: RawEpisode) -> RawEpisode:
    """Convert the quaternions of all poses from xyzw to wxyz."""
    signals: dict[str, LoggedSignal] = dict(record.signals)
    for name, signal in record.signals.items():
        if name.startswith("pose/"):
            signals[name] = replace(signal, values=signal.values[:, [0, 1, 2, 6, 3, 4, 5]])
    return replace(record, signals=signals)


def _flip_sign(record: RawEpisode, name: str) -> RawEpisode:
    joint = name.removeprefix(_COMMAND)
    if joint in record.joints:
        column = record.joints.index(joint)
        which = "action" if name.startswith(_COMMAND) else "state"
        values = np.array(getattr(record, which))
        turned_about = 100.0 if record.units.joints[column].unit == PERCENT else 0.0
        values[:, column] = turned_about - values[:, column]
        return replace(record, **{which: values})
    whole, _, part = name.partition("/")
    if name in record.signals:
        return _change_signal(record, name, np.negative)
    if whole in record.signals and part in record.signals[whole].columns:
        signal = record.signals[whole]
        values = np.array(signal.values)
        values[:, signal.columns.index(part)] *= -1
        return replace(record, signals={**record.signals, whole: replace(signal, values=values)})
    raise UnknownNameError("joint or signal", name, _list_names(record), where=f"episode {record.index}")


def _shift_time(record: RawEpisode, name: str, seconds: float) -> RawEpisode:
    """Delay measurements by ``seconds``.

    If ``name`` is empty, all joints are delayed, and the commands keep their times.
    """
    if not name:
        own = record.time if record.action_time is None else record.action_time
        return replace(record, time=record.time + seconds, action_time=own)
    if name in record.signals:
        signal = record.signals[name]
        return replace(record, signals={**record.signals, name: replace(signal, time=signal.time + seconds)})
    if name not in record.joints:
        raise UnknownNameError("joint or signal", name, _list_names(record), where=f"episode {record.index}")
    column = record.joints.index(name)
    state = np.array(record.state)
    state[:, column] = np.interp(record.time - seconds, record.time, state[:, column])
    known = (record.time >= record.time[0] + seconds) & (record.time <= record.time[-1] + seconds)
    return _select_rows(replace(record, state=state), known)


def _stretch_clock(record: RawEpisode, rate: float) -> RawEpisode:
    if not rate > 0:
        raise InputError(f"The clock rate {rate:g} is not above 0. Give a factor such as 1.0002.")
    own = record.time if record.action_time is None else record.action_time
    begin = record.time[0]
    return replace(record, action_time=begin + (own - begin) * rate)


def _unwrap_joint(record: RawEpisode, joint: str) -> RawEpisode:
    if joint not in record.joints:
        raise UnknownNameError("joint", joint, record.joints, where=f"episode {record.index}")
    column = record.joints.index(joint)
    for which in ("state", "action") if record.command == "position" else ("state",):
        values = np.array(getattr(record, which))
        found = find_wraps(values[:, column])
        if found is not None:
            values[:, column] = np.unwrap(values[:, column], period=found[1])
            record = replace(record, **{which: values})
    return record


def _list_names(record: RawEpisode) -> list[str]:
    columns = [f"{name}/{column}" for name, signal in record.signals.items() for column in signal.columns]
    return [*record.joints, *(f"{_COMMAND}{joint}" for joint in record.joints), *record.signals, *columns]
