"""Actuators: gain, limit, delay, bias; and the encoder that the servo loop closes on."""

from __future__ import annotations

import math

from twinloop.twin.quantities.kinds import Quantity, Slot

ACTUATORS: tuple[Quantity, ...] = (
    Quantity(
        family="actuator",
        quantity="kp",
        unit="N·m/rad",
        low=1e-6,
        high=1e5,
        transform="log",
        slots=(Slot(field="actuator_gainprm", column=0), Slot(field="actuator_biasprm", column=1, factor=-1.0)),
    ),
    Quantity(
        family="actuator",
        quantity="torque_limit",
        unit="N·m",
        low=1e-6,
        high=1e4,
        transform="log",
        slots=(Slot(field="actuator_forcerange", column=0, factor=-1.0), Slot(field="actuator_forcerange", column=1)),
    ),
    Quantity(family="actuator", quantity="delay", unit="s", low=0.0, high=1.0, default=0.0, stage="command"),
    Quantity(family="actuator", quantity="bias", unit="rad", low=-0.5, high=0.5, default=0.0, stage="command"),
    Quantity(family="sensor", quantity="offset", unit="rad", low=-math.pi, high=math.pi, default=0.0, stage="encoder"),
    Quantity(family="sensor", quantity="scale", unit="1", low=0.5, high=2.0, default=1.0, stage="encoder"),
)
