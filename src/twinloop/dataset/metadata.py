"""The metadata files that every commit writes anew, from the spec and the progress alone."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from twinloop.core.files import dumps
from twinloop.dataset import layout
from twinloop.dataset.card import card
from twinloop.dataset.parquet import numbers, read_table
from twinloop.dataset.progress import Progress
from twinloop.dataset.snapshot import replace_bytes
from twinloop.dataset.spec import DatasetSpec, info, modality
from twinloop.dataset.statistics import Moments, column_stats, image_stats, sorted_quantiles, take_columns
from twinloop.dataset.tables import stat_columns, tasks_table

# Quantiles need every value, so they are computed again when the data has grown by this factor, and at the end:
# the whole run then costs a few passes over the data, not one per commit.
QUANTILE_GROWTH = 1.25


def write_metadata(stage: Path, spec: DatasetSpec, progress: Progress, *, quantiles: bool) -> None:
    """Write every metadata file of a snapshot in preparation.

    Args:
        stage: the snapshot, its data files already in place.
        spec: what the dataset is.
        progress: what it has, this commit included.
        quantiles: compute the quantiles again; else those in the present ``stats.json`` are kept.
    """
    counts = {"episodes": progress.episodes, "frames": progress.frames}
    _write_json(stage / layout.INFO, info(spec, tasks=len(progress.tasks), **counts))
    _write_json(stage / layout.MODALITY, modality(spec))
    _write_json(stage / layout.UNIT_MAP, spec.units.to_json())
    _write_json(stage / layout.SPEC, spec.to_json())
    buffer = io.BytesIO()
    pq.write_table(tasks_table(progress.tasks), buffer)
    replace_bytes(stage / layout.TASKS, buffer.getvalue())
    logged = (stage / layout.of_block(layout.LOGS_PATH, 0)).exists()
    text = card(spec, tasks=list(progress.tasks), logged=logged, **counts)
    replace_bytes(stage / layout.CARD, text.encode())
    if progress.moments is not None:
        stats = _stats(stage, spec, progress, progress.moments, quantiles=quantiles)
        _write_json(stage / layout.STATS, stats)
    _write_json(stage / layout.PROGRESS, progress.to_json(), indent=None)


def quantiles_due(progress: Progress) -> bool:
    """Whether the data has outgrown the stored quantiles."""
    return progress.frames > progress.quantiles_at * QUANTILE_GROWTH


def _write_json(path: Path, value: Any, *, indent: int | None = 2) -> None:
    replace_bytes(path, (dumps(value, indent=indent) + "\n").encode())


def _stats(stage: Path, spec: DatasetSpec, progress: Progress, moments: Moments, *, quantiles: bool) -> dict[str, Any]:
    present = {} if quantiles else json.loads((stage / layout.STATS).read_text())
    stats: dict[str, Any] = {}
    for name, columns in stat_columns(spec).items():
        levels = _exact_quantiles(stage, progress, name) if quantiles else _stored_quantiles(present[name])
        stats[name] = column_stats(take_columns(moments, columns), levels)
    for camera in spec.cameras:
        total = progress.cameras[camera.name]
        stats[camera.key] = image_stats(total.histogram, total.sampled)
    return stats


def _stored_quantiles(entry: Mapping[str, Any]) -> dict[str, NDArray[np.float64]]:
    return {name: np.asarray(value) for name, value in entry.items() if name.startswith("q")}


def _exact_quantiles(stage: Path, progress: Progress, feature: str) -> dict[str, NDArray[np.float64]]:
    """Quantiles of one feature over all frames, from the data files."""
    paths = [stage / layout.of_block(layout.DATA_PATH, entry.block) for entry in progress.blocks if entry.frames]
    parts = [numbers(read_table(path, [feature])[feature], where=f"{path} {feature}") for path in paths]
    values = np.concatenate([part.reshape(len(part), -1) for part in parts])
    values.sort(axis=0)
    return sorted_quantiles(values)
