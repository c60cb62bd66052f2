"""From the truth about pictures to the rows of their tables."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa

from twinloop.dataset.annotations import PREFIX, table
from twinloop.dataset.media.png_coding import encode_depth, encode_flow, encode_normals, encode_png
from twinloop.render.annotate.flow import forward_flow
from twinloop.render.annotate.frame import FrameTruth, KeypointRows, ObjectRows, quaternions
from twinloop.render.annotate.instances import InstanceTable

Columns = defaultdict[str, list[Any]]


class EpisodeRows:
    """The tables of one episode, picture after picture."""

    def __init__(self, number: int, wanted: tuple[str, ...], depth_unit: float, things: InstanceTable) -> None:
        self._number, self._wanted, self._unit, self._things = number, wanted, depth_unit, things
        self._columns: dict[str, Columns] = {name: defaultdict(list) for name in table_names(wanted)}

    def add(self, frame: FrameTruth) -> None:
        """Append what is true of a picture."""
        self._append("cameras", frame, 1, _camera_columns(frame))
        if "frames" in self._columns:
            self._append("frames", frame, 1, {**self._pictures(frame), "flow": [None]})
        if "objects" in self._columns and frame.objects is not None:
            objects = frame.objects
            self._append("objects", frame, len(objects.instance), self._object_columns(objects))
        if "keypoints" in self._columns and frame.keypoints is not None:
            points = frame.keypoints
            self._append("keypoints", frame, len(points.name), _keypoint_columns(points))

    def add_flow(self, row: int, now: FrameTruth, then: FrameTruth) -> None:
        """Fill in the flow of an earlier picture, the ``row``-th that was added, once the next is known."""
        if "flow" in self._wanted:
            self._columns["frames"]["flow"][row] = encode_png(encode_flow(*forward_flow(now.view, then.view)))

    def tables(self) -> dict[str, pa.Table]:
        """All rows so far, as `dataset.side_tables` takes them."""
        result: dict[str, pa.Table] = {}
        for name, columns in self._columns.items():
            whole = {key: _joined(values) for key, values in columns.items()}
            rows = len(whole.get("frame_index", ()))
            result[f"{PREFIX}/{name}"] = table(name, {**whole, "number": np.full(rows, self._number)}, rows)
        return result

    def _append(self, name: str, frame: FrameTruth, rows: int, columns: dict[str, Any]) -> None:
        target = self._columns[name]
        target["frame_index"].append(np.full(rows, frame.index))
        target["camera"] += [frame.camera] * rows
        for key, values in columns.items():
            if isinstance(values, np.ndarray):
                target[key].append(values)
            else:
                target[key] += values

    def _pictures(self, frame: FrameTruth) -> dict[str, list[bytes]]:
        wanted, pictures = self._wanted, dict[str, list[bytes]]()
        if "depth" in wanted:
            pictures["depth"] = [encode_png(encode_depth(frame.view.depth, self._unit))]
        if "instance" in wanted:
            pictures["instance"] = [encode_png(frame.instance)]
        if "semantic" in wanted:
            pictures["semantic"] = [encode_png(self._things.semantic(frame.instance))]
        if "normals" in wanted and frame.normal is not None:
            pictures["normals"] = [encode_png(encode_normals(frame.normal))]
        return pictures

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
            "box_world": _moved(world, objects.box_centre),
            "box_camera": _moved(camera, objects.box_centre),
        }


def table_names(wanted: tuple[str, ...]) -> list[str]:
    """Names of the tables of pictures that hold what is wanted."""
    pictures = {"depth", "instance", "semantic", "normals", "flow"}
    names = ["cameras"] if {*pictures, "boxes", "poses"} & set(wanted) else []
    names += ["frames"] if pictures & set(wanted) else []
    names += ["objects"] if {"boxes", "poses"} & set(wanted) else []
    return [*names, "keypoints"] if "poses" in wanted else names


def _camera_columns(frame: FrameTruth) -> dict[str, Any]:
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


def _moved(poses: np.ndarray, points: np.ndarray) -> np.ndarray:
    return np.einsum("nij,nj->ni", poses[:, :3, :3], points) + poses[:, :3, 3]


def _joined(values: list[Any]) -> Any:
    return np.concatenate(values) if values and isinstance(values[0], np.ndarray) else values
