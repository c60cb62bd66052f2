"""Check whether a demonstration acts like the others in similar states; a policy cannot learn contradictory actions.

An action is the difference of command and arm position, now and averaged over the next half second. Similar states are
the nearest ones, by position and velocity of all joints, among sampled frames of the task's other episodes. The value
is the distance of an action from the median of theirs, in standard deviations of all actions (local action variance, as
in Belkhale, Cui & Sadigh, "Data quality in imitation learning", NeurIPS 2023, but of single episodes).
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
    """Actions compared with those of other episodes in the nearest states."""

    name = "demonstration/actions"
    meaning = "distance of actions from those of the task's other episodes in the nearest states"
    # Differences below a quarter of the standard deviation of all actions do not matter (our choice).
    kinds: Mapping[str, MetricKind] = {
        "*": MetricKind(worse="high", unit="1", least=0.25, words="Its actions differ by")
    }

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Sample states and actions; see `MeasuringCheck`."""
        motion = compute_movement(recording)
        if motion.command is None:
            return [Measurement(value=None, said=_NONE)]
        states, actions, frames = _sample_frames(motion, motion.command)
        facts = {"states": states.astype(np.float32), "actions": actions.astype(np.float32), "frames": frames}
        return [Measurement(value=0.0, facts=facts)]

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """Measure the distance of actions from those of the task's other episodes, and judge it as `PeerCheck`."""
        figures = [list(found) for found in measured]
        for places in group_recordings(recordings).values():
            known = [place for place in places if measured[place][0].value is not None]
            found = measure_conflicts([measured[place][0].facts for place in known]) if len(known) > 1 else []
            for place, (value, frame) in zip(known, found, strict=False):
                figures[place] = [_make_measurement(measured[place][0], value, frame)]
            if len(known) == 1:
                figures[known[0]] = [Measurement(value=None, said="There is no other episode of this task.")]
        yield from super().judge(recordings, figures)


def measure_conflicts(facts: Sequence[Mapping[str, NDArray]]) -> list[tuple[float, int]]:
    """Return each episode's distance from the others' actions in similar states, and the sample with the largest one.

    NaN if no state of the episode is similar to a state of the others.
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
    """Return states ``(m, 2 n)``, actions ``(m, 2 n)`` and their frames."""
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
        return Measurement(value=None, said="No other episode has a similar state.")
    frame = int(found.facts["frames"][place])
    said = f" standard deviations from those of other episodes in similar states (most at frame {frame})"
    return replace(found, value=value, said=said, first_frame=frame, last_frame=frame, facts={})
