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
from twinloop.release import CanaryPlan, PolicyRegistry, ShadowPlan, StagePlan, StageTracker, promote, rollback

AT_ONCE = StagePlan(shadow=None, canary=None)
IN_SHADOW = StagePlan(shadow=ShadowPlan(limit=5.0, episodes=1), canary=CanaryPlan(share=0.5, episodes=4))

CONTRACT = {"robot_type": "so101_follower", "control_hz": 30.0}


def policy_folder(folder: Path, number: int, *, size: int = 64) -> Path:
    """A folder with the files of a saved policy."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"kind": "mlp", "normalization": "mean_std", "seed": number}
    config = {"contract": CONTRACT, "settings": settings, "statistics": {"action": [0.0, 1.0]}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(bytes([number % 256]) * size)
    (folder / "README.md").write_text(f"# Policy {number}\n")
    return folder


def registry_of(ws: Workspace) -> PolicyRegistry:
    return PolicyRegistry(ws, who="tester")


def yes(registry: PolicyRegistry, reference: str, plan: StagePlan, *, passed: bool = True) -> GateDecision:
    """A decision about a version against the present champion, as a gate would have made it."""
    rule = RuleVerdict(rule="success", verdict="yes" if passed else "no", requirement="planted", reason="planted")
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


def act(ws: Workspace, what: str) -> None:
    """One of the steps that must be whole or not at all; done again, it is done."""
    registry = registry_of(ws)
    stages, aliases = StageTracker(registry), registry.aliases()
    shadow = {"value": 1.0, "joint": "gripper", "faults": 0, "fault": ""}
    steps = {
        "add": lambda: registry.add(ws.root / "trained", name="pick", policy="9"),
        "gate": lambda: yes(registry, "pick@3", AT_ONCE),
        "rollback": lambda: "previous" in aliases and rollback(registry, "planted"),
        "crown": lambda: aliases["champion"] == "pick@3" or promote(registry, "pick@3", force=True, reason="planted"),
        "send": lambda: stages.current_candidate is None and promote(registry, "candidate"),
        "outcome": lambda: stages.stage == "shadow" and stages.record_outcome(0, True, shadow=shadow),
    }
    steps[what]()


def released(root: Path) -> Path:
    """A workspace with two champions so far, one version more, and a folder that is not added yet."""
    with Workspace.create(root) as ws:
        registry = registry_of(ws)
        for number in (1, 2, 3):
            reference = registry.add(policy_folder(root / "p" / str(number), number), name="pick", policy=str(number))
            if number < 3:
                yes(registry, reference, AT_ONCE)
                promote(registry)
        yes(registry, "pick@3", IN_SHADOW)
    policy_folder(root / "trained", 9)
    return root
