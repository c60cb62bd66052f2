"""Put a twin into random rooms, for images: surfaces, walls, furniture, clutter and lamps, drawn together.

A model for images (`add_place`) has further bodies without contacts, and a set of surfaces; in each world one number,
the parameter ``place/room``, selects a room. Room 0 is the twin as it is. A room replaces the twin's lamps and the
surfaces of all geoms of the world body, and changes all other colours a little; it changes no motion. Its shape
follows from the model alone: the room encloses all cameras, clutter is on the surface below the middle of the
scene, at more than half the scene's extent from there, and hides nothing of it from a fixed camera.

Rooms from `FIRST_UNSEEN` on have surfaces, clutter and lamps that no lower one has. They show whether a policy depends
on what it was trained with.
"""

from __future__ import annotations

import colorsys
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.imaging import LUMA, linear_to_srgb
from twinloop.core.seeds import generator
from twinloop.twin.panoramas import Panorama, PanoramaLight, add_panoramas
from twinloop.twin.surfaces import SIZE, SURFACES, draw_surface

Array = NDArray[np.float64]
ROOM = "place/room"
FIRST_UNSEEN, LAST = 100_001, 200_000
_BODY, _TEXTURES = "place", 6  # textures of each kind of surface
_PANORAMAS = f"{_BODY}/panorama"
_SEEN = ("light_wood", "dark_wood", "laminate", "plastic", "paint", "cloth", "concrete", "metal")
_UNSEEN = ("stone", "cork", "chequered", "bricks", "tiles")
# Kinds of surfaces by use, in lower rooms and in those from `FIRST_UNSEEN` on; our choice.
_USES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "desk": (("light_wood", "dark_wood", "laminate", "plastic", "cloth", "metal"), ("stone", "cork", "chequered")),
    "floor": (("light_wood", "dark_wood", "concrete", "cloth"), ("tiles", "stone")),
    "wall": (("paint", "paint", "concrete"), ("bricks", "tiles")),
    "thing": (_SEEN, _UNSEEN),
}
_SIDES = {"back": (-1.0, 0.0), "front": (1.0, 0.0), "left": (0.0, -1.0), "right": (0.0, 1.0)}
_HANGING, _STANDING = 4, 4  # at most so many flat things on the walls, and pieces of furniture before them
_CLUTTER = ("box", "box", "box", "cylinder", "cylinder", "capsule")
_CLUTTER_UNSEEN = ("ellipsoid", "sphere", "ellipsoid", "sphere")
_LAMPS = 3
_KELVIN = (2700.0, 6500.0)  # warm lamps (below 3300 K) to daylight (above 5300 K, both EN 12464-1:2011, 4.7.2)
_THICK, _MAT, _GAP = 0.01, 2e-4, 1e-3  # m: half a wall's thickness, half a mat's; a floor or desk lies this much lower
_FIELDS = (
    *("geom_pos", "geom_quat", "geom_size", "geom_rgba", "geom_matid", "geom_rbound", "geom_aabb", "mat_rgba"),
    *("light_active", "light_pos", "light_dir", "light_diffuse", "light_ambient", "light_specular"),
    *("light_castshadow", "light_bulbradius"),
)


