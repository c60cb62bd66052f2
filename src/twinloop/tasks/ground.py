"""What the table of each world does to things that stand on it: raised, lowered, tilted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.twin import Twin
from twinloop.twin.quantities.rotation import quat_multiply
from twinloop.twin.surface import Surface

_SUPPORT = "table"


def stand(
    qpos: NDArray[np.float64], row: int, params: ParamTable, path: str, ground: Ground | None, *, yaw: float
) -> None:
    """Put a free body flat on the support of each world, in place.

    Args:
        qpos: positions of worlds ``(nworld, nq)`` in which the body lies on the compiled support.
        row: where the body's position begins in ``qpos``.
        path: what its parameters begin with: ``position/x``, ``position/y``, ``yaw``, ``size``, ``size/z``.
        yaw: nominal turn about the support's normal, in rad.
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
        qpos[:, row + 2] += ground.rise(qpos[:, row : row + 2]) + (ground.standing(half * scale) - half)
        quaternion = ground.turn(quaternion)
    qpos[:, row + 3 : row + 7] = quaternion


@dataclass(frozen=True, kw_only=True)
class Ground:
    """The support of every world beside that of the model as it was compiled. Where both agree, nothing changes."""

    surface: Surface
    nominal: Surface

    @classmethod
    def of(cls, twin: Twin, params: ParamTable) -> Ground | None:
        """The support that the twin's scene names, or its geom ``table``; None where it has neither."""
        support = twin.scene.spec.support if twin.scene else _SUPPORT
        model = twin.model
        if support not in {model.geom(i).name for i in range(model.ngeom)} or model.geom_bodyid[model.geom(support).id]:
            return None
        return cls(surface=Surface.of(twin, params, support), nominal=Surface.of(twin, twin.table(1), support))

    @cached_property
    def moved(self) -> NDArray[np.bool_]:
        """Worlds whose support is not where the model has it."""
        pairs = (self.surface.point != self.nominal.point, self.surface.quaternion != self.nominal.quaternion)
        return np.logical_or(*(pair.any(axis=1) for pair in pairs))

    def rise(self, xy: NDArray[np.float64]) -> NDArray[np.float64]:
        """How much higher the support is at ``(nworld, 2)``, in m."""
        nominal = self.nominal.take(np.zeros(len(xy), dtype=np.intp)).height(xy)
        return np.where(self.moved, self.surface.height(xy) - nominal, 0.0)

    def standing(self, half: NDArray[np.float64]) -> NDArray[np.float64]:
        """Height over the support, straight up, of the middle of things that lie flat on it, ``half`` as thick."""
        return np.where(self.moved, half / self.surface.normal[:, 2], half)

    def turn(self, quaternion: NDArray[np.float64]) -> NDArray[np.float64]:
        """Orientations ``(nworld, 4)`` of things that lie flat on the compiled support, as they lie on this one."""
        inverse = self.nominal.quaternion * [1.0, -1.0, -1.0, -1.0]
        turned = quat_multiply(quat_multiply(self.surface.quaternion, inverse), quaternion)
        return np.where(self.moved[:, None], turned, quaternion)
