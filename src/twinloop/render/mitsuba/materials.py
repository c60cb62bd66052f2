"""Convert MuJoCo's materials to physically based ones.

The surface is Mitsuba's ``principled`` BSDF (reflection model; Burley, "Physically Based Shading at Disney", SIGGRAPH
2012 course) with

- base colour: texture times ``rgba``, both sRGB, decoded to linear light;
- ``metallic``, 0 by default (MuJoCo's -1);
- ``roughness``; if it is not given, it follows from ``shininess``, see `physical.roughness_of_shininess`;
- specular: MuJoCo's ``specular``; 0.5, the default in MuJoCo and Mitsuba, is a reflectance of 4 % (refractive index
  1.5);
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
from twinloop.render.physical import roughness_of_shininess

# MuJoCo's default colour of geoms, also of those coloured by their material.
_PLAIN = np.array([0.5, 0.5, 0.5, 1.0], dtype=np.float32)
_SPECULAR, _SHININESS = 0.5, 0.5  # of geoms without material, and defaults of materials
_SMOOTHEST = 0.03  # on smoother surfaces, too few paths hit small lamps, which gives noise instead of a highlight


@dataclass(frozen=True, kw_only=True)
class GeomMaterial:
    """Appearance of a geom for the path tracer.

    Attributes:
        image: base colour as linear light, ``(height, width, 3)``; one pixel if there is no texture.
        origin: texture, version of the textures, and rgba from which the image was made. Comparisons of materials use
            it instead of the image's pixels.
        roughness: roughness parameter of Burley's model, 0 (mirror) to 1 (matt).
        metallic: 0 for a dielectric, 1 for a metal.
        specular: strength of the specular reflection in Burley's model; 0.5 is a reflectance of 4 %.
        opacity: 0 (transparent) to 1.
        emission: radiance as a multiple of the base colour.
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
        """Image size, transparent or not, and emitting or not; Mitsuba cannot change them after building."""
        return self.image.shape, self.opacity < 1.0, self.emission > 0.0


class MaterialSet:
    """Factory of geom materials that decodes each texture only once."""

    def __init__(self) -> None:
        self._images: dict[tuple[Any, ...], NDArray[np.float32]] = {}
        self._version = 0

    def clear_images(self) -> None:
        """Discard decoded textures, because the pixels in the model have changed."""
        self._images.clear()
        self._version += 1

    def make_material(self, model: mujoco.MjModel, geom: int) -> GeomMaterial:
        """Return the material of a geom in the model's current state.

        Raises:
            InputError: If the geom's texture is not an image.
        """
        material = int(model.geom_matid[geom])
        rgba = shown_rgba(model, geom)
        texture = find_texture(model, material)
        origin = (texture, self._version, *rgba)
        if origin not in self._images:
            image = read_linear_light(model, texture) if texture >= 0 else np.ones((1, 1, 3), dtype=np.float32)
            self._images[origin] = np.minimum(image * srgb_to_linear(rgba[:3]).astype(np.float32), 0.999)
        plain = GeomMaterial(
            image=self._images[origin],
            origin=origin,
            roughness=roughness_of_shininess(_SHININESS),
            metallic=0.0,
            specular=_SPECULAR,
            opacity=float(rgba[3]),
            emission=0.0,
        )
        return plain if material < 0 else replace(plain, **_read_material(model, material))


def shown_rgba(model: mujoco.MjModel, geom: int) -> tuple[float, ...]:
    """Return the colour in which MuJoCo shows a geom.

    It is the colour of the geom's material if there is one and the geom's own colour is the default.
    """
    own, material = model.geom_rgba[geom], int(model.geom_matid[geom])
    plain = material >= 0 and np.array_equal(own, _PLAIN)
    return tuple((model.mat_rgba[material] if plain else own).tolist())


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


def describe_bsdf(mitsuba: Any, material: GeomMaterial) -> dict[str, Any]:
    """Return Mitsuba's description of a material as a two-sided surface."""
    surface: dict[str, Any] = {
        "type": "twosided",
        "bsdf": {
            "type": "principled",
            "base_color": _colour(mitsuba, material.image),
            "roughness": material.roughness,
            "metallic": material.metallic,
            "specular": material.specular,
        },
    }
    return {"type": "mask", "opacity": material.opacity, "bsdf": surface} if material.opacity < 1.0 else surface


def describe_emitter(mitsuba: Any, material: GeomMaterial) -> dict[str, Any]:
    """Return Mitsuba's description of the light that a material with emission sends out."""
    return {"type": "area", "radiance": _colour(mitsuba, material.image * np.float32(material.emission))}


def _colour(mitsuba: Any, image: NDArray[np.float32]) -> dict[str, Any]:
    if image.size == 3:
        return {"type": "rgb", "value": image.ravel().tolist()}
    return {"type": "bitmap", "bitmap": mitsuba.Bitmap(np.ascontiguousarray(image)), "raw": True}


def material_parameters(material: GeomMaterial) -> dict[str, Any]:
    """Return the values of a material, by the ends of Mitsuba's parameter names.

    For example, ``roughness.value`` is the end of a full name such as ``geom3.….roughness.value``; see
    `scene.MitsubaScene`.
    """
    plain = material.image.size == 3
    values: dict[str, Any] = {
        "roughness.value": material.roughness,
        "metallic.value": material.metallic,
        "specular": material.specular,
        "base_color.value" if plain else "base_color.data": material.image.ravel() if plain else material.image,
    }
    if material.opacity < 1.0:
        values["opacity.value"] = material.opacity
    if material.emission > 0.0:
        glow = material.image * np.float32(material.emission)
        values["radiance.value" if plain else "radiance.data"] = glow.ravel() if plain else glow
    return values
