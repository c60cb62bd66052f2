"""Declare the quantities of appearance: cameras, lights, colours and textures."""

from __future__ import annotations

import math
from collections.abc import Iterator

import mujoco
import numpy as np

from twinloop.twin.quantities.kinds import Alias, DefaultRange, FieldSlot, ObjectWriter, Quantity, field_slots
from twinloop.twin.quantities.rotation import quat_from_rotation_vector, quat_multiply, rotate_vectors
from twinloop.twin.textures import pool_indices

_LATER = "for physically based renderers; the classic renderer ignores it"


def write_camera_pose(target: ObjectWriter) -> None:
    """Write a camera's pose, changed by its quantities ``position/*`` (shift) and ``rotation/*`` (rotation vector).

    Both are along or about the camera's own axes: x right, y up, −z forward, as in MuJoCo.
    """
    (row,) = target.rows("cam_pos")
    position, quaternion = target.model.cam_pos[row], target.model.cam_quat[row]
    turn = quat_from_rotation_vector(target.vector("rotation"))
    target.write_field("cam_pos", [row], (position + rotate_vectors(quaternion, target.vector("position")))[:, None])
    target.write_field("cam_quat", [row], quat_multiply(np.broadcast_to(quaternion, turn.shape), turn)[:, None])


def write_light_pose(target: ObjectWriter) -> None:
    """Write position and direction of a light, in the frame of its body.

    The angles describe the direction from which the light comes; it shines in the opposite direction. A directional
    light needs a position only because MuJoCo's classic renderer centres the shadow map on it. If the direction
    changes, this position is moved around the centre of the model.
    """
    model, (row,) = target.model, target.rows("light_dir")
    azimuth, elevation = target.value("direction/azimuth"), target.value("direction/elevation")
    level, own = np.cos(elevation), model.light_dir[row]
    shines = -np.stack([level * np.cos(azimuth), level * np.sin(azimuth), np.sin(elevation)], axis=-1)
    turned = (azimuth != _azimuth(model, target.name)) | (elevation != _elevation(model, target.name))
    shines = np.where(turned[:, None], shines, own)
    target.write_field("light_dir", [row], shines[:, None])
    place = model.light_pos[row] + target.vector("position")
    if int(model.light_type[row]) == mujoco.mjtLightType.mjLIGHT_DIRECTIONAL:
        distance = float((model.stat.center - model.light_pos[row]) @ own)
        place = place + distance * (own - shines)
    target.write_field("light_pos", [row], place[:, None])


def _azimuth(model: mujoco.MjModel, name: str) -> float:
    x, y, _ = model.light_dir[model.light(name).id]
    return math.atan2(-y, -x) if x or y else 0.0


def _elevation(model: mujoco.MjModel, name: str) -> float:
    x, y, z = model.light_dir[model.light(name).id]
    return math.atan2(-z, math.hypot(x, y))


def write_sky_colors(target: ObjectWriter) -> None:
    """Multiply the colours of the background texture by the quantities ``color/r``, ``color/g`` and ``color/b``.

    Results are limited to full brightness.
    """
    model = target.model
    factors = target.vector("color", "rgb")
    for start, end in _find_sky_textures(model):
        own = model.tex_data[start:end].reshape(-1, 3)
        colours = np.minimum(own * factors[:, None, :], 255.0).round().astype(np.uint8)
        target.write_field("tex_data", np.arange(start, end), colours.reshape(len(factors), -1))


def _find_sky_textures(model: mujoco.MjModel) -> list[tuple[int, int]]:
    """Return start and end (exclusive) in ``tex_data`` of every background texture with three channels."""
    textures = np.flatnonzero((model.tex_type == mujoco.mjtTexture.mjTEXTURE_SKYBOX) & (model.tex_adr >= 0))
    size = (model.tex_height * model.tex_width * model.tex_nchannel).astype(int)
    return [(int(model.tex_adr[i]), int(model.tex_adr[i]) + size[i]) for i in textures if model.tex_nchannel[i] == 3]


def _explain_missing_sky(model: mujoco.MjModel, _name: str) -> str:
    return "" if _find_sky_textures(model) else "the model has no background. Give it a texture of type skybox"


def write_texture(target: ObjectWriter) -> None:
    """Assign a texture of the texture pool to a material, by its index.

    Index 0 keeps the material, and i > 0 selects the i-th texture (see `twin.textures`).
    """
    pool, geoms = pool_indices(target.model), target.rows("geom_matid")
    choice = target.value("").astype(int)
    own = np.broadcast_to(target.model.geom_matid[geoms], (len(choice), len(geoms)))
    if len(pool):
        own = np.where(choice[:, None] > 0, pool[(choice[:, None] - 1) % len(pool)], own)
    target.write_field("geom_matid", geoms, own)


def _camera_quantities() -> Iterator[Quantity]:
    yield Quantity(
        family="camera",
        quantity="fovy",
        unit="rad",
        low=0.02,
        high=3.0,
        slots=field_slots("cam_fovy", factor=180.0 / math.pi),
        visual=True,
        meaning="vertical field of view",
        term="camera pose",
        alias=Alias(name="camera_fov"),
    )
    for kind, unit, reach, writes, alias, meaning in (
        ("position", "m", 1.0, "cam_pos", "camera_position_noise", "shift along"),
        ("rotation", "rad", math.pi, "cam_quat", "camera_jitter", "turn about"),
    ):
        for axis in "xyz":
            yield Quantity(
                family="camera",
                quantity=f"{kind}/{axis}",
                unit=unit,
                low=-reach,
                high=reach,
                default=0.0,
                compute=write_camera_pose,
                writes=(writes,),
                visual=True,
                meaning=f"{meaning} its own {axis} (x right, y up, z backwards)",
                term="camera pose",
                alias=Alias(name=alias),
            )


