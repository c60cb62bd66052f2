"""The dataset card: what is inside, in which units, and when things happened."""

from __future__ import annotations

import yaml

from twinloop.core.files import dumps
from twinloop.dataset.spec import DatasetSpec

_TIME_RULE = """\
`observation.state[t]` is what a policy could have known at step t, sensor delays included. `action[t]` is the command
issued at step t and held until t+1. `next.success[t]` says whether the task's predicate held after step t.
`timestamp` is nominal: `frame_index / fps`."""

_SIM_FILES = """\
`twinloop/states/` holds the simulator's full state in float64: T+1 states per episode (`states[t]` is the state when
`commands[t]` was issued, `states[t+1]` the one it led to) and T commands, in SI units, one row per episode.
`twinloop/provenance/` holds one JSON line per episode: seed path, drawn parameters, versions, hashes. The same facts
are `provenance/*` columns of `meta/episodes/`."""

_LOG_FILES = """\
`twinloop/log/` holds the log's own numbers, unrounded, with its true times: one row per episode."""


def card(spec: DatasetSpec, *, episodes: int, frames: int, tasks: list[str], logged: bool) -> str:
    """The text of ``README.md``."""
    front = {
        "license": spec.licence or "other",
        "task_categories": ["robotics"],
        "tags": ["LeRobot"],
        "configs": [{"config_name": "default", "data_files": "data/*/*.parquet"}],
    }
    sections = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n\n# {spec.name}",
        f"A LeRobotDataset v3.0 of {episodes} episodes, {frames} frames at {spec.fps} Hz. Robot: {spec.robot_type}.",
        "## Tasks\n\n" + "\n".join(f"- {task}" for task in tasks),
        "## Time\n\n" + _TIME_RULE,
        "## Units\n\n" + _units(spec),
    ]
    if spec.cameras:
        rows = [
            f"- `{c.key}`: {c.width}×{c.height}, H.264, a key frame at least every second frame" for c in spec.cameras
        ]
        sections.append("## Cameras\n\n" + "\n".join(rows))
    sections.append("## Beside LeRobot's files\n\n" + (_LOG_FILES if logged else _SIM_FILES))
    if spec.config:
        sections.append("## Configuration\n\n```json\n" + dumps(dict(spec.config), indent=2) + "\n```")
    return "\n\n".join(sections) + "\n"


def _units(spec: DatasetSpec) -> str:
    head = f"From: {spec.units.source}. Position in rad or m = offset + scale · value.\n\n"
    rows = ["| joint | unit | scale | offset |", "|---|---|---|---|"]
    rows += [f"| {u.joint} | {u.unit} | {_number(u.scale)} | {_number(u.offset)} |" for u in spec.units.joints]
    return head + "\n".join(rows)


def _number(value: float | None) -> str:
    return "not known" if value is None else f"{value:.9g}"
