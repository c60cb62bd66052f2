"""Recorded commands through a twin, open loop from the first frame of each episode.

The replay happens in free space: contacts and joint stops are switched off, because a log of joint positions says
neither what lay on the table nor where a calibrated joint's stops are. Every episode of every world runs in one batch.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError, LogError
from twinloop.core.params import ParamTable
from twinloop.core.records import Episode
from twinloop.core.units import UnitMap, require_joints
from twinloop.simulate.protocol import Backend, InitialState
from twinloop.simulate.rollout import rollout
from twinloop.twin import Twin

_RATE_TOLERANCE = 0.02
_MOST_EPISODES = 600  # replayed at once: about 100 MB of states at 300 frames
_TWO = 2


@dataclass(frozen=True, kw_only=True)
class ReplayLogs:
    """Episodes of equal joints and rate, ready to be replayed.

    ``twin`` is the free-space variant at the log's rate. ``commands`` ``(nepisode, nframe, n)`` are in the
    actuators' units, the last one held to the longest episode; ``measured`` ``(nepisode, nframe, n)`` is in the log's
    own units, NaN past each episode's end. ``numbers`` are the episodes' numbers in the log. ``calibrated`` is False
    where the twin's joint ranges stand in for a calibration that the log lacks.
    """

    twin: Twin
    units: UnitMap
    commands: NDArray[np.float64]
    measured: NDArray[np.float64]
    numbers: tuple[int, ...]
    calibrated: bool

    @property
    def joints(self) -> tuple[str, ...]:
        """Joint names in column order."""
        return self.units.names

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Frames of each episode."""
        return np.sum(~np.isnan(self.measured[..., 0]), axis=1)

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: ArrayLike) -> ReplayLogs:
        """Some of the episodes, by position."""
        index = np.asarray(rows, dtype=np.intp)
        numbers = tuple(self.numbers[i] for i in index)
        return replace(self, commands=self.commands[index], measured=self.measured[index], numbers=numbers)


def prepare_replay(twin: Twin, episodes: Sequence[Episode]) -> ReplayLogs:
    """Episodes against the twin's joints, in column order of the twin.

    Where the log does not say what its units are in radians, the twin's joint ranges stand in for the calibration.

    Raises:
        LogError: no episodes, a joint that is missing, episodes of unlike units or rates, one of a single frame.
    """
    if not episodes:
        raise LogError("There is no episode to replay. Give a log with at least one.")
    first = episodes[0]
    columns = require_joints(twin.robot.joints, first.joints, where=first.origin or "The log")
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
    nframe = max(map(len, episodes))
    action = np.stack([_pad(e.action[:, columns], nframe, hold=True) for e in episodes])
    return ReplayLogs(
        twin=_free_space(twin, _log_rate(episodes)),
        units=units,
        commands=units.to_si(action) if twin.robot.control == "position" else action,
        measured=np.stack([_pad(e.state[:, columns], nframe, hold=False) for e in episodes]),
        numbers=tuple(e.index for e in episodes),
        calibrated=calibrated,
    )


def replay(backend: Backend, logs: ReplayLogs, params: ParamTable) -> NDArray[np.float64]:
    """Joint readings of every world in every episode, ``(nworld, nepisode, nframe, n)`` in the log's units.

    The first frame is the measured one, at rest. A world that diverges reads infinity from then on.

    Args:
        params: rows of ``logs.twin``'s parameters, one per world.
    """
    most = max(1, _MOST_EPISODES // len(logs))
    if params.nworld > most:  # in portions, so that memory stays flat
        portions = [params.take(np.arange(i, min(i + most, params.nworld))) for i in range(0, params.nworld, most)]
        return np.concatenate([replay(backend, logs, portion) for portion in portions])
    nworld, nepisode = params.nworld, len(logs)
    table = ParamTable(names=params.names, values=np.repeat(params.values, nepisode, axis=0))
    offset = logs.twin.column(table, "sensor", "offset")[:, None]
    scale = logs.twin.column(table, "sensor", "scale")[:, None]
    commands = np.tile(logs.commands[:, :-1], (nworld, 1, 1))
    first = np.tile(logs.units.to_si(logs.measured[:, 0]), (nworld, 1))
    initial = _initial_state(logs.twin, first * scale[:, 0] + offset[:, 0], commands[:, 0])
    run = rollout(backend, logs.twin, table, initial, commands, commands.shape[1])
    readings = logs.units.from_si((run.qpos[..., logs.twin.encoder_qpos] - offset) / scale)
    for world in np.flatnonzero(~run.valid):
        readings[world, run.invalid_step[world] :] = np.inf
    return readings.reshape(nworld, nepisode, *readings.shape[1:])


def _pad(values: NDArray[np.float64], nframe: int, *, hold: bool) -> NDArray[np.float64]:
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


def _free_space(twin: Twin, log_hz: float) -> Twin:
    """The twin without contacts and joint stops, at the log's rate and about its own physics step."""
    control_hz = twin.control_hz if abs(log_hz / twin.control_hz - 1.0) < _RATE_TOLERANCE else log_hz
    substeps = max(1, math.ceil(1.0 / (control_hz * twin.dt) - 1e-6))
    model = copy.copy(twin.model)
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
    model.jnt_limited[:] = 0  # joints alone: the flanks of gears are limits as well
    model.opt.timestep = 1.0 / (control_hz * substeps)
    spec = twin.spec.model_copy(update={"control_hz": control_hz, "substeps": substeps})
    return replace(twin, spec=spec, model=model)


def _initial_state(twin: Twin, joints: NDArray[np.float64], command: NDArray[np.float64]) -> InitialState:
    """Everything at home and at rest, but the robot's joints where they were measured."""
    home = InitialState.home(twin, len(joints))
    if joints.shape[1] != twin.model.nu:
        raise InputError(f"The twin {twin.name} has {twin.model.nu} actuators for {joints.shape[1]} joints of the log.")
    qpos = home.qpos.copy()
    qpos[:, twin.joint_qpos] = joints
    return replace(home, qpos=twin.with_motors(qpos), command=command)
