"""Plots of where clips and failures are: every point, interval and cell at its place, unknown ones left out."""

from __future__ import annotations

import numpy as np
import pytest

from support.pages import ends, panels, titles, traces
from twinloop.report.coverage import plot_clip_map, plot_clip_traces, plot_success_rows
from twinloop.report.figure import BLUE, GREEN, GREY, ORANGE
from twinloop.report.scenario import plot_failure_map

REAL = np.array([[0.0, 5.0], [1.0, 6.0], [2.0, 7.0], [3.0, 9.0], [4.0, 8.0]])
SIM = np.array([[0.5, 5.5], [1.5, 3.0]])
UNCOVERED = np.array([False, True, True, True, False])


def test_clips_left_alone_are_in_the_colour_of_their_hole_and_the_others_open():
    figure = plot_clip_map(REAL, SIM, ("first", "second"), [[3], [1]], UNCOVERED, list("abcde"))
    sim, *rows = figure.data
    assert (sim.name, sim.marker.color, sim.mode) == ("simulated", ORANGE, "markers")
    assert {(x, y) for x, y in zip(sim.x, sim.y, strict=True)} == {(0.5, 5.5), (1.5, 3.0)}
    assert [(row.name, list(row.x), list(row.y), list(row.text)) for row in rows] == [
        ("real, covered", [0.0, 4.0], [5.0, 8.0], ["a", "e"]),
        ("real, other holes", [2.0], [7.0], ["c"]),
        ("hole 1", [3.0], [9.0], ["d"]),
        ("hole 2", [1.0], [6.0], ["b"]),
    ]
    assert [row.marker.symbol for row in rows] == ["circle-open", "circle", "diamond", "diamond"]
    assert [row.marker.color for row in rows][:2] == [BLUE, GREY]
    assert len({row.marker.color for row in rows}) == 4
    assert {(row.mode, row.hovertemplate) for row in rows} == {("markers", "%{text}<extra></extra>")}
    assert titles(figure) == ("first", "second")


def test_groups_without_clips_are_left_out_and_a_sixth_hole_joins_the_others():
    covered = plot_clip_map(REAL, SIM, ("", ""), [], np.zeros(5, dtype=bool), list("abcde"))
    assert [trace.name for trace in covered.data] == ["simulated", "real, covered"]
    real = np.arange(14.0).reshape(7, 2)
    alone = plot_clip_map(real, SIM, ("", ""), [[i] for i in range(6)], np.ones(7, dtype=bool), list("abcdefg"))
    assert [trace.name for trace in alone.data[1:]] == ["real, other holes", *(f"hole {n}" for n in range(1, 6))]
    assert list(alone.data[1].text) == ["f", "g"]


def test_a_map_holds_at_most_six_thousand_simulated_clips_none_twice():
    many = np.column_stack([np.arange(7000.0), -np.arange(7000.0)])
    sim = plot_clip_map(REAL, many, ("", ""), [], UNCOVERED, list("abcde")).data[0]
    assert len(set(sim.x)) == 6000
    assert list(sim.y) == [-x for x in sim.x]
    assert max(sim.x) > 6900, "the clips are drawn from all of them"


def test_clips_of_a_hole_are_drawn_over_the_nearest_simulated_ones_by_channel():
    time = np.array([0.0, 0.1, 0.3])
    real = [np.arange(12.0).reshape(3, 4), np.arange(12.0).reshape(3, 4) * 3]
    sim = [np.arange(12.0).reshape(3, 4) - 7]
    figure = plot_clip_traces(time, ["pan", "lift", "roll", "grip"], "rad", real, sim)
    assert panels(figure) == ["pan", "lift", "roll", "grip"]
    near, hole = traces(figure, "nearest simulated"), traces(figure, "real, in the hole")
    assert (len(near), len(hole)) == (4, 8)
    assert [t.showlegend for t in near] == [True, False, False, False]
    assert [t.showlegend for t in hole] == [True] + [False] * 7
    for number in range(4):
        assert list(near[number].y) == list(sim[0][:, number])
        assert list(hole[2 * number].y) == list(real[0][:, number])
        assert list(hole[2 * number + 1].y) == list(real[1][:, number])
        assert near[number].yaxis == hole[2 * number].yaxis == hole[2 * number + 1].yaxis
    assert len({t.yaxis for t in near}) == 4
    assert {(t.line.color, t.legendgroup, t.mode) for t in near} == {(ORANGE, "nearest simulated", "lines")}
    assert {(t.line.color, t.legendgroup, t.mode) for t in hole} == {(BLUE, "real, in the hole", "lines")}
    assert all(list(t.x) == [0.0, 0.1, 0.3] for t in figure.data)
    assert figure.data[0].hovertemplate == "%{y:.3g}<extra>nearest simulated</extra>"
    assert [axis.title.text for axis in figure.select_xaxes()] == [None, None, None, "s", "s", "s"]
    assert [axis.title.text for axis in figure.select_yaxes(col=1)] == ["rad", "rad"]
    assert next(axis.title.text for axis in figure.select_yaxes(col=2)) is None
    two = plot_clip_traces(time, ["pan", "lift"], "rad", real, sim)
    assert [axis.title.text for axis in two.select_xaxes()] == ["s", "s"]
    assert figure.layout.height - two.layout.height == 190, "a line of panels"


