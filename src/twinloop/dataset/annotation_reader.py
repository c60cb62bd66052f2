"""The annotations of one episode and camera, read back: pictures as numbers, poses as matrices, the rest as tables."""

from __future__ import annotations

from collections.abc import Sequence
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
from twinloop.dataset import layout
from twinloop.dataset.annotation_pictures import decode_depth, decode_flow, decode_normals, decode_png
from twinloop.dataset.annotations import DOCUMENT, PREFIX


class _Reader(Protocol):
    path: Path

    def side_rows(self, name: str, index: int, columns: Sequence[str] | None = None) -> pa.Table: ...


@dataclass(frozen=True, kw_only=True)
class CameraAnnotations:
    """What is known of the ``T`` pictures of an episode from one camera; each is read and decoded when asked for.

    ``names`` and ``classes`` are the name table: of instances by number, and of classes.

    Raises (of every property): UnknownNameError where the dataset was written without it.
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
        """Of one episode of a dataset; see `DatasetReader.annotations`."""
        path = reader.path / DOCUMENT
        if not path.is_file():
            raise DatasetError(f"{reader.path} has no annotations. Render it with them.")
        value = read_json(path)
        layout.require_keys(value, ("instances", "classes", "depth_unit"), where=str(path))
        with layout.understood(str(path)):
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
        """All rows of the episode in one of the tables (``cameras``, ``objects``, ``contacts``, …), of every camera."""
        return self.reader.side_rows(f"{PREFIX}/{name}", self.index, columns)

    @cached_property
    def depth(self) -> NDArray[np.float32]:
        """Distances along the optical axis ``(T, H, W)`` in m, inf where there is nothing or it is too far to tell."""
        return decode_depth(self._pictures("depth"), self.depth_unit)

    @cached_property
    def instance(self) -> NDArray[np.uint16]:
        """Numbers of the name table ``(T, H, W)``, 0 where there is nothing."""
        return self._pictures("instance")

    @cached_property
    def semantic(self) -> NDArray[np.uint8]:
        """Numbers of the class table ``(T, H, W)``."""
        return self._pictures("semantic")

    @cached_property
    def normals(self) -> NDArray[np.float32]:
        """Unit normals in camera axes ``(T, H, W, 3)``, 0 where there are none."""
        return decode_normals(self._pictures("normals"))

    @cached_property
    def flow(self) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Forward flow ``(T - 1, H, W, 2)`` in px, nan where there is none; which points the next picture shows."""
        return decode_flow(self._pictures("flow"))

    @cached_property
    def intrinsics(self) -> tuple[Intrinsics, ...]:
        """The pinhole of each picture."""
        keys = ("fx", "fy", "cx", "cy", "width", "height")
        return tuple(Intrinsics(**{key: row[key] for key in keys}) for row in self._own("cameras").to_pylist())

    @cached_property
    def world_from_camera(self) -> NDArray[np.float64]:
        """Poses ``(T, 4, 4)`` in camera axes x right, y down, z forward."""
        return poses(self._own("cameras"), "world")

    @cached_property
    def objects(self) -> pa.Table:
        """Rows of things in the camera's pictures; see `dataset.annotations.TABLES`, and `poses` for matrices."""
        return self._own("objects")

    @cached_property
    def keypoints(self) -> pa.Table:
        """Rows of keypoints in the camera's pictures; see `dataset.annotations.TABLES`."""
        return self._own("keypoints")

    def _own(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        rows = self.rows(name, columns if columns is None else ["camera", *columns])
        return rows.filter(pa.array([name == self.camera for name in rows["camera"].to_pylist()], pa.bool_()))

    def _pictures(self, column: str) -> NDArray[Any]:
        coded = [data for data in self._own("frames", [column])[column].to_pylist() if data is not None]
        if not coded:
            raise UnknownNameError("annotation", column, self._given, where=f"the annotations of {self.reader.path}")
        return np.stack([decode_png(data) for data in coded])

    @property
    def _given(self) -> list[str]:
        return list(read_json(self.reader.path / DOCUMENT).get("annotations", []))


def poses(rows: pa.Table, frame: str) -> NDArray[np.float64]:
    """Matrices ``(n, 4, 4)`` of a table's ``FRAME_position`` and ``FRAME_quaternion``: ``frame`` from what is posed."""
    from scipy.spatial.transform import Rotation  # takes longer to load than most readings of a dataset

    position, turn = (vectors(rows[f"{frame}_{part}"]) for part in ("position", "quaternion"))
    pose = np.tile(np.eye(4), (len(position), 1, 1))
    if len(position):
        pose[:, :3, :3] = Rotation.from_quat(turn, scalar_first=True).as_matrix()
    pose[:, :3, 3] = position
    return pose


def vectors(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """A column of vectors ``(n, width)``, nan where it is null."""
    array = column.combine_chunks()
    width = array.type.list_size
    values = np.full((len(array), width), np.nan)
    values[array.is_valid().to_numpy(zero_copy_only=False)] = array.flatten().to_numpy().reshape(-1, width)
    return values
