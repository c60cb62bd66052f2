"""Plots of policies in reality and in simulation: scores against scores, intervals by row, wealth and power."""

from __future__ import annotations

import numpy as np
import pytest

from support.pages import ends, level_lines, titles, traces, upright_lines
from twinloop.core.errors import InputError
from twinloop.report.figure import BLUE, GREY, INK, ORANGE
from twinloop.report.gap_policies import (
    plot_confidence_sequence,
    plot_gap_rows,
    plot_interval_rows,
    plot_power_curve,
    plot_score_scatter,
    plot_wealth_curves,
)

POLICIES = ["act", "bc", "dp"]
REAL, SIM = [0.2, 0.5, 0.9], [0.7, 0.3, 0.8]


def scores(policies=POLICIES, real=REAL, sim=SIM, **changed):
    given = {
        "real_ends": (np.array(real) - 0.1, np.array(real) + 0.05),
        "sim_ends": (np.array(sim) - 0.2, np.array(sim) + 0.15),
    }
    return plot_score_scatter(policies, real, sim, **(given | changed))


def test_a_policy_is_a_dot_with_its_simulated_score_across_and_its_real_one_up():
    figure = scores()
    equal, dots = figure.data
    assert (list(equal.x), list(equal.y), equal.name) == ([0, 1], [0, 1], "simulation equals reality")
    assert equal.mode == "lines"
    assert (list(dots.x), list(dots.y), list(dots.text)) == (SIM, REAL, POLICIES)
    assert (dots.mode, dots.name) == ("markers+text", "policies with their intervals")
    assert ends(dots, "x") == (pytest.approx([0.5, 0.1, 0.6]), pytest.approx([0.85, 0.45, 0.95]))
    assert ends(dots, "y") == (pytest.approx([0.1, 0.4, 0.8]), pytest.approx([0.25, 0.55, 0.95]))
    assert dots.hovertemplate.startswith("%{text}: simulated %{x:.3f}, real %{y:.3f}")
    assert titles(figure) == ("simulated score", "real score")
    for axis in (figure.layout.xaxis, figure.layout.yaxis):
        assert -0.1 < axis.range[0] < 0
        assert 1 < axis.range[1] < 1.1


def test_an_unknown_end_gives_a_bar_of_no_width():
    nan = float("nan")
    figure = scores(real_ends=([nan, 0.4, 0.8], [0.3, nan, 1.0]), sim_ends=(nan, nan))
    dots = figure.data[-1]
    assert ends(dots, "y") == ([0.2, pytest.approx(0.4), 0.8], [pytest.approx(0.3), 0.5, 1.0])
    assert ends(dots, "x") == (SIM, SIM)


def test_pairs_that_the_simulation_orders_wrongly_are_joined_by_one_kind_of_line():
    lines = traces(scores(violations=[("bc", "act"), ("dp", "bc")]), "wrong order")
    assert [(list(line.x), list(line.y)) for line in lines] == [([0.3, 0.7], [0.5, 0.2]), ([0.8, 0.3], [0.9, 0.5])]
    assert [line.showlegend for line in lines] == [True, False]
    assert {(line.mode, line.legendgroup, line.line.color) for line in lines} == {("lines", "wrong order", ORANGE)}
    assert lines[0].hovertemplate.startswith("bc is better in reality, act or neither in simulation")


def test_a_name_is_on_the_side_of_its_dot_that_is_away_from_the_nearest_one_and_inside_the_frame():
    figure = scores(["a", "b", "c", "d"], [0.5, 0.6, 0.1, 0.2], [0.3, 0.3, 0.75, 0.8])
    assert list(figure.data[-1].textposition) == ["bottom right", "top right", "bottom right", "top left"]
    alone = scores(["a"], [0.5], [0.9])
    assert list(alone.data[-1].textposition) == ["top left"]
    level = scores(["a", "b"], [0.5, 0.5], [0.3, 0.2])
    assert list(level.data[-1].textposition) == ["top right", "top right"]


def test_scores_that_do_not_fit_the_policies_are_refused():
    with pytest.raises(InputError, match="real scores"):
        plot_score_scatter(POLICIES, [0.1], SIM, real_ends=(0, 1), sim_ends=(0, 1))
    with pytest.raises(InputError, match="simulated scores"):
        plot_score_scatter(POLICIES, REAL, [0.1], real_ends=(0, 1), sim_ends=(0, 1))


