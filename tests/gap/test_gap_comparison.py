"""Policies compared from tables of trials: planted differences, worked counts, wrong input, command and page."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from twinloop.cli.main import main
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.trials import Trials
from twinloop.gap.policies.comparison import compare_policies
from twinloop.gap.policies.paired_trials import arms_by_task


def counts(*rows, task=""):
    return Trials.concatenate_trials([Trials.of_counts(name, "real", won, n, task=task) for name, won, n in rows])


def coins(name, rate, n, *, seed, pair=False, task=""):
    won = np.random.default_rng(seed).random(n) < rate
    return Trials(
        policy=(name,) * n,
        domain=("real",) * n,
        score=won.astype(float),
        success=tuple(map(bool, won)),
        task=(task,) * n,
        pair=tuple(f"s{i}" for i in range(n)) if pair else (),
    )


DFKI = counts(("mcpilco", 10, 10), ("ilqr_tvlqr", 8, 10), ("sac_lqr", 4, 10))


def test_the_pendubots_controllers():
    better = compare_policies(DFKI, "mcpilco", "sac_lqr").tasks[0]
    assert better.answer == "differs"
    assert better.p_value == pytest.approx(0.00352, abs=1e-5)
    assert better.others["Fisher, exact"] == pytest.approx(0.01084, abs=1e-5)
    open_question = compare_policies(DFKI, "mcpilco", "ilqr_tvlqr", margin=0.2).tasks[0]
    assert open_question.answer == "undecided"
    assert open_question.further is not None
    assert 10 < open_question.further < 40


def test_not_different_is_not_equal_until_it_is_shown():
    few = counts(("a", 7, 10), ("b", 7, 10))
    assert compare_policies(few, "a", "b").tasks[0].answer == "undecided"
    assert compare_policies(few, "a", "b", margin=0.25).tasks[0].answer == "undecided"
    many = counts(("a", 36, 40), ("b", 36, 40))
    assert compare_policies(many, "a", "b", margin=0.25).tasks[0].answer == "equivalent"


def test_sequential_answers():
    trials = Trials.concatenate_trials([coins("a", 0.95, 60, seed=1), coins("b", 0.35, 64, seed=2)])
    run = compare_policies(trials, "a", "b", sequential=True).tasks[0].sequential
    assert run is not None
    assert run.answer == "differs"
    assert run.leftover == 4
    short = Trials.concatenate_trials([coins("a", 0.95, 6, seed=1), coins("b", 0.35, 6, seed=2)])
    waiting = compare_policies(short, "a", "b", sequential=True).tasks[0].sequential
    assert waiting is not None
    assert waiting.answer == "undecided"
    assert waiting.further is not None
    assert 1 <= waiting.further < 60


def test_shared_starts_are_paired_and_pay():
    random = np.random.default_rng(5)
    easy = random.random(40) < 0.6  # both succeed or fail with the start, but for some
    first, second = easy | (random.random(40) < 0.5), easy & (random.random(40) < 0.8)
    rows = []
    for name, won in (("a", first), ("b", second)):
        part = coins(name, 0.5, 40, seed=0, pair=True)
        rows.append(replace(part, score=won.astype(np.float64), success=tuple(map(bool, won))))
    task = compare_policies(Trials.concatenate_trials(rows), "a", "b").tasks[0]
    assert task.arms.paired
    assert task.test == "McNemar, exact"
    assert task.answer == "differs"


def test_scores_and_conditions():
    random = np.random.default_rng(7)
    parts = [
        Trials(
            policy=(name,) * 24, domain=("real",) * 24, score=random.beta(*law, 24), condition=("dim", "bright") * 12
        )
        for name, law in (("a", (8, 3)), ("b", (3, 8)))
    ]
    task = compare_policies(Trials.concatenate_trials(parts), "a", "b").tasks[0]
    assert task.arms.measure == "score"
    assert task.answer == "differs"
    assert bool(task.valid.covers(5 / 11))


def test_conditions_become_strata():
    parts = [
        Trials.of_counts(name, "real", won, n, condition=light)
        for name, light, won, n in (
            ("a", "dim", 9, 10),
            ("a", "bright", 12, 40),
            ("b", "dim", 36, 40),
            ("b", "bright", 3, 10),
        )
    ]
    task = compare_policies(Trials.concatenate_trials(parts), "a", "b").tasks[0]
    assert task.p_value < 0.01  # the harder condition was tried more often with a
    assert task.others["stratified by condition, exact"] == pytest.approx(1.0)
    assert task.strata is not None
    assert float(task.strata.estimate) == pytest.approx(0.0, abs=1e-12)
    assert len(arms_by_task(Trials.concatenate_trials(parts), "a", "b", domain="real")[0].strata) == 2


def test_tasks_are_adjusted_together():
    trials = Trials.concatenate_trials([counts(("a", 9, 10), ("b", 4, 10), task=f"t{i}") for i in range(4)])
    found = compare_policies(trials, "a", "b")
    assert [task.arms.task for task in found.tasks] == ["t0", "t1", "t2", "t3"]
    for task in found.tasks:
        assert task.p_value < 0.05 < task.adjusted
        assert task.answer == "undecided"


def test_tables_that_say_nothing_say_so():
    alike = compare_policies(counts(("a", 5, 5), ("b", 5, 5)), "a", "b").tasks[0]
    assert alike.answer == "undecided"
    assert "no test can find a difference" in alike.notes[0]
    few = compare_policies(counts(("a", 2, 2), ("b", 0, 2)), "a", "b").tasks[0]
    assert "2 and 2 trials are too few" in few.notes[0]
    assert "At least 3 trials of each can reach 0.05" in few.notes[0]
    listed = compare_policies(DFKI, "ilqr_tvlqr", "sac_lqr", sequential=True).tasks[0]
    assert "put into a random order" in listed.notes[0]
    counted = compare_policies(counts(("a", 62, 100), ("b", 50, 100)), "a", "b", sequential=True).tasks[0].sequential
    assert counted is not None
    assert counted.answer == "undecided"  # in the order of the table it would look decided


def test_wrong_questions_are_named():
    with pytest.raises(InputError, match="cannot be compared with itself"):
        compare_policies(DFKI, "mcpilco", "mcpilco")
    with pytest.raises(UnknownNameError, match="mcpilko"):
        compare_policies(DFKI, "mcpilko", "sac_lqr")
    with pytest.raises(InputError, match="has no sim trials"):
        compare_policies(DFKI, "mcpilco", "sac_lqr", domain="sim")
    with pytest.raises(InputError, match="10 of 10 trials of mcpilco and 10 of 10 of sac_lqr have none"):
        compare_policies(DFKI, "mcpilco", "sac_lqr", paired=True)
    with pytest.raises(InputError, match="no common task"):
        apart = Trials.concatenate_trials([counts(("a", 1, 2), task="x"), counts(("b", 1, 2), task="y")])
        compare_policies(apart, "a", "b")
    for margin in (0.0, -0.2):
        with pytest.raises(InputError, match="margin of equivalence"):
            compare_policies(DFKI, "mcpilco", "sac_lqr", margin=margin)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "trials.csv"
    random = np.random.default_rng(4)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["policy", "domain", "success"])
        for policy, rate in (("act", 0.95), ("dp", 0.3)):
            writer.writerows([policy, "real", int(random.random() < rate)] for _ in range(25))
    return path


def test_the_command_says_who_is_better_and_stores_it(table, tmp_path, capsys):
    words = ["gap", "compare", str(table), "--a", "act", "--b", "dp", "--sequential", "--within", "0.1"]
    assert main([*words, "--output", str(tmp_path / "run")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "stop: act is better, p ≤" in said
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["verb"], result["kind"]) == ("gap", "compare")
    assert {row["name"] for row in result["headline"]} == {"difference", "p_differs", "p_equivalent"}
    assert main([*words, "--fail-if", "difference.low > 0"]) == 1


def test_the_command_for_power(capsys):
    assert main(["gap", "power", "--p", "0.56", "0.92"]) == 0
    assert "29 and 29 trials show" in " ".join(capsys.readouterr().out.split())
    assert main(["gap", "power", "--p", "0.5", "0.5"]) == 2
    assert "do not differ" in " ".join(capsys.readouterr().err.split())


def test_the_page_draws_wealth_and_intervals(table, tmp_path):
    pytest.importorskip("plotly")
    words = ["gap", "compare", str(table), "--a", "act", "--b", "dp", "--sequential", "--within", "0.1"]
    assert main([*words, "--output", str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    for word in ("e-value", "confidence sequence", "How to read this", "act is better"):
        assert word in page
