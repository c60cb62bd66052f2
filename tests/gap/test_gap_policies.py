"""``twinloop gap policies``: planted gaps are found and located, and unidentifiable gaps are reported."""

import dataclasses
import json

import numpy as np
import pytest
from scipy import stats

from twinloop.cli.main import main
from twinloop.core.errors import InputError
from twinloop.core.trials import Trials
from twinloop.gap.policies.measure import format_policies, measure_policies
from twinloop.stats import ContingencyTable, difference_interval
from twinloop.stats.matched_trials import paired_scores, stratified_difference, stratified_permutation
from twinloop.workflows.gap.requests import GapPoliciesRequest
from twinloop.workflows.run.results import parse_conditions


def _counts(*rows):
    """Trials of (policy, condition, real successes, real trials, simulated successes, simulated trials)."""
    parts = []
    for policy, condition, won, tried, sim_won, sim_tried in rows:
        parts.append(Trials.of_counts(policy, "real", won, tried, condition=condition))
        parts.append(Trials.of_counts(policy, "sim", sim_won, sim_tried, condition=condition))
    return Trials.concatenate_trials(parts)


def test_the_planted_condition_drives_the_gap():
    gap = measure_policies(
        _counts(
            ("a", "bright", 16, 20, 47, 60),
            ("a", "dark", 4, 20, 48, 60),
            ("b", "bright", 12, 20, 37, 60),
            ("b", "dark", 3, 20, 36, 60),
        ),
        "success",
    )
    assert [row.name for row in gap.significant_conditions] == ["dark"]
    assert sum(row.contribution for row in gap.conditions) == pytest.approx(float(gap.overall.difference.estimate))
    assert gap.significant_conditions[0].contribution > 0.9 * float(gap.overall.difference.estimate)
    metrics = {row.name: row for row in gap.headlines()}
    assert metrics["success_gap/dark"].low > 0.3
    assert metrics["success_conditions_differ"].estimate == 0.5
    assert metrics["success_largest"].estimate == pytest.approx(84 / 120 - 7 / 40, abs=1e-9)


def test_metrics_of_conditions_can_be_named_in_a_condition():
    trials = _counts(("act v2", "light=dark, pose=left", 2, 8, 6, 8), ("act v2", "light=dark, pose=right", 2, 8, 6, 8))
    names = [metric.name for metric in measure_policies(trials, "success").headlines()]
    assert "success_gap/light_dark,_pose_left" in names
    for name in names:
        parse_conditions([f"{name} < 0.5"])


def test_one_cell_is_barnards_test_and_newcombes_interval():
    gap = measure_policies(_counts(("a", "", 4, 10, 10, 10)), "success")
    assert gap.overall.test == "Barnard"
    assert gap.overall.p_value == pytest.approx(stats.barnard_exact([[10, 4], [0, 6]]).pvalue, rel=1e-3)
    wanted = difference_interval(ContingencyTable(successes_a=10, trials_a=10, successes_b=4, trials_b=10))
    assert gap.overall.difference.low == wanted.low
    assert "The simulation is easier than reality" in format_policies(gap)


def test_a_mixture_of_conditions_is_no_gap():
    """Simpson: equal rates in each condition, tried in other proportions."""
    gap = measure_policies(_counts(("a", "easy", 9, 10, 81, 90), ("a", "hard", 9, 90, 1, 10)), "success")
    assert float(gap.overall.difference.estimate) == pytest.approx(0.0, abs=1e-12)
    assert gap.overall.sim - gap.overall.real > 0.6
    assert any("the proportions of conditions differ" in note for note in gap.notes)


@pytest.mark.parametrize(
    ("won", "word"),
    [(8, "every trial succeeded in simulation and in reality"), (0, "every trial failed in simulation and in reality")],
)
def test_tables_of_one_outcome_are_answered(won, word):
    gap = measure_policies(_counts(("a", "", won, 8, won, 8)), "success")
    assert gap.overall.p_value == 1
    assert float(gap.overall.difference.high) > 0.2
    text = format_policies(gap)
    assert word in text
    assert "nan" not in text
    several = measure_policies(_counts(("a", "x", won, 8, won, 8), ("a", "y", won, 8, won, 8)), "success")
    assert "nan" not in format_policies(several)


def test_too_few_trials_say_how_many_it_takes():
    rows = [("a", f"c{i}", 1, 3, 2, 3) for i in range(4)]
    text = format_policies(measure_policies(_counts(*rows), "success"))
    assert "Too few trials to show any difference, even if all real ones failed" in text
    assert "at least 4 real and 4 simulated trials" in " ".join(text.split())
    assert "does not show equality. A difference of 0.2 from a real rate of 0.33" in " ".join(text.split())


def _paired(n, rng, flip):
    real = rng.random(n) < 0.5
    sim = np.where(rng.random(n) < flip, True, real)
    ids = tuple(f"s{i}" for i in range(n))
    score = np.concatenate([real, sim]).astype(float)
    return Trials(
        policy=("a",) * 2 * n,
        domain=("real",) * n + ("sim",) * n,
        score=score,
        success=tuple(bool(x) for x in score),
        pair=ids + ids,
    )


