"""Write the metadata files of a dataset and its dataset card (``README.md``) at every commit.

The files depend only on the dataset's specification and on the committed episodes.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from numpy.typing import NDArray

from twinloop.core.assignment import copy_sources
from twinloop.core.console import (
    MarkdownCode,
    escape_control,
    markdown_block,
    markdown_cell,
    markdown_code,
    markdown_text,
    to_single_line,
)
from twinloop.core.documents import read_json
from twinloop.core.files import dumps
from twinloop.core.units import UnitMap
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.parquet import column_to_array, read_table
from twinloop.dataset.lerobot.progress import WriteProgress
from twinloop.dataset.lerobot.statistics import (
    QUANTILES,
    Moments,
    column_stats,
    image_stats,
    stream_quantiles,
    take_columns,
)
from twinloop.dataset.lerobot.tables import stat_columns, tasks_table
from twinloop.dataset.spec import DatasetSpec, build_info, build_modality
from twinloop.dataset.storage.snapshot import replace_bytes

# Licence identifiers of the Hub (huggingface.co/docs/hub/repositories-licenses) that are usual for data and code.
# fmt: off
_HUB_LICENCES = frozenset({
    "apache-2.0", "mit", "bsd", "bsd-2-clause", "bsd-3-clause", "bsd-3-clause-clear", "isc", "unlicense", "cc",
    "cc0-1.0", "cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-4.0", "cc-by-sa-3.0", "cc-by-sa-4.0", "cc-by-nc-2.0",
    "cc-by-nc-3.0", "cc-by-nc-4.0", "cc-by-nd-4.0", "cc-by-nc-nd-3.0", "cc-by-nc-nd-4.0", "cc-by-nc-sa-2.0",
    "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0", "cdla-permissive-1.0", "cdla-permissive-2.0", "cdla-sharing-1.0", "odbl",
    "odc-by", "pddl", "gpl", "gpl-2.0", "gpl-3.0", "lgpl", "lgpl-2.1", "lgpl-3.0", "agpl-3.0", "mpl-2.0", "epl-2.0",
    "afl-3.0", "openrail",
})
# fmt: on
_SIM_TIME = """\
`observation.state[t]` is the state available to a policy at step t, sensor delays included. `action[t]` is the command
issued at step t and held until t+1."""

_LOG_TIME = """\
`observation.state[t]` is the state that the log records as measured at step t, `action[t]` the command it records."""

_SUCCESS = "`next.success[t]` is true if the task's success condition was met after step t."
_READINGS = """\
Each is the newest sample that was taken and delivered before the command of step t was due. `twinloop/readings/` has
every sample of each sensor, with the times at which it was taken and delivered."""
_NOMINAL = "`timestamp` is nominal: `frame_index / fps`."
_TRUE = "The control loop is unsteady: `observation.time` is the true time of each step in s, from the episode's start."

_SIM_FILES = """\
`twinloop/states/` holds the simulator's full state in float64: T+1 states per episode (`states[t]` is the state when
`commands[t]` was issued, `states[t+1]` the state after it) and T commands, in SI units, one row per episode.
`twinloop/provenance/` holds one JSON line per episode: seed path, drawn parameters, versions, hashes. The same facts
are `provenance/*` columns of `meta/episodes/`."""

_LOG_FILES = """\
`twinloop/log/` holds the unrounded values of the log with its true times: one row per episode."""


_TABLES = """\
Further tables, in Parquet with one row group per episode; their metadata describes the columns:"""


_OURS = "H.264, a key frame at least every second frame"


def format_card(
    spec: DatasetSpec,
    *,
    episodes: int,
    frames: int,
    tasks: list[str],
    recorded: bool,
    tables: Sequence[str] = (),
    video_codings: Mapping[str, str] | None = None,
) -> str:
    """Return the text of the dataset card, ``README.md``.

    Args:
        spec: Specification of the dataset.
        episodes: Number of episodes.
        frames: Number of frames.
        tasks: Texts of the tasks.
        recorded: True for recorded episodes, False for simulated ones.
        tables: Names of the side tables (further Parquet tables under ``twinloop/``).
        video_codings: Description of the video coding by feature, for features that twinloop did not encode itself.
    """
    front = front_matter(spec.licence)
    sections = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n\n# {markdown_text(spec.name)}",
        (
            f"A LeRobotDataset v3.0 of {episodes} episodes, {frames} frames at {spec.fps} Hz. "
            f"Robot: {markdown_text(spec.robot_type)}."
        ),
        "## Tasks\n\n" + "\n".join(f"- {markdown_text(task)}" for task in tasks),
        "## Time\n\n" + _time_section(spec, recorded=recorded),
        "## Units\n\n" + units_section(spec.units),
    ]
    if spec.readings:
        sections.append("## Readings\n\n" + _readings_section(spec))
    if spec.ranges:
        sections.append("## Ranges\n\n" + "\n".join(f"- {markdown_text(line)}" for line in spec.ranges))
    if spec.cameras:
        rows = [
            f"- {markdown_code(c.key)}: {c.width}×{c.height}, {markdown_text((video_codings or {}).get(c.key, _OURS))}"
            for c in spec.cameras
        ]
        sections.append("## Cameras\n\n" + "\n".join(rows))
    sections.append("## Files that twinloop adds\n\n" + (_LOG_FILES if recorded else _SIM_FILES))
    if tables:
        sections.append(_TABLES + "\n\n" + "\n".join(f"- {markdown_code(f'twinloop/{name}/')}" for name in tables))
    if "license_name" in front:
        sections.append("## Licence\n\n" + _licence_text(spec.licence))
    if spec.config:
        config = markdown_block(escape_control(dumps(dict(spec.config), indent=2)), "json")
        sections.append(f"## Configuration\n\n<details><summary>As JSON</summary>\n\n{config}\n\n</details>")
    return "\n\n".join(sections) + "\n"


def front_matter(licence: str, *, tags: Sequence[str] = (), frames: int | None = None) -> dict[str, Any]:
    """Return the YAML front matter of a dataset card for the Hugging Face Hub: licence, task, tags and data files.

    Args:
        licence: Licence as the dataset gives it; may be empty.
        tags: Tags in addition to ``LeRobot``.
        frames: Number of frames, for the Hub's size category; None omits the category.
    """
    size = {} if frames is None else {"size_categories": [_size(frames)]}
    return {
        **_licence(licence),
        "task_categories": ["robotics"],
        **size,
        "tags": ["LeRobot", *map(to_single_line, tags)],
        "configs": [{"config_name": "default", "data_files": "data/*/*.parquet"}],
    }


def _size(rows: int) -> str:
    """Return the Hub's size category for a number of rows (huggingface.co/docs/hub/datasets-cards)."""
    names = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B")
    return next((name for power, name in enumerate(names, start=3) if rows < 10**power), "1B<n<10B")


