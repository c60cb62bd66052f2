"""Describe the gap between robot and twin: its history over runs, its causes, and the identified parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twinloop.core.errors import UnknownNameError
from twinloop.studio.data import StudioData
from twinloop.studio.episode_list import describe_episodes
from twinloop.workflows.gap.history import is_gap, parse_past_run

_EPISODE = "SELECT episode_id FROM places WHERE batch = ? AND episode_index = ?"


def describe_gap(data: StudioData) -> dict[str, Any]:
    """Return all measurements of the gap by kind, oldest first, and the causes of the error found last.

    Each measurement has its headline metrics with intervals. Only runs on the same data can be compared, so each has
    the hash of its data.
    """
    kinds: dict[str, list[dict[str, Any]]] = {}
    causes: dict[str, Any] | None = None
    worst: list[dict[str, Any]] | None = None
    for row, result in data.results("gap"):
        if causes is None and result.get("explanations"):
            causes = {"run_id": row["run_id"], "explanations": result["explanations"]}
        if worst is None and result.get("worst"):
            worst = _find_clips(data, result)
        if is_gap(result):
            past = parse_past_run(Path(row["folder"] or row["run_id"]), result)
            metrics = {name: metric.to_json() for name, metric in past.metrics.items()}
            measured = {
                "run_id": row["run_id"],
                "run": past.folder.name,
                "made": row["started"],
                "twin": past.version,
                "data": past.data,
                "data_hash": past.data_hash or past.data,
                "metrics": metrics,
            }
            kinds.setdefault(result["kind"], []).insert(0, measured)
    found = [{"kind": kind, "runs": runs} for kind, runs in kinds.items()]
    return {"kinds": found, "causes": causes, "worst": worst or [], "fit": _describe_fit(data)}


def _describe_fit(data: StudioData) -> dict[str, Any] | None:
    """Return the held-out error of the nominal and the identified twin by channel, of the newest fit that has it."""
    for row, result in data.results("identify"):
        measured = result.get("gap") or {}
        twins = measured.get("twins") or {}
        if len(twins) < 2:
            continue
        channels = [
            {**channel, "errors": {name: _pick(error, number) for name, error in twins.items()}}
            for number, channel in enumerate(measured["channels"])
        ]
        return {"run_id": row["run_id"], "made": row["started"], "twins": list(twins), "channels": channels}
    return None


def _pick(interval: Mapping[str, Any], number: int) -> dict[str, Any]:
    return {end: interval[end][number] for end in ("estimate", "low", "high")}


def _find_clips(data: StudioData, result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the clips with the largest errors whose episodes are in the workspace."""
    batch, found = str((result.get("data") or {}).get("name", "")), list[dict[str, Any]]()
    for clip in result["worst"]:
        ids = data.rows(_EPISODE, [batch, int(clip["episode"])])
        for row in describe_episodes(data, [one["episode_id"] for one in ids]):
            first = round(float(clip["begin"]) * row["fps"])
            last = min(row["frames"] - 1, first + round(float(clip["length"]) * row["fps"]))
            found.append({**row, **clip, "first_frame": first, "last_frame": last})
    return found


def describe_parameters(data: StudioData, run_id: str) -> dict[str, Any]:
    """Return the parameters that a run identified: nominal value, prior, estimate with interval, or why there is none.

    Args:
        data: the workspace.
        run_id: the run; empty for the newest one.

    Raises:
        UnknownNameError: If no run with this id identified parameters.
    """
    found = [(row, result) for row, result in data.results("identify") if result.get("estimates")]
    runs = [{"run_id": row["run_id"], "folder": row["folder"], "made": row["started"]} for row, _ in found]
    if not runs:
        return {"runs": [], "parameters": []}
    chosen = next((one for one in found if one[0]["run_id"] == (run_id or runs[0]["run_id"])), None)
    if chosen is None:
        raise UnknownNameError("identify run", run_id, [run["run_id"] for run in runs], where=str(data.workspace.root))
    row, result = chosen
    return {
        "runs": runs,
        "run_id": row["run_id"],
        "twin": result.get("twin"),
        "data": result.get("data"),
        "level": (result.get("evidence") or {}).get("level"),
        "notes": result.get("notes") or [],
        "directions": result.get("not_determined_directions") or [],
        "parameters": [
            {name: value for name, value in one.items() if not isinstance(value, float) or math.isfinite(value)}
            for one in result["estimates"]
        ],
    }
