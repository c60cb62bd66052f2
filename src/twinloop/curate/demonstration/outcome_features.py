"""What of a demonstration may tell how it ended, in numbers that have a name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from twinloop.curate.demonstration.grip import grip_events
from twinloop.curate.demonstration.hesitation import pauses
from twinloop.curate.demonstration.movement import Movement, movements
from twinloop.curate.demonstration.path import path_pieces
from twinloop.stats.series import log_dimensionless_jerk, spectral_arc_length

_END_S = 1.0


@dataclass(frozen=True, kw_only=True)
class OutcomeFeature:
    """One number of an episode: its name, what it means, and its unit (``u`` is the log's own)."""

    name: str
    meaning: str
    unit: str
    value: float


def outcome_features(motion: Movement) -> tuple[OutcomeFeature, ...]:
    """The numbers of one movement; the same names for episodes of the same joints."""
    return (*_course(motion), *_grip(motion), *_places(motion))


def _course(motion: Movement) -> tuple[OutcomeFeature, ...]:
    rate, speed = motion.rate_hz, motion.speed
    parts = movements(motion)
    arc = [float(spectral_arc_length(speed[a:b], rate)) for a, b in parts] or [np.nan]
    jerk = [min(float(log_dimensionless_jerk(motion.velocity[a:b], rate)), 0.0) for a, b in parts] or [np.nan]
    straight, taken, _ = path_pieces(motion.position[:, motion.arm], [], rate, norm=1)
    stops = pauses(motion) if speed.max() > 0 else []
    end = speed[-max(1, round(_END_S * rate)) :]
    unit = "rad" if motion.si else "u"
    rows = (
        ("duration", "duration", "s", len(motion) / rate),
        ("way", "way of the joints", unit, float(taken.sum())),
        ("efficiency", "straight way over way taken", "1", float(straight.sum() / max(taken.sum(), 1e-12))),
        ("top_speed", "95th percentile of speed", f"{unit}/s", float(np.quantile(speed, 0.95))),
        ("smoothness", "median spectral arc length", "1", float(np.median(arc))),
        ("jerk", "median log dimensionless jerk", "1", float(np.median(jerk))),
        ("paused", "time paused in the middle", "s", sum(b - a for a, b in stops) / rate),
        ("end_speed", "mean speed in the last second", f"{unit}/s", float(end.mean())),
        ("tracking", "command − position, root mean square", unit, _tracking(motion)),
    )
    return tuple(OutcomeFeature(name=n, meaning=m, unit=u, value=v) for n, m, u, v in rows)


def _tracking(motion: Movement) -> float:
    if motion.command is None:
        return float("nan")
    apart = (motion.command - motion.position)[:, motion.arm]
    return float(np.sqrt(np.mean(np.sum(apart**2, axis=1))))


def _grip(motion: Movement) -> tuple[OutcomeFeature, ...]:
    """What the gripper did; zeros where it did nothing, none without a gripper."""
    if motion.gripper is None:
        return ()
    events = grip_events(motion)
    changes = [] if events is None else events.changes
    first = next((change.frame / motion.rate_hz for change in changes if change.closes), 0.0)
    rows = (
        ("grip/changes", "closings and openings", "1", float(len(changes))),
        ("grip/flutter", "quick reversals of the gripper", "1", 0.0 if events is None else float(len(events.turns))),
        (
            "grip/gap",
            "share of its range that the gripper is held off when closed",
            "1",
            _or_zero(events and events.gap),
        ),
        ("grip/kept", "the same at the end of its last closing", "1", _or_zero(events and events.last_gap)),
        ("grip/first", "time of the first closing", "s", first),
    )
    return tuple(OutcomeFeature(name=n, meaning=m, unit=u, value=v) for n, m, u, v in rows)


def _or_zero(value: float | None) -> float:
    return 0.0 if value is None else value


def _places(motion: Movement) -> tuple[OutcomeFeature, ...]:
    """Where each joint ends."""
    unit = "rad" if motion.si else "u"
    return tuple(
        OutcomeFeature(
            name=f"end/{motion.joints[column]}",
            meaning=f"last position of {motion.joints[column]}",
            unit=unit,
            value=float(motion.position[-1, column]),
        )
        for column in motion.arm
    )