def _licence(text: str) -> dict[str, str]:
    """Return the licence entries of the front matter: the Hub's identifier, or ``other`` with a name.

    If it is ``other``, the body of the card contains the licence.

    Args:
        text: Identifier (in any case), name or full text of the licence; may be empty.
    """
    name = text.strip().lower()
    if name in _HUB_LICENCES:
        return {"license": name}
    return {"license": "other", "license_name": "see-licence-section" if name else "not-stated"}


def _licence_text(text: str) -> str:
    """Return the licence for the body of the card: a single line as text, a whole licence as a code block."""
    if "\n" in text.strip():
        return markdown_block(escape_control(text.strip()))
    return markdown_text(text) or "None was stated when the dataset was written."


def _time_section(spec: DatasetSpec, *, recorded: bool) -> str:
    """Return the paragraph of the card that defines the times of observations and actions.

    Args:
        spec: Specification of the dataset.
        recorded: True for recorded episodes, False for simulated ones.
    """
    parts = [_LOG_TIME if recorded else _SIM_TIME, *([_SUCCESS] if spec.success else []), _NOMINAL]
    parts += [_TRUE] if spec.unsteady else []
    return "\n".join([*parts, "The true times are in `twinloop/log/`."] if recorded else parts)


def units_section(units: UnitMap) -> str:
    """Return the section of the card on units: their source, and a table with the unit of each joint."""
    head = f"Source: {markdown_text(units.source)}. Position in rad or m = offset + scale · value.\n\n"
    rows = ["| joint | unit | scale | offset |", "|---|---|---|---|"]
    rows += [
        f"| {markdown_cell(u.joint)} | {markdown_cell(u.unit)} | {_format_number(u.scale)} | "
        f"{_format_number(u.offset)} |"
        for u in units.joints
    ]
    return head + "\n".join(rows)


