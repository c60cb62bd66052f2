"""Plots of a gap show errors, spectra and shares under the names and at the places they were given."""

from __future__ import annotations

import numpy as np
import pytest

from support.pages import ends, level_lines, panels, titles, traces, upright_lines
from twinloop.core.errors import InputError
from twinloop.report.figure import BLUE, GREY, INK, ORANGE, VIOLET
from twinloop.report.gap_attribution import plot_index_matrix, plot_share_bars, plot_share_forest, plot_share_panels
from twinloop.report.gap_plots import ErrorCurve, plot_clip_series, plot_error_over_horizon
from twinloop.report.gap_sensors import plot_allan_pair, plot_spectra_pair
from twinloop.stats import AllanCurve, Interval, Spectrum

CHANNELS = ["pan", "lift", "roll", "grip"]
EDGES = np.array([0.0, 0.1, 0.3, 0.7])


def curve(name: str, factor: float, width: float = np.nan) -> ErrorCurve:
    estimate = factor * (np.arange(12.0).reshape(3, 4) + 1) ** 1.5
    return ErrorCurve(name=name, estimate=estimate, low=estimate - width, high=estimate + 2 * width)


def horizon(**changed):
    twins = [curve("old", 2.0, 0.3), curve("new", 1.0, 0.2)]
    baselines = [curve("hold", 5.0), curve("speed", 3.0)]
    given = {"twins": twins, "baselines": baselines, "floor": curve("floor", 0.4, 0.1)} | changed
    return plot_error_over_horizon(CHANNELS, ["rad", "m", "", "N"], EDGES, **given)


def axis_of(figure, trace, letter="y"):
    name = getattr(trace, letter + "axis")
    return figure.layout[letter + "axis" + name[1:]]


def test_every_channel_has_a_panel_with_every_curve_at_the_ends_of_its_bins():
    figure = horizon()
    assert panels(figure) == ["pan / rad", "lift / m", "roll", "grip / N"]
    for name, factor in (("old", 2.0), ("new", 1.0), ("hold", 5.0), ("speed", 3.0), ("floor", 0.4)):
        lines = traces(figure, name)
        assert len({(line.xaxis, line.yaxis) for line in lines}) == 4
        assert [line.showlegend for line in lines] == [True, False, False, False]
        assert {(line.mode, line.legendgroup) for line in lines} == {("lines", name)}
        for number, line in enumerate(lines):
            assert list(line.x) == [0.1, 0.3, 0.7]
            assert list(line.y) == pytest.approx(factor * np.array([number + 1, number + 5, number + 9]) ** 1.5)
            assert line.hovertemplate.endswith(" " + ["rad", "m", "", "N"][number] + "<extra></extra>")
    assert len({axis.domain for axis in (figure.layout.yaxis, figure.layout.yaxis2, figure.layout.yaxis3)}) == 1
    assert figure.layout.yaxis4.domain[1] < figure.layout.yaxis.domain[0]
    under = [axis.title.text for axis in figure.select_xaxes(row=2)]
    assert under == ["time since the beginning / s"] * 3
    assert [axis.title.text for axis in figure.select_xaxes(row=1)] == [None] * 3
    assert {axis.rangemode for axis in figure.select_xaxes()} == {"tozero"}
    assert (
        horizon().layout.height > plot_error_over_horizon(["a"], [""], EDGES, [curve("t", 1.0)], [], None).layout.height
    )


def test_the_last_twin_is_in_full_blue_and_guesses_are_broken_lines_of_unlike_kinds():
    more = [curve(name, 9.0) for name in "abcde"]
    figure = horizon(baselines=more)
    assert [traces(figure, name)[0].line.color for name in ("old", "new", "floor")] == [ORANGE, BLUE, INK]
    assert [traces(figure, name)[0].line.dash for name in ("old", "new", "floor")] == [None, None, "dash"]
    drawn = [(traces(figure, name)[0].line.color, traces(figure, name)[0].line.dash) for name in "abcde"]
    assert len(set(drawn)) == 4
    assert drawn[0] == drawn[4] == (GREY, "dot")
    assert drawn[1] == (VIOLET, "dash")


