"""Build a scene into a model: shapes of the ``scene:`` section, permanent objects, and slots for clutter.

A slot is a free body with as many geoms as the shape with the most pieces in its set. In a world each geom is a piece
of the drawn shape, or the slot is parked: without collisions, gravity and visibility. All worlds of a run thus share
one model, and their states have the same length.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.seeds import generator
from twinloop.twin.scene_spec import LARGEST, ClutterSpec, ObjectSpec, SceneSpec, ShapeSpec
from twinloop.twin.shapes import (
    PRIMITIVES,
    ConvexPart,
    ObjectShape,
    bounding_box,
    fit_pieces,
    make_primitive,
    make_procedural,
    read_piece,
)


def expand_shapes(spec: ShapeSpec, folder: Path, *, where: str) -> list[ObjectShape]:
    """Return the ``count`` shapes of one entry, which depend only on the entry and its files.

    Raises:
        InputError: a shape does not fit its box, or a mesh is no solid body; the message names the entry.
    """
    return [_make_shape(spec, index, folder, f"{where} ({spec.name or spec.shape})") for index in range(spec.count)]


def _make_shape(spec: ShapeSpec, index: int, folder: Path, where: str) -> ObjectShape:
    rng = generator(spec.seed, f"scene/{spec.name or spec.shape}", index)
    low, high = spec.scale
    try:
        pieces = _make_pieces(spec, index, float(rng.uniform(low, high)), folder, where)
    except InputError as error:
        message = str(error)
        raise InputError(message if message.startswith(where) else f"{where}: {message}") from error
    low_corner, high_corner = bounding_box(pieces)
    largest = float((high_corner - low_corner).max())
    if spec.shape == "mesh" and largest > LARGEST:
        raise InputError(f"{where}: the mesh is {largest:.4g} m large. If its file is in mm, give `size:` in m.")
    volume = sum(piece.volume for piece in pieces)
    name = spec.name or spec.shape
    return ObjectShape(
        name=name if spec.count == 1 else f"{name}_{index}",
        pieces=pieces,
        extents=high_corner - low_corner,
        mass=spec.mass if spec.mass is not None else spec.density * volume,
        rgba=(*(spec.color or _draw_color(rng)), 1.0),
    )


def _make_pieces(spec: ShapeSpec, index: int, factor: float, folder: Path, where: str) -> tuple[ConvexPart, ...]:
    extents = spec.extents(factor)
    if spec.shape == "mesh":
        read = tuple(read_piece(folder / name, accept_hull=spec.hull, where=where) for name in spec.files)
        low, high = bounding_box(read)
        return fit_pieces(read, factor * (high - low) if extents is None else extents)
    if extents is None:
        raise InputError(f"a {spec.shape} needs a size")
    if spec.shape in PRIMITIVES:
        return make_primitive(spec.shape, extents)
    return make_procedural(spec.shape, extents, seed=spec.seed, index=index, **spec.options)


def _draw_color(rng: np.random.Generator) -> tuple[float, float, float]:
    """Draw a muted colour of any hue."""
    hue, saturation, value = rng.uniform((0.0, 0.35, 0.45), (1.0, 0.75, 0.9))
    return colorsys.hsv_to_rgb(float(hue), float(saturation), float(value))


_PARKED = -3.0  # m: below the floor of any table
_APART = 0.3  # m between parked slots
CONTACT_SETTINGS = ("contype", "conaffinity", "priority", "friction", "solmix", "solref", "solimp", "margin", "gap")
# Contact dimensions (condim): round objects need rolling friction to come to rest; objects with faces do not, and
# without it the simulation of five such objects on a table costs a tenth less.
_ROUND, _FLAT = 6, 4
GEOM_TYPES = {
    "box": mujoco.mjtGeom.mjGEOM_BOX,
    "cylinder": mujoco.mjtGeom.mjGEOM_CYLINDER,
    "sphere": mujoco.mjtGeom.mjGEOM_SPHERE,
    "capsule": mujoco.mjtGeom.mjGEOM_CAPSULE,
    "ellipsoid": mujoco.mjtGeom.mjGEOM_ELLIPSOID,
    "mesh": mujoco.mjtGeom.mjGEOM_MESH,
}


@dataclass(frozen=True, kw_only=True)
class SceneSlot:
    """Body of the scene with its possible shapes and its clutter group, "" for a permanent object.

    ``meshes`` is the prefix of its mesh names.
    """

    body: str
    shapes: tuple[ObjectShape, ...]
    meshes: str
    group: str = ""


@dataclass(frozen=True, kw_only=True)
class SceneLayout:
    """Objects built into a model, and their collision bits."""

    spec: SceneSpec
    slots: tuple[SceneSlot, ...]
    contype: int
    conaffinity: int

    def slots_of_group(self, name: str) -> tuple[int, ...]:
        """Return the indices of the slots of a clutter group, in the order in which they are filled."""
        return tuple(i for i, slot in enumerate(self.slots) if slot.group == name)


def build_scene(mjspec: mujoco.MjSpec, spec: SceneSpec, folder: Path, *, like: str | None, where: str) -> SceneLayout:
    """Add the bodies of a scene to a model that is not yet compiled.

    Args:
        folder: folder of the mesh files.
        like: body whose contact settings the objects get if the scene has no ``like``.

    Raises:
        InputError, UnknownNameError: a set, a body or a geom does not exist, or a shape cannot be created.
    """
    sets = {
        name: tuple(
            shape for entry in entries for shape in expand_shapes(entry, folder, where=f"{where}: scene.sets.{name}")
        )
        for name, entries in spec.sets.items()
    }
    _check_geom(mjspec, spec.support, where)
    _check_bodies(mjspec, spec, where)
    contact = _contact_settings(mjspec, spec.like or like, where)
    slots: list[SceneSlot] = []
    for thing in spec.objects:
        _check_on_support(mjspec, spec.support, thing, where)
        shapes = tuple(expand_shapes(thing, folder, where=f"{where}: scene.objects"))
        slots.append(SceneSlot(body=thing.name, shapes=shapes, meshes=f"objects/{thing.name}"))
        place = (*thing.position, _support_height(mjspec, spec.support) + shapes[0].extents[2] / 2)
        _add_body(mjspec, slots[-1], place, contact, rolling=spec.rolling, there=True)
        mjspec.worldbody.bodies[-1].quat = [math.cos(thing.yaw / 2), 0.0, 0.0, math.sin(thing.yaw / 2)]
    for name, clutter in spec.clutter.items():
        slots += _add_clutter(mjspec, name, clutter, sets, contact, spec.rolling, where)
    _extend_keys(mjspec, len(slots))
    default = mjspec.default.geom
    return SceneLayout(
        spec=spec,
        slots=tuple(slots),
        contype=int(contact.get("contype", default.contype)),
        conaffinity=int(contact.get("conaffinity", default.conaffinity)),
    )


def _add_clutter(
    mjspec: mujoco.MjSpec,
    name: str,
    clutter: ClutterSpec,
    sets: dict[str, tuple[ObjectShape, ...]],
    contact: dict[str, Any],
    rolling: float,
    where: str,
) -> list[SceneSlot]:
    if not sets.get(clutter.set):
        raise UnknownNameError("set", clutter.set, sets, where=f"{where}: scene.clutter.{name}")
    if clutter.occlude:
        place = f"{where}: scene.clutter.{name}.occlude"
        for kind, wanted, existing in (
            ("camera", clutter.occlude.camera, mjspec.cameras),
            ("object", clutter.occlude.object, mjspec.worldbody.bodies),
        ):
            names = [item.name for item in existing]
            if wanted not in names:
                raise UnknownNameError(kind, wanted, names, where=place)
    shapes, meshes = sets[clutter.set], f"sets/{clutter.set}"
    slots = [SceneSlot(body=f"{name}_{i}", shapes=shapes, meshes=meshes, group=name) for i in range(clutter.count[1])]
    for i, slot in enumerate(slots):
        _add_body(mjspec, slot, (_APART * i, 0.0, _PARKED), contact, rolling=rolling, there=False)
        mjspec.add_text(name=f"scene/shape/{slot.body}", data=clutter.set)
    mjspec.add_text(name=f"scene/count/{name}", data=clutter.set)
    return slots


def mesh_names(prefix: str, shape: int, pieces: Iterable[object]) -> list[str]:
    """Return one mesh name per piece of a shape, also for pieces without a mesh."""
    return [f"scene/{prefix}/{shape}/{i}" for i, _ in enumerate(pieces)]


def add_geoms(
    body: mujoco.MjsBody, mjspec: mujoco.MjSpec, shape: ObjectShape, index: int, prefix: str
) -> list[mujoco.MjsGeom]:
    """Add the pieces of a shape to a body, with masses in proportion to volume."""
    _add_meshes(mjspec, shape, index, prefix)
    geoms: list[mujoco.MjsGeom] = []
    for piece, mesh in zip(shape.pieces, mesh_names(prefix, index, shape.pieces), strict=True):
        geom = body.add_geom(
            type=GEOM_TYPES[piece.kind],
            size=piece.size,
            pos=piece.position,
            rgba=shape.rgba,
            mass=shape.mass * piece.volume / shape.volume,
            condim=_FLAT if piece.kind in {"box", "mesh"} else _ROUND,
        )
        if piece.vertices is not None:
            geom.meshname = mesh
        geoms.append(geom)
    return geoms


def _add_body(
    mjspec: mujoco.MjSpec,
    slot: SceneSlot,
    place: tuple[float, float, float],
    contact: dict[str, Any],
    *,
    rolling: float,
    there: bool,
) -> None:
    body = mjspec.worldbody.add_body(name=slot.body, pos=place)
    body.add_freejoint(name=slot.body)
    geoms = add_geoms(body, mjspec, slot.shapes[0], 0, slot.meshes)
    for index, shape in enumerate(slot.shapes[1:], start=1):
        _add_meshes(mjspec, shape, index, slot.meshes)
    if not there:
        geoms += [_add_filler_geom(body) for _ in range(max(len(shape.pieces) for shape in slot.shapes) - len(geoms))]
        body.gravcomp = 1.0
        body.simple = False  # the centre of mass changes with the shape
    for geom in geoms:
        for name, value in contact.items():
            setattr(geom, name, value)
        geom.friction[2] = max(geom.friction[2], rolling)
        if not there:
            geom.contype, geom.conaffinity, geom.rgba[3] = 0, 0, 0.0


def _add_meshes(mjspec: mujoco.MjSpec, shape: ObjectShape, index: int, prefix: str) -> None:
    existing = {mesh.name for mesh in mjspec.meshes}
    for piece, name in zip(shape.pieces, mesh_names(prefix, index, shape.pieces), strict=True):
        if piece.vertices is not None and name not in existing:
            exact = mujoco.mjtMeshInertia.mjMESH_INERTIA_EXACT
            mjspec.add_mesh(name=name, uservert=piece.vertices.ravel(), inertia=exact)


def _add_filler_geom(body: mujoco.MjsBody) -> mujoco.MjsGeom:
    return body.add_geom(type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[0.001, 0.0, 0.0], mass=0.0)


def _contact_settings(mjspec: mujoco.MjSpec, like: str | None, where: str) -> dict[str, Any]:
    """Return the contact settings of a body's first geom, or {} for the model's defaults."""
    if like is None:
        return {}
    bodies = {body.name: body for body in mjspec.bodies}
    if like not in bodies:
        raise UnknownNameError("body", like, bodies, where=f"{where}: scene.like")
    geoms = bodies[like].geoms
    if not geoms:
        raise InputError(f"{where}: scene.like: the body {like} has no geom to take contact settings from.")
    return {name: np.copy(value) if np.ndim(value := getattr(geoms[0], name)) else value for name in CONTACT_SETTINGS}


def _check_geom(mjspec: mujoco.MjSpec, name: str, where: str) -> None:
    names = [geom.name for geom in mjspec.geoms if geom.name]
    if name not in names:
        raise UnknownNameError("geom", name, names, where=f"{where}: scene.support")


def _check_bodies(mjspec: mujoco.MjSpec, spec: SceneSpec, where: str) -> None:
    """Refuse an object whose name is used twice, also by bodies of the model."""
    wanted = [(thing.name, f"scene.objects[{i}]") for i, thing in enumerate(spec.objects)]
    wanted += [
        (f"{name}_{i}", f"scene.clutter.{name}") for name, one in spec.clutter.items() for i in range(one.count[1])
    ]
    taken = {body.name: "the model" for body in mjspec.bodies}
    for name, place in wanted:
        if name in taken:
            raise InputError(
                f"{where}: {place}: there is a body {name!r} already, in {taken[name]}. Choose another name."
            )
        taken[name] = place


def _check_on_support(mjspec: mujoco.MjSpec, support: str, thing: ObjectSpec, where: str) -> None:
    """Refuse an object outside the table, which would fall during the whole episode."""
    geom = next(geom for geom in mjspec.geoms if geom.name == support)
    half = np.where(geom.size[:2] > 0, geom.size[:2], np.inf)  # a plane of size 0 is infinite
    low, high = geom.pos[:2] - half, geom.pos[:2] + half
    if not ((low <= thing.position) & (thing.position <= high)).all():
        raise InputError(
            f"{where}: {thing.name} lies at {list(thing.position)} m, beside {support}, which reaches from "
            f"[{low[0]:g}, {low[1]:g}] to [{high[0]:g}, {high[1]:g}] m. Choose a position on it."
        )


def _support_height(mjspec: mujoco.MjSpec, support: str) -> float:
    geom = next(geom for geom in mjspec.geoms if geom.name == support)
    half = geom.size[2] if geom.type == mujoco.mjtGeom.mjGEOM_BOX else 0.0
    return float(geom.pos[2] + half)


def _extend_keys(mjspec: mujoco.MjSpec, count: int) -> None:
    """Extend keyframes by the poses of bodies that were added last."""
    bodies = mjspec.worldbody.bodies[-count:] if count else []
    start = [np.concatenate([body.pos, body.quat]) for body in bodies]
    for key in mjspec.keys:
        if len(key.qpos):
            key.qpos = np.concatenate([key.qpos, *start])
        if len(key.qvel):
            key.qvel = np.concatenate([key.qvel, np.zeros(6 * count)])
