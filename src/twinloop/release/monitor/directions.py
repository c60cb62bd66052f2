"""Which faults of the drives the residuals speak for, as coefficients that forget."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
MEMORY_S = 2.0  # our choice: a reach of the SO-101, so that every joint has moved and a fault shows before it ends
_NOISE = 1e-3  # rad or m: what is left of a residual per control step where a twin is good; two thirds of a count
_USUAL = 2.0  # coefficients are taken to be of this size before anything is known


class Directions:
    """Ridge regression of each joint's residuals on what each hypothesis would have moved, over the last seconds.

    Args:
        shape: worlds, joints, hypotheses.
        control_hz: looks per second.
        memory_s: time after which a look counts 1/e.
    """

    def __init__(self, shape: tuple[int, int, int], control_hz: float, *, memory_s: float = MEMORY_S) -> None:
        self._keep = math.exp(-1.0 / (memory_s * control_hz))
        self._normal = np.zeros((*shape, shape[-1]))
        self._right = np.zeros(shape)
        self._prior = (_NOISE / _USUAL) ** 2 * np.eye(shape[-1])

    def restart(self, worlds: NDArray[np.intp]) -> None:
        """Forget some worlds."""
        self._normal[worlds] = self._right[worlds] = 0.0

    def look(self, residual: Array, moved: Array) -> Array:
        """Coefficients ``(nworld, n, nwrong)`` after residuals ``(nworld, n)`` and moves ``(nworld, n, nwrong)``."""
        self._normal = self._keep * self._normal + moved[..., :, None] * moved[..., None, :]
        self._right = self._keep * self._right + moved * residual[..., None]
        found = np.linalg.solve(self._normal + self._prior, self._right[..., None])
        return np.asarray(found[..., 0], dtype=np.float64)
