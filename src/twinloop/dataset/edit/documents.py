"""Write the metadata of an edited dataset: LeRobot's metadata files, the edit history, and ``README.md``."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

from twinloop.core.assignment import copy_sources
from twinloop.core.documents import read_json
from twinloop.core.files import dumps, sha256_json
from twinloop.core.units import UnitMap
from twinloop.dataset.edit.source import EditSource
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.metadata import format_card
from twinloop.dataset.lerobot.progress import WriteProgress
from twinloop.dataset.lerobot.tables import tasks_table
from twinloop.dataset.media.video_copy import CODEC_NAMES, CodecParameters
from twinloop.dataset.spec import ENCODER, RUNS, TRUE_TIME, CameraSpec, DatasetSpec
from twinloop.dataset.storage.snapshot import replace_bytes

EDIT = "twinloop/edit.json"
_ENCODER_KEYS = tuple(f"video.{name}" for name in ENCODER)


@dataclass(frozen=True, kw_only=True)
class EditOperation:
    """Requested edit operation (such as ``select`` or ``merge``) and its parameters, for the edit history."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])


def update_video_features(
    features: Mapping[str, Any], codings: Mapping[str, CodecParameters], *, reencoded: Sequence[str]
) -> dict[str, Any]:
    """Return the features of ``info.json`` with codec, pixel format and size of the written videos.

    Args:
        codings: Codec parameters of the written videos, by feature key.
        reencoded: Keys of the features with re-encoded frames. Settings of the previous encoder are removed from them.
    """
    result = dict(features)
    for key, coding in codings.items():
        entry = dict(result[key])
        info = dict(entry.get("info") or {})
        if key in reencoded:
            info = {name: value for name, value in info.items() if name not in _ENCODER_KEYS}
        info |= {"video.codec": coding.codec, "video.pix_fmt": coding.pix_fmt}
        info |= {"video.height": coding.height, "video.width": coding.width}
        entry["shape"] = _video_shape(entry, coding)
        result[key] = {**entry, "info": info}
    return result


def _video_shape(entry: Mapping[str, Any], coding: CodecParameters) -> list[int]:
    """Return a video feature's shape with the height and width of the written video, in the feature's axis order."""
    sides = {"height": coding.height, "width": coding.width}
    names, shape = list(entry.get("names") or ["height", "width", "channels"]), list(entry["shape"])
    return [sides.get(str(name)) or int(old) for name, old in zip(names, shape, strict=True)]


def merge_specs(
    sources: Sequence[EditSource],
    kept: Sequence[Sequence[int]],
    *,
    name: str,
    units: UnitMap | None,
    codings: Mapping[str, CodecParameters],
) -> DatasetSpec | None:
    """Return twinloop's specification of the edited dataset; None if twinloop wrote none of the sources.

    Values come from the first source that twinloop wrote. Run configurations, licences and the dataset cards' sentences
    on randomization ranges are combined from all sources.

    Args:
        sources: The source datasets.
        kept: For each source, the indices of its episodes in the edited dataset.
        name: Name of the edited dataset.
        units: Unit map of the edited dataset; if None, that of the first source is used.
        codings: Codec parameters of the written videos, by camera key.
    """
    specs = [source.reader.spec for source in sources if source.reader.written_by_twinloop]
    if not specs:
        return None
    first = specs[0]
    config = _collect_configs(sources, kept)
    features = sources[0].features
    same_twin = len({spec.twin_hash for spec in specs}) == 1
    return replace(
        first,
        name=name,
        units=units or first.units,
        cameras=tuple(
            _resize_camera(camera, codings.get(camera.key)) for camera in first.cameras if camera.key in features
        ),
        readings=tuple(reading for reading in first.readings if reading.key in features),
        success=first.success and "next.success" in features,
        unsteady=first.unsteady and TRUE_TIME in features,
        config=config,
        twin_hash=first.twin_hash if same_twin else "",
        config_hash=sha256_json(config),
        licence="; ".join(dict.fromkeys(spec.licence for spec in specs if spec.licence)),
        ranges=tuple(dict.fromkeys(line for spec in specs for line in spec.ranges)),
        sources={name: file for spec in specs for name, file in spec.sources.items()},
    )


def _resize_camera(camera: CameraSpec, coding: CodecParameters | None) -> CameraSpec:
    return camera if coding is None else replace(camera, height=coding.height, width=coding.width)