def test_gaps_by_row_are_marked_where_they_are_shown():
    bounds = ([-0.4, float("nan"), 0.2], [0.1, 0.3, 0.7])
    figure = plot_gap_rows(
        ["dark", "far", "heavy"], [-0.2, 0.05, 0.5], bounds, significant=[False, False, True], unit="success"
    )
    grey, orange = figure.data
    assert (grey.name, grey.marker.color) == ("not significant", GREY)
    assert (list(grey.x), list(grey.y), list(grey.customdata)) == ([-0.2, 0.05], [0, 1], ["dark", "far"])
    assert ends(grey) == (pytest.approx([-0.4, 0.05]), pytest.approx([0.1, 0.3]))
    assert (orange.name, orange.marker.color) == ("significant, all rows tested together", ORANGE)
    assert (list(orange.x), list(orange.y), list(orange.customdata)) == ([0.5], [2], ["heavy"])
    assert ends(orange) == (pytest.approx([0.2]), pytest.approx([0.7]))
    assert {(t.mode, t.hovertemplate) for t in figure.data} == {("markers", "%{customdata}: %{x:+.3f}<extra></extra>")}
    assert (upright_lines(figure), level_lines(figure)) == ([0], [])
    axis = figure.layout.yaxis
    assert (list(axis.tickvals), list(axis.ticktext)) == ([0, 1, 2], ["dark", "far", "heavy"])
    assert axis.range[0] > 2
    assert axis.range[1] < 0
    assert axis.range[0] - axis.range[1] < 4
    assert figure.layout.xaxis.title.text == "simulated − real success"
    assert figure.layout.xaxis.range == (-1.04, 1.04)
    one = plot_gap_rows(["a"], [0.1], (0.0, 0.3), significant=[True], unit="")
    assert [trace.name for trace in one.data] == ["significant, all rows tested together"]
    assert figure.layout.height - one.layout.height == 60, "30 pixels a row"


def test_e_values_are_drawn_in_powers_of_ten_up_to_the_line_that_decides():
    figure = plot_wealth_curves({"better": np.log([2.0, 10.0, 500.0]), "worse": np.log([0.5, 1e-9])}, alpha=0.05)
    better, worse, line = figure.data
    assert (list(better.x), list(worse.x)) == ([1, 2, 3], [1, 2])
    assert list(better.y) == pytest.approx([0.30103, 1, 2.69897])
    assert list(better.customdata) == pytest.approx([2, 10, 500])
    assert list(worse.y) == pytest.approx([-0.30103, -9])
    assert [(t.name, t.line.color, t.line.shape) for t in (better, worse)] == [
        ("better", BLUE, "hv"),
        ("worse", ORANGE, "hv"),
    ]
    assert better.hovertemplate == "pair %{x}: e-value %{customdata:.3g}<extra>better</extra>"
    assert (list(line.x), list(line.y)) == ([1, 3], pytest.approx([np.log10(20)] * 2))
    assert (line.name, line.mode, line.line.dash) == ("decision at 1/α = 20", "lines", "dash")
    axis = figure.layout.yaxis
    assert list(axis.tickvals) == [-6, -5, -4, -3, -2, -1, 0, 1, 2, 3]
    assert list(axis.ticktext) == ["1e-06", "1e-05", "0.0001", "0.001", "0.01", "0.1", "1", "10", "100", "1000"]
    assert axis.range == pytest.approx((-6.2, np.log10(500) + 0.3))
    assert titles(figure) == ("pairs of trials", "e-value")


def test_small_e_values_leave_the_deciding_line_in_view():
    figure = plot_wealth_curves({"a": np.log([1.5, 0.9])}, alpha=0.001)
    assert figure.layout.yaxis.range == pytest.approx((-1.2, 3.3))
    assert list(figure.layout.yaxis.tickvals) == [-1, 0, 1, 2, 3]
    low = plot_wealth_curves({"a": np.log([0.02])}, alpha=0.1)
    assert low.layout.yaxis.range == pytest.approx((np.log10(0.02) - 0.2, 1.3))
    assert list(low.data[-1].x) == [1, 1]


def test_single_pairs_are_marked_while_there_are_fewer_than_eighty():
    modes = [plot_wealth_curves({"a": np.zeros(n)}, alpha=0.1).data[0].mode for n in (79, 80)]
    assert modes == ["lines+markers", "lines"]


def test_e_values_beyond_the_largest_float_are_drawn():
    figure = plot_wealth_curves({"a": [1000.0, -1000.0]}, alpha=0.1)
    assert list(figure.data[0].customdata) == pytest.approx([np.exp(300.0), np.exp(-300.0)], rel=1e-9, abs=0)
    assert (figure.layout.yaxis.ticktext[0], figure.layout.yaxis.ticktext[-1]) == ("1e-06", "1e+435")


