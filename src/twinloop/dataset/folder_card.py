"""Write the text of the dataset card (``README.md``) of any LeRobot v3.0 folder.

The text has the sections of the card that `DatasetWriter` writes, the origin of the episodes, and further tables
that the caller gives, such as quality or labels.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml

from twinloop.core.console import MarkdownCode, markdown_block, markdown_cell, markdown_text, to_single_line
from twinloop.core.documents import DocumentError, parse_json
from twinloop.core.units import UnitMap
from twinloop.dataset.export.source import SourceV3
from twinloop.dataset.lerobot.metadata import format_card, front_matter, units_section
from twinloop.dataset.lerobot.parquet import open_parquet
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.stats import clopper_pearson

_RAND = "provenance/rand."
_COUNTED = {
    "source": "provenance/source",
    "twin": "provenance/twin",
    "policy": "provenance/expert",
    "simulator": "provenance/sim_version",
}
_TEXTS = ("provenance/parent_episode_ids", "provenance/transforms")
_MOST = 12  # most parameters in the card; our choice
_LEAST_SPREAD = 1e-12


@dataclass(frozen=True, kw_only=True)
class ParameterRange:
    """Range of one randomized parameter over the episodes of a dataset, in SI units.

    Attributes:
        name: Name of the parameter.
        low: Smallest value.
        median: Median.
        high: Largest value.
        episodes: Number of episodes that have a value.
    """

    name: str
    low: float
    median: float
    high: float
    episodes: int


@dataclass(frozen=True, kw_only=True)
class DataOrigin:
    """Origin of the episodes of a folder, as far as the folder's episode table records it.

    Attributes:
        episodes: Number of episodes.
        counts: Number of episodes per value, for each kind of origin: source, twin, policy and simulator.
        ranges: Ranges of the randomized parameters that vary most (at most 12), from every kind of parameter such as
            joint, object or camera.
        parameters: Number of all randomized parameters.
        with_outcome: Number of episodes whose success or failure is recorded.
        succeeded: Number of successful episodes.
        invalid: Number of episodes that are marked invalid.
        derived: Number of episodes that were made from other episodes.
        transforms: For each change with which episodes were derived (such as ``retask``), how often it was applied.
        distinct: Number of different episode identifiers (content hashes).
    """

    episodes: int
    counts: Mapping[str, Mapping[str, int]]
    ranges: tuple[ParameterRange, ...]
    parameters: int
    with_outcome: int
    succeeded: int
    invalid: int
    derived: int
    transforms: Mapping[str, int]
    distinct: int

    @property
    def success(self) -> str:
        """Sentence with the success rate and its 95 % Clopper–Pearson interval; "" if no success is recorded."""
        if not self.with_outcome:
            return ""
        interval = clopper_pearson(self.succeeded, self.with_outcome)
        percent = 100 * self.succeeded / self.with_outcome
        return (
            f"{self.succeeded} of {self.with_outcome} episodes succeeded: {percent:.1f} % "
            f"(95 % Clopper–Pearson interval {100 * interval.low:.1f} to {100 * interval.high:.1f} %)."
        )


def read_origin(folder: Path) -> DataOrigin:
    """Summarize the origin of the episodes of a v3.0 folder, from the provenance columns of its episode table.

    Raises:
        DatasetError: If a file of the episode table is damaged.
    """
    table = _provenance(folder)
    names = set(table.column_names)
    success = table["provenance/success"].drop_null().to_pylist() if "provenance/success" in names else []
    valid = table["provenance/valid"].to_pylist() if "provenance/valid" in names else []
    ranges = [_range(table, name) for name in table.column_names if name.startswith(_RAND)]
    drawn = [row for row in ranges if row is not None]
    return DataOrigin(
        episodes=table.num_rows,
        counts={kind: _counts(table, column) for kind, column in _COUNTED.items() if column in names},
        ranges=_select_ranges(drawn),
        parameters=len(drawn),
        with_outcome=len(success),
        succeeded=sum(map(bool, success)),
        invalid=sum(value is False for value in valid),
        derived=sum(text not in (None, "", "[]") for text in _texts(table, _TEXTS[0])),
        transforms=Counter(name for text in _texts(table, _TEXTS[1]) for name in _transform_names(text)),
        distinct=len({text for text in _texts(table, "provenance/episode_id") if text}),
    )


def _provenance(folder: Path) -> pa.Table:
    tables = []
    for path in sorted((folder / "meta" / "episodes").glob("chunk-*/file-*.parquet")):
        with open_parquet(path) as file:
            wanted = {"episode_index", *_COUNTED.values(), *_TEXTS, "provenance/episode_id"}
            wanted |= {"provenance/twin_hash", "provenance/success", "provenance/valid"}
            names = [n for n in file.schema_arrow.names if n in wanted or n.startswith(_RAND)]
            tables.append(file.read(columns=names))
    return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({"episode_index": []})


def _counts(table: pa.Table, column: str) -> dict[str, int]:
    """Count the episodes per value of a column, the most frequent value first; empty values are not counted.

    The first 12 digits of a twin's hash are appended to its name.
    """
    values = [str(value or "") for value in table[column].to_pylist()]
    if column == "provenance/twin" and "provenance/twin_hash" in table.column_names:
        hashes = [str(value or "")[:12] for value in table["provenance/twin_hash"].to_pylist()]
        values = [f"{twin} ({digest})" if twin else "" for twin, digest in zip(values, hashes, strict=True)]
    counted = Counter(value for value in values if value)
    return dict(sorted(counted.items(), key=lambda pair: (-pair[1], pair[0])))


def _range(table: pa.Table, column: str) -> ParameterRange | None:
    if not pa.types.is_floating(table[column].type):
        return None
    values = table[column].drop_null().to_numpy()
    if not len(values):
        return None
    low, median, high = (float(value) for value in np.quantile(values, (0.0, 0.5, 1.0)))
    return ParameterRange(name=column.removeprefix(_RAND), low=low, median=median, high=high, episodes=len(values))


def _select_ranges(rows: Sequence[ParameterRange]) -> tuple[ParameterRange, ...]:
    """Select at most 12 parameters for the card.

    One parameter is taken from each kind (object, joint, camera, …) in turn. Within a kind, parameters with the largest
    range relative to their values are taken first.
    """
    kinds: dict[str, list[ParameterRange]] = {}
    for row in sorted(rows, key=_spread_key):
        kinds.setdefault(row.name.partition(".")[0], []).append(row)
    turns = itertools.zip_longest(*(kinds[kind] for kind in sorted(kinds)))
    return tuple(itertools.islice((row for turn in turns for row in turn if row is not None), _MOST))


def _spread_key(row: ParameterRange) -> tuple[float, str]:
    """Return a sort key that puts the largest relative range first, and equal ranges in the order of names."""
    size = max(abs(row.low), abs(row.high), _LEAST_SPREAD)
    return (-round((row.high - row.low) / size, 6), row.name)


def _texts(table: pa.Table, column: str) -> Sequence[Any]:
    return table[column].to_pylist() if column in table.column_names else []


def _transform_names(text: Any) -> list[str]:
    """Return the names of an episode's transforms from their JSON; an empty list if it cannot be read."""
    try:
        steps = parse_json(text, where="transforms") if text else []
    except (TypeError, AttributeError, DocumentError):
        return []
    return [str(step.get("name", step)) if isinstance(step, Mapping) else str(step) for step in steps]


