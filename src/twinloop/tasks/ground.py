"""What the table of each world does to things that stand on it: raised, lowered, tilted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from twinloop.core.records import ParamTable
from twinloop.twin import Twin
from twinloop.twin.quantities.rotation import quat_multiply
from twinloop.twin.surface import Surface

_SUPPORT = "table"


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
