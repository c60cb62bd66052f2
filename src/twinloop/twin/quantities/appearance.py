"""Appearance: cameras, lights, colours, textures."""

from __future__ import annotations

import math
from collections.abc import Iterator

from twinloop.twin.quantities.kinds import Quantity, Slot, assign


def _camera_offsets() -> Iterator[Quantity]:
    for axis in "xyz":
        yield Quantity(
            family="camera", quantity=f"position/{axis}", unit="m", low=-1.0, high=1.0, default=0.0, visual=True
        )
        yield Quantity(
            family="camera",
            quantity=f"rotation/{axis}",
            unit="rad",
            low=-math.pi,
            high=math.pi,
            default=0.0,
            visual=True,
        )


APPEARANCE: tuple[Quantity, ...] = (
    Quantity(
        family="camera",
        quantity="fovy",
        unit="rad",
        low=0.02,
        high=3.0,
        slots=assign("cam_fovy", factor=180.0 / math.pi),
        visual=True,
    ),
    *_camera_offsets(),
    Quantity(
        family="light",
        quantity="intensity",
        unit="1",
        low=0.0,
        high=100.0,
        default=1.0,
        slots=tuple(Slot(field=f"light_{part}", rule="factor") for part in ("ambient", "diffuse", "specular")),
        visual=True,
    ),
    *(
        Quantity(
            family="material",
            quantity=f"color/{channel}",
            unit="1",
            low=0.0,
            high=1.0,
            slots=assign("mat_rgba", column),
            visual=True,
        )
        for column, channel in enumerate("rgb")
    ),
    Quantity(family="texture", quantity="", unit="1", low=0.0, high=1e6, default=0.0, visual=True),
)
