"""``twinloop gap predictivity``: figures of tables and trials, the page, conditions, and bad input."""

import json

import numpy as np
import pytest

from benchmarks.error_rates.gap.predictivity import TABLES
from twinloop.cli.main import main
from twinloop.core.errors import InputError
from twinloop.core.trials import DOMAINS, Trials
from twinloop.dataset.trials_table import read_scores
from twinloop.gap.policies.predictivity import measure_predictivity, scores_by_task
from twinloop.stats.ranking import PolicyScoreMatrix, PolicyScores

MOVE_NEAR = """policy,real,sim,trials
rt-2-x,.733,.779,60
rt-1-converged,.633,.442,60
rt-1-15pct,.583,.354,60
rt-1-x,.450,.317,60
rt-1-begin,.017,.050,60
octo-base,.350,.042,60
"""


def _planted(rng, policies=6, trials=20, shift=0.0):
    rates = np.linspace(0.1, 0.8, policies)
    parts = []
    for number, rate in enumerate(rates):
        won = {"real": rng.binomial(trials, rate), "sim": rng.binomial(trials, rate + shift)}
        parts += [Trials.of_counts(f"p{number}", domain, int(won[domain]), trials, task="lift") for domain in DOMAINS]
    return Trials.concatenate_trials(parts)


def test_a_twin_that_is_right_predicts_and_a_shift_is_bias_not_a_wrong_order():
    tables, notes = scores_by_task(_planted(np.random.default_rng(0), trials=400, shift=0.15), "success")
    report = measure_predictivity(tables, notes=notes, draws=500)
    metrics = {row.name: row for row in report.headlines()}
    assert metrics["pearson"].low > 0.8
    assert metrics["mmrv"].estimate == 0
    assert metrics["bias"].low < 0.15 < metrics["bias"].high
    assert metrics["best_policy"].estimate > 0.95
    assert report.main.violations == ()
    assert "task lift" in report.text()


def test_policies_of_one_domain_are_left_out_and_said():
    extra = Trials.of_counts("only_sim", "sim", 3, 5, task="lift")
    tables, notes = scores_by_task(Trials.concatenate_trials([_planted(np.random.default_rng(0)), extra]), "success")
    assert notes == ("only_sim was tried in one domain only in task lift and is left out there.",)
    assert "only_sim" not in tables[0].policies


def test_tasks_are_averaged_over_the_policies_they_share():
    first = PolicyScores(
        task="x",
        policies=("a", "b", "c", "d"),
        real=PolicyScoreMatrix.of_table([0.1, 0.5, 0.9, 0.3], 10),
        sim=PolicyScoreMatrix.of_table([0.2, 0.4, 0.8, 0.3], 10),
    )
    second = PolicyScores(
        task="y",
        policies=("c", "b", "a"),
        real=PolicyScoreMatrix.of_table([0.7, 0.3, 0.3], 10),
        sim=PolicyScoreMatrix.of_table([0.6, 0.2, 0.4], 10),
    )
    report = measure_predictivity([first, second], draws=200)
    assert report.average is not None
    assert report.average.scores.policies == ("a", "b", "c")
    np.testing.assert_allclose(report.average.scores.real.mean, [0.2, 0.4, 0.8])
    assert {row.name for row in report.headlines()} >= {"pearson", "pearson/x", "mmrv/y"}


def test_too_few_policies_say_how_many():
    two = PolicyScores(
        policies=("a", "b"),
        real=PolicyScoreMatrix.of_table([0.1, 0.5], 10),
        sim=PolicyScoreMatrix.of_table([0.1, 0.4], 10),
    )
    with pytest.raises(InputError, match=r"at least 3 policies .* there are 2.*gap policies"):
        measure_predictivity([two])


