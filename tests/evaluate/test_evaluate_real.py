"""Real trials: tables and datasets become the same records, and are summed up by the same code."""

from __future__ import annotations

from dataclasses import replace

import pyarrow.compute as pc
import pytest

from twinloop.core.errors import DatasetError, InputError
from twinloop.evaluate.comparison import compare_stored
from twinloop.evaluate.real import read_real_trials
from twinloop.evaluate.summary import EvaluationSummary
from twinloop.workflows.evaluate.evaluate import format_invalid, parse_fail_under
from twinloop.workflows.generate.requests import GenerateRequest


def table(folder, text, name="trials.csv"):
    (folder / name).write_text(text)
    return folder / name


def test_a_table_becomes_an_evaluation_per_policy(tmp_path):
    text = """policy,slice,trial,success,score,time_s,peak_force_n,violations,valid,reason
act,bright,t1,1,1.0,4.2,12.5,0,,
act,bright,t2,no,0.5,,30,2,,
act,dark,t1,1,1.0,5.0,,,0,the gripper was unplugged
mlp,bright,t1,0,0.1,,,,,
mlp,bright,t2,1,1.0,3.9,,,yes,
"""
    act, mlp = read_real_trials(table(tmp_path, text))
    assert (act.policy, act.domain, act.suite, len(act)) == ("act", "real", "real", 3)
    rows = act.trials.to_pylist()
    assert rows[0]["time_s"] == 4.2
    assert rows[1]["violations"] == 2
    assert (rows[2]["valid"], rows[2]["reason"]) == (False, "the gripper was unplugged")
    assert rows[2]["peak_force_n"] is None
    made = EvaluationSummary.of(act)
    assert [(item.name, item.successes, item.trials) for item in made.slices] == [("dark", 0, 1), ("bright", 1, 2)]
    bright = replace(act, trials=act.trials.filter(pc.field("slice") == "bright"))
    assert compare_stored(bright, mlp).discordant_counts == (1, 1)


def test_trials_without_names_are_named_by_their_rows(tmp_path):
    (made,) = read_real_trials(table(tmp_path, "success\n1\n0\n1\n", "cell.csv"))
    assert (made.policy, made.counts()) == ("cell", (2, 3))
    assert made.trials["trial"].to_pylist() == ["cell#0", "cell#1", "cell#2"]
    assert made.trials["progress"].null_count == 3


