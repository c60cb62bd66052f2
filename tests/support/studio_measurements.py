"""Results of measurements in a workspace, as their commands record them: gap, identified parameters, coverage."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

from twinloop.catalog import Workspace
from twinloop.core.headline import HeadlineMetric

BEGAN = datetime(2026, 1, 2, tzinfo=UTC)


def record(ws: Workspace, verb: str, name: str, result: dict, *, file: dict | None = None, hours: int = 0) -> None:
    """Record a run as the command line does: its large lists only in the file of its folder."""
    folder = ws.root / "runs" / name
    if file is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "result.json").write_text(json.dumps({**result, **file}))
    began = BEGAN + timedelta(hours=hours)
    ws.record_run(verb, folder, result, began, began + timedelta(minutes=1), [verb])


def measured(rmse: float, hour: int) -> dict:
    headline = HeadlineMetric(name="nrmse", estimate=rmse, low=rmse - 0.01, high=rmse + 0.01, meaning="error").to_json()
    worst = [
        {"episode": 2, "begin": 1.0, "length": 0.5, "channel": "position/gripper", "error": rmse, "unit": "deg"},
        {"episode": 77, "begin": 1.0, "length": 0.5, "channel": "position/gripper", "error": rmse, "unit": "deg"},
    ]
    about = {"twin": {"name": "arm", "hash": "a" * 64}, "data": {"name": "first", "label": "log", "hash": "b" * 64}}
    made = f"2026-01-02T0{hour}:00:00"
    return {"verb": "gap", "kind": "dynamics", "made": made, **about, "headline": [headline], "worst": worst}


HALF = {"estimate": 0.5, "low": 0.4, "high": 0.6}
CAUSES = [
    {
        "channel": "overall",
        "sentence": "Half.",
        "left": HALF,
        "causes": [{"groups": ["delay"], "significant": True} | HALF],
    }
]
ESTIMATES = [
    {"name": "joint/a/damping", "unit": "N.m.s/rad", "nominal": 0.5, "value": 0.6, "low": 0.55, "high": 0.65,
     "prior_low": 0.1, "prior_high": 2.0, "reason": "", "side": "", "conditional": True, "determined": True},
    {"name": "joint/a/armature", "unit": "kg.m2", "nominal": 0.01, "value": 0.01, "low": None, "high": None,
     "prior_low": 0.001, "prior_high": 0.1, "reason": "the motion is too slow", "side": "", "conditional": False,
     "determined": False},
]  # fmt: skip


def plant_clips(ws: Workspace) -> dict[str, list[str]]:
    """Two clips of each episode: real ones far to the right of simulated ones."""
    rows, sides = [], {"real": [], "sim": []}
    for episode in ws.query("SELECT episode_id, source FROM episodes ORDER BY batch, episode_index").to_pylist():
        sides[episode["source"]].append(episode["episode_id"])
        for clip in (0, 1):
            noise = np.random.default_rng(len(rows)).normal(size=3)
            vector = noise + 10.0 * (episode["source"] == "real")
            rows.append({"episode_id": episode["episode_id"], "encoder": "planted", "encoder_hash": "e" * 64,
                         "first_frame": 60 * clip, "last_frame": 60 * clip + 59,
                         "vector": vector.tolist()})  # fmt: skip
    ws.append("embeddings", pa.Table.from_pylist(rows), run_id="planted")
    return sides
