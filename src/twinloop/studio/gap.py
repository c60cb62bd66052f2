"""Describe the gap between robot and twin: its history over runs, its causes, and the identified parameters."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.studio.data import StudioData
from twinloop.studio.episode_list import describe_episodes
from twinloop.workflows.gap.history import is_gap, parse_past_run

_Row = dict[str, Any]
_Found = TypeVar("_Found")
_EPISODE = "SELECT episode_id FROM places WHERE batch = ? AND episode_index = ?"


def describe_gap(data: StudioData) -> dict[str, Any]:
    """Return all measurements of the gap by kind, oldest first, and the causes of the error found last.

    Each measurement has its headline metrics with intervals. Only runs on the same data can be compared, so each has
    the hash of its data. ``damaged`` lists the runs whose results have another form.
    """
    damaged = list[str]()
    causes = _first(_read_each(data, "gap", _read_causes, damaged))
    worst = _first(_read_each(data, "gap", functools.partial(_find_clips, data), damaged))
    fit = _first(_read_each(data, "identify", _read_fit, damaged))
    kinds: dict[str, list[dict[str, Any]]] = {}
    for kind, run in reversed(_read_each(data, "gap", _read_run, damaged)):
        kinds.setdefault(kind, []).append(run)
    found = [{"kind": kind, "runs": runs} for kind, runs in kinds.items()]
    return {"kinds": found, "causes": causes, "worst": worst or [], "fit": fit, "damaged": sorted(set(damaged))}


def _read_each(
    data: StudioData, verb: str, read: Callable[[_Row, _Row], _Found | None], damaged: list[str]
) -> list[_Found]:
    """Return what ``read`` finds in the results of a command, newest first.

    Args:
        data: the workspace.
        verb: the command.
        read: function that returns what it finds in a run and its result, or None.
        damaged: list to which the ids of runs are added whose results cannot be read.
    """
    found = list[_Found]()
    for row, result in data.results(verb):
        try:
            one = read(row, result)
        except (InputError, LookupError, TypeError, ValueError, AttributeError):  # a file that another program changed
            damaged.append(row["run_id"])
            continue
        if one is not None:
            found.append(one)
    return found


def _first(found: Sequence[_Found]) -> _Found | None:
    return found[0] if found else None


def _read_causes(row: _Row, result: _Row) -> dict[str, Any] | None:
    explanations = result.get("explanations")
    return {"run_id": row["run_id"], "explanations": explanations} if explanations else None


def _read_run(row: _Row, result: _Row) -> tuple[str, dict[str, Any]] | None:
    if not is_gap(result):
        return None
    past = parse_past_run(Path(row["folder"] or row["run_id"]), result)
    metrics = {name: metric.to_json() for name, metric in past.metrics.items()}
    return result["kind"], {
        "run_id": row["run_id"],
        "run": past.folder.name,
        "made": row["started"],
        "twin": past.version,
        "data": past.data,
        "data_hash": past.data_hash or past.data,
        "metrics": metrics,
    }


def _read_fit(row: _Row, result: _Row) -> dict[str, Any] | None:
    """Return the held-out error of the nominal and the identified twin by channel, of a fit that has it."""
    measured = result.get("gap") or {}
    twins = measured.get("twins") or {}
    if len(twins) < 2:
        return None
    channels = [
        {**channel, "errors": {name: _pick(error, number) for name, error in twins.items()}}
        for number, channel in enumerate(measured["channels"])
    ]
    return {"run_id": row["run_id"], "made": row["started"], "twins": list(twins), "channels": channels}


def _pick(interval: Mapping[str, Any], number: int) -> dict[str, Any]:
    return {end: interval[end][number] for end in ("estimate", "low", "high")}


def _find_clips(data: StudioData, _row: _Row, result: _Row) -> list[dict[str, Any]] | None:
    """Return the clips with the largest errors whose episodes are in the workspace; None if the run measured none."""
    if not result.get("worst"):
        return None
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
    found = [(row, result) for row, result in data.results("identify") if _has_estimates(result)]
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


def _has_estimates(result: dict[str, Any]) -> bool:
    estimates = result.get("estimates")
    return isinstance(estimates, list) and bool(estimates) and all(isinstance(one, dict) for one in estimates)