def _readings_section(spec: DatasetSpec) -> str:
    rows = ["| feature | columns | units |", "|---|---|---|"]
    rows += [
        f"| {markdown_cell(MarkdownCode(r.key))} | {markdown_cell(', '.join(r.columns))} | "
        f"{markdown_cell(', '.join(dict.fromkeys(r.units)))} |"
        for r in spec.readings
    ]
    return f"{_READINGS}\n\n" + "\n".join(rows)


def _format_number(value: float | None) -> str:
    return "not known" if value is None else f"{value:.9g}"


Quantiles = dict[str, NDArray[np.float64]]

# Quantiles need every value, so they are computed again when the data has grown by this factor, and at the end: the
# whole run then costs a few passes over the data, not one per commit. During a run they stop changing when a pass would
# delay it for seconds: this many frames estimate them well, and the end of the run makes them exact over all frames.
QUANTILE_GROWTH = 2.0
MOST_UNDERWAY = 1 << 18
_ROWS_AT_ONCE = 1 << 18  # rows in memory while quantiles are computed; our choice


def write_metadata(stage: Path, spec: DatasetSpec, progress: WriteProgress, *, quantiles: bool) -> None:
    """Write all metadata files of a snapshot (next version of the dataset's folder, not yet committed).

    Args:
        stage: Folder of the snapshot; its data files are already written.
        spec: Specification of the dataset.
        progress: Progress of the dataset, including this commit.
        quantiles: If true, compute the quantiles in ``stats.json`` from all frames; otherwise keep the present ones.
    """
    episodes, frames, tasks = progress.episodes, progress.frames, list(progress.tasks)
    _write_json(stage / layout.INFO, build_info(spec, episodes=episodes, frames=frames, tasks=len(tasks)))
    _write_json(stage / layout.MODALITY, build_modality(spec))
    _write_json(stage / layout.UNIT_MAP, spec.units.to_json())
    _write_json(stage / layout.SPEC, spec.to_json())
    copy_sources(spec.sources, stage / layout.OWN)
    buffer = io.BytesIO()
    pq.write_table(tasks_table(progress.tasks), buffer)
    replace_bytes(stage / layout.TASKS, buffer.getvalue())
    recorded = (stage / layout.block_path(layout.LOGS_PATH, 0)).exists()
    tables = list(progress.tables)
    text = format_card(spec, episodes=episodes, frames=frames, tasks=tasks, recorded=recorded, tables=tables)
    replace_bytes(stage / layout.CARD, text.encode())
    if progress.moments is not None:
        stats = _stats(stage, spec, progress, progress.moments, quantiles=quantiles)
        _write_json(stage / layout.STATS, stats)
    _write_json(stage / layout.PROGRESS, progress.to_json(), indent=None)


def quantiles_due(progress: WriteProgress) -> bool:
    """Return whether to compute the quantiles again.

    They are due if the number of frames has doubled since the last computation. Above 262,144 frames they are not
    computed again until the end of the run, because reading all data would delay it.
    """
    if progress.quantiles_at and progress.frames > MOST_UNDERWAY:
        return False
    return progress.frames > progress.quantiles_at * QUANTILE_GROWTH


def _write_json(path: Path, value: Any, *, indent: int | None = 2) -> None:
    replace_bytes(path, (dumps(value, indent=indent) + "\n").encode())


def _stats(
    stage: Path, spec: DatasetSpec, progress: WriteProgress, moments: Moments, *, quantiles: bool
) -> dict[str, Any]:
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
    """Return the quantiles of each feature from ``stats.json`` in ``stage``, the folder of the snapshot."""
    present = read_json(stage / layout.STATS)
    return {name: {q: np.asarray(present[name][q]) for q in QUANTILES} for name in features}


def _exact_quantiles(stage: Path, progress: WriteProgress, features: Sequence[str]) -> dict[str, Quantiles]:
    """Compute the quantiles of each feature over all frames, in several passes over the data files.

    Args:
        stage: Folder of the snapshot.
        progress: Progress of the dataset, which lists the data files.
        features: Names of the features.
    """

    def chunks() -> Iterator[dict[str, NDArray[Any]]]:
        for blocks in _group_blocks(progress):
            paths = [stage / layout.block_path(layout.DATA_PATH, block) for block in blocks]
            table = pa.concat_tables([read_table(path, features) for path in paths])
            yield {name: column_to_array(table[name]) for name in features}

    return stream_quantiles(chunks, progress.frames)


def _group_blocks(progress: WriteProgress) -> Iterator[list[int]]:
    """Yield lists of consecutive block numbers with enough frames to be read together efficiently."""
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