def test_a_confidence_sequence_fills_from_its_low_to_its_high_end():
    low, high, running_difference = [-0.9, -0.5, -0.1], [0.95, 0.8, 0.4], [0.1, 0.2, 0.15]
    figure = plot_confidence_sequence(low, high, running_difference, margin=0.3)
    above, below, line = figure.data
    assert [list(t.x) for t in figure.data] == [[1, 2, 3]] * 3
    assert [list(t.y) for t in figure.data] == [high, low, running_difference]
    assert (above.fill, above.showlegend) == (None, False)
    assert (below.fill, below.name) == ("tonexty", "confidence sequence")
    assert [t.mode for t in figure.data] == ["lines"] * 3
    assert [t.line.width for t in (above, below)] == [0, 0]
    assert (line.name, np.asarray(line.customdata).tolist()) == (
        "observed difference",
        [[-0.9, 0.95], [-0.5, 0.8], [-0.1, 0.4]],
    )
    assert line.hovertemplate.startswith("pair %{x}: %{y:.3f} [%{customdata[0]:.3f}, %{customdata[1]:.3f}]")
    assert level_lines(figure) == [-0.3, 0.0, 0.3]
    assert [shape.line.dash for shape in figure.layout.shapes] == ["dot", "solid", "dot"]
    assert level_lines(plot_confidence_sequence(low, high, running_difference)) == [0.0]
    assert titles(figure) == ("pairs of trials", "difference")
    assert figure.layout.yaxis.range == (-1.02, 1.02)


def test_intervals_are_coloured_by_group_and_stay_in_their_rows():
    figure = plot_interval_rows(
        ["a", "b", "c"],
        [0.1, -0.2, 0.4],
        [0.0, -0.5, 0.3],
        [0.3, -0.1, 0.9],
        title="difference",
        groups=["new", "old", "new"],
        margin=0.25,
        zero=True,
    )
    new, old = figure.data
    assert (new.name, new.marker.color, list(new.x), list(new.y)) == ("new", BLUE, [0.1, 0.4], [0, 2])
    assert (old.name, old.marker.color, list(old.x), list(old.y)) == ("old", ORANGE, [-0.2], [1])
    assert ends(new) == (pytest.approx([0.0, 0.3]), pytest.approx([0.3, 0.9]))
    assert ends(old) == (pytest.approx([-0.5]), pytest.approx([-0.1]))
    assert np.asarray(new.customdata).tolist() == [[0.0, 0.3], [0.3, 0.9]]
    assert (new.mode, new.showlegend) == ("markers", True)
    assert new.hovertemplate.startswith("%{x:.3f} [%{customdata[0]:.3f}, %{customdata[1]:.3f}]")
    assert upright_lines(figure) == [0.0, -0.25, 0.25]
    assert [shape.line.color for shape in figure.layout.shapes] == [INK, GREY, GREY]
    axis = figure.layout.yaxis
    assert (list(axis.tickvals), list(axis.ticktext), axis.autorange) == ([0, 1, 2], ["a", "b", "c"], "reversed")
    assert figure.layout.xaxis.title.text == "difference"
    assert figure.layout.height == 120 + 30 * 3, "a frame and three rows"


def test_intervals_without_groups_have_no_legend_and_lines_only_where_asked():
    figure = plot_interval_rows(["a"], [0.1], [0.0], [0.3], title="score")
    assert [(t.showlegend, t.marker.color) for t in figure.data] == [(False, BLUE)]
    assert upright_lines(figure) == []
    assert upright_lines(plot_interval_rows(["a"], [0.1], [0.0], [0.3], title="", zero=True)) == [0.0]
    many = plot_interval_rows(list("abcde"), *[np.arange(5.0)] * 3, title="", groups=list("vwxyz"))
    assert [t.name for t in many.data] == list("vwxyz"), "colours begin again after the last"
    assert many.data[4].marker.color == BLUE


@pytest.mark.parametrize(
    "changed",
    [{"estimates": [0.1, 0.2]}, {"low": [0.1, 0.2]}, {"high": 0.4}, {"groups": ["x", "y"]}],
)
def test_intervals_that_do_not_fit_their_rows_are_refused(changed):
    given = {"estimates": [0.1], "low": [0.0], "high": [0.3]} | changed
    with pytest.raises(InputError, match="A plot of 1 intervals"):
        plot_interval_rows(["a"], title="", **given)


def test_power_is_drawn_with_the_wish_and_the_trials_that_reach_it():
    figure = plot_power_curve([10, 20, 50], [0.2, 0.5, 0.9], required_power=0.8, required_trials=44, name="sign test")
    (line,) = figure.data
    assert (list(line.x), list(line.y), line.name) == ([10, 20, 50], [0.2, 0.5, 0.9], "sign test")
    assert line.mode == "lines+markers"
    assert (level_lines(figure), upright_lines(figure)) == ([0.8], [44])
    assert [shape.line.color for shape in figure.layout.shapes] == [GREY, ORANGE]
    assert titles(figure) == ("trials of each policy", "power")
    assert figure.layout.yaxis.range == (0, 1.02)
    assert "%{x} trials: power %{y:.3f}" in line.hovertemplate
