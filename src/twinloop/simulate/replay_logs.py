"""Cut recorded episodes into windows that a twin can replay in one batch."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError, LogError
from twinloop.core.records import Episode
from twinloop.core.units import UnitMap, require_joints
from twinloop.simulate.channels import (
    ChannelKind,
    MeasuredChannel,
    hold_first_frame,
    interpolate_at_frames,
    make_channel_kinds,
)
from twinloop.simulate.replay_start import WindowStart, read_starts
from twinloop.twin import Twin

Array = NDArray[np.float64]
_RATE_TOLERANCE = 0.02
_TWO = 2


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """Options of replaying a log: windows, initial states, and compared measurements.

    Attributes:
        window: length of a window in s; None replays whole episodes.
        stride: distance between the starts of windows, in s; by default windows do not overlap.
        start: initial velocities of a window: ``rest``, or ``measured`` (the signal ``joint_velocity`` or
            ``twist/BODY`` if the log has it, else differences of positions).
        compare: kinds of measurement, see `channels.make_channel_kinds`; joint positions come first, if compared.
        contacts: keep contacts and joint stops. A log of joint positions alone contains neither the objects on the
            table nor the stops of a calibrated joint.
        torque: input of a torque-controlled twin: the ``command``, or the signal ``joint_torque`` as ``measured``.
        conditions: parameters whose value every episode states: parameter by name of the episode's condition.
        local: unknown corrections of each window's first state, by prior standard deviation: ``position`` (joints rad
            or m; free bodies m), ``rotation`` (free bodies, rad), ``velocity`` (rad/s or m/s), ``spin`` (rad/s).
        history: time in s before a window whose commands may still be delayed into it.
    """

    window: float | None = None
    stride: float | None = None
    start: Literal["rest", "measured"] = "rest"
    compare: tuple[str, ...] = ("position",)
    contacts: bool = False
    torque: Literal["command", "measured"] = "command"
    conditions: Mapping[str, str] = field(default_factory=dict[str, str])
    local: Mapping[str, float] = field(default_factory=dict[str, float])
    history: float = 0.3


@dataclass(frozen=True, kw_only=True)
class ReplayLogs:
    """Windows of equal rate, ready for a replay; whole episodes unless they were cut.

    ``twin`` is the variant at the log's rate, without contacts unless requested. ``commands`` ``(nwindow, nframe, nu)``
    are in the actuators' units, the last one held to the longest window; ``measured`` ``(nwindow, nframe, nchannel)``
    is in each channel's unit, joint positions in the log's units, NaN after each window's end. ``kept`` is further data
    of the log for the channels. ``numbers`` are the episode numbers of the windows, ``begins`` their start times in s.
    ``calibrated`` is False if the twin's joint ranges replace a calibration that the log lacks.
    """

    twin: Twin
    units: UnitMap
    commands: Array
    measured: Array
    kept: tuple[Array, ...]
    measures: tuple[ChannelKind, ...]
    start: WindowStart
    conditions: Mapping[str, Array]
    numbers: tuple[int, ...]
    begins: Array
    calibrated: bool

    @property
    def joints(self) -> tuple[str, ...]:
        """Joint names in column order."""
        return self.units.names

    @property
    def channels(self) -> tuple[MeasuredChannel, ...]:
        """Channels of the last axis of ``measured``."""
        return tuple(channel for measure in self.measures for channel in measure.channels)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of frames with a measurement in each window, ``(nwindow,)``."""
        return np.sum(~np.isnan(self.measured).all(axis=-1), axis=1)

    @property
    def episodes(self) -> tuple[int, ...]:
        """Numbers of the episodes, each once, in ascending order."""
        return tuple(sorted(set(self.numbers)))

    @property
    def ends(self) -> NDArray[np.int64]:
        """Number of frames of each window up to the last one with a measurement, ``(nwindow,)``; at least two."""
        seen = np.any(~np.isnan(self.measured), axis=-1)
        return np.maximum(self.measured.shape[1] - np.argmax(seen[:, ::-1], axis=1), _TWO)

    @property
    def clusters(self) -> NDArray[np.intp]:
        """The episode that each window comes from, as a position in ``episodes``, ``(nwindow,)``."""
        return np.unique(np.asarray(self.numbers), return_inverse=True)[1]

    @property
    def episode_lengths(self) -> Array:
        """Number of measured frames of each episode's windows, ``(nepisode,)``."""
        return self._sum_by_episode(self.lengths)

    def episode_errors(self, readings: Array) -> Array:
        """Return the mean absolute error of readings ``(nwindow, nframe, nchannel)``, ``(nepisode, nchannel)``."""
        size = np.abs(readings - self.measured)
        return self._sum_by_episode(np.nansum(size, axis=1)) / self._sum_by_episode(np.sum(~np.isnan(size), axis=1))

    def _sum_by_episode(self, values: NDArray[Any]) -> Array:
        """Return sums of ``(nwindow, …)`` over the windows of each episode, ``(nepisode, …)``."""
        sums = np.zeros((len(self.episodes), *values.shape[1:]))
        np.add.at(sums, self.clusters, values)
        return sums

    @property
    def nlocal(self) -> int:
        """Number of components of each window's first state that may be corrected."""
        return len(self.start.sd)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def hold_baseline(self) -> Array:
        """Prediction of a baseline that holds the first frame of each window, ``(nwindow, nframe, nchannel)``."""
        return self.substitute_data([hold_first_frame(kept) for kept in self.kept])

    def substitute_data(self, others: Sequence[Array]) -> Array:
        """Return the predicted channels with ``others`` in place of ``kept``, ``(nwindow, nframe, nchannel)``."""
        rows = zip(self.measures, self.kept, others, strict=True)
        return np.concatenate([measure.substitute_data(kept, other) for measure, kept, other in rows], axis=-1)

    def take(self, rows: ArrayLike) -> ReplayLogs:
        """Return some of the windows, by position."""
        index = np.asarray(rows, dtype=np.intp)
        return replace(
            self,
            commands=self.commands[index],
            measured=self.measured[index],
            kept=tuple(values[index] for values in self.kept),
            start=self.start.take(index),
            conditions={name: values[index] for name, values in self.conditions.items()},
            numbers=tuple(self.numbers[i] for i in index),
            begins=self.begins[index],
        )

    def trim_frames(self) -> ReplayLogs:
        """Return the same windows without the frames after the end of the longest one."""
        frames = slice(0, int(self.ends.max(initial=_TWO)))
        return replace(
            self,
            commands=self.commands[:, frames],
            measured=self.measured[:, frames],
            kept=tuple(values[:, frames] for values in self.kept),
        )

    def select_episodes(self, numbers: Sequence[int]) -> ReplayLogs:
        """Return the windows of some episodes."""
        wanted = set(numbers)
        return self.take([row for row, number in enumerate(self.numbers) if number in wanted])


