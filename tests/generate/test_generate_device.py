"""A dataset made on a device records it, and each episode replays there alone, bit for bit (CPU device)."""

from __future__ import annotations

import json

import pytest
import yaml

from twinloop.cli.main import main
from twinloop.dataset.lerobot.reader import DatasetReader

pytest.importorskip("mujoco_warp", reason="mujoco-warp is not installed: pip install 'twinloop[gpu]'")
pytest.importorskip("torch", reason="torch is not installed: pip install 'twinloop[gpu]'")

FILE = {
    "scene": {"robot": "so101", "task": "pick_and_place"},
    "rollout": {"parallel_envs": 3, "backend": "warp:cpu"},
}


@pytest.mark.slow
def test_episodes_of_a_device_are_replayed_alone_bit_for_bit(capsys, tmp_path):
    (tmp_path / "generate.yaml").write_text(yaml.safe_dump(FILE))
    output = tmp_path / "batch"
    made = ["generate", str(tmp_path / "generate.yaml"), "--output", str(output), "--episodes", "3", "--workers", "1"]
    assert main(made) == 0
    capsys.readouterr()
    assert main(["replay", str(output), "1", "--verify", "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert metrics["equal"]
    assert metrics["difference"] == 0.0
    versions = DatasetReader(output).provenance(1).versions
    assert {"mujoco-warp", "warp-lang", "torch"} <= set(versions)
