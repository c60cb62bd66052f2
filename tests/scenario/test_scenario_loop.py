"""The result of a loop from a failure and its gate: yes if the failure is gone and nothing else is lost, else no."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from twinloop.core.errors import InputError
from twinloop.core.evaluation import Evaluation
from twinloop.core.files import write_json
from twinloop.workflows.scenario.continued_training import _training_sources
from twinloop.workflows.scenario.requests import RetrainRequest
from twinloop.workflows.scenario.retrain import ScenarioChange, _add_scenario_suite, _decide_gate

ASKED = RetrainRequest(name="miss", policy="old", output=Path("out"), within=0.1)


def tried(policy, suite, slices):
    """An evaluation with these outcomes by slice, one letter each: 1, 0, or x for a world that was lost."""
    rows = [(name, f"{name}#{i}", letter) for name, letters in slices.items() for i, letter in enumerate(letters)]
    n = len(rows)
    return Evaluation(
        policy=policy,
        policy_hash=policy * 16,
        suite=suite,
        twin="so101_tabletop",
        twin_hash="a" * 64,
        task="pick_and_place",
        run_seed=0,
        trials=pa.table(
            {
                "slice": [row[0] for row in rows],
                "trial": [row[1] for row in rows],
                "success": [row[2] == "1" for row in rows],
                "progress": np.zeros(n),
                "time_s": pa.nulls(n, pa.float64()),
                "smoothness": pa.nulls(n, pa.float64()),
                "peak_force_n": pa.nulls(n, pa.float64()),
                "violations": pa.array([0] * n),
                "latency_s": pa.nulls(n, pa.float64()),
                "valid": [row[2] != "x" for row in rows],
                "reason": pa.array(["diverged" if row[2] == "x" else None for row in rows], pa.string()),
                "episode_id": pa.nulls(n, pa.string()),
            }
        ),
    )


def decided(nominal, miss, other):
    """The gate's answer to outcomes (before, after) of the nominal suite, of this failure, and of another one."""
    sides = []
    for at, policy in enumerate(("old", "new")):
        failures = tried(policy, "failures", {"miss": miss[at], "other": other[at]})
        sides.append(_add_scenario_suite([tried(policy, "nominal", {"nominal": nominal[at]}), failures], "miss"))
    decision = _decide_gate(ASKED, sides[1], sides[0], ["miss", "other"])
    return decision.passed, {rule.rule: rule.verdict for rule in decision.rules}


SAME = ("1" * 60, "1" * 60)


def test_the_gate_says_yes_where_the_failure_is_gone_and_nothing_is_lost():
    assert decided(SAME, ("0" * 16, "1" * 16), ("1" * 16, "1" * 16))[0]


@pytest.mark.parametrize(
    ("nominal", "miss", "other", "rule"),
    [
        (("1" * 60, "1" * 40 + "0" * 20), ("0" * 16, "1" * 16), ("1" * 16, "1" * 16), "success"),
        (SAME, ("0" * 16, "0" * 14 + "11"), ("1" * 16, "1" * 16), "improves"),
        (SAME, ("0" * 16, "1" * 16), ("1" * 16, "0" * 16), "regressions"),
    ],
)
def test_the_gate_says_no_and_which_rule_did(nominal, miss, other, rule):
    passed, verdicts = decided(nominal, miss, other)
    assert not passed
    assert verdicts[rule] == "no"
    assert [name for name, word in verdicts.items() if word not in ("yes", "waived", "none")] == [rule]


def test_a_change_is_counted_over_the_trials_of_one_slice_that_both_had():
    before = tried("old", "failures", {"miss": "0011x", "other": "1111"})
    after = tried("new", "failures", {"miss": "0110x", "other": "0000"})
    found = ScenarioChange.of("miss", before, after)
    assert (found.pairs.both, found.pairs.only_a, found.pairs.only_b, found.pairs.neither) == (1, 1, 1, 2)
    assert float(found.before.estimate) == pytest.approx(0.4)
    assert float(found.difference.estimate) == 0.0
    assert found.to_json()["p_value"] == 1.0


def test_nobody_trains_on_without_knowing_what_was_trained_on(tmp_path):
    with pytest.raises(InputError, match="does not record the policy's training data. Give them with --data"):
        _training_sources(ASKED, tmp_path)
    write_json(tmp_path / "result.json", {"config": {"sources": [{"data": "sim", "units": "deg"}]}})
    assert _training_sources(ASKED, tmp_path) == [{"data": "sim", "units": "deg"}]
    assert _training_sources(
        RetrainRequest(name="miss", policy="old", output=Path("out"), data=("a", "b")), tmp_path
    ) == [
        {"data": "a", "kind": "sim"},
        {"data": "b", "kind": "sim"},
    ]


@pytest.mark.slow
def test_a_taught_policy_is_taught_on_near_its_failure_and_in_its_earlier_worlds(tmp_path, monkeypatch):
    """The whole loop as a user runs it, in a workspace: the gate then finds the worlds that taught the policy."""
    pytest.importorskip("torch")
    from twinloop.catalog import Workspace
    from twinloop.cli.main import main
    from twinloop.core.documents import read_json
    from twinloop.release.version import read_training_record

    monkeypatch.chdir(tmp_path)
    assert main(["init", ".", "--twin", "so101_tabletop"]) == 0
    Path("worlds.yaml").write_text(
        "scene: {twin: so101_tabletop, task: pick_and_place}\nrandomization: {default: true}\n"
    )
    few = ["--worlds", "4", "--rounds", "1", "--final-steps", "4", "--set", "width=8"]
    assert main(["distill", "worlds.yaml", "--output", "old", *few]) == 0
    episode = [
        "--robot",
        "virtual:so101_tabletop?seed=1&task=pick_and_place",
        "--policy",
        "old",
        "--episodes",
        "1",
        "--output",
        "runs",
    ]
    assert main(["run", *episode]) == 0
    words = ["--name", "missed", "--policy", "old", "--tries", "4"]
    assert main(["scenario", "from-failure", "runs:0", *words]) in (0, 1)
    sizes = ["--episodes", "2", "--steps", "4", "--tries", "2", "--trials", "2"]
    assert main(["scenario", "loop", "missed", "--policy", "old", "--output", "round", *sizes]) == 1
    result = read_json(Path("round/result.json"))
    assert [(row["by_expert"], row["by_policy"]) for row in result["trained"]["rounds"]] == [(2, 2)] * 4
    assert result["augmented"]["attempted"] == 8
    assert [one["name"] for one in result["changes"]] == ["taught", "missed"]
    with Workspace.open(Path()) as held:
        record = read_training_record(held, result["trained"]["hash"])
        assert record.episodes == 20
        for name, (low, high) in result["augmented"]["ranges"].items():
            assert record.ranges[name][0] <= high
            assert record.ranges[name][1] >= low