def prepare_replay(twin: Twin, episodes: Sequence[Episode], options: ReplayOptions | None = None) -> ReplayLogs:
    """Return the windows of episodes, with columns in the order of the twin's joints.

    If the log has no calibration of its units in radians, the twin's joint ranges replace it.

    Raises:
        LogError: no episodes, a missing joint or signal, episodes of different units or rates, one of a single frame, a
            condition that an episode does not state.
        InputError: the twin lacks a compared channel.
    """
    options = options or ReplayOptions()
    if not episodes:
        raise LogError("There is no episode to replay. Give a log with at least one.")
    first = episodes[0]
    joints = list(twin.robot.joints) if twin.spec.robot is not None else []
    columns = require_joints(joints, first.joints, where=first.origin or "The log")
    for episode in episodes:
        if episode.units != first.units:
            raise LogError(
                f"Episode {episode.index} has other units or joints than episode {first.index}. Split the log."
            )
        if len(episode) < _TWO:
            raise LogError(f"Episode {episode.index} has a single frame; there is nothing to replay. Leave it out.")
    chosen = tuple(first.units.joints[i] for i in columns)
    calibrated = all(unit.known for unit in chosen)
    known = UnitMap(joints=chosen, source=first.units.source)
    units = known if calibrated else twin.unit_map([unit.unit for unit in chosen])
    replayed = _make_variant(twin, _log_rate(episodes), contacts=options.contacts)
    compared = make_channel_kinds(replayed, options.compare, units if joints else None, columns)
    _refuse_window(episodes, options)
    cuts = [(e, slice(a, b)) for e in episodes for a, b in _cut_windows(e, options, replayed.control_hz)]
    nframe = max(cut.stop - cut.start for _, cut in cuts)
    commands = {e.index: _commands(replayed, e, columns, units, options) for e in episodes}
    kept = [{e.index: measure.extract_data(e) for e in episodes} for measure in compared]
    arrays = tuple(np.stack([_pad(rows[e.index][cut], nframe, hold=False) for e, cut in cuts]) for rows in kept)
    return ReplayLogs(
        twin=replayed,
        units=units,
        commands=np.stack([_pad(commands[e.index][cut], nframe, hold=True) for e, cut in cuts]),
        measured=np.concatenate(
            [m.compute_measured(values) for m, values in zip(compared, arrays, strict=True)], axis=-1
        ),
        kept=arrays,
        measures=compared,
        start=read_starts(
            replayed,
            [(e, cut.start) for e, cut in cuts],
            joints={e.index: units.to_si(e.state[:, columns]) for e in episodes} if joints else {},
            columns=columns,
            commands=commands,
            resting=options.start == "rest",
            sd=options.local,
            history=math.ceil(options.history * replayed.control_hz),
        ),
        conditions={name: _condition([e for e, _ in cuts], key) for name, key in options.conditions.items()},
        numbers=tuple(e.index for e, _ in cuts),
        begins=np.array([e.time[cut.start] for e, cut in cuts]),
        calibrated=calibrated,
    )