@dataclass(frozen=True, kw_only=True)
class Scenery:
    """What a model for images has besides the twin's own.

    Attributes:
        texture_pool: Number of random textures of each kind, from which ``texture/*`` parameters select; 0 for none.
        rooms: Whether the parameter ``place/room`` selects a room.
        panoramas: Backgrounds of half of the rooms.
        seed: Seed of the textures and rooms.
    """

    texture_pool: int = 0
    rooms: bool = False
    panoramas: tuple[Panorama, ...] = ()
    seed: int = 0

    @property
    def needs_model(self) -> bool:
        """Whether images need a model of their own."""
        return bool(self.texture_pool or self.rooms)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What a room must fit, read from a compiled model in its home pose.

    Attributes:
        centre: Middle of the scene, on the surface that carries it, ``(3,)`` in m.
        radius: Radius in m around it that stays clear.
        low, high: Corners of the box that the room encloses, ``(3,)`` in m.
        floor: Height of the floor in m.
        desk: Half lengths along x and y of the surface that carries the scene; infinite for a floor.
        eyes: Positions of the fixed cameras, ``(ncamera, 3)``.
        headlight: Brightness of a horizontal white surface in the light from the camera alone.
        uses: Use of the surface of each geom of the world: ``desk``, ``floor`` or ``thing``.
    """

    centre: Array
    radius: float
    low: Array
    high: Array
    floor: float
    desk: tuple[float, float]
    eyes: Array
    headlight: float
    uses: Mapping[int, str]

    @classmethod
    def of(cls, model: mujoco.MjModel) -> Stage:
        """Read the stage from a compiled model."""
        data, kind = mujoco.MjData(model), model.geom_type
        if model.nkey:
            mujoco.mj_resetDataKeyframe(model, data, 0)
        mujoco.mj_kinematics(model, data)
        mujoco.mj_camlight(model, data)
        visible = (model.geom_group <= 2) & (model.geom_bodyid != _find_body(model))
        world = np.flatnonzero(visible & (model.geom_bodyid == 0)).tolist()
        planes = [geom for geom in world if kind[geom] == mujoco.mjtGeom.mjGEOM_PLANE]
        centre = model.stat.center.copy()
        boxes = [geom for geom in world if kind[geom] == mujoco.mjtGeom.mjGEOM_BOX and _covers(model, geom, centre)]
        tops = {geom: float(model.geom_pos[geom, 2] + model.geom_size[geom, 2]) for geom in boxes}
        desk = max(tops, key=lambda geom: tops[geom], default=-1)
        shown = visible & (model.geom_rbound > 0.0)
        lowest = float(np.min((data.geom_xpos[:, 2] - model.geom_rbound)[shown], initial=0.0))
        floors = [float(data.geom_xpos[plane, 2]) for plane in planes]
        centre[2] = tops[desk] if tops else max(floors, default=lowest)
        reach = np.concatenate([data.geom_xpos[shown], data.cam_xpos, centre[None]])
        return cls(
            centre=centre,
            radius=0.5 * float(model.stat.extent),
            low=reach.min(axis=0),
            high=reach.max(axis=0),
            floor=min(floors, default=lowest),
            desk=tuple(model.geom_size[desk, :2].tolist()) if tops else (math.inf, math.inf),
            eyes=data.cam_xpos[model.body_weldid[model.cam_bodyid] == 0],
            headlight=float(np.mean(model.vis.headlight.ambient + 0.6 * model.vis.headlight.diffuse)),
            uses={geom: "desk" if geom == desk else "floor" if geom in planes else "thing" for geom in world},
        )


def _find_body(model: mujoco.MjModel) -> int:
    return mujoco.mj_name2id(model, int(mujoco.mjtObj.mjOBJ_BODY), _BODY)


def _covers(model: mujoco.MjModel, geom: int, point: Array) -> bool:
    """Return whether a box of the world body is horizontal and below a point."""
    turn = np.zeros(9)
    mujoco.mju_quat2Mat(turn, model.geom_quat[geom])
    local = turn.reshape(3, 3).T @ (point - model.geom_pos[geom])
    return bool(turn[8] > 0.999 and local[2] > 0.0 and np.all(np.abs(local[:2]) <= model.geom_size[geom, :2]))


def add_place(spec: mujoco.MjSpec, *, seed: int, panoramas: Sequence[Panorama] = ()) -> None:
    """Add the bodies, lamps and surfaces from which rooms are made to a model specification, in place, all invisible.

    The state layout and the ids of all other bodies, geoms and lamps do not change.

    Args:
        spec: Model specification, changed in place.
        seed: Seed of the surfaces and of the rooms.
        panoramas: Backgrounds of half of the rooms, which then have no walls.
    """
    if panoramas:
        add_panoramas(spec, panoramas, prefix=_PANORAMAS)
    for kind in (*_SEEN, *_UNSEEN):
        for i in range(_TEXTURES):
            _add_surface(spec, kind, i, seed)
    spec.add_numeric(name=_BODY, data=[float(seed % 2**32)], size=1)
    body = spec.worldbody.add_body(name=_BODY)
    for name, shape in _list_parts():
        body.add_geom(
            name=f"{_BODY}/{name}",
            type=getattr(mujoco.mjtGeom, f"mjGEOM_{shape.upper()}"),
            size=[0.01] * 3,
            rgba=[1, 1, 1, 0],
            group=2,
            mass=0.0,
            contype=0,
            conaffinity=0,
        )
    for i in range(_LAMPS):
        kind, name = mujoco.mjtLightType.mjLIGHT_DIRECTIONAL, f"{_BODY}/lamp{i}"
        body.add_light(name=name, type=kind, active=False, castshadow=i == 0, pos=[0, 0, 1.5], dir=[0, 0, -1])


def _add_surface(spec: mujoco.MjSpec, kind: str, index: int, seed: int) -> None:
    drawn, name = draw_surface(kind, seed=seed, index=index), f"{_BODY}/{kind}/{index}"
    texture = spec.add_texture(name=name, type=mujoco.mjtTexture.mjTEXTURE_2D, width=SIZE, height=SIZE, nchannel=3)
    texture.data = drawn.pixels.tobytes()
    shine = (1.0 - drawn.roughness) ** 2
    material = spec.add_material(
        name=name,
        texrepeat=[2.0 / SURFACES[kind].metres] * 2,  # MuJoCo counts repetitions over two units of length
        texuniform=True,
        specular=0.6 * shine,
        shininess=shine,
        roughness=drawn.roughness,
        metallic=float(drawn.metallic),
    )
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = name


def _list_parts() -> list[tuple[str, str]]:
    """Return name and shape of every geom of a room, in the order of the model."""
    boxes = ["floor", "desk", "mat", *_SIDES, *(f"hanging{i}" for i in range(_HANGING))]
    boxes += [f"standing{i}" for i in range(_STANDING)]
    clutter = [(f"clutter{i}", shape) for i, shape in enumerate((*_CLUTTER, *_CLUTTER_UNSEEN))]
    return [*((name, "box") for name in boxes), *clutter]


@dataclass(kw_only=True)
class _Part:
    """Geom of a room.

    Attributes:
        position: Centre, ``(3,)`` in m.
        size: Half lengths as MuJoCo's ``geom_size``, ``(3,)`` in m.
        quaternion: Orientation wxyz.
        surface: Name of the surface, from which the material's name follows; empty for a plain colour.
        colour: Linear colour; white for the surface alone.
    """

    position: Array
    size: Array
    quaternion: Array = field(default_factory=lambda: np.array([1.0, 0.0, 0.0, 0.0]))
    surface: str = ""
    colour: Array = field(default_factory=lambda: np.ones(3))


@dataclass(frozen=True, kw_only=True)
class Room:
    """One room.

    Attributes:
        parts: Parts by name; others of a model for images are absent.
        surfaces: Name of the surface by use, of the geoms of the world.
        lamps: Values of MuJoCo's fields of each lamp.
        tint: Shift of the hue and factors on saturation and value of each material's colour, ``(nmat, 3)``.
        panorama: Number of the panorama in the background; -1 for none.
    """

    parts: Mapping[str, _Part]
    surfaces: Mapping[str, str]
    lamps: list[dict[str, ArrayLike]]
    tint: Array
    panorama: int = -1


def draw_room(stage: Stage, number: int, *, seed: int, nmat: int, panoramas: Sequence[PanoramaLight] = ()) -> Room:
    """Draw a room; it depends on these arguments alone. The ranges are our choice.

    With panoramas, about half of the rooms have one instead of floor, walls and furniture, and its light instead of
    lamps; the others are those without panoramas.

    Args:
        stage: What the room must fit.
        number: Number of the room, from 1.
        seed: Seed of all rooms.
        nmat: Number of the model's materials.
        panoramas: Light of each panorama.
    """
    random, unseen = generator(seed, ROOM, number), number >= FIRST_UNSEEN

    def surface(use: str) -> str:
        kinds = _USES[use][unseen]
        return f"{kinds[random.integers(len(kinds))]}/{random.integers(_TEXTURES)}"

    def dress() -> dict[str, Any]:
        if random.random() < 0.5:
            return {"surface": surface("thing")}
        return {"colour": np.array(colorsys.hsv_to_rgb(random.random(), random.beta(1, 2), random.uniform(0.03, 0.85)))}

    surfaces = {use: surface(use) for use in ("desk", "floor", "thing")}
    kind, _, index = surfaces["desk"].partition("/")
    level = float(np.mean(draw_surface(kind, seed=seed, index=int(index)).pixels)) / 255.0
    lamps = _draw_lamps(random, stage, level, unseen=unseen)
    low = np.minimum(stage.low, stage.centre - 1.5 * stage.radius) - random.uniform(0.1, 2.0, 3)
    high = np.maximum(stage.high, stage.centre + 1.5 * stage.radius) + random.uniform(0.1, 2.0, 3)
    low[2], high[2] = stage.floor, stage.centre[2] + random.uniform(0.5, 2.0)
    parts = _build_shell(low, high, stage, surfaces["floor"], surface("wall"), -np.asarray(lamps[0]["light_dir"]))
    _lay_desk(random, stage, parts, surface)
    for i in range(random.integers(_HANGING + 1)):
        parts[f"hanging{i}"] = _hang(random, low, high, dress)
    for i in range(random.integers(_STANDING + 1)):
        size = np.minimum(random.uniform([0.15, 0.15, 0.2], [0.6, 0.4, 1.0]), 0.45 * (high - low))
        at, (along, towards) = (
            random.uniform(low + size, high - size),
            [(0, -1), (0, 1), (1, -1), (1, 1)][random.integers(4)],
        )
        at[along] = low[along] + size[along] + 0.02 if towards < 0 else high[along] - size[along] - 0.02
        at[2] = low[2] + size[2]
        if np.any(np.abs(at - stage.centre)[:2] > size[:2] + 1.6 * stage.radius) and not _hides(stage, at, size):
            parts[f"standing{i}"] = _Part(position=at, size=size, surface=surface("thing"))
    _scatter(random, stage, parts, dress, unseen=unseen)
    tint = random.uniform([-0.03, 0.75, 0.75], [0.03, 1.2, 1.25], (nmat, 3))
    room = Room(parts=parts, surfaces=surfaces, lamps=lamps, tint=tint)
    choice = generator(seed, _PANORAMAS, number)
    if not panoramas or choice.random() < 0.5:
        return room
    chosen = int(choice.integers(len(panoramas)))
    total = _draw_brightness(choice, stage, level)
    kept = {name: part for name, part in parts.items() if name.startswith(_CARRIED)}
    return replace(room, parts=kept, lamps=[_use_panorama(stage, panoramas[chosen], total)], panorama=chosen)


def _use_panorama(stage: Stage, light: PanoramaLight, total: float) -> dict[str, ArrayLike]:
    """Return the lamp of a panorama, which also gives the light from all directions; see `_lamp`."""
    own, others = (linear_to_srgb(colour / colour.max()) for colour in (light.lamp, light.ambient))
    lamp = _lamp(stage, light.towards, total * light.share * own, shadow=light.share > 0.2, bulb=0.02)
    return {**lamp, "light_diffuse": total * light.share * own / light.towards[2],
            "light_ambient": total * (1.0 - light.share) * others}  # fmt: skip


def _build_shell(low: Array, high: Array, stage: Stage, floor: str, wall: str, sun: Array) -> dict[str, _Part]:
    """Return floor and walls of a room between two corners.

    A wall between the scene and the lamp with shadows is so low that it casts none on the scene.

    Args:
        low, high: Corners, ``(3,)`` in m.
        stage: What the room must fit.
        floor, wall: Names of the surfaces.
        sun: Unit vector towards the lamp with shadows.
    """
    middle, half = 0.5 * (low + high), 0.5 * (high - low)
    at = middle - [0.0, 0.0, half[2] + _THICK + _GAP]
    parts = {"floor": _Part(position=at, size=np.array([*half[:2], _THICK]), surface=floor)}
    for name, side in _SIDES.items():
        outward = np.array([*side, 0.0])
        along, corner = (0 if side[0] else 1), high if sum(side) > 0 else low
        top, facing = high[2], float(sun @ outward)
        if facing > 0.0:
            away = abs(corner[along] - stage.centre[along]) - stage.radius
            top = min(top, stage.centre[2] + 0.9 * away * sun[2] / facing)
        tall = 0.5 * (top - low[2])
        if tall > 0.0:
            at = middle + outward * (half + _THICK)
            at[2] = low[2] + tall
            size = np.array([half[1 - along], tall, _THICK])
            parts[name] = _Part(position=at, size=size, quaternion=_facing(-outward), surface=wall)
    return parts


def _facing(inward: Array) -> Array:
    """Return the quaternion of a wall's frame: z into the room, y upwards, so that its surface is not stretched."""
    up, quaternion = np.array([0.0, 0.0, 1.0]), np.zeros(4)
    mujoco.mju_mat2Quat(quaternion, np.stack([np.cross(up, inward), up, inward], axis=1).ravel())
    return quaternion


