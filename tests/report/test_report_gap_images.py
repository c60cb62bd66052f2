"""Plots that compare images and features of real and simulated clips: regions, tones, chance, scores, spreads."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest

from support.pages import ends, panels, titles, traces, upright_lines
from twinloop.report.figure import BLUE, GREEN, GREY, ORANGE
from twinloop.report.gap_plots import plot_feature_histograms, plot_feature_map, plot_group_auc
from twinloop.report.gap_sensors import (
    plot_episode_scores,
    plot_permutation_histogram,
    plot_region_maps,
    plot_tone_quantiles,
)

APART = np.array([[0.5, 1.0, 9.0], [0.0, 2.5, 3.0]])
HOVER = np.array([["a", "b", "c"], ["d", "e", "f"]])


def test_every_image_has_the_map_of_its_regions_upon_it():
    from PIL import Image

    images = [np.full((20, 60, 3), 40, np.uint8), np.full((40, 30, 3), 200, np.uint8)]
    figure = plot_region_maps(images, ["real", "simulated"], APART, HOVER)
    assert panels(figure) == ["real", "simulated"]
    image, heat, other_image, other = figure.data
    assert (heat.xaxis, image.xaxis, other.xaxis, other_image.xaxis) == ("x", "x", "x2", "x2")
    assert (list(heat.x), list(heat.y)) == ([10, 30, 50], [5, 15])
    assert (list(other.x), list(other.y)) == ([5, 15, 25], [10, 30])
    for one in (heat, other):
        assert np.asarray(one.z).tolist() == APART.tolist()
        assert np.asarray(one.text).tolist() == HOVER.tolist()
        assert (one.zmin, one.zmax) == (0.0, pytest.approx(np.percentile(APART, 98)))
        assert one.hovertemplate == "%{text}<extra></extra>"
        assert [step for step, _ in one.colorscale] == [0.0, 0.35, 1.0]
    assert (heat.showscale, other.showscale, other.colorbar.title.text) == (False, True, "distance / sd")
    layout = figure.layout
    assert (layout.xaxis.range, layout.yaxis.range, layout.yaxis.scaleanchor) == ((0, 60), (20, 0), "x")
    assert (layout.xaxis2.range, layout.yaxis2.range, layout.yaxis2.scaleanchor) == ((0, 30), (40, 0), "x2")
    assert {axis.visible for axis in (*figure.select_xaxes(), *figure.select_yaxes())} == {False}
    for trace, original in ((image, images[0]), (other_image, images[1])):
        kind, _, data = trace.source.partition(",")
        assert (kind, trace.hoverinfo) == ("data:image/jpeg;base64", "skip")
        back = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))), dtype=int)
        assert back.shape == original.shape
        assert abs(back - original).max() < 3


def test_regions_that_hardly_differ_stay_pale():
    figure = plot_region_maps([np.zeros((4, 4, 3), np.uint8)], ["real"], APART / 10, HOVER)
    assert figure.data[1].zmax == 2.0
    assert figure.data[1].showscale is True


def test_tones_are_simulated_across_and_real_up_by_colour():
    real = np.array([[0.1, 0.6], [0.2, 0.7], [0.3, 0.8]])
    figure = plot_tone_quantiles(np.array([0.25, 0.5]), real, real / 2, real / 4)
    equal, *lines = figure.data
    assert (list(equal.x), list(equal.y), equal.name, equal.mode) == ([0, 255], [0, 255], "equal", "lines")
    names = [name + end for name in ("red", "green", "blue") for end in ("", " with all remedies")]
    assert [line.name for line in lines] == names
    for number, line in enumerate(lines):
        row, remedied = divmod(number, 2)
        assert list(line.y) == pytest.approx(255 * real[row])
        assert list(line.x) == pytest.approx(255 * real[row] / (4 if remedied else 2))
        assert line.line.dash == ("dash" if remedied else "solid")
        assert line.marker.symbol == ("circle-open" if remedied else "circle")
        assert list(line.text) == ["quantile 0.25", "quantile 0.50"]
        assert line.hovertemplate.endswith(f"<extra>{names[number]}</extra>")
        assert line.mode == "lines+markers"
    assert [line.line.color for line in lines[2:]] == [GREEN, GREEN, BLUE, BLUE]
    assert titles(figure) == ("simulated value, of 255", "real value, of 255")
    assert (figure.layout.xaxis.range, figure.layout.yaxis.range) == ((0, 260), (0, 260))
    without = plot_tone_quantiles(np.array([0.25, 0.5]), real, real / 2)
    assert [line.name for line in without.data] == ["equal", "red", "green", "blue"]


def test_a_distance_is_shown_with_its_interval_over_those_of_exchanged_labels():
    relabelled = np.array([0.1, 0.1, 0.1, 0.1, 0.3, 0.5])
    figure = plot_permutation_histogram(0.7, 0.6, 0.95, relabelled, name="distance")
    counts, dot = figure.data
    assert (list(counts.x), counts.nbinsx, counts.name) == (relabelled.tolist(), 40, "permuted labels")
    assert (list(dot.x), list(dot.y), dot.mode) == ([0.7], [2.0], "markers")
    assert ends(dot) == (pytest.approx([0.6]), pytest.approx([0.95]))
    assert (counts.marker.color, dot.marker.color, dot.error_x.color) == (GREY, ORANGE, ORANGE)
    assert dot.name == "observed, with its interval"
    assert dot.hovertemplate.startswith("0.7 [0.6, 0.95]")
    assert titles(figure) == ("distance", "permutations")
    outside = plot_permutation_histogram(0.7, 0.8, 0.65, relabelled, name="").data[1]
    assert ends(outside) == ([0.7], [0.7]), "an end on the wrong side gives no bar"


def test_scores_of_episodes_keep_their_side_and_their_names():
    figure = plot_episode_scores(np.array([1.5, 0.2]), np.array([-0.5]), ["r1", "r2"], ["s1"])
    real, sim = figure.data
    assert (list(real.x), list(real.y), list(real.text)) == ([1.5, 0.2], ["real"] * 2, ["r1", "r2"])
    assert (list(sim.x), list(sim.y), list(sim.text)) == ([-0.5], ["simulated"], ["s1"])
    assert [(t.name, t.marker.color, t.mode, t.showlegend) for t in figure.data] == [
        ("real", BLUE, "markers", False),
        ("simulated", ORANGE, "markers", False),
    ]
    assert sim.hovertemplate == "%{text}: %{x:.2f}<extra>simulated</extra>"
    assert upright_lines(figure) == [0]
    assert figure.layout.xaxis.title.text == "score in standard deviations; above 0 it is classified as real"


def test_groups_of_features_that_tell_are_coloured_and_keep_their_order():
    names, low, high = ["speed", "noise", "delay"], [0.6, 0.4, 0.9], [0.85, 0.65, 1.0]
    figure = plot_group_auc(names, [0.8, 0.55, 0.99], low, high, [True, False, True])
    seen, unseen = figure.data
    assert (seen.name, seen.marker.color, list(seen.x), list(seen.y)) == (
        "distinguishable",
        ORANGE,
        [0.8, 0.99],
        ["speed", "delay"],
    )
    assert (unseen.name, unseen.marker.color, list(unseen.x), list(unseen.y)) == (
        "not distinguishable",
        GREY,
        [0.55],
        ["noise"],
    )
    assert ends(seen) == (pytest.approx([0.6, 0.9]), pytest.approx([0.85, 1.0]))
    assert ends(unseen) == (pytest.approx([0.4]), pytest.approx([0.65]))
    assert np.asarray(seen.customdata).tolist() == [[0.6, 0.85], [0.9, 1.0]]
    assert seen.hovertemplate == "%{y}: %{x:.2f} [%{customdata[0]:.2f}, %{customdata[1]:.2f}]<extra></extra>"
    assert seen.mode == "markers"
    assert upright_lines(figure) == [0.5]
    axis = figure.layout.yaxis
    assert (list(axis.categoryarray), axis.categoryorder, axis.autorange) == (names, "array", "reversed")
    assert figure.layout.xaxis.title.text == "area under the curve, features of this group alone"
    assert figure.layout.xaxis.range == (0, 1.02)
    assert figure.layout.height == 100 + 22 * 3, "a frame and three rows"
    assert [t.name for t in plot_group_auc(["a"], [0.5], [0.4], [0.6], [False]).data] == ["not distinguishable"]


def test_features_are_mapped_with_channels_down_and_kinds_across():
    effect = [[0.2, float("nan"), 3.5], [0.1, 0.4, 0.0]]
    figure = plot_feature_map(
        ["pan", "lift"], ["mean_speed", "noise", "lag"], effect, [["a", "b", "c"], ["d", "e", "f"]]
    )
    (heat,) = figure.data
    assert (list(heat.x), list(heat.y)) == (["mean speed", "noise", "lag"], ["pan", "lift"])
    assert np.asarray(heat.z) == pytest.approx(np.array(effect), nan_ok=True)
    assert (heat.zmin, heat.zmax, heat.hoverongaps) == (0, 3.5, False)
    assert [list(row) for row in heat.text] == [["a", "b", "c"], ["d", "e", "f"]]
    assert heat.hovertemplate == "%{text}<extra></extra>"
    assert (heat.colorscale[0][1][-5:], heat.colorscale[1][1][-3:]) == ("0.05)", ",1)"), "more is darker"
    assert heat.colorbar.title.text == "W₁ / sd"
    assert figure.layout.yaxis.autorange == "reversed"
    assert plot_feature_map(["a"], ["b"], [[0.3]], [[""]]).data[0].zmax == 1.0
    assert figure.layout.height == 200 + 28 * 2, "a frame and two rows"


def test_spreads_are_shares_of_each_side_in_common_bins_with_far_values_at_the_ends():
    rng = np.random.default_rng(5)
    real, sim = rng.normal(size=(200, 3)), rng.normal(size=(300, 3)) + np.array([0.5, 0.0, 2.0])
    real[0], sim[0] = 50.0, -50.0
    figure = plot_feature_histograms(["speed", "lag", "noise"], ["m/s", "s", ""], real, sim, names=("lab", "twin"))
    assert panels(figure) == ["speed / m/s", "lag / s", "noise"]
    for name, values, colour in (("lab", real, BLUE), ("twin", sim, ORANGE)):
        lines = traces(figure, name)
        assert [line.showlegend for line in lines] == [True, False, False]
        assert {(line.line.color, line.legendgroup, line.fill, line.line.shape, line.mode) for line in lines} == {
            (colour, name, "tozeroy", "hvh", "lines")
        }
        assert len({line.xaxis for line in lines}) == 3
        for k, line in enumerate(lines):
            both = np.concatenate([real[:, k], sim[:, k]])
            edges = np.linspace(*np.quantile(both, [0.005, 0.995]), 31)
            inside = np.clip(values[:, k], edges[0], edges[-1])
            place = np.minimum(np.searchsorted(edges, inside, side="right") - 1, 29)
            assert list(line.x) == pytest.approx((edges[1:] + edges[:-1]) / 2)
            assert list(line.y) == pytest.approx(100 * np.bincount(place, minlength=30) / len(values))
            assert line.hovertemplate.startswith(f"{name}: %{{y:.1f}} % of clips at")
            assert line.hovertemplate.endswith(f" {['m/s', 's', ''][k]}<extra></extra>")
    assert figure.layout.xaxis2.domain[0] > figure.layout.xaxis.domain[1]
    assert figure.layout.yaxis3.domain[1] < figure.layout.yaxis.domain[0]
    assert {(axis.title.text, axis.rangemode) for axis in figure.select_yaxes()} == {("% of clips", "tozero")}
    alone = plot_feature_histograms(["lag"], ["s"], real[:, 1:2], sim[:, 1:2])
    assert [trace.name for trace in alone.data] == ["real", "simulated"]
    assert alone.layout.xaxis.domain == (0.0, 1.0)
    assert figure.layout.height - alone.layout.height == 220, "a line of panels"
