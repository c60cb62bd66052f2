"""Check whether the actions of a demonstration agree with those of other demonstrations in similar states.

A policy cannot learn contradictory actions. An action is the difference between command and arm position, now and
averaged over the next half second. Similar states are the nearest states, by position and velocity of all joints, among
sampled frames of the task's other episodes. The value is the distance of an action from the median of the actions in
similar states, in standard deviations of all actions. This is the local action variance of Belkhale, Cui & Sadigh
("Data quality in imitation learning", NeurIPS 2023), computed for each episode instead of for the whole dataset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import NDArray

from twinloop.curate.check import CheckScore, Measurement
from twinloop.curate.demonstration.movement import Array, Movement, compute_movement
from twinloop.curate.demonstration.peers import MetricKind, PeerCheck, group_recordings
from twinloop.curate.recording import RecordedEpisode

_FRAMES = 40  # sampled frames of an episode, evenly spaced
_AHEAD_S = 0.5  # duration of the commands in an action: at least a chunk of chunked policies
_NEIGHBOURS = 8
_MOST = 20_000  # frames to search for neighbours
_FAR = 2.0  # times the usual distance of neighbours: frames beyond this have no similar states (our choice)
_WORST = 0.75  # quantile over frames: a quarter of them differ more
_NONE = "There are no position commands, so there is no action to compare."


class ActionConsistency(PeerCheck):
    """Check for actions that differ from those of other episodes of the task in similar states."""

    name = "demonstration/actions"
    meaning = "distance of actions from those of the task's other episodes in the nearest states"
    # Differences below a quarter of the standard deviation of all actions do not matter (our choice).
    kinds: Mapping[str, MetricKind] = {
        "*": MetricKind(worse="high", unit="1", least_difference=0.25, reason_prefix="Its actions differ by")
    }

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return one measurement, whose ``facts`` hold states and actions at 40 sampled frames."""
        motion = compute_movement(recording)
        if motion.command is None:
            return [Measurement(value=None, text=_NONE)]
        states, actions, frames = _sample_frames(motion, motion.command)
        facts = {"states": states.astype(np.float32), "actions": actions.astype(np.float32), "frames": frames}
        return [Measurement(value=0.0, facts=facts)]

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """Compute the distance of actions from those of the task's other episodes, and yield the scores."""
        metrics = [list(found) for found in measured]
        for places in group_recordings(recordings).values():
            known = [place for place in places if measured[place][0].value is not None]
            found = measure_conflicts([measured[place][0].facts for place in known]) if len(known) > 1 else []
            for place, (value, frame) in zip(known, found, strict=False):
                metrics[place] = [_make_measurement(measured[place][0], value, frame)]
            if len(known) == 1:
                metrics[known[0]] = [Measurement(value=None, text="There is no other episode of this task.")]
        yield from super().judge(recordings, metrics)


def measure_conflicts(facts: Sequence[Mapping[str, NDArray]]) -> list[tuple[float, int]]:
    """Compute how much the actions of each episode differ from those of other episodes in similar states.

    The distance of a sample is that of its action from the median of the actions in similar states of other episodes,
    in standard deviations of all actions.

    Args:
        facts: for each episode, sampled ``states`` ``(m, d)`` and ``actions`` ``(m, k)``, as in
            `ActionConsistency.measure`.

    Returns:
        For each episode, the 75th percentile of the distances of its samples, and the index of the sample with the
        largest distance. The percentile is NaN if no state is similar to a state of another episode.
    """
    episode = np.repeat(np.arange(len(facts)), [len(fact["states"]) for fact in facts])
    states = _standardize(np.concatenate([fact["states"] for fact in facts]))
    actions = _standardize(np.concatenate([fact["actions"] for fact in facts]))
    reference = np.arange(0, len(states), max(1, -(-len(states) // _MOST)))
    tree = scipy.spatial.cKDTree(states[reference])
    several = min(3 * _NEIGHBOURS, len(reference))  # a frame's own episode is among them
    distance, near = tree.query(states, k=several)
    near = reference[near]
    other = episode[near] != episode[:, None]
    rank = np.cumsum(other, axis=1)
    used = other & (rank <= _NEIGHBOURS)
    theirs = np.where(used[..., None], actions[near], np.nan)
    enough = used.sum(axis=1) >= _NEIGHBOURS // 2
    apart = np.full(len(states), np.nan)
    middle = np.nanmedian(theirs[enough], axis=1)
    apart[enough] = np.sqrt(np.mean((actions[enough] - middle) ** 2, axis=1))
    reach = np.nanmax(np.where(used, distance, np.nan)[enough], axis=1) if enough.any() else np.empty(0)
    far = np.zeros(len(states), dtype=bool)
    far[enough] = reach > _FAR * np.median(reach) if len(reach) else False
    apart[far] = np.nan
    return [_summarize_distances(apart[episode == number]) for number in range(len(facts))]


def _sample_frames(motion: Movement, command: Array) -> tuple[Array, Array, NDArray[np.intp]]:
    """Sample evenly spaced frames of an episode.

    Args:
        motion: motion of the episode.
        command: commanded positions ``(T, n)`` of n joints.

    Returns:
        States ``(m, 2 n)`` (positions and velocities), actions ``(m, 2 n)`` (now and averaged over the next 0.5 s), and
            the recorded frame of each sample ``(m,)``.
    """
    ahead = max(1, round(_AHEAD_S * motion.rate_hz))
    last = max(1, len(motion) - ahead)
    frames = np.unique(np.linspace(0, last - 1, _FRAMES).round().astype(np.intp))
    sums = np.concatenate([np.zeros((1, command.shape[1])), np.cumsum(command, axis=0)])
    ends = np.minimum(frames + ahead, len(motion))
    chunk = (sums[ends] - sums[frames]) / (ends - frames)[:, None] - motion.position[frames]
    actions = np.concatenate([command[frames] - motion.position[frames], chunk], axis=1)
    before = np.maximum(frames - 2, 0)
    span = np.maximum(frames - before, 1)[:, None] / motion.rate_hz
    velocity = (motion.position[frames] - motion.position[before]) / span
    return np.concatenate([motion.position[frames], velocity], axis=1), actions, motion.frames[frames]


def _standardize(values: NDArray) -> Array:
    table = np.asarray(values, dtype=np.float64)
    sd = table.std(axis=0)
    return (table - table.mean(axis=0)) / np.where(sd <= 1e-9 * (1e-12 + np.abs(table).max(axis=0)), np.inf, sd)


def _summarize_distances(apart: Array) -> tuple[float, int]:
    known = apart[np.isfinite(apart)]
    if not len(known):
        return float("nan"), 0
    return float(np.quantile(known, _WORST)), int(np.nanargmax(apart))


def _make_measurement(found: Measurement, value: float, place: int) -> Measurement:
    if not np.isfinite(value):
        return Measurement(value=None, text="No other episode has a similar state.")
    frame = int(found.facts["frames"][place])
    said = f" standard deviations from those of other episodes in similar states (most at frame {frame})"
    return replace(found, value=value, text=said, first_frame=frame, last_frame=frame, facts={})
