"""Where bodies are in frames, and at any moment between two of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.render.protocol import Fields, SceneStates
from twinloop.render.scene import PosedScene


@dataclass(frozen=True, kw_only=True)
class BodyMotion:
    """Poses of bodies in world axes in ``n`` frames: ``position`` ``(n, nbody, 3)``, ``quaternion`` wxyz."""

    position: NDArray[np.float64]
    quaternion: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.position)

    @classmethod
    def of(cls, model: mujoco.MjModel, states: SceneStates, fields: Fields | None = None) -> BodyMotion:
        """The poses of a model's bodies in every state.

        Args:
            fields: as `Renderer.render` takes them, of one world or one per frame.

        Raises:
            InputError: states or fields do not fit the model.
        """
        posed = PosedScene(model)
        posed.check(states)
        posed.set_fields(fields, len(states))
        position, quaternion = np.empty((len(states), model.nbody, 3)), np.empty((len(states), model.nbody, 4))
        for frame in range(len(states)):
            posed.pose(states, frame)
            position[frame], quaternion[frame] = posed.data.xpos, posed.data.xquat
        return cls(position=position, quaternion=quaternion)

    def at(
        self, body: int | NDArray[np.intp], moments: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Positions ``(k, 3)`` and quaternions ``(k, 4)`` of a body at moments ``(k,)``, counted in frames.

        Several bodies ``(k,)`` are each at its own moment, or all at one ``(1,)``.

        Between two frames a body moves straight on and turns about a fixed axis (Shoemake, "Animating rotation with
        quaternion curves", SIGGRAPH 1985).
        """
        first = np.minimum(moments.astype(np.intp), max(len(self) - 2, 0))
        second, part = np.minimum(first + 1, len(self) - 1), (moments - first)[:, None]
        before, after = self.position[first, body], self.position[second, body]
        turned = slerp(self.quaternion[first, body], self.quaternion[second, body], part)
        return before + part * (after - before), turned

    @cached_property
    def moving(self) -> NDArray[np.bool_]:
        """Which bodies ``(nbody,)`` are anywhere else in some frame than in the first."""
        parts = (self.position, self.quaternion)
        return np.any([(part != part[0]).any(axis=(0, 2)) for part in parts], axis=0)


def slerp(begin: NDArray[np.float64], end: NDArray[np.float64], part: NDArray[np.float64]) -> NDArray[np.float64]:
    """Unit quaternions ``(k, 4)`` on the shorter way from ``begin`` to ``end``, ``part`` ``(k, 1)`` of it."""
    cosine = (begin * end).sum(axis=-1, keepdims=True)
    end, cosine = np.where(cosine < 0.0, -end, end), np.minimum(np.abs(cosine), 1.0)
    angle = np.arccos(cosine)
    sine = np.sin(angle)
    near = sine < 1e-6  # there a chord and its arc are the same to the last bit
    safe = np.where(near, 1.0, sine)
    left = np.where(near, 1.0 - part, np.sin((1.0 - part) * angle) / safe)
    right = np.where(near, part, np.sin(part * angle) / safe)
    mixed = left * begin + right * end
    return mixed / np.sqrt((mixed**2).sum(axis=-1, keepdims=True))
