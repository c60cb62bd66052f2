"""Which shapes of a scene are closer than is to be kept: by distances, because contacts within a margin lose some."""

from __future__ import annotations

from collections.abc import Iterator

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


class Nearness:
    """Pairs of shapes that are closer than a distance of their own, where a model stands at some ``qpos``.

    MuJoCo's contacts do not say it: two boxes that stand diagonally to each other make none within their margin
    (MuJoCo 4.0: 9 mm apart under a margin of 25 mm). So bounding spheres tell which pairs may be near, and
    ``mj_geomDistance`` how near they are.

    Args:
        model: of the scene.
        keep: metres that a pair keeps, ``(ngeom, ngeom)`` or one for all; −inf for pairs that may meet. Pairs that the
            engine never lets collide (neighbouring links, excluded bodies, shapes to look at, both fixed) do not count.
    """

    def __init__(self, model: mujoco.MjModel, keep: ArrayLike) -> None:
        self._model, self._data = model, mujoco.MjData(model)
        kept = np.broadcast_to(np.asarray(keep, dtype=np.float64), (model.ngeom, model.ngeom))
        self._pairs = np.argwhere(np.triu(_collides(model) & np.isfinite(kept), k=1))
        self._keep = kept[tuple(self._pairs.T)]
        radii = np.where(model.geom_rbound > 0, model.geom_rbound, np.inf)  # a plane has no bounding sphere
        self._reach = radii[self._pairs].sum(axis=1) + self._keep
        self._planes = model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE

    @property
    def data(self) -> mujoco.MjData:
        """The scene as it was placed last."""
        return self._data

    def place(self, qpos: Array) -> None:
        """Stand at a position ``(nq,)``."""
        self._data.qpos[:] = qpos
        mujoco.mj_kinematics(self._model, self._data)

    def close(self) -> Iterator[tuple[int, int, float, float]]:
        """The pairs that are closer than they keep: both shapes, their distance and what is kept, m.

        Distances within a shape are negative, and no more than their sign is sure.
        """
        for at in np.flatnonzero(self._may_be_near()):
            first, second = (int(geom) for geom in self._pairs[at])
            keep = float(self._keep[at])
            distance = mujoco.mj_geomDistance(self._model, self._data, first, second, keep, None)
            if distance < keep:
                yield first, second, distance, keep

    def name(self, geom: int) -> str:
        """What a shape is called, or whose it is."""
        body = self._model.body(int(self._model.geom_bodyid[geom])).name
        return self._model.geom(geom).name or f"a shape of {body}"

    def _may_be_near(self) -> NDArray[np.bool_]:
        first, second = self._pairs.T
        apart = np.linalg.norm(self._data.geom_xpos[first] - self._data.geom_xpos[second], axis=1)
        near = apart < self._reach
        for one, other in ((first, second), (second, first)):
            plane = self._planes[one]
            normal = self._data.geom_xmat[one[plane]][:, 2::3]
            offset = self._data.geom_xpos[other[plane]] - self._data.geom_xpos[one[plane]]
            above = np.sum(normal * offset, axis=1) - self._model.geom_rbound[other[plane]]
            near[plane] = above < self._keep[plane]
        return near


def _collides(model: mujoco.MjModel) -> NDArray[np.bool_]:
    """Whether the engine lets two shapes collide, ``(ngeom, ngeom)``; the rules of MuJoCo's manual, "Collision"."""
    body = model.geom_bodyid
    weld = model.body_weldid[body]
    above = model.body_weldid[model.body_parentid[weld]]
    types, affinities = model.geom_contype, model.geom_conaffinity
    allowed = ((types[:, None] & affinities) | (affinities[:, None] & types)) != 0
    allowed &= weld[:, None] != weld
    if not model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_FILTERPARENT:
        related = (weld[:, None] == above) | (above[:, None] == weld)
        allowed &= ~(related & (weld[:, None] != 0) & (weld != 0))
    for signature in model.exclude_signature:
        one, other = int(signature) >> 16, int(signature) & 0xFFFF
        apart = (body == one)[:, None] & (body == other)
        allowed &= ~(apart | apart.T)
    for one, other in zip(model.pair_geom1, model.pair_geom2, strict=True):
        allowed[one, other] = allowed[other, one] = True
    return allowed
