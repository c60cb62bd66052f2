"""Apply a monitor to recorded episodes in parallel: compute streams, verdicts and reference images.

Streams are the measurements at every control step, see `streams`. Calibration and evaluation of monitors use this
module; `live` monitors running robots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.contract import IMAGES, STATE, Contract
from twinloop.core.params import ParamTable
from twinloop.dataset.media.images import fit_observation
from twinloop.policies import PolicyLoop, Predictor
from twinloop.release.monitor.images import ImageReference
from twinloop.release.monitor.live import LiveMonitor
from twinloop.release.monitor.streams import MonitorStreams
from twinloop.twin import Twin

Array = NDArray[np.float64]
_REFERENCE_FRAMES = 5  # frames of each episode, evenly spaced, for a camera's reference (our choice)
_SQUEEZED = 0.05  # share of the gripper's range: a larger error of its position means a held object (our choice)


@dataclass(frozen=True, kw_only=True)
class RecordedEpisodes:
    """Batch of m recorded episodes, padded to T frames (the longest episode) by repeating their last frames.

    Attributes:
        observation: observations by LeRobot's names, shape ``(m, T, …)``, in the dataset's units.
        commands: commands for k joints, shape ``(m, T, k)``, in the dataset's units.
        lengths: number of frames of each episode, shape ``(m,)``.
        success: 1 for success, 0 for failure, NaN if unknown, shape ``(m,)``.
        names: name of each episode.
        source: dataset from which the episodes come.
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
        """Return the episodes that an array of indices, or a mask, selects."""
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
        """Return the observations of all episodes at one step, by name, shape ``(m, …)``."""
        return {name: values[:, step] for name, values in self.observation.items()}


def concatenate_episodes(parts: Sequence[RecordedEpisodes]) -> RecordedEpisodes:
    """Concatenate batches of episodes that are padded to the same number of frames."""
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
    images: Mapping[str, ImageReference] | None = None,
    nthread: int = 1,
) -> tuple[MonitorStreams, dict[str, Array]]:
    """Return the object that computes a monitor's streams, and the streams of recorded episodes by name.

    Streams are the measurements at every control step, such as ``drives`` or ``tracker``, see `streams`.

    Each stream has the shape ``(m, T, d)`` for m episodes, T frames and d columns, NaN after the end of an episode. A
    policy is evaluated again at the recorded observations. A deterministic policy gives its original chunks and
    features; a random policy gives other possible ones.

    Args:
        recorded: the recorded episodes.
        twin: identified twin of the robot.
        contract: units of readings and commands, and names of the observed positions (``environment``) that an external
            tracker measures.
        params: parameters of the twin, one row; nominal values by default.
        policy: policy that acted; None leaves out the streams of the policy.
        images: reference images of the cameras to monitor, by name.
        nthread: number of threads for the twin's physics.
    """
    streams = MonitorStreams(twin, contract, params, images=images, nthread=nthread)
    streams.begin(len(recorded))
    acting = None if policy is None else PolicyLoop(policy, len(recorded))
    streams_by_name: dict[str, list[Array]] = {}
    for step in range(recorded.commands.shape[1]):
        seen = recorded.get_step_observation(step)
        call_policy(acting, seen, recorded.commands[:, step])
        for name, rows in streams.measure_step(seen, acting, recorded.commands[:, step]).items():
            streams_by_name.setdefault(name, []).append(np.where((step < recorded.lengths)[:, None], rows, np.nan))
    return streams, {name: np.stack(rows, axis=1) for name, rows in streams_by_name.items()}


def call_policy(acting: PolicyLoop | None, seen: Mapping[str, NDArray[Any]], commands: Array) -> None:
    """Run a policy on one observation, then report back to it which commands the robot got.

    Larger images are reduced as on the robot. If ``acting`` is None, do nothing.

    Args:
        acting: closed loop of the policy.
        seen: observation by LeRobot's names.
        commands: commands that were sent to the robot, shape ``(m, k)``, in the dataset's units.
    """
    if acting is not None:
        acting.act(fit_observation(seen, acting.policy.contract))
        acting.set_sent_commands(commands)


