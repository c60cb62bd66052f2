"""Export parts of a LeRobot folder: frames with exact statistics, tasks, and GR00T's ``modality.json``.

The joints of one body part share a column span, named as in GR00T's examples (``single_arm`` and ``gripper`` for an
SO-100, ``left_arm``, ``left_hand`` … for a humanoid; Isaac-GR00T, ``getting_started/examples``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.core.documents import parse_json
from twinloop.core.files import dumps
from twinloop.dataset.edit.rows import (
    column_slices,
    numeric_features,
    read_chunks,
    remap_tasks,
    renumber_frames,
    stack_features,
    to_feature_arrays,
)
from twinloop.dataset.export.source import SourceV3, SourceV21
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.parquet import require_columns
from twinloop.dataset.lerobot.reader import flat_names
from twinloop.dataset.lerobot.statistics import (
    Moments,
    column_stats,
    merge_moments,
    sorted_quantiles,
    stream_quantiles,
    take_columns,
)
from twinloop.dataset.spec import STATE, TRUE_TIME
from twinloop.dataset.storage.snapshot import replace_bytes

TASK = {"human.task_description": {"original_key": "task_index"}}
_IMAGES = "observation.images."
# Body parts by words in a joint's name; the first match counts, and joints without a match belong to an arm.
_PARTS = (
    ("gripper", r"gripper|jaw"),
    ("hand", r"hand|finger|thumb|pinky"),
    ("leg", r"hip|knee|ankle|leg"),
    ("waist", r"waist|torso"),
    ("neck", r"neck|head"),
    ("base", r"base|wheel"),
)
_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")


def build_modality(features: Mapping[str, Any], *, grouped: bool = True) -> dict[str, Any]:
    """Return the content of ``modality.json``.

    Args:
        features: the features of ``info.json``.
        grouped: one span for all joints of a body part; otherwise one span per column.
    """
    state = find_spans(features, STATE, grouped=grouped)
    further = {
        key.removeprefix("observation."): {"start": 0, "end": int(feature["shape"][0]), "original_key": key}
        for key, feature in features.items()
        if key.startswith("observation.")
        and key not in (STATE, TRUE_TIME)
        and "float" in feature["dtype"]
        and len(feature["shape"]) == 1
    }
    videos = {key.removeprefix(_IMAGES): {"original_key": key} for key, f in features.items() if f["dtype"] == "video"}
    return {
        "state": {**state, **{key: span for key, span in further.items() if key not in state}},
        "action": find_spans(features, "action", grouped=grouped),
        "video": videos,
        "annotation": dict(TASK),
    }


def find_spans(features: Mapping[str, Any], key: str, *, grouped: bool) -> dict[str, dict[str, int]]:
    """Return the column spans of a vector feature by name, in order; one span if its columns have no names."""
    if key not in features:
        return {}
    width = int(features[key]["shape"][0])
    names = [name.removesuffix(".pos") for name in flat_names(features[key].get("names"))]
    if len(names) != width:
        return {"joints": {"start": 0, "end": width}}
    known = {name.removesuffix(".pos") for name in flat_names(features.get("action", {}).get("names"))}
    return _join_labels([body_part(name) if grouped and (name in known or not known) else name for name in names])


def body_part(joint: str) -> str:
    """Return the body part of a joint, such as ``single_arm``, ``right_hand`` or ``waist``."""
    words = " ".join(word.lower() for word in _WORDS.findall(joint))
    limb = next((name for name, pattern in _PARTS if re.search(pattern, words)), "arm")
    side = re.search(r"\b(left|right)\b", words)
    if side:
        return f"{side[1]}_{limb}"
    return "single_arm" if limb == "arm" else limb


def _join_labels(labels: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return one span per run of equal labels; later runs of a label are named ``LABEL_again1`` and so on."""
    found: dict[str, dict[str, int]] = {}
    last = ""
    for column, label in enumerate(labels):
        if column and labels[column - 1] == label:
            found[last]["end"] = column + 1
            continue
        again = sum(name == label or name.startswith(f"{label}_again") for name in found)
        last = f"{label}_again{again}" if again else label
        found[last] = {"start": column, "end": column + 1}
    return found


def select_tasks(source: SourceV3 | SourceV21, episodes: Sequence[int]) -> tuple[list[str], dict[int, int]]:
    """Return the task texts of the exported episodes (all texts if all episodes are), and new task indices by old."""
    used = set(range(len(source.tasks)))
    if list(episodes) != list(source.episodes):
        columns = (source.frames(episode, ["task_index"])["task_index"] for episode in episodes)
        used = {index for column in columns for index in column.unique().to_pylist()}
    order = sorted(used & set(range(len(source.tasks))))
    return [source.tasks[index] for index in order], {old: new for new, old in enumerate(order)}


def copy_side_files(source: SourceV3 | SourceV21, stage: Path) -> None:
    """Copy unit map, licence files and ``modality.json`` (created if missing) to the export."""
    named = [source.path / name for name in (layout.UNIT_MAP, layout.MODALITY)]
    for path in [*named, *sorted(source.path.glob("LICENSE*"))]:
        if path.is_file() and path.resolve().is_relative_to(source.path.resolve()):
            replace_bytes(stage / path.relative_to(source.path), path.read_bytes())
    if not (stage / layout.MODALITY).exists():
        replace_bytes(stage / layout.MODALITY, (dumps(build_modality(source.features), indent=2) + "\n").encode())


