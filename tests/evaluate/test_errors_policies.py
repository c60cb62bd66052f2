"""Invalid words and files of evaluate, compare, gate and run are refused in one helpful line."""

from __future__ import annotations

import json

import pytest
import yaml

from twinloop.cli.main import main
from twinloop.core.errors import InputError
from twinloop.evaluate.real import read_real_trials
from twinloop.evaluate.run import TrialRunner
from twinloop.evaluate.suite import open_suite
from twinloop.evaluate.worlds import expand_suite
from twinloop.release.gate_config import parse_gate
from twinloop.tasks import open_task
from twinloop.twin import load_twin

CELL = "virtual:so101_tabletop?seed=3&task=pick_and_place"
GATE = """
candidate: pick@1
success: {within: 0.1}
floor: {success: 0.5}
regressions: {waived: none yet}
latency: {waived: none yet}
context: {waived: none yet}
"""


def said(capsys, *words: str) -> tuple[int, str]:
    """The exit code and the message of a command."""
    code = main([*words, "--json"])
    return code, str(json.loads(capsys.readouterr().out.splitlines()[-1]).get("message", ""))


@pytest.mark.parametrize(
    ("column", "cell", "words"),
    [
        ("time_s", "nan", "row 2: time_s is 'nan', not a finite number. Leave the cell empty if it is unknown."),
        ("violations", "inf", "row 2: violations is 'inf', not a finite number"),
        ("time_s", "-4", "row 2: time_s is -4, which is below 0"),
        ("latency_s", "-0.1", "row 2: latency_s is -0.1, which is below 0"),
        ("violations", "1.5", "row 2: violations is 1.5. Give a whole number of control steps"),
        ("time_s", "4 s", "row 2: time_s is '4 s', not a number"),
        ("smoothness", "-4.1", ""),
        ("violations", "3", ""),
    ],
)
def test_a_number_of_a_real_trial_that_cannot_be(tmp_path, column, cell, words):
    table = tmp_path / "trials.csv"
    table.write_text(f"policy,slice,trial,success,{column}\nact,a,t1,1,\nact,a,t2,0,{cell}\n")
    if words:
        with pytest.raises(InputError) as refused:
            read_real_trials(table)
        assert f"{table}, {words}" in str(refused.value)
        return
    (made,) = read_real_trials(table)
    assert made.trials[column].to_pylist() == [None, float(cell)]


def test_words_of_evaluate_are_refused_before_a_world_is_tried(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(TrialRunner, "run", lambda *_, **__: pytest.fail("a world was tried"))
    for words, text in [
        (["--fail-under", "nomnal=0.5"], "Unknown slice 'nomnal' in the suite nominal on so101_tabletop. Nearest"),
        (["--fail-under", "overall=0.5", "worst=0.1", "nominl.low=0.5"], "Unknown slice 'nominl' in the suite"),
        (["--fail-under", "nominal=50"], "'nominal=50' is not SLICE=RATE with a rate from 0 to 1"),
        (["--batch", "0"], "Batches of 0 worlds are empty. Give at least 1"),
        (["--workers", "0"], "--workers 0 runs nothing. Give at least 1"),
    ]:
        code, message = said(
            capsys,
            "evaluate",
            "expert",
            "--twin",
            "so101_tabletop",
            "--task",
            "pick_and_place",
            "--episodes",
            "2",
            *words,
        )
        assert (code, text in message) == (2, True), message


def test_batches_of_nobody_are_refused():
    twin = load_twin("so101_tabletop")
    suite = expand_suite(open_suite("nominal"), twin, open_task("pick_and_place", twin), images=False)
    with pytest.raises(InputError, match=r"Batches of -1 worlds are empty"):
        TrialRunner(suite=suite, task="pick_and_place", batch=-1)


def test_what_is_compared_is_there_and_a_chance_is_one(tmp_path, monkeypatch, capsys):
    (tmp_path / "runs" / "old").mkdir(parents=True)
    (tmp_path / "runs" / "old" / "evaluation.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    code, message = said(capsys, "compare", "runs/old", "runs/none")
    assert (code, "'runs/none' is not a policy's folder" in message) == (2, True), message
    assert main(["init", "."]) == 0
    capsys.readouterr()
    code, message = said(capsys, "compare", "runs/old", "runs/none")
    assert (code, "There is no folder runs/none, and no such policy in the registry" in message) == (2, True), message
    code, message = said(capsys, "compare", "expert", "expert", "--alpha", "5")
    assert (code, message) == (2, "--alpha 5 is not a probability between 0 and 1. Write 5 % as 0.05.")


def test_a_first_champion_needs_no_stages_and_others_get_theirs():
    asked = yaml.safe_load(GATE)
    assert parse_gate(asked).plan.order == ("canary", "champion")
    assert parse_gate({**asked, "champion": None}).plan.order == ("champion",)
    kept = parse_gate({**asked, "champion": None, "stages": {"shadow": {"limit": 3}}}).plan
    assert kept.order == ("shadow", "canary", "champion")


def test_a_run_of_no_length_moves_nothing(tmp_path, capsys):
    for flag, value in (("--seconds", "-2"), ("--seconds", "nan"), ("--hz", "0"), ("--hz", "inf")):
        words = ("run", "--robot", CELL, "--policy", "none", "--output", str(tmp_path / "day"), flag, value)
        code, message = said(capsys, *words)
        assert (code, message.startswith(f"{flag} {value} is not valid. Give a number above 0")) == (2, True)
    assert not (tmp_path / "day").exists()


def test_a_scenario_is_refused_before_its_episode_is_looked_at(tmp_path, capsys):
    (tmp_path / "slips").mkdir()
    (tmp_path / "slips" / "scenario.yaml").write_text("kept")
    for words, text in [
        (["--name", "slips"], "holds a scenario already. Choose another --name, or move that one away."),
        (["--tries", "0"], "--tries 0: give at least one."),
        (["--min-share", "7"], "--min-share 7 is not a share of the tries. Give a number above 0 and at most 1."),
    ]:
        code, message = said(capsys, "scenario", "from-failure", "none:3", "--scenarios", str(tmp_path), *words)
        assert (code, text in message) == (2, True), message
    assert (tmp_path / "slips" / "scenario.yaml").read_text() == "kept"


def test_training_that_cannot_be_leaves_no_dataset_behind(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    assert main(["init", "."]) == 0
    capsys.readouterr()
    for words, text in [
        (
            ["--resume"],
            "policies/new holds no run to resume: checkpoint.safetensors is missing. Train without --resume.",
        ),
        (["--steps", "0"], "--steps 0 trains nothing. Give a number above 0, or leave it out for the recipe's own."),
        (["--batch", "0"], "--batch 0 trains nothing."),
    ]:
        code, message = said(capsys, "train", "--data", "data/none", "--output", "policies/new", *words)
        assert (code, text in message) == (2, True), message
    assert not (tmp_path / "policies" / "new").exists()
    assert main(["datasets", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["datasets"] == []