@dataclass(frozen=True, kw_only=True)
class MonitorVerdict:
    """Verdict of a monitor about one episode.

    Attributes:
        name: name of the episode.
        alarms: alarms in the order of time.
        cause: cause that all alarms indicate at the end of the episode; ``none`` if there are no alarms.
        possible_causes: possible causes, the most probable first.
        success: 1 for success, 0 for failure, NaN if unknown.
        scores: largest score of each signal, divided by its limit.
        drifts: one sentence for each signal that has drifted after this episode, and for a changed rate of successes or
            interventions.
    """

    name: str
    alarms: tuple[Any, ...]
    cause: str
    possible_causes: tuple[str, ...]
    success: float
    scores: Mapping[str, float]
    drifts: tuple[str, ...]


def monitor_recorded(
    recorded: RecordedEpisodes, monitor: LiveMonitor, policy: Predictor | None = None
) -> list[MonitorVerdict]:
    """Apply a monitor to a batch of episodes in parallel, then add them in order to its history, which detects drifts.

    Args:
        recorded: the episodes.
        monitor: monitor; its state is changed in place.
        policy: policy that acted; None if there is none.

    Returns:
        Verdict for each episode.
    """
    monitor.begin(len(recorded))
    acting = None if policy is None else PolicyLoop(policy, len(recorded))
    alarms: list[list[Any]] = [[] for _ in recorded.names]
    largest: dict[str, Array] = {}
    for step in range(recorded.commands.shape[1]):
        seen, alive = recorded.get_step_observation(step), step < recorded.lengths
        call_policy(acting, seen, recorded.commands[:, step])
        look = monitor.score_step(seen, acting, recorded.commands[:, step], alive=alive)
        for alarm in look.alarms:
            alarms[alarm.world].append(alarm)
        for name, values in look.scores.items():
            largest[name] = np.fmax(largest.get(name, np.full(len(recorded), np.nan)), np.where(alive, values, np.nan))
    verdicts: list[MonitorVerdict] = []
    for world, name in enumerate(recorded.names):
        cause, order = monitor.get_cause(world) if alarms[world] else ("none", [])
        known = recorded.success[world]
        drifts = monitor.end(world, success=None if np.isnan(known) else bool(known))
        verdicts.append(
            MonitorVerdict(
                name=name,
                alarms=tuple(alarms[world]),
                cause=cause,
                possible_causes=tuple(order),
                success=float(known),
                scores={signal: float(values[world]) for signal, values in largest.items()},
                drifts=tuple(drifts),
            )
        )
    return verdicts


def compute_held_share(recorded: RecordedEpisodes, twin: Twin, contract: Contract) -> Array:
    """Return the share of episodes in which the gripper holds an object at each of T steps, shape ``(T,)``.

    An object is assumed if the gripper is further open than commanded, by more than 5 % of its range. The shares are 1
    if the robot has no position-controlled gripper, because they are then unknown.

    Args:
        twin: twin of the robot, with the range of the gripper.
        contract: units of readings and commands.
    """
    length, hand = recorded.commands.shape[1], twin.robot.gripper
    if hand is None or contract.state is None or contract.command != "position":
        return np.ones(length)
    jaw = twin.robot.joints.index(hand.joint)
    read = contract.state.to_si(recorded.observation[STATE])[..., jaw]
    wanted = contract.action.to_si(recorded.commands)[..., jaw]
    opening = (read - wanted) / (hand.open - hand.closed)
    known = np.arange(length) < recorded.lengths[:, None]
    return ((opening > _SQUEEZED) & known).sum(axis=0) / np.maximum(known.sum(axis=0), 1)


def make_references(recorded: RecordedEpisodes, cameras: tuple[str, ...]) -> dict[str, ImageReference]:
    """Return the reference images of cameras by name, from five frames of every episode."""
    found: dict[str, ImageReference] = {}
    for name in cameras:
        images = recorded.observation[IMAGES + name]
        rows = [
            images[i, np.linspace(0, length - 1, _REFERENCE_FRAMES).astype(int)]
            for i, length in enumerate(recorded.lengths.tolist())
        ]
        found[name] = ImageReference.of(np.concatenate(rows))
    return found
