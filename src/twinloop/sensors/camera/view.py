"""What has to be drawn so that a lens can be put before it: a wider pinhole, or a ray for every pixel."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.imaging import Intrinsics
from twinloop.sensors.camera.lens import Lens

# Off the axis. A flat picture of 2·80° has 11 times the width of one of 2·27°, and 33 times fewer pixels per degree in
# its middle than at its edge (tan 80° and 1 / cos² 80°).
WIDEST = math.radians(80.0)


def rendered_view(lens: Lens, target: Intrinsics, *, margin: float = 1.0, density: float = 1.0) -> Intrinsics:
    """The centred pinhole of square pixels to draw, so that no pixel of the picture behind the lens lacks light.

    Args:
        target: the picture behind the lens; its principal point may be anywhere.
        margin: pixels of the view beyond those that a bilinear look at any channel of any pixel needs.
        density: pixels of the view to a pixel of the target where the lens does not distort, in its middle.

    Returns:
        The smallest such view with an even width and height.

    Raises:
        InputError: the lens sees further off the axis than `WIDEST`, or it folds within the picture.
    """
    rays = np.concatenate([lens.rays(_border(target) / size) for size in lens.magnifications])
    # The picture's inside lies inside: a lens that does not fold maps what its border encloses to what that encloses.
    angle = float(np.arctan2(np.hypot(rays[:, 0], rays[:, 1]), rays[:, 2]).max())
    if angle > WIDEST:
        raise InputError(
            f"This lens sees {math.degrees(angle):.4g}° off the axis, and a flat picture is drawn up to "
            f"{math.degrees(WIDEST):.0f}°. Trace the lens's own rays instead (lens_rays), with the renderer warp."
        )
    focal = density * max(target.fx, target.fy)
    reach = np.abs(rays[:, :2] / rays[:, 2:]).max(axis=0) * focal + 0.5 + margin
    half = [max(1, math.ceil(pixels - 1e-9)) for pixels in reach]
    return Intrinsics(fx=focal, fy=focal, cx=half[0], cy=half[1], width=2 * half[0], height=2 * half[1])


def lens_rays(lens: Lens, target: Intrinsics) -> NDArray[np.float64]:
    """Where every pixel's centre looks: unit vectors ``(height, width, 3)`` in camera axes, of the green channel.

    Raises:
        InputError: the lens folds within the picture.
    """
    return lens.rays(normalized(target, target.pixel_centres()))


def normalized(target: Intrinsics, pixels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Pixels ``(…, 2)`` in units of the focal length about the principal point."""
    return (pixels - [target.cx, target.cy]) / [target.fx, target.fy]


def _border(target: Intrinsics) -> NDArray[np.float64]:
    """Normalized positions ``(n, 2)`` of the centres of the outermost pixels."""
    inside = np.ones((target.height, target.width), dtype=bool)
    inside[1:-1, 1:-1] = False
    return normalized(target, target.pixel_centres()[inside])
