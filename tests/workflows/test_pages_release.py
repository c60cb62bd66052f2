"""Pages of a gate, a monitor, a training run, an adaptation and a claim: every number under its heading."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from support.pages import KeptReport, lines_at
from twinloop.core.decision import GateDecision, RuleVerdict
from twinloop.release.monitor.recorded import MonitorVerdict
from twinloop.workflows.deploy.gate import gate_section
from twinloop.workflows.deploy.monitor import monitor_section
from twinloop.workflows.evaluate.evidence import evidence_section
from twinloop.workflows.train.page import adaptation_section, train_page, train_section

NS: Any = SimpleNamespace


# The gate


def rule(name, verdict, **evidence):
    return RuleVerdict(
        rule=name, verdict=verdict, requirement=f"asked of {name}", reason=f"found by {name}", evidence=evidence
    )


def gate(*rules, **changed):
    made = {
        "candidate": "new",
        "candidate_hash": "0123456789abcdefXYZ",
        "champion": "old",
        "champion_hash": "fedcba9876543210XYZ",
        "alpha": 0.025,
        "looks": "any",
        "rules": rules,
        "robot_trials": 12,
    }
    page = KeptReport()
    gate_section(page, GateDecision(**(made | changed)))
    return page


def test_a_refusal_shows_both_policies_and_marks_each_rule_that_was_asked():
    verdicts = ("yes", "no", "missing", "waived", "none")
    page = gate(*(rule(f"r{i}", verdict) for i, verdict in enumerate(verdicts)))
    assert page.shown_metrics == [
        ("decision", "no", ""),
        ("candidate", "new", "0123456789abcdef"),
        ("champion", "old", "fedcba9876543210"),
        ("α", 0.025, "looks: any"),
        ("trials on a robot", 12, "of the candidate"),
    ]
    assert page.tones_of_metrics["decision"] == "bad"
    assert page.tables == [
        {
            "rule": ["r0", "r1", "r2", "r3", "r4"],
            "verdict": list(verdicts),
            "requirement": [f"asked of r{i}" for i in range(5)],
            "result": [f"found by r{i}" for i in range(5)],
        }
    ]
    assert page.marks == [{(0, 1): "good", (1, 1): "bad", (2, 1): "bad"}]
    assert "α = 0.025 is the probability" in page.said
    assert "valid however often they are repeated" in page.said


def test_a_release_without_a_champion_is_good_and_holds_for_one_look():
    page = gate(rule("r", "yes"), champion="", champion_hash="", looks="once")
    assert page.shown_metrics[0] == ("decision", "yes", "")
    assert page.tones_of_metrics["decision"] == "good"
    assert page.shown_metrics[2] == ("champion", "none yet", "")
    assert page.shown_metrics[3][2] == "looks: once"
    assert "exact for this one evaluation" in page.said
    assert "however often" not in page.said


def test_rows_behind_a_rule_show_the_columns_that_they_have():
    slices = [{"slice": f"s{i}", "answer": "yes", "rate": i / 100, "other": 1} for i in range(31)]
    slices[2]["trials"] = 9
    parameters = [{"name": "mass", "identified": [0.123456, 2.0], "drawn": [0.1, 3.0], "inside": True}]
    page = gate(rule("worst slice", "yes", slices=slices), rule("ranges", "no", parameters=parameters, effects=[]))
    assert page.heads == ["Worst slice, slice by slice", "Ranges, parameter by parameter", "How to read this"]
    _, first, second = page.tables
    assert list(first) == ["slice", "answer", "trials", "rate"]
    assert first["slice"] == [f"s{i}" for i in range(30)]
    assert first["rate"] == [i / 100 for i in range(30)]
    assert first["trials"][:4] == [None, None, 9, None]
    assert page.captions[1:] == ["worst first; 1 more in decision.json", ""]
    assert second == {
        "name": ["mass"],
        "identified": ["0.1235 to 2"],
        "drawn": ["0.1 to 3"],
        "inside": [True],
    }
    full = gate(rule("worst slice", "yes", slices=slices[:30]))
    assert full.captions[1] == "worst first"


# A monitor


def watched(name, a, b, *alarms):
    scores = {"a": a, "b": b}
    return MonitorVerdict(
        name=name, alarms=alarms, cause=f"cause of {name}", possible_causes=(), success=0.5, scores=scores, drifts=()
    )


def monitor(told, **changed):
    metrics = {
        "episodes": 9,
        "alarmed": 2,
        "promised": 0.05,
        "low": 0.051,
        "high": 0.236,
        "course": [],
        "causes": {"camera": 2, "servo": 1},
    }
    page = KeptReport()
    monitor_section(page, told, metrics | changed)
    return page


TOLD = [watched("e0", 0.4, 1.0, "first alarm", "second"), watched("e1", 1.5, 0.2), watched("e2", 1.2, 0.9, "late")]
TOLD += [watched("e3", 0.3, 0.5), watched("e4", 0.1, 0.6)]


def test_a_monitor_tells_the_median_and_the_worst_of_each_signal():
    page = monitor(TOLD)
    assert [metric[:2] for metric in page.shown_metrics] == [
        ("episodes", 9),
        ("with an alarm", 2),
        ("calibrated false alarms", 5.0),
    ]
    assert page.words[0] == "Between 5.1 and 23.6 % of such episodes alarm (95 %, Wilson)."
    causes, signals, alarms = page.tables
    assert causes == {"cause": ["camera", "servo"], "episodes": ["2", "1"]}
    assert signals == {
        "signal": ["a", "b"],
        "median episode": ["0.40", "0.60"],
        "worst episode": ["1.50", "1.00"],
        "episodes above the limit": ["2", "0"],  # a score at the limit is not beyond it
    }
    assert alarms == {
        "episode": ["e0", "e2"],
        "likely cause": ["cause of e0", "cause of e2"],
        "first alarm": ["first alarm", "late"],
    }
    assert page.words[-1] == "First alarms, for 2 of 2 episodes."


def test_alarms_are_bad_where_there_are_more_than_promised_or_the_course_changed():
    assert monitor(TOLD).tones_of_metrics["with an alarm"] == "bad"
    assert monitor(TOLD, low=0.05).tones_of_metrics["with an alarm"] is None
    changed = monitor(TOLD, low=0.05, course=["success falls"])
    assert changed.tones_of_metrics["with an alarm"] == "bad"
    assert changed.words[1] == "success falls"


def test_a_log_without_alarms_has_the_signals_alone_and_one_with_many_is_cut():
    quiet = monitor([watched("e0", 0.4, 1.0)], causes={})
    assert quiet.heads == ["Signals"]
    many = monitor([watched(f"e{i}", 2.0, 2.0, "now") for i in range(41)])
    assert many.tables[-1]["episode"] == [f"e{i}" for i in range(40)]
    assert many.words[-1] == "First alarms, for 40 of 41 episodes."


# Training


def held_out(source, level):
    units = {"rad": {"joints": 6, "estimate": level, "low": level / 2, "high": 2 * level}}
    units["m"] = {"joints": 1, "estimate": level / 10}
    return {"source": source, "episodes": 4, "by_unit": units, "by_joint": {"a": level + 1, "b": level + 2}}


def trained(**changed):
    def at(step, *levels):
        rows = {f"s{i}": {"by_unit": {"rad": level, "m": level / 10}} for i, level in enumerate(levels)}
        return {"step": step, "sources": rows}

    source = {"name": "s0", "real": True, "episodes": 9, "held_out": 4, "frames": 100, "share": 0.6}
    made = {
        "policy": "act",
        "parameters": 1234567,
        "hash": "0123456789abcdefXYZ",
        "seed": 7,
        "versions": {"twinloop": "1.0", "torch": "2.0"},
        "steps": 500,
        "seconds": 33.5,
        "samples_per_second": 640.0,
        "notes": ["some frames were left out"],
        "normalization": "quantiles",
        "sources": [source | {"share_realized": 0.61, "samples": 700}],
        "losses": [(100, 2.0), (200, 1.5), (500, 0.5)],
        "held_out": [held_out("s0", 0.2), held_out("s1", 0.3)],
        "evaluations": [at(100, 0.5, 0.6), {"step": 150}, at(500, 0.2, 0.3)],
        "kept_step": 500,
    }
    page = KeptReport()
    train_section(page, made | changed)
    return page


def test_a_training_run_is_named_on_its_page():
    page = train_page(
        {"policy": "act", "parameters": 1234567, "hash": "0123456789abcdefXYZ", "seed": 7}
        | {"versions": {"twinloop": "1.0", "torch": "2.0"}}
    )
    assert page.subtitle == ("act, 1,234,567 parameters, policy hash 0123456789abcdef; seed 7; twinloop 1.0, torch 2.0")


def test_training_shows_data_loss_and_errors_of_every_source():
    page = trained()
    assert [metric[:2] for metric in page.shown_metrics] == [
        ("held-out action error, s0", 0.2),
        ("held-out action error, s1", 0.3),
        ("steps", 500),
        ("time", 33.5),
        ("speed", 640.0),
    ]
    assert list(page.units_of_metrics.values()) == ["rad", "rad", "", "s", "samples/s"]
    assert page.words[:2] == ["Some frames were left out.", "Normalized by quantiles."]
    data, errors, joints = page.tables
    assert data == {
        "source": ["s0"],
        "real": [True],
        "episodes": [9],
        "held out": [4],
        "frames": [100],
        "share": [0.6],
        "realized": [0.61],
        "samples": [700],
    }
    assert errors == {
        "source": ["s0", "s0", "s1", "s1"],
        "unit": ["rad", "m", "rad", "m"],
        "joints": [6, 1, 6, 1],
        "episodes": [4, 4, 4, 4],
        "error": pytest.approx([0.2, 0.02, 0.3, 0.03]),
        "95 % low": [0.1, None, 0.15, None],
        "high": [0.4, None, 0.6, None],
    }
    assert joints == {"source": ["s0", "s1"], "a": [1.2, 1.3], "b": [2.2, 2.3]}
    (loss, _), (radians, caption), (metres, _) = page.plots
    assert (list(loss.data[0].x), list(loss.data[0].y)) == ([100, 200, 500], [2.0, 1.5, 0.5])
    assert [(one.name, list(one.x), list(one.y)) for one in radians.data] == [
        ("s0", [100, 500], [0.5, 0.2]),
        ("s1", [100, 500], [0.6, 0.3]),
    ]
    assert [list(one.y) for one in metres.data] == [pytest.approx([0.05, 0.02]), pytest.approx([0.06, 0.03])]
    assert lines_at(radians, "x") == [500]
    assert radians.layout.yaxis.title.text == "error / rad"
    assert caption.startswith("Mean over the joints in rad;")


def test_training_without_held_out_episodes_shows_data_and_loss_alone():
    page = trained(held_out=[], evaluations=[])
    assert page.heads == ["Data", "Loss"]
    assert [metric[0] for metric in page.shown_metrics] == ["steps", "time", "speed"]


# Adaptation


def adapted(facts):
    page = KeptReport()
    adaptation_section(page, {"adaptation": facts, "held_out": [held_out("s1", 0.2), held_out("s0", 0.1)]})
    return page


BASE = {"base": "old", "base_hash": "0123456789abcdefXYZ", "l2_start": 0.0, "method": "low_rank", "rank": 4}


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("full", "All 12,345 weights moved."),
        ("head", "The 12,345 weights from the latent to the commands moved."),
        ("low_rank", "A change of rank 4 was added to every matrix, 12,345 numbers in all."),
    ],
)
def test_an_adaptation_says_where_it_began_and_what_moved(method, words):
    begun = f"Continued from old, hash 0123456789abcdef. {words}"
    facts = BASE | {"moving": 12345, "method": method}
    assert adapted(facts).words == [begun]
    assert adapted(facts | {"l2_start": 0.25}).words == [
        f"{begun} The squared distance to the initial weights had the weight 0.25."
    ]


def test_errors_before_stand_beside_those_after_of_the_same_source():
    page = adapted(BASE | {"moving": 1, "held_out_before": [held_out("s0", 0.4)]})
    (shown,) = page.tables
    assert (shown["source"], shown["unit"]) == (["s0", "s0"], ["rad", "m"])
    assert shown["before"] == pytest.approx([0.4, 0.04])
    assert shown["after"] == pytest.approx([0.1, 0.01])
    assert [(row[3], row[5]) for row in page.rows[0]] == [("0.2 to 0.8", "0.05 to 0.2"), ("–", "–")]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"method": "moments"}, "mean and deviation of every channel, in stored RGB values"),
        ({"method": "fourier", "beta": 0.05}, "amplitudes of the lowest frequencies, up to 0.05 of the shorter side"),
    ],
)
def test_changed_images_are_told(said, words):
    page = adapted({"pixels": said})
    assert page.words == [f"Simulated images got the real ones' {words}."]
    assert page.tables == []


def test_alignment_is_measured_before_and_after():
    def moment(level):
        return {
            "mmd": {"estimate": level, "low": level / 2, "high": 2 * level},
            "probe_auc": {"estimate": level + 0.5},
            "coral": level / 4,
        }

    page = adapted({"alignment": {"verdict": "nearer", "before": moment(0.4), "after": moment(0.1)}})
    assert page.words == ["Alignment: nearer."]
    (shown,) = page.tables
    probe = "area under the curve of a linear probe"
    assert shown["real against simulated features"] == ["MMD²", probe, "CORAL, share of the covariances"]
    assert shown["before"] == pytest.approx([0.4, 0.9, 0.1])
    assert shown["after"] == pytest.approx([0.1, 0.6, 0.025])
    assert [(row[2], row[4]) for row in page.rows[0]] == [("0.2 to 0.8", "0.05 to 0.2"), ("–", "–"), ("", "")]
    assert adapted({"alignment": {"verdict": "not measured"}}).tables == []
    assert adapted({}).heads == []


# A claim


def test_a_claim_tells_what_it_needs_what_was_seen_and_how_likely_it_passes():
    rows = [
        {"failures": k, "trials": 300 + 1500 * k, "watched_trials": 400 + k, "chance_to_pass": chances}
        for k, chances in enumerate(({"rate/2": 0.22, "rate/5": 0.55}, {"rate/2": 0.33, "rate/5": 0.77}))
    ]
    metrics = {"claim": {"confidence": 0.95}, "demonstrations": rows, "seen": None}
    page = KeptReport()
    evidence_section(page, metrics, ["one", "two"])
    assert page.shown_metrics == [("real trials without a failure", "300", "number fixed beforehand, exact")]
    assert page.tables == [
        {
            "failures allowed": [0, 1],
            "trials": [300, 1800],
            "if tested after each trial": [400, 401],
            "passes if the true rate is 2 × lower": ["22%", "33%"],
            "passes if the true rate is 5 × lower": ["55%", "77%"],
        }
    ]
    assert page.words[-1] == "one\n\ntwo"
    seen = {"failures": 2, "trials": 1500, "rate_shown": 0.00421, "more_without_failure": 2100}
    page = KeptReport()
    evidence_section(page, metrics | {"seen": seen}, [])
    assert page.shown_metrics[1:] == [
        ("failure rate proven so far", "0.00421", "2 failures in 1,500 trials, 95%"),
        ("further trials without a failure", "2,100", "needed for the claim"),
    ]
