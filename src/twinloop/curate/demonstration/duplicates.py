"""Find episodes that are copies of another episode: exact, shifted or cut in time, at another speed, or with noise.

Each episode is reduced to its trace, joint positions at 8 Hz of a few kilobytes. Comparing all pairs would be slow.
Therefore only near traces are aligned in time. They are found by four descriptions of a trace: positions along the
whole episode, positions near its start, positions near its end, and the extremes of each joint. Every kind of copy
leaves at least one description nearly unchanged: another speed the first, a cut one of the next two, a shift the last.
See `stats.time_alignment`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.files import sha256_bytes
from twinloop.core.seeds import generator
from twinloop.curate.check import CheckScore, Measurement, MeasuringCheck
from twinloop.curate.demonstration.movement import Array, Movement
from twinloop.curate.demonstration.peers import group_recordings
from twinloop.curate.recording import RecordedEpisode
from twinloop.dataset.logs.resampling import interpolate
from twinloop.stats.time_alignment import aligned_distances, nearest_pairs

_RATE_HZ = 8.0  # of a trace: an arm on position servos of this size passes 1 to 4 Hz
_MOST = 256  # frames of a trace: the first 32 s of an episode; later frames are not compared
_POINTS = 32  # positions of a course, evenly spaced over the duration of the episode
_ENDS_S = 6.0  # duration of the compared beginning and end
_NEIGHBOURS = 4  # candidates of each episode by each description
# Two episodes are copies if they differ by less than a tenth of the usual difference of two episodes of the task. Of
# forty recorded and 128 simulated pick-and-place episodes the most similar differ by at least 0.22 of it. Only copies
# that are less similar to the original than another episode are above the limit (measured; docs/evidence/curation.md).
LIMIT = 0.1
_TYPICAL = 512  # randomly drawn pairs that define the usual distance


@dataclass(frozen=True, kw_only=True)
class DuplicateOf:
    """The other episode that is most similar to an episode. It is a duplicate if `distance` is less than 0.1.

    Attributes:
        other: index of the other episode.
        distance: distance of the two episodes, divided by the median distance of random pairs of episodes of the task.
        how: relation of the two episodes, as text for the user.
        exact: whether states and actions are identical.
    """

    other: int
    distance: float
    how: str
    exact: bool


class NearDuplicates(MeasuringCheck):
    """Check for copies and near copies of another episode; the later episode of a pair counts as the copy."""

    name = "demonstration/near_duplicates"
    meaning = "distance to the most similar other episode after time alignment, relative to the usual distance"
    unit = "1"

    @property
    def settings(self) -> Mapping[str, Any]:
        """Limit of the check; it is part of the check's hash."""
        return {"limit": LIMIT}

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return one measurement, whose ``facts`` describe the episode for the comparison.

        ``trace`` has the joint positions at 8 Hz, ``course`` those at 32 times that are evenly spaced over the whole
        episode, and ``content`` a hash of states and actions.
        """
        episode = recording.episode
        motion = Movement.of(episode)
        time = np.arange(len(motion)) / motion.rate_hz
        grid = np.arange(0.0, time[-1] + 0.5 / _RATE_HZ, 1.0 / _RATE_HZ)[:_MOST]
        whole = np.linspace(0.0, time[-1], _POINTS)
        facts = {
            "trace": interpolate(time, motion.position, grid).astype(np.float32),
            "course": interpolate(time, motion.position, whole).astype(np.float32),
            "content": sha256_bytes(episode.state.tobytes(), episode.action.tobytes()),
        }
        return [Measurement(value=0.0, facts=facts)]

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """Compare all episodes of the same robot and task, also across batches and sources, and yield their scores."""
        for places in _group_comparable(recordings, measured).values():
            known = [place for place in places if measured[place][0].value is not None]
            copies = find_copies([measured[place][0].facts for place in known])
            for here, place in enumerate(known):
                copy = copies[here]
                other = None if copy is None else recordings[known[copy.other]]
                yield self._score_copy(recordings[place], copy, other, later=copy is not None and here > copy.other)
            for place in places:
                if measured[place][0].value is None:
                    yield self.make_score(recordings[place], measured[place][0], "unknown")

    def _score_copy(
        self, recording: RecordedEpisode, copy: DuplicateOf | None, other: RecordedEpisode | None, *, later: bool
    ) -> CheckScore:
        if copy is None or other is None:
            found = Measurement(value=None, text="There is no other episode of this task to compare it with.")
            return self.make_score(recording, found, "unknown")
        found = Measurement(value=copy.distance)
        which = f"{other.where} ({other.episode_id[:12]})"
        if copy.distance >= LIMIT:
            near = f"The most similar episode is {which}, {copy.distance:.2f} of the usual distance away; the limit is"
            return self.make_score(recording, found, "good", limit=LIMIT, reason=f"{near} {LIMIT:g}.")
        if not later:
            reason = f"{which} is a copy of it: {copy.how}; this one came first."
            return self.make_score(recording, found, "good", limit=LIMIT, reason=reason)
        how = (
            "the same, frame by frame" if copy.exact else f"{copy.how}, {copy.distance:.3f} of the usual distance away"
        )
        reason = f"A copy of {which}: {how}."
        return self.make_score(recording, found, "bad" if copy.exact else "suspect", limit=LIMIT, reason=reason)


def find_copies(facts: Sequence[Mapping[str, Any]], *, seed: int = 0) -> list[DuplicateOf | None]:
    """Return the most similar other episode of each episode, whether it is a copy or not.

    The entry is None if there is only one episode.

    Args:
        facts: facts of `NearDuplicates.measure` for each episode.
        seed: seed of the random pairs whose median distance is the unit of the distances.
    """
    if len(facts) < 2:
        return [None] * len(facts)
    lengths = np.array([len(fact["trace"]) for fact in facts])
    traces, courses = _scale_traces(facts, lengths)
    pairs = np.unique(
        np.concatenate([nearest_pairs(rows, _NEIGHBOURS) for rows in _arrange_rows(traces, courses, lengths)]), axis=0
    )
    aligned = aligned_distances(traces, lengths, pairs)
    paced = _compute_course_distance(courses, pairs)
    usual, usual_paced = _compute_typical_distances(traces, courses, lengths, seed)
    relative = np.stack([aligned.distance / usual, paced / usual_paced])
    return _select_best_pairs([str(fact["content"]) for fact in facts], pairs, relative, aligned.shift, lengths)


def _scale_traces(facts: Sequence[Mapping[str, Any]], lengths: NDArray[np.intp]) -> tuple[Array, Array]:
    """Subtract the mean of all episodes from the joint positions, and divide them by each joint's standard deviation.

    A trace is an episode's joint positions at 8 Hz. A course is its joint positions at 32 times that are evenly spaced
    over the whole episode.

    Args:
        facts: trace and course of each of the n episodes, from `NearDuplicates.measure`.
        lengths: number of frames of each trace ``(n,)``.

    Returns:
        Traces ``(n, T, k)`` of k joints, padded with zeros, and courses ``(n, 32, k)``.
    """
    every = np.concatenate([np.asarray(fact["course"], dtype=np.float64) for fact in facts])
    mean, sd = every.mean(axis=0), every.std(axis=0)
    sd = np.where(sd <= 1e-9 * (1e-12 + np.abs(every).max(axis=0)), np.inf, sd)
    traces = np.zeros((len(facts), int(lengths.max()), len(mean)), dtype=np.float32)
    for row, fact in enumerate(facts):
        traces[row, : lengths[row]] = (fact["trace"] - mean) / sd
    courses = (np.stack([fact["course"] for fact in facts]) - mean) / sd
    return traces, courses  # pyright: ignore[reportReturnType]


def _arrange_rows(traces: Array, courses: Array, lengths: NDArray[np.intp]) -> Iterator[Array]:
    """Yield four descriptions of all episodes as feature vectors; a copy is near its original in at least one of them.

    They are the course ``(n, 32 k)``, positions every 0.5 s in the first 6 s and in the last 6 s of the trace
    ``(n, 12 k)`` each, and the positions of all joints when each joint is at its maximum or minimum ``(n, 2 k²)``.

    Args:
        traces: scaled positions ``(n, T, k)`` at 8 Hz.
        courses: scaled positions ``(n, 32, k)`` over the whole duration.
        lengths: number of frames of each trace ``(n,)``.
    """
    n = len(traces)
    yield courses.reshape(n, -1)
    step = np.arange(0, round(_ENDS_S * _RATE_HZ), 4)
    last = lengths[:, None] - 1
    for frames in (np.minimum(step, last), np.maximum(last - step, 0)):
        yield np.take_along_axis(traces, frames[..., None], axis=1).reshape(n, -1)
    inside = (np.arange(traces.shape[1]) < lengths[:, None])[..., None]
    ends = [
        np.argmax(np.where(inside, sign * traces, -np.inf), axis=1) for sign in (1.0, -1.0)
    ]  # frame of each joint's extreme, (n, k)
    at = np.concatenate(ends, axis=1)
    yield np.take_along_axis(traces, at[..., None], axis=1).reshape(n, -1)


def _compute_course_distance(courses: Array, pairs: NDArray[np.intp]) -> Array:
    return np.array([np.sqrt(np.mean(np.sum((courses[a] - courses[b]) ** 2, axis=1))) for a, b in pairs])


def _compute_typical_distances(
    traces: Array, courses: Array, lengths: NDArray[np.intp], seed: int
) -> tuple[float, float]:
    """Return two median distances of random pairs of episodes: one of traces, one of courses.

    For the distance of two traces, one is shifted in time so that they match best. Both results are at least the
    float32 epsilon, because other distances are divided by them.

    Args:
        traces: scaled joint positions at 8 Hz ``(n, T, k)`` of n episodes with k joints, padded with zeros.
        courses: scaled joint positions at 32 times that are evenly spaced over each episode ``(n, 32, k)``.
        lengths: number of frames of each trace ``(n,)``.
        seed: seed of the random pairs.
    """
    rng = generator(seed, "curate/near-duplicates")
    first = rng.integers(0, len(traces), _TYPICAL)
    second = (first + rng.integers(1, len(traces), _TYPICAL)) % len(traces)
    drawn = np.unique(np.sort(np.stack([first, second], axis=1), axis=1), axis=0)
    tiny = float(np.finfo(np.float32).eps)
    aligned = float(np.median(aligned_distances(traces, lengths, drawn).distance))
    return max(aligned, tiny), max(float(np.median(_compute_course_distance(courses, drawn))), tiny)


def _select_best_pairs(
    contents: Sequence[str],
    pairs: NDArray[np.intp],
    relative: Array,
    shift: NDArray[np.intp],
    lengths: NDArray[np.intp],
) -> list[DuplicateOf | None]:
    """Return the most similar other episode of each episode; among equal distances the earliest pair.

    Every pair has two distances. One compares traces (joint positions at 8 Hz) at their best time shift, the other
    courses (joint positions at 32 times that are evenly spaced over the episode). The smaller one counts.

    Args:
        contents: hash of states and actions of each episode.
        pairs: indices of the compared episodes ``(m, 2)``.
        relative: distances of the traces and of the courses of each pair ``(2, m)``, divided by the median of random
            pairs.
        shift: time shift of each pair at the smallest distance of the traces ``(m,)``, in frames at 8 Hz.
        lengths: number of frames of each trace.
    """
    least = relative.min(axis=0)
    found: list[DuplicateOf | None] = [None] * len(contents)
    for place in np.argsort(least, kind="stable"):
        first, second = (int(number) for number in pairs[place])
        for here, other in ((first, second), (second, first)):
            if found[here] is None:
                exact = contents[here] == contents[other]
                how = _describe_relation(
                    relative[:, place], int(shift[place]) * (1 if here == first else -1), lengths[[here, other]]
                )
                found[here] = DuplicateOf(other=other, distance=float(least[place]), how=how, exact=exact)
    return found


def _describe_relation(relative: Array, shift: int, lengths: NDArray[np.intp]) -> str:
    """Describe for the user how an episode resembles another one.

    Args:
        relative: relative distances ``(2,)`` of the traces aligned in time, and of the courses (positions at 32 times
            evenly spaced over the episode).
        shift: time shift between the episodes, in frames at 8 Hz.
        lengths: number of frames of both traces ``(2,)``.
    """
    aligned, course = relative
    if course < aligned:
        ratio = (lengths[0] - 1) / max(1, lengths[1] - 1)
        return f"the same path in {ratio:.2f} times the time" if abs(ratio - 1) > 0.02 else "the same path in time"
    if shift:
        return f"the same movement, {abs(shift) / _RATE_HZ:.1f} s {'earlier' if shift > 0 else 'later'}"
    return "the same movement at the same time"


def _group_comparable(
    recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
) -> dict[tuple[object, ...], list[int]]:
    """Return the indices of comparable recordings: those with the same robot, task and number of joints.

    Batches and sources are not separated, because the copy of an episode may be in another batch or source.
    """
    found: dict[tuple[object, ...], list[int]] = {}
    for (_, robot, _, task), places in group_recordings(recordings).items():
        for place in places:
            trace = measured[place][0].facts.get("trace")
            width = 0 if trace is None else np.asarray(trace).shape[1]
            found.setdefault((robot, task, width), []).append(place)
    return {key: sorted(places) for key, places in found.items()}
