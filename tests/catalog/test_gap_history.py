"""Conditions fail a run that they describe, results outlive them, and the history puts runs in order."""

import json
import math

import pytest
from rich.console import Console

from support.pages import fetched
from twinloop.cli.gap import GAP
from twinloop.cli.main import main
from twinloop.cli.parser import insert_default_command
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.headline import HeadlineMetric, read_headlines
from twinloop.workflows.gap.history import find_past_runs, run_gap_history
from twinloop.workflows.gap.requests import GapHistoryRequest
from twinloop.workflows.run.results import MeasuredRun, check_conditions, parse_conditions

SKILL = HeadlineMetric(
    name="skill", estimate=0.6, low=0.4, high=0.7, better="higher", meaning="1 − error / best baseline"
)
RMSE = HeadlineMetric(name="rmse/elbow", estimate=2.0, unit="deg", method="one episode, no interval")


@pytest.fixture
def console():
    return Console(width=140, record=True, force_terminal=False)


def store(
    folder, console, *, skill=0.6, twin="a" * 64, data="d" * 64, made="2026-01-01T00:00:00+00:00", kind="dynamics"
):
    run = MeasuredRun.begin("gap", kind, folder, (), console)
    metric = HeadlineMetric(name="skill", estimate=skill, low=skill - 0.1, high=skill + 0.1, better="higher")
    run.end({"twin": {"name": "arm", "hash": twin}, "data": {"name": "log", "hash": data}}, [metric, RMSE])
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, "made": made}))


def verdict(*texts):
    return check_conditions(parse_conditions(texts), {metric.name: metric for metric in (SKILL, RMSE)})


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("skill < 0.5", 0),
        ("skill < 0.7", 1),
        ("skill.low < 0.5", 1),
        ("skill.high<0.5", 0),
        ("rmse/* >= 2", 1),
        ("rmse/elbow > 2e0", 0),
        ("skill <= 0.6", 1),
    ],
)
def test_a_condition_compares_the_estimate_or_an_end_of_the_interval(text, code):
    assert verdict(text).code == code


def test_a_true_condition_is_said_with_the_metric():
    assert verdict("skill < 0.7", "rmse/* > 1").lines() == [
        "FAILED skill < 0.7: skill is 0.6 [0.4, 0.7]",
        "FAILED rmse/* > 1: rmse/elbow is 2 deg",
    ]


@pytest.mark.parametrize("text", ["skill", "skill = 0.5", "skill < half", "< 0.5", "skill < nan", ""])
def test_what_is_no_condition_is_refused_with_an_example(text):
    with pytest.raises(InputError, match=r"is not a condition. Write NAME < NUMBER"):
        parse_conditions([text])


def test_a_condition_on_what_is_not_known_is_refused():
    with pytest.raises(UnknownNameError, match="Unknown metric 'skil'.*Nearest existing: skill"):
        verdict("skil < 0.5")
    with pytest.raises(InputError, match="The interval of rmse/elbow is not known.*one episode, no interval"):
        verdict("rmse/elbow.high > 1")


def test_metrics_survive_the_file_and_what_is_not_known_is_null(tmp_path, console):
    run = MeasuredRun.begin("gap", "dynamics", tmp_path / "run", ["skill < 0.5"], console)
    metrics, code = run.end({"episodes": 3}, [SKILL, RMSE])
    stored = json.loads((tmp_path / "run" / "result.json").read_text())
    assert code == 0
    assert stored["headline"][1]["low"] is None
    assert read_headlines(stored)["skill"] == SKILL
    assert math.isnan(read_headlines(stored)["rmse/elbow"].high)
    assert metrics["kind"] == "dynamics"


def test_a_wrong_name_in_a_condition_loses_nothing(tmp_path, console):
    run = MeasuredRun.begin("gap", "dynamics", tmp_path / "run", ["skill/wrist < 1"], console)
    with pytest.raises(UnknownNameError, match="--fail-if 'skill/wrist < 1'"):
        run.end({}, [SKILL])
    assert read_headlines(json.loads((tmp_path / "run" / "result.json").read_text()))["skill"] == SKILL


