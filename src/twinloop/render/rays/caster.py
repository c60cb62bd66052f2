"""Define the interface of ray casters (rays and body motion in, hits out), and compute the poses of moving bodies."""

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
    """Poses of all bodies of a model in ``n`` frames, in world axes.

    Attributes:
        position: positions of the body frames in m, ``(n, nbody, 3)``.
        quaternion: orientations of the body frames as quaternions wxyz, ``(n, nbody, 4)``.
    """

    position: NDArray[np.float64]
    quaternion: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.position)

    @classmethod
    def of(cls, model: mujoco.MjModel, states: SceneStates, fields: Fields | None = None) -> BodyMotion:
        """Compute the poses of a model's bodies in every state.

        Args:
            model: compiled model.
            states: n frames.
            fields: model fields of one world, or one value per frame; see `Renderer.render`.

        Raises:
            InputError: If the states or the fields do not fit the model.
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
        self, body: int | NDArray[np.intp], times: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return interpolated positions ``(k, 3)`` and quaternions wxyz ``(k, 4)`` of bodies at given times.

        Between two frames a body moves along a straight line and rotates about a fixed axis (slerp; Shoemake,
        "Animating rotation with quaternion curves", SIGGRAPH 1985).

        Args:
            body: id of one body, or ids ``(k,)`` of one body per time.
            times: times as fractional frame indices, such as 2.5 for the middle between frames 2 and 3: ``(k,)``, or
                ``(1,)`` for several bodies at the same time.
        """
        first = np.minimum(times.astype(np.intp), max(len(self) - 2, 0))
        second, part = np.minimum(first + 1, len(self) - 1), (times - first)[:, None]
        before, after = self.position[first, body], self.position[second, body]
        turned = slerp(self.quaternion[first, body], self.quaternion[second, body], part)
        return before + part * (after - before), turned

    @cached_property
    def moving_bodies(self) -> NDArray[np.bool_]:
        """Mask of the bodies whose pose in any frame differs from their pose in the first frame, ``(nbody,)``."""
        parts = (self.position, self.quaternion)
        return np.any([(part != part[0]).any(axis=(0, 2)) for part in parts], axis=0)


