"""Bodies and contact: mass, friction, and where an object lies when an episode begins."""

from __future__ import annotations

import math
from collections.abc import Iterator

from twinloop.twin.quantities.kinds import Quantity, Slot, assign


def _friction(family: str) -> Iterator[Quantity]:
    for column, kind in enumerate(("slide", "torsion", "roll")):
        yield Quantity(
            family=family,
            quantity=f"friction/{kind}",
            unit="1" if kind == "slide" else "m",
            low=0.0,
            high=5.0,
            slots=assign("geom_friction", column),
        )


BODIES: tuple[Quantity, ...] = (
    Quantity(
        family="object",
        quantity="mass",
        unit="kg",
        low=1e-4,
        high=1e3,
        transform="log",
        slots=(Slot(field="body_mass", rule="factor"), Slot(field="body_inertia", rule="factor")),
        set_const=True,
    ),
    *_friction("object"),
    *_friction("geom"),
    Quantity(family="object", quantity="position/x", unit="m", low=-1e2, high=1e2, stage="reset"),
    Quantity(family="object", quantity="position/y", unit="m", low=-1e2, high=1e2, stage="reset"),
    Quantity(family="object", quantity="yaw", unit="rad", low=-math.pi, high=math.pi, default=0.0, stage="reset"),
)
