"""Describe one episode: its facts, signals, labels, scores, parameters and relatives, and its images."""

from __future__ import annotations

import functools
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from twinloop.catalog.label_checks import Vocabulary
from twinloop.core.contract import ACTION, STATE
from twinloop.core.errors import UnknownNameError
from twinloop.dataset.annotations import CameraAnnotations
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.studio.data import StudioData
from twinloop.studio.episode_list import describe_episodes
from twinloop.workflows.run.results import replace_nonfinite

_TABLES = {
    "labels": "SELECT kind, value, first_frame, last_frame, source, author, confidence, reason, said_at FROM labels "
    "WHERE episode_id = ? ORDER BY kind, first_frame, seq",
    "consensus": "SELECT kind, value, source, decided, votes, voters, conflict FROM consensus WHERE episode_id = ?",
    "scores": 'SELECT "check", channel, value, unit, "limit", verdict, reason, first_frame, last_frame FROM scores '
    "WHERE episode_id = ? ORDER BY CASE verdict WHEN 'bad' THEN 0 WHEN 'suspect' THEN 1 ELSE 2 END, \"check\", channel",
    "params": "SELECT name, value FROM params WHERE episode_id = ? ORDER BY name",
    "copies": "SELECT batch, episode_index FROM places WHERE episode_id = ? ORDER BY batch, episode_index",
    "children": "SELECT DISTINCT episode_id FROM places WHERE list_contains(parents, ?) ORDER BY 1 LIMIT 50",
    "datasets": "SELECT name, version FROM dataset_episodes WHERE episode_id = ? ORDER BY name, version",
    "policies": "SELECT DISTINCT policy, name FROM policy_episodes WHERE episode_id = ? ORDER BY name",
    "trials": "SELECT policy, suite, trial, success, score FROM latest_evaluations WHERE episode_id = ?",
}
_ORIGIN = (
    "SELECT twin, twin_hash, config_hash, sim_version, seed, number, attempt, success_version, invalid_reason, "
    "parents, transforms, licence, extra FROM places WHERE episode_id = ? ORDER BY batch, episode_index LIMIT 1"
)


def describe_episode(data: StudioData, episode_id: str) -> dict[str, Any]:
    """Return everything that the page of an episode shows, except its signals and images.

    Raises:
        UnknownNameError: If no episode has this id.
        DatasetError: If its dataset is missing or damaged.
    """
    reader, index = data.open_episode(episode_id)
    cameras = []
    for name in reader.cameras:
        _, start = reader.video_location(index, name)
        cameras.append({"name": name, "start_s": start})
    (facts,) = describe_episodes(data, [episode_id])
    return {
        "facts": facts,
        "origin": data.rows(_ORIGIN, [episode_id])[0],
        "folder": str(reader.path),
        "cameras": cameras,
        "annotated": _ANNOTATED in reader.side_tables,
        "author": data.author,
        **{name: data.rows(sql, [episode_id]) for name, sql in _TABLES.items()},
    }


def read_signals(data: StudioData, episode_id: str) -> dict[str, Any]:
    """Return the numeric signals of an episode: their names, units and values, by feature.

    Values are rounded to float32. Signals that are no vectors or numbers, such as images, are left out. An annotated
    dataset also has the contact forces between pairs of bodies.
    """
    reader, index = data.open_episode(episode_id)
    signals = []
    for feature, entry in reader.info["features"].items():
        if feature in _COUNTERS or not (
            feature in (STATE, ACTION) or entry["dtype"] in ("float32", "float64", "int64")
        ):
            continue
        values = reader.array(index, feature)
        if values.ndim > 2:
            continue
        columns = values[:, None] if values.ndim == 1 else values
        names = reader.feature_names(feature)
        if len(names) != columns.shape[1]:
            names = [str(number) for number in range(columns.shape[1])] if columns.shape[1] > 1 else [feature]
        signals.append(
            {
                "feature": feature,
                "names": names,
                "units": _list_units(reader, names) if feature in (STATE, ACTION) else [""] * len(names),
                "values": replace_nonfinite([[float(f"{v:.7g}") for v in column] for column in columns.T]),
            }
        )
    return {"fps": reader.fps, "frames": int(reader.lengths[index]), "signals": signals + _read_contacts(reader, index)}


_ANNOTATED, _CONTACTS = "annotations/frames", "annotations/contacts"
_PAIRS = 8  # of bodies in contact, those with the largest forces


def _read_contacts(reader: DatasetReader, index: int) -> list[dict[str, Any]]:
    """Return the sum of the contact forces (N) between each pair of bodies per frame, as one signal."""
    if _CONTACTS not in reader.side_tables:
        return []
    rows = reader.side_rows(_CONTACTS, index, ["frame_index", "body1", "body2", "force"])
    sums = dict[str, np.ndarray]()
    for row in rows.to_pylist():
        pair = sums.setdefault(f"{row['body1']} – {row['body2']}", np.zeros(int(reader.lengths[index])))
        pair[row["frame_index"]] += np.linalg.norm(row["force"])
    names = sorted(sums, key=lambda name: -sums[name].sum())[:_PAIRS]
    values = [[float(f"{value:.7g}") for value in sums[name]] for name in names]
    return [{"feature": "contact forces", "names": names, "units": ["N"] * len(names), "values": values}]


_COUNTERS = ("timestamp", "frame_index", "episode_index", "index", "task_index")


def _list_units(reader: DatasetReader, names: list[str]) -> list[str]:
    units = reader.units
    if units is None:
        return [""] * len(names)
    known = {joint.joint: joint.unit for joint in units.joints}
    return [str(known.get(name.removesuffix(".pos"), "")) for name in names]


def read_frame(
    data: StudioData, episode_id: str, camera: str, frame: int, *, width: int, annotated: bool = False
) -> bytes:
    """Return one image of an episode as JPEG, reduced to a width in pixels; optionally with its annotations drawn in.

    Raises:
        UnknownNameError: If the episode has no such camera or frame.
    """
    reader, index = data.open_episode(episode_id)
    length = int(reader.lengths[index])
    if not 0 <= frame < length:
        raise UnknownNameError("frame", str(frame), ["0", str(length - 1)], where=f"episode {episode_id}")
    path, _ = reader.video_location(index, camera)
    return _encode_frame(reader, index, camera, frame, width, annotated, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=2000)  # some 5 kB each
def _encode_frame(
    reader: DatasetReader, index: int, camera: str, frame: int, width: int, annotated: bool, _mtime_ns: int
) -> bytes:
    pixels = reader.images(index, camera, [frame])[0]
    if annotated:
        from twinloop.render.annotate import draw_annotations  # takes a second

        pixels = draw_annotations(pixels, _read_annotations(reader, index, camera), frame)
    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.thumbnail((width, width))
    written = io.BytesIO()
    image.save(written, "JPEG", quality=88, subsampling=0)
    return written.getvalue()


@functools.lru_cache(maxsize=4)
def _read_annotations(reader: DatasetReader, index: int, camera: str) -> CameraAnnotations:
    return reader.annotations(index, camera)


def find_video(data: StudioData, episode_id: str, camera: str) -> Path:
    """Return the video file with the images of an episode's camera."""
    reader, index = data.open_episode(episode_id)
    return reader.video_location(index, camera)[0]


def list_words(data: StudioData) -> dict[str, Any]:
    """Return the failure classes, subtasks and tags that may be given, with their meanings; None allows any word."""
    words = Vocabulary.of(data.workspace.root)
    return {"failures": words.failures, "subtasks": words.subtasks, "tags": words.tags}
