"""Messages that Foxglove shows without extensions, as JSON; `mcap_schemas` has the schema of each.

Numbers that have no schema in Foxglove are flat objects with a field per column. What is not finite is null, because
JSON has no word for it.
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

from twinloop.dataset.exporters.mcap_schemas import MAYBE, TIME, object_schema
from twinloop.dataset.exporters.streams import ARROW_M_PER_N, Channel
from twinloop.dataset.exporters.truth import Bodies, Event, Shape

Message = dict[str, Any]
WORLD = "world"
_LEVELS = {"info": 2, "warning": 3, "error": 4}  # of foxglove.Log
_NS = 1_000_000_000
_RED = (0.9, 0.2, 0.1, 0.9)


def encoded(message: Message) -> bytes:
    """A message as it stands in the file."""
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def stamp(nanoseconds: int) -> Message:
    """A time in the form that Foxglove reads."""
    return {"sec": nanoseconds // _NS, "nsec": nanoseconds % _NS}


def finite(values: Sequence[float]) -> list[float | None]:
    """Numbers with None where they are not finite."""
    return [value if math.isfinite(value) else None for value in values]


def fields_of(columns: Sequence[str]) -> list[str]:
    """Names of columns as fields of a message: letters, digits and underscores, which paths in Foxglove can name."""
    made = [re.sub(r"\W", "_", column) for column in columns]
    made = [f"column_{name}" if not name or name[0].isdigit() or name == "timestamp" else name for name in made]
    return made if len(set(made)) == len(made) else [f"{name}_{i}" for i, name in enumerate(made)]


def numbers_schema(channel: Channel) -> dict[str, Any]:
    """The schema of a channel of plain numbers: each field says its column and unit."""
    pairs = zip(fields_of(channel.columns), channel.columns, channel.units, strict=True)
    return object_schema(
        {
            "timestamp": TIME,
            **{
                name: {**MAYBE, "description": f"{column}, {unit}" if unit else f"{column}, unit unknown"}
                for name, column, unit in pairs
            },
        }
    )


def numbers(at: int, fields: Sequence[str], values: Sequence[float]) -> Message:
    """One row of a channel of plain numbers."""
    return {"timestamp": stamp(at), **dict(zip(fields, finite(values), strict=True))}


def joint_states(at: int, joints: Sequence[str], values: Sequence[float], quantity: str) -> Message:
    """Joint positions in rad or m, or efforts in N·m or N."""
    pairs = zip(joints, finite(values), strict=True)
    return {"timestamp": stamp(at), "joints": [{"name": name, quantity: value} for name, value in pairs]}


def log(at: int, event: Event) -> Message:
    """Something to read."""
    words = {"message": event.text, "name": "twinloop", "file": "", "line": 0}
    return {"timestamp": stamp(at), "level": _LEVELS[event.level], **words}


def picture(at: int, camera: str, data: bytes, form: str) -> Message:
    """One picture, as a packet of video or an encoded image."""
    return {"timestamp": stamp(at), "frame_id": camera, "data": base64.b64encode(data).decode(), "format": form}


def calibration(at: int, camera: str, row: Mapping[str, Any]) -> Message:
    """The pinhole of a camera, from a row of ``annotations/cameras``; ours has pixel corners at whole numbers.

    Foxglove follows ROS, where pixel centres are, so that the centre moves by half a pixel.
    """
    fx, fy, cx, cy = row["fx"], row["fy"], row["cx"] - 0.5, row["cy"] - 0.5
    return {
        "timestamp": stamp(at),
        "frame_id": camera,
        "width": row["width"],
        "height": row["height"],
        "distortion_model": "plumb_bob",
        "D": [0.0] * 5,
        "K": [fx, 0.0, cx, 0.0, fy, cy, 0.0, 0.0, 1.0],
        "R": [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
        "P": [fx, 0.0, cx, 0.0, 0.0, fy, cy, 0.0, 0.0, 0.0, 1.0, 0.0],
    }


def transform(at: int, child: str, position: Sequence[float], wxyz: Sequence[float]) -> Message:
    """Where a frame is in the world."""
    return {
        "timestamp": stamp(at),
        "parent_frame_id": WORLD,
        "child_frame_id": child,
        "translation": _xyz(position),
        "rotation": _xyzw(wxyz),
    }


def shapes_scene(at: int, bodies: Bodies) -> Message:
    """What the bodies look like, each fixed to its frame, in place of all that was shown before."""
    names = dict.fromkeys(shape.body for shape in bodies.shapes)
    entities = [_entity(at, name, name, [s for s in bodies.shapes if s.body == name]) for name in names]
    return {"deletions": [{"timestamp": stamp(at), "type": 1, "id": ""}], "entities": entities}


def contacts_scene(at: int, contacts: Sequence[Mapping[str, Any]]) -> Message:
    """Contact forces as arrows, in place of those before."""
    arrows = [_arrow(row["position"], row["force"]) for row in contacts if np.linalg.norm(row["force"]) > 0]
    return {"deletions": [], "entities": [{**_entity(at, "contacts", WORLD, []), "arrows": arrows}]}


def contacts_numbers(at: int, contacts: Sequence[Mapping[str, Any]]) -> Message:
    """Contacts with all that is known of them."""
    keys = ("body1", "body2", "geom1", "geom2")
    rows = [
        {
            **{key: str(row[key] or "") for key in keys},
            "distance": finite([row["distance"]])[0],
            **{key: finite(row[key]) for key in ("position", "normal", "force", "torque")},
        }
        for row in contacts
    ]
    return {"timestamp": stamp(at), "contacts": rows}


def _entity(at: int, name: str, frame: str, shapes: Sequence[Shape]) -> Message:
    empty: Message = {key: [] for key in ("metadata", "arrows", "lines", "texts", "models")}
    return {
        "timestamp": stamp(at),
        "frame_id": frame,
        "id": name,
        "lifetime": {"sec": 0, "nsec": 0},
        "frame_locked": True,
        **empty,
        "cubes": [_solid(s, [2 * x for x in s.size]) for s in shapes if s.kind == "box"],
        "spheres": [_solid(s, _round(s)) for s in shapes if s.kind in ("sphere", "ellipsoid")],
        "cylinders": [_cylinder(s) for s in shapes if s.kind in ("cylinder", "capsule")],
        "triangles": [_triangles(s) for s in shapes if s.kind == "mesh"],
    }


def _round(shape: Shape) -> list[float]:
    sides = shape.size if shape.kind == "ellipsoid" else (shape.size[0],) * 3
    return [2 * x for x in sides]


def _cylinder(shape: Shape) -> Message:
    """Cylinders, and capsules without their round ends."""
    radius, half = shape.size[:2]
    return {**_solid(shape, [2 * radius, 2 * radius, 2 * half]), "bottom_scale": 1.0, "top_scale": 1.0}


def _triangles(shape: Shape) -> Message:
    vertices = np.asarray(shape.vertices, dtype=np.float64).tolist()
    faces: NDArray[np.int32] = np.asarray(shape.faces)
    return {
        "pose": _pose(shape.position, shape.quaternion),
        "points": [_xyz(point) for point in vertices],
        "color": _color(shape.rgba),
        "colors": [],
        "indices": faces.ravel().tolist(),
    }


def _solid(shape: Shape, size: Sequence[float]) -> Message:
    pose = _pose(shape.position, shape.quaternion)
    return {"pose": pose, "size": _xyz(size), "color": _color(shape.rgba)}


def _arrow(position: Sequence[float], force: Sequence[float]) -> Message:
    """An arrow along a force; Foxglove's point along x."""
    length = float(np.linalg.norm(force))
    x, y, z = (component / length for component in force)
    # The quaternion that turns x to a unit vector: (1 + x, 0, -z, y) made of length one; half a turn where they oppose.
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