def _lay_desk(
    random: np.random.Generator, stage: Stage, parts: dict[str, _Part], surface: Callable[[str], str]
) -> None:
    """Add a larger desk around the surface that carries the scene, and a mat on it, to a part of the rooms."""
    if np.isfinite(stage.desk).all() and random.random() < 0.7:
        size = np.array([*(np.array(stage.desk) + random.uniform(0.0, 0.5, 2)), _THICK])
        parts["desk"] = _Part(position=stage.centre - [0.0, 0.0, _THICK + _GAP], size=size, surface=surface("desk"))
    if random.random() < 0.3:
        size = np.array([*(stage.radius * random.uniform(0.5, 0.9, 2)), _MAT])
        place = stage.centre + random.uniform(-0.1, 0.1, 3) * [stage.radius, stage.radius, 0.0]
        parts["mat"] = _Part(position=place, size=size, surface=surface("desk"))


def _hang(random: np.random.Generator, low: Array, high: Array, dress: Callable[[], dict[str, Any]]) -> _Part:
    """Return a flat thing on one of the walls, with its surface or colour from ``dress``."""
    side = list(_SIDES.values())[random.integers(len(_SIDES))]
    outward, along = np.array([*side, 0.0]), (1 if side[0] else 0)
    size = np.minimum(random.uniform([0.08, 0.08], [0.6, 0.5]), 0.45 * (high - low)[[along, 2]])
    at = 0.5 * (low + high) + outward * (0.5 * (high - low) - 0.006)
    at[along] = random.uniform(low[along] + size[0], high[along] - size[0])
    at[2] = random.uniform(low[2] + size[1], high[2] - size[1])
    return _Part(position=at, size=np.array([*size, 0.005]), quaternion=_facing(-outward), **dress())


