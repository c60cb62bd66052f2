"""The demo's second half, small and from a folder that is named as seen from here, as ``make demo`` names it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import yaml
from rich.console import Console

from twinloop.release.gate_config import InvariantRule, RobotRule, parse_gate
from twinloop.stats import paired_p_values
from twinloop.workflows.demo.virtual_robots.settings import TransferSettings

pytest.importorskip("torch")
from twinloop.workflows.demo import retraining

SMALL = TransferSettings(robots=1, seeds=1, episodes=6, demos=32, steps=60, log=4, conditions=(1, 4))


@pytest.mark.slow
def test_the_loop_closes_from_a_relative_folder(tmp_path, monkeypatch):
    from twinloop.report import ReportPage
    from twinloop.workflows.demo.retraining import retraining_section, transfer_metric

    monkeypatch.chdir(tmp_path)
    for name, value in {"SETTINGS": SMALL, "_TRIES": 4, "_TARGETED": 8, "_TRIALS": 8, "_STEPS": 20}.items():
        monkeypatch.setattr(retraining, name, value)
    half = retraining.run_failure_loop(
        Path("out/loop"), workers=1, console=Console(quiet=True), step=lambda _: nullcontext()
    )
    assert list(half.success) == ["nominal", "posterior", "after"]
    assert {len(won) for won in half.success.values()} == {SMALL.episodes}
    rules = {rule["rule"]: rule for rule in half.gate["rules"]}
    assert rules["evidence"]["verdict"] == "yes"
    asked_of_nothing = [name for name, rule in rules.items() if rule["verdict"] in ("waived", "none", "missing")]
    assert asked_of_nothing == ["latency"]  # 59 trials bound the quantile, and these are fewer
    assert rules["robot"]["evidence"]["pairs"] == SMALL.episodes
    difference = int(half.success["after"].sum()) - int(half.success["posterior"].sum())
    assert rules["robot"]["evidence"]["wins"] - rules["robot"]["evidence"]["losses"] == difference
    # the workspace records the training data of both policies
    assert rules["context"]["evidence"]["episodes"] > SMALL.demos / 2
    assert half.champion == f"pick-and-place@{1 + half.gate['passed']}"
    page = ReportPage("demo")
    page.key_metrics([metric for metric in [transfer_metric(half)] if metric is not None])
    retraining_section(page, half, None)
    html = page.write(Path("out/page.html")).read_text()
    assert "the retraining from it" in html
    assert half.scenario["scenario"] in html
    assert retraining.format_decision(half) in html


def test_the_gate_of_the_demo_is_that_of_its_page_and_waives_nothing():
    page = (Path(__file__).parents[2] / "docs" / "guides" / "release.md").read_text()
    [told] = [yaml.safe_load(text) for text in page.split("```yaml\n")[1:2] for text in [text.split("```")[0]]]
    made = retraining.gate_file("pick@2", {"candidate": [], "champion": []}, "identified")
    assert "waived" not in str(made)
    for rule, key in (("success", "within"), ("floor", "success"), ("regressions", "suites")):
        assert made[rule][key] == told[rule][key]
    rules = parse_gate(made)
    assert (rules.alpha, rules.robot, rules.invariants) == (0.05, RobotRule(), InvariantRule())
    assert rules.robot == parse_gate(told).robot
    assert rules.latency.quantile == told["latency"]["quantile"]  # pyright: ignore[reportAttributeAccessIssue]


def test_as_many_trials_as_show_a_policy_that_is_as_good():
    """With a power of 80 %, where one pair in five ends differently: by the exact test, not by a formula alone."""
    random = np.random.default_rng(0)
    for pairs, margin in ((retraining._TRIALS, retraining._WITHIN), (retraining._ROBOT_TRIALS, RobotRule().within)):
        p = paired_p_values(pairs, difference=-margin)
        drawn = random.multinomial(pairs, [0.1, 0.1, 0.8], size=4000)
        assert (p[drawn[:, 0], drawn[:, 1]] <= 0.05).mean() == pytest.approx(0.78, abs=0.03)
    assert retraining.SETTINGS.episodes == retraining._ROBOT_TRIALS
