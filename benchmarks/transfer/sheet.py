"""Write a contact sheet of looks: ``python -m benchmarks.transfer.sheet docs/images/looks.jpg``.

Each column is one random room, seen by the front camera of the example twin through its camera model: with the
rasterizer, with the path tracer, and with the path tracer and the maker's CAD meshes of the robot. The rooms of the
right half have surfaces, clutter and lamps that no room of the left half has.
"""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.transfer.looks import CAD, ImageLook, take_images
from benchmarks.transfer.settings import PLACES
from twinloop.core.files import write_bytes
from twinloop.render import contact_sheet

_ROWS = (
    ImageLook(label="rasterizer"),
    ImageLook(label="path tracer", renderer="mitsuba"),
    ImageLook(label="CAD meshes", renderer="mitsuba", twin=CAD),
)
_ROOMS = ((1, 1000), (100_001, 200_000))
_EACH, _STEP = 3, 45  # rooms of each kind; control step at which the images are taken


def main() -> None:
    """Write the sheet to the file that is named on the command line."""
    from PIL import Image

    images, labels = list[NDArray[np.uint8]](), list[str]()
    for look in _ROWS:
        for rooms, kind in zip(_ROOMS, ("training rooms", "other rooms"), strict=True):
            images += list(take_images(replace(look, rooms=rooms), seed=PLACES, episodes=_EACH, steps=[_STEP])[:, 0])
            labels += [f"{look.label}, {kind}"] * _EACH
    buffer = io.BytesIO()
    Image.fromarray(contact_sheet(images, labels, columns=2 * _EACH)).save(buffer, "JPEG", quality=85)
    write_bytes(Path(sys.argv[1]), buffer.getvalue())


if __name__ == "__main__":
    main()