def _collect_configs(sources: Sequence[EditSource], kept: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return the run configurations of the kept episodes, by the ``config_hash`` in their provenance.

    Args:
        kept: For each source, the indices of its episodes in the edited dataset.
    """
    found: dict[str, Any] = {}
    for source, indices in zip(sources, kept, strict=True):
        config = source.reader.spec.config if source.reader.written_by_twinloop else {}
        if not config:
            continue
        hashes = source.column("provenance/config_hash")
        for name in dict.fromkeys(hashes[index] for index in indices if hashes[index]):
            found.setdefault(name, config[RUNS].get(name) if RUNS in config else dict(config))
    found = {name: config for name, config in found.items() if config}
    return {RUNS: found} if found else {}


@dataclass(frozen=True, kw_only=True)
class EditMetadata:
    """Content of the metadata files of an edited dataset.

    Attributes:
        name: Name of the dataset.
        sources: The source datasets.
        operation: The edit and its parameters, for the edit history.
        info: Entries of ``info.json`` from the sources; totals, paths and features are replaced.
        features: Features of ``info.json``.
        tasks: Task texts in the order of their indices.
        episodes: Number of episodes.
        frames: Number of frames.
        stats: Content of ``stats.json``.
        spec: twinloop's specification of the dataset; None if twinloop wrote none of the sources.
        units: Unit map; None if no source has one.
        progress: The written blocks and their totals (content of ``twinloop/progress.json``).
        notes: Remarks for the user, which the dataset card and the edit history list.
    """

    name: str
    sources: Sequence[EditSource]
    operation: EditOperation
    info: Mapping[str, Any]
    features: Mapping[str, Any]
    tasks: Sequence[str]
    episodes: int
    frames: int
    stats: Mapping[str, Any]
    spec: DatasetSpec | None
    units: UnitMap | None
    progress: WriteProgress
    notes: Sequence[str]


def write_documents(stage: Path, result: EditMetadata) -> None:
    """Write the metadata files ``result`` to the temporary folder ``stage``; ``info.json`` is written last."""
    buffer = io.BytesIO()
    pq.write_table(tasks_table(list(result.tasks)), buffer)
    replace_bytes(stage / layout.TASKS, buffer.getvalue())
    _write_json(stage / layout.STATS, result.stats)
    if result.units is not None:
        _write_json(stage / layout.UNIT_MAP, result.units.to_json())
    if result.spec is not None:
        _write_json(stage / layout.SPEC, result.spec.to_json())
        copy_sources(result.spec.sources, stage / layout.OWN)
        _write_json(stage / layout.PROGRESS, result.progress.to_json(), indent=None)
    _write_json(stage / EDIT, _history(result))
    replace_bytes(stage / layout.CARD, _card(stage, result).encode())
    _write_json(stage / layout.INFO, _info(result))


def _info(result: EditMetadata) -> dict[str, Any]:
    videos = any(entry.get("dtype") == "video" for entry in result.features.values())
    return {
        **result.info,
        "codebase_version": "v3.0",
        "total_episodes": result.episodes,
        "total_frames": result.frames,
        "total_tasks": len(result.tasks),
        "chunks_size": layout.FILES_PER_CHUNK,
        "splits": {"train": f"0:{result.episodes}"},
        "data_path": layout.DATA_PATH,
        "video_path": layout.VIDEO_PATH if videos else None,
        "features": dict(result.features),
    }


def _history(result: EditMetadata) -> dict[str, Any]:
    """Return the content of ``twinloop/edit.json``: the operation, and the earlier edit history of each source."""
    rows = []
    for source in result.sources:
        before = source.path / EDIT
        row: dict[str, Any] = {"folder": source.path.name, "episodes": len(source)}
        rows.append({**row, "edit": read_json(before)} if before.is_file() else row)
    return {
        "schema": layout.SCHEMA,
        "operation": result.operation.name,
        "parameters": dict(result.operation.parameters),
        "versions": {"twinloop": version("twinloop")},
        "sources": rows,
        "notes": list(result.notes),
    }


def _card(stage: Path, result: EditMetadata) -> str:
    edited = "\n".join(
        [
            f"## Edited\n\nMade by `twinloop edit {result.operation.name}` from:\n",
            *(f"- `{source.path.name}`, {len(source)} episodes" for source in result.sources),
            *(["", "Notes:", "", *(f"- {note}" for note in result.notes)] if result.notes else []),
            f"\n`{EDIT}` has the parameters.",
        ]
    )
    if result.spec is not None:
        text = format_card(
            result.spec,
            episodes=result.episodes,
            frames=result.frames,
            tasks=list(result.tasks),
            recorded=any(stage.glob("twinloop/log/chunk-*/file-*.parquet")),
            tables=list(result.progress.tables),
            video_codings=_video_codecs(result),
        )
        return f"{text}\n{edited}\n"
    front = {
        "license": "other",
        "license_name": "see-sources",
        "task_categories": ["robotics"],
        "tags": ["LeRobot"],
        "configs": [{"config_name": "default", "data_files": "data/*/*.parquet"}],
    }
    rate = Fraction(result.info["fps"]).limit_denominator(1001)
    about = f"A LeRobotDataset v3.0 of {result.episodes} episodes, {result.frames} frames at {float(rate):g} Hz."
    tasks = "## Tasks\n\n" + "\n".join(f"- {task}" for task in result.tasks)
    licence = "## Licence\n\nThe licences of the source folders apply."
    head = f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n\n# {result.name}"
    return f"{head}\n\n{about}\n\n{tasks}\n\n{edited}\n\n{licence}\n"


def _video_codecs(result: EditMetadata) -> dict[str, str]:
    videos = {key: entry for key, entry in result.features.items() if entry["dtype"] == "video"}
    codecs = {key: str(entry["info"]["video.codec"]) for key, entry in videos.items()}
    return {key: CODEC_NAMES.get(codec, codec) for key, codec in codecs.items()}


def _write_json(path: Path, value: Any, *, indent: int | None = 2) -> None:
    replace_bytes(path, (dumps(value, indent=indent) + "\n").encode())