def test_a_wrong_condition_is_refused_before_the_folder_is_claimed(tmp_path, console):
    with pytest.raises(InputError, match="is not a condition"):
        MeasuredRun.begin("gap", "dynamics", tmp_path / "run", ["skill !"], console)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("kind", "condition", "near"),
    [
        (("gap", "dynamics"), "skil < 0.5", "skill"),
        (("gap", "policies"), "sucess_gap > 0.1", "success_gap"),
        (("gap", "compare"), "p_difers/pick < 0.05", "p_differs/*"),
        (("scenario", "search"), "failures > 1e-3", "failure_rate"),
        (("compare", "nominal"), "p < 0.05", "pairs"),
        (("evidence", "claim"), "trails > 10", "trials"),
        (("coverage", "reality"), "hole*.low < 1", "largest_hole"),
    ],
)
def test_a_condition_on_what_is_never_told_is_refused_before_the_work(tmp_path, console, kind, condition, near):
    verb, word = kind
    with pytest.raises(UnknownNameError) as told:
        MeasuredRun.begin(verb, word, tmp_path / "run", [condition], console)
    assert f"--fail-if '{condition}'" in str(told.value)
    assert near in str(told.value)
    assert not (tmp_path / "run").exists()


def test_a_condition_may_be_written_as_people_say_it(tmp_path, console):
    run = MeasuredRun.begin("scenario", "ablate", None, ["command delay > 0.5", "object/*/mass*=0.5.low < 0"], console)
    run.expect(["command delay", "backlash", "object/*/mass*=0.5"])
    assert [one.name for one in run.conditions] == ["command_delay", "object/*/mass*_0.5"]
    assert [one.end for one in run.conditions] == ["", "low"]
    with pytest.raises(UnknownNameError, match="Unknown metric 'command_delay'"):
        run.expect(["backlash"])
    for asked in ("skill", "s*/elbow", "*elbow", "delay/*", "rmse/el?ow", "*"):
        MeasuredRun.begin("gap", "dynamics", None, [f"{asked} > 1"], console)


def test_the_history_is_in_order_of_time_whatever_the_folders_are_called(tmp_path, console):
    store(tmp_path / "a", console, skill=0.8, twin="b" * 64, made="2026-03-01T00:00:00+00:00")
    store(tmp_path / "b", console, skill=0.2, made="2026-02-01T00:00:00+00:00")
    store(tmp_path / "deep" / "c", console, skill=0.5, kind="data")
    found = run_gap_history(
        GapHistoryRequest(runs=[tmp_path], metrics=(), kind="dynamics", output=None), console=console
    )
    assert [run["metrics"]["skill"]["estimate"] for run in found["runs"]] == [0.2, 0.8]
    assert [run["twin_hash"][0] for run in found["runs"]] == ["a", "b"]
    assert set(found["runs"][0]["metrics"]) == {"skill"}
    text = console.export_text()
    assert "arm bbbbbbbb" in text
    assert "[0.7, 0.9]" in text


def test_patterns_choose_metrics_and_other_data_is_said(tmp_path, console):
    store(tmp_path / "a", console)
    store(tmp_path / "b", console, data="e" * 64)
    found = run_gap_history(
        GapHistoryRequest(runs=[tmp_path], metrics=("rmse/*",), kind="dynamics", output=None), console=console
    )
    assert set(found["runs"][0]["metrics"]) == {"rmse/elbow"}
    assert "different data" in console.export_text()
    with pytest.raises(UnknownNameError, match="Unknown metric 'speed'"):
        run_gap_history(
            GapHistoryRequest(runs=[tmp_path], metrics=("speed",), kind="dynamics", output=None), console=console
        )


def test_places_without_runs_are_refused(tmp_path, console):
    with pytest.raises(InputError, match="is not a folder"):
        find_past_runs([tmp_path / "none"], "dynamics")
    with pytest.raises(InputError, match="Make one with `twinloop gap dynamics --output FOLDER`"):
        find_past_runs([tmp_path], "dynamics")
    store(tmp_path / "a", console)
    with pytest.raises(InputError, match="There are runs of: dynamics; give one of them as --kind"):
        find_past_runs([tmp_path], "vision")
    (tmp_path / "a" / "result.json").write_text("{")
    with pytest.raises(InputError, match="is not valid JSON .*make the run again"):
        find_past_runs([tmp_path], "dynamics")


def test_the_page_of_the_history_needs_no_network(tmp_path, console):
    pytest.importorskip("plotly")
    store(tmp_path / "a", console)
    store(tmp_path / "b", console, skill=0.9)
    run_gap_history(
        GapHistoryRequest(runs=[tmp_path], metrics=(), kind="dynamics", output=tmp_path / "history.html"),
        console=console,
    )
    page = (tmp_path / "history.html").read_text()
    assert "Every run, oldest first" in page
    assert fetched(page) == []


def test_gap_without_a_word_is_dynamics(tmp_path):
    assert insert_default_command(["gap", "--twin", "x"], [GAP]) == ["gap", "dynamics", "--twin", "x"]
    assert insert_default_command(["gap", "--help"], [GAP]) == ["gap", "--help"]
    assert insert_default_command(["gap", "history", "runs"], [GAP]) == ["gap", "history", "runs"]
    assert main(["gap", "history", str(tmp_path)]) == 2