Rows = Sequence[Mapping[str, Any]]
_SHOWN = 8  # most values of an origin in the card; our choice


def folder_card(
    folder: Path | str,
    *,
    repo_id: str = "",
    name: str = "",
    licence: str = "",
    tables: Mapping[str, Rows] | None = None,
) -> str:
    """Return the text of the dataset card (``README.md``) of a folder.

    The text depends on the folder and the arguments only.

    Args:
        folder: v3.0 dataset.
        repo_id: Repository on the Hugging Face Hub (``USER/DATASET``), for the example that loads the dataset.
        name: Name of the dataset; by default the recorded name, or the folder's name.
        licence: Licence that replaces the licence in the folder.
        tables: Rows of further sections, such as quality or labels, by title. All rows of a section have the same
            keys.

    Raises:
        DatasetError: If the folder is not a v3.0 dataset, or is damaged.
    """
    source = SourceV3(Path(folder))
    reader, origin = source.reader, read_origin(source.path)
    licence = licence or (reader.spec.licence if reader.written_by_twinloop else "")
    text = (
        _own_card(reader, source.tasks, licence)
        if reader.written_by_twinloop
        else _foreign_card(source, name or source.path.name)
    )
    body = text.split("---\n", 2)[2] if text.startswith("---\n") else text
    front = front_matter(licence, tags=_tags(reader, origin), frames=int(reader.info["total_frames"]))
    head, _, rest = body.strip().partition("\n\n## ")
    if name:
        title = f"# {markdown_text(name)}"
        head = re.sub(r"^# .*", lambda _: title, head)
    sections = [head, *_origin_sections(origin), *(_table(title, rows) for title, rows in (tables or {}).items())]
    sections += [f"## {rest}"] if rest else []
    sections.append(_loading_section(repo_id))
    return f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n\n" + "\n\n".join(sections) + "\n"


