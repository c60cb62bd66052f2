"""From an empty workspace to a champion and back, by commands alone, and then: which episodes trained the champion?"""

from __future__ import annotations

import json

import pytest
import yaml

from twinloop.catalog import Workspace
from twinloop.cli.main import main

pytest.importorskip("torch")

SMALL = ["--steps", "40", "--batch", "8", "--set", "width=8", "depth=1", "chunk_size=4", "n_action_steps=4"]
OFF = {"waived": "not asked here"}
ASKED = {"floor": OFF, "regressions": OFF, "latency": OFF, "invariants": OFF}
CHAMPION = """
    SELECT DISTINCT e.episode_id FROM policy_aliases a
    JOIN policy_versions v ON a.policy = v.name || '@' || v.version
    JOIN policy_episodes e ON e.policy = v.policy
    WHERE a.alias = 'champion' ORDER BY 1
"""


def told(capsys, *words: str) -> dict:
    """The figures of a command that succeeds."""
    code = main([*words, "--json"])
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == 0, metrics
    return metrics


def rows(sql: str) -> list[dict]:
    with Workspace.open() as workspace:
        return workspace.query(sql).to_pylist()


@pytest.mark.slow
def test_a_workspace_knows_which_episodes_trained_its_champion(tmp_path, monkeypatch, capsys):
    told(capsys, "init", str(tmp_path / "cell"), "--robot", "so101")
    monkeypatch.chdir(tmp_path / "cell")
    told(capsys, "generate", "generate.yaml", "--output", "data/sim", "--episodes", "6", "--workers", "1")
    assert told(capsys, "add", "data/sim")["batches"][0]["new"] == 0  # what ran here is known already
    halves = {}
    for name, half in (("first", "episode_index < 4"), ("second", "episode_index >= 2")):
        chosen = told(capsys, "datasets", "freeze", name, "--sql", f"SELECT episode_id FROM episodes WHERE {half}")
        ids = rows(f"SELECT episode_id FROM dataset_episodes WHERE name = '{name}' ORDER BY 1")
        halves[name] = [row["episode_id"] for row in ids]
        assert chosen["episodes"] == len(ids) > 1
        words = ("train", "--data", name, "--output", f"trained/{name}", "--holdout", "0", *SMALL)
        assert told(capsys, *words)["hash"]
        told(capsys, "policies", "add", f"trained/{name}")
        told(capsys, "evaluate", f"{name}@1", "--episodes", "2", "--output", f"runs/{name}")

    for name, champion in (("first", None), ("second", "champion")):
        evidence = {"candidate": [f"runs/{name}"], "champion": ["runs/first"] if champion else []}
        given = {"candidate": f"{name}@1", "champion": champion, "success": OFF, "context": {"twin": "so101_tabletop"}}
        given |= {"evidence": evidence, "stages": {"shadow": None, "canary": None}, **ASKED}
        (tmp_path / "cell" / f"{name}.yaml").write_text(yaml.safe_dump(given))
        decided = told(capsys, "gate", f"{name}.yaml", "--output", f"runs/gate-{name}")
        verdicts = {rule["rule"]: rule["verdict"] for rule in decided["rules"]}
        assert verdicts["context"] == "yes"  # what trained it is known, by the lineage
        told(capsys, "promote")
        assert [row["episode_id"] for row in rows(CHAMPION)] == halves[name]
    told(capsys, "rollback", "--reason", "drops cubes")
    assert [row["episode_id"] for row in rows(CHAMPION)] == halves["first"]
    found = told(capsys, "datasets", "lineage", "champion")
    assert (found["name"], found["episodes"]) == ("first", len(halves["first"]))

    verbs = [row["verb"] for row in rows("SELECT verb FROM runs ORDER BY run_id")]
    assert verbs == ["generate", *["train", "evaluate"] * 2, "gate", "gate"]
    assert told(capsys, "policies", "verify")["findings"] == []