def test_the_command_stores_metrics_and_a_page(tmp_path, capsys):
    table = tmp_path / "move_near.csv"
    table.write_text(MOVE_NEAR)
    out = tmp_path / "out"
    assert main(["gap", "predictivity", str(table), "--output", str(out), "--fail-if", "mmrv > 0.1"]) == 1
    printed = capsys.readouterr().out
    assert "wrong order: octo-base beats rt-1-begin by 0.333 in reality" in printed
    assert "FAILED mmrv > 0.1" in printed
    result = json.loads((out / "result.json").read_text())
    headline = {row["name"]: row for row in result["headline"]}
    assert (result["verb"], result["kind"]) == ("gap", "predictivity")
    assert headline["pearson"]["estimate"] == pytest.approx(0.8561, abs=5e-5)
    assert headline["absolute_gap"]["method"].endswith("of these policies")
    assert "NaN" not in (out / "result.json").read_text()
    pytest.importorskip("plotly")
    assert "octo-base" in (out / "report.html").read_text()


def test_constant_scores_reach_the_terminal_in_words(tmp_path, capsys):
    table = tmp_path / "t.csv"
    table.write_text("policy,real,sim,trials\na,1,.5,10\nb,1,.6,10\nc,1,.7,10\n")
    assert main(["gap", "predictivity", str(table)]) == 0
    printed = capsys.readouterr().out
    assert "No metric: all 3 real scores are 1: there is no order to predict" in printed
    assert "nan" not in printed.lower()
    assert main(["gap", "predictivity", str(table), "--fail-if", "pearson < 0.5"]) == 2
    assert "cannot be decided" in capsys.readouterr().err


def test_unknown_numbers_of_trials_leave_the_intervals_that_they_can(tmp_path, capsys):
    table = tmp_path / "t.csv"
    table.write_text("policy,real,sim\na,.1,.2\nb,.5,.4\nc,.7,.8\nd,.3,.1\n")
    assert main(["gap", "predictivity", str(table), "--fail-if", "pearson.low < -0.99"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "absolute" not in printed
    assert "of these policies: numbers of trials unknown and their noise not counted." in printed
    half = "policy,real,sim,real_trials\na,.1,.2,9\nb,.5,.4,9\nc,.7,.8,9\nd,.3,.1,9\n"
    table.write_text(half)
    report = measure_predictivity(read_scores(table), draws=200)
    metric = report.main.result["mmrv"]
    assert "simulated scores used without noise" in metric.evaluated.method
    assert 0 <= metric.evaluated.low < metric.evaluated.high <= 1
    assert "No interval of |sim − real| of such policies: no tested interval was valid" in printed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "There is nothing to compare"),
        (["nowhere.csv"], "nowhere.csv does not exist"),
        (["t.csv", "--sim", "t.csv"], "already contains means of both domains"),
        (["t.csv", "--level", "95"], "Write 95 % as 0.95"),
    ],
)
def test_bad_input_is_answered(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(MOVE_NEAR)
    assert main(["gap", "predictivity", *words]) == 2
    assert said in capsys.readouterr().err.replace("\n", " ")


def test_the_studies_of_conditions_tell_a_gap_from_none():
    studies = {study.name: study for study in TABLES}
    assert studies["policies_alarms"].run(30, 0).metrics[0]["any_alarm"] < 0.25
    power = studies["policies_power"].run(60, 0).metrics
    assert power[-1]["named"] > 0.9 > 0.5 > power[0]["named"]


@pytest.mark.slow
def test_studies_in_full_hold_what_the_page_says():
    studies = {study.name: study for study in TABLES}
    such = studies["predictivity_such"].run(300, 1).metrics
    assert min(row["model"] for row in such if row["case"][0] == "bell") > 0.9
    assert min(row["model"] for row in such) > 0.82
    rows = {(row["policies"], row["trials"], *row["case"]): row for row in such}
    assert len(rows) == 48
    assert rows[10, 10, "bell", 0.9]["bootstrap"] < 0.4
    these = studies["predictivity_these"].run(150, 1).metrics
    for row in these:
        assert min(row[f"{name} ours"] for name in ("pearson", "kendall", "mmrv")) > 0.87
    assert all(row["any_alarm"] < 0.06 for row in studies["policies_alarms"].run(2000, 1).metrics)
    scores = studies["policies_scores"].run(300, 1)
    assert len(scores.rows) == 8
