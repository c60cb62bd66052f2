"""Compute the annotations of one image: objects with boxes, poses and visibility, and keypoints.

The visibility of an object needs the number of pixels in which other surfaces hide it (hidden pixels). Candidates for
hidden pixels are the pixels inside the object's outline that show another surface at the same or a shorter distance. A
candidate is a hidden pixel if a ray through it would hit the object.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from twinloop.render.annotate.boxes import ObjectBlobs, box_corners, find_visible_boxes, is_drawn
from twinloop.render.annotate.flow import FrameView, KeypointRows, Keypoints
from twinloop.render.annotate.instances import DRAWN_GROUPS, InstanceTable, ObjectInstance
from twinloop.render.cameras import intrinsics, make_transforms, opencv_pose
from twinloop.render.protocol import Fields, SceneStates
from twinloop.render.scene import PosedScene, camera_ids

MOST_RAYS = 4096  # per object and image, our choice: visible shares have errors below 0.01 and take a few ms
_TOUCHING = 1e-4  # tolerance in m, and relative, within which distances are equal: above float32 rounding
_TARGET_GROUP = mujoco.mjNGROUP - 1  # a geom group reserved for these rays


def count_hidden_pixels(
    model: mujoco.MjModel,
    data: mujoco.MjData,
    view: FrameView,
    instance: NDArray[np.uint16],
    thing: ObjectInstance,
    box: NDArray[np.float64],
    farthest: float,
) -> int:
    """Return the number of pixels in which other surfaces hide an object.

    Args:
        model: model after the parameter values of the world were written; its ``geom_group`` is changed and restored.
        data: data with the poses of the geoms.
        view: the image.
        instance: object numbers of the image, ``(H, W)``.
        thing: the object whose hidden pixels are counted.
        box: left, top, right and bottom of the object's outline in px, ``(4,)``; nan searches the whole image.
        farthest: largest depth of the object along the optical axis, in m.

    Returns:
        The number of pixels. If more than 4096 pixels (`MOST_RAYS`) may be hidden, an estimate from a grid of at most
        that many.
    """
    whole = np.array([0.0, 0.0, view.pinhole.width, view.pinhole.height])
    near = np.clip(np.where(np.isnan(box), whole, box), 0.0, whole[[2, 3, 2, 3]])
    left, top, right, bottom = *np.floor(near[:2]).astype(int).tolist(), *np.ceil(near[2:]).astype(int).tolist()
    depth = view.depth[top:bottom, left:right]
    candidates = (instance[top:bottom, left:right] != thing.id) & (depth < farthest)
    step = max(1, math.ceil(math.sqrt(np.count_nonzero(candidates) / MOST_RAYS)))
    rows, columns = np.nonzero(candidates[::step, ::step])
    if not len(rows):
        return 0
    pixels = np.stack([step * columns + left + 0.5, step * rows + top + 0.5], axis=-1)
    hit_depth = _cast_at_object(model, data, view, thing, pixels)
    # Surfaces behind the object, visible where its drawn flat faces are too small, do not hide it.
    hiding = (hit_depth > 0.0) & (hit_depth > depth[step * rows, step * columns] * (1.0 - _TOUCHING) - _TOUCHING)
    return step**2 * int(np.count_nonzero(hiding))


def _cast_at_object(
    model: mujoco.MjModel, data: mujoco.MjData, view: FrameView, thing: ObjectInstance, pixels: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the depth in m at which the rays through pixels hit an object, ``(n,)``; -1 for a miss.

    Args:
        model: model, whose ``geom_group`` is changed and restored.
        data: data with the poses of the geoms.
        view: the image.
        thing: the object.
        pixels: positions in the image, ``(n, 2)`` in px.
    """
    count = len(pixels)
    rays = view.pinhole.unproject(pixels)
    length = np.linalg.norm(rays, axis=-1)
    directions = np.ascontiguousarray((rays / length[:, None]) @ view.world_from_camera[:3, :3].T).ravel()
    distance, hit_geom = np.empty(count), np.empty(count, dtype=np.int32)
    groups = model.geom_group.copy()
    group_mask = np.zeros(mujoco.mjNGROUP, dtype=np.uint8)
    group_mask[_TARGET_GROUP] = 1
    try:
        model.geom_group[:] = 0
        model.geom_group[[geom for geom in thing.geoms if groups[geom] < DRAWN_GROUPS]] = _TARGET_GROUP
        eye = np.ascontiguousarray(view.world_from_camera[:3, 3])
        mujoco.mj_multiRay(
            model, data, eye, directions, group_mask, 1, -1, hit_geom, distance, None, count, mujoco.mjMAXVAL
        )
    finally:
        model.geom_group[:] = groups
    return np.where(distance >= 0.0, distance / length, -1.0)


