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
from twinloop.core.units import COMMANDED, UnitMap, find_joint_columns
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
    """Options of a replay: windows, initial states, and compared channels.

    Attributes:
        window: length of a window in s; None replays whole episodes.
        stride: time between the starts of two windows, in s; by default windows do not overlap.
        start: initial velocities of a window: ``rest``, or ``measured`` (the signal ``joint_velocity`` or
            ``twist/BODY`` if the log has it, else finite differences of positions).
        compare: kinds of compared channels, see `channels.make_channel_kinds`; joint positions come first, if
            compared.
        contacts: whether to simulate contacts and joint limits. A log of joint positions alone contains neither the
            objects on the table nor the limits of a calibrated joint.
        torque: input of a torque-controlled twin: the ``command``, or ``measured`` for the signal ``joint_torque``.
        conditions: parameters whose values the log records for every episode: parameter name to the name under which
            the episodes record the value.
        local: prior standard deviations of the corrections of each window's initial state: ``position`` (joints in rad
            or m, free bodies in m), ``rotation`` (free bodies, rad), ``velocity`` (rad/s or m/s), ``spin`` (rad/s).
        history: time before a window in s from which commands are kept, because their delay may reach into the
            window.
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
    """Windows of recorded episodes with equal rate, ready for a replay.

    Attributes:
        twin: the twin at the log's control rate, with contacts and joint limits only if requested.
        units: units of the joints in the log.
        commands: commands in the actuators' units, shape ``(nwindow, nframe, nu)``. In a shorter window the last
            command is repeated.
        measured: measured channels, each in its own unit (joint positions in the log's units), shape ``(nwindow,
            nframe, nchannel)``; NaN after the end of a window.
        channel_data: raw data from the log for each kind of channel, with r columns that depend on the kind, shape
            ``(nwindow, nframe, r)``.
        channel_kinds: kinds of compared channels.
        start: initial states of the windows.
        conditions: values of the parameters that the log records for every episode, by parameter name, shape
            ``(nwindow,)``; with measured torques also the nominal gains of the actuators.
        episode_numbers: episode number of each window.
        start_times: start time of each window in s, shape ``(nwindow,)``.
        stated_units: for each joint, whether the log states the conversion of its unit; the twin's joint range is used
            if not.
    """

    twin: Twin
    units: UnitMap
    commands: Array
    measured: Array
    channel_data: tuple[Array, ...]
    channel_kinds: tuple[ChannelKind, ...]
    start: WindowStart
    conditions: Mapping[str, Array]
    episode_numbers: tuple[int, ...]
    start_times: Array
    stated_units: tuple[bool, ...]

    @property
    def calibrated(self) -> bool:
        """Whether the log states the conversion of every joint's unit."""
        return all(self.stated_units)

    @property
    def joints(self) -> tuple[str, ...]:
        """Joint names, in the order of the columns."""
        return self.units.names

    @property
    def channels(self) -> tuple[MeasuredChannel, ...]:
        """Compared channels, in the order of the last axis of ``measured``."""
        return tuple(channel for measure in self.channel_kinds for channel in measure.channels)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of frames with a measurement in each window, shape ``(nwindow,)``."""
        return np.sum(~np.isnan(self.measured).all(axis=-1), axis=1)

    @property
    def episodes(self) -> tuple[int, ...]:
        """Numbers of all episodes in ascending order, each once."""
        return tuple(sorted(set(self.episode_numbers)))

    @property
    def ends(self) -> NDArray[np.int64]:
        """Number of frames of each window up to its last measurement, at least 2, shape ``(nwindow,)``.

        It also counts frames in between that have no measurement, which `lengths` does not count.
        """
        is_measured = np.any(~np.isnan(self.measured), axis=-1)
        return np.maximum(self.measured.shape[1] - np.argmax(is_measured[:, ::-1], axis=1), _TWO)

    @property
    def episode_index(self) -> NDArray[np.intp]:
        """Index in ``episodes`` of the episode that each window comes from, shape ``(nwindow,)``."""
        return np.unique(np.asarray(self.episode_numbers), return_inverse=True)[1]

    @property
    def episode_lengths(self) -> Array:
        """Number of measured frames of each episode, summed over its windows, shape ``(nepisode,)``."""
        return self._sum_by_episode(self.lengths)

    def episode_errors(self, readings: Array) -> Array:
        """Return the mean absolute error of predictions for each episode, shape ``(nepisode, nchannel)``.

        Args:
            readings: predicted readings in the channels' units, as `replay` returns them for one world, shape
                ``(nwindow, nframe, nchannel)``.
        """
        size = np.abs(readings - self.measured)
        return self._sum_by_episode(np.nansum(size, axis=1)) / self._sum_by_episode(np.sum(~np.isnan(size), axis=1))

    def _sum_by_episode(self, values: NDArray[Any]) -> Array:
        """Sum values ``(nwindow, …)`` over the windows of each episode, shape ``(nepisode, …)``."""
        sums = np.zeros((len(self.episodes), *values.shape[1:]))
        np.add.at(sums, self.episode_index, values)
        return sums

    @property
    def nlocal(self) -> int:
        """Number of components of a window's first state that a fit may correct."""
        return len(self.start.sd)

    def __len__(self) -> int:
        return len(self.episode_numbers)

    @property
    def hold_baseline(self) -> Array:
        """Prediction of a baseline that holds the first frame of each window, shape ``(nwindow, nframe, nchannel)``."""
        return self.substitute_data([hold_first_frame(kept) for kept in self.channel_data])

    def substitute_data(self, others: Sequence[Array]) -> Array:
        """Return the channels of a prediction that comes from a baseline or another recording, not from a simulation.

        The prediction is in the form of the log's raw data. For example, the baseline in which nothing moves predicts
        that the raw data of each window's first frame stay constant.

        Args:
            others: predicted raw data, one array for each array in ``channel_data``, with the same shape.

        Returns:
            Channels, shape ``(nwindow, nframe, nchannel)``.
        """
        rows = zip(self.channel_kinds, self.channel_data, others, strict=True)
        return np.concatenate([measure.substitute_data(kept, other) for measure, kept, other in rows], axis=-1)

    def take(self, rows: ArrayLike) -> ReplayLogs:
        """Return the windows with the given indices."""
        index = np.asarray(rows, dtype=np.intp)
        return replace(
            self,
            commands=self.commands[index],
            measured=self.measured[index],
            channel_data=tuple(values[index] for values in self.channel_data),
            start=self.start.take(index),
            conditions={name: values[index] for name, values in self.conditions.items()},
            episode_numbers=tuple(self.episode_numbers[i] for i in index),
            start_times=self.start_times[index],
        )

    def trim_frames(self) -> ReplayLogs:
        """Return the same windows with the frames after the end of the longest window removed."""
        frames = slice(0, int(self.ends.max(initial=_TWO)))
        return replace(
            self,
            commands=self.commands[:, frames],
            measured=self.measured[:, frames],
            channel_data=tuple(values[:, frames] for values in self.channel_data),
        )

    def select_episodes(self, numbers: Sequence[int]) -> ReplayLogs:
        """Return the windows of the episodes with the given numbers."""
        selected = set(numbers)
        return self.take([row for row, number in enumerate(self.episode_numbers) if number in selected])


