"""The demo's policies, small and from a folder that is named as seen from here, as ``make demo`` names it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import yaml
from rich.console import Console

from twinloop.catalog import Workspace
from twinloop.core.evaluation import Evaluation
from twinloop.release.gate_config import InvariantRule, RobotRule, parse_gate
from twinloop.stats import paired_p_values

pytest.importorskip("torch")
from twinloop.workflows.demo import policies


@pytest.mark.slow
def test_the_loop_closes_from_a_relative_folder(tmp_path, monkeypatch):
    from twinloop.report import ReportPage

    monkeypatch.chdir(tmp_path)
    teaching = {"worlds": 16, "rounds": 2, "steps": 20, "final_steps": 60}
    small = {
        "TEACHING": teaching,
        "RETRAINING": {"episodes": 4, "steps": 12, "tries": 4},
        "TRIALS": 8,
        "ROBOT_TRIALS": 6,
    }
    for name, value in small.items():
        monkeypatch.setattr(policies, name, value)
    Workspace.create(Path("out/cell")).close()
    half = policies.run_policy_loop(Path("out/cell"), 3, console=Console(quiet=True), step=lambda _: nullcontext())
    assert half.robot.seed == policies.FIRST_ROBOT + 3
    assert list(half.success) == ["taught", "after"]
    assert {len(won) for won in half.success.values()} == {6}
    rules = {rule["rule"]: rule for rule in half.gate["rules"]}
    assert rules["evidence"]["verdict"] == "yes"
    asked_of_nothing = [name for name, rule in rules.items() if rule["verdict"] in ("waived", "none", "missing")]
    assert asked_of_nothing == ["latency"]  # 59 trials bound the quantile, and these are fewer
    assert rules["robot"]["evidence"]["pairs"] == 6
    difference = int(half.success["after"].sum()) - int(half.success["taught"].sum())
    assert rules["robot"]["evidence"]["wins"] - rules["robot"]["evidence"]["losses"] == difference
    # the limits are those of the nominal twin, which the policies keep: the robot's own damping is no servo's
    for name in half.success:
        tried = Evaluation.read(half.output / "robot" / name)
        assert tried.extra["violations"]["acceleration"] == 0
    # the workspace records the worlds that taught both policies
    assert rules["context"]["evidence"]["episodes"] == 2 * 16 + 4 * 8
    assert half.champion == f"pick-and-place@{1 + half.gate['passed']}"
    with Workspace.open(Path("out/cell")) as held:
        rows = held.query("SELECT policy, count(*) AS n FROM latest_evaluations WHERE suite = 'real' GROUP BY 1")
        assert sorted(rows["n"].to_pylist()) == [6, 6]
        assert held.query("SELECT * FROM episodes").num_rows >= 1  # the recorded failure
    page = ReportPage("demo")
    page.key_metrics([policies.policy_metric(half)])
    policies.policy_section(page, half)
    policies.retraining_section(page, half)
    html = page.write(Path("out/page.html")).read_text()
    assert "the retraining from it" in html
    assert half.scenario["scenario"] in html
    assert policies.format_decision(half) in html
    assert policies.format_effect(half) in html


def test_the_gate_of_the_demo_is_that_of_its_page_and_waives_nothing():
    page = (Path(__file__).parents[2] / "docs" / "guides" / "release.md").read_text()
    [told] = [yaml.safe_load(text) for text in page.split("```yaml\n")[1:2] for text in [text.split("```")[0]]]
    made = policies.gate_file("pick@2", {"candidate": [], "champion": []}, "identified")
    assert "waived" not in str(made)
    for rule, key in (("success", "within"), ("floor", "success"), ("regressions", "suites")):
        assert made[rule][key] == told[rule][key]
    rules = parse_gate(made)
    assert (rules.alpha, rules.robot, rules.invariants) == (0.05, RobotRule(), InvariantRule())
    assert rules.robot == parse_gate(told).robot
    assert rules.latency.quantile == told["latency"]["quantile"]  # pyright: ignore[reportAttributeAccessIssue]


def test_as_many_trials_as_show_a_policy_that_is_as_good():
    """With a power of 80 %, where one pair in twelve ends differently: by the exact test, not by a formula alone."""
    random = np.random.default_rng(0)
    for pairs, margin in ((policies.TRIALS, policies.WITHIN), (policies.ROBOT_TRIALS, RobotRule().within)):
        p = paired_p_values(pairs, difference=-margin)
        drawn = random.multinomial(pairs, [1 / 24, 1 / 24, 11 / 12], size=4000)
        power = (p[drawn[:, 0], drawn[:, 1]] <= 0.05).mean()
        assert power == pytest.approx(0.8, abs=0.05), (pairs, power)
