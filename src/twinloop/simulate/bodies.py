"""Read the shapes of a model's bodies and their poses in recorded states, for exports to viewers."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.dataset.export.streams import BodyPoses, BodyShape
from twinloop.simulate.protocol import state_poses

_GEOM = mujoco.mjtGeom
_KINDS = {
    int(_GEOM.mjGEOM_BOX): "box",
    int(_GEOM.mjGEOM_SPHERE): "sphere",
    int(_GEOM.mjGEOM_ELLIPSOID): "ellipsoid",
    int(_GEOM.mjGEOM_CAPSULE): "capsule",
    int(_GEOM.mjGEOM_CYLINDER): "cylinder",
    int(_GEOM.mjGEOM_MESH): "mesh",
}
_HIDDEN = 3  # MuJoCo's viewer shows the geom groups 0 to 2


def model_bodies(model: mujoco.MjModel, states: NDArray[np.float64]) -> BodyPoses:
    """Return names, shapes and poses of all bodies in recorded states ``(T, nstate)``, excluding MuJoCo's world."""
    position, quaternion = _poses(model, states)
    names = tuple(model.body(i).name or f"body_{i}" for i in range(1, model.nbody))
    return BodyPoses(names=names, position=position, quaternion=quaternion, shapes=tuple(_shapes(model)))


def _poses(model: mujoco.MjModel, states: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the poses of all bodies in T recorded states; MuJoCo's world body is excluded.

    Returns:
        Positions ``(T, nbody - 1, 3)`` in m and quaternions wxyz ``(T, nbody - 1, 4)``.
    """
    data = mujoco.MjData(model)
    poses = state_poses(model, states)
    position, quaternion = (np.empty((len(states), model.nbody - 1, width)) for width in (3, 4))
    for frame in range(len(states)):
        data.qpos[:] = poses["qpos"][frame]
        data.mocap_pos.flat[:], data.mocap_quat.flat[:] = poses["mocap_pos"][frame], poses["mocap_quat"][frame]
        mujoco.mj_kinematics(model, data)
        position[frame], quaternion[frame] = data.xpos[1:], data.xquat[1:]
    return position, quaternion


def _shapes(model: mujoco.MjModel) -> Sequence[BodyShape]:
    """Return all geoms that MuJoCo's viewer shows by default, as shapes of their bodies.

    Geoms of MuJoCo's world body have the body name ``world``.
    """
    return [shape for geom in range(model.ngeom) if (shape := _shape(model, geom)) is not None]


def _shape(model: mujoco.MjModel, geom: int) -> BodyShape | None:
    kind, rgba = _KINDS.get(int(model.geom_type[geom])), model.geom_rgba[geom]
    if kind is None or model.geom_group[geom] >= _HIDDEN or not rgba[3] or not model.geom_size[geom].any():
        return None
    if (material := int(model.geom_matid[geom])) >= 0:
        rgba = model.mat_rgba[material]
    body = int(model.geom_bodyid[geom])
    vertices, faces = _mesh(model, int(model.geom_dataid[geom])) if kind == "mesh" else (None, None)
    return BodyShape(
        body=(model.body(body).name or f"body_{body}") if body else "world",
        kind=kind,  # pyright: ignore[reportArgumentType]
        size=tuple(model.geom_size[geom].tolist()),
        position=tuple(model.geom_pos[geom].tolist()),
        quaternion=tuple(model.geom_quat[geom].tolist()),
        rgba=tuple(rgba.tolist()),
        vertices=vertices,
        faces=faces,
    )


def _mesh(model: mujoco.MjModel, mesh: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    first, count = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
    start, faces = model.mesh_faceadr[mesh], model.mesh_facenum[mesh]
    return model.mesh_vert[first : first + count].copy(), model.mesh_face[start : start + faces].copy()