def prepare_replay(twin: Twin, episodes: Sequence[Episode], options: ReplayOptions | None = None) -> ReplayLogs:
    """Cut episodes into windows and prepare them for a replay in a twin, with columns in the twin's joint order.

    If the log lacks the conversion of its joint units to radians (calibration), it is derived from the twin's joint
    ranges.

    Args:
        twin: the twin.
        episodes: recorded episodes of one log.
        options: options of the replay; by default those of `ReplayOptions`.

    Raises:
        LogError: If there are no episodes, a joint or a signal is missing, units or rates differ between episodes, an
            episode has a single frame, or an episode lacks the value of a parameter in `ReplayOptions.conditions`.
        InputError: If the twin lacks a compared channel, or the windows are longer than every episode.
    """
    options = options or ReplayOptions()
    if not episodes:
        raise LogError("There is no episode to replay. Give a log with at least one episode.")
    first = episodes[0]
    joints = list(twin.robot.joints) if twin.spec.robot is not None else []
    columns = find_joint_columns(joints, first.joints, where=first.origin or "The log")
    for episode in episodes:
        if episode.units != first.units:
            raise LogError(
                f"Episode {episode.index} has other units or joints than episode {first.index}. "
                "Give the episodes of each kind as a separate log."
            )
        if len(episode) < _TWO:
            raise LogError(f"Episode {episode.index} has a single frame, so it cannot be replayed. Exclude it.")
    chosen = tuple(first.units.joints[i] for i in columns)
    stated = tuple(unit.known for unit in chosen)
    units = UnitMap(joints=chosen, source=first.units.source)
    if not units.known:
        assumed = twin.unit_map([unit.unit for unit in chosen])
        mixed = (unit if unit.known else other for unit, other in zip(chosen, assumed.joints, strict=True))
        units = UnitMap(joints=tuple(mixed), source=assumed.source)
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
        channel_data=arrays,
        channel_kinds=compared,
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
        conditions={
            **_nominal_gains(replayed, options, len(cuts)),
            **{name: _condition([e for e, _ in cuts], key) for name, key in options.conditions.items()},
        },
        episode_numbers=tuple(e.index for e, _ in cuts),
        start_times=np.array([e.time[cut.start] for e, cut in cuts]),
        stated_units=stated,
    )


