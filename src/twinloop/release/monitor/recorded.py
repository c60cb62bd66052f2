"""Run a monitor on recorded episodes in parallel: compute streams, verdicts and camera references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import IMAGES, STATE, Contract
from twinloop.core.params import ParamTable
from twinloop.policies import PolicyLoop, Predictor
from twinloop.release.monitor.images import ImageReference
from twinloop.release.monitor.live import LiveMonitor
from twinloop.release.monitor.streams import MonitorStreams
from twinloop.twin import Twin

Array = NDArray[np.float64]
_REFERENCE_FRAMES = 5  # of each episode, spread over it, for a camera's reference (our choice)
_SQUEEZED = 0.05  # of the gripper's range: further from its command than this, it holds an object (our choice)


@dataclass(frozen=True, kw_only=True)
class RecordedEpisodes:
    """Batch of episodes, padded to the length of the longest by repeating their last frames.

    ``observation`` ``(m, T, …)`` with LeRobot's names and ``commands`` ``(m, T, k)`` are in the dataset's units.
    ``lengths`` ``(m,)`` are in frames. ``success`` is 1, 0, or NaN if unknown. ``names`` identify the episodes.
    """

    observation: Mapping[str, NDArray[Any]]
    commands: Array
    lengths: NDArray[np.int64]
    success: Array
    names: tuple[str, ...]
    source: str

    def __len__(self) -> int:
        return len(self.commands)

    def take(self, which: NDArray[Any]) -> RecordedEpisodes:
        """Return some of the episodes, selected by index or by mask."""
        index = np.flatnonzero(which) if which.dtype == bool else which
        return replace(
            self,
            observation={name: values[index] for name, values in self.observation.items()},
            commands=self.commands[index],
            lengths=self.lengths[index],
            success=self.success[index],
            names=tuple(self.names[i] for i in index),
        )

    def get_step_observation(self, step: int) -> dict[str, NDArray[Any]]:
        """Return the observation of one step, ``(m, …)`` by name."""
        return {name: values[:, step] for name, values in self.observation.items()}


def concatenate_episodes(parts: Sequence[RecordedEpisodes]) -> RecordedEpisodes:
    """Concatenate batches of episodes of equal length."""
    return RecordedEpisodes(
        observation={name: np.concatenate([part.observation[name] for part in parts]) for name in parts[0].observation},
        commands=np.concatenate([part.commands for part in parts]),
        lengths=np.concatenate([part.lengths for part in parts]),
        success=np.concatenate([part.success for part in parts]),
        names=tuple(name for part in parts for name in part.names),
        source=parts[0].source,
    )


def compute_rows(
    recorded: RecordedEpisodes,
    twin: Twin,
    contract: Contract,
    *,
    params: ParamTable | None = None,
    policy: Predictor | None = None,
    pictures: Mapping[str, ImageReference] | None = None,
    nthread: int = 1,
) -> tuple[MonitorStreams, dict[str, Array]]:
    """Return the streams of episodes, ``(m, T, d)`` by name, NaN after the end of an episode.

    A policy is evaluated again at the recorded observations. A deterministic policy gives its original chunks and
    features; a random policy gives other possible ones.
    """
    streams = MonitorStreams(twin, contract, params, pictures=pictures, nthread=nthread)
    streams.begin(len(recorded))
    acting = None if policy is None else PolicyLoop(policy, len(recorded))
    kept: dict[str, list[Array]] = {}
    for step in range(recorded.commands.shape[1]):
        seen = recorded.get_step_observation(step)
        call_policy(acting, seen, recorded.commands[:, step])
        for name, rows in streams.measure_step(seen, acting, recorded.commands[:, step]).items():
            kept.setdefault(name, []).append(np.where((step < recorded.lengths)[:, None], rows, np.nan))
    return streams, {name: np.stack(rows, axis=1) for name, rows in kept.items()}


def call_policy(acting: PolicyLoop | None, seen: Mapping[str, NDArray[Any]], commands: Array) -> None:
    """Run a policy, if there is one, on an observation, then report the commands that were sent."""
    if acting is not None:
        acting.act(seen)
        acting.set_sent_commands(commands)


@dataclass(frozen=True, kw_only=True)
class MonitorVerdict:
    """Verdict of a monitor about one episode: alarms in order, and the cause that they indicate at the end."""

    name: str
    alarms: tuple[Any, ...]
    cause: str
    instead: tuple[str, ...]
    success: float
    scores: Mapping[str, float]
    course: tuple[str, ...]


def monitor_recorded(
    recorded: RecordedEpisodes, monitor: LiveMonitor, policy: Predictor | None = None
) -> list[MonitorVerdict]:
    """Run a monitor on a batch of episodes in parallel, then add them to its history in order."""
    monitor.begin(len(recorded))
    acting = None if policy is None else PolicyLoop(policy, len(recorded))
    alarms: list[list[Any]] = [[] for _ in recorded.names]
    most: dict[str, Array] = {}
    for step in range(recorded.commands.shape[1]):
        seen, alive = recorded.get_step_observation(step), step < recorded.lengths
        call_policy(acting, seen, recorded.commands[:, step])
        look = monitor.score_step(seen, acting, recorded.commands[:, step], alive=alive)
        for alarm in look.alarms:
            alarms[alarm.world].append(alarm)
        for name, values in look.scores.items():
            most[name] = np.fmax(most.get(name, np.full(len(recorded), np.nan)), np.where(alive, values, np.nan))
    told: list[MonitorVerdict] = []
    for world, name in enumerate(recorded.names):
        cause, order = monitor.get_cause(world) if alarms[world] else ("none", [])
        known = recorded.success[world]
        course = monitor.end(world, success=None if np.isnan(known) else bool(known))
        told.append(
            MonitorVerdict(
                name=name,
                alarms=tuple(alarms[world]),
                cause=cause,
                instead=tuple(order),
                success=float(known),
                scores={signal: float(values[world]) for signal, values in most.items()},
                course=tuple(course),
            )
        )
    return told


def compute_held_share(recorded: RecordedEpisodes, twin: Twin, contract: Contract) -> Array:
    """Return the share of episodes in which the gripper holds an object at each step, ``(T,)``.

    An object is assumed where the gripper is further open than commanded. The shares are 1 if the robot has no
    position-controlled gripper, because they are then unknown.
    """
    length, hand = recorded.commands.shape[1], twin.robot.gripper
    if hand is None or contract.state is None or contract.command != "position":
        return np.ones(length)
    jaw = twin.robot.joints.index(hand.joint)
    read = contract.state.to_si(recorded.observation[STATE])[..., jaw]
    wanted = contract.action.to_si(recorded.commands)[..., jaw]
    apart = (read - wanted) / (hand.open - hand.closed)
    known = np.arange(length) < recorded.lengths[:, None]
    return ((apart > _SQUEEZED) & known).sum(axis=0) / np.maximum(known.sum(axis=0), 1)


def make_references(recorded: RecordedEpisodes, cameras: tuple[str, ...]) -> dict[str, ImageReference]:
    """Return a reference image of every camera, from some frames of every episode."""
    found: dict[str, ImageReference] = {}
    for name in cameras:
        pictures = recorded.observation[IMAGES + name]
        rows = [
            pictures[i, np.linspace(0, length - 1, _REFERENCE_FRAMES).astype(int)]
            for i, length in enumerate(recorded.lengths.tolist())
        ]
        found[name] = ImageReference.of(np.concatenate(rows))
    return found
