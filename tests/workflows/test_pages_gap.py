"""Pages of comparisons, of distances between trajectories and of the policies gap: every number under its heading."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.pages import KeptReport, ends, interval, lines_at
from twinloop.encoders.trajectory import ClipFeature
from twinloop.gap.policies.gap_rows import GapRow
from twinloop.gap.policies.measure import MeasureGap
from twinloop.stats.predictivity import PredictivityMetric
from twinloop.workflows.gap.comparison_page import comparison_section, estimate_section, power_section
from twinloop.workflows.gap.data import data_section
from twinloop.workflows.gap.policies import policies_section, predictivity_section

NS: Any = SimpleNamespace
NAN = float("nan")
MARGIN_LEVEL = 0.8


def run():
    test = NS(
        log_e=np.array([0.1, -0.4, 1.2]),
        low=np.array([-0.9, -0.6, -0.2]),
        high=np.array([0.95, 0.7, 0.5]),
        interval=interval(0.15, -0.2, 0.5, method="betting"),
    )
    above, below = NS(log_e=np.array([0.2, 0.3, 0.7])), NS(log_e=np.array([-0.3, -0.5, -0.8]))
    return NS(test=test, above=above, below=below, running_difference=np.array([0.1, 0.25, 0.15]), pairs=3)


def task(name="pick", **changed):
    made = {
        "arms": NS(task=name, measure="success", a=np.ones(4), b=np.ones(7)),
        "notes": (f"a note on {name}",),
        "sequential": None,
        "strata": None,
        "equivalence": None,
        "difference": interval(0.2, -0.1, 0.45, method="Newcombe"),
        "valid": interval(0.22, -0.3, 0.6, method="Chan and Zhang"),
        "value_a": interval(0.75, 0.3, 0.9, method="exact, a"),
        "value_b": interval(0.55, 0.25, 0.8, method="exact, b"),
        "test": "Barnard",
        "p_value": 0.21,
        "others": {"Fisher": 0.33, "stratified": 0.44},
    }
    return NS(**(made | changed))


def compared(*tasks, margin=0.3):
    page = KeptReport()
    found = NS(a="new", b="old", margin=margin, level=MARGIN_LEVEL, domain="real", tasks=tasks)
    comparison_section(page, found, {one.arms.task: f"words on {one.arms.task}" for one in tasks})
    return page


def test_a_task_tells_its_answer_its_intervals_from_the_top_and_its_tests():
    strata = interval(0.25, -0.05, 0.5, method="Mantel and Haenszel")
    page = compared(task(strata=strata, equivalence=NS(method="two one-sided tests", p_value=0.07)))
    assert page.heads == ["new against old in pick", "How to read this"]
    assert page.words[:2] == ["words on pick", "a note on pick"]
    ((plot, caption),) = page.plots
    (dots,) = plot.data
    assert list(plot.layout.yaxis.ticktext) == ["Newcombe", "Chan and Zhang", "Mantel and Haenszel"]
    assert list(dots.x) == [0.2, 0.22, 0.25]
    assert ends(dots) == (pytest.approx([-0.1, -0.3, -0.05]), pytest.approx([0.45, 0.6, 0.5]))
    assert lines_at(plot, "x") == [0.0, -0.3, 0.3]
    assert plot.layout.xaxis.title.text == "success: new − old"
    assert caption.startswith("Intervals of 80 %")
    each, tests = page.tables
    assert each == {
        "policy": ["new", "old"],
        "trials": [4, 7],
        "mean": [0.75, 0.55],
        "low": [0.3, 0.25],
        "high": [0.9, 0.8],
        "interval": ["exact, a", "exact, b"],
    }
    assert tests == {
        "test": ["Barnard", "Fisher", "stratified", "equivalence within 0.3: two one-sided tests"],
        "p-value": [0.21, 0.33, 0.44, 0.07],
    }
    assert page.captions[0] == "success of each policy, real"


def test_a_task_without_a_name_or_margin_has_neither_in_its_heading_and_plot():
    page = compared(task(""), margin=None)
    assert page.heads[0] == "new against old"
    assert list(page.plots[0][0].layout.yaxis.ticktext) == ["Newcombe", "Chan and Zhang"]
    assert lines_at(page.plots[0][0], "x") == [0.0]
    assert page.tables[1]["test"] == ["Barnard", "Fisher", "stratified"]


def test_trials_that_were_looked_at_as_they_came_show_wealth_and_a_confidence_sequence():
    page = compared(task(sequential=run()))
    (wealth, first), (band, second), (rows, _) = page.plots
    *curves, line = wealth.data
    assert {curve.name: list(curve.y) for curve in curves} == {
        "against no difference": pytest.approx(np.array([0.1, -0.4, 1.2]) / np.log(10)),
        "against a difference ≤ -0.3": pytest.approx(np.array([0.2, 0.3, 0.7]) / np.log(10)),
        "against a difference ≥ 0.3": pytest.approx(np.array([-0.3, -0.5, -0.8]) / np.log(10)),
    }
    assert list(line.y) == pytest.approx([np.log10(5)] * 2)  # 1/α with α = 1 − 0.8
    assert first.startswith("E-value after each of 3 pairs")
    high, low, seen = band.data
    assert list(low.y) == [-0.9, -0.6, -0.2]
    assert list(high.y) == [0.95, 0.7, 0.5]
    assert list(seen.y) == [0.1, 0.25, 0.15]
    assert lines_at(band, "y") == [-0.3, 0.0, 0.3]
    assert second.startswith("Difference new − old;")
    assert second.endswith("80 % confidence.")
    assert list(rows.layout.yaxis.ticktext) == ["Newcombe", "Chan and Zhang", "betting"]


@pytest.mark.parametrize("missing", ["above", "below"])
def test_without_both_tests_of_the_margin_only_no_difference_is_bet_against(missing):
    half = run()
    setattr(half, missing, None)
    page = compared(task(sequential=half))
    assert [curve.name for curve in page.plots[0][0].data] == ["against no difference", "decision at 1/α = 5"]


def power(**more):
    page = KeptReport()
    curve = [[5, 0.2], [9, 0.5], [14, 0.85]]
    needed = {"required_power": 0.8, "trials_a": 13, "test": "Barnard"}
    power_section(page, {"needed": needed, "text": "13 trials of each", "curve": curve, **more})
    return page


def test_power_is_drawn_over_trials_with_the_wish_and_what_it_needs():
    page = power(sequential={"median": 8, "at most": 21})
    assert page.words == ["13 trials of each"]
    curve = page.plots[0][0].data[0]
    assert (list(curve.x), list(curve.y), curve.name) == ([5, 9, 14], [0.2, 0.5, 0.85], "Barnard")
    assert [(one.x0, one.y0) for one in page.plots[0][0].layout.shapes] == [(0, 0.8), (13, 0)]
    assert page.tables == [{"sequential test, looked at after every pair": ["median", "at most"], "value": [8, 21]}]
    assert power().tables == []


def test_estimates_stand_in_pairs_without_and_with_simulation():
    rows = [
        NS(
            policy=name,
            pairs=5 + k,
            more=40 + k,
            correlation=0.6 + k / 10,
            beta=0.7 + k / 10,
            narrower=9.0 + k,
            saved=interval(12.0 + k, 3.0 + k, 30.0 + k),
            alone=interval(0.5 + k / 10, 0.1, 0.9),
            combined=interval(0.52 + k / 10, 0.3, 0.8),
            asymptotic={"ppi": interval(0.53 + k / 10, 0.35, 0.75, method="PPI")},
            notes=("few pairs",) if k else (),
        )
        for k, name in enumerate(("p", "q"))
    ]
    page = KeptReport()
    estimate_section(page, NS(measure="success", level=0.9, policies=rows))
    ((plot, caption),) = page.plots
    names = ["p, real trials alone", "p, with simulation", "q, real trials alone", "q, with simulation"]
    assert list(plot.layout.yaxis.ticktext) == names
    alone, combined = plot.data
    assert (alone.name, combined.name) == ("real trials alone", "with simulation")
    assert (list(alone.x), list(alone.y)) == (pytest.approx([0.5, 0.6]), [0, 2])
    assert (list(combined.x), list(combined.y)) == (pytest.approx([0.52, 0.62]), [1, 3])
    assert ends(alone) == (pytest.approx([0.1, 0.1]), pytest.approx([0.9, 0.9]))
    assert ends(combined) == (pytest.approx([0.3, 0.3]), pytest.approx([0.8, 0.8]))
    assert plot.layout.xaxis.title.text == "real success"
    assert caption == "Intervals of 90 %."
    first, second = page.tables
    assert first == {
        "policy": ["p", "q"],
        "pairs": [5, 6],
        "sim only": [40, 41],
        "correlation": [0.6, 0.7],
        "β": pytest.approx([0.7, 0.8]),
        "saved": [12.0, 13.0],
        "low": [3.0, 4.0],
        "high": [30.0, 31.0],
        "for this width": [9.0, 10.0],
    }
    assert second == {
        "policy": ["p", "q"],
        "estimate": pytest.approx([0.53, 0.63]),
        "low": [0.35, 0.35],
        "high": [0.75, 0.75],
        "asymptotic interval": ["PPI", "PPI"],
    }
    assert page.words[-1] == "q: few pairs"


FEATURES = tuple(
    ClipFeature(channel=channel, kind=kind, family=family, unit=unit, meaning=f"the {kind} of {channel}")
    for channel, kind, family, unit in (
        ("elbow", "speed_mean", "speeds", "rad/s"),
        ("elbow", "lag", "commands", "s"),
        ("wrist", "lag", "commands", "s"),
    )
)


def auc(estimate, low, high, p_value=NAN):
    return NS(auc=interval(estimate, low, high), p_value=p_value, nreal=6, nsim=5)


def states(**changed):
    rng = np.random.default_rng(0)
    distance = interval([0.2, 0.9, 0.3], [0.1, 0.5, 0.2], [0.4, 1.5, 0.35])
    made = {
        "features": FEATURES,
        "scale": np.array([1.0, 0.5, 3.0]),  # effects 0.2, 1.8, 0.1
        "mmd": NS(distance=interval(0.11, 0.05, 0.2), p_value=0.012),
        "energy": NS(distance=interval(0.31, 0.25, 0.4), p_value=0.013),
        "columns": NS(distance=distance, p_adjusted=np.array([0.2, 0.003, 0.9]), spread=np.ones(3)),
        "classifier": auc(0.9, 0.7, 0.97, 0.25),
        "by_channel": {"elbow": auc(0.8, 0.6, 0.9), "wrist": auc(0.55, 0.4, 0.7)},
        "by_family": {"speeds": auc(0.65, 0.5, 0.75), "commands": auc(0.85, 0.7, 0.95)},
        "p_channel": {"elbow": 0.25, "wrist": 0.4},
        "p_family": {"speeds": NAN, "commands": 0.02},
        "neighbours": NS(
            precision=interval(0.4, 0.3, 0.5),
            recall=interval(0.5, 0.35, 0.6),
            density=interval(0.7, 0.6, 0.8),
            coverage=interval(0.6, 0.45, 0.9),
            floor={"precision": 0.91, "recall": 0.92, "density": NAN, "coverage": 0.94},
            p_value={"precision": 0.21, "recall": 0.22, "density": 0.23, "coverage": 0.24},
        ),
        "real_rows": rng.normal([0, 5, 50], size=(8, 3)),
        "sim_rows": rng.normal([1, 7, 60], size=(9, 3)),
        "real_clips": 8,
        "sim_clips": 9,
        "clip_s": 1.5,
        "rate_hz": 30.0,
        "paired": False,
        "level": 0.75,  # so that 1 − level is a binary fraction, and equal to the p-values at the limit
        "notes": ("resampled",),
        "sides": ("real", "simulated"),
    }
    page = KeptReport()
    data_section(page, NS(**(made | changed)), "log A", "log B")
    return page


def test_trajectories_that_are_told_apart_are_marked_and_counted_on_the_right_side():
    page = states()
    assert page.heads == [
        "Can simulated trajectories be distinguished from real ones?",
        "Which features differ",
        "Difference of each feature",
        "Distances",
    ]
    assert [unit for unit in page.units_of_metrics.values() if unit] == ["%", "%"]
    assert page.words[0].startswith("log A (real) against log B. Episodes were cut into clips of 1.5 s at 30 Hz")
    assert {label: (value, source) for label, value, source in page.shown_metrics} == {
        "area under the curve": (0.9, "0.7 to 0.97"),
        "real clips that have simulated ones nearby": (60.0, ""),
        "simulated clips that have real ones nearby": (40.0, ""),
        "clips, real and simulated": ("8 and 9", ""),
        "episodes": ("6 and 5", ""),
    }
    assert page.words[1] == "resampled"
    assert page.tones_of_metrics["area under the curve"] == "bad"
    assert states(classifier=auc(0.6, 0.4, 0.8, 0.26)).tones_of_metrics["area under the curve"] is None
    assert states(paired=True).shown_metrics[-1][0] == "pairs of the same trials"


def test_groups_of_features_stand_out_where_their_adjusted_test_finds_them():
    (channels, first), (families, second), *_ = states().plots
    assert [(one.name, list(one.y), list(one.x)) for one in channels.data] == [
        ("distinguishable", ["elbow"], [0.8]),
        ("not distinguishable", ["wrist"], [0.55]),
    ]
    assert ends(channels.data[0]) == (pytest.approx([0.6]), pytest.approx([0.9]))
    assert [(one.name, list(one.y)) for one in families.data] == [
        ("distinguishable", ["commands"]),
        ("not distinguishable", ["speeds"]),
    ]
    assert first == "elbow: p = 0.25; wrist: p = 0.4"
    assert second == "commands: p = 0.02"  # no test was requested for the others
    assert any("elbow: the lag of elbow" in words for words in states().words)
    nothing = NS(distance=interval([1.0] * 3, [0.5] * 3, [2.0] * 3), p_adjusted=np.ones(3), spread=np.ones(3))
    assert not any("the lag of elbow" in words for words in states(columns=nothing).words)


def test_every_feature_has_its_cell_and_the_furthest_are_drawn_first():
    page = states()
    chart, _ = page.plots[2]
    (cells,) = chart.data
    assert (list(cells.y), list(cells.x)) == (["elbow", "wrist"], ["speed mean", "lag"])
    assert np.array(cells.z, dtype=float) == pytest.approx(np.array([[0.2, 1.8], [NAN, 0.1]]), nan_ok=True)
    assert cells.text[0][1] == "elbow: the lag of elbow<br>W₁ 0.9 [0.5, 1.5] s<br>p = 0.003, adjusted"
    assert cells.text[1][0] == ""
    spread, _ = page.plots[3]
    assert [one.text for one in spread.layout.annotations] == [
        "elbow: lag / s",
        "elbow: speed mean / rad/s",
        "wrist: lag / s",
    ]
    lag_real, lag_sim, _, _, last_real, last_sim = spread.data
    for trace, around in ((lag_real, 5), (lag_sim, 7), (last_real, 50), (last_sim, 60)):
        assert np.average(trace.x, weights=trace.y) == pytest.approx(around, abs=1.2)
    assert (lag_real.name, lag_sim.name) == ("real", "simulated")


def test_distances_are_told_with_what_they_are_without_a_gap():
    assert states().tables == [
        {
            "": ["MMD²", "energy distance", "area under the curve", "precision", "recall", "density", "coverage"],
            "estimate": [0.11, 0.31, 0.9, 0.4, 0.5, 0.7, 0.6],
            "75% interval": [
                "0.05 to 0.2",
                "0.25 to 0.4",
                "0.7 to 0.97",
                "0.3 to 0.5",
                "0.35 to 0.6",
                "0.6 to 0.8",
                "0.45 to 0.9",
            ],
            "without a gap": ["0", "0", "0.5", "0.91", "0.92", "–", "0.94"],
            "p": [0.012, 0.013, 0.25, 0.21, 0.22, 0.23, 0.24],
        }
    ]


def metric(name, number, *, others=(0.3, 0.99), reason="", better="higher"):
    return PredictivityMetric(
        name=name,
        estimate=number,
        corrected=number + 0.01,
        evaluated=interval(number, number - 0.2, number + 0.3, level=0.8),
        population=interval(number, *others, level=0.8),
        better=better,
        meaning=f"what {name} means",
        reason=reason,
    )


class Metrics(dict):
    metrics = property(lambda self: tuple(self.values()))
    best_policy, noise_share = 0.37, (0.25, 0.4)


def predicted(name="", *, violations=(("p", "r", 0.15),), known=True):
    rows = (metric("pearson", 0.7), metric("mmrv", 0.1, others=(NAN, NAN), better="lower"))
    rows += (metric("pairwise_accuracy", 0.6), metric("bias", 0.05, others=(NAN, NAN), reason="one policy only"))
    scores = NS(
        policies=("p", "q", "r"),
        real=NS(mean=np.array([0.7, 0.2, 0.55]), has_trial_counts=known),
        sim=NS(mean=np.array([0.6, 0.3, 0.8]), has_trial_counts=True),
    )
    return NS(
        name=name or "all",
        scores=scores,
        result=Metrics({row.name: row for row in rows}),
        real=interval([0.7, 0.2, 0.55], [0.5, 0.1, 0.3], [0.9, 0.4, 0.75], level=0.8),
        sim=interval([0.6, 0.3, 0.8], [0.45, 0.2, 0.7], [0.65, 0.5, 0.85]),
        violations=violations,
    )


def predictivity(*tasks, average=None):
    page = KeptReport()
    predictivity_section(page, NS(main=average or tasks[0], average=average, tasks=tasks, notes=("a note",)))
    return page


def test_scores_of_one_task_are_drawn_against_each_other_with_all_metrics():
    page = predictivity(predicted())
    assert page.words[0].startswith("3 policies were scored")
    assert {label: (value, source) for label, value, source in page.shown_metrics} == {
        "correlation (Pearson)": (0.7, "80% of such policies: 0.300 to 0.990"),
        "MMRV": (0.1, "80% of such policies: -0.100 to 0.400"),
        "pairs right": (0.6, "80% of such policies: 0.300 to 0.990"),
        "simulated − real": (0.05, "one policy only"),
        "the first is the best": (
            0.37,
            "chance that r, first in simulation, is truly the best of these in reality",
        ),
    }
    ((plot, caption),) = page.plots
    _, wrong, dots = plot.data
    assert (list(wrong.x), list(wrong.y)) == ([0.6, 0.8], [0.7, 0.55])
    assert (list(dots.x), list(dots.y), list(dots.text)) == ([0.6, 0.3, 0.8], [0.7, 0.2, 0.55], ["p", "q", "r"])
    assert ends(dots) == (pytest.approx([0.45, 0.2, 0.7]), pytest.approx([0.65, 0.5, 0.85]))
    assert ends(dots, "y") == (pytest.approx([0.5, 0.1, 0.3]), pytest.approx([0.9, 0.4, 0.75]))
    assert caption.startswith("A dot per policy; bars are 80% intervals from its trials. An orange")
    rows, wrong = page.tables
    assert rows == {
        "metric": ["pearson", "MMRV", "pairs right", "bias"],
        "value": [0.7, 0.1, 0.6, 0.05],
        "without noise of trials": pytest.approx([0.71, 0.11, 0.61, 0.06]),
        "of these policies": ["0.500 to 1.000", "-0.100 to 0.400", "0.400 to 0.900", "-0.150 to 0.350"],
        "of such policies": ["0.300 to 0.990", "–", "0.300 to 0.990", "–"],
        "meaning": ["what pearson means", "what mmrv means", "what pairwise_accuracy means", "one policy only"],
    }
    assert wrong == {
        "better in reality": ["p"],
        "not so in simulation against": ["r"],
        "real score at stake": [0.15],
    }
    assert "about 25% (real) and 40% (simulated)" in page.words[-2]
    assert page.words[-1] == "a note"
    assert page.heads[1:] == ["How to read the two intervals"]


def test_several_tasks_follow_their_average_under_their_names():
    page = predictivity(predicted("lift"), predicted("push", violations=(), known=False), average=predicted("mean"))
    assert page.heads[1:-1] == ["Mean", "Lift", "Push"]
    assert "(none where their number is unknown)" in page.plots[2][1]
    assert "(none where their number is unknown)" not in page.plots[1][1]
    assert page.words.count("Simulation orders every pair of these policies as reality does.") == 1


def row(name, k, *, p_holm=0.5, note="", group="condition"):
    return GapRow(
        group=group,
        name=name,
        real=0.5 + k / 100,
        sim=0.6 + k / 100,
        trials_real=10 + k,
        trials_sim=100 + k,
        difference=interval(0.1 + k / 100, 0.02 * k - 0.1, 0.3 + k / 100, level=0.9, method="Newcombe"),
        p_value=0.01 + k / 1000,
        test=f"test {k}",
        p_holm=p_holm,
        contribution=0.04 + k / 100,
        note=note,
    )


def policies(**changed):
    made = {
        "measure": "success",
        "overall": row("all", 0),
        "policies": (row("p", 1, p_holm=0.06), row("q", 2, p_holm=0.04)),
        "conditions": (row("bright", 3, p_holm=0.05), row("dark", 4, p_holm=0.051)),
        "cells": (row("p bright", 5, note="too few"), row("q dark", 6)),
        "notes": ("first note", "second note"),
    }
    page = KeptReport()
    policies_section(page, [MeasureGap(**(made | changed))])
    return page


def columns(*rows):
    return {
        "": [name for name, *_ in rows],
        "real": pytest.approx([0.5 + k / 100 for _, k, *_ in rows]),
        "simulated": pytest.approx([0.6 + k / 100 for _, k, *_ in rows]),
        "trials": [100 + k for _, k, *_ in rows],  # simulated ones, the last of two columns of this name
        "simulated − real": pytest.approx([0.1 + k / 100 for _, k, *_ in rows]),
        "interval": [f"{0.02 * k - 0.1:.3f} to {0.3 + k / 100:.3f}" for _, k, *_ in rows],
        "p": pytest.approx([0.01 + k / 1000 for _, k, *_ in rows]),
        "adjusted p": [p for *_, p in rows],
        "adds": pytest.approx([0.04 + k / 100 for _, k, *_ in rows]),
        "test": [f"test {k}" + ("; too few" if k == 5 else "") for _, k, *_ in rows],
    }


def test_success_is_compared_overall_by_condition_by_policy_and_in_each_cell():
    page = policies()
    assert page.heads == ["Does simulation show the same success rate as reality?"]
    assert page.shown_metrics == [
        ("simulated − real success rate", 0.1, "90%: -0.100 to 0.300; Newcombe"),
        ("conditions that differ", "1 of 2", "Holm's test at 5%"),
    ]
    (conditions, caption), (by_policy, _) = page.plots
    assert [word for word in page.words if word.startswith("By ")] == ["By condition:", "By policy:"]
    quiet, shown = conditions.data
    assert (list(quiet.customdata), list(shown.customdata)) == (["dark"], ["bright"])
    assert list(shown.x) == pytest.approx([0.13])
    assert ends(shown) == (pytest.approx([-0.04]), pytest.approx([0.33]))
    assert conditions.layout.xaxis.title.text == "simulated − real success rate"
    assert [list(one.customdata) for one in by_policy.data] == [["p"], ["q"]]
    assert caption.startswith("Bars are 90% intervals")
    assert "all 2 tested together" in caption
    first, second = page.tables
    assert first == columns(("all", 0, 0.5), ("bright", 3, 0.05), ("dark", 4, 0.051))
    assert [line[2] for line in page.rows[0]] == [10, 13, 14]  # real trials
    assert second == columns(("p bright", 5, 0.5), ("q dark", 6, 0.5))
    assert page.words[-1] == "first note\n\nsecond note"


def test_one_condition_and_one_policy_have_no_plots_and_one_table():
    page = policies(measure="score", policies=(row("p", 1),), conditions=(row("bright", 3),))
    assert page.heads == ["Does simulation show the same score as reality?"]
    assert [label for label, *_ in page.shown_metrics] == ["simulated − real score"]
    assert page.plots == []
    assert page.tables == [columns(("all", 0, 0.5), ("p", 1, 0.5))]
    assert page.captions == ["Overall and by policy."]
