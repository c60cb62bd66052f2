"""Check the use of the gripper against the task's other episodes: number of closings, flutter, and grasp.

Flutter is a quick sequence of opening and closing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import NDArray

from twinloop.curate.check import CheckScore, Measurement
from twinloop.curate.demonstration.movement import Array, Movement, compute_movement
from twinloop.curate.demonstration.peers import MetricKind, PeerCheck, group_recordings
from twinloop.curate.recording import RecordedEpisode

# Shares of the range: the gripper is closed below the first and open above the second, as in `encoders.trajectory`.
CLOSED, OPEN = 0.35, 0.65
_SWING = 0.1  # of the range: smaller movements do not count as flutter (our choice)
_QUICK_S = 0.5  # between two reversals; a person opens and closes a gripper deliberately in about a second
_SETTLED_S = 0.3  # a servo's gripper has closed by then


@dataclass(frozen=True, kw_only=True)
class GripperEvent:
    """One closing or opening of the gripper, at a frame."""

    frame: int
    closes: bool


@dataclass(frozen=True, kw_only=True)
class GripEvents:
    """Closings, openings and quick reversals of the gripper in one episode, and its gaps when closed.

    The gap is the distance between the position and the command of the closed gripper. A held object causes a gap,
    because it keeps the gripper open. Both gaps are None if there are no commands, or if the gripper never closes after
    it was open.

    Attributes:
        changes: closings and openings, in the order of time.
        quick_reversals: frames of quick reversals, within 0.5 s of the previous one.
        gap: largest gap of all closings, as a share of ``span``.
        last_gap: gap at the end of the last closing, as a share of ``span``.
        span: range of the gripper's command (if there are no commands, of its position), in the unit of the `Movement`.
    """

    changes: tuple[GripperEvent, ...]
    quick_reversals: NDArray[np.intp]
    gap: float | None
    last_gap: float | None
    span: float


def find_grip_events(motion: Movement) -> GripEvents | None:
    """Find the gripper events of an episode; None if it has no gripper or the gripper's command is constant."""
    if motion.gripper is None:
        return None
    position = motion.position[:, motion.gripper]
    command = position if motion.command is None else motion.command[:, motion.gripper]
    low, span = float(command.min()), float(np.ptp(command))
    if span <= 1e-9 * max(1.0, float(np.abs(command).max())):
        return None
    share = (command - low) / span
    closed = _find_closed_frames(share)
    frames = np.flatnonzero(np.diff(closed.astype(np.int8))) + 1
    gaps = [] if motion.command is None else _compute_gaps(position - command, closed, frames, motion.rate_hz)
    return GripEvents(
        changes=tuple(GripperEvent(frame=int(frame), closes=bool(closed[frame])) for frame in frames),
        quick_reversals=_find_turns(share, motion.rate_hz),
        gap=max(whole for whole, _ in gaps) / span if gaps else None,
        last_gap=gaps[-1][1] / span if gaps else None,
        span=span,
    )


def _find_closed_frames(share: Array) -> NDArray[np.bool_]:
    """Return the mask of the frames in which the gripper is closed.

    It closes at an opening of 0.35 of its range or less, and opens at 0.65 or more (hysteresis).

    Args:
        share: opening of the gripper at each frame, 0 (closed) to 1 of its range.
    """
    state = np.where(share <= CLOSED, 1, np.where(share >= OPEN, 0, -1))
    last = np.maximum.accumulate(np.where(state >= 0, np.arange(len(state)), -1))
    return np.where(last >= 0, state[np.maximum(last, 0)] == 1, share < 0.5)


def _find_turns(share: Array, rate_hz: float) -> NDArray[np.intp]:
    """Return the frames at which the gripper reverses within half a second of its previous reversal.

    Args:
        share: opening of the gripper at each frame, 0 (closed) to 1 of its range.
        rate_hz: frames per second.
    """
    padded = np.concatenate([share[:1], share, share[-1:]])
    found = [scipy.signal.find_peaks(side, prominence=_SWING)[0] - 1 for side in (padded, -padded)]
    frames = np.sort(np.concatenate(found))
    return frames[1:][np.diff(frames) < _QUICK_S * rate_hz]


def _compute_gaps(
    error: Array, closed: NDArray[np.bool_], frames: NDArray[np.intp], rate_hz: float
) -> list[tuple[float, float]]:
    """Return two medians of ``error`` for every closing: while the gripper is closed, and just before it opens again.

    Args:
        error: position minus command of the gripper at each frame.
        closed: whether the gripper is closed at each frame.
        frames: frames at which the gripper closes or opens.
        rate_hz: frames per second.
    """
    settled = round(_SETTLED_S * rate_hz)
    ends = [*frames[1:], len(closed)]
    return [
        (float(np.median(error[begin + settled : end])), float(np.median(error[end - settled - 1 : end - 1])))
        for begin, end in zip(frames, ends, strict=True)
        if closed[begin] and end - begin > settled + 1
    ]


