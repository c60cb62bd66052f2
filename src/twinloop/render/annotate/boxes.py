"""Compute bounding boxes of objects in closed form from their shapes: oriented 3D boxes and 2D boxes in images.

The boxes of a visible geom are those of a few *blobs*: ellipsoids, possibly flat or reduced to a point. A sphere or an
ellipsoid is one, a capsule two balls, a cylinder two discs, a box its corners, a mesh the corners of its hull. For a
blob with centre c and half axes A (columns), the extent along a direction n is n·c + |Aᵀn|, and its outline in a
pinhole K is a conic whose dual is K (A Aᵀ - c cᵀ) Kᵀ (Hartley and Zisserman, Multiple View Geometry, 2nd ed., 8.3), so
both kinds of box are exact for these shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.imaging import Intrinsics
from twinloop.render.annotate.instances import DRAWN_GROUPS, InstanceTable
from twinloop.twin.quantities.rotation import rotation_matrix

Array = NDArray[np.float64]
_GEOM = mujoco.mjtGeom
_CORNERS = np.array([[x, y, z] for x in (-1.0, 1.0) for y in (-1.0, 1.0) for z in (-1.0, 1.0)])


@dataclass(frozen=True, kw_only=True)
class ObjectBlobs:
    """Blobs of one world's objects: ``centre`` ``(k, 3)`` and ``axes`` ``(k, 3, 3)`` in the axes of their ``frame``.

    A frame is a body, or for one of the world's own geoms the geom itself; poses of geoms in bodies are applied.
    ``instance`` ``(k,)`` is ascending. Objects without a box (planes, height fields) have no blobs.
    """

    centre: Array
    axes: Array
    instance: NDArray[np.intp]

    @classmethod
    def of(cls, model: mujoco.MjModel, table: InstanceTable) -> ObjectBlobs:
        """Return the blobs of all visible geoms, of a model with a world's fields written into it."""
        centres, axes, owner = [np.empty((0, 3))], [np.empty((0, 3, 3))], list[int]()
        for instance in table.instances:
            for geom in instance.geoms:
                if not is_drawn(model, geom):
                    continue
                centre, half = _make_blobs(model, geom)
                if instance.body:  # a geom of the world is its own frame
                    turn = rotation_matrix(model.geom_quat[geom])
                    centre, half = centre @ turn.T + model.geom_pos[geom], turn @ half
                centres.append(centre)
                axes.append(half)
                owner += [instance.id] * len(centre)
        return cls(centre=np.concatenate(centres), axes=np.concatenate(axes), instance=np.array(owner, dtype=np.intp))

    @property
    def starts(self) -> NDArray[np.intp]:
        """Index of the first blob of each object that has any."""
        return np.flatnonzero(np.diff(self.instance, prepend=-1))

    def compute_oriented_boxes(self) -> tuple[NDArray[np.intp], Array, Array]:
        """Return numbers of objects ``(m,)``, and centre and size ``(m, 3)`` of their boxes in their frames' axes."""
        if not len(self.instance):
            return self.instance, np.empty((0, 3)), np.empty((0, 3))
        reach = np.linalg.norm(self.axes, axis=-1)
        high = np.maximum.reduceat(self.centre + reach, self.starts)
        low = np.minimum.reduceat(self.centre - reach, self.starts)
        return self.instance[self.starts], (low + high) / 2.0, high - low

    def compute_image_boxes(self, camera_from_frame: Array, pinhole: Intrinsics) -> tuple[Array, Array]:
        """Return the 2D box of each object alone in a camera's image, and its largest depth.

        Args:
            camera_from_frame: poses ``(k, 4, 4)``, of each blob's frame.

        Returns:
            Boxes ``(m, 4)`` of the outlines in an image, left, top, right, bottom in px, not clipped at its edges, nan
            for an object that reaches behind the camera, which has no outline; and the largest distance of each object
            along the optical axis, ``(m,)`` in m.
        """
        if not len(self.instance):
            return np.empty((0, 4)), np.empty(0)
        turn = camera_from_frame[:, :3, :3]
        centre = np.einsum("kij,kj->ki", turn, self.centre) + camera_from_frame[:, :3, 3]
        axes = turn @ self.axes
        spread = np.einsum("kij,klj->kil", axes, axes)
        dual = pinhole.matrix @ (spread - centre[:, :, None] * centre[:, None, :]) @ pinhole.matrix.T
        thick = np.sqrt(spread[:, 2, 2])
        nearest = np.minimum.reduceat(centre[:, 2] - thick, self.starts)
        farthest = np.maximum.reduceat(centre[:, 2] + thick, self.starts)
        edges = [_outline(dual, axis) for axis in (0, 1)]
        low = [np.minimum.reduceat(edge[0], self.starts) for edge in edges]
        high = [np.maximum.reduceat(edge[1], self.starts) for edge in edges]
        boxes = np.stack([*low, *high], axis=-1)
        return np.where(nearest[:, None] > 0.0, boxes, np.nan), farthest


