"""Compute bounding boxes of objects in closed form: oriented 3D boxes, and 2D boxes of their outlines in images.

Each visible geom is represented by a few *blobs*: ellipsoids, which may be flat or a single point. A sphere or an
ellipsoid is one blob, a capsule two balls, a cylinder two discs. The blobs of a box are its corners, and those of a
mesh are the corners of its convex hull. The boxes of the blobs are exact, so 3D and 2D boxes of these shapes are exact.

A blob with centre c and half-axes A (columns) ends at n·c ± |Aᵀn| along a direction n. Its outline in the image of a
pinhole camera is a conic. With the camera's intrinsic matrix K, the matrix of the dual conic (of its tangent lines) is
K (A Aᵀ - c cᵀ) Kᵀ (Hartley and Zisserman, Multiple View Geometry, 2nd ed., 8.3).
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
    """The ``k`` blobs (bounding ellipsoids) of all objects in one world.

    Coordinates are in the frame of the object, which is its body or, for a geom of the world body, the geom itself.
    Poses of geoms in their bodies are already applied. Planes and height fields have no box, so they have no blobs.

    Attributes:
        centre: centres, ``(k, 3)`` in m.
        axes: half-axes as columns, ``(k, 3, 3)`` in m.
        instance: object number (`InstanceTable`) of each blob, ``(k,)``, in ascending order.
    """

    centre: Array
    axes: Array
    instance: NDArray[np.intp]

    @classmethod
    def of(cls, model: mujoco.MjModel, table: InstanceTable) -> ObjectBlobs:
        """Return the blobs of all visible geoms: ellipsoids, discs or points that bound them, to compute boxes from.

        Args:
            model: model after the parameter values of the world were written.
            table: objects of the twin.
        """
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
        """Indices of the first blob of each object, ``(m,)`` for the m objects that have blobs."""
        return np.flatnonzero(np.diff(self.instance, prepend=-1))

    def compute_oriented_boxes(self) -> tuple[NDArray[np.intp], Array, Array]:
        """Return the 3D boxes of m objects, each aligned with the axes of the object's frame.

        A box encloses the object's blobs (ellipsoids, discs or points that bound its geoms). Objects without blobs are
        left out.

        Returns:
            Numbers of the objects ``(m,)``, centres ``(m, 3)`` and side lengths ``(m, 3)`` in m.
        """
        if not len(self.instance):
            return self.instance, np.empty((0, 3)), np.empty((0, 3))
        reach = np.linalg.norm(self.axes, axis=-1)
        high = np.maximum.reduceat(self.centre + reach, self.starts)
        low = np.minimum.reduceat(self.centre - reach, self.starts)
        return self.instance[self.starts], (low + high) / 2.0, high - low

    def compute_image_boxes(self, camera_from_frame: Array, pinhole: Intrinsics) -> tuple[Array, Array]:
        """Return the 2D box of each object in a camera's image as if nothing hid it, and its largest depth.

        The boxes enclose the blobs, which are ellipsoids, discs or points that bound an object's geoms.

        Args:
            camera_from_frame: pose of the object's frame in camera axes for each of the k blobs, ``(k, 4, 4)``.
            pinhole: intrinsics of the image.

        Returns:
            Two arrays for the m objects that have blobs, in ascending order of their numbers:

            - boxes of the outlines ``(m, 4)``: left, top, right, bottom in px, not clipped at the edges of the image;
              nan for an object that extends behind the camera, because it has no outline;
            - largest depths along the optical axis, ``(m,)`` in m.
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
    """Return the number of visible pixels of each object in an image, and their bounding box.

    Args:
        instance: object numbers of the image, ``(H, W)``; 0 for no object.
        count: number of objects.

    Returns:
        Two arrays with one row per object number; row 0 is for pixels that show no object:

        - numbers of pixels, ``(1 + count,)``;
        - boxes ``(1 + count, 4)``: left, top, right, bottom edges of pixels, so that the box of a single pixel (column
          3, row 5) is 3, 5, 4, 6; zeros for an invisible object and in row 0.
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
    """Return the corners ``(…, 8, 3)`` of axis-aligned boxes; x varies slowest and z fastest, low before high.

    Args:
        centre: centres ``(…, 3)``.
        size: side lengths ``(…, 3)``.
    """
    return centre[..., None, :] + 0.5 * size[..., None, :] * _CORNERS


def is_drawn(model: mujoco.MjModel, geom: int) -> bool:
    """Return whether renderers show a geom.

    A geom is shown if its group is visible and its colour or material is not fully transparent.
    """
    if model.geom_group[geom] >= DRAWN_GROUPS:
        return False
    material = model.geom_matid[geom]
    return bool((model.geom_rgba[geom] if material < 0 else model.mat_rgba[material])[3] > 0.0)


def _outline(dual: Array, axis: int) -> tuple[Array, Array]:
    """Return the smallest and largest coordinate of k ellipses along an image axis, ``(k,)`` each.

    The ellipses are the outlines of ellipsoids in the image of a pinhole camera.

    Args:
        dual: 3×3 matrix of each ellipse's dual conic, the equation of its tangent lines, ``(k, 3, 3)``.
        axis: 0 for x, 1 for y.
    """
    # A line u = const, (1, 0, -u), is a tangent if C₀₀ - 2 u C₀₂ + u² C₂₂ = 0; in front of the camera C₂₂ < 0.
    square, mixed, whole = dual[:, axis, axis], dual[:, axis, 2], dual[:, 2, 2]
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = mixed / whole
        half = np.sqrt(np.maximum(middle**2 - square / whole, 0.0))
    return middle - half, middle + half


def _make_blobs(model: mujoco.MjModel, geom: int) -> tuple[Array, Array]:
    """Return centres ``(k, 3)`` and half-axes ``(k, 3, 3)`` of the k blobs that bound a geom, in the geom's own axes.

    A sphere or an ellipsoid is one blob, a capsule two balls, and a cylinder two discs. The blobs of a box or mesh are
    points (corners with half-axes 0). Other geoms have none.
    """
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
    """Return the corners of a mesh's convex hull if the compiler computed it, otherwise all vertices of the mesh."""
    first = model.mesh_vertadr[mesh]
    vertices = model.mesh_vert[first : first + model.mesh_vertnum[mesh]].astype(np.float64)
    graph = int(model.mesh_graphadr[mesh])
    if graph < 0:
        return vertices
    # MuJoCo's mesh_graph: numbers of vertices and faces, then vert_edgeadr, then vert_globalid.
    count = int(model.mesh_graph[graph])
    return vertices[model.mesh_graph[graph + 2 + count : graph + 2 + 2 * count]]
