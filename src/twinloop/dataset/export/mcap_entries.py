"""Convert the time series of an episode to MCAP messages in order of time, one generator per topic to limit memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.dataset.annotations import PREFIX
from twinloop.dataset.export import mcap_messages as messages
from twinloop.dataset.export import video_samples as video
from twinloop.dataset.export.mcap_messages import SCHEMAS
from twinloop.dataset.export.streams import BodyPoses, EpisodeStreams, GroundTruth, TimeSeries

DATASET, JOINTS, SIGNALS, CAMERA = "/dataset/", "/joints/", "/signals/", "/camera/"
_CONTACTS = ["frame_index", "body1", "body2", "geom1", "geom2", "position", "normal", "distance", "force", "torque"]
_CAMERAS = ["frame_index", "camera", "width", "height", "fx", "fy", "cx", "cy", "world_position", "world_quaternion"]
_NS = 1e9


@dataclass(frozen=True, kw_only=True)
class McapMessage:
    """One MCAP message.

    Attributes:
        time_ns: Time in ns.
        topic: Name of the topic.
        schema: Name of the schema.
        definition: JSON Schema of the message.
        message: Content.
    """

    time_ns: int
    topic: str
    schema: str
    definition: Mapping[str, Any]
    message: messages.Message


def to_nanoseconds(time: NDArray[np.float64]) -> NDArray[np.int64]:
    """Convert times in s to integer nanoseconds."""
    return np.rint(np.asarray(time, dtype=np.float64) * _NS).astype(np.int64)


def list_message_streams(
    streams: EpisodeStreams,
    truth: GroundTruth,
    cameras: Sequence[str],
    zero: int,
    notes: list[str],
    *,
    copy_packets: bool,
) -> list[Iterator[McapMessage]]:
    """Return one iterator of messages per topic, each in order of time.

    Args:
        streams: The episode.
        truth: Data of the simulator that the dataset does not have.
        cameras: Names of the cameras to export.
        zero: Time of the file at which the episode's time is 0, in ns.
        notes: List to which remarks for the user are added.
        copy_packets: Whether video packets are copied if possible. If false, images are stored as JPEG.
    """
    at = (to_nanoseconds(streams.time) + zero).tolist()
    found = [
        _log_messages(streams, truth, zero),
        *(_number_messages(DATASET + channel.name, channel, zero) for channel in streams.features()),
        *(_joint_messages(channel, zero) for channel in streams.joints_si(truth.command)),
        *(_number_messages(SIGNALS + channel.name, channel, zero) for channel in streams.signals()),
    ]
    if not any(True for _ in streams.joints_si()):
        notes.append("joint units unknown: no joint states in rad, only the dataset's numbers")
    bodies = truth.bodies(streams.index)
    if bodies is not None:
        found += [_shape_messages(bodies, at), _transform_messages(bodies, at)]
    found += _contact_messages(streams, at)
    for camera in cameras:
        found += [
            _image_messages(streams, camera, at, notes, copy_packets=copy_packets),
            *_calibration_messages(streams, camera, at),
        ]
    return found


def _foxglove_message(at: int, topic: str, schema: str, message: messages.Message) -> McapMessage:
    return McapMessage(time_ns=at, topic=topic, schema=schema, definition=SCHEMAS[schema], message=message)


def _log_messages(streams: EpisodeStreams, truth: GroundTruth, zero: int) -> Iterator[McapMessage]:
    events = sorted([*streams.events(), *truth.events(streams.index)], key=lambda event: event.time)
    for event in events:
        at = int(to_nanoseconds(np.array(event.time))) + zero
        yield _foxglove_message(at, "/log", "foxglove.Log", messages.make_log_message(at, event))


def _number_messages(topic: str, channel: TimeSeries, zero: int) -> Iterator[McapMessage]:
    fields, definition = messages.field_names(channel.columns), messages.numbers_schema(channel)
    schema = "twinloop" + topic.replace("/", ".")
    for at, row in zip((to_nanoseconds(channel.time) + zero).tolist(), channel.values.tolist(), strict=True):
        message = messages.make_numbers_message(at, fields, row)
        yield McapMessage(time_ns=at, topic=topic, schema=schema, definition=definition, message=message)


def _joint_messages(channel: TimeSeries, zero: int) -> Iterator[McapMessage]:
    quantity = "position" if channel.units[0] in ("rad", "m") else "effort"
    for at, row in zip((to_nanoseconds(channel.time) + zero).tolist(), channel.values.tolist(), strict=True):
        message = messages.make_joint_states(at, channel.columns, row, quantity)
        yield _foxglove_message(at, JOINTS + channel.name, "foxglove.JointStates", message)


def _shape_messages(bodies: BodyPoses, at: Sequence[int]) -> Iterator[McapMessage]:
    yield _foxglove_message(at[0], "/scene", "foxglove.SceneUpdate", messages.make_shapes_scene(at[0], bodies))


def _transform_messages(bodies: BodyPoses, at: Sequence[int]) -> Iterator[McapMessage]:
    for frame, when in enumerate(at):
        poses = zip(bodies.names, bodies.position[frame].tolist(), bodies.quaternion[frame].tolist(), strict=True)
        message = {"transforms": [messages.make_transform(when, *pose) for pose in poses]}
        yield _foxglove_message(when, "/tf", "foxglove.FrameTransforms", message)


def _contact_messages(streams: EpisodeStreams, at: Sequence[int]) -> list[Iterator[McapMessage]]:
    """Return two iterators: contacts as numbers, and contact forces as arrows.

    Both have one message per frame, also for frames without contacts. The list is empty if the dataset has no contacts.
    ``at`` is the time of each frame in ns.
    """
    table = streams.rows(f"{PREFIX}/contacts", _CONTACTS)
    if table is None:
        return []
    frames: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in table.to_pylist():
        frames[row["frame_index"]].append(row)

    def frame_messages(topic: str, schema: str, make: Any) -> Iterator[McapMessage]:
        for frame, when in enumerate(at):
            yield _foxglove_message(when, topic, schema, make(when, frames.get(frame, [])))

    return [
        frame_messages("/contacts", "twinloop.Contacts", messages.make_contacts_message),
        frame_messages("/contacts/arrows", "foxglove.SceneUpdate", messages.make_contacts_scene),
    ]


def _image_messages(
    streams: EpisodeStreams, camera: str, at: Sequence[int], notes: list[str], *, copy_packets: bool
) -> Iterator[McapMessage]:
    clip = streams.clip(camera)
    samples = video.copy_samples(clip) if clip is not None and copy_packets else None
    if samples is not None:
        schema, form, content = "foxglove.CompressedVideo", samples.format, iter(samples.data)
    else:
        schema, form, content = (
            "foxglove.CompressedImage",
            "jpeg",
            map(video.encode_jpeg, streams.decode_images(camera)),
        )
        if copy_packets:
            notes.append(f"{camera}: images cannot be copied as packets and are stored as JPEG")
    for when, data in zip(at, content, strict=True):
        yield _foxglove_message(when, CAMERA + camera, schema, messages.make_image_message(when, camera, data, form))


def _calibration_messages(streams: EpisodeStreams, camera: str, at: Sequence[int]) -> list[Iterator[McapMessage]]:
    """Return two iterators: intrinsics and pose of a camera at each annotated frame.

    The list is empty if the dataset has no camera annotations. ``at`` is the time of each frame in ns.
    """
    table = streams.rows(f"{PREFIX}/cameras", _CAMERAS)
    if table is None:
        return []
    rows = [row for row in table.to_pylist() if row["camera"] == camera]

    def pinholes() -> Iterator[McapMessage]:
        for row in rows:
            when = at[row["frame_index"]]
            message = messages.make_calibration(when, camera, row)
            yield _foxglove_message(when, f"{CAMERA}{camera}/calibration", "foxglove.CameraCalibration", message)

    def poses() -> Iterator[McapMessage]:
        for row in rows:
            when = at[row["frame_index"]]
            pose = messages.make_transform(when, camera, row["world_position"], row["world_quaternion"])
            yield _foxglove_message(when, f"{CAMERA}{camera}/tf", "foxglove.FrameTransforms", {"transforms": [pose]})

    return [pinholes(), poses()]
