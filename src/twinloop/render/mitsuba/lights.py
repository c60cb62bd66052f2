"""Convert MuJoCo's lights to light sources of a path tracer; `twinloop.render.physical` defines the unit of light.

- Ambient colours, and half of the headlight's diffuse colour (the mean cosine towards the camera), become light from
  all directions: see `textures.surrounding_light`.
- A directional light becomes a distant disc. Its angular size is that of the light's bulb (``light_bulbradius`` at
  ``light_pos``) seen from the centre of the model.
- Point and spot lights become bulbs of the radius ``light_bulbradius``. A classic point or spot light has the
  brightness of the classic renderer at the distance of the compiled model's centre. Its light decreases with the
  square of the distance.
- A light without shadows (``castshadow``) becomes a large light source with the half angle `_SOFT` (20°), so its
  shadows have no edges.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.imaging import LUMA
from twinloop.render.physical import LightExposure, is_spot, spot_cone

Array = NDArray[np.float64]
_SOFT = math.radians(20.0)  # our choice: a softbox of 0.7 m at 1 m
_SHARP = 1e-4  # rad; the half angle of a directional light whose bulb has no size
_POINTS = 64  # point lights of a bulb; with them no steps are visible in its penumbra
_RIM = 48  # corners of a directional light's disc
_GOLDEN = math.pi * (3.0 - math.sqrt(5.0))
_KIND = mujoco.mjtLightType


@dataclass(frozen=True, kw_only=True)
class LightSource:
    """One light of the model in one frame: a distant disc, or a bulb made of point lights.

    Attributes:
        name: name in Mitsuba's scene.
        disc: whether it is a disc.
        points: triangles of the disc ``(ntriangle, 3, 3)``, or positions of the bulb's points ``(npoint, 3)``, in m.
        light: radiance of the disc, or radiant intensity of each point of the bulb, ``(3,)`` for red, green, blue.
        direction: direction in which the light shines, ``(3,)``.
        weight: relative frequency with which paths sample this light, in proportion to the brightness that it causes.
            In the example twin so101_tabletop it reduces the samples for a given noise to a sixth, compared with equal
            frequencies.
        cutoff, beam: half angles of a spot in degrees at which it is dark and begins to darken; 0 for other lights.
    """

    name: str
    disc: bool
    points: Array
    light: Array
    direction: Array
    weight: float
    cutoff: float = 0.0
    beam: float = 0.0

    @property
    def kind(self) -> tuple[Any, ...]:
        """Name, type and spot angles; Mitsuba cannot change them after building the light."""
        return self.name, self.disc, self.cutoff, self.beam


def iterate_lamps(
    model: mujoco.MjModel, data: mujoco.MjData, exposure: LightExposure, *, away: float
) -> Iterator[LightSource]:
    """Yield the active lights of a frame that have a diffuse colour.

    Args:
        model, data: posed model.
        exposure: constants of the compiled model.
        away: distance in m from the model's centre at which the disc of a directional light is placed.
    """
    for i in np.flatnonzero(model.light_active).tolist():
        if not model.light_diffuse[i].any():
            continue
        place = data.light_xpos[i] if int(model.light_type[i]) != _KIND.mjLIGHT_DIRECTIONAL else None
        yield _disc(model, data, exposure, i, away) if place is None else _bulb(model, data, exposure, i)


def _half_angle(model: mujoco.MjModel, light: int, distance: float) -> float:
    angle = math.atan2(float(model.light_bulbradius[light]), distance)
    return max(angle, _SHARP if model.light_castshadow[light] else _SOFT)


def _disc(model: mujoco.MjModel, data: mujoco.MjData, exposure: LightExposure, light: int, away: float) -> LightSource:
    strength = exposure.lamp_light(model, light)
    direction = np.asarray(data.light_xdir[light])
    angle = _half_angle(model, light, float(exposure.reach[light]))
    radius, (across, up) = away * math.tan(angle), _perpendicular_axes(direction)
    turn = 2.0 * math.pi * np.arange(_RIM + 1)[:, None] / _RIM
    rim = model.stat.center - away * direction + radius * (np.cos(turn) * across + np.sin(turn) * up)
    middle = np.broadcast_to(model.stat.center - away * direction, (_RIM, 3))
    triangles = np.stack([middle, rim[:-1], rim[1:]], axis=1)
    area = 0.5 * _RIM * math.sin(2.0 * math.pi / _RIM) * radius**2
    # A white surface under the irradiance E has the radiance E / π, and E = L A / (away² + radius²), closely.
    radiance = strength * math.pi * (away**2 + radius**2) / area
    weight = float(strength @ LUMA)
    return LightSource(
        name=f"light{light}", disc=True, points=triangles, light=radiance, direction=direction, weight=weight
    )


def _bulb(model: mujoco.MjModel, data: mujoco.MjData, exposure: LightExposure, light: int) -> LightSource:
    strength = exposure.lamp_light(model, light)
    reach, direction = float(exposure.reach[light]), np.asarray(data.light_xdir[light])
    radius = float(model.light_bulbradius[light])
    if not model.light_castshadow[light]:
        radius = max(radius, reach * math.tan(_SOFT))
    spot = is_spot(model, light)
    cutoff, beam = spot_cone(model, light) if spot else (0.0, 0.0)
    points = _spread_on_disc(direction) if spot else _spread_in_ball()
    return LightSource(
        name=f"light{light}",
        disc=False,
        points=data.light_xpos[light] + radius * points,
        light=math.pi * strength / _POINTS,
        direction=direction,
        weight=float(strength @ LUMA) / reach**2,
        cutoff=cutoff,
        beam=beam,
    )


def _perpendicular_axes(direction: Array) -> tuple[Array, Array]:
    """Return two unit vectors perpendicular to a direction and to each other; with it they form right-handed axes."""
    other = np.eye(3)[np.abs(direction).argmin()]
    across = np.cross(other, direction)
    across /= np.linalg.norm(across)
    return across, np.cross(direction, across)


def _spread_on_disc(direction: Array) -> Array:
    """Return points ``(npoint, 3)`` spread evenly on a unit disc perpendicular to a direction.

    The points are on a spiral (Vogel, Mathematical Biosciences 44, 1979).
    """
    number = np.arange(_POINTS)[:, None]
    radius, angle = np.sqrt((number + 0.5) / _POINTS), _GOLDEN * number
    across, up = _perpendicular_axes(direction)
    return radius * (np.cos(angle) * across + np.sin(angle) * up)


def _spread_in_ball() -> Array:
    """Return points ``(npoint, 3)`` in a unit ball for a matt bulb, which looks like a uniform disc from every side.

    The density 1 / √(1 - r²) of the points at the radius r is the inverse Abel transform of a uniform
    disc. So the share of points within the radius r is (2/π) (asin r - r √(1 - r²)). The directions are a
    Vogel spiral on the sphere. The radii are spread by multiples of the golden ratio modulo 1.
    """
    number = np.arange(_POINTS)
    height = 1.0 - 2.0 * (number + 0.5) / _POINTS
    ring, angle = np.sqrt(1.0 - height**2), _GOLDEN * number
    radii = np.sin(np.linspace(0.0, np.pi / 2, 256))
    share = (np.arcsin(radii) - radii * np.sqrt(1.0 - radii**2)) * 2.0 / np.pi
    radius = np.interp((number + 0.5) * (np.sqrt(5.0) - 1.0) / 2.0 % 1.0, share, radii)
    return radius[:, None] * np.stack([ring * np.cos(angle), ring * np.sin(angle), height], axis=-1)


def describe_bulb(mitsuba: Any, lamp: LightSource) -> dict[str, Any]:
    """Return Mitsuba's descriptions of the point or spot lights that together represent one bulb, by name.

    Discs have no such description, because they are built as meshes like the geoms.
    """
    colour = {"type": "rgb", "value": lamp.light.tolist()}
    made = {}
    for k, point in enumerate(lamp.points):
        one: dict[str, Any] = {"intensity": colour, "sampling_weight": lamp.weight / _POINTS}
        if lamp.cutoff > 0.0:
            place = {"type": "spot", "cutoff_angle": lamp.cutoff, "beam_width": lamp.beam}
            one |= {**place, "to_world": mitsuba.ScalarTransform4f(_make_spot_pose(point, lamp.direction))}
        else:
            one |= {"type": "point", "position": point.tolist()}
        made[f"{lamp.name}_{k}"] = one
    return made


def bulb_parameters(mitsuba: Any, lamp: LightSource) -> dict[str, Any]:
    """Return intensity, weight and pose of a bulb's point or spot lights, by Mitsuba's parameter names.

    `describe_bulb` gives what Mitsuba needs to build the lights; these values update lights that are already built.
    """
    values: dict[str, Any] = {}
    for k, point in enumerate(lamp.points):
        values[f"{lamp.name}_{k}.intensity.value"] = mitsuba.Color3f(lamp.light.tolist())
        values[f"{lamp.name}_{k}.sampling_weight"] = lamp.weight / _POINTS
        if lamp.cutoff > 0.0:
            values[f"{lamp.name}_{k}.to_world"] = mitsuba.Transform4f(_make_spot_pose(point, lamp.direction))
        else:
            values[f"{lamp.name}_{k}.position"] = mitsuba.Point3f(point.tolist())
    return values


def _make_spot_pose(point: Array, direction: Array) -> list[list[float]]:
    across, up = _perpendicular_axes(direction)
    matrix = np.eye(4)
    matrix[:3] = np.stack([across, up, direction, point], axis=-1)
    return matrix.tolist()
