"""Timing: commands late or lost on their way, a control loop that keeps no exact time, readings of another clock."""

from __future__ import annotations

from twinloop.twin.quantities.kinds import Quantity, Stage


def _timing(
    member: str, quantity: str, unit: str, low: float, high: float, default: float, stage: Stage, meaning: str
) -> Quantity:
    return Quantity(
        family="timing",
        member=member,
        quantity=quantity,
        unit=unit,
        low=low,
        high=high,
        default=default,
        stage=stage,
        meaning=meaning,
    )


TIMING: tuple[Quantity, ...] = (
    _timing(
        "command", "jitter", "s", 0.0, 1.0, 0.0, "command", "largest extra age of a command, uniform from none to this"
    ),
    _timing("command", "drop_rate", "1", 0.0, 1.0, 0.0, "command", "probability that a command never arrives"),
    _timing("control", "period", "1", 0.5, 2.0, 1.0, "clock", "length of the control loop's period over the nominal"),
    _timing("control", "jitter", "s", 0.0, 0.1, 0.0, "clock", "largest lateness of the loop, from none to this"),
    _timing(
        "readings",
        "rate",
        "Hz",
        0.0,
        1e5,
        0.0,
        "encoder",
        "readings taken per second, on a clock of their own; 0: one when a command is due",
    ),
    _timing("readings", "phase", "1", 0.0, 1.0, 0.0, "encoder", "part of their period after which readings begin"),
    _timing("readings", "delay", "s", 0.0, 1.0, 0.0, "encoder", "age of a reading when it is delivered"),
)
