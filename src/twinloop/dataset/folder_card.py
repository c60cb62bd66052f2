"""The card of any LeRobot v3.0 folder, ours or not: what the writer's card says, and where the episodes come from."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from twinloop.core.console import Code, markdown_block, markdown_cell, markdown_text, one_line
from twinloop.core.units import UnitMap
from twinloop.dataset.card import card, front_matter, units_section
from twinloop.dataset.card_summary import Origin, read_origin
from twinloop.dataset.exporters.source import SourceV3
from twinloop.dataset.reader import DatasetReader

Rows = Sequence[Mapping[str, Any]]
_SHOWN = 8  # values of an origin that are named; our choice


def folder_card(
    folder: Path | str,
    *,
    repo_id: str = "",
    name: str = "",
    licence: str = "",
    tables: Mapping[str, Rows] | None = None,
) -> str:
    """The text of ``README.md``, a function of the folder and the arguments alone.

    Args:
        folder: a v3.0 dataset.
        repo_id: where it is or will be on the Hub, for the lines that load it.
        name: the dataset's name; by default our record's, or the folder's.
        licence: in place of what the folder states.
        tables: further sections by title, such as quality or labels, each a table with the same keys in every row.

    Raises:
        DatasetError: no v3.0 folder, or damaged.
    """
    source = SourceV3(Path(folder))
    reader, origin = source.reader, read_origin(source.path)
    licence = licence or (reader.spec.licence if reader.ours else "")
    text = _ours(reader, source.tasks, licence) if reader.ours else _foreign(source, name or source.path.name)
    body = text.split("---\n", 2)[2] if text.startswith("---\n") else text
    front = front_matter(licence, tags=_tags(reader, origin), frames=int(reader.info["total_frames"]))
    head, _, rest = body.strip().partition("\n\n## ")
    if name:
        title = f"# {markdown_text(name)}"
        head = re.sub(r"^# .*", lambda _: title, head)
    sections = [head, *_origin(origin), *(_table(title, rows) for title, rows in (tables or {}).items())]
    sections += [f"## {rest}"] if rest else []
    sections.append(_loading(repo_id))
    return f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n\n" + "\n\n".join(sections) + "\n"


def _ours(reader: DatasetReader, tasks: Sequence[str], licence: str) -> str:
    spec = replace(reader.spec, licence=licence)
    episodes, frames = len(reader), int(reader.info["total_frames"])
    logged = bool(episodes) and reader.has_log(0)
    codecs = {camera.key: _codec(reader.info["features"][camera.key]) for camera in spec.cameras}
    coded = {key: codec.upper() for key, codec in codecs.items() if codec != "h264"}
    tables = reader.side_tables
    return card(spec, episodes=episodes, frames=frames, tasks=list(tasks), logged=logged, tables=tables, coded=coded)


def _codec(feature: Mapping[str, Any]) -> str:
    return str((feature.get("info") or {}).get("video.codec", "h264"))


def _foreign(source: SourceV3, name: str) -> str:
    info = source.info
    rows = [
        {"feature": Code(key), "type": feature["dtype"], "shape": "×".join(map(str, feature.get("shape") or [1]))}
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


def _tags(reader: DatasetReader, origin: Origin) -> list[str]:
    robot = str(reader.info.get("robot_type") or "").strip()
    return [*([robot] if robot and robot != "unknown" else []), *origin.counts.get("source", {})]


def _origin(origin: Origin) -> list[str]:
    """The sections on where the episodes come from; none where the folder says nothing."""
    lines = [
        f"- {kind}: " + ", ".join(f"{markdown_text(value)} × {count}" for value, count in list(counts.items())[:_SHOWN])
        for kind, counts in origin.counts.items()
        if counts
    ]
    if not lines:
        return []
    lines += [f"- {origin.ids} different episodes by content hash"] if origin.ids else []
    lines += [f"- {origin.parents} episodes made from others, named in their provenance"] if origin.parents else []
    if origin.transforms:
        lines.append(
            "- transforms: "
            + ", ".join(f"{markdown_text(name)} × {count}" for name, count in origin.transforms.items())
        )
    lines += [f"- {origin.invalid} episodes marked invalid"] if origin.invalid else []
    sections = ["## Where the episodes come from\n\n" + "\n".join(lines)]
    if origin.success:
        sections.append(f"## Success\n\n{origin.success}")
    if origin.ranges:
        rows = [
            {"parameter": Code(r.name), "least": f"{r.low:.6g}", "median": f"{r.middle:.6g}", "most": f"{r.high:.6g}"}
            for r in origin.ranges
        ]
        rest = origin.parameters - len(rows)
        also = f"\n\n{rest} more are `provenance/rand.*` columns of `meta/episodes/`." if rest else ""
        sections.append(_table("Parameters drawn (SI)", rows) + also)
    return sections


def _table(title: str, rows: Rows) -> str:
    if not rows:
        return f"## {title}\n\nNothing is known."
    names = list(rows[0])
    lines = [f"| {' | '.join(map(markdown_cell, names))} |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(_cell(row.get(name)) for name in names) + " |" for row in rows]
    return f"## {title}\n\n" + "\n".join(lines)


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else markdown_cell(value)


def _loading(repo_id: str) -> str:
    name = one_line(repo_id) or "USER/DATASET"
    code = f"""from lerobot.datasets.lerobot_dataset import LeRobotDataset

dataset = LeRobotDataset({json.dumps(name)})"""
    command = f"twinloop pull {shlex.quote(name)} --output DIR"
    return f"## Load it\n\n{markdown_block(code, 'python')}\n\n{markdown_block(command, 'sh')}"
