"""Create shapes of objects: primitives, random procedural bodies, compounds of convex pieces, and mesh files.

Every shape is centred on its bounding box, and its size is the extents of this box. Collision geometry, visual geometry
and the geometry of the inertia are the same: convex pieces that touch and do not overlap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import ConvexHull, QhullError

from twinloop.core.errors import InputError
from twinloop.core.records import freeze_array
from twinloop.core.seeds import generator
from twinloop.twin.model_limits import ENGINE_ERRORS, check_asset

PRIMITIVES = ("box", "cylinder", "sphere", "capsule", "ellipsoid")
Kind = str  # a primitive, or "mesh"

_WALLS = 8  # convex pieces of a round wall; more pieces cost simulation time
_RING = 16  # points around a superquadric, and half as many from pole to pole
_EQUAL = 1e-6  # relative difference below which extents count as equal


@dataclass(frozen=True, kw_only=True)
class ConvexPart:
    """One convex piece of a shape: a primitive, or the convex hull of points.

    Attributes:
        kind: Name of a primitive, or ``mesh`` for a convex hull.
        size: MuJoCo's ``geom_size`` of a primitive (half sizes in m), shape ``(3,)``; zeros for a hull.
        position: Position of the centre in the frame of the shape in m, shape ``(3,)``; zeros for a hull.
        vertices: Corners of a hull in the frame of the shape in m, shape ``(n, 3)``; None for a primitive.
    """

    kind: Kind
    size: NDArray[np.float64]
    position: NDArray[np.float64]
    vertices: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        for name in ("size", "position"):
            object.__setattr__(self, name, freeze_array(getattr(self, name)))
        if self.vertices is not None:
            object.__setattr__(self, "vertices", freeze_array(self.vertices))

    @property
    def half_extents(self) -> NDArray[np.float64]:
        """Half extents of a primitive's bounding box in m, shape ``(3,)``."""
        a, b, c = self.size
        return np.array(
            {"sphere": (a, a, a), "cylinder": (a, a, b), "capsule": (a, a, a + b)}.get(self.kind, (a, b, c))
        )

    @property
    def volume(self) -> float:
        """Volume in m³."""
        a, b, c = self.size
        if self.vertices is not None:
            return float(ConvexHull(self.vertices).volume)
        round_ends = 4.0 / 3.0 * math.pi * a**3
        return {
            "box": 8.0 * a * b * c,
            "cylinder": 2.0 * math.pi * a**2 * b,
            "sphere": round_ends,
            "capsule": round_ends + 2.0 * math.pi * a**2 * b,
            "ellipsoid": 4.0 / 3.0 * math.pi * a * b * c,
        }[self.kind]


@dataclass(frozen=True, kw_only=True)
class ObjectShape:
    """Shape, mass and colour of an object.

    Attributes:
        name: Name of the shape.
        pieces: Convex pieces.
        extents: Extents of the bounding box in m, shape ``(3,)``.
        mass: Mass in kg.
        rgba: Red, green, blue and opacity from 0 to 1.
    """

    name: str
    pieces: tuple[ConvexPart, ...]
    extents: NDArray[np.float64]
    mass: float
    rgba: tuple[float, float, float, float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "extents", freeze_array(self.extents))

    @property
    def volume(self) -> float:
        """Volume in m³."""
        return sum(piece.volume for piece in self.pieces)


def make_primitive(kind: str, extents: ArrayLike) -> tuple[ConvexPart, ...]:
    """Return a primitive shape that fills a bounding box; cylinders and capsules are upright.

    Args:
        kind: ``box``, ``cylinder``, ``sphere``, ``capsule`` or ``ellipsoid``.
        extents: Extents of the bounding box in m, shape ``(3,)``.

    Raises:
        InputError: If the primitive cannot fill the box: a sphere needs equal extents, a cylinder and a capsule need a
            square base, and a capsule must be higher than wide.
    """
    x, y, z = np.asarray(extents, dtype=np.float64)
    if kind == "sphere":
        _require_equal(kind, (x, y, z))
        size = (x / 2, 0.0, 0.0)
    elif kind in {"cylinder", "capsule"}:
        _require_equal(kind, (x, y))
        size = (x / 2, z / 2 if kind == "cylinder" else (z - x) / 2, 0.0)
        if size[1] <= 0:
            raise InputError(f"A capsule is upright: its height of {z:g} m must exceed its diameter of {x:g} m.")
    else:
        size = (x / 2, y / 2, z / 2)
    return (ConvexPart(kind=kind, size=np.array(size), position=np.zeros(3)),)