def test_pairs_see_what_unpaired_trials_cannot():
    trials = _paired(30, np.random.default_rng(0), 0.5)
    gap = measure_policies(trials, "success")
    assert gap.overall.test == "McNemar, pairs"
    assert gap.overall.p_value < 0.05
    apart = Trials.concatenate_trials([trials.real, trials.sim.take(range(29))])
    assert measure_policies(apart, "success").overall.test == "Barnard"
    assert measure_policies(trials, "score").overall.test == "sign flips of pairs"


def test_scores_within_conditions_against_welch_and_exact_permutations():
    rng = np.random.default_rng(1)
    a, b = rng.random(12), rng.random(9) * 0.6
    interval = stratified_difference([(a, b)])
    welch = stats.ttest_ind(a, b, equal_var=False).confidence_interval()
    assert (interval.low, interval.high) == pytest.approx((welch.low, welch.high))
    small = ([0.9, 0.8, 0.7], [0.1, 0.2, 0.3])
    exact = stats.permutation_test(small, lambda x, y, axis: x.mean(axis) - y.mean(axis), vectorized=True).pvalue
    assert stratified_permutation([small]) == pytest.approx(exact, abs=0.015)
    assert stratified_permutation([([0.0] * 4, [1.0] * 4)]) > 0.01  # two tables of seventy are as far
    flat = stratified_difference([([0.0] * 4, [1.0] * 4)])
    assert np.isnan(flat.low)
    assert flat.method == "none: scores do not vary within an arm, so their spread is unknown"
    assert "one trial of an arm" in stratified_difference([([0.5], [0.4])]).method
    mean, p = paired_scores([0.1, 0.2, 0.3, 0.2])
    assert mean.low > 0
    assert p == pytest.approx(2 / 16, abs=0.015)
    with pytest.raises(InputError, match="no pairs"):
        paired_scores([])


def test_a_false_alarm_is_as_rare_as_promised():
    """Holm's test of five conditions without any gap, on 60 tables; the study has more."""
    rng = np.random.default_rng(4)
    alarms = 0
    for _ in range(60):
        rows = [("a", f"c{i}", int(rng.binomial(12, 0.6)), 12, int(rng.binomial(12, 0.6)), 12) for i in range(5)]
        alarms += bool(measure_policies(_counts(*rows), "success").significant_conditions)
    assert alarms <= 7


def test_what_was_not_tried_in_both_is_named():
    trials = Trials.concatenate_trials(
        [_counts(("a", "x", 1, 4, 2, 4)), Trials.of_counts("b", "sim", 1, 4, condition="x")]
    )
    assert measure_policies(trials, "success").notes[0] == "Tried in one domain only, and left out: b x."
    apart = Trials.concatenate_trials(
        [Trials.of_counts("a", "real", 1, 4, condition="x"), Trials.of_counts("a", "sim", 1, 4, condition="y")]
    )
    with pytest.raises(InputError, match="No policy was tried in both domains .* a x, a y are in one domain only"):
        measure_policies(apart, "success")


def test_the_command_stores_metrics_and_a_page(tmp_path, capsys):
    (tmp_path / "real.csv").write_text(
        "policy,success,score,condition\n" + "a,1,1,x\na,0,.3,x\na,0,.2,y\na,1,.9,y\n" * 4
    )
    (tmp_path / "sim.csv").write_text("policy,success,score,condition\n" + "a,1,1,x\na,1,1,x\na,1,.8,y\na,1,.9,y\n" * 4)
    out = tmp_path / "out"
    words = ["gap", "policies", "--real", str(tmp_path / "real.csv"), "--sim", str(tmp_path / "sim.csv")]
    assert main([*words, "--output", str(out), "--fail-if", "success_gap > 0.2"]) == 1
    result = json.loads((out / "result.json").read_text())
    assert (result["kind"], [m["measure"] for m in result["measures"]]) == ("policies", ["success", "score"])
    assert result["measures"][0]["overall"]["trials_real"] == 16
    assert "NaN" not in (out / "result.json").read_text()
    # A killed run is whole or starts again: result.json marks it as finished, so it comes last.
    assert (out / "request.json").stat().st_mtime_ns < (out / "result.json").stat().st_mtime_ns
    saved = json.loads((out / "request.json").read_text())
    assert (saved["schema"], saved["command"]) == (1, "gap")
    assert saved["request"]["fail_if"] == ["success_gap > 0.2"]
    assert set(saved["request"]) == {field.name for field in dataclasses.fields(GapPoliciesRequest)}
    assert "Score (progress)" in capsys.readouterr().out
    pytest.importorskip("plotly")
    assert "Does simulation show the same success rate as reality?" in (out / "report.html").read_text()


def test_one_side_alone_is_refused(tmp_path, capsys):
    (tmp_path / "r.csv").write_text("policy,success\na,1\n")
    assert main(["gap", "policies", "--real", str(tmp_path / "r.csv")]) == 2
    assert "Two sets of trials are compared" in capsys.readouterr().err
