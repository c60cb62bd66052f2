"""Log the time series of an episode as Rerun entities; each entity is one chunk of columns, not one call per frame.

=========================  ==========================================================================
``joints/NAME/commanded``  commanded joint value: rad or m, or N·m or N for torques and forces
``joints/NAME/measured``   measured joint value in rad or m
``dataset/FEATURE``        numeric features of the dataset, one line per column
``signals/NAME``           samples with their own times, one line per column
``cameras/NAME``           video or images
``world/BODY``             pose of a body, with its shapes below it
``world/contacts``         contact forces as arrows
``log``, ``about``         texts at their times; a page on the origin of the episode
``features``               the features of ``info.json``, and the number of frames
=========================  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.files import dumps
from twinloop.dataset.annotations import PREFIX
from twinloop.dataset.export import video_samples as video
from twinloop.dataset.export.streams import ARROW_M_PER_N, BodyPoses, BodyShape, EpisodeStreams, GroundTruth, TimeSeries

WORLD, CAMERAS, JOINTS, DATASET, SIGNALS = "world", "cameras", "joints", "dataset", "signals"
LOG, ABOUT, FEATURES = "log", "about", "features"
_LEVELS = {"info": "INFO", "warning": "WARN", "error": "ERROR"}
_CONTACTS = ["frame_index", "position", "force"]
_RED = (230, 50, 25)


def log_episode(
    recording: Any, streams: EpisodeStreams, truth: GroundTruth, cameras: Sequence[str], *, copy_packets: bool
) -> list[str]:
    """Log all time series of an episode to a recording; return notes on content that was left out or changed.

    Args:
        recording: Open Rerun recording stream.
        streams: The episode.
        truth: Data of the simulator that the dataset does not have.
        cameras: Names of the cameras to export.
        copy_packets: Whether video packets are copied if possible. If false, images are stored as JPEG.
    """
    logger = _Logger(recording, streams)
    notes: list[str] = []
    logger.log_about()
    logger.log_events(truth)
    joints = list(streams.joints_si(truth.command))
    for channel in joints:
        for one in channel.split_columns():
            (name,) = one.columns
            logger.log_scalars(f"{JOINTS}/{escape_name(name)}/{channel.name}", one, [f"{name} {channel.name}"])
    if not joints:
        notes.append("joint units unknown: no joints in rad, only the dataset's numbers")
    for channel in streams.features():
        logger.log_scalars(f"{DATASET}/{escape_name(channel.name)}", channel, channel.columns)
    for channel in streams.signals():
        logger.log_scalars(f"{SIGNALS}/{escape_name(channel.name)}", channel, channel.columns, frames=False)
    for camera in cameras:
        logger.log_camera(camera, notes, copy_packets=copy_packets)
    logger.log_contacts()
    bodies = truth.bodies(streams.index)
    if bodies is not None:
        logger.log_bodies(bodies)
    return notes


def escape_name(name: str) -> str:
    """Escape a name for use as one part of an entity path."""
    import rerun  # pyright: ignore[reportMissingImports]

    return str(rerun.escape_entity_path_part(name))


class _Logger:
    """Writer of one episode to an open recording.

    Args:
        recording: Open Rerun recording stream.
        streams: The episode.
    """

    def __init__(self, recording: Any, streams: EpisodeStreams) -> None:
        import rerun  # pyright: ignore[reportMissingImports]

        self._rerun, self._recording, self._streams = rerun, recording, streams

    def log_scalars(self, path: str, channel: TimeSeries, labels: Sequence[str], *, frames: bool = True) -> None:
        """Log a time series as one entity, with one labelled line per column.

        Args:
            path: Path of the entity.
            channel: The time series.
            labels: Label of each column; the unit is appended.
            frames: Whether the series has one sample per frame. The samples are then also on the timeline ``frame``.
        """
        units = [f" ({unit})" if unit else "" for unit in channel.units]
        names = [label + unit for label, unit in zip(labels, units, strict=True)]
        self._log_static(path, self._rerun.SeriesLines(names=names))
        values = self._rerun.Scalars.columns(scalars=channel.values)
        self._send_columns(path, channel.time, values, frames=frames)

    def log_events(self, truth: GroundTruth) -> None:
        """Log the events of the episode as text at their times, to the entity ``log``.

        Events of the dataset are tasks, an invalid simulation and changes of success. ``truth`` adds events such as
        labels.
        """
        found = sorted([*self._streams.events(), *truth.events(self._streams.index)], key=lambda event: event.time)
        if found:
            columns = self._rerun.TextLog.columns(
                text=[event.text for event in found], level=[_LEVELS[event.level] for event in found]
            )
            self._send_columns(LOG, np.array([event.time for event in found]), columns, frames=False)

    def log_about(self) -> None:
        """Log a Markdown text about the origin of the episode, and the dataset's features as JSON."""
        self._log_static(ABOUT, self._rerun.TextDocument(format_about_page(self._streams), media_type="text/markdown"))
        facts = {"features": self._streams.reader.info["features"], "frames": self._streams.length}
        self._log_static(FEATURES, self._rerun.TextDocument(dumps(facts), media_type="application/json"))

    def log_camera(self, camera: str, notes: list[str], *, copy_packets: bool) -> None:
        """Log a camera as a video of copied packets, or as JPEG images if packets cannot or should not be copied.

        Args:
            notes: List to which a note is added if packets cannot be copied.
            copy_packets: Whether packets are copied if possible.
        """
        rerun, path, clip = self._rerun, f"{CAMERAS}/{escape_name(camera)}", self._streams.clip(camera)
        content = video.episode_file(clip) if clip is not None and copy_packets else None
        if content is None:
            if copy_packets:
                notes.append(f"{camera}: images cannot be copied as packets and are stored as JPEG")
            images = [video.encode_jpeg(image) for image in self._streams.decode_images(camera)]
            columns = rerun.EncodedImage.columns(blob=images, media_type=["image/jpeg"] * len(images))
            self._send_columns(path, self._streams.time, columns)
            return
        asset = rerun.AssetVideo(contents=content, media_type="video/mp4")
        self._log_static(path, asset)
        shown = rerun.VideoFrameReference.columns_nanos(np.sort(asset.read_frame_timestamps_nanos()))
        self._send_columns(path, self._streams.time, shown)

    def log_contacts(self) -> None:
        """Log contact forces as arrows. Frames without contact have no arrow."""
        table = self._streams.rows(f"{PREFIX}/contacts", _CONTACTS)
        if table is None:
            return
        order = np.argsort(table["frame_index"].to_numpy(), kind="stable")
        frames = table["frame_index"].to_numpy()[order]
        position, force = (
            np.array(table[key].to_pylist(), dtype=np.float64).reshape(-1, 3)[order] for key in ("position", "force")
        )
        lengths = np.bincount(frames, minlength=self._streams.length)
        columns = self._rerun.Arrows3D.columns(vectors=force * ARROW_M_PER_N, origins=position).partition(lengths)
        self._log_static(f"{WORLD}/contacts", self._rerun.Arrows3D.from_fields(colors=[_RED]))
        self._send_columns(f"{WORLD}/contacts", self._streams.time, columns)

    def log_bodies(self, bodies: BodyPoses) -> None:
        """Log the scene: the pose of each body at each frame, and the static shapes of the bodies."""
        rerun = self._rerun
        self._log_static(WORLD, rerun.ViewCoordinates.RIGHT_HAND_Z_UP)
        for place, name in enumerate(bodies.names):
            columns = rerun.Transform3D.columns(
                translation=bodies.position[:, place], quaternion=np.roll(bodies.quaternion[:, place], -1, axis=1)
            )
            self._send_columns(f"{WORLD}/{escape_name(name)}", self._streams.time, columns)
        for number, shape in enumerate(bodies.shapes):
            below = WORLD if shape.body == WORLD else f"{WORLD}/{escape_name(shape.body)}"
            self._log_shape(f"{below}/shape_{number}", shape)

    def _log_shape(self, path: str, shape: BodyShape) -> None:
        color = [round(255 * part) for part in shape.rgba]
        turn = np.roll(shape.quaternion, -1)
        if shape.kind == "mesh":
            placed = self._rerun.Transform3D(translation=shape.position, quaternion=turn)
            mesh = self._rerun.Mesh3D(
                vertex_positions=shape.vertices, triangle_indices=shape.faces, albedo_factor=color
            )
            self._log_static(path, placed, mesh)
            return
        radius, half = shape.size[:2]
        place: dict[str, Any] = {"quaternions": [turn], "colors": [color], "fill_mode": "solid"}
        solid = {
            "box": lambda: self._rerun.Boxes3D(half_sizes=[shape.size], centers=[shape.position], **place),
            "sphere": lambda: self._ellipsoid((radius,) * 3, shape, place),
            "ellipsoid": lambda: self._ellipsoid(shape.size, shape, place),
            "cylinder": lambda: self._rerun.Cylinders3D(
                lengths=[2 * half], radii=[radius], centers=[shape.position], **place
            ),
            "capsule": lambda: self._capsule(radius, half, shape, place),
        }[shape.kind]
        self._log_static(path, solid())

    def _ellipsoid(self, sides: Sequence[float], shape: BodyShape, place: dict[str, Any]) -> Any:
        return self._rerun.Ellipsoids3D(half_sizes=[sides], centers=[shape.position], **place)

    def _capsule(self, radius: float, half: float, shape: BodyShape, place: dict[str, Any]) -> Any:
        """Return a Rerun capsule for a MuJoCo capsule.

        The origin of a Rerun capsule is at one end, that of a MuJoCo capsule at its centre.

        Args:
            radius: Radius in m.
            half: Half length of the cylinder in m.
            shape: The MuJoCo capsule with its pose.
            place: Rerun arguments that all shapes share: orientation, colour and fill mode.
        """
        w, x, y, z = shape.quaternion
        axis = np.array([2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)])
        begin = np.asarray(shape.position) - half * axis
        return self._rerun.Capsules3D(lengths=[2 * half], radii=[radius], translations=[begin], **place)

    def _log_static(self, path: str, *parts: Any) -> None:
        for part in parts:
            self._recording.log(path, part, static=True)

    def _send_columns(self, path: str, time: NDArray[np.float64], columns: Any, *, frames: bool = True) -> None:
        indexes = [self._rerun.TimeColumn("time", duration=time)]
        if frames:
            indexes.append(self._rerun.TimeColumn("frame", sequence=np.arange(len(time))))
        self._recording.send_columns(path, indexes=indexes, columns=columns)