def renumber_episode(
    source: SourceV3 | SourceV21, episode: int, *, number: int, start: int, tasks: Mapping[int, int]
) -> pa.Table:
    """Return an episode's frames with their indices in the exported dataset.

    Args:
        source: the dataset.
        episode: the episode in the source.
        number: its index in the exported dataset.
        start: the new ``index`` of its first frame.
        tasks: the new index of each task.

    Raises:
        DatasetError: a feature has no column, or a frame has a ``task_index`` that the task list does not have.
    """
    table, where = source.frames(episode), f"Episode {episode} of {source.path}"
    stored = [key for key, feature in source.features.items() if feature["dtype"] != "video"]
    require_columns(stored, table.column_names, where=where)
    named = dict(enumerate(source.tasks))
    texts = {text: tasks[old] for old, text in named.items() if old in tasks}
    new = remap_tasks(table, named, texts, where=where)
    return renumber_frames(table, table.schema, index=number, start=start, tasks=new, where=where)


@dataclass(frozen=True, kw_only=True)
class NumericFeatures:
    """Numeric features of a dataset: values per frame, columns in the stacked matrix, and shape of each feature."""

    widths: Mapping[str, int]
    where: Mapping[str, slice]
    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, features: Mapping[str, Any]) -> NumericFeatures:
        """Select the numeric features of ``info.json``'s features."""
        widths = numeric_features(features)
        shapes = {key: tuple(features[key].get("shape") or (1,)) for key in widths}
        return cls(widths=widths, where=column_slices(widths), shapes=shapes)

    def matrix(self, table: pa.Table, *, where: str) -> NDArray[np.float64]:
        """Return all numeric features of an episode as ``(T, columns)``; raises as `edit.rows.to_feature_arrays`."""
        return stack_features(to_feature_arrays(table, self.widths, where=where))

    def episode_stats(self, values: NDArray[np.float64]) -> dict[str, Any]:
        """Return one episode's statistics by feature, from its `matrix`."""
        return self._stats(Moments.of(values), self._quantiles(np.sort(values, axis=0)))

    def dataset_stats(self, moments: Sequence[Moments], files: Sequence[Path]) -> dict[str, Any]:
        """Return the exact entries of ``stats.json``, with quantiles, from two passes over the data files.

        Columns of float64 or of whole numbers that are negative or at least 2^32 are read into memory as a whole.
        """
        total = merge_moments(moments)
        first = next(read_chunks(files[:1], self.widths))
        passing = {
            key: width
            for key, width in self.widths.items()
            if _can_stream_quantiles(first[key].dtype, take_columns(total, self.where[key]))
        }
        levels = stream_quantiles(lambda: read_chunks(files, passing), total.count) if passing else {}
        for key in self.widths.keys() - passing.keys():
            held = np.vstack([part[key] for part in read_chunks(files, {key: self.widths[key]})]).astype(np.float64)
            levels[key] = sorted_quantiles(np.sort(held, axis=0))
        return self._stats(total, levels)

    def _quantiles(self, ordered: NDArray[np.float64]) -> dict[str, dict[str, NDArray[np.float64]]]:
        return {key: sorted_quantiles(ordered[:, where]) for key, where in self.where.items()}

    def _stats(self, moments: Moments, levels: Mapping[str, Mapping[str, NDArray[np.float64]]]) -> dict[str, Any]:
        stats: dict[str, Any] = {}
        for key, where in self.where.items():
            row = column_stats(take_columns(moments, where), levels[key])
            shape = self.shapes[key]
            stats[key] = {k: v if k == "count" else np.reshape(v, shape).tolist() for k, v in row.items()}
        return stats


def set_list_type(schema: pa.Schema, *, lists: str) -> pa.Schema:
    """Return the schema with the name of the list type that a version of the ``datasets`` library expects.

    Args:
        schema: the schema of an episode's table.
        lists: ``"List"`` since version 4 of the library; ``"Sequence"`` before, as for LeRobot v2.1.
    """
    note = (schema.metadata or {}).get(b"huggingface")
    if note is None:
        return schema.remove_metadata()
    return schema.with_metadata(
        {b"huggingface": json.dumps(_rename_lists(parse_json(note, where="the note of the columns"), lists)).encode()}
    )


def _rename_lists(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        plain = {key: _rename_lists(item, name) for key, item in value.items()}
        return {**plain, "_type": name} if plain.get("_type") in ("List", "Sequence") else plain
    return [_rename_lists(item, name) for item in value] if isinstance(value, list) else value


def _can_stream_quantiles(kind: np.dtype[Any], moments: Moments) -> bool:
    """Return whether `stream_quantiles` supports values of this type and range."""
    if kind.kind in "iu":
        return bool(moments.low.min() >= 0 and moments.high.max() < 2**32)
    return kind == np.float32 or kind.kind == "b"
