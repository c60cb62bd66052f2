"""The metadata files that every commit writes anew, from the spec and the progress alone."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from twinloop.core.documents import read_json
from twinloop.core.files import dumps
from twinloop.dataset import layout
from twinloop.dataset.card import card
from twinloop.dataset.parquet import read_table, stored
from twinloop.dataset.progress import Progress
from twinloop.dataset.quantiles import streamed_quantiles
from twinloop.dataset.snapshot import replace_bytes
from twinloop.dataset.spec import DatasetSpec, info, modality
from twinloop.dataset.statistics import QUANTILES, Moments, column_stats, image_stats, take_columns
from twinloop.dataset.tables import stat_columns, tasks_table

Quantiles = dict[str, NDArray[np.float64]]

# Quantiles need every value, so they are computed again when the data has grown by this factor, and at the end: the
# whole run then costs a few passes over the data, not one per commit. Underway they stop changing where a pass would
# hold up a long run for seconds: this many frames tell them well, and the end makes them exact over all.
QUANTILE_GROWTH = 2.0
MOST_UNDERWAY = 1 << 18
_ROWS_AT_ONCE = 1 << 18  # rows in memory while quantiles are computed; our choice


def write_metadata(stage: Path, spec: DatasetSpec, progress: Progress, *, quantiles: bool) -> None:
    """Write every metadata file of a snapshot in preparation.

    Args:
        stage: the snapshot, its data files already in place.
        spec: what the dataset is.
        progress: what it has, this commit included.
        quantiles: compute the quantiles again; else those in the present ``stats.json`` are kept.
    """
    episodes, frames, tasks = progress.episodes, progress.frames, list(progress.tasks)
    _write_json(stage / layout.INFO, info(spec, episodes=episodes, frames=frames, tasks=len(tasks)))
    _write_json(stage / layout.MODALITY, modality(spec))
    _write_json(stage / layout.UNIT_MAP, spec.units.to_json())
    _write_json(stage / layout.SPEC, spec.to_json())
    buffer = io.BytesIO()
    pq.write_table(tasks_table(progress.tasks), buffer)
    replace_bytes(stage / layout.TASKS, buffer.getvalue())
    logged = (stage / layout.of_block(layout.LOGS_PATH, 0)).exists()
    tables = list(progress.tables)
    text = card(spec, episodes=episodes, frames=frames, tasks=tasks, logged=logged, tables=tables)
    replace_bytes(stage / layout.CARD, text.encode())
    if progress.moments is not None:
        stats = _stats(stage, spec, progress, progress.moments, quantiles=quantiles)
        _write_json(stage / layout.STATS, stats)
    _write_json(stage / layout.PROGRESS, progress.to_json(), indent=None)


def quantiles_due(progress: Progress) -> bool:
    """Whether the data has outgrown the stored quantiles and a pass over it is still short."""
    if progress.quantiles_at and progress.frames > MOST_UNDERWAY:
        return False
    return progress.frames > progress.quantiles_at * QUANTILE_GROWTH


def _write_json(path: Path, value: Any, *, indent: int | None = 2) -> None:
    replace_bytes(path, (dumps(value, indent=indent) + "\n").encode())


def _stats(stage: Path, spec: DatasetSpec, progress: Progress, moments: Moments, *, quantiles: bool) -> dict[str, Any]:
    columns = stat_columns(spec)
    levels = _exact_quantiles(stage, progress, list(columns)) if quantiles else _stored_quantiles(stage, list(columns))
    stats: dict[str, Any] = {
        name: column_stats(take_columns(moments, where), levels[name]) for name, where in columns.items()
    }
    for camera in spec.cameras:
        total = progress.cameras[camera.name]
        stats[camera.key] = image_stats(total.histogram, total.sampled)
    return stats


def _stored_quantiles(stage: Path, features: Sequence[str]) -> dict[str, Quantiles]:
    """The quantiles in the present ``stats.json``."""
    present = read_json(stage / layout.STATS)
    return {name: {q: np.asarray(present[name][q]) for q in QUANTILES} for name in features}


def _exact_quantiles(stage: Path, progress: Progress, features: Sequence[str]) -> dict[str, Quantiles]:
    """Quantiles over all frames, from two passes over the data files."""

    def chunks() -> Iterator[dict[str, NDArray[Any]]]:
        for blocks in _runs_of_blocks(progress):
            paths = [stage / layout.of_block(layout.DATA_PATH, block) for block in blocks]
            table = pa.concat_tables([read_table(path, features) for path in paths])
            yield {name: stored(table[name]) for name in features}

    return streamed_quantiles(chunks, progress.frames)


def _runs_of_blocks(progress: Progress) -> Iterator[list[int]]:
    """Consecutive blocks with frames, enough together that the work per pass is in the rows."""
    blocks, frames = list[int](), 0
    for entry in progress.blocks:
        if entry.frames:
            blocks.append(entry.block)
            frames += entry.frames
        if frames >= _ROWS_AT_ONCE:
            yield blocks
            blocks, frames = list[int](), 0
    if blocks:
        yield blocks
