"""Add the objects of a twin's ``scene:`` section to its model: permanent objects, and slots for random clutter.

A slot is a free body that can have any shape of a set of shapes. In each world, the geoms of a slot are the convex
pieces of the selected shape, or the slot is parked below the floor and does not collide, fall or appear in images. A
slot therefore has as many geoms as the shape with the most pieces. All worlds of a run therefore share one model, and
their states have the same length.
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
from twinloop.twin.scene_spec import MAX_LENGTH, ClutterSpec, ObjectSpec, SceneSpec, ShapeSpec
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
    """Return the ``count`` shapes of one shape entry; they depend only on the entry and its mesh files.

    Args:
        spec: Shape entry of the ``scene:`` section.
        folder: Folder of the mesh files.
        where: Location of the entry in the YAML, for error messages.

    Raises:
        InputError: If a shape does not fit its bounding box, or if a mesh is not a solid body; the message names the
            entry.
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
    if spec.shape == "mesh" and largest > MAX_LENGTH:
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
    """Draw a colour of any hue with moderate saturation and brightness, as red, green and blue from 0 to 1."""
    hue, saturation, value = rng.uniform((0.0, 0.35, 0.45), (1.0, 0.75, 0.9))
    return colorsys.hsv_to_rgb(float(hue), float(saturation), float(value))


_PARKED = -3.0  # m: below the floor of any table
_APART = 0.3  # m between parked slots
CONTACT_SETTINGS = ("contype", "conaffinity", "priority", "friction", "solmix", "solref", "solimp", "margin", "gap")
# Contact dimensions (condim). Round objects need rolling friction to come to rest. Objects with faces do not need it,
# and the simulation of five such objects on a table is a tenth cheaper if they have none.
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
    """Free body of a scene with the shapes that it can have.

    Attributes:
        body: Name of the body.
        shapes: Possible shapes; a permanent object has one.
        meshes: Common prefix of the names of the body's meshes, see `mesh_names`.
        group: Name of the clutter group; empty for a permanent object.
    """

    body: str
    shapes: tuple[ObjectShape, ...]
    meshes: str
    group: str = ""


@dataclass(frozen=True, kw_only=True)
class SceneLayout:
    """Objects that were added to a model, with their collision settings.

    Attributes:
        spec: The ``scene:`` section of the twin's YAML.
        slots: Bodies of the objects: permanent objects first, then the clutter groups.
        contype: MuJoCo's ``contype`` bit mask of the objects' geoms.
        conaffinity: MuJoCo's ``conaffinity`` bit mask of the objects' geoms.
    """

    spec: SceneSpec
    slots: tuple[SceneSlot, ...]
    contype: int
    conaffinity: int

    def slots_of_group(self, name: str) -> tuple[int, ...]:
        """Return the indices of a clutter group's slots.

        A world with n objects of the group uses the first n slots.
        """
        return tuple(i for i, slot in enumerate(self.slots) if slot.group == name)


