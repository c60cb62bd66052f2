"""The trained policy that the repository contains opens, and acts as its page says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from twinloop.cli.main import main
from twinloop.policies import open_policy

FOLDER = Path(__file__).parents[2] / "examples/policies/so101_pick_and_place"


def test_it_opens_with_its_hash_and_sees_two_cameras():
    policy = open_policy(FOLDER)
    assert policy.hash in (FOLDER / "README.md").read_text()
    assert policy.contract.cameras == {"front": (96, 128), "wrist": (96, 128)}


@pytest.mark.slow
def test_it_succeeds_in_random_worlds_through_the_camera_models(tmp_path, capsys):
    words = ["--twin", "so101_tabletop", "--task", "pick_and_place", "--suite", "nominal", "--episodes", "16"]
    assert (
        main(["evaluate", str(FOLDER), *words, "--sensors", "device", "--output", str(tmp_path / "e"), "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["evaluations"][0]["overall"]["estimate"] >= 0.8