Array = NDArray[np.float64]
_SHAPE = ("geom_", "body_", "mat_rgba")  # prefixes of fields that determine shapes


@dataclass(frozen=True, kw_only=True)
class ObjectRows:
    """Annotations of the objects in one image, ``m`` rows; nan for unknown values.

    `dataset.annotations` describes the same columns.

    Attributes:
        instance: numbers of the objects, ``(m,)``.
        pixels: numbers of visible pixels, ``(m,)``.
        visibility: visible share of the object's pixels in the image, 0 to 1, ``(m,)``.
        box: box of the visible pixels (left, top, right, bottom), ``(m, 4)`` in px.
        full_box: box of the object's outline as if nothing hid it, ``(m, 4)`` in px; it may extend outside the image.
        world_from_object, camera_from_object: poses of the objects, ``(m, 4, 4)``.
        box_centre, box_size: centre and side lengths of the 3D box in the object's axes, ``(m, 3)`` in m.
    """

    instance: NDArray[np.intp]
    pixels: NDArray[np.int64]
    visibility: Array
    box: Array
    full_box: Array
    world_from_object: Array
    camera_from_object: Array
    box_centre: Array
    box_size: Array


@dataclass(frozen=True, kw_only=True)
class FrameAnnotations:
    """Annotations of one image.

    Attributes:
        index: number of the frame in the episode.
        camera: name of the camera.
        view: depth, geom ids and poses.
        instance: number of the object that each pixel shows, ``(H, W)``; 0 for none.
        normal: surface normals in camera axes, ``(H, W, 3)``; None if not requested.
        objects: annotations of the objects; None if not requested.
        keypoints: the keypoints; None if not requested.
    """

    index: int
    camera: str
    view: FrameView
    instance: NDArray[np.uint16]
    normal: NDArray[np.float32] | None = None
    objects: ObjectRows | None = None
    keypoints: KeypointRows | None = None


@dataclass(frozen=True, kw_only=True)
class _DrawnShapes:
    """Visible shapes of one world's objects.

    Attributes:
        blobs: ellipsoids that bound the objects.
        centre, size: centre and side lengths of each object's oriented 3D box, ``(1 + number of objects, 3)`` in m. The
            row is the object number; nan for an object that has no box.
        drawn: numbers of the objects with a visible geom.
    """

    blobs: ObjectBlobs
    centre: Array
    size: Array
    drawn: NDArray[np.intp]

    @classmethod
    def of(cls, model: mujoco.MjModel, things: InstanceTable) -> _DrawnShapes:
        blobs = ObjectBlobs.of(model, things)
        boxed, centre, size = blobs.compute_oriented_boxes()
        centres, sizes = np.full((2, 1 + len(things), 3), np.nan)
        centres[boxed], sizes[boxed] = centre, size
        drawn = [item.id for item in things.instances if any(is_drawn(model, geom) for geom in item.geoms)]
        return cls(blobs=blobs, centre=centres, size=sizes, drawn=np.array(drawn, dtype=np.intp))