def _hides(stage: Stage, at: Array, size: Array) -> bool:
    """Return whether the bounding sphere of a thing hides a part of the scene from a fixed camera."""
    angles = np.linspace(0.0, 2 * np.pi, 8, endpoint=False)
    rim = stage.centre + stage.radius * np.stack([np.cos(angles), np.sin(angles), 0.2 + 0.0 * angles], axis=-1)
    for eye in stage.eyes:
        ray = rim - eye
        share = np.clip(((at - eye) * ray).sum(-1) / (ray * ray).sum(-1), 0.0, 1.0)
        if np.any(np.linalg.norm(eye + share[:, None] * ray - at, axis=-1) < np.linalg.norm(size)):
            return True
    return False


def _scatter(
    random: np.random.Generator,
    stage: Stage,
    parts: dict[str, _Part],
    dress: Callable[[], dict[str, Any]],
    *,
    unseen: bool,
) -> None:
    """Put clutter, with surfaces or colours from ``dress``, onto the desk or onto the floor around the scene."""
    room = np.minimum(parts["desk"].size[:2] if "desk" in parts else stage.desk, 2.5 * stage.radius)
    first, shapes = (len(_CLUTTER), _CLUTTER_UNSEEN) if unseen else (0, _CLUTTER)
    for i in random.permutation(len(shapes))[: random.integers(len(shapes) + 1)].tolist():
        size, height, turn = _draw_size(random, shapes[i])
        for _ in range(8):
            at = stage.centre + np.array([*(random.uniform(-1.0, 1.0, 2) * room), height])
            apart = np.linalg.norm((at - stage.centre)[:2]) - np.linalg.norm(size)
            if apart > stage.radius and not _hides(stage, at, size):
                parts[f"clutter{first + i}"] = _Part(position=at, size=size, quaternion=turn, **dress())
                break


