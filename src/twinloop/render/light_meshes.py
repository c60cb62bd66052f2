"""Replace the heavy meshes of a model by simplified ones, for renderers whose time grows with the number of triangles.

Only arrays for drawing are changed, in a renderer's own copy of the model: vertices, normals and triangles of meshes
that visible geoms may have. Poses of geoms, masses and the shapes that collide are those of the model.
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.documents import read_arrays
from twinloop.core.errors import InputError
from twinloop.core.files import sha256_bytes, write_bytes
from twinloop.core.progress import track
from twinloop.render.simplify import Floats, Ints, expand_ranges, face_normals, simplify

LIGHT = 20_000  # mesh triangles that are drawn as they are: about 6 ms of an image with shadows on one core
_SMALL = 200  # triangles of a mesh that is not worth simplifying
_CREASE = 0.866  # cosine of 30°: normals of faces that meet at a larger angle are not averaged
_VERSION = b"1"  # of the algorithm; files of another version are not read
_MESH, _NO_USE = mujoco.mjtGeom.mjGEOM_MESH.value, 3  # geoms of groups 0 to 2 are drawn


def simplify_meshes(model: mujoco.MjModel, tolerance: float) -> dict[str, Any]:
    """Simplify the meshes of a model in place, if its visible geoms have more than 20,000 mesh triangles.

    Simplified meshes are stored in the user's cache folder, by the hash of mesh and tolerance.

    Args:
        model: compiled model, which must not be simulated afterwards.
        tolerance: largest distance of a mesh's vertices from the simplified mesh, in m; 0 to leave meshes unchanged.

    Returns:
        ``tolerance_m``, and the numbers of triangles of the visible geoms: ``triangles``, and ``original_triangles``;
        empty if nothing was simplified.
    """
    before = count_triangles(model)
    if not tolerance or before <= LIGHT:
        return {}
    heavy = [mesh for mesh in _find_visible_meshes(model) if model.mesh_facenum[mesh] >= _SMALL]
    for mesh in track(heavy, label="simplifying meshes"):
        _simplify_mesh(model, mesh, tolerance)
    return {"tolerance_m": tolerance, "triangles": count_triangles(model), "original_triangles": before}


def count_triangles(model: mujoco.MjModel) -> int:
    """Return the number of mesh triangles of the geoms that renderers show."""
    drawn = (model.geom_type == _MESH) & (model.geom_group < _NO_USE)
    return int(model.mesh_facenum[model.geom_dataid[drawn]].sum())


def _find_visible_meshes(model: mujoco.MjModel) -> list[int]:
    """Return the ids of the meshes that are not only used by hidden geoms; a world may give a geom an unused mesh."""
    of_mesh = model.geom_type == _MESH
    hidden = set(model.geom_dataid[of_mesh & (model.geom_group >= _NO_USE)].tolist())
    shown = set(model.geom_dataid[of_mesh & (model.geom_group < _NO_USE)].tolist())
    return [mesh for mesh in range(model.nmesh) if mesh in shown or mesh not in hidden]


@dataclass(frozen=True, kw_only=True)
class _MeshArrays:
    """A mesh whose equal vertices are one vertex: n vertices, m triangles.

    Attributes:
        vertices: positions in m, in the mesh's axes, ``(n, 3)``.
        faces: vertices of the triangles, ``(m, 3)``.
        normals: unit normals of the corners of the triangles, ``(m, 3, 3)``.
        texcoord: rows of the texture coordinates of the vertices, ``(n,)``; empty without texture coordinates.
        locked: vertices on a seam of the texture, which must remain, ``(n,)``.
    """

    vertices: Floats
    faces: Ints
    normals: Floats
    texcoord: Ints
    locked: NDArray[np.bool_]


def _read_mesh(model: mujoco.MjModel, mesh: int) -> _MeshArrays:
    rows = slice(model.mesh_faceadr[mesh], model.mesh_faceadr[mesh] + model.mesh_facenum[mesh])
    vertices = model.mesh_vert[model.mesh_vertadr[mesh] :][: model.mesh_vertnum[mesh]].astype(np.float64)
    normals = model.mesh_normal[model.mesh_normaladr[mesh] :][: model.mesh_normalnum[mesh]].astype(np.float64)
    positions, place = np.unique(vertices, axis=0, return_inverse=True)
    corner = place.reshape(-1)[model.mesh_face[rows]].ravel()
    if model.mesh_texcoordadr[mesh] < 0:
        return _MeshArrays(
            vertices=positions, faces=corner.reshape(-1, 3), normals=normals[model.mesh_facenormal[rows]],
            texcoord=np.empty(0, dtype=np.int64), locked=np.zeros(len(positions), dtype=bool),
        )  # fmt: skip
    pairs = np.stack([corner, model.mesh_facetexcoord[rows].ravel()], axis=1)
    wedges, faces = np.unique(pairs, axis=0, return_inverse=True)
    return _MeshArrays(
        vertices=positions[wedges[:, 0]], faces=faces.reshape(-1, 3), normals=normals[model.mesh_facenormal[rows]],
        texcoord=wedges[:, 1], locked=np.bincount(wedges[:, 0], minlength=len(positions))[wedges[:, 0]] > 1,
    )  # fmt: skip


def _simplify_mesh(model: mujoco.MjModel, mesh: int, tolerance: float) -> None:
    """Simplify one mesh in place, if the result fits into the arrays of the mesh."""
    given = _read_mesh(model, mesh)
    faces = _load_or_simplify(given, tolerance)
    used, corner = np.unique(faces, return_inverse=True)
    normals, normal_rows = np.unique(
        average_normals(given.vertices, given.faces, given.normals, faces).astype(np.float32).reshape(-1, 3),
        axis=0, return_inverse=True,
    )  # fmt: skip
    if len(used) > model.mesh_vertnum[mesh] or len(normals) > model.mesh_normalnum[mesh]:
        return
    first = model.mesh_faceadr[mesh]
    rows = slice(first, first + len(faces))
    model.mesh_vert[model.mesh_vertadr[mesh] :][: len(used)] = given.vertices[used]
    model.mesh_normal[model.mesh_normaladr[mesh] :][: len(normals)] = normals
    model.mesh_face[rows], model.mesh_facenormal[rows] = corner.reshape(-1, 3), normal_rows.reshape(-1, 3)
    if len(given.texcoord):
        model.mesh_facetexcoord[rows] = given.texcoord[faces]
    model.mesh_facenum[mesh], model.mesh_vertnum[mesh] = len(faces), len(used)
    model.mesh_normalnum[mesh] = len(normals)


def average_normals(vertices: Floats, faces: Ints, normals: Floats, simplified: Ints) -> Floats:
    """Return the normals of the corners of simplified triangles, ``(k, 3, 3)``.

    The normal of a corner is the mean of the mesh's normals at the same vertex that are within 30° of the simplified
    triangle's normal, weighted by the areas of their triangles; if there are none, it is the triangle's normal.

    Args:
        vertices: positions in m, ``(n, 3)``.
        faces: triangles of the given mesh, ``(m, 3)``.
        normals: normals of their corners, ``(m, 3, 3)``.
        simplified: triangles of the simplified mesh, ``(k, 3)``.
    """
    flat = face_normals(vertices, simplified)
    flat /= np.maximum(np.linalg.norm(flat, axis=1), 1e-30)[:, None]
    weighted = (normals * np.linalg.norm(face_normals(vertices, faces), axis=1)[:, None, None]).reshape(-1, 3)
    order = np.argsort(faces, axis=None, kind="stable")
    begin, end = (np.searchsorted(faces.ravel()[order], simplified.ravel(), side=side) for side in ("left", "right"))
    corner, place = expand_ranges(begin, end - begin)
    source = order[place]
    near = np.einsum("ij,ij->i", normals.reshape(-1, 3)[source], flat[corner // 3]) > _CREASE
    total = np.zeros((simplified.size, 3))
    np.add.at(total, corner[near], weighted[source[near]])
    length = np.linalg.norm(total, axis=1)
    mean = total / np.where(length > 0.0, length, 1.0)[:, None]
    return np.where(length[:, None] > 0.0, mean, np.repeat(flat, 3, axis=0)).reshape(-1, 3, 3)


def _load_or_simplify(given: _MeshArrays, tolerance: float) -> Ints:
    """Return the simplified triangles of a mesh from the user's cache folder; if they are missing, store them there."""
    parts = (given.vertices, given.faces, given.texcoord, np.float64(tolerance))
    key = sha256_bytes(_VERSION, *(np.ascontiguousarray(part).tobytes() for part in parts))
    path = cache_folder() / "meshes" / f"{key[:32]}.npz"
    stored = _load_faces(path, given)
    if stored is not None:
        return stored
    faces = simplify(given.vertices, given.faces, tolerance, locked=given.locked)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, faces=faces.astype(np.int32))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, buffer.getvalue())
    except OSError:
        pass  # the cache folder is not writable, so the next process simplifies again
    return faces


def _load_faces(path: Path, given: _MeshArrays) -> Ints | None:
    """Return the triangles in a file of the cache folder; None if the file is missing or does not fit the mesh."""
    try:
        faces = read_arrays(path, max_bytes=given.faces.nbytes + 4096, where=str(path))["faces"].astype(np.int64)
    except (InputError, OSError, KeyError):
        return None
    fits = faces.ndim == 2 and faces.shape[1] == 3 and len(faces) <= len(given.faces)
    return faces if fits and faces.size and faces.min() >= 0 and faces.max() < len(given.vertices) else None


def cache_folder() -> Path:
    """Return the folder in which twinloop stores results that can be computed again."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "twinloop"
