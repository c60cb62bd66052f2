"""Cast rays with Intel's Embree (package ``embreex``) at triangle meshes, one bounding volume hierarchy per body.

Each ray is transformed into each body's axes at the ray's own time. So nothing is rebuilt when bodies move, and a scan
in which every ray has a different time is as exact as an image.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.render.protocol import Fields
from twinloop.render.rays.caster import BodyMotion, RayHits, check_rays, make_embree_error, visible_geoms
from twinloop.render.scene import PosedScene
from twinloop.render.triangles import CHORD, make_triangles
from twinloop.twin.quantities.rotation import rotate_vectors, rotation_matrix

_UPRIGHT = np.array([1.0, 0.0, 0.0, 0.0])
_CONJUGATE = np.array([1.0, -1.0, -1.0, -1.0])
_PLANE = mujoco.mjtGeom.mjGEOM_PLANE


@dataclass(frozen=True, kw_only=True)
class _EmbreeBody:
    """Triangle mesh of one body for Embree, with a bounding sphere.

    Attributes:
        body: id of the body.
        scene: Embree scene in the body's axes.
        geoms: geom ids in the order of the scene's meshes.
        centre: centre of the sphere in the body's axes, ``(3,)`` in m.
        radius: radius of the sphere in m.
    """

    body: int
    scene: Any
    geoms: NDArray[np.int32]
    centre: NDArray[np.float64]
    radius: float

    def bounding_sphere(self, motion: BodyMotion, when: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        """Return a sphere that contains the body at the times of all rays.

        Args:
            motion: poses of the bodies.
            when: times of the rays in frames, ``(n,)``.

        Returns:
            Centre ``(1, 3)`` in world axes and radius, both in m.
        """
        first, last = float(when.min()), float(when.max())
        if first == last or not motion.moving_bodies[self.body]:
            return _MovingPose.of(motion, self.body, when[:1]).transform_point(self.centre), self.radius
        # Under any rotation the body stays this close to its origin, which moves on straight lines between frames.
        near = float(np.sqrt(self.centre @ self.centre)) + self.radius
        way = motion.position[int(first) : int(np.ceil(last)) + 1, self.body]
        middle = (way.min(axis=0) + way.max(axis=0)) / 2.0
        return middle[None], near + float(np.sqrt(((way - middle) ** 2).sum(axis=1).max()))


class EmbreeCaster:
    """Ray caster that replaces round shapes by triangles inside them; planes are exact.

    Args:
        model: compiled model.
        fields: model fields of the world; None for the model as compiled.
        chord: largest distance in m between a round shape and its triangles; by default 0.1 mm.

    Raises:
        MissingDependencyError: If ``embreex`` is not installed.
        InputError: If the shape of a geom has no triangles.
    """

    name = "embree"

    def __init__(self, model: mujoco.MjModel, fields: Fields | None = None, *, chord: float = CHORD) -> None:
        posed = PosedScene(model)
        posed.set_fields(fields)
        self._model = posed.model
        shown = visible_geoms(self._model)
        flat = self._model.geom_type[shown] == _PLANE
        self._planes, self._solids = shown[flat], list(_make_bodies(self._model, shown[~flat], chord))

    def cast(
        self,
        motion: BodyMotion,
        origins: ArrayLike,
        directions: ArrayLike,
        *,
        times: ArrayLike = 0.0,
        exclude: int = -1,
    ) -> RayHits:
        """Return the first hit of each ray; see `RayCaster.cast`."""
        begin, toward, when = check_rays(motion, origins, directions, times)
        hits = RayHits.of_misses(len(toward))
        if not len(toward):
            return hits
        for solid in self._solids:
            if solid.body != exclude:
                self._cast_solid(solid, motion, begin, toward, when, hits)
        for plane in self._planes:
            if self._model.geom_bodyid[plane] != exclude:
                self._cast_plane(int(plane), motion, begin, toward, when, hits)
        return hits

    def _cast_solid(
        self,
        solid: _EmbreeBody,
        motion: BodyMotion,
        begin: NDArray[np.float64],
        toward: NDArray[np.float64],
        when: NDArray[np.float64],
        hits: RayHits,
    ) -> None:
        centre, radius = solid.bounding_sphere(motion, when)
        offset = centre - (begin[:1] if begin.strides[0] == 0 else begin)
        along = toward @ offset[0] if len(offset) == 1 else np.einsum("ij,ij->i", offset, toward)
        distance2, radius2 = np.einsum("ij,ij->i", offset, offset), radius**2
        rows = np.flatnonzero(
            (along**2 >= distance2 - radius2)
            & ((distance2 <= radius2) | (along > 0.0))
            & (along - radius < hits.distance)
        )
        if not len(rows):
            return
        body = _MovingPose.of(motion, solid.body, when[rows])
        # Embree's rays begin at the sphere's border, so that its float32 error does not grow with the distance.
        enter = np.maximum(along[rows] - 1.001 * radius, 0.0)
        start = body.to_body(begin[rows] + enter[:, None] * toward[rows]).astype(np.float32)
        inward = body.rotate_to_body(toward[rows]).astype(np.float32)
        found = solid.scene.run(start, inward, output=True)
        distance = enter + found["tfar"]
        nearer = (found["primID"] >= 0) & (distance < hits.distance[rows])
        rows, body = rows[nearer], body.take(nearer)
        normal, inward = found["Ng"][nearer].astype(np.float64), inward[nearer]
        length = np.sqrt(np.einsum("ij,ij->i", normal, normal))
        length[np.einsum("ij,ij->i", normal, inward) > 0.0] *= -1.0
        hits.distance[rows] = distance[nearer]
        hits.geom[rows] = solid.geoms[found["geomID"][nearer]]
        hits.normal[rows] = body.rotate_to_world(normal / length[:, None])

    def _cast_plane(
        self,
        geom: int,
        motion: BodyMotion,
        begin: NDArray[np.float64],
        toward: NDArray[np.float64],
        when: NDArray[np.float64],
        hits: RayHits,
    ) -> None:
        """Update the hits of rays that hit a plane from its front; a plane of size 0 is infinite.

        Args:
            geom: id of the plane.
            motion: poses of the bodies.
            begin, toward: origins in m and unit directions of the rays in world axes, ``(n, 3)``.
            when: times of the rays in frames, ``(n,)``.
            hits: hits so far, changed in place.
        """
        model = self._model
        body = _MovingPose.of(motion, int(model.geom_bodyid[geom]), when)
        axes = rotation_matrix(model.geom_quat[geom])
        up = body.rotate_to_world(np.broadcast_to(axes[:, 2], body.position.shape))
        height = np.einsum(
            "ij,ij->i", begin - body.transform_point(model.geom_pos[geom]), np.broadcast_to(up, begin.shape)
        )
        down = -(toward @ up[0] if len(up) == 1 else np.einsum("ij,ij->i", toward, up))
        rows = np.flatnonzero((down > 0.0) & (height >= 0.0) & (height < hits.distance * down))
        distance, body = height[rows] / down[rows], body.take(rows)
        point = body.to_body(begin[rows] + distance[:, None] * toward[rows]) - model.geom_pos[geom]
        half = model.geom_size[geom, :2]
        within = ((half <= 0.0) | (np.abs(point @ axes[:, :2]) <= half)).all(axis=1)
        rows = rows[within]
        hits.distance[rows], hits.geom[rows] = distance[within], geom
        hits.normal[rows] = np.broadcast_to(up, (len(within), 3))[within] if len(up) == 1 else up[rows]


@dataclass(frozen=True, kw_only=True)
class _MovingPose:
    """Pose of one body at the time of each ray.

    Attributes:
        position: positions in m, ``(n, 3)``; ``(1, 3)`` if the pose is the same for all rays.
        quaternion: quaternions wxyz, ``(n, 4)`` or ``(1, 4)``.
    """

    position: NDArray[np.float64]
    quaternion: NDArray[np.float64]

    @classmethod
    def of(cls, motion: BodyMotion, body: int, when: NDArray[np.float64]) -> _MovingPose:
        alike = not motion.moving_bodies[body] or bool((when == when[0]).all())
        position, quaternion = motion.at(body, when[:1] if alike else when)
        return cls(position=position, quaternion=quaternion)

    @cached_property
    def _is_unrotated(self) -> bool:
        """Whether the body's axes equal the world's axes at all times, as for objects placed squarely on the floor."""
        return len(self.quaternion) == 1 and bool((self.quaternion[0] == _UPRIGHT).all())

    def take(self, rows: NDArray) -> _MovingPose:
        """Return the poses for selected rays."""
        if len(self.position) == 1:
            return self
        return _MovingPose(position=self.position[rows], quaternion=self.quaternion[rows])

    def transform_point(self, point: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert a point ``(3,)`` of the body from the body's axes to world axes, at each time."""
        return self.position + rotate_vectors(self.quaternion, np.broadcast_to(point, self.position.shape))

    def to_body(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert points ``(n, 3)`` in m, one per ray, from the world frame to the body's frame at the ray's time."""
        return self.rotate_to_body(points - self.position if self.position.any() else points)

    def rotate_to_body(self, vectors: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert directions ``(n, 3)`` from world axes to the body's axes."""
        if self._is_unrotated:
            return vectors
        if len(self.quaternion) == 1:
            return vectors @ rotation_matrix(self.quaternion[0])
        return rotate_vectors(self.quaternion * _CONJUGATE, vectors)

    def rotate_to_world(self, vectors: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert directions ``(n, 3)``, one per ray, from the body's axes to world axes at the time of the ray."""
        if self._is_unrotated:
            return vectors
        if len(self.quaternion) == 1:
            return vectors @ rotation_matrix(self.quaternion[0]).T
        return rotate_vectors(self.quaternion, vectors)


def _make_bodies(model: mujoco.MjModel, geoms: NDArray[np.intp], chord: float) -> Iterator[_EmbreeBody]:
    scene_class, mesh_class = _import_embree()
    for body in np.unique(model.geom_bodyid[geoms]):
        scene, members, corners = scene_class(), geoms[model.geom_bodyid[geoms] == body], []
        for geom in members:
            vertices, faces = make_triangles(model, int(geom), chord=chord)
            corners.append(rotate_vectors(model.geom_quat[geom], vertices) + model.geom_pos[geom])
            mesh_class(scene, corners[-1].astype(np.float32), faces)
        every = np.concatenate(corners)
        centre = (every.min(axis=0) + every.max(axis=0)) / 2.0
        radius = float(np.sqrt(((every - centre) ** 2).sum(axis=1).max()))
        yield _EmbreeBody(body=int(body), scene=scene, geoms=members.astype(np.int32), centre=centre, radius=radius)


def _import_embree() -> tuple[Any, Any]:
    try:
        from embreex.mesh_construction import TriangleMesh  # pyright: ignore[reportMissingImports]
        from embreex.rtcore_scene import EmbreeScene  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise make_embree_error(error) from error
    return EmbreeScene, TriangleMesh