def find_visible_boxes(instance: NDArray[np.uint16], count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the number of pixels of each object in an image, and their bounding box.

    Args:
        instance: an image of instances ``(H, W)``.
        count: number of objects.

    Returns:
        ``(1 + count,)`` pixels by instance number, and ``(1 + count, 4)`` left, top, right, bottom: edges of pixels, so
        that the box of a single pixel (column 3, row 5) is 3, 5, 4, 6; 0 for an invisible object.
    """
    from scipy.ndimage import find_objects

    pixels = np.bincount(instance.ravel(), minlength=1 + count)
    boxes = np.zeros((1 + count, 4), dtype=np.int64)
    for i, found in enumerate(find_objects(instance.astype(np.int32)), start=1):
        if found is not None:
            rows, columns = found
            boxes[i] = columns.start, rows.start, columns.stop, rows.stop
    return pixels, boxes


def box_corners(centre: Array, size: Array) -> Array:
    """Return corners ``(…, 8, 3)`` of boxes, x slowest and z fastest, low before high."""
    return centre[..., None, :] + 0.5 * size[..., None, :] * _CORNERS


def is_drawn(model: mujoco.MjModel, geom: int) -> bool:
    """Return whether renderers show a geom: by its group, and by its own or its material's transparency."""
    if model.geom_group[geom] >= DRAWN_GROUPS:
        return False
    material = model.geom_matid[geom]
    return bool((model.geom_rgba[geom] if material < 0 else model.mat_rgba[material])[3] > 0.0)


def _outline(dual: Array, axis: int) -> tuple[Array, Array]:
    """Return the smaller and larger coordinate of conics along an axis, ``(k,)`` each, from their duals."""
    # A line u = const, (1, 0, -u), is a tangent if C₀₀ - 2 u C₀₂ + u² C₂₂ = 0; in front of the camera C₂₂ < 0.
    square, mixed, whole = dual[:, axis, axis], dual[:, axis, 2], dual[:, 2, 2]
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = mixed / whole
        half = np.sqrt(np.maximum(middle**2 - square / whole, 0.0))
    return middle - half, middle + half


def _make_blobs(model: mujoco.MjModel, geom: int) -> tuple[Array, Array]:
    """Return centres and half axes of a geom's blobs in its own axes."""
    kind, size = int(model.geom_type[geom]), model.geom_size[geom]
    if kind == _GEOM.mjGEOM_BOX:
        return _make_point_blobs(_CORNERS * size)
    if kind == _GEOM.mjGEOM_MESH:
        return _make_point_blobs(_mesh_corners(model, int(model.geom_dataid[geom])))
    if kind == _GEOM.mjGEOM_SPHERE:
        return np.zeros((1, 3)), size[0] * np.eye(3)[None]
    if kind == _GEOM.mjGEOM_ELLIPSOID:
        return np.zeros((1, 3)), np.diag(size)[None]
    if kind == _GEOM.mjGEOM_CAPSULE or kind == _GEOM.mjGEOM_CYLINDER:
        ends = np.array([[0.0, 0.0, -size[1]], [0.0, 0.0, size[1]]])
        round_ = size[0] * np.diag([1.0, 1.0, float(kind == _GEOM.mjGEOM_CAPSULE)])
        return ends, np.repeat(round_[None], 2, axis=0)
    return np.empty((0, 3)), np.empty((0, 3, 3))


def _make_point_blobs(points: Array) -> tuple[Array, Array]:
    return points, np.zeros((len(points), 3, 3))


def _mesh_corners(model: mujoco.MjModel, mesh: int) -> Array:
    """Return the corners of a mesh's convex hull if the compiler made one, else all of them."""
    first = model.mesh_vertadr[mesh]
    vertices = model.mesh_vert[first : first + model.mesh_vertnum[mesh]].astype(np.float64)
    graph = int(model.mesh_graphadr[mesh])
    if graph < 0:
        return vertices
    # MuJoCo's mesh_graph: numbers of vertices and faces, then vert_edgeadr, then vert_globalid.
    count = int(model.mesh_graph[graph])
    return vertices[model.mesh_graph[graph + 2 + count : graph + 2 + 2 * count]]
