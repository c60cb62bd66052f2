"""Meshes from a person's files: read by MuJoCo, refused where no solid body can be made of them."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import ConvexHull, QhullError

from twinloop.core.errors import InputError
from twinloop.twin.model_limits import ENGINE_ERRORS, check_asset
from twinloop.twin.shapes import Piece, hull

_CONVEX = 0.97  # of the hull's volume: the rest is the faceting of round parts


def read_piece(path: Path, *, accept_hull: bool, where: str) -> Piece:
    """The convex piece in a mesh file (STL, OBJ, MSH), in the file's own coordinates.

    Args:
        accept_hull: take the convex hull of a mesh that has dents, which is what the engine collides anyway.

    Raises:
        InputError: no file, no mesh, a surface with holes or inside out, no volume, or not convex.
    """
    vertices, faces = _read(path, where)
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
            f"{where}: {path} is not convex: its hull, which is what would collide, is "
            f"{100 * (whole / volume - 1):.0f} % larger. Give its convex parts as `files: [a.stl, b.stl]`, "
            "or accept the hull with `hull: true`."
        )
    return hull(vertices)


def _read(path: Path, where: str) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise InputError(f"{where}: {path} {what}. Mesh files are looked up beside the twin's YAML.")
    check_asset(path)
    spec = mujoco.MjSpec()
    # Inertia of the shell asks nothing of the surface: what is wrong with it is said in our own words.
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
    return _merged(vertices, model.mesh_face)


def _merged(vertices: NDArray[np.float64], faces: NDArray[np.int32]) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """Vertices that lie on each other become one, faces without area go."""
    span = float(np.ptp(vertices, axis=0).max()) or 1.0
    keys = np.round(vertices / (1e-6 * span)).astype(np.int64)
    _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    joined = inverse.reshape(-1)[faces].astype(np.int32)
    proper = (joined[:, 0] != joined[:, 1]) & (joined[:, 1] != joined[:, 2]) & (joined[:, 2] != joined[:, 0])
    return vertices[first], joined[proper]


def _check_closed(faces: NDArray[np.int32], path: Path, where: str) -> None:
    """Every edge of a closed, oriented surface runs once each way."""
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
    """Signed volume by the divergence theorem."""
    a, b, c = (vertices[faces[:, i]] for i in range(3))
    return float((a * np.cross(b, c)).sum() / 6.0)