def format_about_page(streams: EpisodeStreams) -> str:
    """Return a Markdown page on the origin of an episode: dataset, task, twin, versions and parameter values."""
    record, info = streams.provenance, streams.reader.info
    rows = {
        "dataset": streams.reader.path.resolve().name,
        "episode": streams.index,
        "name": streams.name,
        "robot": info.get("robot_type"),
        "task": "; ".join(streams.tasks),
        "frames": f"{streams.length} at {streams.reader.fps:g} per second",
        "source": record.get("source"),
        "success": record.get("success"),
        "twin": f"{record['twin']} {record['twin_hash'][:12]}" if record.get("twin") else None,
        "actor": record.get("actor"),
        "seed path": record.get("seed_path"),
        "versions": ", ".join(f"{name} {version}" for name, version in record.get("versions", {}).items()),
    }
    lines = [f"| {key} | {_escape_cell(value)} |" for key, value in rows.items() if value not in (None, "")]
    page = ["| | |", "|---|---|", *lines]
    if params := record.get("params"):
        page += [
            "",
            "| parameter (SI) | value |",
            "|---|---|",
            *(f"| {_escape_cell(k)} | {v:.6g} |" for k, v in params.items()),
        ]
    return "\n".join(page)


def _escape_cell(value: Any) -> str:
    """Escape a text for a cell of a Markdown table."""
    return str(value).replace("|", "\\|").replace("\n", " ")