def _light_quantities() -> Iterator[Quantity]:
    yield Quantity(
        family="light",
        quantity="intensity",
        unit="1",
        low=0.0,
        high=100.0,
        default=1.0,
        slots=tuple(FieldSlot(field=f"light_{part}", rule="factor") for part in ("ambient", "diffuse", "specular")),
        visual=True,
        meaning="factor on its ambient, diffuse and specular colour",
        term="light",
        default_range=DefaultRange(low=0.5, high=1.5, source="one stop down, half a stop up; our choice"),
        alias=Alias(name="lighting_intensity", tied=True),
    )
    yield Quantity(
        family="light",
        quantity="active",
        unit="1",
        low=0.0,
        high=1.0,
        slots=field_slots("light_active"),
        visual=True,
        meaning="1: on, 0: off; draw it as a choice of both to vary the number of lights",
        term="light",
    )
    for column, channel in enumerate("rgb"):
        yield Quantity(
            family="light",
            quantity=f"color/{channel}",
            unit="1",
            low=0.0,
            high=10.0,
            slots=field_slots("light_diffuse", column),
            visual=True,
            meaning="diffuse colour of the light, before the factor intensity",
            term="light",
            alias=Alias(name="light_color_scale", op="scale"),
        )
    for axis in "xyz":
        yield Quantity(
            family="light",
            quantity=f"position/{axis}",
            unit="m",
            low=-100.0,
            high=100.0,
            default=0.0,
            compute=write_light_pose,
            writes=("light_pos",),
            visual=True,
            meaning=f"shift along {axis} of its body (usually the world); moves shadows, and the effect of a light "
            "that is not directional",
            term="light",
        )
    for angle, low, nominal, meaning in (
        ("azimuth", -math.pi, _azimuth, "direction from which the light comes: angle from x towards y"),
        ("elevation", -math.pi / 2, _elevation, "direction from which the light comes: angle above the horizontal"),
    ):
        yield Quantity(
            family="light",
            quantity=f"direction/{angle}",
            unit="rad",
            low=low,
            high=-low,
            nominal=nominal,
            compute=write_light_pose,
            writes=("light_dir", "light_pos"),
            visual=True,
            meaning=meaning,
            term="light",
            alias=Alias(name="light_direction", op="add"),
        )
    for quantity, unit, high, field, meaning in (
        ("luminous_intensity", "cd", 1e6, "light_intensity", "luminous intensity; 0: the renderer's default"),
        ("radius", "m", 10.0, "light_bulbradius", "radius of the light source; a larger one makes softer shadows"),
    ):
        yield Quantity(
            family="light",
            quantity=quantity,
            unit=unit,
            low=0.0,
            high=high,
            slots=field_slots(field),
            visual=True,
            meaning=f"{meaning}; {_LATER}",
            term="light",
        )


def _material_quantities() -> Iterator[Quantity]:
    for column, channel in enumerate("rgb"):
        yield Quantity(
            family="material",
            quantity=f"color/{channel}",
            unit="1",
            low=0.0,
            high=1.0,
            slots=field_slots("mat_rgba", column),
            visual=True,
            meaning="colour of the material",
            term="surfaces",
        )
    for quantity, meaning in (
        ("specular", "strength of specular highlights"),
        ("shininess", "sharpness of specular highlights"),
        ("emission", "emitted light"),
    ):
        yield Quantity(
            family="material",
            quantity=quantity,
            unit="1",
            low=0.0,
            high=1.0,
            slots=field_slots(f"mat_{quantity}"),
            visual=True,
            meaning=meaning,
            term="surfaces",
        )
    for quantity, meaning in (
        ("roughness", "0: mirror, 1: matt"),
        ("metallic", "0: plastic or wood, 1: bare metal"),
    ):
        yield Quantity(
            family="material",
            quantity=quantity,
            unit="1",
            low=-1.0,
            high=1.0,
            slots=field_slots(f"mat_{quantity}"),
            visual=True,
            meaning=f"{meaning}, −1: not given; {_LATER}",
            term="surfaces",
        )


APPEARANCE: tuple[Quantity, ...] = (
    *_camera_quantities(),
    *_light_quantities(),
    *_material_quantities(),
    *(
        Quantity(
            family="background",
            member="sky",
            quantity=f"color/{channel}",
            unit="1",
            low=0.0,
            high=10.0,
            default=1.0,
            compute=write_sky_colors,
            writes=("tex_data",),
            lacks=_explain_missing_sky,
            visual=True,
            meaning="factor on the background's colour; its texture is uploaded again for every world",
            term="light",
        )
        for channel in "rgb"
    ),
    Quantity(
        family="texture",
        quantity="",
        unit="1",
        low=0.0,
        high=1e6,
        default=0.0,
        compute=write_texture,
        writes=("geom_matid",),
        choice=True,
        visual=True,
        meaning="index of the material's texture in the pool of procedural textures; 0: no texture",
        term="surfaces",
    ),
    Quantity(
        family="place",
        member="room",
        quantity="",
        unit="1",
        low=0.0,
        high=200_000.0,
        default=0.0,
        choice=True,
        visual=True,
        meaning="number of a random room with its own surfaces, furniture, clutter and lamps; 0: the twin as it is",
        term="surfaces",
    ),
)
