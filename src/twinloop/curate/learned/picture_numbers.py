"""What pictures are like in numbers that a person understands: light, colour, grain, and what stays the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import TwinloopError
from twinloop.curate.recording import Recording
from twinloop.encoders.trajectory import Feature

Array = NDArray[np.float64]
_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)  # ITU-R BT.601
_KINDS = (
    ("tone", "brightness", "mean brightness, of 255"),
    ("tone", "contrast", "standard deviation of brightness"),
    ("colour", "saturation", "mean difference of the strongest and the weakest colour"),
    ("colour", "warmth", "mean of red − blue"),
    ("noise", "grain", "noise within a picture (Immerkær)"),
    ("noise", "flicker", "median change of a pixel from one picture to the next"),
    ("noise", "unchanged", "share of pixels that are exactly the same in the next picture"),
    ("sharpness", "edges", "mean brightness step between neighbouring pixels"),
)


def picture_numbers(recording: Recording, frames: Sequence[int]) -> tuple[tuple[Feature, ...], Array]:
    """Numbers ``(len(frames), d)`` of the pictures at frames and the ones after them, of every camera.

    A camera whose pictures cannot be read has none.
    """
    features: list[Feature] = []
    columns = [np.empty((len(frames), 0))]
    wanted = sorted({frame for one in frames for frame in (one, min(one + 1, recording.frames - 1))})
    for camera in recording.cameras:
        try:
            pictures = recording.pictures(camera, wanted)
        except TwinloopError:
            continue
        place = {frame: i for i, frame in enumerate(wanted)}
        pairs = [(place[one], place[min(one + 1, recording.frames - 1)]) for one in frames]
        columns.append(np.array([_numbers(pictures[a], pictures[b]) for a, b in pairs]))
        features += [
            Feature(channel=camera, family=family, kind=kind, unit="1", meaning=meaning)
            for family, kind, meaning in _KINDS
        ]
    return tuple(features), np.concatenate(columns, axis=1)


def _numbers(picture: NDArray[np.uint8], following: NDArray[np.uint8]) -> list[float]:
    """In the order of `_KINDS`, of two pictures ``(h, w, 3)``."""
    grey = picture.astype(np.float32) @ _LUMA
    colour = picture.astype(np.int16)
    change = np.abs(colour - following.astype(np.int16))
    # Immerkær, "Fast noise variance estimation", Comput. Vis. Image Underst. 64, 1996: what a difference of two
    # Laplacians leaves, which knows no constant, slope or edge along an axis.
    rows = grey[:-2] - 2 * grey[1:-1] + grey[2:]
    left = rows[:, :-2] - 2 * rows[:, 1:-1] + rows[:, 2:]
    return [
        float(grey.mean()),
        float(grey.std()),
        float((colour.max(axis=2) - colour.min(axis=2)).mean()),
        float((colour[..., 0] - colour[..., 2]).mean()),
        float(np.sqrt(np.pi / 2) * np.abs(left).mean() / 6),
        float(np.median(change)),
        float((change == 0).all(axis=2).mean()),
        float(np.abs(np.diff(grey, axis=1)).mean()),
    ]