def test_intervals_are_filled_bands_and_curves_without_one_have_none():
    figure = horizon(floor=None)
    bands = [trace for trace in figure.data if trace.fill]
    assert [band.fillcolor for band in bands] == [ORANGE, BLUE] * 4
    estimate = np.array([2.0, 6.0, 10.0]) ** 1.5
    second = next(band for band in bands if band.legendgroup == "new" and band.yaxis == "y2")
    assert list(second.x) == [0.1, 0.3, 0.7, 0.7, 0.3, 0.1]
    assert list(second.y) == pytest.approx([*(estimate + 0.4), *(estimate - 0.2)[::-1]])
    assert (second.fill, second.showlegend, second.hoverinfo, second.line.width) == ("toself", False, "skip", 0)
    assert 0 < second.opacity < 1
    (new, *_), (hold, *_) = traces(figure, "new"), traces(figure, "hold")
    assert np.asarray(new.customdata)[0].tolist() == pytest.approx([0.8, 1.4])
    assert "[%{customdata[0]:.4g}, %{customdata[1]:.4g}] rad" in new.hovertemplate
    assert "customdata" not in hold.hovertemplate
    assert [band.fillcolor for band in horizon(twins=[]).data if band.fill] == [GREY] * 4


def test_a_band_leaves_out_the_times_that_lack_either_end():
    one = curve("t", 1.0, 0.2)
    one.low[0, 0] = one.high[1, 0] = np.nan
    (band,) = (t for t in horizon(twins=[one], floor=None).data if t.fill and t.yaxis == "y")
    assert list(band.x) == [0.7, 0.7]
    assert list(band.y) == pytest.approx([27.4, 26.8])


def test_a_panel_has_room_for_twins_floor_and_the_best_guess_but_not_for_worse_ones():
    best = {"twins": [curve("new", 1.0)], "floor": curve("floor", 0.4, 0.1)}
    figure = horizon(**best)
    tops = [axis_of(figure, line).range for line in traces(figure, "new")]
    assert np.array(tops) == pytest.approx(np.array([[0, 1.25 * 3 * n**1.5] for n in (9, 10, 11, 12)]))
    tall = horizon(twins=[curve("new", 1.0, 50.0)], floor=None)
    assert tall.layout.yaxis.range == pytest.approx((0, 1.25 * (27 + 100)))
    high = horizon(baselines=[], twins=[curve("new", 0.1)], floor=curve("floor", 1.0, 0.5))
    assert high.layout.yaxis.range == pytest.approx((0, 1.25 * 28))


def test_one_channel_of_a_clip_is_drawn_as_measured_and_simulated():
    times = np.array([0.0, 0.1, 0.4])
    figure = plot_clip_series(times, {"real": times + 1, "twin": times * 2, "old": times - 3}, "pan", "rad")
    assert [(t.name, t.line.color, t.mode) for t in figure.data] == [
        ("real", INK, "lines"),
        ("twin", BLUE, "lines"),
        ("old", ORANGE, "lines"),
    ]
    for trace, values in zip(figure.data, (times + 1, times * 2, times - 3), strict=True):
        assert list(trace.x) == [0.0, 0.1, 0.4]
        assert list(trace.y) == list(values)
        assert trace.hovertemplate.startswith(trace.name)
        assert "rad<extra>" in trace.hovertemplate
    assert titles(figure) == ("time / s", "pan / rad")