def test_success_of_a_cell_is_at_its_middle_over_the_shares_of_both_sides():
    nan = float("nan")
    borders, rate = np.array([0.0, 2.0, 3.0, 7.0]), np.array([0.5, nan, 0.9])
    low, high = np.array([0.3, nan, 0.75]), np.array([0.6, nan, 0.95])
    real, sim = np.array([0.2, 0.3, nan]), np.array([0.6, 0.1, 0.3])
    figure = plot_success_rows("mass", "kg", borders, rate, low, high, real, sim)
    sim_bars, real_bars, dots = figure.data
    assert (sim_bars.name, sim_bars.marker.color) == ("share of simulated episodes", ORANGE)
    assert (real_bars.name, real_bars.marker.color) == ("share of real episodes", BLUE)
    assert (list(sim_bars.y), list(real_bars.y)[:2]) == ([0.6, 0.1, 0.3], [0.2, 0.3])
    assert list(sim_bars.x) == pytest.approx([1.4, 2.7, 5.8])
    assert list(real_bars.x) == pytest.approx([0.6, 2.3, 4.2])
    for bars in (sim_bars, real_bars):
        assert list(bars.width) == pytest.approx([0.8, 0.4, 1.6])
    assert sim_bars.hovertemplate == "%{y:.1%}<extra>simulated</extra>"
    assert (list(dots.x), list(dots.y), dots.name) == ([1.0, 5.0], [0.5, 0.9], "success rate, simulated")
    assert ends(dots, "y") == (pytest.approx([0.3, 0.75]), pytest.approx([0.6, 0.95]))
    assert (dots.mode, dots.marker.color, dots.error_y.color) == ("markers", GREEN, GREEN)
    assert figure.layout.xaxis.title.text == "mass / kg"
    assert (figure.layout.yaxis.range, figure.layout.yaxis.tickformat) == ((0, 1.02), ".0%")
    unknown = plot_success_rows("mass", "kg", borders, rate, low, high, np.full(3, nan), sim)
    assert [t.name for t in unknown.data] == ["share of simulated episodes", "success rate, simulated"]


def test_failures_are_mapped_with_the_first_parameter_across():
    log_density_drop = np.array([[0.5, 1.25, float("nan")], [2.0, 3.5, 4.0], [6.0, 7.0, 8.0]])
    figure = plot_failure_map(log_density_drop, ["mass", "friction"])
    (heat,) = figure.data
    assert np.asarray(heat.z) == pytest.approx(log_density_drop.T, nan_ok=True)
    assert [list(row) for row in heat.text] == [["0.5", "2.0", "6.0"], ["1.2", "3.5", "7.0"], ["", "4.0", "8.0"]]
    assert list(heat.x) == list(heat.y) == ["0–33 %", "33–66 %", "66–100 %"]
    assert titles(figure) == ("mass, quantile", "friction, quantile")
    assert (heat.texttemplate, heat.hoverongaps, heat.colorbar.title.text) == ("%{text}", False, "½ z²")
    red = [int(colour[4:-1].split(",")[1]) for _, colour in heat.colorscale]
    assert red[0] < red[-1], "the likeliest failures are the darkest"
