"""Compute the table top of each world, whose height and tilt may be randomized, and place objects on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.simulate import InitialState
from twinloop.tasks.reaching import heading
from twinloop.twin import Twin
from twinloop.twin.quantities.rotation import quat_multiply, rotate_vectors

_FLAT = {int(mujoco.mjtGeom.mjGEOM_BOX), int(mujoco.mjtGeom.mjGEOM_PLANE)}


@dataclass(frozen=True, kw_only=True)
class GroundPlane:
    """Plane in every world, for example the table top.

    Attributes:
        geom: id of the geom whose top is the plane.
        point: a point on the plane, ``(nworld, 3)`` in m.
        normal: upward unit normal, ``(nworld, 3)``.
        quaternion: orientation of the geom (wxyz), ``(nworld, 4)``.
    """

    geom: int
    point: NDArray[np.float64]
    normal: NDArray[np.float64]
    quaternion: NDArray[np.float64]

    @classmethod
    def of(cls, twin: Twin, params: ParamTable, geom: str) -> GroundPlane:
        """Return the top of a fixed box or plane in every world.

        Args:
            twin: the twin.
            params: parameter values of the worlds.
            geom: name of the geom.

        Raises:
            UnknownNameError: If the geom does not exist.
            InputError: If the geom is neither box nor plane, or belongs to a body other than the world.
        """
        model = twin.model
        names = [model.geom(i).name for i in range(model.ngeom)]
        if geom not in names:
            raise UnknownNameError("geom", geom, [name for name in names if name], where=f"the twin {twin.name}")
        index = model.geom(geom).id
        if int(model.geom_type[index]) not in _FLAT or model.geom_bodyid[index]:
            raise InputError(
                f"Objects cannot be placed on {geom}: it is not a box or plane fixed to the world. Name another."
            )
        fields = twin.fields(params).arrays
        position, quaternion, size = (
            fields[name][:, index] if name in fields else np.tile(getattr(model, name)[index], (params.nworld, 1))
            for name in ("geom_pos", "geom_quat", "geom_size")
        )
        normal = rotate_vectors(quaternion, np.tile([0.0, 0.0, 1.0], (params.nworld, 1)))
        half = size[:, 2:] if model.geom_type[index] == mujoco.mjtGeom.mjGEOM_BOX else np.zeros((params.nworld, 1))
        return cls(geom=index, point=position + half * normal, normal=normal, quaternion=quaternion)

    def take(self, worlds: NDArray[np.intp]) -> GroundPlane:
        """Return the planes of the worlds with the given indices."""
        return GroundPlane(
            geom=self.geom, point=self.point[worlds], normal=self.normal[worlds], quaternion=self.quaternion[worlds]
        )

    def height(self, xy: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the height of the plane in m at horizontal positions ``(nworld, …, 2)``, as ``(nworld, …)``."""
        extra = (slice(None), *(None,) * (xy.ndim - 2))
        slope = self.normal[extra][..., :2] / self.normal[extra][..., 2:]
        offset = xy - self.point[extra][..., :2]
        return self.point[extra][..., 2] - slope[..., 0] * offset[..., 0] - slope[..., 1] * offset[..., 1]


_SUPPORT = "table"