def _refuse_window(episodes: Sequence[Episode], options: ReplayOptions) -> None:
    """Raise InputError if the windows are longer than every episode."""
    longest = max(float(episode.time[-1] - episode.time[0]) for episode in episodes)
    if options.window is not None and not 0 < options.window <= longest * (1 + _RATE_TOLERANCE):
        raise InputError(
            f"Windows of {options.window:g} s do not fit: the longest episode lasts {longest:.4g} s. Give a shorter "
            "window, or none to replay whole episodes."
        )


def _cut_windows(episode: Episode, options: ReplayOptions, hz: float) -> list[tuple[int, int]]:
    """Return first frame and end frame (exclusive) of an episode's windows.

    Windows end at the latest at the frame where the motors are switched off. ``hz`` is the frame rate.
    """
    last = len(episode)
    if "enabled" in episode.signals:
        off = np.flatnonzero(interpolate_at_frames(episode, "enabled")[:, 0] < 1.0)
        last = int(off[0]) if len(off) else last
    if last < _TWO:
        raise LogError(f"The motors of episode {episode.index} are off from its beginning. Exclude this episode.")
    if options.window is None:
        return [(0, last)]
    length = min(max(_TWO, round(options.window * hz) + 1), last)
    stride = length - 1 if options.stride is None else max(1, round(options.stride * hz))
    return [(begin, begin + length) for begin in range(0, last - length + 1, stride)]


def _commands(twin: Twin, episode: Episode, columns: Sequence[int], units: UnitMap, options: ReplayOptions) -> Array:
    """Return the commands of an episode in the actuators' units, shape ``(T, nu)`` for T frames.

    Args:
        twin: the twin.
        episode: the episode.
        columns: for each joint of the twin, its column in the log.
        units: units of the joints in the log.
        options: options of the replay.
    """
    if twin.spec.robot is None:
        return interpolate_at_frames(episode, "motor") if twin.model.nu else np.zeros((len(episode), 0))
    _refuse_command(twin, episode, options)
    if twin.robot.control == "torque" and options.torque == "measured":
        model = twin.model
        strength = model.actuator_gear[:, 0] * model.actuator_gainprm[:, 0]
        torque = interpolate_at_frames(episode, "joint_torque")[:, columns]
        return torque / np.where(strength != 0.0, strength, 1.0)
    return units.of_commands(twin.robot.control).to_si(episode.action[:, columns])


def _nominal_gains(twin: Twin, options: ReplayOptions, nwindow: int) -> dict[str, Array]:
    """Return the nominal gains of the actuators for a replay of measured torques, which no gain of a world scales.

    Args:
        twin: the twin.
        options: options of the replay.
        nwindow: number of windows.

    Returns:
        Gains by parameter name, shape ``(nwindow,)`` each; empty if the input is not the measured torque.
    """
    if twin.spec.robot is None or options.torque != "measured":
        return {}
    names = (f"actuator/{actuator}/gain" for actuator in twin.robot.actuator_names)
    return {name: np.full(nwindow, twin.params[name].nominal) for name in names if name in twin.params}


