"""Compute the annotations of all images of an episode as tables: instances, poses, depth, normals and flow.

Conventions (`docs/guides/annotations.md`): SI units; camera axes x right, y down, z forward; pixel (column 0, row 0)
covers [0, 1] × [0, 1]; quaternions wxyz; ``a_from_b`` converts coordinates in frame b to coordinates in frame a.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
import pyarrow as pa

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.dataset.annotations import PREFIX, build_document, build_table
from twinloop.dataset.media.png_coding import encode_depth, encode_flow, encode_normals, encode_png
from twinloop.render.annotate.flow import forward_flow
from twinloop.render.annotate.frame import FrameAnnotations, ImageAnnotator, KeypointRows, ObjectRows, quaternions
from twinloop.render.annotate.instances import InstanceTable
from twinloop.render.protocol import Fields, Renderer, SceneStates
from twinloop.twin import Twin

Columns = defaultdict[str, list[Any]]


class EpisodeRows:
    """Annotation tables of one episode, filled image by image."""

    def __init__(self, number: int, wanted: tuple[str, ...], depth_unit: float, things: InstanceTable) -> None:
        self._number, self._wanted, self._unit, self._things = number, wanted, depth_unit, things
        self._columns: dict[str, Columns] = {name: defaultdict(list) for name in table_names(wanted)}

    def add(self, frame: FrameAnnotations) -> None:
        """Append the annotations of one image to the tables."""
        self._append("cameras", frame, 1, _camera_columns(frame))
        if "frames" in self._columns:
            self._append("frames", frame, 1, {**self._encode_images(frame), "flow": [None]})
        if "objects" in self._columns and frame.objects is not None:
            objects = frame.objects
            self._append("objects", frame, len(objects.instance), self._object_columns(objects))
        if "keypoints" in self._columns and frame.keypoints is not None:
            points = frame.keypoints
            self._append("keypoints", frame, len(points.name), _keypoint_columns(points))

    def add_flow(self, row: int, now: FrameAnnotations, then: FrameAnnotations) -> None:
        """Write the optical flow of an earlier image, once the next image of its camera is known.

        Args:
            row: index of the earlier image among the images that were passed to `add`.
            now: annotations of the earlier image, from which the flow starts.
            then: annotations of the next image of the same camera.
        """
        if "flow" in self._wanted:
            self._columns["frames"]["flow"][row] = encode_png(encode_flow(*forward_flow(now.view, then.view)))

    def tables(self) -> dict[str, pa.Table]:
        """Return the rows added so far as tables by name, to store them in a dataset (`dataset.side_tables`)."""
        result: dict[str, pa.Table] = {}
        for name, columns in self._columns.items():
            whole = {key: _join_values(values) for key, values in columns.items()}
            rows = len(whole.get("frame_index", ()))
            result[f"{PREFIX}/{name}"] = build_table(name, {**whole, "number": np.full(rows, self._number)}, rows)
        return result

    def _append(self, name: str, frame: FrameAnnotations, rows: int, columns: dict[str, Any]) -> None:
        target = self._columns[name]
        target["frame_index"].append(np.full(rows, frame.index))
        target["camera"] += [frame.camera] * rows
        for key, values in columns.items():
            if isinstance(values, np.ndarray):
                target[key].append(values)
            else:
                target[key] += values

    def _encode_images(self, frame: FrameAnnotations) -> dict[str, list[bytes]]:
        wanted, images = self._wanted, dict[str, list[bytes]]()
        if "depth" in wanted:
            images["depth"] = [encode_png(encode_depth(frame.view.depth, self._unit))]
        if "instance" in wanted:
            images["instance"] = [encode_png(frame.instance)]
        if "semantic" in wanted:
            images["semantic"] = [encode_png(self._things.to_classes(frame.instance))]
        if "normals" in wanted and frame.normal is not None:
            images["normals"] = [encode_png(encode_normals(frame.normal))]
        return images

    def _object_columns(self, objects: ObjectRows) -> dict[str, Any]:
        found = [self._things.instances[number - 1] for number in objects.instance]
        world, camera = objects.world_from_object, objects.camera_from_object
        return {
            "instance": objects.instance,
            "name": [item.name for item in found],
            "class_name": [item.class_name for item in found],
            "pixels": objects.pixels,
            "visibility": objects.visibility,
            "box": objects.box,
            "full_box": objects.full_box,
            "world_position": world[:, :3, 3],
            "world_quaternion": quaternions(world),
            "camera_position": camera[:, :3, 3],
            "camera_quaternion": quaternions(camera),
            "box_centre": objects.box_centre,
            "box_size": objects.box_size,
            "box_world": _transform_points(world, objects.box_centre),
            "box_camera": _transform_points(camera, objects.box_centre),
        }


def table_names(wanted: tuple[str, ...]) -> list[str]:
    """Return the names of the tables that hold the requested annotations of images.

    Args:
        wanted: names of annotations, as in `AnnotationSettings.per_frame`. For example, ``("depth", "boxes")`` needs
            the tables ``cameras``, ``frames`` and ``objects``.
    """
    images = {"depth", "instance", "semantic", "normals", "flow"}
    names = ["cameras"] if {*images, "boxes", "poses"} & set(wanted) else []
    names += ["frames"] if images & set(wanted) else []
    names += ["objects"] if {"boxes", "poses"} & set(wanted) else []
    return [*names, "keypoints"] if "poses" in wanted else names


def _camera_columns(frame: FrameAnnotations) -> dict[str, Any]:
    pinhole, pose = frame.view.pinhole, frame.view.world_from_camera[None]
    numbers = {key: [value] for key, value in pinhole.to_json().items()}
    return {**numbers, "world_position": pose[:, :3, 3], "world_quaternion": quaternions(pose)}


def _keypoint_columns(points: KeypointRows) -> dict[str, Any]:
    return {
        "name": list(points.name),
        "instance": points.instance,
        "world": points.world,
        "camera_point": points.camera,
        "pixel": points.pixel,
        "inside": points.inside,
        "visible": points.visible,
    }


def _transform_points(poses: np.ndarray, points: np.ndarray) -> np.ndarray:
    return np.einsum("nij,nj->ni", poses[:, :3, :3], points) + poses[:, :3, 3]


def _join_values(values: list[Any]) -> Any:
    return np.concatenate(values) if values and isinstance(values[0], np.ndarray) else values


IMAGES = ("depth", "instance", "semantic", "normals", "flow")
PER_FRAME = (*IMAGES, "boxes", "poses")
PER_STEP = ("contacts", "joints")
ANNOTATIONS = (*PER_FRAME, *PER_STEP)
_FRAMES = 16  # rendered at once: a few MB of images at 640×480
_LARGEST_UNIT = 0.01


@dataclass(frozen=True, kw_only=True)
class AnnotationSettings:
    """Names of the requested annotations, and the unit of stored depth.

    Attributes:
        wanted: ``all``, or names among depth, instance, semantic, normals, flow, boxes, poses, contacts and joints.
        depth_unit: distance in m of one count in a depth image; with 0.1 mm the largest distance is 6.5 m.

    Raises:
        UnknownNameError: If there is no such annotation.
        InputError: If the unit of depth is not positive, or above 1 cm.
    """

    wanted: tuple[str, ...] = ("all",)
    depth_unit: float = 1e-4

    def __post_init__(self) -> None:
        for name in self.wanted:
            if name not in (*ANNOTATIONS, "all"):
                raise UnknownNameError("annotation", name, (*ANNOTATIONS, "all"))
        if not 0.0 < self.depth_unit <= _LARGEST_UNIT:
            raise InputError(
                f"The depth unit is {self.depth_unit:g} m; it must be above 0 and at most {_LARGEST_UNIT:g}."
            )
        chosen = ANNOTATIONS if "all" in self.wanted else self.wanted
        object.__setattr__(self, "wanted", tuple(name for name in ANNOTATIONS if name in chosen))

    @property
    def per_frame(self) -> tuple[str, ...]:
        """Requested annotations that `annotate_episode` computes image by image, such as ``depth`` or ``boxes``."""
        return tuple(name for name in self.wanted if name in PER_FRAME)

    @property
    def per_step(self) -> tuple[str, ...]:
        """Requested annotations of contacts and joint forces, which `rollout.contacts.dynamics_tables` computes."""
        return tuple(name for name in self.wanted if name in PER_STEP)

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels (see `render.protocol.CHANNELS`) that the renderer must support."""
        return ("depth", "geom", "normal") if "normals" in self.wanted else ("depth", "geom")