def build_scene(mjspec: mujoco.MjSpec, spec: SceneSpec, folder: Path, *, like: str | None, where: str) -> SceneLayout:
    """Add the bodies of a scene to a model specification that is not yet compiled.

    Args:
        mjspec: Model specification, changed in place.
        spec: The ``scene:`` section of the twin's YAML.
        folder: Folder of the mesh files.
        like: Body whose contact settings the objects get. A key ``like`` in the section takes precedence.
        where: Name of the YAML file, for error messages.

    Raises:
        UnknownNameError: If a set, a body, a geom or a camera does not exist.
        InputError: If a shape cannot be created, a name is used twice, or an object is not on the table.
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
        _add_body(mjspec, slots[-1], place, contact, rolling=spec.rolling, permanent=True)
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
        _add_body(mjspec, slot, (_APART * i, 0.0, _PARKED), contact, rolling=rolling, permanent=False)
        mjspec.add_text(name=f"scene/shape/{slot.body}", data=clutter.set)
    mjspec.add_text(name=f"scene/count/{name}", data=clutter.set)
    return slots


def mesh_names(prefix: str, shape: int, pieces: Iterable[object]) -> list[str]:
    """Return one mesh name per convex piece of a shape.

    A piece that is a primitive has no mesh; its name is not used, but keeps names and pieces in the same order.

    Args:
        prefix: Prefix of the body's mesh names.
        shape: Index of the shape in the body's list of shapes.
        pieces: Convex pieces of the shape.
    """
    return [f"scene/{prefix}/{shape}/{i}" for i, _ in enumerate(pieces)]


def add_geoms(
    body: mujoco.MjsBody, mjspec: mujoco.MjSpec, shape: ObjectShape, index: int, prefix: str
) -> list[mujoco.MjsGeom]:
    """Add the convex pieces of a shape to a body as geoms, with masses in proportion to their volumes.

    Args:
        body: Body, changed in place.
        mjspec: Model specification of the body; missing meshes are added.
        shape: Shape with its pieces.
        index: Index of the shape in the body's list of shapes.
        prefix: Prefix of the body's mesh names.
    """
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
    permanent: bool,
) -> None:
    body = mjspec.worldbody.add_body(name=slot.body, pos=place)
    body.add_freejoint(name=slot.body)
    geoms = add_geoms(body, mjspec, slot.shapes[0], 0, slot.meshes)
    for index, shape in enumerate(slot.shapes[1:], start=1):
        _add_meshes(mjspec, shape, index, slot.meshes)
    if not permanent:
        geoms += [_add_filler_geom(body) for _ in range(max(len(shape.pieces) for shape in slot.shapes) - len(geoms))]
        body.gravcomp = 1.0
        body.simple = False  # the centre of mass changes with the shape
    for geom in geoms:
        for name, value in contact.items():
            setattr(geom, name, value)
        geom.friction[2] = max(geom.friction[2], rolling)
        if not permanent:
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
    """Return the contact settings of a body's first geom; empty if ``like`` is None, which means the model's defaults.

    Args:
        mjspec: Model specification that contains the body.
        like: Name of the body, or None.
        where: Name of the YAML file, for error messages.
    """
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
    """Raise an error if two objects, or an object and a body of the model, have the same name."""
    wanted = [(thing.name, f"scene.objects[{i}]") for i, thing in enumerate(spec.objects)]
    wanted += [
        (f"{name}_{i}", f"scene.clutter.{name}") for name, one in spec.clutter.items() for i in range(one.count[1])
    ]
    owners = {body.name: "the model" for body in mjspec.bodies}
    for name, place in wanted:
        if name in owners:
            raise InputError(
                f"{where}: {place}: there is a body {name!r} already, in {owners[name]}. Choose another name."
            )
        owners[name] = place


def _check_on_support(mjspec: mujoco.MjSpec, support: str, thing: ObjectSpec, where: str) -> None:
    """Raise an error if a permanent object is not above its support, because it would fall during the whole episode.

    Args:
        mjspec: Model specification that contains the support.
        support: Name of the geom that supports the objects, for example the table.
        thing: The object with its position.
        where: Name of the YAML file, for error messages.
    """
    geom = next(geom for geom in mjspec.geoms if geom.name == support)
    half = np.where(geom.size[:2] > 0, geom.size[:2], np.inf)  # a plane of size 0 is infinite
    low, high = geom.pos[:2] - half, geom.pos[:2] + half
    if not ((low <= thing.position) & (thing.position <= high)).all():
        raise InputError(
            f"{where}: {thing.name} is at {list(thing.position)} m, outside {support}, which extends from "
            f"[{low[0]:g}, {low[1]:g}] to [{high[0]:g}, {high[1]:g}] m. Choose a position on it."
        )


def _support_height(mjspec: mujoco.MjSpec, support: str) -> float:
    geom = next(geom for geom in mjspec.geoms if geom.name == support)
    half = geom.size[2] if geom.type == mujoco.mjtGeom.mjGEOM_BOX else 0.0
    return float(geom.pos[2] + half)


def _extend_keys(mjspec: mujoco.MjSpec, count: int) -> None:
    """Extend the model's keyframes by the initial poses of the bodies that were added last.

    Args:
        mjspec: Model specification, changed in place.
        count: Number of free bodies that were added.
    """
    bodies = mjspec.worldbody.bodies[-count:] if count else []
    start = [np.concatenate([body.pos, body.quat]) for body in bodies]
    for key in mjspec.keys:
        if len(key.qpos):
            key.qpos = np.concatenate([key.qpos, *start])
        if len(key.qvel):
            key.qvel = np.concatenate([key.qvel, np.zeros(6 * count)])