def test_a_spectrum_shows_the_median_and_the_middle_half_of_the_episodes_on_the_longest_grid():
    short = Spectrum(frequency=np.array([1.0, 9.0]), density=np.array([2.0, 10.0]))
    long = [Spectrum(frequency=np.array([1.0, 2.0, 9.0]), density=np.array(d)) for d in ([1.0, 5.0, 6.0], [7.0, 8, 9])]
    figure = plot_spectra_pair([short, None, *long], [None], "m/s")
    band, line = figure.data
    densities = np.array([[2.0, 3.0, 10.0], [1.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    low, middle, high = (np.percentile(densities, q, axis=0) for q in (25, 50, 75))
    assert (line.name, line.mode, line.line.color) == ("real", "lines", INK)
    assert list(line.x) == [1.0, 2.0, 9.0]
    assert list(line.y) == pytest.approx(middle)
    assert list(band.x) == [1.0, 2.0, 9.0, 9.0, 2.0, 1.0]
    assert list(band.y) == pytest.approx([*high, *low[::-1]])
    assert (band.fill, band.fillcolor, band.showlegend, band.hoverinfo) == ("toself", BLUE, False, "skip")
    assert (band.opacity, band.line.width) == (0.25, 0)
    assert titles(figure) == ("frequency / Hz", "density / ((m/s)²/Hz)")
    assert (figure.layout.xaxis.type, figure.layout.yaxis.type) == ("log", "log")
    assert line.hovertemplate == "real<br>%{x:.3g} Hz<br>%{y:.3g} (m/s)²/Hz<extra></extra>"
    figure = plot_spectra_pair([], [short], "rad")
    assert [(t.name, t.fillcolor) for t in figure.data] == [(None, ORANGE), ("simulated", None)]
    assert figure.layout.yaxis.title.text == "density / (rad²/Hz)"


def test_allan_deviations_are_drawn_with_their_intervals_and_a_missing_one_is_left_out():
    values, low, high = np.array([3.0, 2.0, 1.0]), np.array([2.5, 1.0, 0.1]), np.array([4.0, 2.1, 1.7])
    found = Interval(estimate=values, low=low, high=high, level=0.9, method="")
    one = AllanCurve(time=np.array([0.1, 0.5, 2.0]), deviation=found, freedom=values)
    figure = plot_allan_pair(None, one, "rad/s")
    band, line = figure.data
    assert (line.name, line.mode, line.line.color, band.fillcolor) == ("simulated", "lines", ORANGE, ORANGE)
    assert (list(line.x), list(line.y)) == ([0.1, 0.5, 2.0], [3.0, 2.0, 1.0])
    assert np.asarray(line.customdata).tolist() == [[2.5, 4.0], [1.0, 2.1], [0.1, 1.7]]
    assert list(band.x) == [0.1, 0.5, 2.0, 2.0, 0.5, 0.1]
    assert list(band.y) == [4.0, 2.1, 1.7, 0.1, 1.0, 2.5]
    assert titles(figure) == ("averaging time / s", "Allan deviation / rad/s")
    assert (figure.layout.xaxis.type, figure.layout.yaxis.type) == ("log", "log")
    assert line.hovertemplate.startswith("simulated<br>%{x:.3g} s<br>%{y:.3g} [%{customdata[0]:.3g}, ")
    assert [t.name for t in plot_allan_pair(one, one, "").data] == [None, "real", None, "simulated"]


def shares(**changed):
    names = [["delay", "play", "rest"], ["play", "mass"], ["delay"]]
    values = [[0.5, -0.1, 0.2], [0.3, 0.0], [0.9]]
    bounds = [([0.4, -0.3, 0.15], [0.7, -0.05, 0.4]), ([0.1, np.nan], [0.35, np.nan]), ([0.8], [0.95])]
    claimed = [[True, True, True], [False, True], [True]]
    return plot_share_panels(["pan", "lift", "grip"], names, values, bounds, claimed, rest="rest", **changed)


def test_shares_are_bars_in_per_cent_whose_colour_says_what_is_claimed():
    figure = shares()
    assert panels(figure) == ["pan", "lift", "grip"]
    pan, lift, grip = figure.data
    assert (list(pan.y), list(pan.x)) == (["delay", "play", "rest"], pytest.approx([50, -10, 20]))
    low, high = ends(pan)
    assert low == pytest.approx([40, -30, 15])
    assert high == pytest.approx([70, -5, 40])
    assert np.asarray(pan.customdata)[1].tolist() == pytest.approx([-30, -5])
    assert {bar.orientation for bar in figure.data} == {"h"}
    assert list(pan.marker.color) == [BLUE, ORANGE, VIOLET]
    assert list(lift.marker.color) == [GREY, ORANGE], "a share of 0 explains nothing"
    assert lift.marker.opacity[0] < lift.marker.opacity[1]
    assert lift.error_x.visible is False, "an interval without ends is not drawn"
    assert (list(grip.y), list(grip.x), list(grip.marker.color)) == (["delay"], [90.0], [BLUE])
    assert "%{customdata[0]:.1f} to %{customdata[1]:.1f}" in pan.hovertemplate
    assert figure.layout.showlegend is False
    assert {(axis.ticksuffix, axis.zeroline) for axis in figure.select_xaxes()} == {(" %", True)}
    order = [(axis.autorange, axis.categoryorder, axis.categoryarray) for axis in figure.select_yaxes()]
    assert order[:2] == [
        ("reversed", "array", ("delay", "play", "rest")),
        ("reversed", "array", ("play", "mass")),
    ]


def test_panels_of_shares_have_the_heights_that_their_causes_need():
    figure = shares()
    first, below = figure.layout.yaxis.domain, figure.layout.yaxis3.domain
    assert first[0] > below[1]
    assert (first[1] - first[0]) / (below[1] - below[0]) == pytest.approx(2.0), "room for 3 + 1 rows and for 1 + 1"
    assert figure.layout.xaxis2.domain[0] > figure.layout.xaxis.domain[1]
    stacked = shares(columns=1)
    assert stacked.layout.yaxis3.domain[1] < stacked.layout.yaxis2.domain[0]
    assert stacked.layout.height - figure.layout.height == 22 * 3 + 46, "a panel of 2 + 1 rows and what is between"
    alone = plot_share_panels(["a"], [["x"]], [[0.1]], [([0.0], [0.2])], [[True]])
    assert alone.layout.yaxis.domain == (0.0, 1.0)
    assert alone.layout.xaxis.domain == (0.0, 1.0)


@pytest.mark.parametrize("short", range(5))
def test_panels_of_shares_refuse_lists_of_unlike_lengths(short):
    given = [["a"], [["x"]], [[0.1]], [([0.0], [0.2])], [[True]]]
    given[short] = given[short] * 2
    with pytest.raises(InputError, match=r"panels were given . lists of names and . of shares"):
        plot_share_panels(*given)


def test_indices_are_mapped_with_groups_down_and_channels_across():
    total = [[0.1, 0.25, np.nan], [0.9, 0.0, 1.0]]
    words = [["a", "b", "c"], ["d", "e", "f"]]
    figure = plot_index_matrix(["mass", "play"], ["pan", "lift", "grip"], total, words)
    (heat,) = figure.data
    assert (list(heat.x), list(heat.y)) == (["pan", "lift", "grip"], ["mass", "play"])
    assert np.asarray(heat.z) == pytest.approx(np.array(total), nan_ok=True)
    assert [list(row) for row in heat.text] == [["0.10", "0.25", ""], ["0.90", "0.00", "1.00"]]
    assert (heat.zmin, heat.zmax, heat.texttemplate) == (0, 1, "%{text}")
    assert np.asarray(heat.customdata).tolist() == words
    assert heat.hovertemplate == "%{y} on %{x}: %{customdata}<extra></extra>"
    assert heat.colorbar.title.text == "total index"
    assert heat.colorscale[0][1].endswith("0.04)")
    assert heat.colorscale[1][1].endswith(",1)"), "more is darker"
    assert figure.layout.yaxis.autorange == "reversed"
    assert figure.layout.height == 120 + 28 * 2, "a frame and two rows"


def test_parts_of_an_error_are_stacked_by_channel_in_per_cent():
    parts = {"bias": [0.5, 0.25], "delay": [0.2, 0.7], "rest": [0.3, 0.05]}
    figure = plot_share_bars(["pan", "lift"], parts)
    assert [(bar.name, bar.marker.color, bar.orientation) for bar in figure.data] == [
        ("bias", BLUE, "h"),
        ("delay", ORANGE, "h"),
        ("rest", GREY, "h"),
    ]
    for bar, part in zip(figure.data, parts.values(), strict=True):
        assert list(bar.x) == pytest.approx(100 * np.array(part))
        assert list(bar.y) == ["pan", "lift"]
        assert bar.hovertemplate == "%{y}: %{x:.2f} % " + bar.name + "<extra></extra>"
    assert figure.layout.barmode == "relative"
    assert figure.layout.xaxis.title.text == "share of the mean squared error / %"
    assert figure.layout.yaxis.autorange == "reversed"
    assert plot_share_bars(["a", "b", "c"], {}).layout.height - figure.layout.height == 26, "a row's pixels"
    with pytest.raises(InputError, match="2 rows was given bias"):
        plot_share_bars(["pan", "lift"], {"bias": [1.0]})


def test_rows_that_stand_out_are_coloured_and_keep_their_places_and_words():
    figure = plot_share_forest(
        ["turn", "stop", "touch"],
        [1.5, 0.9, 3.0],
        ([1.2, 0.5, 2.0], [1.9, 1.4, 3.5]),
        [True, False, True],
        title="times more",
        null=1.0,
        words=["a", "b", "c"],
    )
    out, other = figure.data
    assert (out.name, out.marker.color, list(out.x), list(out.y)) == ("significant", ORANGE, [1.5, 3.0], [0, 2])
    assert (other.name, other.marker.color, list(other.x), list(other.y)) == ("not significant", GREY, [0.9], [1])
    assert ends(out) == (pytest.approx([1.2, 2.0]), pytest.approx([1.9, 3.5]))
    assert ends(other) == (pytest.approx([0.5]), pytest.approx([1.4]))
    assert (list(out.text), list(other.text)) == (["a", "c"], ["b"])
    assert {(t.mode, t.hovertemplate) for t in figure.data} == {("markers", "%{text}<extra></extra>")}
    assert (upright_lines(figure), level_lines(figure)) == ([1.0], [])
    assert figure.layout.xaxis.title.text == "times more"
    assert list(figure.layout.yaxis.ticktext) == ["turn", "stop", "touch"]
    assert list(figure.layout.yaxis.tickvals) == [0, 1, 2]
    assert figure.layout.yaxis.autorange == "reversed"


def test_no_row_stands_out_where_none_was_found():
    figure = plot_share_forest(["a"], [1.0], ([0.5], [2.0]), [False], title="", null=0.0, words=[""])
    assert [trace.name for trace in figure.data] == ["not significant"]
    assert figure.layout.height == 90 + 26, "a frame and a row"
    with pytest.raises(InputError, match="an interval"):
        plot_share_forest(["a"], [1.0], ([0.5, 1], [2.0]), [False], title="", null=0.0, words=[""])
