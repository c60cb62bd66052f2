"""Declare the columns of the annotation tables (type, unit, frame, coding) and read the annotations of one camera.

Annotation tables are side tables (`dataset.side_tables`) in ``twinloop/annotations/NAME/`` with one row group per
episode. Every row has ``episode_index``, ``number`` and ``frame_index``; rows about images also have ``camera``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.core.documents import read_json
from twinloop.core.errors import DatasetError, UnknownNameError
from twinloop.core.imaging import Intrinsics
from twinloop.dataset.lerobot import layout
from twinloop.dataset.media.png_coding import decode_depth, decode_flow, decode_normals, decode_png
from twinloop.dataset.side_tables import table_metadata

DOCUMENT = "twinloop/annotations.json"
PREFIX = "annotations"


@dataclass(frozen=True, kw_only=True)
class AnnotationColumn:
    """A column of a table: its type, and the meaning of its values with unit, frame and coding."""

    type: pa.DataType
    meaning: str


def vector_type(width: int) -> pa.DataType:
    """Return the Arrow type of a fixed-size list of ``width`` float64 values."""
    return pa.list_(pa.float64(), width)


def _columns(**columns: tuple[pa.DataType, str]) -> dict[str, AnnotationColumn]:
    return {
        name: AnnotationColumn(type=kind, meaning=" ".join(meaning.split()))
        for name, (kind, meaning) in columns.items()
    }


_FRAME = _columns(
    number=(pa.int64(), "the episode's number"),
    frame_index=(pa.int64(), "frame, from 0"),
)
_PICTURE = _FRAME | _columns(camera=(pa.dictionary(pa.int32(), pa.string()), "name of the camera"))

TABLES: dict[str, dict[str, AnnotationColumn]] = {
    "cameras": _PICTURE
    | _columns(
        width=(pa.int32(), "px"),
        height=(pa.int32(), "px"),
        fx=(pa.float64(), "focal length, px"),
        fy=(pa.float64(), "focal length, px"),
        cx=(pa.float64(), "principal point, px from the left edge of the first column"),
        cy=(pa.float64(), "principal point, px from the upper edge of the first row"),
        world_position=(vector_type(3), "the camera in the world, m"),
        world_quaternion=(vector_type(4), "wxyz; world_from_camera, camera axes x right, y down, z forward"),
    ),
    "frames": _PICTURE
    | _columns(
        depth=(
            pa.binary(),
            "PNG, 16 bits: depth along the optical axis in depth_unit; 0 no surface, 65535 too far",
        ),
        instance=(pa.binary(), "PNG, 16 bits: number in the name table `instances`; 0 no object"),
        semantic=(pa.binary(), "PNG, 8 bits: number in the name table `classes`; 0 background"),
        normals=(pa.binary(), "PNG, RGB of 8 bits: (RGB - 128) / 127 in camera axes, towards the camera; all 128 none"),
        flow=(
            pa.binary(),
            """PNG, RGB of 16 bits: (R - 32768, G - 32768) / 64 px to the right and down until the next frame; bits of
            B: 1 the flow is known, 2 the point is visible in the next image; null in the last frame""",
        ),
    ),
    "objects": _PICTURE
    | _columns(
        instance=(pa.int32(), "number in the name table"),
        name=(pa.dictionary(pa.int32(), pa.string()), "of the body, or of the world's geom"),
        class_name=(pa.dictionary(pa.int32(), pa.string()), "class in the name table"),
        pixels=(pa.int32(), "its visible pixels"),
        visibility=(pa.float64(), "visible pixels / its pixels in the image if unoccluded; null: it has none there"),
        box=(vector_type(4), "left, top, right, bottom in px, edges of its visible pixels; null: it has none"),
        full_box=(
            vector_type(4),
            "of its outline with hidden parts, also outside the image; null: partly behind the camera",
        ),
        world_position=(vector_type(3), "its body in the world, m"),
        world_quaternion=(vector_type(4), "wxyz; world_from_object"),
        camera_position=(vector_type(3), "its body in camera axes, m"),
        camera_quaternion=(vector_type(4), "wxyz; camera_from_object"),
        box_centre=(vector_type(3), "centre of its box in its own axes, m; null: it is unbounded"),
        box_size=(vector_type(3), "full size of its box along its own axes, m; null: it is unbounded"),
        box_world=(vector_type(3), "centre of its box in the world, m"),
        box_camera=(vector_type(3), "centre of its box in camera axes, m"),
    ),
    "keypoints": _PICTURE
    | _columns(
        name=(pa.dictionary(pa.int32(), pa.string()), "a site's name, or NAME/corner_0 to 7 of an object's box"),
        instance=(pa.int32(), "number in the name table of the object it belongs to; 0 the world"),
        world=(vector_type(3), "in the world, m"),
        camera_point=(vector_type(3), "in camera axes, m"),
        pixel=(vector_type(2), "column and row in px, also outside the image; null: behind the camera"),
        inside=(pa.bool_(), "inside the image"),
        visible=(pa.bool_(), "inside the image and not occluded"),
    ),
    "contacts": _FRAME
    | _columns(
        time=(pa.float64(), "true time since the episode began, s"),
        body1=(pa.dictionary(pa.int32(), pa.string()), "the first body"),
        body2=(pa.dictionary(pa.int32(), pa.string()), "the second body, on which the force acts"),
        geom1=(pa.dictionary(pa.int32(), pa.string()), "geom of the first body"),
        geom2=(pa.dictionary(pa.int32(), pa.string()), "geom of the second body"),
        instance1=(pa.int32(), "number of the first body in the name table"),
        instance2=(pa.int32(), "number of the second body in the name table"),
        position=(vector_type(3), "of the contact in the world, m"),
        normal=(vector_type(3), "unit vector from the first to the second body, in world axes"),
        distance=(pa.float64(), "between the surfaces, negative where they overlap, m"),
        force=(vector_type(3), "of body1 on body2 in world axes, N; the opposite force acts on body1"),
        torque=(vector_type(3), "of body1 on body2 about the contact's position in world axes, N·m"),
    ),
    "joints": _FRAME
    | _columns(
        time=(pa.float64(), "true time since the episode began, s"),
        name=(pa.dictionary(pa.int32(), pa.string()), "of the joint; of a ball or free joint NAME/0, NAME/1, …"),
        position=(pa.float64(), "rad or m; null for ball and free joints"),
        velocity=(pa.float64(), "rad/s or m/s"),
        acceleration=(pa.float64(), "rad/s² or m/s²"),
        actuator=(pa.float64(), "torque or force of the actuators, N·m or N"),
        passive=(pa.float64(), "of springs, dampers, fluid and gravity compensation"),
        constraint=(pa.float64(), "of contacts, limits, dry friction and equalities"),
        applied=(pa.float64(), "of external forces on bodies and joints"),
        bias=(pa.float64(), "Coriolis, centrifugal and gravity, on the left of M a + bias = sum of the others"),
    ),
    "forces": _FRAME
    | _columns(
        time=(pa.float64(), "true time since the episode began, s"),
        body=(pa.dictionary(pa.int32(), pa.string()), "the body that is pushed"),
        point=(vector_type(3), "its centre of mass in the world, m"),
        force=(vector_type(3), "in world axes, N"),
        torque=(vector_type(3), "about that point in world axes, N·m"),
    ),
}


def build_table(name: str, columns: Mapping[str, Any], rows: int) -> pa.Table:
    """Build one of `TABLES` from columns, arrays ``(rows, …)`` or lists; nan and missing columns become null."""
    arrays = {}
    for column, about_it in TABLES[name].items():
        values = columns.get(column)
        arrays[column] = pa.nulls(rows, about_it.type) if values is None else _array(values, about_it.type)
    meanings = {column: about_it.meaning for column, about_it in TABLES[name].items()}
    return pa.table(arrays).replace_schema_metadata(table_metadata(f"{PREFIX}/{name}", {"columns": meanings}))


def build_document(names: Sequence[str], things: Mapping[str, Any], **settings: Any) -> dict[str, Any]:
    """Return the content of ``twinloop/annotations.json``: columns with units and codings, name table, settings."""
    return {
        "schema": layout.SCHEMA,
        "conventions": {
            "units": "SI, rad; images in px",
            "quaternions": "wxyz, w at or above 0",
            "camera_axes": "x right, y down, z forward (OpenCV)",
            "pixels": "(0, 0) is the outer corner of the first pixel, whose centre is (0.5, 0.5)",
            "transforms": "a_from_b takes coordinates in b to coordinates in a",
            "state": "the full simulator state at every step is in twinloop/states",
        },
        **settings,
        **things,
        "tables": {
            f"{PREFIX}/{name}": {
                column: {"type": str(item.type), "meaning": item.meaning} for column, item in TABLES[name].items()
            }
            for name in names
        },
    }


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, pa.string()).dictionary_encode().cast(kind)
    if pa.types.is_fixed_size_list(kind):
        rows: NDArray[np.float64] = np.asarray(values, dtype=np.float64).reshape(-1, kind.list_size)
        unknown = np.isnan(rows).any(axis=1)
        return pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), type=kind, mask=pa.array(unknown))
    if pa.types.is_float64(kind):
        return pa.array(np.asarray(values, dtype=np.float64), kind, from_pandas=True)
    return pa.array(values, kind)


class _Reader(Protocol):
    path: Path

    def side_rows(self, name: str, index: int, columns: Sequence[str] | None = None) -> pa.Table: ...


@dataclass(frozen=True, kw_only=True)
class CameraAnnotations:
    """Annotations of the ``T`` images of one episode and camera. Each property is read and decoded at first use.

    ``names`` and ``class_of`` map an instance number to its name and class; ``classes`` maps a class number to a name.

    Raises (every property): UnknownNameError if the dataset was written without this annotation.
    """

    reader: _Reader = field(repr=False)
    index: int
    camera: str
    names: dict[int, str]
    class_of: dict[int, str]
    classes: dict[int, str]
    depth_unit: float

    @classmethod
    def read(cls, reader: _Reader, index: int, camera: str) -> Self:
        """Open the annotations of one episode and camera; raises the same errors as `DatasetReader.annotations`."""
        path = reader.path / DOCUMENT
        if not path.is_file():
            raise DatasetError(f"{reader.path} has no annotations. Render it with annotations.")
        value = read_json(path)
        layout.require_keys(value, ("instances", "classes", "depth_unit"), where=str(path))
        with layout.wrap_parse_errors(str(path)):
            found = cls(
                reader=reader,
                index=index,
                camera=camera,
                names={int(i): item["name"] for i, item in value["instances"].items()},
                class_of={int(i): item["class"] for i, item in value["instances"].items()},
                classes={int(i): name for i, name in value["classes"].items()},
                depth_unit=float(value["depth_unit"]),
            )
        cameras = list(dict.fromkeys(found.rows("cameras", ["camera"])["camera"].to_pylist()))
        if camera not in cameras:
            raise UnknownNameError("camera", camera, cameras, where=f"the annotations of {reader.path}")
        return found

    def rows(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the episode's rows of one table (``cameras``, ``objects``, ``contacts``, …) for all cameras."""
        return self.reader.side_rows(f"{PREFIX}/{name}", self.index, columns)

    @cached_property
    def depth(self) -> NDArray[np.float32]:
        """Depth along the optical axis ``(T, H, W)`` in m; inf where nothing is hit or the depth is too large."""
        return decode_depth(self._decode_images("depth"), self.depth_unit)

    @cached_property
    def instance(self) -> NDArray[np.uint16]:
        """Instance numbers of the name table ``(T, H, W)``; 0 where no object is visible."""
        return self._decode_images("instance")

    @cached_property
    def semantic(self) -> NDArray[np.uint8]:
        """Class numbers of the class table ``(T, H, W)``."""
        return self._decode_images("semantic")

    @cached_property
    def normals(self) -> NDArray[np.float32]:
        """Unit surface normals in camera axes ``(T, H, W, 3)``; zero vectors without a surface."""
        return decode_normals(self._decode_images("normals"))

    @cached_property
    def flow(self) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Forward optical flow ``(T - 1, H, W, 2)`` in px, nan if unknown; mask of points visible in the next image."""
        return decode_flow(self._decode_images("flow"))

    @cached_property
    def intrinsics(self) -> tuple[Intrinsics, ...]:
        """Pinhole intrinsics of each image."""
        keys = ("fx", "fy", "cx", "cy", "width", "height")
        return tuple(Intrinsics(**{key: row[key] for key in keys}) for row in self._camera_rows("cameras").to_pylist())

    @cached_property
    def world_from_camera(self) -> NDArray[np.float64]:
        """Camera poses ``(T, 4, 4)``; camera axes are x right, y down, z forward."""
        return poses(self._camera_rows("cameras"), "world")

    @cached_property
    def objects(self) -> pa.Table:
        """Rows of the objects in the camera's images; columns in `dataset.annotations.TABLES`, matrices by `poses`."""
        return self._camera_rows("objects")

    @cached_property
    def keypoints(self) -> pa.Table:
        """Rows of the keypoints in the camera's images; columns in `dataset.annotations.TABLES`."""
        return self._camera_rows("keypoints")

    def _camera_rows(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        rows = self.rows(name, columns if columns is None else ["camera", *columns])
        return rows.filter(pa.array([name == self.camera for name in rows["camera"].to_pylist()], pa.bool_()))

    def _decode_images(self, column: str) -> NDArray[Any]:
        coded = [data for data in self._camera_rows("frames", [column])[column].to_pylist() if data is not None]
        if not coded:
            raise UnknownNameError(
                "annotation", column, self._annotation_names, where=f"the annotations of {self.reader.path}"
            )
        return np.stack([decode_png(data) for data in coded])

    @property
    def _annotation_names(self) -> list[str]:
        return list(read_json(self.reader.path / DOCUMENT).get("annotations", []))


def poses(rows: pa.Table, frame: str) -> NDArray[np.float64]:
    """Return poses ``(n, 4, 4)`` in ``frame``, from the columns ``FRAME_position`` and ``FRAME_quaternion``."""
    from scipy.spatial.transform import Rotation  # takes longer to load than most readings of a dataset

    position, turn = (vectors(rows[f"{frame}_{part}"]) for part in ("position", "quaternion"))
    pose = np.tile(np.eye(4), (len(position), 1, 1))
    if len(position):
        pose[:, :3, :3] = Rotation.from_quat(turn, scalar_first=True).as_matrix()
    pose[:, :3, 3] = position
    return pose


def vectors(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """Return a column of vectors as an array ``(n, width)``, with nan in null rows."""
    array = column.combine_chunks()
    width = array.type.list_size
    values = np.full((len(array), width), np.nan)
    values[array.is_valid().to_numpy(zero_copy_only=False)] = array.flatten().to_numpy().reshape(-1, width)
    return values