def _draw_size(random: np.random.Generator, shape: str) -> tuple[Array, float, Array]:
    """Return size, height of the centre above the desk, and orientation of a thing of this shape."""
    yaw = random.uniform(0.0, 2 * np.pi)
    upright = np.array([math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2)])
    if shape == "cylinder":  # a mug, a tin or a bottle
        size = np.array([random.uniform(0.015, 0.045), random.uniform(0.03, 0.11), 0.0])
        return size, size[1], upright
    if shape == "capsule":  # a cable or a pen, lying
        size, lying = np.array([random.uniform(0.003, 0.008), random.uniform(0.06, 0.2), 0.0]), np.zeros(4)
        mujoco.mju_mulQuat(lying, upright, np.array([math.sqrt(0.5), 0.0, math.sqrt(0.5), 0.0]))
        return size, size[0], lying
    if shape == "box":  # a book, a carton or a keyboard
        size = random.uniform([0.02, 0.02, 0.005], [0.13, 0.1, 0.12])
        return size, size[2], upright
    size = np.sort(random.uniform(0.015, 0.06, 3))[::-1]
    size = size if shape == "ellipsoid" else np.full(3, size[1])
    return size, size[2], upright


def _draw_lamps(random: np.random.Generator, stage: Stage, level: float, *, unseen: bool) -> list[dict[str, ArrayLike]]:
    """Draw the lamps of a room: one that casts the shadows, and others that soften them.

    Together they light the desk as a camera would expose it: to a mean display value of 0.35 to 0.8.

    Args:
        random: Random numbers.
        stage: What the room must fit.
        level: Mean display value of the desk's surface under white light.
        unseen: Whether the lamp with shadows is lower than in any lower room.
    """
    kelvin, adapted = random.uniform(*_KELVIN), random.uniform(0.0, 0.8)  # how far the camera corrects the colour
    total = _draw_brightness(random, stage, level)
    shares = random.dirichlet([3.0, 1.0, 1.0]) * [1.0, 1.0, random.random() < 0.5]
    lamps = list[dict[str, ArrayLike]]()
    for i, share in enumerate(shares / shares.sum()):
        azimuth = random.uniform(0.0, 2 * np.pi)
        elevation = math.radians(random.uniform(20.0, 35.0) if unseen and i == 0 else random.uniform(35.0, 85.0))
        flat = math.cos(elevation)
        towards = np.array([flat * math.cos(azimuth), flat * math.sin(azimuth), math.sin(elevation)])
        colour = black_body(kelvin + random.uniform(-400.0, 400.0) * (i > 0)) ** (1.0 - adapted)
        light = total * share * linear_to_srgb(colour / colour.max())
        lamps.append(_lamp(stage, towards, light, shadow=i == 0, bulb=random.uniform(0.01, 0.2)))
    return lamps


