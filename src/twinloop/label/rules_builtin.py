"""Define the built-in label rules, which use simulator states, or the joint positions of any robot with a gripper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from twinloop.core.files import sha256_json
from twinloop.label.rule import FAILED, SUCCEEDED, UNKNOWN, RuleEpisode, RuleFinding
from twinloop.tasks.protocol import Task, has_phases
from twinloop.tasks.registry import TASKS


class SubtasksFromStates:
    """Label rule for subtasks of a simulated episode: the phases that its task computes from the simulator states."""

    name = "subtask/states"
    version = "1"
    meaning = "phases of a simulated pick and place: hand closes, object rises, is carried, set down, let go"

    @property
    def hash(self) -> str:
        """SHA-256 of name, version and settings."""
        return sha256_json([self.name, self.version])

    def label(self, episode: RuleEpisode) -> Sequence[RuleFinding]:
        """Return one label per phase that occurred.

        Each phase ends where the next one starts, and the last phase at the last frame. If the states or the phases of
        the task are not available, the label is ``unknown``.

        Args:
            episode: Data of the episode.
        """
        task, states = episode.task, episode.states
        if states is None or not has_phases(task):
            return [
                RuleFinding(
                    kind="subtask", value=UNKNOWN, reason=f"no states of a task with phases: {episode.missing_reason}"
                )
            ]
        return make_subtasks(
            task.phases(states, episode.fps), episode.frames, "motion of hand and object in the states"
        )


class FailureFromStates:
    """Label rule for the failure class of a simulated episode: the phase of the task that failed, or ``diverged``.

    The task computes the failed phase from the simulator states (`tasks.protocol.PhasedTask.failure`). ``diverged``
    means that the world is invalid.
    """

    version = "1"

    def __init__(self, task: str = "") -> None:
        """Create the rule for the episodes of one task.

        Args:
            task: Name of the task; empty for any task.
        """
        self._task, self._words = task, task.replace("_", " ") or "task"
        self.name = f"failure/{task}"
        self.meaning = f"failure class of a simulated {self._words} by the stage at which it went wrong"

    @property
    def hash(self) -> str:
        """SHA-256 of name, version and settings."""
        return sha256_json([self.name, self.version])

    def label(self, episode: RuleEpisode) -> Sequence[RuleFinding]:
        """Return the failure class as one label; no label if the episode succeeded.

        The class is ``diverged`` for an invalid world, and ``unknown`` if the states are not available.

        Args:
            episode: Data of the episode.
        """
        if episode.reader.written_by_twinloop and not episode.reader.is_appended(episode.index):
            record = episode.reader.provenance(episode.index)
            if not record.valid:
                return [_make_failure("diverged", f"the world is invalid: {record.invalid_reason}")]
        task, states = episode.task, episode.states
        if states is None or not has_phases(task) or not self._is_selected(task):
            return [_make_failure(UNKNOWN, f"no states of a {self._words}: {episode.missing_reason}")]
        failed = task.failure(states, episode.fps)
        return [_make_failure(*failed)] if failed else []

    def _is_selected(self, task: Task) -> bool:
        return not self._task or isinstance(task, cast("type", TASKS[self._task]))


def make_subtasks(starts: Sequence[tuple[str, int | None]], frames: int, reason: str) -> list[RuleFinding]:
    """Return one subtask label from each start frame to the next one; subtasks that have no start frame are skipped.

    Args:
        starts: Names of the subtasks with their start frames, in order.
        frames: Number of frames of the episode.
        reason: Reason that is stored with each label.
    """
    known = [(word, min(start, frames)) for word, start in starts if start is not None]
    ends = [*(start for _, start in known[1:]), frames]
    return [
        RuleFinding(kind="subtask", value=word, reason=reason, first_frame=start, last_frame=end - 1)
        for (word, start), end in zip(known, ends, strict=True)
        if end > start
    ]


def _make_failure(value: str, reason: str) -> RuleFinding:
    return RuleFinding(kind="failure", value=value, reason=reason)


Array = NDArray[np.float64]
_SUCCESS = "next.success"
# Our choices: shares of the gripper's travel in the episode, and for `_STILL` of the arm's fastest speed.
_SWING = 0.3  # a smaller change is neither an opening nor a closing but an elastic finger
_EDGE = 0.1  # distance from the first and last value at which a change begins and ends
_STILL = 0.05  # a slower arm counts as still
_LEAST_STROKE = 0.1  # of its range: a gripper that moves less neither opens nor closes
_FAST = 0.25  # of the fastest speed between closing and opening: a slower arm counts as stopped


class SuccessFromPredicate:
    """Label rule for success: the result of the task's success condition at the end of the episode."""

    name = "success/predicate"
    version = "1"
    meaning = "the task's success condition at the end: provenance, else next.success of the last frame"

    @property
    def hash(self) -> str:
        """SHA-256 of name, version and settings."""
        return sha256_json([self.name, self.version])

    def label(self, episode: RuleEpisode) -> Sequence[RuleFinding]:
        """Return one label with the success that is stored in the dataset.

        It is the success in the provenance, or else ``next.success`` of the last frame. If both are missing, the label
        is ``unknown``.

        Args:
            episode: Data of the episode.
        """
        reader, index = episode.reader, episode.index
        if reader.written_by_twinloop and not reader.is_appended(index):
            record = reader.provenance(index)
            if record.success is not None:
                return [_make_success(record.success, f"by {record.success_version or 'its predicate'}")]
        if _SUCCESS in reader.info["features"]:
            held = reader.array(index, _SUCCESS).reshape(-1) > 0
            before = "" if held[-1] or not held.any() else f", though it was at frame {int(np.argmax(held))}"
            return [_make_success(bool(held[-1]), f"next.success of the last frame{before}")]
        return [
            RuleFinding(kind="success", value=UNKNOWN, reason="neither provenance nor next.success has the outcome")
        ]


