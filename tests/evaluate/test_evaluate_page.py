"""The pages of an evaluation and of a comparison: every number under its heading, plots for several values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from support.pages import KeptReport
from twinloop.core.evaluation import Evaluation
from twinloop.evaluate.comparison import compare_stored
from twinloop.evaluate.summary import EvaluationSummary
from twinloop.stats import clopper_pearson
from twinloop.workflows.evaluate.page import comparison_section, evaluation_section


def evaluation(policy="p", **changed):
    rows = {
        "slice": ["good"] * 4 + ["bad"] * 5,
        "trial": [f"{i}" for i in range(9)],
        "success": [True] * 4 + [True, False, False, False, False],
        "progress": [1.0] * 4 + [1.0, 0.5, 0.5, 0.5, None],
        "time_s": [2.0, 3.0, 4.0, 5.0, 6.0, None, None, None, None],
        "smoothness": [-2.0, -2.0, -3.0, -3.0, -5.0, None, None, None, None],
        "peak_force_n": [1.0, 2.0, 9.0, 2.0, 7.0, None, None, None, None],
        "violations": [0, 2, 0, 0, 0, 0, 0, 1, None],
        "latency_s": [0.001] * 8 + [None],
        "valid": [True] * 8 + [False],
        "reason": [None] * 8 + ["diverged"],
    }
    return Evaluation(policy=policy, suite="s", trials=pa.table(rows), **changed)


def page_of(made):
    page = KeptReport()
    evaluation_section(page, made, EvaluationSummary.of(made))
    return page


def test_slices_are_told_worst_first_under_their_headings():
    page = page_of(evaluation(twin="arm", run_seed=7))
    (table,) = page.tables
    bad, good = clopper_pearson(1, 5), clopper_pearson(4, 4)
    assert table["slice"] == ["bad", "good"]
    for name, end in (("success", "estimate"), ("low", "low"), ("high", "high")):
        assert table[name] == pytest.approx([float(getattr(bad, end)), float(getattr(good, end))])
    assert (table["won"], table["of"], table["invalid worlds"]) == ([1, 4], [5, 4], [1, 0])
    assert table["time s"] == [6.0, 3.5]
    assert table["smoothness"] == [-5.0, -2.5]
    assert (table["peak N"], table["most N"]) == ([7.0, 2.0], [7.0, 9.0])
    assert table["unsafe"] == pytest.approx([0.25, 0.25])
    ((plot, caption),) = page.plots
    points = plot.data[0]
    assert list(points.y) == ["bad", "good"]
    assert list(points.x) == pytest.approx([0.2, 1.0])
    assert np.array(points.error_x.array) + np.array(points.x) == pytest.approx([float(bad.high), float(good.high)])
    assert np.array(points.x) - np.array(points.error_x.arrayminus) == pytest.approx([float(bad.low), float(good.low)])
    assert caption.startswith("Success of every slice with exact 95%")
    assert page.words[0].startswith("Simulated on arm, run seed 7.")
    assert "The worst of 2 slices" in page.words[0]


def test_metrics_of_an_evaluation():
    told = {label: (value, source) for label, value, source in page_of(evaluation()).shown_metrics}
    assert told["success"][0] == pytest.approx(5 / 9)
    assert told["success"][1].endswith("9 trials")
    assert told["worst slice"][0] == pytest.approx(0.2)
    assert told["worst slice"][1].endswith("chosen among 2")
    assert told["invalid"][0] == 1


def test_one_slice_has_no_bars_and_no_worst():
    rows = evaluation().trials.slice(0, 4)
    page = page_of(Evaluation(policy="p", suite="s", trials=rows))
    assert page.plots == []
    assert "worst slice" not in {label for label, *_ in page.shown_metrics}
    assert "worst" not in page.words[0]


def test_pairs_of_axes_are_mapped_where_the_suite_has_them_both_ways_round():
    ends = {"good": {"mass": "low", "friction": "high"}, "bad": {"mass": "high", "friction": "low"}}
    page = page_of(evaluation(extra={"pairs": ["mass", "friction"], "ends": ends}))
    assert len(page.plots) == 2
    heat = page.plots[1][0].data[0]
    found = {
        (x, y): heat.z[j][i] for i, x in enumerate(heat.x) for j, y in enumerate(heat.y) if np.isfinite(heat.z[j][i])
    }
    assert found == {
        ("mass low", "friction high"): 1.0,
        ("friction high", "mass low"): 1.0,
        ("mass high", "friction low"): pytest.approx(0.2),
        ("friction low", "mass high"): pytest.approx(0.2),
    }
    assert heat.zmin == 0
    assert heat.zmax == 1


def test_real_trials_are_not_lost_worlds_and_what_was_left_out_is_told():
    page = page_of(evaluation(domain="real", extra={"left_out": ["trial 9: no video"]}))
    assert page.tables[0]["invalid"] == [1, 0]
    assert page.words[0].startswith("Real trials.")
    assert page.words[-1] == "Left out:\n\ntrial 9: no video"


def test_a_comparison_counts_for_each_side_what_it_alone_won():
    old = evaluation("old")
    won = [True, False, True, True, True, True, True, False, False]
    new = Evaluation(policy="new", suite="s", trials=old.trials.set_column(2, "success", pa.array(won)))
    page = KeptReport()
    comparison_section(page, compare_stored(new, old, alpha=0.1, margin=0.2))
    told = {label: (value, source) for label, value, source in page.shown_metrics}
    assert told["pairs"][0] == 9
    assert told["won by only one"][0] == "2 : 1"
    assert told["difference"][0] == pytest.approx(1 / 9)
    assert page.heads == ["new against old"]
    assert page.tables == [{"slice": ["good", "bad"], "pairs": [4, 5], "only new": [0, 2], "only old": [1, 0]}]
    ((plot, _),) = page.plots
    high, low = plot.data
    assert list(high.x) == list(range(1, 10))
    assert (np.array(low.y) <= np.array(high.y)).all()
    assert [shape.y0 for shape in plot.layout.shapes] == [0, -0.2, 0.2]
