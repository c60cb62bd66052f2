"""The top of what things stand on, as each world has it."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.twin.quantities.rotation import rotate
from twinloop.twin.twin import Twin

_FLAT = {int(mujoco.mjtGeom.mjGEOM_BOX), int(mujoco.mjtGeom.mjGEOM_PLANE)}


@dataclass(frozen=True, kw_only=True)
class Surface:
    """A plane per world: a ``point`` on it, its upward unit ``normal`` and ``quaternion`` (wxyz), ``(nworld, …)``."""

    geom: int
    point: NDArray[np.float64]
    normal: NDArray[np.float64]
    quaternion: NDArray[np.float64]

    @classmethod
    def of(cls, twin: Twin, params: ParamTable, geom: str) -> Surface:
        """The top of a box, or a plane, that stands still in the world.

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
            raise InputError(f"Things stand on a box or a plane of the world itself, {geom} is none. Name another.")
        fields = twin.fields(params).arrays
        position, quaternion, size = (
            fields[name][:, index] if name in fields else np.tile(getattr(model, name)[index], (params.nworld, 1))
            for name in ("geom_pos", "geom_quat", "geom_size")
        )
        normal = rotate(quaternion, np.tile([0.0, 0.0, 1.0], (params.nworld, 1)))
        half = size[:, 2:] if model.geom_type[index] == mujoco.mjtGeom.mjGEOM_BOX else np.zeros((params.nworld, 1))
        return cls(geom=index, point=position + half * normal, normal=normal, quaternion=quaternion)

    def take(self, worlds: NDArray[np.intp]) -> Surface:
        """The surfaces of some worlds."""
        return Surface(
            geom=self.geom, point=self.point[worlds], normal=self.normal[worlds], quaternion=self.quaternion[worlds]
        )

    def height(self, xy: NDArray[np.float64]) -> NDArray[np.float64]:
        """Height of the plane at ``(nworld, …, 2)``."""
        extra = (slice(None), *(None,) * (xy.ndim - 2))
        slope = self.normal[extra][..., :2] / self.normal[extra][..., 2:]
        offset = xy - self.point[extra][..., :2]
        return self.point[extra][..., 2] - slope[..., 0] * offset[..., 0] - slope[..., 1] * offset[..., 1]