class SuccessFromGripper:
    """Heuristic label rule for success from joint positions: an object was grasped, moved and released somewhere."""

    name = "success/gripper"
    version = "1"
    meaning = "a guess from joints: the gripper closed on something, the arm carried it, the gripper opened again"

    @property
    def hash(self) -> str:
        """SHA-256 of name, version and settings."""
        return sha256_json([self.name, self.version, _SWING, _EDGE, _STILL, _LEAST_STROKE])

    def label(self, episode: RuleEpisode) -> Sequence[RuleFinding]:
        """Return one label: success if the arm moved between a closing of the gripper and the next opening.

        The arm moves if it is faster than 5 % of its highest speed in the episode. Otherwise the label is a failure, or
        ``unknown`` if the readings are not sufficient.

        Args:
            episode: Data of the episode.
        """
        speed, cycles = episode.speed, find_gripper_cycles(episode.opening)
        if speed is None or episode.opening is None:
            return [RuleFinding(kind="success", value=UNKNOWN, reason=_explain_unknown(episode))]
        if cycles is None or not cycles:
            return [_make_success(False, "the gripper never closes")]
        moved = _STILL * float(speed.max())
        carried = sum(c.opens is not None and bool(speed[c.closed : c.opens + 1].max() > moved) for c in cycles)
        return [_make_success(carried, f"the gripper closed, was carried and opened again {carried} time(s)")]


class SubtasksFromGripper:
    """Heuristic label rule for subtasks from joint positions: gripper motions, and stops of the arm between them."""

    name = "subtask/gripper"
    version = "1"
    meaning = "phases from joints: gripper closes and opens, the arm stops in between; one round per closing"

    @property
    def hash(self) -> str:
        """SHA-256 of name, version and settings."""
        return sha256_json([self.name, self.version, _SWING, _EDGE, _FAST, _LEAST_STROKE])

    def label(self, episode: RuleEpisode) -> Sequence[RuleFinding]:
        """Return the subtasks of each grasp cycle, for example reach, grasp, transport and release.

        A cycle has one closing of the gripper. If the gripper never closes, the label is ``unknown``.

        Args:
            episode: Data of the episode.
        """
        speed, cycles = episode.speed, find_gripper_cycles(episode.opening)
        if speed is None or cycles is None or not cycles:
            reason = _explain_unknown(episode) if cycles is None or speed is None else "the gripper never closes"
            return [RuleFinding(kind="subtask", value=UNKNOWN, reason=reason)]
        starts: list[tuple[str, int | None]] = []
        begin = 0
        for cycle in _drop_final_closing(cycles):
            starts += [("reach", begin), ("grasp", cycle.closes)]
            starts += _split_transport(speed, cycle.closed, len(speed) if cycle.opens is None else cycle.opens)
            if cycle.opens is None or cycle.opened is None:
                break
            starts.append(("release", cycle.opens))
            begin = cycle.opened
        else:
            starts.append(("retreat", begin))
        return make_subtasks(starts, episode.frames, "gripper events and stops of the arm")


