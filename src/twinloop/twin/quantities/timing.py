"""Timing: commands late or lost on their way, and a control loop that keeps no exact time."""

from __future__ import annotations

from twinloop.twin.quantities.kinds import Quantity

TIMING: tuple[Quantity, ...] = (
    Quantity(
        family="timing", quantity="jitter", member="command", unit="s", low=0.0, high=1.0, default=0.0, stage="command"
    ),
    Quantity(
        family="timing",
        quantity="drop_rate",
        member="command",
        unit="1",
        low=0.0,
        high=1.0,
        default=0.0,
        stage="command",
    ),
    Quantity(
        family="timing", quantity="period", member="control", unit="1", low=0.5, high=2.0, default=1.0, stage="clock"
    ),
    Quantity(
        family="timing", quantity="jitter", member="control", unit="s", low=0.0, high=0.1, default=0.0, stage="clock"
    ),
)
