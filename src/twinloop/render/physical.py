"""Convert MuJoCo's lights and shininess to physical quantities, for renderers with physical light.

The unit of light is the radiance of a white matt surface that is displayed as sRGB white. MuJoCo's classic lights
(``light_intensity`` 0) are not physical quantities: their colours add up to a displayed colour. Two constants per model
convert these colours to light; they are determined when the model is opened. They are chosen so that two white surfaces
are as bright as in the classic renderer: one that faces all lights, and one in the shadow of all lights that cast
shadows. The conversion is linear, so twice the colour gives twice the light.

A ``light_intensity`` above 0 is in candela (lux for a directional light). It replaces the classic brightness, and
``light_diffuse`` is then the colour only. `WHITE_LUX` (500 lx) on a white surface give the radiance 1.0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.imaging import LUMA, srgb_to_linear

Array = NDArray[np.float64]
WHITE_LUX = 500.0  # the light of an office desk, EN 12464-1
_KIND = mujoco.mjtLightType


@dataclass(frozen=True, kw_only=True)
class LightExposure:
    """Constants that convert a model's light colours to radiance, scaled so that 1.0 is displayed as sRGB white.

    Attributes:
        fill: factor for lights that cast no shadows (fill light of photographers) and for ambient light.
        key: factor for lights that cast shadows (key light of photographers).
        reach: distance of each light from the model's centre in m, ``(nlight,)``. At this distance a point or spot
            light is as bright as in the classic renderer.
    """

    fill: float
    key: float
    reach: Array

    @classmethod
    def of(cls, model: mujoco.MjModel, light_xpos: Array) -> Self:
        """Compute the constants that convert the light colours of a compiled model to radiance.

        Args:
            model: compiled model.
            light_xpos: positions of the model's lights in the home pose, ``(nlight, 3)`` in m.
        """
        shining = model.light_active.astype(bool)
        shadows = shining & model.light_castshadow.astype(bool)
        fill = float((_ambient(model, 0.5) + model.light_diffuse[shining & ~shadows].sum(axis=0)) @ LUMA)
        whole = fill + float(model.light_diffuse[shadows].sum(axis=0) @ LUMA)
        dark, bright = srgb_to_linear(fill), srgb_to_linear(whole)
        return cls(
            fill=float(dark / fill) if fill > 0.0 else 1.0,
            key=float((bright - dark) / (whole - fill)) if whole > fill else 1.0,
            reach=np.maximum(np.linalg.norm(light_xpos - model.stat.center, axis=-1), 1e-3),
        )

    def ambient_radiance(self, model: mujoco.MjModel, *, headlight: float = 0.5) -> Array:
        """Return the radiance of the light from all directions, ``(3,)`` for red, green, blue.

        Args:
            model: model with the colours of a frame.
            headlight: share of the headlight's diffuse colour that is part of it. 0.5 is its mean on surfaces that the
                camera sees, for renderers without a light at the camera.
        """
        return self.fill * _ambient(model, headlight)

    def lamp_light(self, model: mujoco.MjModel, light: int) -> Array:
        """Return the light of a lamp on a white surface that faces it, ``(3,)`` for red, green, blue.

        The distance to a directional light is without effect. For a point or spot light, the result is the light at a
        distance of 1 m; it decreases with the square of the distance.

        Args:
            model: model with the colours of a frame.
            light: id of the lamp.
        """
        colour = model.light_diffuse[light].astype(np.float64)
        if model.light_intensity[light] > 0.0:
            return colour / (colour @ LUMA) * float(model.light_intensity[light]) / WHITE_LUX
        strength = (self.key if model.light_castshadow[light] else self.fill) * colour
        if int(model.light_type[light]) == _KIND.mjLIGHT_DIRECTIONAL:
            return strength
        reach = float(self.reach[light])
        return strength * reach**2 / max(float(model.light_attenuation[light] @ [1.0, reach, reach**2]), 1e-9)


def _ambient(model: mujoco.MjModel, headlight: float) -> Array:
    head = model.vis.headlight
    shining = model.light_active.astype(bool)
    own = head.ambient + headlight * head.diffuse if head.active else np.zeros(3)
    return np.asarray(own + model.light_ambient[shining].sum(axis=0), dtype=np.float64)


def is_spot(model: mujoco.MjModel, light: int) -> bool:
    """Return whether a light shines into a cone; a spot light with a cutoff of 90° or more is a point light."""
    return int(model.light_type[light]) == _KIND.mjLIGHT_SPOT and float(model.light_cutoff[light]) < 90.0


def spot_cone(model: mujoco.MjModel, light: int) -> tuple[float, float]:
    """Return the half angles in degrees at which a spot light is dark, and at which it begins to darken.

    OpenGL darkens by cos^exponent up to a sharp cutoff, physical renderers gradually between two angles. The angles are
    chosen so that both have half of the light at the same angle.
    """
    cutoff, exponent = float(model.light_cutoff[light]), float(model.light_exponent[light])
    if exponent <= 0.0:
        return cutoff, 0.99 * cutoff
    half = math.degrees(math.acos(0.5 ** (1.0 / exponent)))
    dark = min(cutoff, 2.0 * half)
    return dark, max(2.0 * half - dark, 0.01 * dark) if dark < cutoff else min(max(2.0 * half - dark, 0.0), 0.99 * dark)


def roughness_of_shininess(shininess: float) -> float:
    """Convert MuJoCo's shininess (0 to 1) to Burley's roughness.

    MuJoCo's highlight is a Blinn-Phong lobe with the exponent n = 128 · shininess. A microfacet lobe of the same width
    has α = √(2 / (n + 2)) (Walter et al., "Microfacet Models for Refraction through Rough Surfaces", EGSR 2007), and
    Burley's roughness is √α.
    """
    return (2.0 / (128.0 * shininess + 2.0)) ** 0.25
