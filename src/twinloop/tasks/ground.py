"""Compute the table top of each world (height and tilt), and place objects on it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.twin import Twin
from twinloop.twin.quantities.rotation import quat_multiply, rotate_vectors

_FLAT = {int(mujoco.mjtGeom.mjGEOM_BOX), int(mujoco.mjtGeom.mjGEOM_PLANE)}


@dataclass(frozen=True, kw_only=True)
class GroundPlane:
    """Plane per world: ``point`` on it (m), upward unit ``normal`` and ``quaternion`` (wxyz), each ``(nworld, …)``."""

    geom: int
    point: NDArray[np.float64]
    normal: NDArray[np.float64]
    quaternion: NDArray[np.float64]

    @classmethod
    def of(cls, twin: Twin, params: ParamTable, geom: str) -> GroundPlane:
        """Return the top of a fixed box or plane.

        Raises:
            UnknownNameError: there is no such geom.
            InputError: it is neither box nor plane, or belongs to a body.
        """
        model = twin.model
        names = [model.geom(i).name for i in range(model.ngeom)]
        if geom not in names:
            raise UnknownNameError("geom", geom, [name for name in names if name], where=f"the twin {twin.name}")
        index = model.geom(geom).id
        if int(model.geom_type[index]) not in _FLAT or model.geom_bodyid[index]:
            raise InputError(
                f"Objects are placed on a box or a plane of the world itself, {geom} is none. Name another."
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
        """Return the planes of some worlds."""
        return GroundPlane(
            geom=self.geom, point=self.point[worlds], normal=self.normal[worlds], quaternion=self.quaternion[worlds]
        )

    def height(self, xy: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the height of the plane in m at points ``(nworld, …, 2)``."""
        extra = (slice(None), *(None,) * (xy.ndim - 2))
        slope = self.normal[extra][..., :2] / self.normal[extra][..., 2:]
        offset = xy - self.point[extra][..., :2]
        return self.point[extra][..., 2] - slope[..., 0] * offset[..., 0] - slope[..., 1] * offset[..., 1]


_SUPPORT = "table"


def place_on_support(
    qpos: NDArray[np.float64], row: int, params: ParamTable, path: str, ground: Ground | None, *, yaw: float
) -> None:
    """Place a free body flat on the support of each world, in place.

    Args:
        qpos: positions of worlds ``(nworld, nq)`` with the body on the compiled support.
        row: first index of the body's position in ``qpos``.
        path: prefix of its parameters: ``position/x``, ``position/y``, ``yaw``, ``size``, ``size/z``.
        yaw: nominal rotation about the support's normal, in rad.
    """
    home = qpos[:, row : row + 3].copy()
    for column, axis in enumerate("xy"):
        qpos[:, row + column] = params.get(f"{path}/position/{axis}", home[:, column])
    one = np.ones(params.nworld)
    half_yaw = 0.5 * params.get(f"{path}/yaw", yaw * one)
    quaternion = np.stack([np.cos(half_yaw), 0.0 * one, 0.0 * one, np.sin(half_yaw)], axis=1)
    if ground:
        flat = ground.nominal.take(np.zeros(len(qpos), dtype=np.intp))
        half = home[:, 2] - flat.height(home[:, :2])
        scale = params.get(f"{path}/size", one) * params.get(f"{path}/size/z", one)
        qpos[:, row + 2] += ground.height_change(qpos[:, row : row + 2]) + (ground.center_height(half * scale) - half)
        quaternion = ground.tilt_orientation(quaternion)
    qpos[:, row + 3 : row + 7] = quaternion


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Support of every world, and that of the compiled model (``nominal``)."""

    surface: GroundPlane
    nominal: GroundPlane

    @classmethod
    def of(cls, twin: Twin, params: ParamTable) -> Ground | None:
        """Return the support named by the twin's scene, or its geom ``table``; None without either."""
        support = twin.scene.spec.support if twin.scene else _SUPPORT
        model = twin.model
        if support not in {model.geom(i).name for i in range(model.ngeom)} or model.geom_bodyid[model.geom(support).id]:
            return None
        return cls(surface=GroundPlane.of(twin, params, support), nominal=GroundPlane.of(twin, twin.table(1), support))

    @cached_property
    def moved_mask(self) -> NDArray[np.bool_]:
        """Mask of the worlds whose support differs from the compiled model's, ``(nworld,)``."""
        pairs = (self.surface.point != self.nominal.point, self.surface.quaternion != self.nominal.quaternion)
        return np.logical_or(*(pair.any(axis=1) for pair in pairs))

    def height_change(self, xy: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the height of the support minus the nominal height at points ``(nworld, 2)``, ``(nworld,)`` in m."""
        nominal = self.nominal.take(np.zeros(len(xy), dtype=np.intp)).height(xy)
        return np.where(self.moved_mask, self.surface.height(xy) - nominal, 0.0)

    def center_height(self, half: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the vertical distance in m from the support to the centre of flat objects of half height ``half``."""
        return np.where(self.moved_mask, half / self.surface.normal[:, 2], half)

    def tilt_orientation(self, quaternion: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return orientations ``(nworld, 4)`` on this support of objects that are flat on the compiled one."""
        inverse = self.nominal.quaternion * [1.0, -1.0, -1.0, -1.0]
        turned = quat_multiply(quat_multiply(self.surface.quaternion, inverse), quaternion)
        return np.where(self.moved_mask[:, None], turned, quaternion)


@dataclass(frozen=True, kw_only=True)
class FreeBody:
    """Free body of a model: its first index in qpos and qvel, resting height and bounding radius in m."""

    qpos: int
    qvel: int
    rest_height: float
    radius: float

    @classmethod
    def of(cls, twin: Twin, name: str) -> FreeBody:
        """Return the free body with a name.

        Raises:
            UnknownNameError: no free body has that name.
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
