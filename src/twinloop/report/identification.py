"""Plot the results of an identification: predictions, priors, correlations, coverage, residuals, structures, drift."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from twinloop.core.errors import InputError
from twinloop.report.figure import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    VIOLET,
    format_axis_title,
    make_error_bars,
    new_figure,
    new_panels,
    require_length,
    set_layout,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_ROW = 24  # pixels per row of dots
_BAND, _EDGE = "rgba(221,122,38,0.30)", "rgba(221,122,38,0.75)"


def plot_predicted_band(
    time: ArrayLike,
    channels: Sequence[str],
    measured: ArrayLike,
    predicted: ArrayLike,
    half_width: ArrayLike,
    *,
    units: Sequence[str],
) -> Figure:
    """Plot a held-out clip, a panel per channel: measured values, predicted values, and the prediction band.

    Args:
        time: Times in s, shape ``(nframe,)``.
        channels: Names of ``n`` channels.
        measured: Measured values, shape ``(nframe, n)``.
        predicted: Predicted values, same shape.
        half_width: Half the width of the band, same shape.
        units: Unit of each channel.

    Raises:
        InputError: If an array has another shape.
    """
    at, n = np.asarray(time, dtype=float), len(channels)
    arrays = [np.asarray(values, dtype=float) for values in (measured, predicted, half_width)]
    for values in arrays:
        if values.shape != (len(at), n):
            raise InputError(f"A plot of {n} channels and {len(at)} frames was given values in shape {values.shape}.")
    columns = min(2, n)
    lines = -(-n // columns)
    titles = [format_axis_title(name, unit) for name, unit in zip(channels, units, strict=True)]
    figure = new_panels(lines, columns, shared_xaxes=True, subplot_titles=titles, vertical_spacing=0.24 / lines)
    for i in range(n):
        observed, centre, half = (values[:, i] for values in arrays)
        place = {"row": i // columns + 1, "col": i % columns + 1}
        style = {"mode": "lines", "showlegend": i == 0}
        edge = {
            **style,
            "line": {"width": 1, "color": _EDGE},
            "hoverinfo": "skip",
            "name": "range",
            "legendgroup": "range",
        }
        figure.add_scatter(x=at, y=centre + half, **{**edge, "showlegend": False}, **place)
        figure.add_scatter(x=at, y=centre - half, fill="tonexty", fillcolor=_BAND, **edge, **place)
        for name, values, line in (
            ("measured", observed, {"color": INK, "width": 1.1}),
            ("simulated", centre, {"color": BLUE, "width": 1.1, "dash": "dash"}),
        ):
            figure.add_scatter(x=at, y=values, name=name, legendgroup=name, line=line, **style, **place)
    for column in range(columns):
        figure.update_xaxes(title="time / s", row=lines, col=column + 1)
    set_layout(figure, height=110 + 165 * lines)
    return figure


def plot_prior_and_posterior(
    names: Sequence[str], shift: ArrayLike, spread: ArrayLike, determined: Sequence[bool], nominal: ArrayLike
) -> Figure:
    """Plot prior, nominal value and estimate of each parameter, a row each, in standard deviations of its prior.

    Args:
        names: Names of ``n`` parameters.
        shift: (estimate − prior mean) / standard deviation of the prior, shape ``(n,)``.
        spread: Standard error / standard deviation of the prior, shape ``(n,)``.
        determined: False for an unidentifiable parameter, which is drawn without an interval.
        nominal: (nominal value − prior mean) / standard deviation of the prior, shape ``(n,)``; NaN for none.
    """
    n = len(names)
    before = require_length(nominal, n, "the nominal values")
    moved, width = require_length(shift, n, "the shifts"), require_length(spread, n, "the spreads")
    known, rows = np.asarray(determined, dtype=bool), np.arange(n, dtype=float)
    figure = new_figure()
    figure.add_scatter(
        x=np.zeros(n),
        y=rows,
        mode="markers",
        name="prior, ±1 and ±2",
        marker={"color": GREY, "size": 5},
        error_x={"type": "constant", "value": 2.0, "color": GREY, "thickness": 1.0, "width": 0},
        hoverinfo="skip",
    )
    figure.add_vrect(x0=-1, x1=1, fillcolor=GREY, opacity=0.12, line_width=0)
    figure.add_scatter(
        x=before,
        y=rows,
        mode="markers",
        name="nominal value",
        marker={"color": INK, "size": 9, "symbol": "line-ns-open", "line": {"width": 1.6}},
        hoverinfo="skip",
    )
    for name, chosen, colour, symbol in (
        ("estimate", known, BLUE, "circle"),
        ("not determined by the data", ~known, ORANGE, "x-thin-open"),
    ):
        if not chosen.any():
            continue
        half = 1.96 * width[chosen]
        limits = (moved[chosen] - half, moved[chosen] + half) if name == "estimate" else None
        figure.add_scatter(
            x=moved[chosen],
            y=rows[chosen],
            mode="markers",
            name=name,
            marker={"color": colour, "size": 8, "symbol": symbol, "line": {"width": 1.6, "color": colour}},
            error_x=make_error_bars(moved[chosen], limits, colour),
            customdata=[name for name, shown in zip(names, chosen, strict=True) if shown],
            hovertemplate="%{customdata}: %{x:.3g} prior standard deviations<extra></extra>",
        )
    figure.update_xaxes(title="standard deviations of the prior")
    figure.update_yaxes(tickvals=rows, ticktext=list(names), range=[n - 0.4, -0.6], showgrid=False, zeroline=False)
    set_layout(figure, height=90 + _ROW * n)
    return figure


def plot_correlation_map(names: Sequence[str], correlation: ArrayLike) -> Figure:
    """Plot the correlations of n parameter estimates as a heat map; ``correlation`` has the shape ``(n, n)``."""
    n, matrix = len(names), np.asarray(correlation, dtype=float)
    if matrix.shape != (n, n):
        raise InputError(f"A map of {n} parameters was given correlations in shape {matrix.shape}.")
    figure = new_figure()
    figure.add_heatmap(
        z=matrix,
        x=list(names),
        y=list(names),
        zmin=-1,
        zmax=1,
        colorscale=[[0, ORANGE], [0.5, "rgba(127,127,127,0.06)"], [1, BLUE]],
        colorbar={"thickness": 10, "outlinewidth": 0},
        hovertemplate="%{y}, %{x}: %{z:.2f}<extra></extra>",
        xgap=1,
        ygap=1,
    )
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(tickangle=-60, showgrid=False)
    set_layout(figure, height=220 + 17 * n)
    return figure


def plot_profile_curves(
    names: Sequence[str],
    units: Sequence[str],
    values: Sequence[ArrayLike],
    rises: Sequence[ArrayLike],
    limits: Sequence[float],
) -> Figure:
    """Plot the profile of the loss for each parameter: the rise of the minimal loss if the parameter has a fixed value.

    A dotted line marks the rise at the limits of the parameter's interval.

    Args:
        names: Names of ``n`` parameters.
        units: Unit of each parameter.
        values: Fixed values of each parameter, ascending, shape ``(k,)`` each.
        rises: Rise of the loss at these values in units of t² (squared t statistic), shape ``(k,)`` each.
        limits: Rise that bounds the interval of each parameter.
    """
    n, columns = len(names), min(2, len(names))
    lines = -(-n // columns)
    figure = new_panels(lines, columns, subplot_titles=list(names), vertical_spacing=0.4 / lines)
    for i, (held, rise, limit) in enumerate(zip(values, rises, limits, strict=True)):
        at = np.asarray(held, dtype=float)
        place = {"row": i // columns + 1, "col": i % columns + 1}
        style = {"showlegend": i == 0, "mode": "lines"}
        figure.add_scatter(
            x=at,
            y=require_length(rise, len(at), f"the profile of {names[i]}"),
            name="rise of the loss",
            **{**style, "mode": "lines+markers"},
            line={"color": BLUE, "width": 1.8},
            marker={"size": 6},
            hovertemplate=f"%{{x:.4g}} {units[i]}: %{{y:.3g}}<extra></extra>",
            **place,
        )
        line = {"color": INK, "width": 1, "dash": "dot"}
        figure.add_scatter(x=at[[0, -1]], y=[limit, limit], name="limit of the interval", line=line, **style, **place)
        figure.update_xaxes(title=units[i], row=place["row"], col=place["col"])
        figure.update_yaxes(
            title="rise / t²", title_font_size=12, rangemode="tozero", row=place["row"], col=place["col"]
        )
    set_layout(figure, height=100 + 220 * lines)
    return figure


def plot_coverage_curve(
    levels: ArrayLike, plain: ArrayLike, calibrated: ArrayLike, low: ArrayLike, high: ArrayLike
) -> Figure:
    """Plot the share of test clips inside the prediction band over the nominal level, before and after calibration.

    Args:
        levels: Nominal levels from 0 to 1, shape ``(k,)``.
        plain: Share inside the band as fitted, shape ``(k,)``.
        calibrated: Share inside the calibrated band, shape ``(k,)``.
        low: Lower limit of the range that contains 95 % of such shares if the calibration is correct, shape ``(k,)``.
        high: Upper limit of this range, shape ``(k,)``.
    """
    at = np.asarray(levels, dtype=float)
    k = len(at)
    figure = new_figure()
    edge = {"mode": "lines", "line": {"width": 0, "shape": "hvh"}, "hoverinfo": "skip"}
    figure.add_scatter(x=at, y=require_length(high, k, "the upper ends"), showlegend=False, **edge)
    figure.add_scatter(
        x=at,
        y=require_length(low, k, "the lower ends"),
        fill="tonexty",
        fillcolor="rgba(138,144,153,0.22)",
        name="95 % of such tests, if calibrated",
        **edge,
    )
    figure.add_scatter(x=[0, 1], y=[0, 1], mode="lines", name="nominal", line={"color": INK, "dash": "dot", "width": 1})
    for name, values, colour in (("as fitted", plain, GREY), ("calibrated", calibrated, BLUE)):
        figure.add_scatter(
            x=at,
            y=require_length(values, k, name),
            mode="lines+markers",
            name=name,
            line={"color": colour, "width": 1.8},
            marker={"size": 6},
            hovertemplate=f"{name}: %{{y:.0%}} at nominal %{{x:.0%}}<extra></extra>",
        )
    figure.update_xaxes(title="nominal", range=[0, 1], tickformat=".0%")
    figure.update_yaxes(title="test clips inside", title_font_size=12, range=[0, 1.03], tickformat=".0%")
    set_layout(figure, height=380)
    return figure


def plot_residual_correlation(
    lags_s: ArrayLike, correlation: ArrayLike, channels: Sequence[str], white: float
) -> Figure:
    """Plot the autocorrelation of each channel's residual over the lag.

    Args:
        lags_s: Lags in s, shape ``(k,)``.
        correlation: Autocorrelations, shape ``(k, n)``.
        channels: Names of ``n`` channels.
        white: Half the width of the band that contains 95 % of the autocorrelations of white noise.
    """
    table, n = np.asarray(correlation, dtype=float), len(channels)
    lags = require_length(lags_s, len(table), "the lags")
    figure = new_figure()
    figure.add_hrect(y0=-white, y1=white, fillcolor=GREY, opacity=0.2, line_width=0)
    colours = [BLUE, ORANGE, GREEN, GREY, VIOLET, INK]
    for i in range(n):
        figure.add_scatter(
            x=lags,
            y=table[:, i],
            mode="lines",
            name=channels[i],
            line={"color": colours[i % len(colours)], "width": 1.6, "dash": "solid" if i < len(colours) else "dot"},
        )
    figure.update_xaxes(title="lag / s", rangemode="tozero")
    figure.update_yaxes(title="autocorrelation", title_font_size=12, range=[-1.02, 1.02])
    figure.update_layout(showlegend=True)
    set_layout(figure, height=340)
    return figure


def plot_structure_gains(
    names: Sequence[str], gain: ArrayLike, low: ArrayLike, high: ArrayLike, missing: Sequence[bool]
) -> Figure:
    """Plot how much each model structure (optional physical effect) improves the held-out error, with intervals.

    Args:
        names: Names of ``n`` structures.
        gain: Fraction of the held-out error that the structure removes, shape ``(n,)``.
        low: Lower limits of the intervals, shape ``(n,)``.
        high: Upper limits of the intervals, shape ``(n,)``.
        missing: Whether the model should have the structure: the base model lacks it, or has it and needs it. Such
            structures are coloured.
    """
    n = len(names)
    values, lows, highs = (require_length(v, n, "the improvements") for v in (gain, low, high))
    is_missing, rows, figure = np.asarray(missing, dtype=bool), np.arange(n, dtype=float), new_figure()
    for name, chosen, colour in (
        ("missing, or needed", is_missing, BLUE),
        ("no improvement, or unclear", ~is_missing, GREY),
    ):
        if not chosen.any():
            continue
        figure.add_scatter(
            x=values[chosen],
            y=rows[chosen],
            mode="markers",
            name=name,
            marker={"color": colour, "size": 10},
            error_x=make_error_bars(values[chosen], (lows[chosen], highs[chosen]), colour),
            customdata=[name for name, shown in zip(names, chosen, strict=True) if shown],
            hovertemplate="%{customdata}: %{x:+.1%}<extra></extra>",
        )
    figure.add_vline(x=0, line={"color": INK, "width": 1, "dash": "dot"})
    figure.update_xaxes(title="held-out improvement", tickformat="+.0%")
    figure.update_yaxes(tickvals=rows, ticktext=list(names), range=[n - 0.45, -0.55], showgrid=False, zeroline=False)
    set_layout(figure, height=90 + 34 * n)
    return figure


def plot_drift_panels(
    groups: Sequence[str], names: Sequence[str], estimates: ArrayLike, errors: ArrayLike, units: Sequence[str]
) -> Figure:
    """Plot parameter estimates over consecutive groups of episodes with 95 % intervals, a panel per parameter.

    Args:
        groups: Labels of the groups of episodes.
        names: Names of ``n`` parameters.
        estimates: Estimates, shape ``(n, ngroup)``.
        errors: Standard errors of the estimates, same shape.
        units: Unit of each parameter.
    """
    values, spread = np.asarray(estimates, dtype=float), np.asarray(errors, dtype=float)
    n, columns = len(names), min(2, len(names))
    if values.shape != (n, len(groups)) or spread.shape != values.shape:
        raise InputError(f"A plot of {n} parameters over {len(groups)} groups was given shape {values.shape}.")
    lines = -(-n // columns)
    titles = [format_axis_title(name, unit) for name, unit in zip(names, units, strict=True)]
    figure = new_panels(lines, columns, subplot_titles=titles, vertical_spacing=0.4 / lines)
    for i in range(n):
        figure.add_scatter(
            x=list(groups),
            y=values[i],
            mode="lines+markers",
            showlegend=False,
            line={"color": BLUE, "width": 1.6},
            marker={"size": 8},
            error_y={"type": "data", "array": 1.96 * spread[i], "color": BLUE, "thickness": 1.4, "width": 0},
            row=i // columns + 1,
            col=i % columns + 1,
        )
    figure.update_xaxes(type="category")
    set_layout(figure, height=100 + 190 * lines)
    return figure