def annotate_episode(
    renderer: Renderer,
    twin: Twin,
    states: SceneStates,
    fields: Fields | None = None,
    *,
    number: int,
    settings: AnnotationSettings,
    model: mujoco.MjModel | None = None,
) -> dict[str, pa.Table]:
    """Return the annotation tables of one episode's images from all cameras of a renderer.

    The result is the argument ``tables`` of `DatasetWriter.commit_block`.

    Args:
        renderer: renderer that supports `AnnotationSettings.channels`.
        twin: twin of the episode.
        states: poses of all T frames; the last frame has no optical flow.
        fields: model fields of one world, or one value per frame; see `Renderer.render`.
        number: index of the episode in the dataset.
        settings: requested annotations.
        model: model with which the renderer was opened, if it is not the twin's own, such as the model with textures.

    Returns:
        Tables by name: ``annotations/cameras`` and, if requested, ``annotations/frames`` (images),
        ``annotations/objects`` (boxes, visibility, poses) and ``annotations/keypoints``. Empty if no annotation of
        images is requested. See `dataset.annotations` for the columns.

    Raises:
        UnknownNameError: If the renderer does not support a channel.
        InputError: If the states or the fields do not fit the model.
    """
    if not settings.per_frame:
        return {}
    things = InstanceTable.of(twin)
    truth = ImageAnnotator(model or twin.model, things, renderer.cameras, height=renderer.height, width=renderer.width)
    rows = EpisodeRows(number, settings.per_frame, settings.depth_unit, things)
    before: dict[str, tuple[int, FrameAnnotations]] = {}
    for row, frame in enumerate(_frames(renderer, truth, states, fields, settings)):
        if frame.camera in before:
            rows.add_flow(*before[frame.camera], frame)
        rows.add(frame)
        before[frame.camera] = (row, frame)
    return rows.tables()


