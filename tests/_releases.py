"""Policies that are folders, evaluations with planted rates and decisions with a planted answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from twinloop.catalog import Workspace
from twinloop.core.decision import GateDecision, RuleVerdict
from twinloop.core.evaluation import Evaluation
from twinloop.release import Registry, StagePlan

CONTRACT = {"robot_type": "so101_follower", "control_hz": 30.0}


def policy_folder(folder: Path, number: int, *, size: int = 64) -> Path:
    """A folder with the files of a saved policy."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"kind": "mlp", "contract": CONTRACT, "normalization": {"action": "mean_std"}, "number": number}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(bytes([number % 256]) * size)
    (folder / "README.md").write_text(f"# Policy {number}\n")
    return folder


def registry_of(ws: Workspace) -> Registry:
    return Registry(ws, who="tester")


def yes(registry: Registry, reference: str, plan: StagePlan, *, passed: bool = True) -> GateDecision:
    """A decision about a version against the present champion, as a gate would have made it."""
    rule = RuleVerdict(rule="success", verdict="yes" if passed else "no", asked="planted", reason="planted")
    made = GateDecision(
        candidate=reference,
        candidate_hash=registry.version(reference).hash,
        champion=registry.aliases().get("champion", ""),
        alpha=0.05,
        looks="any",
        rules=(rule,),
        plan=plan.to_json(),
        made=f"{len(registry.audit())}",
    )
    registry.record_decision(made)
    return made


def evaluation(
    name: str,
    success: np.ndarray,
    *,
    slices: np.ndarray | None = None,
    violations: np.ndarray | int | None = 0,
    latency_s: np.ndarray | float | None = 0.01,
    policy_hash: str = "",
    **facts,
) -> Evaluation:
    """Trials with the given outcomes; a trial's name is its number."""
    n = len(success)
    columns = {
        "slice": [str(one) for one in (np.zeros(n, dtype=int) if slices is None else slices)],
        "trial": [f"t{number:05d}" for number in range(n)],
        "success": np.asarray(success, dtype=bool),
        "progress": np.asarray(success, dtype=np.float64),
        "valid": np.ones(n, dtype=bool),
    }
    if violations is not None:
        columns["violations"] = np.broadcast_to(np.asarray(violations, dtype=np.int64), n)
    if latency_s is not None:
        columns["latency_s"] = np.broadcast_to(np.asarray(latency_s, dtype=np.float64), n)
    given: dict[str, Any] = {
        "suite": "nominal",
        "task": "pick_and_place",
        "twin": "so101_tabletop",
        "twin_hash": "twin-1",
    } | facts
    return Evaluation(policy=name, policy_hash=policy_hash or name, trials=pa.table(columns), **given)