def _refuse_window(episodes: Sequence[Episode], options: ReplayOptions) -> None:
    """Refuse windows that are longer than every episode."""
    longest = max(float(episode.time[-1] - episode.time[0]) for episode in episodes)
    if options.window is not None and not 0 < options.window <= longest * (1 + _RATE_TOLERANCE):
        raise InputError(
            f"Windows of {options.window:g} s do not fit: the longest episode lasts {longest:.4g} s. Give a shorter "
            "window, or none to replay whole episodes."
        )


def _cut_windows(episode: Episode, options: ReplayOptions, hz: float) -> list[tuple[int, int]]:
    """Return first and end frame of an episode's windows, up to the frame at which its motors are switched off."""
    last = len(episode)
    if "enabled" in episode.signals:
        off = np.flatnonzero(interpolate_at_frames(episode, "enabled")[:, 0] < 1.0)
        last = int(off[0]) if len(off) else last
    if last < _TWO:
        raise LogError(f"The motors of episode {episode.index} are off from its beginning. Leave it out.")
    if options.window is None:
        return [(0, last)]
    length = min(max(_TWO, round(options.window * hz) + 1), last)
    stride = length - 1 if options.stride is None else max(1, round(options.stride * hz))
    return [(begin, begin + length) for begin in range(0, last - length + 1, stride)]


def _commands(twin: Twin, episode: Episode, columns: Sequence[int], units: UnitMap, options: ReplayOptions) -> Array:
    """Return the commands at the actuators, ``(T, nu)`` in their units."""
    if twin.spec.robot is None:
        return interpolate_at_frames(episode, "motor") if twin.model.nu else np.zeros((len(episode), 0))
    _refuse_command(twin, episode, options)
    if twin.robot.control == "position":
        return units.to_si(episode.action[:, columns])
    if options.torque == "measured":
        return interpolate_at_frames(episode, "joint_torque")[:, columns]
    return episode.action[:, columns]


def _refuse_command(twin: Twin, episode: Episode, options: ReplayOptions) -> None:
    """Refuse an episode whose kind of command does not fit the twin's actuators."""
    takes, where = twin.robot.control, f"Episode {episode.index}" + (f" of {episode.origin}" if episode.origin else "")
    if takes == "torque" and options.torque == "measured":
        return
    if episode.command == "none":
        remedy = "add --measured-torque, or " if takes == "torque" else ""
        raise LogError(f"{where} has no commands, which a replay needs. To go on, {remedy}give a log that has them.")
    if takes == "position" and episode.command == "torque":
        raise LogError(
            f"{where} declares its commands as torques, but the twin {twin.name} takes positions. Choose a twin with "
            "robot.control: torque, or give a log of commanded positions."
        )


def _condition(episodes: Sequence[Episode], key: str) -> Array:
    for episode in episodes:
        if key not in episode.conditions:
            has = ", ".join(episode.conditions) or "none"
            raise LogError(f"Episode {episode.index} does not state {key}. Its conditions are: {has}.")
    return np.array([episode.conditions[key] for episode in episodes])


def _pad(values: Array, nframe: int, *, hold: bool) -> Array:
    tail = values[-1:] if hold else np.full((1, values.shape[1]), np.nan)
    return np.concatenate([values, np.repeat(tail, nframe - len(values), axis=0)])


def _log_rate(episodes: Sequence[Episode]) -> float:
    rates = np.array([(len(episode) - 1) / (episode.time[-1] - episode.time[0]) for episode in episodes])
    odd = int(np.argmax(np.abs(rates / np.median(rates) - 1.0)))
    if abs(rates[odd] / np.median(rates) - 1.0) > _RATE_TOLERANCE:
        raise LogError(
            f"Episode {episodes[odd].index} runs at {rates[odd]:.2f} Hz, the log at {np.median(rates):.2f} Hz. "
            "Resample it or leave it out."
        )
    return float(np.median(rates))


def _make_variant(twin: Twin, log_hz: float, *, contacts: bool) -> Twin:
    """Return the twin at the log's rate with nearly its physics step, with contacts and joint stops if requested."""
    control_hz = twin.control_hz if abs(log_hz / twin.control_hz - 1.0) < _RATE_TOLERANCE else log_hz
    substeps = max(1, math.ceil(1.0 / (control_hz * twin.dt) - 1e-6))
    if twin.spec.robot is not None and twin.model.nu != len(twin.robot.joints):
        n = len(twin.robot.joints)
        raise InputError(f"The twin {twin.name} has {twin.model.nu} actuators for {n} joints of the log.")
    model = copy.copy(twin.model)
    if not contacts:
        model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
        model.jnt_limited[:] = 0  # only joints: the play of gears is modelled by limits as well
    model.opt.timestep = 1.0 / (control_hz * substeps)
    spec = twin.spec.model_copy(update={"control_hz": control_hz, "substeps": substeps})
    return replace(twin, spec=spec, model=model)
