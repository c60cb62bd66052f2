"""Build the messages of an exported MCAP file, with their JSON Schemas; Foxglove displays them without extensions.

Names and fields follow Foxglove's documented message schemas (docs.foxglove.dev/docs/sdk/schemas). Times consist of
integer seconds and nanoseconds; bytes are encoded as base64.

Numbers without a Foxglove schema are flat objects with one field per column. Values that are not finite are null,
because JSON cannot represent them.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.dataset.export.streams import ARROW_M_PER_N, BodyPoses, BodyShape, StreamEvent, TimeSeries


def object_schema(
    required: Mapping[str, Any], optional: Mapping[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """Return the JSON Schema of an object with required and optional fields.

    Args:
        required: Schema of each required field, by name.
        optional: Schema of each optional field, by name.
        more: Further keywords of the schema, such as ``title``.
    """
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required), **more}


def _list(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": dict(items)}


_INTEGER, _NUMBER, _TEXT, _BOOLEAN = ({"type": kind} for kind in ("integer", "number", "string", "boolean"))
MAYBE = {"type": ["number", "null"]}
_BYTES = {"type": "string", "contentEncoding": "base64"}
_PART = {"type": "integer", "minimum": 0}
TIME = object_schema({"sec": _PART, "nsec": _PART}, title="time")
_DURATION = object_schema({"sec": _INTEGER, "nsec": _PART}, title="duration")
_VECTOR = object_schema(dict.fromkeys("xyz", _NUMBER), title="foxglove.Vector3")
_POINT = object_schema(dict.fromkeys("xyz", _NUMBER), title="foxglove.Point3")
_TURN = object_schema(dict.fromkeys("xyzw", _NUMBER), title="foxglove.Quaternion")
_COLOR = object_schema(dict.fromkeys("rgba", _NUMBER), title="foxglove.Color")
_POSE = object_schema({"position": _VECTOR, "orientation": _TURN}, title="foxglove.Pose")
_SOLID = {"pose": _POSE, "size": _VECTOR, "color": _COLOR}
_ENTITY = object_schema(
    {
        "timestamp": TIME,
        "frame_id": _TEXT,
        "id": _TEXT,
        "lifetime": _DURATION,
        "frame_locked": _BOOLEAN,
        "metadata": _list(object_schema({"key": _TEXT, "value": _TEXT})),
        "arrows": _list(
            object_schema(
                {
                    "pose": _POSE,
                    **dict.fromkeys(("shaft_length", "shaft_diameter", "head_length", "head_diameter"), _NUMBER),
                    "color": _COLOR,
                }
            )
        ),
        "cubes": _list(object_schema(_SOLID)),
        "spheres": _list(object_schema(_SOLID)),
        "cylinders": _list(object_schema({**_SOLID, "bottom_scale": _NUMBER, "top_scale": _NUMBER})),
        "lines": _list({}),
        "triangles": _list(
            object_schema(
                {
                    "pose": _POSE,
                    "points": _list(_POINT),
                    "color": _COLOR,
                    "colors": _list(_COLOR),
                    "indices": _list(_INTEGER),
                }
            )
        ),
        "texts": _list({}),
        "models": _list({}),
    },
    title="foxglove.SceneEntity",
)
_DELETION = object_schema({"timestamp": TIME, "type": _INTEGER, "id": _TEXT})
_JOINT = object_schema({"name": _TEXT}, dict.fromkeys(("position", "velocity", "acceleration", "effort"), MAYBE))
_TRANSFORM = object_schema(
    {"timestamp": TIME, "parent_frame_id": _TEXT, "child_frame_id": _TEXT, "translation": _VECTOR, "rotation": _TURN}
)

SCHEMAS: dict[str, dict[str, Any]] = {
    "foxglove.CompressedVideo": object_schema({"timestamp": TIME, "frame_id": _TEXT, "data": _BYTES, "format": _TEXT}),
    "foxglove.CompressedImage": object_schema({"timestamp": TIME, "frame_id": _TEXT, "data": _BYTES, "format": _TEXT}),
    "foxglove.CameraCalibration": object_schema(
        {
            "timestamp": TIME,
            "frame_id": _TEXT,
            "width": _INTEGER,
            "height": _INTEGER,
            "distortion_model": _TEXT,
            **dict.fromkeys("DKRP", _list(_NUMBER)),
        }
    ),
    "foxglove.FrameTransforms": object_schema({"transforms": _list(_TRANSFORM)}),
    "foxglove.JointStates": object_schema({"timestamp": TIME, "joints": _list(_JOINT)}),
    "foxglove.Log": object_schema(
        {"timestamp": TIME, "level": _INTEGER, "message": _TEXT, "name": _TEXT, "file": _TEXT, "line": _INTEGER}
    ),
    "foxglove.SceneUpdate": object_schema({"deletions": _list(_DELETION), "entities": _list(_ENTITY)}),
    "twinloop.Contacts": object_schema(
        {
            "timestamp": TIME,
            "contacts": _list(
                object_schema(
                    {
                        "body1": _TEXT,
                        "body2": _TEXT,
                        "geom1": _TEXT,
                        "geom2": _TEXT,
                        "distance": MAYBE,
                        **dict.fromkeys(("position", "normal", "force", "torque"), _list(MAYBE)),
                    }
                )
            ),
        },
        description="Contacts with force and torque of body 1 on body 2: m, N and N·m in world axes.",
    ),
}


Message = dict[str, Any]
WORLD = "world"
_LEVELS = {"info": 2, "warning": 3, "error": 4}  # of foxglove.Log
_NS = 1_000_000_000
_RED = (0.9, 0.2, 0.1, 0.9)


def encode_message(message: Message) -> bytes:
    """Encode a message as compact JSON in UTF-8."""
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def to_timestamp(nanoseconds: int) -> Message:
    """Convert a time in ns to Foxglove's time object with ``sec`` and ``nsec``."""
    return {"sec": nanoseconds // _NS, "nsec": nanoseconds % _NS}


def replace_nonfinite(values: Sequence[float]) -> list[float | None]:
    """Replace values that are not finite by None."""
    return [value if math.isfinite(value) else None for value in values]


def field_names(columns: Sequence[str]) -> list[str]:
    """Return a unique field name for each column.

    Names consist of letters, digits and underscores only, as Foxglove's message paths require.
    """
    made = [re.sub(r"\W", "_", column) for column in columns]
    made = [f"column_{name}" if not name or name[0].isdigit() or name == "timestamp" else name for name in made]
    return made if len(set(made)) == len(made) else [f"{name}_{i}" for i, name in enumerate(made)]


def numbers_schema(channel: TimeSeries) -> dict[str, Any]:
    """Return the JSON Schema of a time series; the description of each field states its column and unit."""
    pairs = zip(field_names(channel.columns), channel.columns, channel.units, strict=True)
    return object_schema(
        {
            "timestamp": TIME,
            **{
                name: {**MAYBE, "description": f"{column}, {unit}" if unit else f"{column}, unit unknown"}
                for name, column, unit in pairs
            },
        }
    )


def make_numbers_message(at: int, fields: Sequence[str], values: Sequence[float]) -> Message:
    """Build the message for one row of a time series.

    Args:
        at: Time in ns.
        fields: Field names, see `field_names`.
        values: Value of each field.
    """
    return {"timestamp": to_timestamp(at), **dict(zip(fields, replace_nonfinite(values), strict=True))}


def make_joint_states(at: int, joints: Sequence[str], values: Sequence[float], quantity: str) -> Message:
    """Build a ``foxglove.JointStates`` message.

    Args:
        at: Time in ns.
        joints: Joint names.
        values: Value of each joint.
        quantity: Field of the values: ``position`` (rad or m) or ``effort`` (N·m or N).
    """
    pairs = zip(joints, replace_nonfinite(values), strict=True)
    return {"timestamp": to_timestamp(at), "joints": [{"name": name, quantity: value} for name, value in pairs]}


def make_log_message(at: int, event: StreamEvent) -> Message:
    """Build a ``foxglove.Log`` message for an event at time ``at`` in ns."""
    words = {"message": event.text, "name": "twinloop", "file": "", "line": 0}
    return {"timestamp": to_timestamp(at), "level": _LEVELS[event.level], **words}


def make_image_message(at: int, camera: str, data: bytes, form: str) -> Message:
    """Build the message of one image (``foxglove.CompressedVideo`` or ``foxglove.CompressedImage``).

    Args:
        at: Time in ns.
        camera: Name of the camera, also of its coordinate frame.
        data: Video packet or encoded image.
        form: Foxglove's name of the format, such as ``h264`` or ``jpeg``.
    """
    return {"timestamp": to_timestamp(at), "frame_id": camera, "data": base64.b64encode(data).decode(), "format": form}


def make_calibration(at: int, camera: str, row: Mapping[str, Any]) -> Message:
    """Build a ``foxglove.CameraCalibration`` message at time ``at`` in ns.

    The principal point is shifted by half a pixel, because integer coordinates are pixel corners in twinloop and pixel
    centres in ROS.

    Args:
        row: Row of the side table ``annotations/cameras``: image size, ``fx``, ``fy``, ``cx`` and ``cy`` in pixels.
    """
    fx, fy, cx, cy = row["fx"], row["fy"], row["cx"] - 0.5, row["cy"] - 0.5
    return {
        "timestamp": to_timestamp(at),
        "frame_id": camera,
        "width": row["width"],
        "height": row["height"],
        "distortion_model": "plumb_bob",
        "D": [0.0] * 5,
        "K": [fx, 0.0, cx, 0.0, fy, cy, 0.0, 0.0, 1.0],
        "R": [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
        "P": [fx, 0.0, cx, 0.0, 0.0, fy, cy, 0.0, 0.0, 0.0, 1.0, 0.0],
    }


def make_transform(at: int, child: str, position: Sequence[float], wxyz: Sequence[float]) -> Message:
    """Build the transform from the coordinate frame ``child`` to the world.

    Args:
        at: Time in ns.
        child: Name of the coordinate frame.
        position: Position in the world in m.
        wxyz: Orientation in the world, as a quaternion.
    """
    return {
        "timestamp": to_timestamp(at),
        "parent_frame_id": WORLD,
        "child_frame_id": child,
        "translation": _xyz(position),
        "rotation": _xyzw(wxyz),
    }


def make_shapes_scene(at: int, bodies: BodyPoses) -> Message:
    """Build a ``foxglove.SceneUpdate`` message with the shapes of all bodies, fixed to the bodies' coordinate frames.

    It deletes all earlier entities. ``at`` is the time in ns.
    """
    names = dict.fromkeys(shape.body for shape in bodies.shapes)
    entities = [_entity(at, name, name, [s for s in bodies.shapes if s.body == name]) for name in names]
    return {"deletions": [{"timestamp": to_timestamp(at), "type": 1, "id": ""}], "entities": entities}


def make_contacts_scene(at: int, contacts: Sequence[Mapping[str, Any]]) -> Message:
    """Build a ``foxglove.SceneUpdate`` message with contact forces as arrows; it replaces the previous arrows.

    Args:
        at: Time in ns.
        contacts: Rows of the side table ``annotations/contacts`` for one frame.
    """
    arrows = [_arrow(row["position"], row["force"]) for row in contacts if np.linalg.norm(row["force"]) > 0]
    return {"deletions": [], "entities": [{**_entity(at, "contacts", WORLD, []), "arrows": arrows}]}


def make_contacts_message(at: int, contacts: Sequence[Mapping[str, Any]]) -> Message:
    """Build a message with bodies, geoms, position, normal, distance, force and torque of each contact.

    Args:
        at: Time in ns.
        contacts: Rows of the side table ``annotations/contacts`` for one frame.
    """
    keys = ("body1", "body2", "geom1", "geom2")
    rows = [
        {
            **{key: str(row[key] or "") for key in keys},
            "distance": replace_nonfinite([row["distance"]])[0],
            **{key: replace_nonfinite(row[key]) for key in ("position", "normal", "force", "torque")},
        }
        for row in contacts
    ]
    return {"timestamp": to_timestamp(at), "contacts": rows}


def _entity(at: int, name: str, frame: str, shapes: Sequence[BodyShape]) -> Message:
    empty: Message = {key: [] for key in ("metadata", "arrows", "lines", "texts", "models")}
    return {
        "timestamp": to_timestamp(at),
        "frame_id": frame,
        "id": name,
        "lifetime": {"sec": 0, "nsec": 0},
        "frame_locked": True,
        **empty,
        "cubes": [_solid(s, [2 * x for x in s.size]) for s in shapes if s.kind == "box"],
        "spheres": [_solid(s, _full_size(s)) for s in shapes if s.kind in ("sphere", "ellipsoid")],
        "cylinders": [_cylinder(s) for s in shapes if s.kind in ("cylinder", "capsule")],
        "triangles": [_triangles(s) for s in shapes if s.kind == "mesh"],
    }


def _full_size(shape: BodyShape) -> list[float]:
    sides = shape.size if shape.kind == "ellipsoid" else (shape.size[0],) * 3
    return [2 * x for x in sides]


def _cylinder(shape: BodyShape) -> Message:
    """Return a Foxglove cylinder for a cylinder or capsule; the round ends of a capsule are omitted."""
    radius, half = shape.size[:2]
    return {**_solid(shape, [2 * radius, 2 * radius, 2 * half]), "bottom_scale": 1.0, "top_scale": 1.0}


def _triangles(shape: BodyShape) -> Message:
    vertices = np.asarray(shape.vertices, dtype=np.float64).tolist()
    faces: NDArray[np.int32] = np.asarray(shape.faces)
    return {
        "pose": _pose(shape.position, shape.quaternion),
        "points": [_xyz(point) for point in vertices],
        "color": _color(shape.rgba),
        "colors": [],
        "indices": faces.ravel().tolist(),
    }


def _solid(shape: BodyShape, size: Sequence[float]) -> Message:
    pose = _pose(shape.position, shape.quaternion)
    return {"pose": pose, "size": _xyz(size), "color": _color(shape.rgba)}


def _arrow(position: Sequence[float], force: Sequence[float]) -> Message:
    """Return an arrow at a contact in the direction of its force; without rotation, Foxglove's arrows point along x."""
    length = float(np.linalg.norm(force))
    x, y, z = (component / length for component in force)
    # The quaternion that rotates the x axis to a unit vector: (1 + x, 0, -z, y), normalized; half a turn if opposite.
    turn = np.array([1 + x, 0.0, -z, y]) if x > -1 + 1e-9 else np.array([0.0, 0.0, 1.0, 0.0])
    long = length * ARROW_M_PER_N
    return {
        "pose": _pose(position, (turn / np.linalg.norm(turn)).tolist()),
        "shaft_length": 0.8 * long,
        "shaft_diameter": 0.003,
        "head_length": 0.2 * long,
        "head_diameter": 0.006,
        "color": _color(_RED),
    }


def _pose(position: Sequence[float], wxyz: Sequence[float]) -> Message:
    return {"position": _xyz(position), "orientation": _xyzw(wxyz)}


def _xyz(values: Sequence[float]) -> Message:
    return dict(zip("xyz", map(float, values), strict=True))


def _xyzw(wxyz: Sequence[float]) -> Message:
    w, x, y, z = map(float, wxyz)
    return {"x": x, "y": y, "z": z, "w": w}


def _color(rgba: Sequence[float]) -> Message:
    return dict(zip("rgba", map(float, rgba), strict=True))
