"""What tests of several files share: release commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import yaml

from support.releases import evaluation, policy_folder
from twinloop.catalog import Workspace
from twinloop.release import PolicyRegistry

OFF = {"waived": "not asked here"}


ASKED = {"floor": {"success": 0.5}, "regressions": {}, "latency": {"budget_s": 0.03}, "context": OFF}


def gate_file(root: Path, name: str, seed: int, rate: float, champion: str | None, **changes) -> Path:
    """A candidate's folder and evaluations in a workspace, and its gate."""
    folder = policy_folder(root / "trained" / name, seed)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hash": name}))
    slices = np.repeat(np.arange(2), 100)
    for who, p, s in ((name, rate, seed), ("old", 0.8, 0)):
        evaluation(who, np.random.default_rng(s).random(200) < p, slices=slices).write(root / "runs" / f"{name}-{who}")
    given = {"candidate": f"{name}@1", "champion": champion, "success": {"within": 0.15}, **ASKED}
    evidence = {"candidate": [f"runs/{name}-{name}"], "champion": [f"runs/{name}-old"] if champion else []}
    given |= {"evidence": evidence, "stages": {"shadow": None, "canary": None}, **changes}
    file = root / f"{name}.yaml"
    file.write_text(yaml.safe_dump(given))
    with Workspace.open(root) as ws:
        PolicyRegistry(ws).add(folder, policy=name)
    return file