def _draw_brightness(random: np.random.Generator, stage: Stage, level: float) -> float:
    """Draw the light of all lamps, with which the desk has a mean display value of 0.35 to 0.8; see `_draw_lamps`."""
    return float(np.clip(random.uniform(0.35, 0.8) / level - stage.headlight, 0.15, 1.5))


def _lamp(stage: Stage, towards: Array, light: Array, *, shadow: bool, bulb: float) -> dict[str, ArrayLike]:
    """Return the fields of a distant lamp; a quarter of its light comes from all directions.

    Args:
        stage: What the room must fit.
        towards: Unit vector towards the lamp.
        light: Display values of a white horizontal surface in the lamp's light, ``(3,)``.
        shadow: Whether it casts shadows.
        bulb: Radius in m, from which soft shadows follow.
    """
    return {
        "light_active": 1,
        "light_pos": stage.centre + 1.5 * towards,
        "light_dir": -towards,
        "light_diffuse": 0.75 * light / towards[2],
        "light_ambient": 0.25 * light,
        "light_specular": 0.5 * light,
        "light_castshadow": shadow,
        "light_bulbradius": bulb,
    }


# Linear Rec. 709 red, green and blue from CIE XYZ (IEC 61966-2-1).
_FROM_XYZ = np.array([[3.2406, -1.5372, -0.4986], [-0.9689, 1.8758, 0.0415], [0.0557, -0.2040, 1.0570]])


