"""Declare the columns of the annotation tables (type, unit, frame, coding) and read the annotations of one camera.

Annotations are the ground truth of rendered images, for example depth, object masks, keypoints and contacts.
Each annotation table is a side table (`dataset.side_tables`) in ``twinloop/annotations/NAME/`` with one Parquet
row group per episode. Every row has ``episode_index``, ``number`` (the episode's number in its generate run) and
``frame_index``; rows about images also have ``camera``.
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
    """One column of an annotation table.

    Attributes:
        type: Arrow type.
        meaning: Text that explains the values: unit, coordinate frame and coding.
    """

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
_IMAGE = _FRAME | _columns(camera=(pa.dictionary(pa.int32(), pa.string()), "name of the camera"))

TABLES: dict[str, dict[str, AnnotationColumn]] = {
    "cameras": _IMAGE
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
    "frames": _IMAGE
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
    "objects": _IMAGE
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
    "keypoints": _IMAGE
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
    """Build one annotation table with all its columns.

    Args:
        name: Key of `TABLES`, for example ``objects``.
        columns: Values by column name, arrays of shape ``(rows, …)`` or lists. NaN and missing columns become null.
        rows: Number of rows.
    """
    arrays = {}
    for column, declared in TABLES[name].items():
        values = columns.get(column)
        arrays[column] = pa.nulls(rows, declared.type) if values is None else _array(values, declared.type)
    meanings = {column: declared.meaning for column, declared in TABLES[name].items()}
    return pa.table(arrays).replace_schema_metadata(table_metadata(f"{PREFIX}/{name}", {"columns": meanings}))


def build_document(names: Sequence[str], name_tables: Mapping[str, Any], **settings: Any) -> dict[str, Any]:
    """Return the content of ``twinloop/annotations.json``: conventions, settings, name tables and column meanings.

    Args:
        names: Names of the stored annotation tables (keys of `TABLES`).
        name_tables: Names of the numbered objects and classes, by key of the document, such as ``{"classes": {"0":
            "background"}}``.
        settings: Further entries of the document, such as ``depth_unit``.
    """
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
        **name_tables,
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
    """Annotations of the images of one episode and camera. Each property is read and decoded at its first use.

    Attributes:
        reader: Open dataset.
        index: ``episode_index`` of the episode.
        camera: Name of the camera.
        names: Object names by instance number.
        class_of: Class names by instance number.
        classes: Class names by class number.
        depth_unit: Depth in m of one step of the stored depth images.

    Raises:
        UnknownNameError: If the dataset was written without the annotation of the property.
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
        """Open the annotations of one episode and camera.

        Args:
            reader: Open dataset.
            index: ``episode_index`` of the episode.
            camera: Name of the camera.

        Raises:
            DatasetError: If the dataset has no annotations, or a file is damaged.
            UnknownNameError: If the dataset has no annotations of this camera.
        """
        path = reader.path / DOCUMENT
        if not path.is_file():
            raise DatasetError(f"{reader.path} has no annotations. Render the dataset with annotations first.")
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
        """Return the rows of one annotation table that belong to the episode, for all cameras.

        Args:
            name: Name of the table, for example ``objects`` or ``contacts``.
            columns: Columns to read; by default all.
        """
        return self.reader.side_rows(f"{PREFIX}/{name}", self.index, columns)

    @cached_property
    def depth(self) -> NDArray[np.float32]:
        """Depth along the optical axis in m, shape ``(T, H, W)`` for T images of H × W pixels.

        It is inf where no surface is visible, or where the depth is too large to be stored.
        """
        return decode_depth(self._decode_images("depth"), self.depth_unit)

    @cached_property
    def instance(self) -> NDArray[np.uint16]:
        """Instance number of each pixel, shape ``(T, H, W)`` for T images of H × W pixels; 0 for no object."""
        return self._decode_images("instance")

    @cached_property
    def semantic(self) -> NDArray[np.uint8]:
        """Class number of each pixel, shape ``(T, H, W)`` for T images of H × W pixels; 0 for the background."""
        return self._decode_images("semantic")

    @cached_property
    def normals(self) -> NDArray[np.float32]:
        """Unit surface normals in camera axes, shape ``(T, H, W, 3)`` for T images of H × W pixels.

        The normal is zero where no surface is visible.
        """
        return decode_normals(self._decode_images("normals"))

    @cached_property
    def flow(self) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Optical flow from each image to the next one, and the mask of visible points.

        The flow has the shape ``(T - 1, H, W, 2)`` for T images of H × W pixels. It is in px to the right and down, and
        NaN if it is unknown. The mask, shape ``(T - 1, H, W)``, is true if the point of the pixel is visible in the
        next image.
        """
        return decode_flow(self._decode_images("flow"))

    @cached_property
    def intrinsics(self) -> tuple[Intrinsics, ...]:
        """Pinhole intrinsics of each image, in px."""
        keys = ("fx", "fy", "cx", "cy", "width", "height")
        return tuple(Intrinsics(**{key: row[key] for key in keys}) for row in self._camera_rows("cameras").to_pylist())

    @cached_property
    def world_from_camera(self) -> NDArray[np.float64]:
        """Camera pose at each image, homogeneous matrices of shape ``(T, 4, 4)`` for T images.

        The matrices transform camera to world coordinates in m. Camera axes are x right, y down, z forward.
        """
        return poses(self._camera_rows("cameras"), "world")

    @cached_property
    def objects(self) -> pa.Table:
        """Rows of the objects in the camera's images, with the columns of ``TABLES["objects"]``.

        `poses` converts positions and quaternions to matrices.
        """
        return self._camera_rows("objects")

    @cached_property
    def keypoints(self) -> pa.Table:
        """Rows of the keypoints in the camera's images, with the columns of ``TABLES["keypoints"]``."""
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
    """Return the poses of n table rows as homogeneous matrices, shape ``(n, 4, 4)``, in m.

    Args:
        rows: Rows with the columns ``FRAME_position`` and ``FRAME_quaternion``.
        frame: FRAME, the coordinate frame of the poses: ``world`` or ``camera``.
    """
    from scipy.spatial.transform import Rotation  # takes longer to load than most readings of a dataset

    position, turn = (vectors(rows[f"{frame}_{part}"]) for part in ("position", "quaternion"))
    pose = np.tile(np.eye(4), (len(position), 1, 1))
    if len(position):
        pose[:, :3, :3] = Rotation.from_quat(turn, scalar_first=True).as_matrix()
    pose[:, :3, 3] = position
    return pose


def vectors(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """Return a column of n vectors of equal length as an array ``(n, length)``; null rows become NaN."""
    array = column.combine_chunks()
    width = array.type.list_size
    values = np.full((len(array), width), np.nan)
    values[array.is_valid().to_numpy(zero_copy_only=False)] = array.flatten().to_numpy().reshape(-1, width)
    return values
