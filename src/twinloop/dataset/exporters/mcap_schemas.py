"""JSON Schemas of the messages in exported MCAP files.

Names and fields are those of Foxglove's documented message schemas (docs.foxglove.dev/docs/sdk/schemas), which the
program recognises by name; times are seconds and nanoseconds, bytes are base64.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def object_schema(
    required: Mapping[str, Any], optional: Mapping[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """An object with fields that must be there and others that may."""
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
        description="Contacts with what body 1 does to body 2: m, N and N·m in the world's axes.",
    ),
}