def place_on_support(
    qpos: NDArray[np.float64], row: int, params: ParamTable, path: str, ground: Ground | None, *, yaw: float
) -> None:
    """Place a free body flat on the support (table) of each world, by its parameters; ``qpos`` is changed in place.

    Args:
        qpos: positions of worlds ``(nworld, nq)``, in which the body rests on the support of the nominal twin.
        row: first index of the body's position in ``qpos``.
        params: parameter values of the worlds.
        path: prefix of the body's parameters: ``position/x``, ``position/y``, ``yaw``, ``size``, ``size/z``.
        ground: support of every world; if None, the body's height stays nominal and the body is not tilted.
        yaw: nominal rotation about the support's normal, in rad.
    """
    home = qpos[:, row : row + 3].copy()
    for column, axis in enumerate("xy"):
        qpos[:, row + column] = params.get(f"{path}/position/{axis}", home[:, column])
    one = np.ones(params.nworld)
    quaternion = _upright(params.get(f"{path}/yaw", yaw * one))
    if ground:
        flat = ground.nominal.take(np.zeros(len(qpos), dtype=np.intp))
        half = home[:, 2] - flat.height(home[:, :2])
        scale = params.get(f"{path}/size", one) * params.get(f"{path}/size/z", one)
        qpos[:, row + 2] += ground.height_change(qpos[:, row : row + 2]) + (ground.center_height(half * scale) - half)
        quaternion = ground.tilt_orientation(quaternion)
    qpos[:, row + 3 : row + 7] = quaternion


