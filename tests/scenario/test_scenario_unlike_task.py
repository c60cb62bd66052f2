"""A task without an object: a failed reach for a moving goal becomes a scenario whose cause is found."""

from __future__ import annotations

import json

from twinloop.cli.main import main

SOFT = """scene: {twin: so101_tabletop, task: reach_moving}
randomization:
  params: {"actuator/*/kp": [0.5, 0.8]}
"""


def test_a_reach_that_fails_for_soft_servos_names_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "soft.yaml").write_text(SOFT)
    words = ["--episodes", "1", "--output", "data", "--workers", "1", "--keep", "all"]
    assert main(["generate", "soft.yaml", *words]) in (0, 1)
    assert main(["scenario", "from-failure", "data:0", "--name", "soft", "--tries", "2"]) == 0
    assert "never_reached" in capsys.readouterr().out
    assert main(["scenario", "counterfactual", "soft", "--change", "actuator/*/kp*=10", "--tries", "2"]) == 0
    capsys.readouterr()
    assert main(["scenario", "ablate", "soft", "--tries", "2", "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    first = metrics["terms"][0]
    assert (first["term"], first["without"]["outcomes"]) == ("servo stiffness", "11")
    assert all(term["without"]["outcomes"] == "00" for term in metrics["terms"][1:])
