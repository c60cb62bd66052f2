"""Compute triangles of MuJoCo's shapes for a path tracer, with normals and texture coordinates at each corner."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.render.mitsuba.textures import TextureMapping, cube_coordinates, sheet_coordinates, wrapped_coordinates
from twinloop.render.triangles import make_triangles

Array = NDArray[np.float64]
_KIND = mujoco.mjtGeom
_SMOOTH = {int(kind) for kind in (_KIND.mjGEOM_SPHERE, _KIND.mjGEOM_ELLIPSOID, _KIND.mjGEOM_CAPSULE)}
_LOOSE = {int(_KIND.mjGEOM_MESH), int(_KIND.mjGEOM_HFIELD)}
_FINE = 0.25  # longest side of a triangle with a cube texture, in half sides of the cube: our choice
_EDGE = 0.5  # cosine between a corner's normal and its triangle's, below which MuJoCo's smoothing is not used


@dataclass(frozen=True, kw_only=True)
class TriangleMesh:
    """Triangle mesh of a geom in its own axes, m triangles that share no corners.

    Attributes:
        positions: corners in m, ``(3 m, 3)``, triangle by triangle.
        normals: unit normals at the corners, ``(3 m, 3)``.
        uv: texture coordinates of the corners, ``(3 m, 2)``.
        flat: whether the normals are those of the triangles, for flat shading.
    """

    positions: Array
    normals: Array
    uv: Array
    flat: bool


def make_surface(model: mujoco.MjModel, geom: int, mapping: TextureMapping | None, *, reach: float) -> TriangleMesh:
    """Return the surface of a geom, with texture coordinates.

    Args:
        model: compiled model.
        geom: id of the geom.
        mapping: mapping of the geom's texture; None if it has none.
        reach: half of the side length in m at which an infinite plane is cut.

    Raises:
        InputError: If the shape has no triangles (a signed distance field).
    """
    corners, normals, texture = _corners(model, geom, reach)
    if mapping is not None and mapping.cube:
        corners, normals = _refine_triangles(corners, normals, _refinement_scale(model, geom, mapping))
    positions = corners.reshape(-1, 3)
    if mapping is None:
        uv = np.zeros((len(positions), 2))
    elif mapping.cube:
        uv = cube_coordinates(_texture_space(model, geom, corners) * _cube_scale(model, geom, mapping), mapping)
    else:
        uv = _sheet(model, geom, corners, texture, mapping)
    flat = normals is None
    normal = _face_normals(corners) if normals is None else normals.reshape(-1, 3)
    return TriangleMesh(positions=positions, normals=normal, uv=uv.reshape(-1, 2), flat=flat)


def _corners(model: mujoco.MjModel, geom: int, reach: float) -> tuple[Array, Array | None, Array | None]:
    """Return the triangles of a geom, m of them.

    Args:
        model: compiled model.
        geom: id of the geom.
        reach: half of the side length in m at which an infinite plane is cut.

    Returns:
        Corners ``(m, 3, 3)`` in m; normals ``(m, 3, 3)``, None if each triangle's own flat normal is used; texture
        coordinates ``(m, 3, 2)`` of a mesh that has them, else None.
    """
    kind, size = int(model.geom_type[geom]), model.geom_size[geom]
    if kind == _KIND.mjGEOM_PLANE:
        half = np.where(size[:2] > 0.0, size[:2], reach)
        sheet = np.array([[[-1, -1, 0], [1, -1, 0], [1, 1, 0]], [[-1, -1, 0], [1, 1, 0], [-1, 1, 0]]])
        return sheet * np.append(half, 0.0), None, None
    points, faces = make_triangles(model, geom)
    corners = points[faces]
    if kind == _KIND.mjGEOM_MESH:
        return corners, *_mesh(model, int(model.geom_dataid[geom]), corners)
    if kind in _SMOOTH:
        radii = size if kind == _KIND.mjGEOM_ELLIPSOID else size[[0, 0, 0]]
        half = size[1] if kind == _KIND.mjGEOM_CAPSULE else 0.0
        corners = corners[_have_area(corners)]
        return corners, _normalize((corners - np.clip(corners, *_segment(half))) / radii**2), None
    if kind == _KIND.mjGEOM_CYLINDER:
        corners = corners[_have_area(corners)]
        level = np.ptp(corners[..., 2], axis=1) < 1e-9 * size[1]
        normals = _normalize(corners * [1.0, 1.0, 0.0] + [0.0, 0.0, 1e-30])
        normals[level] = np.sign(corners[level][..., 2:]) * [0.0, 0.0, 1.0]
        return corners, normals, None
    if kind == _KIND.mjGEOM_HFIELD:
        normals = _height_field(model, int(model.geom_dataid[geom]), points, faces)
        there = _have_area(corners)
        return corners[there], normals[there], None
    return corners, None, None


def _segment(half: float) -> tuple[Array, Array]:
    return np.array([0.0, 0.0, -half]), np.array([0.0, 0.0, half])


def _have_area(corners: Array) -> NDArray[np.bool_]:
    """Return whether each triangle has an area, ``(m,)``.

    Triangles at the poles of a surface of revolution have none.
    """
    return np.linalg.norm(_cross(corners), axis=-1) > 1e-9 * np.ptp(corners, axis=(0, 1)).max() ** 2


def _mesh(model: mujoco.MjModel, mesh: int, corners: Array) -> tuple[Array, Array | None]:
    """Return normals ``(m, 3, 3)`` and texture coordinates ``(m, 3, 2)`` (None if it has none) of a mesh's m triangles.

    A vertex normal that is far from its triangle's normal, as at a sharp edge, is replaced by the triangle's normal.

    Args:
        model: compiled model.
        mesh: id of the mesh.
        corners: corners of the triangles, ``(m, 3, 3)``.
    """
    first = model.mesh_normaladr[mesh]
    rows = model.mesh_faceadr[mesh] + np.arange(len(corners))
    normals = model.mesh_normal[first + model.mesh_facenormal[rows]].astype(np.float64)
    flat = _face_normals(corners).reshape(-1, 3, 3)
    edge = np.einsum("mki,mki->mk", normals, flat) < _EDGE
    normals[edge] = flat[edge]
    if not model.mesh_texcoordnum[mesh]:
        return normals, None
    texture = model.mesh_texcoord[model.mesh_texcoordadr[mesh] + model.mesh_facetexcoord[rows]]
    return normals, texture.astype(np.float64)


def _height_field(model: mujoco.MjModel, field: int, points: Array, faces: NDArray[np.int32]) -> Array:
    """Return normals ``(m, 3, 3)`` of a height field: smooth on the upper surface, flat on the sides and the floor.

    Args:
        model: compiled model.
        field: id of the height field.
        points: vertices ``(n, 3)``.
        faces: vertex numbers of m triangles ``(m, 3)``; those of the upper surface come first.
    """
    upper = 2 * (int(model.hfield_nrow[field]) - 1) * (int(model.hfield_ncol[field]) - 1)
    smooth = np.zeros_like(points)
    np.add.at(smooth, faces[:upper], _cross(points[faces[:upper]])[:, None])
    flat = _face_normals(points[faces[upper:]]).reshape(-1, 3, 3)
    return np.concatenate([_normalize(smooth)[faces[:upper]], flat])


def _texture_space(model: mujoco.MjModel, geom: int, corners: Array) -> Array:
    """Return corners ``(m, 3, 3)`` of a geom after scaling the geom to ±1, as texture projection expects.

    Meshes and height fields are not scaled. The caps of a capsule are scaled separately from its tube.
    """
    kind, size = int(model.geom_type[geom]), model.geom_size[geom]
    if kind in _LOOSE:
        return corners
    if kind == _KIND.mjGEOM_CAPSULE:
        beyond = np.clip(corners, *_segment(float(size[1])))
        on_cap = np.abs(corners[..., 2:]) > size[1] * (1.0 + 1e-9)
        tube = corners / [size[0], size[0], size[1]]
        return np.where(on_cap.any(axis=1, keepdims=True), (corners - beyond) / size[0], tube)
    if kind == _KIND.mjGEOM_PLANE:
        return corners / np.append(np.where(size[:2] > 0.0, size[:2], 1.0), 1.0)
    full = {
        int(_KIND.mjGEOM_SPHERE): size[[0, 0, 0]],
        int(_KIND.mjGEOM_CYLINDER): size[[0, 0, 1]],
    }.get(kind, size)
    return corners / full


def _half_sizes(model: mujoco.MjModel, geom: int) -> Array:
    """Return the half sizes of a geom along its x, y and z, ``(3,)`` in m.

    MuJoCo stores only the radius of a sphere, and radius and half length of a cylinder or capsule (excluding its caps).
    """
    kind, size = int(model.geom_type[geom]), model.geom_size[geom]
    if kind == _KIND.mjGEOM_SPHERE:
        return size[[0, 0, 0]]
    return size[[0, 0, 1]] if kind in {int(_KIND.mjGEOM_CYLINDER), int(_KIND.mjGEOM_CAPSULE)} else size


def _sheet(
    model: mujoco.MjModel, geom: int, corners: Array, texture: Array | None, mapping: TextureMapping
) -> NDArray[np.float64]:
    """Return texture coordinates ``(m, 3, 2)`` at the corners of m triangles for a flat (2D) texture.

    A mesh that stores texture coordinates keeps them. On other meshes, height fields and infinite planes, the texture
    is projected along z. On all other shapes it is applied once to each side of a box or plane, or once around a round
    shape (`wrapped_coordinates`). The coordinates are then multiplied by the number of repetitions. With MuJoCo's
    ``texuniform``, the number of repetitions along x and y is multiplied by the geom's half sizes in m, as in MuJoCo.

    Args:
        model: compiled model.
        geom: id of the geom.
        corners: corners of the triangles, ``(m, 3, 3)``.
        texture: texture coordinates that the mesh stores; None if it has none.
        mapping: mapping of the texture.
    """
    kind, size = int(model.geom_type[geom]), _half_sizes(model, geom)[:2]
    repeat = np.array(mapping.repeat)
    scale = repeat * np.where(mapping.uniform & (size > 0.0), size, 1.0)
    if texture is None and (kind in _LOOSE or (kind == _KIND.mjGEOM_PLANE and not size.all())):
        return sheet_coordinates(corners, scale / np.where(size > 0.0, size, 1.0))
    if texture is None:
        texture = wrapped_coordinates(kind, _texture_space(model, geom, corners))
    return texture * scale


def _cube_scale(model: mujoco.MjModel, geom: int, mapping: TextureMapping) -> Array:
    return _half_sizes(model, geom) if mapping.uniform else np.ones(3)


def _refinement_scale(model: mujoco.MjModel, geom: int, mapping: TextureMapping) -> Array:
    """Return the factors for x, y and z ``(3,)`` that scale a geom's vertices so that it fits into the cube [−1, 1]³.

    `_refine_triangles` compares the sides of the scaled triangles with its limit.
    """
    scale = _cube_scale(model, geom, mapping)
    scale = scale / (1.0 if int(model.geom_type[geom]) in _LOOSE else _half_sizes(model, geom))
    return scale / max(float(np.abs(_extent(model, geom) * scale).max()), 1e-9)


def _extent(model: mujoco.MjModel, geom: int) -> Array:
    if int(model.geom_type[geom]) == _KIND.mjGEOM_MESH:
        return np.abs(make_triangles(model, geom)[0]).max(axis=0)
    return np.maximum(_half_sizes(model, geom), 1e-9)


def _refine_triangles(corners: Array, normals: Array | None, scale: Array) -> tuple[Array, Array | None]:
    """Divide triangles into four until their sides are short enough for a cube texture.

    A triangle can lie on one face of the cube only, so long triangles across an edge would show the wrong face.

    Args:
        corners: corners ``(m, 3, 3)``.
        normals: normals ``(m, 3, 3)``; None if each triangle's own flat normal is used.
        scale: factors ``(3,)`` for the corners. After scaling, no side may be longer than 0.25 (`_FINE`).
    """
    while True:
        sides = np.linalg.norm((np.roll(corners, -1, axis=1) - corners) * scale, axis=-1).max(axis=1)
        long = sides > _FINE
        if not long.any():
            return corners, normals
        rest = (
            None if normals is None else np.concatenate([normals[~long], _normalize(_quarter_triangles(normals[long]))])
        )
        corners, normals = np.concatenate([corners[~long], _quarter_triangles(corners[long])]), rest


def _quarter_triangles(values: Array) -> Array:
    """Return values at the corners of the four triangles that connect each triangle's corners and side midpoints.

    Args:
        values: values at the corners of m triangles, ``(m, 3, k)``.

    Returns:
        Values ``(4 m, 3, k)``.
    """
    middle = (values + np.roll(values, -1, axis=1)) / 2.0  # of sides 01, 12, 20
    a, b, c = values.transpose(1, 0, 2)
    ab, bc, ca = middle.transpose(1, 0, 2)
    parts = [(a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca)]
    return np.concatenate([np.stack(part, axis=1) for part in parts])


def _cross(corners: Array) -> Array:
    return np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])


def _face_normals(corners: Array) -> Array:
    return np.repeat(_normalize(_cross(corners)), 3, axis=0)


def _normalize(vectors: Array) -> Array:
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(length > 0.0, length, 1.0)