EVENTS, FLUTTER, HOLD = "events", "flutter", "hold"
# Median gap of a task's episodes, as a share of the gripper's range, above which the gripper holds an object when
# closed: without an object a servo stops within 1 or 2 % of its command (dead band and play; our choice).
_HOLDS = 0.04
_LESS = 0.3  # of the task's usual range: a gripper that moves less does not close or open at all (our choice)


class GripperUse(PeerCheck):
    """Check for unusual use of the gripper, in comparison with other episodes of the task.

    It finds an unusual number of closings and openings, flutter (rapid opening and closing), and a gripper that closes
    without an object.
    """

    name = "demonstration/gripper"
    meaning = "closings and openings, quick reversals, and the gap between command and position when closed"
    kinds: Mapping[str, MetricKind] = {
        # One more closing and opening is a normal second attempt.
        EVENTS: MetricKind(
            worse="high", unit="1", least_difference=2.0, reason_prefix="Closings and openings:", value_format="{:.0f}"
        ),
        FLUTTER: MetricKind(
            worse="high",
            unit="1",
            least_difference=2.0,
            reason_prefix="Reversals within half a second:",
            value_format="{:.0f}",
        ),
        HOLD: MetricKind(
            worse="low",
            unit="1",
            least_difference=0.02,
            reason_prefix="When closed, the gap as a share of its range is",
        ),
    }

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return three values: number of closings and openings, number of quick reversals, and gap when closed.

        The gap is the distance between position and command of the closed gripper, as a share of the range of its
        command; a held object causes it.
        """
        motion = compute_movement(recording)
        if motion.gripper is None:
            return [Measurement(value=None, text="No joint is named a gripper or finger.")]
        events = find_grip_events(motion)
        if events is None:
            still = {"span": 0.0}
            why = Measurement(value=None, channel=HOLD, text="The gripper does not close.")
            return [Measurement(value=0.0, channel=channel, facts=still) for channel in (EVENTS, FLUTTER)] + [why]
        changes = _count_events(EVENTS, [change.frame for change in events.changes], motion)
        turns = _count_events(FLUTTER, events.quick_reversals.tolist(), motion)
        return [replace(changes, facts={"span": events.span}), turns, _measure_gap(events)]

    def explain_incomparable(self, channel: str, values: Sequence[float]) -> str:
        """Return why a quantity cannot be judged in the episodes of a task; "" if it can be judged.

        A missing grasp is detected by the gap, the distance between position and command of the closed gripper. This is
        not possible if most episodes of the task have nearly no gap.

        Args:
            channel: measured quantity.
            values: values of this quantity in all episodes of the task.
        """
        if channel == HOLD and float(np.median(values)) < _HOLDS:
            return "the gripper reaches its command in most episodes of this task, so a grasp cannot be detected"
        return ""

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """Judge each value in comparison with the task; a gripper that moves much less than usual is bad."""
        still: dict[str, float] = {}
        adjusted = [list(found) for found in measured]
        for places in group_recordings(recordings).values():
            spans = [_find_span(measured[place]) for place in places]
            usual = float(np.median([span for span in spans if span is not None] or [0.0]))
            changes = [found.value for place in places for found in measured[place] if found.channel == EVENTS]
            acts = float(np.median([value for value in changes if value is not None] or [0.0])) >= 2
            for place, span in zip(places, spans, strict=True):
                if span is not None and span < _LESS * usual:
                    adjusted[place] = [_clear_events(found) for found in measured[place]]
                    if acts:
                        still[recordings[place].episode_id] = span / usual
        for score in super().judge(recordings, adjusted):
            share = still.get(score.episode_id)
            if share is not None and score.channel == EVENTS and score.verdict == "good":
                much = f"{100 * share:.0f} % of the usual range in this task"
                reason = f"The gripper moves by {much}: it neither closes nor opens."
                yield replace(score, verdict="bad", reason=reason)
            else:
                yield score


def _find_span(found: Sequence[Measurement]) -> float | None:
    return next((float(metric.facts["span"]) for metric in found if "span" in metric.facts), None)


def _clear_events(found: Measurement) -> Measurement:
    if found.channel == HOLD:
        return replace(found, value=None, text="The gripper does not close.")
    return replace(found, value=0.0, first_frame=None, last_frame=None)


def _count_events(channel: str, frames: Sequence[int], motion: Movement) -> Measurement:
    """Return a measurement of the number of events; its text lists their times.

    Args:
        channel: name of the counted quantity.
        frames: frames of the events.
        motion: motion of the episode.
    """
    return Measurement(
        value=float(len(frames)),
        channel=channel,
        text=f" (at {_format_times(frames, motion)} s)" if frames else "",
        first_frame=frames[0] if frames else None,
        last_frame=frames[-1] if frames else None,
    )


def _measure_gap(events: GripEvents) -> Measurement:
    if events.gap is None:
        return Measurement(
            value=None,
            channel=HOLD,
            text="The gripper never closes after it was open, or there are no position commands.",
        )
    return Measurement(value=events.gap, channel=HOLD)


def _format_times(frames: Sequence[int], motion: Movement, most: int = 6) -> str:
    shown = ", ".join(f"{frame / motion.rate_hz:.1f}" for frame in frames[:most])
    return shown + (f" … {len(frames)} in all" if len(frames) > most else "")