def _require_equal(kind: str, values: tuple[float, ...]) -> None:
    if max(values) - min(values) > _EQUAL * max(values):
        what = "equal extents" if len(values) == 3 else "equal extents in x and y"
        raise InputError(f"A {kind} needs {what}, given {', '.join(f'{v:g}' for v in values)} m. Use an ellipsoid.")


def make_hull(vertices: NDArray[np.float64]) -> ConvexPart:
    """Return the convex hull of points in m, shape ``(n, 3)``, as one piece of a shape."""
    corners = vertices[ConvexHull(vertices).vertices]
    return ConvexPart(kind="mesh", size=np.zeros(3), position=np.zeros(3), vertices=corners)


def prism(rng: np.random.Generator, *, sides: int | None = None, taper: float | None = None) -> tuple[ConvexPart, ...]:
    """Return a prism or truncated pyramid with a regular polygon as its base, of radius 1 and height 2.

    Args:
        rng: Random generator for the values that are not given.
        sides: Number of sides; by default 3 to 8.
        taper: Size of the top divided by the size of the base; by default 0.4 to 1.
    """
    sides = int(rng.integers(3, 9)) if sides is None else sides
    taper = float(rng.uniform(0.4, 1.0)) if taper is None else taper
    angle = 2 * np.pi * np.arange(sides) / sides
    base = np.stack([np.cos(angle), np.sin(angle), np.full(sides, -1.0)], axis=1)
    top = base * [taper, taper, -1.0]
    return (make_hull(np.concatenate([base, top])),)


