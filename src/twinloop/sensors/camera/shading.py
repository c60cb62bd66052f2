"""What a lens and the dirt on it let through, as maps of factors on light."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinloop.sensors.camera.seeds import CameraSeeds, poisson_of_words

_DUST = "dust"
_MOST_SPECKS = 1000
_SPREAD = 0.5  # standard deviation of the logarithm of the specks' radii


def falloff(height: int, width: int, vignetting: float) -> NDArray[np.float64]:
    """Light that reaches each pixel, against the middle: cos⁴ of an angle at which a corner loses ``vignetting``.

    A pixel at the part ρ of the way to a corner has cos⁻² θ = 1 + ρ² tan² θ_corner. The natural law has this form with
    the lens's own angle; one that vignets mechanically as well, or is corrected in part, has an effective one.
    """
    return falloff_at(radius_squared(height, width), vignetting)


def falloff_at(radius2: NDArray[np.float64], vignetting: float) -> NDArray[np.float64]:
    """The same at places ρ²."""
    steepness = (1.0 - vignetting) ** -0.5 - 1.0  # tan² of the corner's angle
    return (1.0 + steepness * radius2) ** -2.0


def radius_squared(height: int, width: int) -> NDArray[np.float64]:
    """ρ² of every pixel, the squared part of the way from the middle to a corner, ``(height, width)``."""
    across = ((np.arange(width) + 0.5) / (width / 2) - 1.0) * width
    down = ((np.arange(height) + 0.5) / (height / 2) - 1.0) * height
    return (across**2 + down[:, None] ** 2) / (width**2 + height**2)


def dust_shadows(
    height: int, width: int, seeds: CameraSeeds, *, count: float, radius: float, depth: float
) -> NDArray[np.float64]:
    """Light that specks of dust near the sensor let through, ``(height, width)``.

    Their number is Poisson distributed with mean ``count``; places are even, radii log-normal about ``radius`` (in
    picture heights), depths even up to ``depth``. A shadow's edge is as wide as its radius: dust is out of focus.
    """
    specks = _specks(seeds, count)
    passed = np.ones((height, width))
    if not specks:
        return passed
    places = seeds.uniforms(_DUST, 4 * _MOST_SPECKS, unit=True).reshape(-1, 4)[1 : 1 + specks, :3]
    sizes = radius * height * np.exp(_SPREAD * seeds.normals(f"{_DUST}/radius", specks, unit=True))
    for (right, down, part), size in zip(places, sizes, strict=True):
        x, y, reach = right * width, down * height, 1.5 * size + 1.0
        rows = slice(max(int(y - reach), 0), max(int(y + reach) + 1, 0))
        columns = slice(max(int(x - reach), 0), max(int(x + reach) + 1, 0))
        far = np.hypot(np.arange(width)[columns] + 0.5 - x, (np.arange(height)[rows] + 0.5 - y)[:, None])
        inside = np.clip(1.5 - far / size, 0.0, 1.0)
        passed[rows, columns] *= 1.0 - part * depth * inside**2 * (3.0 - 2.0 * inside)
    return passed


def _specks(seeds: CameraSeeds, count: float) -> int:
    """A Poisson number, as a sum of such of smaller means."""
    parts = int(count // 16.0) + 1
    words = seeds.words(f"{_DUST}/count", parts, unit=True)
    return min(int(poisson_of_words(words, np.full(parts, count / parts)).sum()), _MOST_SPECKS - 1)
