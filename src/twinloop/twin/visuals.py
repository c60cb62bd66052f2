"""Show bodies of a twin with the visual geoms of another model, such as the CAD meshes of the robot's maker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.twin.compiling import compile_model
from twinloop.twin.model_text import embed_files

_HIDDEN, _SHOWN = 3, 2  # groups of geoms; renderers show 0 to 2
_PREFIX = "visuals/"
_MATERIAL = ("rgba", "emission", "specular", "shininess", "reflectance", "metallic", "roughness")
_MESH = ("file", "scale", "refpos", "refquat", "smoothnormal", "inertia")


def replace_visuals(
    mjspec: mujoco.MjSpec, model: mujoco.MjModel, shown: mujoco.MjSpec, bodies: Mapping[str, str], *, where: str
) -> None:
    """Hide the visible geoms of bodies, and show those of another model's bodies in their places, in place.

    Bodies of equal names belong together. With all joints at zero, each body's new geoms are where the other model has
    them. The motion does not change: hidden geoms collide as before, and the new ones have neither mass nor contacts.
    Of a material with a texture, only the colour is kept.

    Args:
        mjspec: Model specification, changed in place.
        model: The model that it compiles to.
        shown: Specification of the other model; its file names are changed in place.
        bodies: Names of bodies of the other model, by the twin's body, where they differ.
        where: Name of the YAML file, for error messages.

    Raises:
        UnknownNameError: If one of the models has no such body.
        InputError: If no body belongs to another, or a file of the other model is missing.
    """
    files = embed_files(shown, owner=f"the visuals of {where}", prefix=_PREFIX)
    other = compile_model(shown)
    parts = {
        name: [geom for geom in shown.body(theirs).geoms if geom.group < _HIDDEN]
        for name, theirs in _pair_bodies(model, other, bodies, where).items()
    }
    mjspec.assets = {**mjspec.assets, **files}
    _copy_assets(mjspec, shown, [geom for geoms in parts.values() for geom in geoms])
    own_pose, other_pose = _pose_at_zero(model), _pose_at_zero(other)
    for name, geoms in parts.items():
        body = mjspec.body(name)
        for geom in body.geoms:
            geom.group = max(geom.group, _HIDDEN)
        place = _frame(own_pose.xpos[model.body(name).id], own_pose.xmat[model.body(name).id])
        for geom in geoms:
            _show(body, geom, np.linalg.inv(place) @ _written_pose(other, other_pose, geom.id))


def _pair_bodies(model: mujoco.MjModel, other: mujoco.MjModel, bodies: Mapping[str, str], where: str) -> dict[str, str]:
    """Return the other model's body of each body that has one."""
    own_names, other_names = ([each.body(i).name for i in range(1, each.nbody)] for each in (model, other))
    for wanted, existing in ((bodies, own_names), (bodies.values(), other_names)):
        for name in wanted:
            if name not in existing:
                raise UnknownNameError("body", name, existing, where=f"{where}: visuals.bodies")
    pairs = {name: bodies.get(name, name) for name in own_names if bodies.get(name, name) in other_names}
    if not pairs:
        raise InputError(
            f"{where}: visuals: no body of the twin ({', '.join(own_names)}) has the name of one of the other model "
            f"({', '.join(other_names)}). Name those that belong together in `bodies`."
        )
    return pairs


def _copy_assets(mjspec: mujoco.MjSpec, shown: mujoco.MjSpec, geoms: Sequence[mujoco.MjsGeom]) -> None:
    """Add the meshes and materials of geoms, without textures."""
    for mesh in shown.meshes:
        if any(geom.meshname == mesh.name for geom in geoms):
            mjspec.add_mesh(name=_PREFIX + mesh.name, **{key: getattr(mesh, key) for key in _MESH})
    for material in shown.materials:
        if any(geom.material == material.name for geom in geoms):
            mjspec.add_material(name=_PREFIX + material.name, **{key: getattr(material, key) for key in _MATERIAL})


def _show(body: mujoco.MjsBody, geom: mujoco.MjsGeom, pose: NDArray[np.float64]) -> None:
    """Add a copy of a geom that is only seen to a body, at a pose ``(4, 4)`` in the body's frame."""
    quaternion = np.zeros(4)
    mujoco.mju_mat2Quat(quaternion, pose[:3, :3].ravel())
    body.add_geom(
        type=geom.type,
        size=geom.size,
        rgba=geom.rgba,
        meshname=_PREFIX + geom.meshname if geom.meshname else "",
        material=_PREFIX + geom.material if geom.material else "",
        pos=pose[:3, 3],
        quat=quaternion,
        group=_SHOWN,
        mass=0.0,
        contype=0,
        conaffinity=0,
    )


def _pose_at_zero(model: mujoco.MjModel) -> mujoco.MjData:
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    return data


def _written_pose(model: mujoco.MjModel, data: mujoco.MjData, geom: int) -> NDArray[np.float64]:
    """Return the world pose ``(4, 4)`` of a geom as written; the compiler moves a mesh into its inertial frame."""
    pose, mesh = _frame(data.geom_xpos[geom], data.geom_xmat[geom]), int(model.geom_dataid[geom])
    if model.geom_type[geom] != mujoco.mjtGeom.mjGEOM_MESH:
        return pose
    turn = np.zeros(9)
    mujoco.mju_quat2Mat(turn, model.mesh_quat[mesh])
    return pose @ np.linalg.inv(_frame(model.mesh_pos[mesh], turn))


def _frame(position: NDArray[np.float64], rotation: NDArray[np.float64]) -> NDArray[np.float64]:
    made = np.eye(4)
    made[:3, :3], made[:3, 3] = rotation.reshape(3, 3), position
    return made