def _own_card(reader: DatasetReader, tasks: Sequence[str], licence: str) -> str:
    spec = replace(reader.spec, licence=licence)
    episodes, frames = len(reader), int(reader.info["total_frames"])
    logged = bool(episodes) and reader.has_log(0)
    codecs = {camera.key: _codec(reader.info["features"][camera.key]) for camera in spec.cameras}
    coded = {key: codec.upper() for key, codec in codecs.items() if codec != "h264"}
    tables = reader.side_tables
    return format_card(
        spec, episodes=episodes, frames=frames, tasks=list(tasks), recorded=logged, tables=tables, video_codings=coded
    )


def _codec(feature: Mapping[str, Any]) -> str:
    return str((feature.get("info") or {}).get("video.codec", "h264"))


def _foreign_card(source: SourceV3, name: str) -> str:
    info = source.info
    rows = [
        {
            "feature": MarkdownCode(key),
            "type": feature["dtype"],
            "shape": "×".join(map(str, feature.get("shape") or [1])),
        }
        for key, feature in source.features.items()
    ]
    sections = [
        f"# {markdown_text(name)}",
        (
            f"A LeRobotDataset v3.0 of {info['total_episodes']} episodes, {info['total_frames']} frames at "
            f"{info['fps']} Hz. Robot: {markdown_text(info.get('robot_type') or 'not stated')}."
        ),
        "## Tasks\n\n" + "\n".join(f"- {markdown_text(task)}" for task in source.tasks),
        _table("Features", rows),
    ]
    units: UnitMap | None = source.reader.units
    if units is not None:
        sections.append("## Units\n\n" + units_section(units))
    return "\n\n".join(sections)


def _tags(reader: DatasetReader, origin: DataOrigin) -> list[str]:
    robot = str(reader.info.get("robot_type") or "").strip()
    return [*([robot] if robot and robot != "unknown" else []), *origin.counts.get("source", {})]


def _origin_sections(origin: DataOrigin) -> list[str]:
    """Return the card's sections about the origin of the episodes; an empty list if the folder records no origin."""
    lines = [
        f"- {kind}: " + ", ".join(f"{markdown_text(value)} × {count}" for value, count in list(counts.items())[:_SHOWN])
        for kind, counts in origin.counts.items()
        if counts
    ]
    if not lines:
        return []
    lines += [f"- {origin.distinct} different episodes (by content hash)"] if origin.distinct else []
    lines += [f"- {origin.derived} episodes derived from others, named in their provenance"] if origin.derived else []
    if origin.transforms:
        lines.append(
            "- transforms: "
            + ", ".join(f"{markdown_text(name)} × {count}" for name, count in origin.transforms.items())
        )
    lines += [f"- {origin.invalid} episodes marked invalid"] if origin.invalid else []
    sections = ["## Origin of the episodes\n\n" + "\n".join(lines)]
    if origin.success:
        sections.append(f"## Success\n\n{origin.success}")
    if origin.ranges:
        rows = [
            {
                "parameter": MarkdownCode(r.name),
                "least": f"{r.low:.6g}",
                "median": f"{r.median:.6g}",
                "most": f"{r.high:.6g}",
            }
            for r in origin.ranges
        ]
        rest = origin.parameters - len(rows)
        also = f"\n\n{rest} more are `provenance/rand.*` columns of `meta/episodes/`." if rest else ""
        sections.append(_table("Parameters drawn (SI)", rows) + also)
    return sections


def _table(title: str, rows: Rows) -> str:
    if not rows:
        return f"## {title}\n\nNot available."
    names = list(rows[0])
    lines = [f"| {' | '.join(map(markdown_cell, names))} |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(_cell(row.get(name)) for name in names) + " |" for row in rows]
    return f"## {title}\n\n" + "\n".join(lines)


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else markdown_cell(value)


def _loading_section(repo_id: str) -> str:
    name = to_single_line(repo_id) or "USER/DATASET"
    code = f"""from lerobot.datasets.lerobot_dataset import LeRobotDataset

dataset = LeRobotDataset({json.dumps(name)})"""
    command = f"twinloop pull {shlex.quote(name)} --output DIR"
    return f"## Load it\n\n{markdown_block(code, 'python')}\n\n{markdown_block(command, 'sh')}"
