"""Plots of a training run, of checks of episodes and of a figure over runs show the numbers they were given."""

from __future__ import annotations

import numpy as np
import pytest

from support.pages import ends, level_lines, titles, upright_lines
from twinloop.core.headline import HeadlineMetric
from twinloop.report.curves import plot_error_curves, plot_history_curves, plot_loss_curve, plot_score_strips
from twinloop.report.figure import BLUE, GREEN, GREY, INK, ORANGE, VIOLET


def test_a_loss_is_drawn_over_its_steps_on_a_logarithmic_axis():
    figure = plot_loss_curve((10, 20, 50), (0.5, 0.3, 0.01))
    (line,) = figure.data
    assert (list(line.x), list(line.y), line.mode) == ([10, 20, 50], [0.5, 0.3, 0.01], "lines+markers")
    assert (line.line.color, line.hovertemplate) == (INK, "step %{x}: %{y:.4g}<extra></extra>")
    assert titles(figure) == ("step", "training loss")
    assert (figure.layout.yaxis.type, figure.layout.xaxis.type) == ("log", None)
    assert figure.layout.height == 320


def test_errors_have_a_line_per_source_and_a_mark_at_the_kept_step():
    figure = plot_error_curves((10, 30), {"real": (0.5, 0.2), "sim": (0.4, 0.1)}, unit="rad", policy_step=30)
    assert [(t.name, list(t.x), list(t.y), t.line.color) for t in figure.data] == [
        ("real", [10, 30], [0.5, 0.2], ORANGE),
        ("sim", [10, 30], [0.4, 0.1], BLUE),
    ]
    assert {t.mode for t in figure.data} == {"lines+markers"}
    assert figure.data[1].hovertemplate == "sim, step %{x}: %{y:.4g} rad<extra></extra>"
    assert (upright_lines(figure), level_lines(figure)) == ([30], [])
    assert titles(figure) == ("step", "error / rad")
    assert figure.layout.yaxis.rangemode == "tozero"
    assert figure.layout.height == 320
    first = plot_error_curves((0, 30), {}, unit="rad", policy_step=0)
    assert upright_lines(first) == [0], "the first step is a step like others"
    assert upright_lines(plot_error_curves((10,), {}, unit="rad", policy_step=None)) == []


def test_colours_of_sources_begin_again_after_the_fifth():
    figure = plot_error_curves((1,), dict.fromkeys("abcdef", (1.0,)), unit="m", policy_step=None)
    assert [t.line.color for t in figure.data] == [ORANGE, BLUE, GREEN, VIOLET, GREY, ORANGE]


def test_figures_of_checks_are_points_near_their_row_in_the_colour_of_their_verdict():
    rows = {
        "jumps": [(0.5, "good", "a"), (1.5, "suspect", "b"), (500.0, "bad", "c")],
        "gaps": [(0.001, "good", "d"), (0.9, "good", "e"), (3.0, "unreadable", "f"), (2.0, "unknown", "g")],
    }
    figure = plot_score_strips(rows)
    points = {t.name: t for t in figure.data}
    assert list(points) == ["good", "suspect", "bad", "unknown", "unreadable"]
    assert [t.marker.color for t in figure.data] == [BLUE, ORANGE, "#c8382f", GREY, "#c8382f"]
    assert (list(points["good"].x), list(points["good"].text)) == ([0.5, 0.01, 0.9], ["a", "d", "e"])
    assert list(points["bad"].x) == [100.0]
    assert [np.round(t.y).astype(int).tolist() for t in figure.data] == [[0, 1, 1], [0], [0], [1], [1]]
    assert points["good"].marker.size < points["suspect"].marker.size
    assert {(t.mode, t.hovertemplate) for t in figure.data} == {("markers", "%{text}<extra></extra>")}
    assert upright_lines(figure) == [1.0]
    axis = figure.layout.yaxis
    assert (list(axis.tickvals), list(axis.ticktext), axis.autorange) == ([0, 1], ["jumps", "gaps"], "reversed")
    assert (figure.layout.xaxis.type, figure.layout.xaxis.title.text) == ("log", "metric / limit")
    assert figure.layout.xaxis.range == pytest.approx((-2.1, 2.1))
    assert figure.layout.height == 110 + 26 * 2, "a frame and two rows"
    assert [t.name for t in plot_score_strips({"jumps": [(1.0, "suspect", "")]}).data] == ["suspect"]


def test_points_of_a_row_are_spread_evenly_within_its_height():
    (trace,) = plot_score_strips({"jumps": [(1.0, "good", "")] * 21}).data
    heights = np.sort(np.asarray(trace.y))
    golden = (np.sqrt(5) - 1) / 2
    assert heights == pytest.approx(np.sort([0.6 * (k * golden % 1) - 0.3 for k in range(21)]), abs=1e-6)
    assert np.diff(heights).min() > 0.01, "no two points share a height"


def test_a_figure_over_runs_has_its_interval_in_each_and_a_gap_where_a_run_lacks_it():
    nan = float("nan")
    figures = [
        HeadlineMetric(name="skill", estimate=nan),
        HeadlineMetric(name="skill", estimate=0.5, low=0.4, high=0.7, unit="rad"),
        HeadlineMetric(name="skill", estimate=0.3, unit="m"),
    ]
    figure = plot_history_curves(["a", "b", "c"], figures)
    (line,) = figure.data
    assert list(line.x) == [0, 1, 2]
    assert np.asarray(line.y) == pytest.approx(np.array([nan, 0.5, 0.3]), nan_ok=True)
    low, high = ends(line, "y")
    assert (low[1:], high[1:]) == (pytest.approx([0.4, 0.3]), pytest.approx([0.7, 0.3]))
    assert (list(line.text), line.mode, line.showlegend) == (["a", "b", "c"], "lines+markers", False)
    assert np.asarray(line.customdata)[1].tolist() == [0.4, 0.7]
    assert line.hovertemplate.startswith("%{text}<br>%{y:.4g} [%{customdata[0]:.4g}, %{customdata[1]:.4g}]")
    axis = figure.layout.xaxis
    assert (list(axis.tickvals), list(axis.ticktext), axis.range) == ([0, 1, 2], ["a", "b", "c"], (-0.5, 2.5))
    assert figure.layout.yaxis.title.text == "rad", "the unit of the first run that has the figure"
    assert figure.layout.height == 300


def test_runs_that_all_lack_a_figure_take_the_unit_of_the_first():
    nan = float("nan")
    figure = plot_history_curves(["a", "b"], [HeadlineMetric(name="x", estimate=nan, unit=unit) for unit in ("s", "m")])
    assert figure.layout.yaxis.title.text == "s"