def polyhedron(rng: np.random.Generator, *, corners: int | None = None) -> tuple[ConvexPart, ...]:
    """Return the convex hull of random points near a sphere, a shape like a stone.

    Args:
        rng: Random generator.
        corners: Number of points; by default 8 to 16.
    """
    corners = int(rng.integers(8, 17)) if corners is None else corners
    direction = rng.normal(size=(corners, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    return (make_hull(direction * rng.uniform(0.8, 1.0, size=(corners, 1))),)


def superquadric(rng: np.random.Generator, *, exponents: tuple[float, float] | None = None) -> tuple[ConvexPart, ...]:
    """Return a convex superellipsoid (A. H. Barr, "Superquadrics and angle-preserving transformations", 1981).

    Args:
        rng: Random generator for exponents that are not given.
        exponents: Exponents for vertical (north–south) and horizontal (east–west) sections, in (0, 2]; by default 0.2
            to 1.8. Exponents near 0 give a box, 1 an ellipsoid, 2 an octahedron.
    """
    north, east = rng.uniform(0.2, 1.8, size=2) if exponents is None else exponents
    eta = np.linspace(-np.pi / 2, np.pi / 2, _RING // 2 + 1)[:, None]
    omega = 2 * np.pi * np.arange(_RING) / _RING + np.pi / _RING

    def power(value: NDArray[np.float64], exponent: float) -> NDArray[np.float64]:
        return np.sign(value) * np.abs(value) ** exponent

    points = np.stack(
        [
            power(np.cos(eta), north) * power(np.cos(omega), east),
            power(np.cos(eta), north) * power(np.sin(omega), east),
            power(np.sin(eta), north) + 0.0 * omega,
        ],
        axis=-1,
    )
    return (make_hull(np.unique(np.round(points.reshape(-1, 3), 12), axis=0)),)


def l_shape(rng: np.random.Generator, *, thickness: float | None = None) -> tuple[ConvexPart, ...]:
    """Return an L-shaped body of two boxes, with a bounding box of 2 × 2 × 2.

    Args:
        rng: Random generator for a thickness that is not given.
        thickness: Thickness of both arms as a fraction of the extents; by default 0.3 to 0.5.
    """
    part = float(rng.uniform(0.3, 0.5)) if thickness is None else thickness
    foot = _box((-1.0, -1.0, -1.0), (1.0, 1.0, -1.0 + 2 * part))
    arm = _box((-1.0, -1.0, -1.0 + 2 * part), (-1.0 + 2 * part, 1.0, 1.0))
    return foot, arm


def mug(rng: np.random.Generator, *, wall: float | None = None) -> tuple[ConvexPart, ...]:
    """Return a cup with a floor, a round wall of eight convex pieces, and a handle of three bars.

    Args:
        rng: Random generator for a wall thickness that is not given.
        wall: Wall thickness as a fraction of the radius; by default 0.1 to 0.2.
    """
    wall = float(rng.uniform(0.1, 0.2)) if wall is None else wall
    step = 2 * np.pi / _WALLS
    floor = -1.0 + 1.5 * wall
    angle = step * np.arange(_WALLS)
    ring = np.stack([np.cos(angle), np.sin(angle)], axis=1)

    def slab(outline: NDArray[np.float64], low: float, high: float) -> ConvexPart:
        return make_hull(np.concatenate([np.c_[outline, np.full(len(outline), z)] for z in (low, high)]))

    pieces = [slab(ring, -1.0, floor)]
    for i in range(_WALLS):
        a, b = ring[i], ring[(i + 1) % _WALLS]
        pieces.append(slab(np.array([a, b, b * (1 - wall), a * (1 - wall)]), floor, 1.0))
    bar, reach = 0.8 * wall, 1.7
    pieces += [
        _box((1.0, -bar, -0.5), (reach, bar, -0.5 + 2 * bar)),
        _box((1.0, -bar, 0.5 - 2 * bar), (reach, bar, 0.5)),
        _box((reach, -bar, -0.5), (reach + 2 * bar, bar, 0.5)),
    ]
    return tuple(pieces)


def _box(low: tuple[float, float, float], high: tuple[float, float, float]) -> ConvexPart:
    a, b = np.array(low), np.array(high)
    return ConvexPart(kind="box", size=(b - a) / 2, position=(a + b) / 2)


PROCEDURAL: dict[str, Callable[..., tuple[ConvexPart, ...]]] = {
    "prism": prism,
    "polyhedron": polyhedron,
    "superquadric": superquadric,
    "ell": l_shape,
    "mug": mug,
}


def fit_pieces(pieces: tuple[ConvexPart, ...], extents: ArrayLike) -> tuple[ConvexPart, ...]:
    """Scale the convex pieces of a shape per axis and centre them, so that they fill a bounding box.

    Args:
        pieces: Convex pieces.
        extents: Extents of the bounding box in m, shape ``(3,)``.
    """
    low, high = bounding_box(pieces)
    scale = np.asarray(extents, dtype=np.float64) / (high - low)
    centre = (low + high) / 2
    return tuple(_move_piece(piece, scale, centre) for piece in pieces)


def bounding_box(pieces: tuple[ConvexPart, ...]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the lower and the upper corner of the bounding box of convex pieces, each of shape ``(3,)`` in m."""
    corners = np.concatenate(list(_corners(pieces)))
    return corners.min(axis=0), corners.max(axis=0)


def _corners(pieces: tuple[ConvexPart, ...]) -> Iterator[NDArray[np.float64]]:
    for piece in pieces:
        vertices = np.array([-piece.half_extents, piece.half_extents]) if piece.vertices is None else piece.vertices
        yield vertices + piece.position


def _move_piece(piece: ConvexPart, scale: NDArray[np.float64], centre: NDArray[np.float64]) -> ConvexPart:
    position = (piece.position - centre) * scale
    if piece.vertices is not None:
        vertices = piece.vertices * scale + position
        return replace(piece, vertices=vertices, position=np.zeros(3))
    return replace(piece, size=piece.size * scale, position=position)


def make_procedural(
    kind: str, extents: ArrayLike, *, seed: int, index: int = 0, **options: float | int | tuple[float, float]
) -> tuple[ConvexPart, ...]:
    """Return a random procedural shape that fills a bounding box.

    The shape depends only on the arguments, so the same arguments always give the same shape.

    Args:
        kind: ``prism``, ``polyhedron``, ``superquadric``, ``ell`` or ``mug``.
        extents: Extents of the bounding box in m, shape ``(3,)``.
        seed: Seed of the random values.
        index: Number of the variant with this seed.
        **options: Further arguments of the function of this kind, for example ``sides`` of `prism`.
    """
    return fit_pieces(PROCEDURAL[kind](generator(seed, f"shape/{kind}", index), **options), extents)


_CONVEX = 0.97  # smallest volume relative to the hull that counts as convex; flat faces of round parts reduce it


def read_piece(path: Path, *, accept_hull: bool, where: str) -> ConvexPart:
    """Return the convex piece in a mesh file (STL, OBJ, MSH), in the file's coordinates.

    Args:
        path: Mesh file.
        accept_hull: Whether a mesh that is not convex is replaced by its convex hull, as MuJoCo does for collisions;
            otherwise it is an error.
        where: Location of the shape in the YAML, for error messages.

    Raises:
        InputError: If the file is missing or not a mesh, or if its surface is open, inside out, flat or not convex.
    """
    vertices, faces = _read_mesh(path, where)
    _check_closed(faces, path, where)
    volume = _volume(vertices, faces)
    if volume <= 0:
        raise InputError(f"{where}: {path} encloses {volume:g} m³: its faces point inwards. Flip its normals.")
    try:
        whole = float(ConvexHull(vertices).volume)
    except QhullError:
        raise InputError(f"{where}: {path} is flat. A solid body needs an extent in every direction.") from None
    if not accept_hull and volume < _CONVEX * whole:
        raise InputError(
            f"{where}: {path} is not convex: its hull, which MuJoCo uses for collisions, is "
            f"{100 * (whole / volume - 1):.0f} % larger. Give its convex parts as `files: [a.stl, b.stl]`, "
            "or accept the hull with `hull: true`."
        )
    return make_hull(vertices)


def _read_mesh(path: Path, where: str) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise InputError(f"{where}: {path} {what}. Mesh files are searched in the folder of the twin's YAML.")
    check_asset(path)
    spec = mujoco.MjSpec()
    # Shell inertia accepts any surface; our own checks below report errors of the surface.
    spec.add_mesh(name="mesh", file=str(path.resolve()), inertia=mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL)
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_MESH, meshname="mesh")
    try:
        model = spec.compile()
    except ENGINE_ERRORS as error:
        message = " ".join(str(error).split())
        raise InputError(f"{where}: {path} is not a mesh that MuJoCo reads: {message}") from error
    turn = np.empty(9)
    mujoco.mju_quat2Mat(turn, model.mesh_quat[0])
    vertices = model.mesh_vert.astype(np.float64) @ turn.reshape(3, 3).T + model.mesh_pos[0]
    return _merge_vertices(vertices, model.mesh_face)


def _merge_vertices(
    vertices: NDArray[np.float64], faces: NDArray[np.int32]
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """Merge vertices at the same position, and remove faces without area.

    Args:
        vertices: Positions in m, shape ``(nvertex, 3)``.
        faces: Vertex indices of triangles, shape ``(nface, 3)``.

    Returns:
        The remaining vertices and faces.
    """
    span = float(np.ptp(vertices, axis=0).max()) or 1.0
    keys = np.round(vertices / (1e-6 * span)).astype(np.int64)
    _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    joined = inverse.reshape(-1)[faces].astype(np.int32)
    proper = (joined[:, 0] != joined[:, 1]) & (joined[:, 1] != joined[:, 2]) & (joined[:, 2] != joined[:, 0])
    return vertices[first], joined[proper]


def _check_closed(faces: NDArray[np.int32], path: Path, where: str) -> None:
    """Raise `InputError` unless every edge occurs once in each direction.

    This is so on a closed surface with consistent normals.

    Args:
        faces: Vertex indices of triangles, shape ``(nface, 3)``.
        path: Mesh file, for error messages.
        where: Location of the shape in the YAML, for error messages.
    """
    edges = np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]).astype(np.int64)
    count = int(edges.max()) + 1
    forward, backward = edges[:, 0] * count + edges[:, 1], edges[:, 1] * count + edges[:, 0]
    unpaired = int((~np.isin(forward, backward)).sum()) + len(forward) - len(np.unique(forward))
    if unpaired:
        raise InputError(
            f"{where}: {path} is not watertight: {unpaired} of its {len(edges) // 2} edges do not join two faces. "
            "Close its holes in a mesh editor."
        )


def _volume(vertices: NDArray[np.float64], faces: NDArray[np.int32]) -> float:
    """Return the signed volume of a closed triangle mesh in m³, by the divergence theorem.

    Args:
        vertices: Positions in m, shape ``(nvertex, 3)``.
        faces: Vertex indices of triangles, shape ``(nface, 3)``.
    """
    a, b, c = (vertices[faces[:, i]] for i in range(3))
    return float((a * np.cross(b, c)).sum() / 6.0)