def _refuse_command(twin: Twin, episode: Episode, options: ReplayOptions) -> None:
    """Raise LogError if an episode has no commands, or commands of a kind that the twin does not take.

    Commands that declare no kind count as positions. They are accepted as torques, because many logs declare nothing.
    """
    takes, where = twin.robot.control, f"Episode {episode.index}" + (f" of {episode.origin}" if episode.origin else "")
    if takes == "torque" and options.torque == "measured":
        return
    if episode.command == "none":
        remedy = "add --measured-torque, or " if takes == "torque" else ""
        raise LogError(f"{where} has no commands, which a replay needs. To go on, {remedy}give a log that has them.")
    if episode.command != takes and (takes, episode.command) != ("torque", "position"):
        raise LogError(
            f"{where} declares its commands as {COMMANDED[episode.command]}, but the twin {twin.name} takes "
            f"{COMMANDED[takes]}. Choose a twin with robot.control: {episode.command}, or give a log of commanded "
            f"{COMMANDED[takes]}."
        )


def _condition(episodes: Sequence[Episode], key: str) -> Array:
    for episode in episodes:
        if key not in episode.conditions:
            existing = ", ".join(episode.conditions) or "none"
            raise LogError(
                f"Episode {episode.index} does not state the condition {key}. Its conditions are: {existing}."
            )
    return np.array([episode.conditions[key] for episode in episodes])


def _pad(values: Array, nframe: int, *, hold: bool) -> Array:
    tail = values[-1:] if hold else np.full((1, values.shape[1]), np.nan)
    return np.concatenate([values, np.repeat(tail, nframe - len(values), axis=0)])


def _log_rate(episodes: Sequence[Episode]) -> float:
    rates = np.array([(len(episode) - 1) / (episode.time[-1] - episode.time[0]) for episode in episodes])
    outlier = int(np.argmax(np.abs(rates / np.median(rates) - 1.0)))
    if abs(rates[outlier] / np.median(rates) - 1.0) > _RATE_TOLERANCE:
        raise LogError(
            f"Episode {episodes[outlier].index} runs at {rates[outlier]:.2f} Hz, the log at {np.median(rates):.2f} Hz. "
            "Resample or exclude this episode."
        )
    return float(np.median(rates))


def _make_variant(twin: Twin, log_hz: float, *, contacts: bool) -> Twin:
    """Return the twin at the log's control rate, with a physics step that is not longer than the twin's.

    Contacts and joint limits are disabled unless ``contacts`` is true.
    """
    control_hz = twin.control_hz if abs(log_hz / twin.control_hz - 1.0) < _RATE_TOLERANCE else log_hz
    substeps = max(1, math.ceil(1.0 / (control_hz * twin.dt) - 1e-6))
    if twin.spec.robot is not None and twin.model.nu != len(twin.robot.joints):
        n = len(twin.robot.joints)
        raise InputError(
            f"The twin {twin.name} has {twin.model.nu} actuators for {n} joints. A replay needs one actuator per joint."
        )
    model = copy.copy(twin.model)
    if not contacts:
        model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
        model.jnt_limited[:] = 0  # only joints: the play of gears is modelled by limits as well
    model.opt.timestep = 1.0 / (control_hz * substeps)
    harden_friction(model)
    spec = twin.spec.model_copy(update={"control_hz": control_hz, "substeps": substeps})
    return replace(twin, spec=spec, model=model)


# MuJoCo's defaults of the friction constraint, with which a loaded joint at rest creeps; and the hardest ones that are
# stable, a time constant of two physics steps (MuJoCo's manual, "solref").
_SOFT_FRICTION = (0.02, 1.0)
_HARD_STEPS, _HARD_IMPEDANCE = 2.0, (0.99, 0.999)


def harden_friction(model: mujoco.MjModel) -> None:
    """Make dry friction as hard as the physics step allows, unless the model itself sets its softness; in place.

    A real joint at rest does not creep. With MuJoCo's default softness it does, and a fit then explains the creep by
    other values of rotor inertia, velocity gain and delay.
    """
    default = np.all(model.dof_solref == _SOFT_FRICTION, axis=1)
    hardened = model.dof_solimp[:, 1] == _HARD_IMPEDANCE[1]  # by an earlier call, for another physics step
    model.dof_solref[default | hardened] = (_HARD_STEPS * model.opt.timestep, 1.0)
    model.dof_solimp[default | hardened, :2] = _HARD_IMPEDANCE
