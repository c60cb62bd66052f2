"""Light a Filament scene with the lights of a model, in photometric units.

Filament multiplies luminance by the exposure of a camera, 1 / (1.2 · 2^EV100). MuJoCo leaves the camera at Filament's
default, f/16, 1/125 s and ISO 100, so that 2^EV100 = 16² · 125 (Guy & Agopian, "Physically Based Rendering in
Filament", section 8.1). A luminance of 1.2 · 16² · 125 = 38,400 cd/m² is displayed as sRGB white, and a white matt
surface has it under π · 38,400 lx. This is the radiance 1.0 of `twinloop.render.physical`, which converts the classic
colours of lights.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import mujoco
import numpy as np
from mujoco import mjrf
from numpy.typing import NDArray

from twinloop.render.physical import LightExposure, is_spot, spot_cone

WHITE_NITS = 1.2 * 16.0**2 * 125.0  # cd/m², 38,400
WHITE_LUX = math.pi * WHITE_NITS
_RANGE = 20.0  # distances at which a lamp's light ends: Filament darkens by less than 0.003 % at a twentieth of it
# Only the directional light with the largest intensity has shadows. Lights without shadows therefore have a thousandth
# of their intensity, and a thousand times their colour.
_DIM = 1e-3
_HALF_FLOAT, _RGBA, _RGBA16F = 0x140B, 0x1908, 0x881A  # OpenGL's numbers in KTX files


class SceneLights:
    """Lights of a Filament scene.

    Args:
        context: Filament's context.
        scene: the scene.
        shadow_map: side of a lamp's shadow map in pixels; 0 for no shadows.
    """

    def __init__(self, context: Any, scene: Any, *, shadow_map: int) -> None:
        self._context, self._scene, self._shadow_map = context, scene, shadow_map
        self._lamps: list[tuple[Any, float]] = []
        self._environment: Environment | None = None
        self.headlight: dict[str, Any] = {}  # options of mjrf.RenderRequest

    def load(self, model: mujoco.MjModel, data: mujoco.MjData, exposure: LightExposure) -> None:
        """Replace the lights by those of a posed model.

        Args:
            model, data: posed model.
            exposure: constants of the compiled model.
        """
        self.clear()
        self.surround(Environment(self._context, exposure.ambient_radiance(model, headlight=0.0)))
        for i in np.flatnonzero(model.light_active).tolist():
            if model.light_diffuse[i].any() and int(model.light_type[i]) != mujoco.mjtLightType.mjLIGHT_IMAGE:
                self._lamps.append(self._make_lamp(model, data, exposure, i))
        head = model.vis.headlight
        colour = exposure.fill / _DIM * head.diffuse
        self.headlight = {"headlight": bool(head.active), "headlight_color": colour.astype(np.float32)}
        self.set_gain(1.0)

    def surround(self, environment: Environment) -> None:
        """Add the light of the surroundings."""
        self._environment = environment
        self._scene.add_light(environment.light)

    def _make_lamp(
        self, model: mujoco.MjModel, data: mujoco.MjData, exposure: LightExposure, light: int
    ) -> tuple[Any, float]:
        """Return a lamp in the scene and its intensity, in cd, or in lx for a directional light."""
        strength, shadows = exposure.lamp_light(model, light), bool(model.light_castshadow[light])
        intensity = float(strength.max()) * (1.0 if shadows else _DIM)
        options: dict[str, Any] = {"type": mjrf.LightType.LIGHT_POINT}
        if int(model.light_type[light]) == mujoco.mjtLightType.mjLIGHT_DIRECTIONAL:
            options["type"] = mjrf.LightType.LIGHT_DIRECTIONAL
        elif is_spot(model, light):
            cutoff, beam = spot_cone(model, light)
            options |= {"type": mjrf.LightType.LIGHT_SPOT, "cutoff": cutoff, "softness": 1.0 - beam / max(cutoff, 1e-9)}
        lamp = self._context.create_light(
            mjrf.LightParams(
                color=(strength / intensity).astype(np.float32),
                range=_RANGE * float(exposure.reach[light] + model.stat.extent),
                cast_shadow=shadows and self._shadow_map > 0,
                shadow_map_size=max(self._shadow_map, 1),
                **options,
            )
        )
        lamp.set_pose(data.light_xpos[light].astype(np.float32), data.light_xdir[light].astype(np.float32))
        self._scene.add_light(lamp)
        return lamp, WHITE_LUX * intensity

    def set_gain(self, gain: float) -> None:
        """Multiply the light of all lamps and of the surroundings by a factor."""
        for lamp, intensity in self._lamps:
            lamp.set_intensity(gain * intensity)
        if self._environment is not None:
            self._environment.light.set_intensity(gain * WHITE_NITS)
        if self.headlight:
            self.headlight["headlight_intensity"] = gain * _DIM * WHITE_LUX

    def clear(self) -> None:
        """Remove all lights."""
        for lamp, _ in self._lamps:
            self._scene.remove_light(lamp)
        if self._environment is not None:
            self._scene.remove_light(self._environment.light)
        self._lamps, self._environment = [], None


class Environment:
    """Light from the surroundings that depends linearly on the direction of a surface's normal.

    A white matt surface with the unit normal n (world axes) has the colour ``ambient + n @ slope``.

    Args:
        context: Filament's context.
        ambient: linear colour, ``(3,)``; mirrors reflect it from all directions.
        slope: change of the colour per component of the normal, ``(3, 3)``; None for no change.
    """

    def __init__(self, context: Any, ambient: NDArray[np.float64], slope: NDArray[np.float64] | None = None) -> None:
        x, y, z = np.zeros((3, 3)) if slope is None else slope
        # Filament evaluates c0 + c1 y + c2 z + c3 x + … in its own axes, which MuJoCo rotates by 90° about x.
        harmonics = np.stack([ambient, z, -y, x, *np.zeros((5, 3))])
        self._data = mjrf.TextureData()
        encoded = _encode_ktx(ambient, harmonics)
        self._data.set_image(encoded)
        self._texture = context.create_texture(
            mjrf.TextureConfig(
                width=len(encoded),
                height=0,
                format=mjrf.PixelFormat.PIXEL_FORMAT_KTX,
                sampler_type=mjrf.SamplerType.TEXTURE_CUBE,
            )
        )
        self._texture.upload(self._data)
        self.light = context.create_light(
            mjrf.LightParams(type=mjrf.LightType.LIGHT_IMAGE, texture=self._texture, intensity=WHITE_NITS)
        )


def _encode_ktx(colour: NDArray[np.float64], harmonics: NDArray[np.float64]) -> bytes:
    """Return a KTX 1 file of a cube map with one pixel per face, and the spherical harmonics of its light.

    Args:
        colour: linear colour of the pixels, ``(3,)``.
        harmonics: colours of the nine coefficients, ``(9, 3)``, which Filament reads under the key ``sh``.
    """
    entry = b"sh\0" + "\n".join(" ".join(f"{value:.9g}" for value in row) for row in harmonics).encode() + b"\0"
    entries = struct.pack("<I", len(entry)) + entry + b"\0" * (-len(entry) % 4)
    pixel = np.array([*colour, 1.0], dtype=np.float16).tobytes()
    numbers = (0x04030201, _HALF_FLOAT, 2, _RGBA, _RGBA16F, _RGBA, 1, 1, 0, 0, 6, 1, len(entries))
    head = b"\xabKTX 11\xbb\r\n\x1a\n" + struct.pack("<13I", *numbers)
    return head + entries + struct.pack("<I", len(pixel)) + 6 * pixel
