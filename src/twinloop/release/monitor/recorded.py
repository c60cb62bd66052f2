"""Show recorded episodes to a monitor side by side: streams, what it says of each, references of cameras."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import IMAGES, STATE, Contract
from twinloop.core.params import ParamTable
from twinloop.policies import PolicyLoop, Predictor
from twinloop.release.monitor.live import LiveMonitor
from twinloop.release.monitor.pictures import ImageReference
from twinloop.release.monitor.streams import MonitorStreams
from twinloop.twin import Twin

Array = NDArray[np.float64]
_REFERENCE_FRAMES = 5  # of each episode, spread over it, for a camera's reference (our choice)
_SQUEEZED = 0.05  # of its way from open to closed: a jaw that is so far from its command holds something (our choice)


@dataclass(frozen=True, kw_only=True)
class RecordedEpisodes:
    """Episodes side by side, as long as the longest, their ends repeated.

    ``observation`` ``(m, T, …)`` by LeRobot's names and ``commands`` ``(m, T, k)`` are in the dataset's units;
    ``lengths`` ``(m,)``; ``success`` is 1, 0, or NaN where nobody knows; ``names`` say which episode is which.
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
        """Some of the episodes, by number or by mask."""
        index = np.flatnonzero(which) if which.dtype == bool else which
        return replace(
            self,
            observation={name: values[index] for name, values in self.observation.items()},
            commands=self.commands[index],
            lengths=self.lengths[index],
            success=self.success[index],
            names=tuple(self.names[i] for i in index),
        )

    def at(self, step: int) -> dict[str, NDArray[Any]]:
        """The observation of one step."""
        return {name: values[:, step] for name, values in self.observation.items()}


def joined(parts: Sequence[RecordedEpisodes]) -> RecordedEpisodes:
    """Episodes of equal length of several parts, one after the other."""
    return RecordedEpisodes(
        observation={name: np.concatenate([part.observation[name] for part in parts]) for name in parts[0].observation},
        commands=np.concatenate([part.commands for part in parts]),
        lengths=np.concatenate([part.lengths for part in parts]),
        success=np.concatenate([part.success for part in parts]),
        names=tuple(name for part in parts for name in part.names),
        source=parts[0].source,
    )


def rows_of(
    recorded: RecordedEpisodes,
    twin: Twin,
    contract: Contract,
    *,
    params: ParamTable | None = None,
    policy: Predictor | None = None,
    pictures: Mapping[str, ImageReference] | None = None,
    nthread: int = 1,
) -> tuple[MonitorStreams, dict[str, Array]]:
    """The streams of episodes, ``(m, T, d)`` by name, NaN after their ends.

    A policy is asked again at what was observed, which gives the chunks and features that it had; where chance decides
    within it, others that it could have had.
    """
    streams = MonitorStreams(twin, contract, params, pictures=pictures, nthread=nthread)
    streams.begin(len(recorded))
    acting = None if policy is None else PolicyLoop(policy, len(recorded))
    kept: dict[str, list[Array]] = {}
    for step in range(recorded.commands.shape[1]):
        seen = recorded.at(step)
        ask(acting, seen, recorded.commands[:, step])
        for name, rows in streams.look(seen, acting, recorded.commands[:, step]).items():
            kept.setdefault(name, []).append(np.where((step < recorded.lengths)[:, None], rows, np.nan))
    return streams, {name: np.stack(rows, axis=1) for name, rows in kept.items()}


def ask(acting: PolicyLoop | None, seen: Mapping[str, NDArray[Any]], commands: Array) -> None:
    """Show a policy what was observed, and tell it what was sent in the end."""
    if acting is not None:
        acting.act(seen)
        acting.sent(commands)


@dataclass(frozen=True, kw_only=True)
class MonitorVerdict:
    """What a monitor says of one episode: alarms in their order, and what they point to in the end."""

    name: str
    alarms: tuple[Any, ...]
    cause: str
    instead: tuple[str, ...]
    success: float
    scores: Mapping[str, float]
    course: tuple[str, ...]


def watch(recorded: RecordedEpisodes, monitor: LiveMonitor, policy: Predictor | None = None) -> list[MonitorVerdict]:
    """Show episodes to a monitor, side by side, and then the course of them one after the other."""
    monitor.begin(len(recorded))
    acting = None if policy is None else PolicyLoop(policy, len(recorded))
    alarms: list[list[Any]] = [[] for _ in recorded.names]
    most: dict[str, Array] = {}
    for step in range(recorded.commands.shape[1]):
        seen, alive = recorded.at(step), step < recorded.lengths
        ask(acting, seen, recorded.commands[:, step])
        look = monitor.look(seen, acting, recorded.commands[:, step], alive=alive)
        for alarm in look.alarms:
            alarms[alarm.world].append(alarm)
        for name, values in look.scores.items():
            most[name] = np.fmax(most.get(name, np.full(len(recorded), np.nan)), np.where(alive, values, np.nan))
    told: list[MonitorVerdict] = []
    for world, name in enumerate(recorded.names):
        cause, order = monitor.cause(world) if alarms[world] else ("none", [])
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


def held_share(recorded: RecordedEpisodes, twin: Twin, contract: Contract) -> Array:
    """The share of episodes in which the jaws hold something, by step: what is between them keeps them from closing.

    Ones where there are no jaws that follow positions: nobody knows then.
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


def references(recorded: RecordedEpisodes, cameras: tuple[str, ...]) -> dict[str, ImageReference]:
    """A reference of every camera from a few frames of every episode."""
    found: dict[str, ImageReference] = {}
    for name in cameras:
        pictures = recorded.observation[IMAGES + name]
        rows = [
            pictures[i, np.linspace(0, length - 1, _REFERENCE_FRAMES).astype(int)]
            for i, length in enumerate(recorded.lengths.tolist())
        ]
        found[name] = ImageReference.of(np.concatenate(rows))
    return found
