"""Plots of an identification: priors, correlations, structures, residuals and drift at their places."""

from __future__ import annotations

import numpy as np
import pytest

from support.pages import ends, panels, titles, upright_lines
from twinloop.core.errors import InputError
from twinloop.report.figure import BLUE, GREY, ORANGE
from twinloop.report.identification import (
    plot_correlation_map,
    plot_drift_panels,
    plot_predicted_band,
    plot_prior_and_posterior,
    plot_residual_correlation,
    plot_structure_gains,
)


def test_estimates_are_drawn_in_standard_deviations_of_their_prior():
    figure = plot_prior_and_posterior(
        ["kp", "mass", "play"], [0.5, -1.0, 2.0], [0.1, 0.2, 3.0], [True, True, False], [0.0, 0.3, np.nan]
    )
    prior, nominal, known, unknown = figure.data
    assert list(nominal.x)[:2] == [0.0, 0.3]
    assert (list(prior.x), list(prior.y), prior.error_x.value) == ([0, 0, 0], [0, 1, 2], 2.0)
    assert (list(known.x), list(known.y), list(known.customdata)) == ([0.5, -1.0], [0, 1], ["kp", "mass"])
    assert ends(known) == (pytest.approx([0.304, -1.392]), pytest.approx([0.696, -0.608]))
    assert (known.marker.color, unknown.marker.color) == (BLUE, ORANGE)
    assert (list(unknown.x), list(unknown.y), unknown.error_x.visible) == ([2.0], [2], False)
    assert [(shape.x0, shape.x1) for shape in figure.layout.shapes] == [(-1, 1)]
    assert list(figure.layout.yaxis.ticktext) == ["kp", "mass", "play"]
    assert figure.layout.xaxis.title.text == "standard deviations of the prior"


def test_correlations_are_mapped_from_minus_one_to_one():
    matrix = [[1.0, -0.3], [-0.3, 1.0]]
    (heat,) = plot_correlation_map(["kp", "mass"], matrix).data
    assert np.asarray(heat.z).tolist() == matrix
    assert (list(heat.x), list(heat.y), heat.zmin, heat.zmax) == (["kp", "mass"], ["kp", "mass"], -1, 1)
    assert [colour for _, colour in heat.colorscale][::2] == [ORANGE, BLUE]
    with pytest.raises(InputError, match="2 parameters was given correlations in shape"):
        plot_correlation_map(["kp", "mass"], [[1.0, 0.0]])


def test_structures_that_are_missing_are_in_full_colour():
    figure = plot_structure_gains(["play", "lag"], [0.3, 0.01], [0.2, -0.05], [0.5, 0.02], [True, False])
    missing, other = figure.data
    assert (missing.marker.color, list(missing.x), list(missing.y)) == (BLUE, [0.3], [0])
    assert (other.marker.color, list(other.x), list(other.y), list(other.customdata)) == (GREY, [0.01], [1], ["lag"])
    assert ends(missing) == (pytest.approx([0.2]), pytest.approx([0.5]))
    assert ends(other) == (pytest.approx([-0.05]), pytest.approx([0.02]))
    assert upright_lines(figure) == [0]


def test_residuals_are_drawn_by_channel_over_the_band_of_white_noise():
    table = np.array([[1.0, 0.9], [0.4, -0.2], [0.1, 0.3]])
    figure = plot_residual_correlation([0.0, 0.1, 0.3], table, ["pan", "lift"], 0.15)
    for trace, name, values in zip(figure.data, ("pan", "lift"), table.T, strict=True):
        assert (trace.name, list(trace.x), list(trace.y)) == (name, [0.0, 0.1, 0.3], list(values))
    assert [(shape.y0, shape.y1) for shape in figure.layout.shapes] == [(-0.15, 0.15)]
    assert titles(figure) == ("lag / s", "autocorrelation")


def test_drift_has_a_panel_per_parameter_with_intervals_of_95_per_cent():
    values, errors = [[1.0, 2.0], [5.0, 3.0], [7.0, 9.0]], [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]
    figure = plot_drift_panels(["mon", "tue"], ["kp", "mass", "play"], values, errors, ["N", "kg", ""])
    assert panels(figure) == ["kp / N", "mass / kg", "play"]
    for trace, value, error in zip(figure.data, values, errors, strict=True):
        assert (list(trace.x), list(trace.y)) == (["mon", "tue"], value)
        assert list(trace.error_y.array) == pytest.approx([1.96 * one for one in error])
    assert [trace.yaxis for trace in figure.data] == ["y", "y2", "y3"]
    assert figure.layout.yaxis3.domain[1] < figure.layout.yaxis.domain[0], "two panels side by side"
    with pytest.raises(InputError, match="3 parameters over 2 groups"):
        plot_drift_panels(["mon", "tue"], ["kp", "mass", "play"], values, errors[:2], ["", "", ""])


def test_a_predicted_band_reaches_as_far_above_the_prediction_as_below():
    seen, centre, half = np.array([[1.0], [4.0]]), np.array([[2.0], [3.0]]), np.array([[0.5], [0.7]])
    figure = plot_predicted_band([0.0, 0.2], ["pan"], seen, centre, half, units=["rad"])
    high, low, measured, simulated = figure.data
    assert [list(t.y) for t in (high, low)] == [pytest.approx([2.5, 3.7]), pytest.approx([1.5, 2.3])]
    assert (measured.name, list(measured.y), simulated.name, list(simulated.y)) == (
        "measured",
        [1, 4],
        "simulated",
        [2, 3],
    )
    assert [t.fill for t in figure.data] == [None, "tonexty", None, None]
    assert [t.showlegend for t in figure.data] == [False, True, True, True]
    assert panels(figure) == ["pan / rad"]
    with pytest.raises(InputError, match=r"1 channels and 2 frames was given values in shape \(1, 1\)"):
        plot_predicted_band([0.0, 0.2], ["pan"], seen, centre, half[:1], units=["rad"])
