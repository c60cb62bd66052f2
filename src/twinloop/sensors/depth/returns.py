"""Which of its own light a depth camera does not get back."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.sensors.depth.frames import DepthFrames, per_frame

GRAZING_POWER = 4.0  # how late the loss sets in as a surface turns away: our choice, 6 % of the full loss half way


@dataclass(frozen=True, kw_only=True)
class Returns:
    """Losses of light, each a number or one for each frame ``(n,)``; the defaults lose nothing.

    With E the cosine of incidence, ``grazing_limit`` the angle in rad beyond which nothing comes back, and E_min its
    cosine, a pixel is lost with probability ``grazing_dropout`` · ((1 - E) / (1 - E_min))^4, and surely beyond the
    limit. Below the brightness ``dark_limit`` it is lost with probability 1 - brightness / dark_limit, and of a
    surface that shines by ``shine`` · ``specular_dropout``, since a mirror sends the light elsewhere.
    """

    grazing_limit: ArrayLike = math.pi / 2
    grazing_dropout: ArrayLike = 0.0
    dark_limit: ArrayLike = 0.0
    specular_dropout: ArrayLike = 0.0

    def survival(self, frames: DepthFrames, cosine: NDArray[np.float64] | None) -> NDArray[np.float64]:
        """Probability ``(n, h, w)`` that a pixel's light comes back, for cosines of incidence ``(n, h, w)``."""
        kept = np.ones(frames.depth.shape)
        if cosine is not None:
            kept *= 1.0 - self._grazing(cosine)
        dark = np.broadcast_to(per_frame(self.dark_limit), kept.shape)
        if frames.brightness is not None and dark.any():
            share = np.divide(frames.brightness, dark, out=np.ones(kept.shape), where=dark > 0.0)
            kept *= np.clip(share, 0.0, 1.0)
        if frames.shine is not None:
            kept *= 1.0 - per_frame(self.specular_dropout) * np.clip(frames.shine, 0.0, 1.0)
        return kept

    def _grazing(self, cosine: NDArray[np.float64]) -> NDArray[np.float64]:
        least = np.cos(per_frame(self.grazing_limit))
        share = np.clip((1.0 - cosine) / (1.0 - least), 0.0, 1.0)
        # The cosine of a right angle is 6e-17 and not 0; at an unlimited angle nothing is beyond.
        beyond = (cosine <= least) & (least > 1e-12)
        return np.where(beyond, 1.0, per_frame(self.grazing_dropout) * share**GRAZING_POWER)
