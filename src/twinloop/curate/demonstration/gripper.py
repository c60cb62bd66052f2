"""Check a gripper's use against the task's other episodes: number of closings, flutter, and grasp."""

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

# Closed below the one share of its range, open above the other, as in `encoders.trajectory`.
CLOSED, OPEN = 0.35, 0.65
_SWING = 0.1  # of the range: smaller movements do not count as flutter (our choice)
_QUICK_S = 0.5  # between two turns; a person opens and closes a gripper deliberately in about a second
_SETTLED_S = 0.3  # a servo's gripper has closed by then


@dataclass(frozen=True, kw_only=True)
class GripperEvent:
    """One closing or opening of the gripper."""

    frame: int
    closes: bool


@dataclass(frozen=True, kw_only=True)
class GripEvents:
    """Gripper events of one movement: ``changes`` in order, frames ``turns`` of quick reversals, and remaining gaps.

    ``span`` is the range of the gripper's command (without commands, of its position) in the movement's unit. ``gap``
    is the distance between command and position of the closed gripper, the largest over all closings, as a share of
    ``span``: a held object keeps the gripper open. ``last_gap`` is the gap at the end of the last closing. Both are
    None without commands, or if the gripper never closes after it was open.
    """

    changes: tuple[GripperEvent, ...]
    turns: NDArray[np.intp]
    gap: float | None
    last_gap: float | None
    span: float


def find_grip_events(motion: Movement) -> GripEvents | None:
    """Return the gripper events of a movement; None without a gripper, or if its command is constant."""
    if motion.gripper is None:
        return None
    position = motion.position[:, motion.gripper]
    asked = position if motion.command is None else motion.command[:, motion.gripper]
    low, span = float(asked.min()), float(np.ptp(asked))
    if span <= 1e-9 * max(1.0, float(np.abs(asked).max())):
        return None
    share = (asked - low) / span
    closed = _find_closed_frames(share)
    frames = np.flatnonzero(np.diff(closed.astype(np.int8))) + 1
    gaps = [] if motion.command is None else _compute_gaps(position - asked, closed, frames, motion.rate_hz)
    return GripEvents(
        changes=tuple(GripperEvent(frame=int(frame), closes=bool(closed[frame])) for frame in frames),
        turns=_find_turns(share, motion.rate_hz),
        gap=max(whole for whole, _ in gaps) / span if gaps else None,
        last_gap=gaps[-1][1] / span if gaps else None,
        span=span,
    )


def _find_closed_frames(share: Array) -> NDArray[np.bool_]:
    """Return the mask of frames with a closed gripper, with hysteresis between `CLOSED` and `OPEN`."""
    told = np.where(share <= CLOSED, 1, np.where(share >= OPEN, 0, -1))
    last = np.maximum.accumulate(np.where(told >= 0, np.arange(len(told)), -1))
    return np.where(last >= 0, told[np.maximum(last, 0)] == 1, share < 0.5)


def _find_turns(share: Array, rate_hz: float) -> NDArray[np.intp]:
    """Return the frames of extremes that follow the previous extreme within half a second."""
    padded = np.concatenate([share[:1], share, share[-1:]])
    found = [scipy.signal.find_peaks(side, prominence=_SWING)[0] - 1 for side in (padded, -padded)]
    frames = np.sort(np.concatenate(found))
    return frames[1:][np.diff(frames) < _QUICK_S * rate_hz]


def _compute_gaps(
    left: Array, closed: NDArray[np.bool_], frames: NDArray[np.intp], rate_hz: float
) -> list[tuple[float, float]]:
    """Return the median gap of every closing, over the whole closing and at its end."""
    settled = round(_SETTLED_S * rate_hz)
    ends = [*frames[1:], len(closed)]
    return [
        (float(np.median(left[begin + settled : end])), float(np.median(left[end - settled - 1 : end - 1])))
        for begin, end in zip(frames, ends, strict=True)
        if closed[begin] and end - begin > settled + 1
    ]


EVENTS, FLUTTER, HOLD = "events", "flutter", "hold"
# Median gap of a task's episodes, as a share of the gripper's range, above which the gripper holds an object when
# closed: without an object a servo stops within 1 or 2 % of its command (dead band and play; our choice).
_HOLDS = 0.04
_LESS = 0.3  # of the task's usual range: a gripper that moves less does not close or open at all (our choice)


class GripperUse(PeerCheck):
    """Number of closings and openings against the task's usual number, flutter, and closing without an object."""

    name = "demonstration/gripper"
    meaning = "closings and openings, quick reversals, and the gap between command and position when closed"
    kinds: Mapping[str, MetricKind] = {
        # One more closing and opening is a normal second attempt.
        EVENTS: MetricKind(worse="high", unit="1", least=2.0, words="Closings and openings:", show="{:.0f}"),
        FLUTTER: MetricKind(worse="high", unit="1", least=2.0, words="Reversals within half a second:", show="{:.0f}"),
        HOLD: MetricKind(worse="low", unit="1", least=0.02, words="When closed, the gap as a share of its range is"),
    }

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Count closings and openings and quick reversals, and measure the gap when closed."""
        motion = compute_movement(recording)
        if motion.gripper is None:
            return [Measurement(value=None, said="No joint is named a gripper or finger.")]
        events = find_grip_events(motion)
        if events is None:
            still = {"span": 0.0}
            why = Measurement(value=None, channel=HOLD, said="The gripper does not close.")
            return [Measurement(value=0.0, channel=channel, facts=still) for channel in (EVENTS, FLUTTER)] + [why]
        changes = _count_events(EVENTS, [change.frame for change in events.changes], motion)
        turns = _count_events(FLUTTER, events.turns.tolist(), motion)
        return [replace(changes, facts={"span": events.span}), turns, _measure_gap(events)]

    def explain_incomparable(self, channel: str, values: Sequence[float]) -> str:
        """Return why gaps cannot be compared, if most episodes of the task have none; else an empty string."""
        if channel == HOLD and float(np.median(values)) < _HOLDS:
            return "the gripper reaches its command in most episodes of this task, so a grasp cannot be detected"
        return ""

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """Judge as `PeerCheck`, but mark a gripper that moves much less than in other episodes as bad."""
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
    return next((float(figure.facts["span"]) for figure in found if "span" in figure.facts), None)


def _clear_events(found: Measurement) -> Measurement:
    if found.channel == HOLD:
        return replace(found, value=None, said="The gripper does not close.")
    return replace(found, value=0.0, first_frame=None, last_frame=None)


def _count_events(channel: str, frames: Sequence[int], motion: Movement) -> Measurement:
    """Return the number of events and their frames."""
    return Measurement(
        value=float(len(frames)),
        channel=channel,
        said=f" (at {_format_times(frames, motion)} s)" if frames else "",
        first_frame=frames[0] if frames else None,
        last_frame=frames[-1] if frames else None,
    )


def _measure_gap(events: GripEvents) -> Measurement:
    if events.gap is None:
        return Measurement(value=None, channel=HOLD, said="It never closes after it was open, or nothing is commanded.")
    return Measurement(value=events.gap, channel=HOLD)


def _format_times(frames: Sequence[int], motion: Movement, most: int = 6) -> str:
    shown = ", ".join(f"{frame / motion.rate_hz:.1f}" for frame in frames[:most])
    return shown + (f" … {len(frames)} in all" if len(frames) > most else "")
