"""Write the parts that LeRobot exports share: frames with exact statistics, tasks, and GR00T's ``modality.json``.

``modality.json`` assigns column ranges of the state and action vectors to body parts. The names follow GR00T's
examples: ``single_arm`` and ``gripper`` for an SO-100, ``left_arm``, ``left_hand`` and so on for a humanoid
(Isaac-GR00T, ``getting_started/examples``).
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
    """Return the content of GR00T's ``modality.json``.

    Args:
        features: The features of ``info.json``.
        grouped: Whether all adjacent joints of a body part share one column range. If false, each column has its own.
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
    """Return the named column ranges of a vector feature in column order, each as ``{"start": 0, "end": 6}``.

    ``end`` is exclusive. The result is empty if the feature does not exist. If its columns have no names, all columns
    form the range ``joints``.

    Args:
        features: The features of ``info.json``.
        key: Key of the vector feature.
        grouped: Whether adjacent joints of a body part share one range. If false, each column has its own range.
    """
    if key not in features:
        return {}
    width = int(features[key]["shape"][0])
    names = [name.removesuffix(".pos") for name in flat_names(features[key].get("names"))]
    if len(names) != width:
        return {"joints": {"start": 0, "end": width}}
    known = {name.removesuffix(".pos") for name in flat_names(features.get("action", {}).get("names"))}
    return _join_labels([body_part(name) if grouped and (name in known or not known) else name for name in names])


def body_part(joint: str) -> str:
    """Return the body part of a joint from words in its name, such as ``single_arm``, ``right_hand`` or ``waist``."""
    words = " ".join(word.lower() for word in _WORDS.findall(joint))
    limb = next((name for name, pattern in _PARTS if re.search(pattern, words)), "arm")
    side = re.search(r"\b(left|right)\b", words)
    if side:
        return f"{side[1]}_{limb}"
    return "single_arm" if limb == "arm" else limb


def _join_labels(labels: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return one column range (``start``, exclusive ``end``) for each sequence of columns with equal labels.

    The range is named after the label. Later ranges with the same label are named ``LABEL_again1``, ``LABEL_again2``
    and so on.
    """
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
    """Return the task texts of the exported episodes, and the new task index for each old index.

    If all episodes are exported, all task texts are kept, including unused texts.
    """
    used = set(range(len(source.tasks)))
    if list(episodes) != list(source.episodes):
        columns = (source.frames(episode, ["task_index"])["task_index"] for episode in episodes)
        used = {index for column in columns for index in column.unique().to_pylist()}
    order = sorted(used & set(range(len(source.tasks))))
    return [source.tasks[index] for index in order], {old: new for new, old in enumerate(order)}


def copy_side_files(source: SourceV3 | SourceV21, stage: Path) -> None:
    """Copy the unit map, licence files and ``modality.json`` to the export folder ``stage``.

    If the source has no ``modality.json``, a new one is written.
    """
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
        source: The dataset.
        episode: Index of the episode in the source.
        number: Index of the episode in the exported dataset.
        start: New ``index`` of the first frame.
        tasks: New task index for each old index.

    Raises:
        DatasetError: If a feature has no column, or a frame has a ``task_index`` that is not in the list of tasks.
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
    """Numeric features of a dataset, and their arrangement as columns of one matrix.

    Attributes:
        widths: Number of values per frame of each feature, by feature key.
        where: Columns of each feature in the matrix, by feature key.
        shapes: Shape of each feature in one frame, by feature key.
    """

    widths: Mapping[str, int]
    where: Mapping[str, slice]
    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, features: Mapping[str, Any]) -> NumericFeatures:
        """Create the object for the numeric features among ``features`` of ``info.json``."""
        widths = numeric_features(features)
        shapes = {key: tuple(features[key].get("shape") or (1,)) for key in widths}
        return cls(widths=widths, where=column_slices(widths), shapes=shapes)

    def matrix(self, table: pa.Table, *, where: str) -> NDArray[np.float64]:
        """Return all numeric features of an episode of T frames as a matrix of shape ``(T, columns)``.

        Args:
            table: Frames of the episode.
            where: Description of the episode, for error messages.

        Raises:
            DatasetError: If a cell is empty, a value is not finite, or a feature has another number of values.
        """
        return stack_features(to_feature_arrays(table, self.widths, where=where))

    def episode_stats(self, values: NDArray[np.float64]) -> dict[str, Any]:
        """Return LeRobot's statistics of one episode by feature key.

        Args:
            values: All numeric features of the episode's T frames, shape ``(T, columns)``, from `matrix`. The attribute
                ``where`` gives the columns of each feature.
        """
        return self._stats(Moments.of(values), self._quantiles(np.sort(values, axis=0)))

    def dataset_stats(self, moments: Sequence[Moments], files: Sequence[Path]) -> dict[str, Any]:
        """Return the exact entries of ``stats.json``, including quantiles, by reading the data files several times.

        Quantiles of float32 values, booleans and integers from 0 to 2^32 − 1 are computed without all rows in memory.
        All other columns are read into memory as a whole.

        Args:
            moments: Count, extremes, mean and variance of each episode.
            files: Written data files with all frames.
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
    """Return the schema with the name of the list type that a version of Hugging Face ``datasets`` expects.

    The name is in the schema's metadata entry ``huggingface``. Without this entry, all metadata are removed.

    Args:
        schema: Schema of an episode's table.
        lists: ``"List"`` for version 4 and later of the library; ``"Sequence"`` for earlier versions, as LeRobot v2.1
            needs.
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


def _can_stream_quantiles(dtype: np.dtype[Any], moments: Moments) -> bool:
    """Return whether `stream_quantiles`, which does not need all rows in memory, supports values of the type ``dtype``.

    It supports booleans, float32, and integers from 0 to 2^32 − 1; ``moments`` has the extremes of the values.
    """
    if dtype.kind in "iu":
        return bool(moments.low.min() >= 0 and moments.high.max() < 2**32)
    return dtype == np.float32 or dtype.kind == "b"
