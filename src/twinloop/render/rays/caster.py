"""Define the input and output of ray casters for moving bodies, and compute poses of bodies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Protocol

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.core.registry import Registry
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
        """Return the poses of a model's bodies in every state.

        Args:
            fields: model fields as for `Renderer.render`, of one world or one per frame.

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
        """Return positions ``(k, 3)`` and quaternions ``(k, 4)`` of a body at times ``(k,)``, counted in frames.

        Several bodies ``(k,)`` have one time each, or one ``(1,)`` for all.

        Between two frames a body moves straight and rotates about a fixed axis (Shoemake, "Animating rotation with
        quaternion curves", SIGGRAPH 1985).
        """
        first = np.minimum(moments.astype(np.intp), max(len(self) - 2, 0))
        second, part = np.minimum(first + 1, len(self) - 1), (moments - first)[:, None]
        before, after = self.position[first, body], self.position[second, body]
        turned = slerp(self.quaternion[first, body], self.quaternion[second, body], part)
        return before + part * (after - before), turned

    @cached_property
    def moving_bodies(self) -> NDArray[np.bool_]:
        """Bodies ``(nbody,)`` whose pose in any frame differs from the first."""
        parts = (self.position, self.quaternion)
        return np.any([(part != part[0]).any(axis=(0, 2)) for part in parts], axis=0)


def slerp(begin: NDArray[np.float64], end: NDArray[np.float64], part: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return quaternions ``(k, 4)`` at the share ``part`` ``(k, 1)`` of the shorter way from ``begin`` to ``end``."""
    cosine = (begin * end).sum(axis=-1, keepdims=True)
    end, cosine = np.where(cosine < 0.0, -end, end), np.minimum(np.abs(cosine), 1.0)
    angle = np.arccos(cosine)
    sine = np.sin(angle)
    near = sine < 1e-6  # a chord and its arc are then equal to the last bit
    safe = np.where(near, 1.0, sine)
    left = np.where(near, 1.0 - part, np.sin((1.0 - part) * angle) / safe)
    right = np.where(near, part, np.sin(part * angle) / safe)
    mixed = left * begin + right * end
    return mixed / np.sqrt((mixed**2).sum(axis=-1, keepdims=True))


REMEDY = "pip install 'twinloop[rays]'"


@dataclass(frozen=True, kw_only=True)
class RayHits:
    """First hits of ``n`` rays.

    ``distance`` ``(n,)`` is in m along the ray, inf without a hit; ``geom`` ``(n,)`` the model's geom id, -1 without
    one; ``normal`` ``(n, 3)`` the surface's unit normal on the ray's side, in world axes, 0 without one.
    """

    distance: NDArray[np.float64]
    geom: NDArray[np.int32]
    normal: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.distance)

    @classmethod
    def none(cls, count: int) -> RayHits:
        """Return hits of rays that hit nothing, whose arrays an engine fills."""
        return cls(
            distance=np.full(count, np.inf), geom=np.full(count, -1, dtype=np.int32), normal=np.zeros((count, 3))
        )


class RayCaster(Protocol):
    """Ray caster in one world of a model.

    Rays hit the geoms that cameras show: groups 0 to 2, not fully transparent. They do not hit flexes and skins. The
    same rays give the same hits, independent of earlier rays.
    """

    name: str

    def cast(
        self,
        motion: BodyMotion,
        origins: ArrayLike,
        directions: ArrayLike,
        *,
        moments: ArrayLike = 0.0,
        exclude: int = -1,
    ) -> RayHits:
        """Return the first hits of rays, each at its own time.

        Args:
            motion: poses of the bodies in some frames.
            origins: of the rays, in world axes, ``(n, 3)`` or ``(3,)`` in m.
            directions: of the rays, ``(n, 3)``; they are normalized.
            moments: the frame of each ray, ``(n,)`` or a number; 3.25 is a quarter of the way from the fourth frame to
                the fifth.
            exclude: id of a body that rays pass through, such as the scanner's housing; -1 for none.

        Raises:
            InputError: shapes that do not fit each other, a direction without length, a time before the first frame or
                after the last.
        """
        ...


def check_rays(
    motion: BodyMotion, origins: ArrayLike, directions: ArrayLike, moments: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Check rays; return origins ``(n, 3)``, unit directions ``(n, 3)`` and times ``(n,)``, see `RayCaster.cast`."""
    toward = np.asarray(directions, dtype=np.float64)
    if toward.ndim != 2 or toward.shape[1] != 3:
        raise InputError(f"Directions of shape {toward.shape}. Give one row of three numbers for each ray.")
    try:
        begin = np.broadcast_to(np.asarray(origins, dtype=np.float64), toward.shape)
        when = np.broadcast_to(np.asarray(moments, dtype=np.float64), len(toward))
    except ValueError:
        raise InputError(
            f"Origins of shape {np.shape(origins)} and moments of shape {np.shape(moments)} for {len(toward)} rays. "
            "Give one for all, or one for each."
        ) from None
    length = np.sqrt(np.einsum("ij,ij->i", toward, toward))[:, None]
    if not (np.isfinite(length).all() and np.isfinite(begin).all() and (length > 0.0).all()):
        raise InputError("A ray without a direction: origins and directions must be finite, and directions not zero.")
    if len(when) and not (when.min() >= 0.0 and when.max() <= len(motion) - 1):
        raise InputError(
            f"Rays of the moments {when.min():g} to {when.max():g}; the motion has the frames 0 to {len(motion) - 1}."
        )
    if len(begin) and (begin == begin[0]).all():
        begin = np.broadcast_to(begin[0], begin.shape)  # engines are faster for rays from one point
    return begin, toward / length, when


def visible_geoms(model: mujoco.MjModel) -> NDArray[np.intp]:
    """Return ids of the geoms that rays hit: those in MuJoCo's visible groups that are not fully transparent."""
    material = model.geom_matid
    opacity = np.where(material < 0, model.geom_rgba[:, 3], 1.0)
    opacity[material >= 0] = model.mat_rgba[material[material >= 0], 3]
    shown = mujoco.MjvOption().geomgroup[model.geom_group].astype(bool)
    return np.flatnonzero(shown & (opacity > 0.0))


CASTERS: Registry[Callable[[mujoco.MjModel, Fields | None], RayCaster]] = Registry(
    "ray caster",
    {"mujoco": "twinloop.render.rays.mujoco:MujocoCaster", "embree": "twinloop.render.rays.embree:EmbreeCaster"},
    shown=lambda: ("auto", "mujoco", "embree"),
)


def open_caster(name: str, model: mujoco.MjModel, fields: Fields | None = None) -> RayCaster:
    """Return a ray caster of one world.

    Args:
        name: ``embree`` (fast, `twinloop[rays]`), ``mujoco`` (always available), or ``auto`` for the fastest of these.
        fields: the world's model fields, as for `Renderer.render`; None for the model as compiled.

    Raises:
        UnknownNameError: there is no such engine.
        MissingDependencyError: it is not installed.
        InputError: a geom that the engine cannot cast at, or fields that do not fit the model.
    """
    if name == "auto":
        name = "embree" if find_spec("embreex") else "mujoco"
    return CASTERS[name](model, fields)


def make_embree_error(error: ImportError) -> MissingDependencyError:
    """Return the error if the fast engine is not installed."""
    return MissingDependencyError(f"The ray caster embree needs embreex ({error}).", remedy=REMEDY)