def black_body(kelvin: float) -> Array:
    """Return the linear Rec. 709 colour of a black body from 2222 to 25,000 K, relative to its colour at 6500 K.

    Its luminance is 1. The chromaticity is the cubic approximation of Kim et al., US patent 7,024,034, 2006.
    """

    def light(temperature: float) -> Array:
        t = 1000.0 / temperature
        if t > 0.25:  # below 4000 K
            x = np.polyval([-0.2661239, -0.2343589, 0.8776956, 0.179910], t)
            y = np.polyval([-0.9549476, -1.37418593, 2.09137015, -0.16748867], x)
        else:
            x = np.polyval([-3.0258469, 2.1070379, 0.2226347, 0.240390], t)
            y = np.polyval([3.0817580, -5.87338670, 3.75112997, -0.37001483], x)
        return _FROM_XYZ @ [x / y, 1.0, (1.0 - x - y) / y]

    colour = light(kelvin) / light(6500.0)
    return colour / (colour @ LUMA)


@functools.lru_cache(maxsize=8)
def _read_stage(model: mujoco.MjModel) -> Stage:
    return Stage.of(model)


@functools.lru_cache(maxsize=8)
def _read_panoramas(model: mujoco.MjModel) -> list[PanoramaLight]:
    names = [model.numeric(i).name for i in range(model.nnumeric)]
    kept = [name for name in names if name.startswith(f"{_PANORAMAS}/")]
    return [PanoramaLight.from_numbers(model.numeric(f"{_PANORAMAS}/{i}").data) for i in range(len(kept))]


@functools.lru_cache(maxsize=4096)
def _room_of(model: mujoco.MjModel, number: int) -> Room:
    seed, panoramas = int(model.numeric(_BODY).data[0]), _read_panoramas(model)
    return draw_room(_read_stage(model), number, seed=seed, nmat=model.nmat, panoramas=panoramas)


def write_rooms_inplace(arrays: dict[str, NDArray], model: mujoco.MjModel, rooms: NDArray[np.int64]) -> None:
    """Write the rooms of all worlds into arrays of model fields; worlds with room 0 keep theirs.

    Args:
        arrays: Arrays by field name, shape ``(nworld, *field shape)``, changed in place. A missing array is added with
            the values of the compiled model.
        model: Compiled model with the bodies of `add_place`; without them nothing is written.
        rooms: Number of each world's room, ``(nworld,)``.
    """
    if _find_body(model) < 0 or not rooms.any():
        return
    fields = (*_FIELDS, "tex_type") if _read_panoramas(model) else _FIELDS
    for name in fields:
        if name not in arrays:
            arrays[name] = np.repeat(getattr(model, name)[None], len(rooms), axis=0)
    for world in np.flatnonzero(rooms):
        _write_room({name: arrays[name][world] for name in fields}, model, _room_of(model, int(rooms[world])))