def _upright(yaw: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the quaternions wxyz ``(nworld, 4)`` of rotations about the vertical, ``(nworld,)`` in rad."""
    return np.stack([np.cos(0.5 * yaw), 0.0 * yaw, 0.0 * yaw, np.sin(0.5 * yaw)], axis=1)


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Support (table) of objects in every world, and in the nominal twin.

    Attributes:
        surface: support of every world.
        nominal: support of the twin with nominal parameters, one world.
    """

    surface: GroundPlane
    nominal: GroundPlane

    @classmethod
    def of(cls, twin: Twin, params: ParamTable) -> Ground | None:
        """Return the support surface that the twin's scene names, or the geom ``table`` if the twin has no scene.

        Return None if this geom does not exist or belongs to a movable body.
        """
        support = twin.scene.spec.support if twin.scene else _SUPPORT
        model = twin.model
        if support not in {model.geom(i).name for i in range(model.ngeom)} or model.geom_bodyid[model.geom(support).id]:
            return None
        return cls(surface=GroundPlane.of(twin, params, support), nominal=GroundPlane.of(twin, twin.table(1), support))

    @cached_property
    def moved_mask(self) -> NDArray[np.bool_]:
        """Mask ``(nworld,)`` of the worlds whose support surface has another position or tilt than the nominal one."""
        pairs = (self.surface.point != self.nominal.point, self.surface.quaternion != self.nominal.quaternion)
        return np.logical_or(*(pair.any(axis=1) for pair in pairs))

    def height_change(self, xy: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the height of each world's support minus the nominal height, ``(nworld,)`` in m.

        ``xy`` ``(nworld, 2)`` are the horizontal positions at which the heights are compared.
        """
        nominal = self.nominal.take(np.zeros(len(xy), dtype=np.intp)).height(xy)
        return np.where(self.moved_mask, self.surface.height(xy) - nominal, 0.0)

    def center_height(self, half: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the vertical distance in m from the support to the centre of an object that rests flat on it.

        The result is ``(nworld,)``. On a tilted support it is larger than ``half``, which is half the object's height
        along the support's normal, ``(nworld,)`` in m.
        """
        return np.where(self.moved_mask, half / self.surface.normal[:, 2], half)

    def tilt_orientation(self, quaternion: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the orientations of objects after tilting them with each world's support, ``(nworld, 4)`` wxyz.

        ``quaternion`` are their orientations flat on the support of the nominal twin.
        """
        inverse = self.nominal.quaternion * [1.0, -1.0, -1.0, -1.0]
        turned = quat_multiply(quat_multiply(self.surface.quaternion, inverse), quaternion)
        return np.where(self.moved_mask[:, None], turned, quaternion)


def place_bodies(
    twin: Twin, params: ParamTable, initial: InitialState, *, objects: Mapping[str, int], targets: Mapping[str, int]
) -> InitialState:
    """Return initial states in which objects and targets are on the support of each world, as the parameters define.

    The permanent objects of the twin's scene are placed, too. An object that does not stand upright in the home pose
    stays there.

    Args:
        twin: the twin.
        params: parameter values of the worlds.
        initial: states of the worlds, with all bodies in the home pose.
        objects: first index in qpos of each free body to place, by name.
        targets: row in ``mocap_pos`` of each mocap body to place, by name.
    """
    qpos, position, quaternion = (getattr(initial, part).copy() for part in ("qpos", "mocap_pos", "mocap_quat"))
    ground, scene, home = Ground.of(twin, params), twin.scene, twin.home()[0]
    things = {
        name: (row, float(heading(home[row + 3 : row + 7])))
        for name, row in objects.items()
        if not home[row + 4 : row + 6].any()
    }
    if scene:
        rows = zip(scene.spec.objects, scene.qpos, strict=False)
        things |= {thing.name: (int(row), thing.yaw) for thing, row in rows}
    for name, (row, yaw) in things.items():
        place_on_support(qpos, row, params, f"object/{name}", ground, yaw=yaw)
    for name, row in targets.items():
        for column, axis in enumerate("xy"):
            position[:, row, column] = params.get(f"object/{name}/position/{axis}", position[:, row, column])
        if (path := f"object/{name}/yaw") in params:
            quaternion[:, row] = _upright(params[path])
        if ground:
            position[:, row, 2] += ground.height_change(position[:, row, :2])
            quaternion[:, row] = ground.tilt_orientation(quaternion[:, row])
    return replace(initial, qpos=qpos, mocap_pos=position, mocap_quat=quaternion)


@dataclass(frozen=True, kw_only=True)
class FreeBody:
    """Free body of a model.

    Attributes:
        qpos: first index of its pose in qpos.
        qvel: first index of its velocity in qvel.
        rest_height: height of its frame in the home pose, in m.
        radius: radius around its frame that contains all its geoms, in m.
    """

    qpos: int
    qvel: int
    rest_height: float
    radius: float

    @classmethod
    def of(cls, twin: Twin, name: str) -> FreeBody:
        """Return the free body with the given name.

        Raises:
            UnknownNameError: If no free body has that name.
        """
        model = twin.model
        free = {
            model.body(int(model.jnt_bodyid[joint])).name: joint
            for joint in np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)
        }
        if name not in free:
            raise UnknownNameError("free body", name, free, where=f"the twin {twin.name}")
        joint = free[name]
        qpos, _ = twin.home()
        geoms = np.flatnonzero(model.geom_bodyid == model.jnt_bodyid[joint])
        reach = np.linalg.norm(model.geom_pos[geoms], axis=1) + model.geom_rbound[geoms]
        row = int(model.jnt_qposadr[joint])
        return cls(
            qpos=row,
            qvel=int(model.jnt_dofadr[joint]),
            rest_height=float(qpos[row + 2]),
            radius=float(reach.max()),
        )


def count_equal_turns(twin: Twin, body: str) -> int:
    """Return by how many turns about the vertical a body looks the same: 4 for a cube, 1 for a shape without symmetry.

    A body of one cylinder, capsule or sphere looks the same from all sides, for which the result is 0.

    Args:
        twin: the twin.
        body: name of the body.
    """
    model = twin.model
    geoms = np.flatnonzero(model.geom_bodyid == model.body(body).id)
    seen = [geom for geom in geoms if model.geom_rgba[geom, 3] > 0 and model.geom_group[geom] <= _SHOWN]
    if len(seen) != 1:
        return 1
    kind, size = int(model.geom_type[seen[0]]), model.geom_size[seen[0]]
    round_shapes = (mujoco.mjtGeom.mjGEOM_CYLINDER, mujoco.mjtGeom.mjGEOM_CAPSULE, mujoco.mjtGeom.mjGEOM_SPHERE)
    if kind in [int(shape) for shape in round_shapes]:
        return 0
    if kind != int(mujoco.mjtGeom.mjGEOM_BOX):
        return 1
    return 4 if abs(size[0] - size[1]) <= 0.01 * size[0] else 2


_SHOWN = 2  # groups of geoms that are drawn: 0 to 2