def annotations_document(twin: Twin, settings: AnnotationSettings) -> dict[str, Any]:
    """Return the content of a dataset's ``twinloop/annotations.json``, which describes the requested annotations."""
    names = table_names(settings.per_frame)
    names += ["contacts", "forces"] if "contacts" in settings.wanted else []
    names += ["joints"] if "joints" in settings.wanted else []
    chosen = {"annotations": list(settings.wanted), "depth_unit": settings.depth_unit}
    return build_document(names, InstanceTable.of(twin).to_json(), **chosen)


def _frames(
    renderer: Renderer, truth: ImageAnnotator, states: SceneStates, fields: Fields | None, settings: AnnotationSettings
) -> Iterator[FrameAnnotations]:
    """Yield the annotations of every image, ordered by frame and then by camera."""
    truth.begin(states, fields)
    wanted = settings.per_frame
    parts = {"objects": bool({"boxes", "poses"} & set(wanted)), "keypoints": "poses" in wanted}
    for start in range(0, len(states), _FRAMES):
        rows = slice(start, start + _FRAMES)
        seen = renderer.observe(states.take(rows), truth.fields(rows), channels=settings.channels)
        for frame in range(start, min(start + _FRAMES, len(states))):
            truth.pose(frame)
            for camera in renderer.cameras:
                channels = {name: images[frame - start] for name, images in seen[camera].items()}
                yield truth.annotate_image(camera, channels, **parts)