def _write_room(fields: Mapping[str, NDArray], model: mujoco.MjModel, room: Room) -> None:
    """Write one room into the model fields of one world, in place."""
    for i, (shift, saturation, value) in enumerate(room.tint):
        if not model.material(i).name.startswith(f"{_BODY}/"):
            h, s, v = colorsys.rgb_to_hsv(*model.mat_rgba[i, :3])
            changed = (h + shift) % 1.0, min(s * saturation, 1.0), min(v * value, 1.0)
            fields["mat_rgba"][i, :3] = colorsys.hsv_to_rgb(*changed)
    for geom, use in _read_stage(model).uses.items():
        fields["geom_matid"][geom] = model.material(f"{_BODY}/{room.surfaces[use]}").id
        fields["geom_rgba"][geom] = 1.0
    rise = _find_rise(fields, model)
    for name, part in room.parts.items():
        geom = model.geom(f"{_BODY}/{name}").id
        carried = rise if name.startswith(_CARRIED) else 0.0
        fields["geom_pos"][geom], fields["geom_quat"][geom] = (
            part.position + np.array([0.0, 0.0, carried]),
            part.quaternion,
        )
        fields["geom_size"][geom], fields["geom_rgba"][geom] = part.size, (*linear_to_srgb(part.colour), 1.0)
        fields["geom_matid"][geom] = model.material(f"{_BODY}/{part.surface}").id if part.surface else -1
        fields["geom_rbound"][geom] = np.linalg.norm(part.size)
        fields["geom_aabb"][geom, 3:] = _half_lengths(int(model.geom_type[geom]), part.size)
    if room.panorama >= 0:  # renderers show the first background
        earlier = np.arange(model.ntex) < model.texture(f"{_PANORAMAS}/{room.panorama}").id
        is_sky = model.tex_type == mujoco.mjtTexture.mjTEXTURE_SKYBOX
        fields["tex_type"][earlier & is_sky] = int(mujoco.mjtTexture.mjTEXTURE_CUBE)
    fields["light_active"][:], fields["light_castshadow"][:] = 0, 0
    for i, lamp in enumerate(room.lamps):
        for name, value in lamp.items():
            fields[name][model.light(f"{_BODY}/lamp{i}").id] = value


def _find_rise(fields: Mapping[str, NDArray], model: mujoco.MjModel) -> float:
    """Return by how much the surface that carries the scene is higher than in the compiled model, in m.

    In a world with a lower table, a desk around it and a mat at the nominal height would hide flat things on the table.
    """
    uses = _read_stage(model).uses
    carrying = [geom for geom, use in uses.items() if use == "desk"] or [g for g, use in uses.items() if use == "floor"]
    if not carrying:
        return 0.0
    geom = carrying[0]
    box = model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_BOX
    both = ((fields["geom_pos"], fields["geom_size"]), (model.geom_pos, model.geom_size))
    here, nominal = (place[geom, 2] + (size[geom, 2] if box else 0.0) for place, size in both)
    return float(here - nominal)


_CARRIED = ("desk", "mat", "clutter")  # parts on or at the surface that carries the scene


def _half_lengths(kind: int, size: Array) -> Array:
    """Return half the side lengths of a geom's bounding box, ``(3,)``."""
    if kind == mujoco.mjtGeom.mjGEOM_CYLINDER:
        return np.array([size[0], size[0], size[1]])
    if kind == mujoco.mjtGeom.mjGEOM_CAPSULE:
        return np.array([size[0], size[0], size[0] + size[1]])
    return np.full(3, size[0]) if kind == mujoco.mjtGeom.mjGEOM_SPHERE else size