@dataclass(frozen=True, kw_only=True)
class GripCycle:
    """Frames of one closing of a gripper and of the opening that follows.

    Attributes:
        closes: Frame at which the gripper starts to close.
        closed: Frame at which it is closed.
        opens: Frame at which it starts to open; None if it does not open again.
        opened: Frame at which it is open; None if it does not open again.
    """

    closes: int
    closed: int
    opens: int | None
    opened: int | None


def find_gripper_cycles(opening: Array | None) -> list[GripCycle] | None:
    """Find each closing of a gripper and the opening that follows.

    Args:
        opening: Opening of the gripper from 0 (closed) to 1 (open), shape ``(T,)`` for T frames; None if unknown.

    Returns:
        The cycles in order; None if the opening is unknown, has fewer than three frames, or varies by less than 0.1.
    """
    if opening is None or len(opening) < 3:
        return None
    stroke = float(opening.max() - opening.min())
    if stroke < _LEAST_STROKE:
        return None
    turns, cycles = _find_turns(opening, _SWING * stroke), list[GripCycle]()
    for i in range(len(turns) - 1):
        top, bottom = turns[i], turns[i + 1]
        if opening[top] <= opening[bottom]:
            continue
        closes, closed = _find_edges(opening, top, bottom)
        after = _find_edges(opening, bottom, turns[i + 2]) if i + 2 < len(turns) else (None, None)
        cycles.append(GripCycle(closes=closes, closed=closed, opens=after[0], opened=after[1]))
    return cycles


def _drop_final_closing(cycles: Sequence[GripCycle]) -> Sequence[GripCycle]:
    """Return the cycles, excluding a last closing that never opens again if there are earlier cycles.

    Such a closing only parks the gripper at the end of the episode.
    """
    return cycles[:-1] if len(cycles) > 1 and cycles[-1].opens is None else cycles


def _find_turns(values: Array, swing: float) -> list[int]:
    """Return the frames of the local minima and maxima of a series, including its first and its last one.

    Args:
        values: Series, shape ``(T,)``.
        swing: Smallest change between two extrema; smaller changes are ignored.
    """
    turns, low, high, way = list[int](), 0, 0, 0
    for i, value in enumerate(values.tolist()):
        low = i if value < values[low] else low
        high = i if value > values[high] else high
        if way >= 0 and values[high] - value > swing:
            turns, way, low, high = [*turns, high], -1, i, i
        elif way <= 0 and value - values[low] > swing:
            turns, way, low, high = [*turns, low], 1, i, i
    return [*turns, high if way > 0 else low] if turns else turns


def _find_edges(values: Array, start: int, stop: int) -> tuple[int, int]:
    """Return the frames at which a change of a series starts and ends.

    The start is the last frame within 10 % of the change from its first value. The end is the first later frame within
    10 % of the change from its last value.

    Args:
        values: Series, shape ``(T,)``.
        start: Frame of the extremum before the change.
        stop: Frame of the extremum after the change.
    """
    change = float(values[stop] - values[start])
    part = (values[start : stop + 1] - values[start]) / change
    leaves = int(np.flatnonzero(part <= _EDGE)[-1])
    arrives = leaves + int(np.argmax(part[leaves:] >= 1.0 - _EDGE))
    return start + leaves, start + arrives


def _split_transport(speed: Array, start: int, stop: int) -> list[tuple[str, int | None]]:
    """Split the time with a grasped object into lift, transport and place if the arm stops twice in it.

    Args:
        speed: Speed of the arm, shape ``(T,)``.
        start: Frame at which the gripper is closed.
        stop: Frame at which it starts to open.

    Returns:
        Names of the subtasks with their start frames; only ``transport`` if the arm does not stop twice. The arm stops
        if it is slower than a quarter of its highest speed in this time.
    """
    part = speed[start:stop]
    if len(part) < 5:
        return [("transport", start)]
    slow = part < _FAST * part.max()
    edges = np.flatnonzero(np.diff(np.r_[False, ~slow, False].astype(int)))
    bursts = edges.reshape(-1, 2)
    if len(bursts) != 3:
        return [("transport", start)]
    stops = [start + int(a) + int(np.argmin(part[a:b])) for a, b in bursts.ravel()[1:5].reshape(2, 2)]
    return [("lift", start), ("transport", stops[0]), ("place", stops[1])]


def _make_success(value: bool | int, reason: str) -> RuleFinding:
    return RuleFinding(kind="success", value=SUCCEEDED if value else FAILED, reason=reason)


def _explain_unknown(episode: RuleEpisode) -> str:
    if episode.opening is None:
        return "no column has the opening of the gripper (a joint named gripper, in 0 to 100)"
    return "the gripper barely moves, or there are fewer than three frames"
