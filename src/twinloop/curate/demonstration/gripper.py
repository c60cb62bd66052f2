"""Whether the gripper does what it does in the task's other episodes: how often, how steadily, and on what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from twinloop.curate.check import Measured, Score
from twinloop.curate.demonstration.grip import GripEvents, grip_events
from twinloop.curate.demonstration.movement import Movement, movement
from twinloop.curate.demonstration.peers import AmongPeers, Kind, by_group
from twinloop.curate.recording import Recording

EVENTS, FLUTTER, HOLD = "events", "flutter", "hold"
# The median gap of a task's episodes, as a share of the gripper's range, from which on closing means holding: a servo
# that holds nothing stops within a hundredth or two of its command (dead band and play; our choice).
_HOLDS = 0.04
_LESS = 0.3  # of the task's usual range: a gripper that moves less does not close or open at all (our choice)


class Gripper(AmongPeers):
    """Closings and openings against the task's usual number, flutter, and closing on nothing."""

    name = "demonstration/gripper"
    meaning = "closings and openings, quick reversals, and what is left between command and position when closed"
    kinds: Mapping[str, Kind] = {
        # One more closing and opening is a second try, which people make.
        EVENTS: Kind(worse="high", unit="1", least=2.0, words="Closings and openings:", show="{:.0f}"),
        FLUTTER: Kind(worse="high", unit="1", least=2.0, words="Reversals within half a second:", show="{:.0f}"),
        HOLD: Kind(worse="low", unit="1", least=0.02, words="When closed, the share of its range it is held off is"),
    }

    def measure(self, recording: Recording) -> Sequence[Measured]:
        """See `MeasuringCheck`."""
        motion = movement(recording)
        if motion.gripper is None:
            return [Measured(value=None, said="No joint is named a gripper or finger.")]
        events = grip_events(motion)
        if events is None:
            still = {"span": 0.0}
            why = Measured(value=None, channel=HOLD, said="The gripper does not close.")
            return [Measured(value=0.0, channel=channel, facts=still) for channel in (EVENTS, FLUTTER)] + [why]
        return [_events(events, motion), _flutter(events, motion), _hold(events)]

    def comparable(self, channel: str, values: Sequence[float]) -> str:
        """A gap says something where the task's episodes have one."""
        if channel == HOLD and float(np.median(values)) < _HOLDS:
            return (
                "the gripper closes as far as it is told in most episodes of this task, so nothing shows what it holds"
            )
        return ""

    def judge(self, recordings: Sequence[Recording], measured: Sequence[Sequence[Measured]]) -> Iterator[Score]:
        """As `AmongPeers`, but that what hardly moves beside the others counts as not moving, and stands out."""
        still: dict[str, float] = {}
        adjusted = [list(found) for found in measured]
        for places in by_group(recordings).values():
            spans = [_span(measured[place]) for place in places]
            usual = float(np.median([span for span in spans if span is not None] or [0.0]))
            changes = [found.value for place in places for found in measured[place] if found.channel == EVENTS]
            acts = float(np.median([value for value in changes if value is not None] or [0.0])) >= 2
            for place, span in zip(places, spans, strict=True):
                if span is not None and span < _LESS * usual:
                    adjusted[place] = [_unmoved(found) for found in measured[place]]
                    if acts:
                        still[recordings[place].episode_id] = span / usual
        for score in super().judge(recordings, adjusted):
            share = still.get(score.episode_id)
            if share is not None and score.channel == EVENTS and score.verdict == "good":
                much = f"{100 * share:.0f} % of what is usual in this task"
                reason = f"The gripper moves by {much}: it neither closes nor opens."
                yield replace(score, verdict="bad", reason=reason)
            else:
                yield score


def _span(found: Sequence[Measured]) -> float | None:
    return next((float(figure.facts["span"]) for figure in found if "span" in figure.facts), None)


def _unmoved(found: Measured) -> Measured:
    if found.channel == HOLD:
        return replace(found, value=None, said="The gripper does not close.")
    return replace(found, value=0.0, first_frame=None, last_frame=None)


def _events(events: GripEvents, motion: Movement) -> Measured:
    frames = [change.frame for change in events.changes]
    return Measured(
        value=float(len(frames)),
        channel=EVENTS,
        said=f" (at {_listed(frames, motion)} s)" if frames else "",
        first_frame=frames[0] if frames else None,
        last_frame=frames[-1] if frames else None,
        facts={"span": events.span},
    )


def _flutter(events: GripEvents, motion: Movement) -> Measured:
    frames = events.turns.tolist()
    return Measured(
        value=float(len(frames)),
        channel=FLUTTER,
        said=f" (at {_listed(frames, motion)} s)" if frames else "",
        first_frame=frames[0] if frames else None,
        last_frame=frames[-1] if frames else None,
    )


def _hold(events: GripEvents) -> Measured:
    if events.gap is None:
        return Measured(value=None, channel=HOLD, said="It never closes after it was open, or nothing is commanded.")
    return Measured(value=events.gap, channel=HOLD)


def _listed(frames: Sequence[int], motion: Movement, most: int = 6) -> str:
    shown = ", ".join(f"{frame / motion.rate_hz:.1f}" for frame in frames[:most])
    return shown + (f" … {len(frames)} in all" if len(frames) > most else "")