class ImageAnnotator:
    """Annotator for images of one model's cameras.

    Call `begin` for each episode, then `pose` for each frame, and then `annotate_image` for each camera.
    """

    def __init__(
        self, model: mujoco.MjModel, things: InstanceTable, cameras: Sequence[str], *, height: int, width: int
    ) -> None:
        self.things, self._height, self._width = things, height, width
        self._posed, self._ids = PosedScene(model), camera_ids(model, cameras)
        self._keypoints = Keypoints(model, things)

    def begin(self, states: SceneStates, fields: Fields | None) -> None:
        """Start an episode.

        Args:
            states: poses of all frames.
            fields: model fields of the world, constant or one per frame.

        Raises:
            InputError: If the states or the fields do not fit the model.
        """
        self._posed.check(states)
        self._posed.set_fields(fields, len(states))
        self._states, self._fields = states, fields or {}
        model = self._posed.model
        self._single = {name for name, value in self._fields.items() if np.ndim(value) > getattr(model, name).ndim}
        self._changing = any(name.startswith(_SHAPE) for name in self._single)
        self._shapes = _DrawnShapes.of(model, self.things)

    def fields(self, rows: slice) -> Fields:
        """Return the episode's model fields for some of its frames.

        Args:
            rows: range of the frames. Fields with one value per frame are cut to it; constant fields are unchanged.
        """
        return {name: value[rows] if name in self._single else value for name, value in self._fields.items()}

    def pose(self, frame: int) -> None:
        """Set all poses to those of the frame with this index."""
        self._frame = frame
        self._posed.pose(self._states, frame)
        if self._changing:
            self._shapes = _DrawnShapes.of(self._posed.model, self.things)

    def annotate_image(
        self, camera: str, seen: Mapping[str, NDArray], *, objects: bool = True, keypoints: bool = True
    ) -> FrameAnnotations:
        """Return the annotations of one camera's image of the current frame.

        Args:
            camera: name of the camera.
            seen: rendered channels of the image, ``geom`` and ``depth`` and optionally ``normal``.
            objects: whether to annotate objects.
            keypoints: whether to annotate keypoints.
        """
        model, data, row = self._posed.model, self._posed.data, self._ids[camera]
        view = FrameView(
            depth=seen["depth"],
            geom=seen["geom"],
            pinhole=intrinsics(model, camera, height=self._height, width=self._width),
            world_from_camera=opencv_pose(data.cam_xpos[row], data.cam_xmat[row]),
            world_from_geom=make_transforms(data.geom_xpos, data.geom_xmat),
        )
        instance = self.things.to_instances(seen["geom"])
        return FrameAnnotations(
            index=self._frame,
            camera=camera,
            view=view,
            instance=instance,
            normal=seen.get("normal"),
            objects=self._objects(view, instance) if objects else None,
            keypoints=self._keypoints.locate_keypoints(view, model, data, self._corners()) if keypoints else None,
        )

    def _poses(self) -> Array:
        """Return the pose ``world_from_object`` by object number, ``(1 + number of objects, 4, 4)``; entry 0 is unused.

        The pose is that of the body, or of the geom if the object is a geom of the world body.
        """
        data = self._posed.data
        poses = np.tile(np.eye(4), (1 + len(self.things), 1, 1))
        bodies = self._posed.model.nbody
        poses[1:bodies] = make_transforms(data.xpos[1:], data.xmat[1:])
        own = [item.geoms[0] for item in self.things.instances[bodies - 1 :]]
        poses[bodies:] = make_transforms(data.geom_xpos[own], data.geom_xmat[own])
        return poses

    def _corners(self) -> Array:
        """Return the box corners of every object in world axes, ``(1 + number of objects, 8, 3)`` in m.

        They are nan for an object that has no box.
        """
        corners, poses = box_corners(self._shapes.centre, self._shapes.size), self._poses()
        return corners @ poses[:, :3, :3].swapaxes(1, 2) + poses[:, None, :3, 3]

    def _objects(self, view: FrameView, instance: NDArray[np.uint16]) -> ObjectRows:
        shapes = self._shapes
        world, rows = self._poses(), shapes.drawn
        camera = np.linalg.inv(view.world_from_camera) @ world
        pixels, boxes = find_visible_boxes(instance, len(self.things))
        boxed, full = shapes.blobs.instance[shapes.blobs.starts], np.full((1 + len(self.things), 4), np.nan)
        full[boxed], farthest = shapes.blobs.compute_image_boxes(camera[shapes.blobs.instance], view.pinhole)
        visibility = np.full(1 + len(self.things), np.nan)
        for number, reach in zip(boxed.tolist(), farthest.tolist(), strict=True):
            visibility[number] = self._visibility(view, instance, number, int(pixels[number]), full[number], reach)
        return ObjectRows(
            instance=rows,
            pixels=pixels[rows],
            visibility=visibility[rows],
            box=np.where(pixels[:, None] > 0, boxes, np.nan)[rows],
            full_box=full[rows],
            world_from_object=world[rows],
            camera_from_object=camera[rows],
            box_centre=shapes.centre[rows],
            box_size=shapes.size[rows],
        )

    def _visibility(
        self, view: FrameView, instance: NDArray[np.uint16], number: int, pixels: int, full: Array, farthest: float
    ) -> float:
        """Return the visible share of an object's pixels in the image, 0 to 1; nan if it has no pixels in the image.

        Args:
            view: the image.
            instance: object numbers of the image, ``(H, W)``.
            number: number of the object.
            pixels: number of its visible pixels.
            full: box of its outline, left, top, right, bottom in px, ``(4,)``. Its hidden pixels are searched there;
                nan searches the whole image.
            farthest: its largest depth along the optical axis, in m. Only nearer surfaces can hide it.
        """
        thing = self.things.instances[number - 1]
        hidden = count_hidden_pixels(self._posed.model, self._posed.data, view, instance, thing, full, farthest)
        return pixels / (pixels + hidden) if pixels + hidden else float("nan")


def quaternions(poses: Array) -> Array:
    """Convert poses ``(n, 4, 4)`` to unit quaternions wxyz ``(n, 4)`` with w ≥ 0."""
    if not len(poses):
        return np.empty((0, 4))
    return Rotation.from_matrix(poses[:, :3, :3]).as_quat(canonical=True, scalar_first=True)