def test_counts_of_successes_are_trials_too(tmp_path):
    (made,) = read_real_trials(table(tmp_path, "policy,condition,successes,trials\na,x,3,4\na,y,1,4\n"))
    assert {item.name: item.successes for item in EvaluationSummary.of(made).slices} == {"x": 3, "y": 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("policy,success\na,perhaps\n", "row 1: success is 'perhaps'. Write 1 or 0"),
        ("policy,success,valid\na,1,no idea\n", "row 1: valid is 'no idea'. Write 1 or 0."),
        ("policy,success,time_s\na,1,fast\n", "row 1: time_s is 'fast', not a number"),
        ("policy,score\na,0.5\n", "have no outcome"),
        ("policy,slice,trial,success\na,s,t,1\na,s,t,0\n", "trial t of slice s occurs twice"),
        ("policy\na\n", "no column success or score"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(tmp_path, text, words):
    with pytest.raises(InputError, match=words):
        read_real_trials(table(tmp_path, text))


def test_nothing_there_and_nothing_in_it_are_told(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_real_trials(tmp_path / "none.csv")
    with pytest.raises(InputError, match="contains no trials"):
        read_real_trials(tmp_path)


def test_a_dataset_says_how_its_episodes_ended(tmp_path):
    from support.dataset_writer import planted
    from support.labelled import write_batch

    write_batch(tmp_path / "cell", [planted(0), planted(1)])
    made = read_real_trials(tmp_path / "cell", policy="p")
    ends = [planted(number).provenance.success for number in (0, 1)]
    assert [one.task for one in made] == [planted(number).provenance.task for number in (0, 1)]
    assert [x for one in made for x in one.trials["success"].to_pylist()] == ends
    assert {one.domain for one in made} == {"sim"}  # metadata of the episodes
    assert all(one.trials["episode_id"].null_count == 0 for one in made)
    other = read_real_trials(tmp_path / "cell", policy="p", outcomes={0: not ends[0]})
    assert [x for one in other for x in one.trials["success"].to_pylist()] == [not ends[0], ends[1]]


def test_a_dataset_that_does_not_say_how_it_ended_is_refused(tmp_path):
    from support.edits import foreign

    foreign(tmp_path / "log", [6, 7])
    with pytest.raises(DatasetError, match="has no outcome"):
        read_real_trials(tmp_path / "log")
    made = read_real_trials(tmp_path / "log", outcomes=dict.fromkeys(range(99), True))
    assert [(one.domain, one.counts()) for one in made] == [("real", (1, 1))] * 2  # a task each


def test_rates_to_hold_become_conditions():
    assert parse_fail_under(["nominal=0.9", "hand_*=0.5", "a.low=0.8", "overall=0.7", "worst=0.1"]) == [
        "success/nominal < 0.9",
        "success/hand_* < 0.5",
        "success/a.low < 0.8",
        "success < 0.7",
        "worst < 0.1",
    ]
    for wrong in ("nominal", "nominal=high", "=0.5", "nominal=90"):
        with pytest.raises(InputError, match="is not SLICE=RATE with a rate from 0 to 1"):
            parse_fail_under([wrong])


def test_a_policy_s_name_never_leads_out_of_the_folder_of_a_run(tmp_path):
    from rich.console import Console

    from twinloop.core.evaluation import Evaluation
    from twinloop.workflows.evaluate.evaluate import run_evaluate
    from twinloop.workflows.evaluate.requests import EvaluateRequest

    text = "policy,slice,success\n../../up,s,1\n../../up,t,0\nother,s,1\n"
    request = EvaluateRequest(real=table(tmp_path, text), output=tmp_path / "run", fail_under=("s/*=0.5", "t/*=0.5"))
    metrics, code = run_evaluate(request, Console(quiet=True))
    assert {path.name for path in (tmp_path / "run").iterdir() if path.is_dir()} == {"up", "other"}
    assert Evaluation.read(tmp_path / "run" / "up").policy == "../../up"
    assert code == 1
    assert [item["metric"] for item in metrics["failed"]] == ["success/t/../../up"]


def test_trials_become_rows_of_the_workspace(tmp_path):
    from datetime import UTC, datetime

    from twinloop.catalog import Workspace
    from twinloop.workflows.evaluate.evaluate import record_trials

    Workspace.create(tmp_path / "cell").close()
    text = "policy,slice,trial,success,score,valid\nact,s,t1,1,1.0,\nact,s,t2,1,1.0,0\n"
    made = read_real_trials(table(tmp_path, text))
    run_id = record_trials(
        tmp_path / "cell" / "runs" / "e", made, {"suite": "real"}, datetime.now(UTC), verb="evaluate"
    )
    with Workspace.open(tmp_path / "cell") as held:
        rows = held.query("SELECT * FROM evaluations ORDER BY trial").to_pylist()
        (run,) = held.query("SELECT verb FROM runs WHERE run_id = ?", [run_id]).to_pylist()
    assert [(row["trial"], row["success"], row["condition"], row["source"]) for row in rows] == [
        ("t1", True, "s", "real"),
        ("t2", False, "s", "real"),  # a trial that does not count is no success
    ]
    assert run["verb"] == "evaluate"
    assert record_trials(tmp_path / "elsewhere", made, {}, datetime.now(UTC), verb="evaluate") is None


@pytest.mark.slow
def test_a_recorded_episode_is_scored_as_the_simulated_one_was(tmp_path):
    """Readings differ from the truth by noise and offsets, speeds are differences: near, not equal."""
    from support.evaluate_run import TWO
    from twinloop.evaluate.run import evaluate
    from twinloop.evaluate.suite import parse_suite
    from twinloop.evaluate.worlds import expand_suite
    from twinloop.tasks import open_task
    from twinloop.twin import load_twin
    from twinloop.workflows.generate.generate import run_generate

    (tmp_path / "g.yaml").write_text(
        "scene: {twin: so101_tabletop, task: pick_and_place}\nrandomization: {params: {object/*/position/*: "
        "{add: [-0.01, 0.01]}}}\nrollout: {parallel_envs: 4, episodes_per_env: 1}\n"
    )
    from rich.console import Console

    run_generate(
        GenerateRequest(
            file=tmp_path / "g.yaml",
            output=str(tmp_path / "d"),
            episodes=4,
            seed=0,
            workers=1,
            resume=False,
            keep="all",
        ),
        console=Console(quiet=True),
    )
    twin = load_twin("so101_tabletop")
    (made,) = read_real_trials(tmp_path / "d", twin=twin)
    suite = expand_suite(parse_suite(TWO, where="two"), twin, open_task("pick_and_place", twin)).select_slices(
        ["nominal"]
    )
    simulated = EvaluationSummary.of(evaluate("expert", twin, suite=suite, episodes=4)).slices[0]
    read = EvaluationSummary.of(made).slices[0]
    assert read.successes == 4
    assert read.time_s == pytest.approx(simulated.time_s, abs=0.6)
    assert read.smoothness == pytest.approx(simulated.smoothness, abs=1.0)


def test_what_is_not_valid_adds_no_time_and_no_progress(tmp_path):
    text = """policy,success,score,time_s,peak_force_n,violations,valid,reason
act,1,1.0,4.0,10,0,,
act,1,1.0,90.0,500,3,0,somebody stopped the arm
act,0,0.5,30.0,12,0,,
"""
    (made,) = read_real_trials(table(tmp_path, text))
    assert made.trials["time_s"].to_pylist() == [4.0, 90.0, None]  # the time of a failure is no time to success
    [item] = EvaluationSummary.of(made).slices
    assert (item.successes, item.trials, item.invalid) == (1, 3, 1)
    assert (item.time_s, item.peak_force_n, item.peak_force_most_n) == (4.0, 11.0, 500.0)
    assert item.progress == pytest.approx(0.5)
    assert item.violating == pytest.approx(1 / 3)
    assert format_invalid(made, EvaluationSummary.of(made)) == (
        "1 trials are invalid: they count as failures, and their times, forces and smoothness are left out "
        "(somebody stopped the arm)."
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Controller,Is Success\na,perhaps\n", "row 1: Is Success is 'perhaps'. Write 1 or 0"),
        ("model,succeeded,Time S\na,1,fast\n", "row 1: Time S is 'fast', not a number"),
        ("policy,progress\na,3\n", "row 1: progress 3 is outside 0 to 1"),
        ("model,num_success,episodes\na,9,4\n", "row 1: num_success '9' of episodes '4' are not valid counts"),
        ("model,is_success,succeeded\na,1,0\n", "has 2 columns for success: is_success, succeeded. Name the one"),
        ("Checkpoint,Outcome\na,1\n", r"no column success or score .* It has: Checkpoint, Outcome\."),
        ("policy,success,source\na,1,lab\n", "row 1: source is 'lab'. Write real or sim"),
    ],
)
def test_messages_speak_of_the_columns_as_the_file_has_them(tmp_path, text, words):
    with pytest.raises(InputError, match=words):
        read_real_trials(table(tmp_path, text))


def test_a_column_of_the_very_name_comes_before_another_word_for_it(tmp_path):
    (made,) = read_real_trials(table(tmp_path, "policy,checkpoint,success\nact,step_9000,1\n"))
    assert made.policy == "act"
