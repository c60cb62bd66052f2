"""A beam has a width: some rays that stand for it, and what the light that comes back along them is taken for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.sensors.lidar.patterns import directions


def subrays(
    azimuth: NDArray[np.float64], elevation: NDArray[np.float64], divergence: ArrayLike, count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Unit directions ``(n, count, 3)`` of the rays of beams ``(n,)``, and how much of a beam's light each stands for.

    One ray is the middle with half of the light, the others lie on the rim, where a Gaussian beam's light is 1/e² of
    its middle's, half of the full ``divergence`` in rad off. These weights have the Gaussian's second moments.

    Raises:
        InputError: a number of rays that cannot do so (1, or 4 and more, can).
    """
    if count == 1:
        return directions(azimuth, elevation)[:, None], np.ones(1)
    if count < 4:
        raise InputError(f"{count} rays cannot stand for a beam. Take 1, which has no width, or 4 and more.")
    around = 2.0 * np.pi * np.arange(count - 1) / (count - 1)
    rim = np.asarray(divergence, dtype=np.float64) / 2.0
    middle = directions(azimuth, elevation)
    upwards = directions(azimuth, elevation + np.pi / 2)
    sideways = np.cross(upwards, middle)
    aside = np.cos(around)[:, None] * sideways[:, None] + np.sin(around)[:, None] * upwards[:, None]
    edge = np.cos(rim) * middle[:, None] + np.sin(rim) * aside
    weights = np.concatenate([[0.5], np.full(count - 1, 0.5 / (count - 1))])
    return np.concatenate([middle[:, None], edge], axis=1), weights


@dataclass(frozen=True, kw_only=True)
class Echo:
    """What beams ``(n,)`` bring back.

    ``distance`` in m, inf where nothing; ``strength`` in 1/m², 1 of a white surface met head-on at 1 m; ``cosine`` of
    incidence; ``source``, the ray that brought most of the light.
    """

    distance: NDArray[np.float64]
    strength: NDArray[np.float64]
    cosine: NDArray[np.float64]
    source: NDArray[np.intp]


def strongest_echo(
    distance: NDArray[np.float64],
    reflectivity: NDArray[np.float64],
    cosine: NDArray[np.float64],
    weights: NDArray[np.float64],
    *,
    pulse_length: float,
) -> Echo:
    """The strongest echo of each beam, from what its rays ``(n, k)`` met.

    A ray brings back weight · reflectivity · cosine / distance². Rays whose distances differ by at most
    ``pulse_length`` m come back in one pulse, and the distance measured is their mean, each by its light: at an edge, a
    point in the air between two surfaces. Of several pulses the strongest is reported.
    """
    seen = np.isfinite(distance) & (distance > 0.0)
    near = np.where(seen, distance, 1.0)
    light = np.where(seen, weights * reflectivity * cosine / near**2, 0.0)
    together = (np.abs(near[:, :, None] - near[:, None, :]) <= pulse_length) & seen[:, :, None] & seen[:, None, :]
    pulses = np.einsum("nij,nj->ni", together, light)
    beam, best = np.arange(len(distance)), pulses.argmax(axis=1)
    share = np.where(together[beam, best], light, 0.0)
    total = share.sum(axis=1)
    back = total > 0.0
    part = share / np.where(back, total, 1.0)[:, None]
    return Echo(
        distance=np.where(back, np.einsum("nk,nk->n", part, near), np.inf),
        strength=total,
        cosine=np.einsum("nk,nk->n", part, cosine),
        source=share.argmax(axis=1),
    )
