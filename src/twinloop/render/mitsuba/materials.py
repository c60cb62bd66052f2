"""Convert MuJoCo's materials to physically based ones.

The surface is Mitsuba's ``principled`` BSDF (Burley, "Physically Based Shading at Disney", SIGGRAPH 2012 course) with

- base colour: texture times ``rgba``, both sRGB, decoded to linear light;
- ``metallic``, 0 by default (−1);
- ``roughness``; by default from ``shininess``: MuJoCo's exponent n = 128 · shininess of a Blinn-Phong lobe has the
  width α = √(2 / (n + 2)) (Walter et al., "Microfacet Models for Refraction through Rough Surfaces", EGSR 2007,
  equation for Phong and Beckmann), and Burley's roughness is √α;
- specular: MuJoCo's ``specular``; 0.5, the default of both, is a reflectance of 4 % (refractive index 1.5);
- opacity: alpha; emission: ``emission`` times the base colour as radiance.

``reflectance`` (a mirror image in MuJoCo's classic renderer) is not used: set ``metallic`` and ``roughness``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.imaging import srgb_to_linear
from twinloop.render.mitsuba.textures import find_texture, read_linear_light

# MuJoCo's default colour of geoms, also of those coloured by their material.
_PLAIN = np.array([0.5, 0.5, 0.5, 1.0], dtype=np.float32)
_SPECULAR, _SHININESS = 0.5, 0.5  # of geoms without material, and defaults of materials
_SMOOTHEST = 0.03  # for smoother surfaces, paths hit highlights of small lamps too rarely: noise instead of a mirror


@dataclass(frozen=True, kw_only=True)
class GeomMaterial:
    """Appearance of a geom; ``image`` is linear light ``(height, width, 3)``, of one pixel without a texture.

    ``origin`` identifies the image, and replaces it in comparisons.
    """

    image: NDArray[np.float32] = field(compare=False)
    origin: tuple[Any, ...]
    roughness: float
    metallic: float
    specular: float
    opacity: float
    emission: float

    @property
    def kind(self) -> tuple[Any, ...]:
        """Properties that cannot change once Mitsuba has built it."""
        return self.image.shape, self.opacity < 1.0, self.emission > 0.0


class MaterialSet:
    """Materials of a model's geoms; textures are decoded once."""

    def __init__(self) -> None:
        self._images: dict[tuple[Any, ...], NDArray[np.float32]] = {}
        self._version = 0

    def clear_images(self) -> None:
        """Discard decoded textures, because their pixels have changed."""
        self._images.clear()
        self._version += 1

    def make_material(self, model: mujoco.MjModel, geom: int) -> GeomMaterial:
        """Return the material of a geom in the model's current state.

        Raises:
            InputError: its texture is not an image.
        """
        material = int(model.geom_matid[geom])
        rgba = shown_rgba(model, geom)
        texture = find_texture(model, material)
        origin = (texture, self._version, *rgba)
        if origin not in self._images:
            image = read_linear_light(model, texture) if texture >= 0 else np.ones((1, 1, 3), dtype=np.float32)
            self._images[origin] = np.minimum(image * srgb_to_linear(rgba[:3]).astype(np.float32), 0.999)
        look = GeomMaterial(
            image=self._images[origin],
            origin=origin,
            roughness=roughness_of_shininess(_SHININESS),
            metallic=0.0,
            specular=_SPECULAR,
            opacity=float(rgba[3]),
            emission=0.0,
        )
        return look if material < 0 else replace(look, **_read_material(model, material))


def shown_rgba(model: mujoco.MjModel, geom: int) -> tuple[float, ...]:
    """Return the colour in which MuJoCo shows a geom: its own if set, else that of its material."""
    own, material = model.geom_rgba[geom], int(model.geom_matid[geom])
    plain = material >= 0 and np.array_equal(own, _PLAIN)
    return tuple((model.mat_rgba[material] if plain else own).tolist())


def roughness_of_shininess(shininess: float) -> float:
    """Return Burley's roughness of MuJoCo's shininess from 0 to 1."""
    return (2.0 / (128.0 * shininess + 2.0)) ** 0.25


def _read_material(model: mujoco.MjModel, material: int) -> dict[str, float]:
    roughness = float(model.mat_roughness[material])
    if roughness < 0.0:
        roughness = roughness_of_shininess(float(model.mat_shininess[material]))
    return {
        "roughness": max(roughness, _SMOOTHEST),
        "metallic": max(float(model.mat_metallic[material]), 0.0),
        "specular": float(model.mat_specular[material]),
        "emission": float(model.mat_emission[material]),
    }


def describe_bsdf(mitsuba: Any, look: GeomMaterial) -> dict[str, Any]:
    """Return the description of a material that Mitsuba builds; light falls on both sides of a surface."""
    surface: dict[str, Any] = {
        "type": "twosided",
        "bsdf": {
            "type": "principled",
            "base_color": _colour(mitsuba, look.image),
            "roughness": look.roughness,
            "metallic": look.metallic,
            "specular": look.specular,
        },
    }
    return {"type": "mask", "opacity": look.opacity, "bsdf": surface} if look.opacity < 1.0 else surface


def describe_emitter(mitsuba: Any, look: GeomMaterial) -> dict[str, Any]:
    """Return the description of the emitter of a material with emission."""
    return {"type": "area", "radiance": _colour(mitsuba, look.image * np.float32(look.emission))}


def _colour(mitsuba: Any, image: NDArray[np.float32]) -> dict[str, Any]:
    if image.size == 3:
        return {"type": "rgb", "value": image.ravel().tolist()}
    return {"type": "bitmap", "bitmap": mitsuba.Bitmap(np.ascontiguousarray(image)), "raw": True}


def material_parameters(look: GeomMaterial) -> dict[str, Any]:
    """Return the values of a material by the ends of Mitsuba's parameter names."""
    plain = look.image.size == 3
    values: dict[str, Any] = {
        "roughness.value": look.roughness,
        "metallic.value": look.metallic,
        "specular": look.specular,
        "base_color.value" if plain else "base_color.data": look.image.ravel() if plain else look.image,
    }
    if look.opacity < 1.0:
        values["opacity.value"] = look.opacity
    if look.emission > 0.0:
        glow = look.image * np.float32(look.emission)
        values["radiance.value" if plain else "radiance.data"] = glow.ravel() if plain else glow
    return values