def slerp(begin: NDArray[np.float64], end: NDArray[np.float64], part: NDArray[np.float64]) -> NDArray[np.float64]:
    """Interpolate quaternions on the shorter arc (spherical linear interpolation).

    Args:
        begin, end: unit quaternions, ``(k, 4)``.
        part: fraction of the way from ``begin`` to ``end``, 0 to 1, ``(k, 1)``.

    Returns:
        Unit quaternions, ``(k, 4)``.
    """
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

    Attributes:
        distance: distance along the ray in m, ``(n,)``; inf for a ray that hits nothing.
        geom: id of the geom that was hit, ``(n,)``; -1 for none.
        normal: unit normal of the surface in world axes on the side of the ray's origin, ``(n, 3)``; 0 for no hit.
    """

    distance: NDArray[np.float64]
    geom: NDArray[np.int32]
    normal: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.distance)

    @classmethod
    def of_misses(cls, count: int) -> RayHits:
        """Return arrays for the hits of ``count`` rays, initialized to no hit, for an engine to fill."""
        return cls(
            distance=np.full(count, np.inf), geom=np.full(count, -1, dtype=np.int32), normal=np.zeros((count, 3))
        )


class RayCaster(Protocol):
    """Ray caster for one world of a model.

    Rays hit the geoms that cameras show, which are those in groups 0 to 2 that are not fully transparent. Rays do not
    hit flexes and skins. The same rays give the same hits, independent of earlier rays.

    Attributes:
        name: name of the engine.
    """

    name: str

    def cast(
        self,
        motion: BodyMotion,
        origins: ArrayLike,
        directions: ArrayLike,
        *,
        times: ArrayLike = 0.0,
        exclude: int = -1,
    ) -> RayHits:
        """Return the first hit of each ray; each ray may have its own time.

        Args:
            motion: poses of the bodies in some frames.
            origins: origins of the rays in world axes in m, ``(n, 3)``, or ``(3,)`` for all rays.
            directions: directions of the rays in world axes, ``(n, 3)``, of any length.
            times: times of the rays as fractional frame indices from 0, ``(n,)``, or one number for all rays; 3.25 is
                a quarter of the way from the fourth frame to the fifth.
            exclude: id of a body that rays pass through, such as the scanner's housing; -1 for none.

        Raises:
            InputError: If the shapes do not fit each other, a direction has length zero, or a time is before the first
                or after the last frame.
        """
        ...


def check_rays(
    motion: BodyMotion, origins: ArrayLike, directions: ArrayLike, times: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Check the rays of a call of `RayCaster.cast`, and give all of them the same form.

    Returns:
        Origins ``(n, 3)`` in m, unit directions ``(n, 3)`` and times ``(n,)`` in frames.

    Raises:
        InputError: If the rays are invalid; see `RayCaster.cast`.
    """
    toward = np.asarray(directions, dtype=np.float64)
    if toward.ndim != 2 or toward.shape[1] != 3:
        raise InputError(f"Directions of shape {toward.shape}. Give one row of three numbers for each ray.")
    try:
        begin = np.broadcast_to(np.asarray(origins, dtype=np.float64), toward.shape)
        when = np.broadcast_to(np.asarray(times, dtype=np.float64), len(toward))
    except ValueError:
        raise InputError(
            f"Origins of shape {np.shape(origins)} and times of shape {np.shape(times)} for {len(toward)} rays. "
            "Give one for all, or one for each."
        ) from None
    length = np.sqrt(np.einsum("ij,ij->i", toward, toward))[:, None]
    if not (np.isfinite(length).all() and np.isfinite(begin).all() and (length > 0.0).all()):
        raise InputError("A ray without a direction: origins and directions must be finite, and directions not zero.")
    if len(when) and not (when.min() >= 0.0 and when.max() <= len(motion) - 1):
        raise InputError(
            f"Rays have times from frame {when.min():g} to {when.max():g}, but the motion has frames 0 to "
            f"{len(motion) - 1}. Give times within them."
        )
    if len(begin) and (begin == begin[0]).all():
        begin = np.broadcast_to(begin[0], begin.shape)  # engines are faster for rays from one point
    return begin, toward / length, when


def visible_geoms(model: mujoco.MjModel) -> NDArray[np.intp]:
    """Return the ids of the geoms that rays hit, which are in visible groups and not fully transparent."""
    material = model.geom_matid
    opacity = np.where(material < 0, model.geom_rgba[:, 3], 1.0)
    opacity[material >= 0] = model.mat_rgba[material[material >= 0], 3]
    shown = mujoco.MjvOption().geomgroup[model.geom_group].astype(bool)
    return np.flatnonzero(shown & (opacity > 0.0))


CASTERS: Registry[Callable[[mujoco.MjModel, Fields | None], RayCaster]] = Registry(
    "ray caster",
    {"mujoco": "twinloop.render.rays.mujoco:MujocoCaster", "embree": "twinloop.render.rays.embree:EmbreeCaster"},
    listed_names=lambda: ("auto", "mujoco", "embree"),
)


def open_caster(name: str, model: mujoco.MjModel, fields: Fields | None = None) -> RayCaster:
    """Open a ray caster for one world.

    Args:
        name: ``embree`` (fast, needs `twinloop[rays]`), ``mujoco`` (always available), or ``auto`` for the faster one
            that is installed.
        model: compiled model.
        fields: model fields of the world, see `Renderer.render`; None for the model as compiled.

    Raises:
        UnknownNameError: If there is no such engine.
        MissingDependencyError: If the engine is not installed.
        InputError: If the engine does not support the shape of a geom, or the fields do not fit the model.
    """
    if name == "auto":
        name = "embree" if find_spec("embreex") else "mujoco"
    return CASTERS[name](model, fields)


def make_embree_error(error: ImportError) -> MissingDependencyError:
    """Return the error for a failed import of ``embreex``, with the command that installs it."""
    return MissingDependencyError(f"The ray caster embree needs embreex ({error}).", remedy=REMEDY)
